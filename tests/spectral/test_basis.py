"""The decomposition, its chain of fallbacks and self-checks, and what a base matrix must be."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
import twin
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral import Basis, Plan
from driftlab.spectral.basis import EPS, bad_values, decompose, principal_mask

PLAN = Plan(method="exact", null="none")
KINDS = ["gaussian", *twin.SPECTRA]
SHAPES = list(twin.SHAPES.values())


def assert_decomposes(W, found, scale=1.0):
    """Orthonormal, complete, ordered, and no further off than it says."""
    d = min(W.shape)
    U, s, V, error = (x.numpy() for x in (found.U, found.sigma, found.V, found.sigma_error))
    assert (U.shape, s.shape, V.shape) == ((W.shape[0], d), (d,), (W.shape[1], d))
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    np.testing.assert_allclose((U * s) @ V.T, W, atol=1e-13 * (s[0] or 1.0))
    expected = np.linalg.svd(W, compute_uv=False)
    assert (abs(s - expected) <= error + 4 * d * EPS * s[0]).all()
    near, far = (U, V) if W.shape[0] <= W.shape[1] else (V, U)
    np.testing.assert_allclose(near.T @ near, np.eye(d), atol=1e-12)
    if s[0]:  # the far side of a Gram decomposition loses orthogonality with sigma_1² / (sigma_i sigma_j)
        loss = np.ones((d, d)) if found.route != "gram" else s[0] ** 2 / np.outer(s, s)
        assert (abs(far.T @ far - np.eye(d)) <= 50 * EPS * d * loss).all()


# --- faults -----------------------------------------------------------------------------------------------------


def refuse(*_, **__):
    raise torch.linalg.LinAlgError("failed to converge")


def nan_of(function):
    def call(*arguments, **options):
        return tuple(torch.full_like(x, math.nan) for x in function(*arguments, **options))

    return call


def skewed(function):
    """A result that looks fine and is not: vectors that lost their orthogonality."""

    def call(*arguments, **options):
        found = list(function(*arguments, **options))
        wrong = [x.clone() for x in found]
        for x in wrong:
            if x.ndim == 2:
                x[:, 0] += 1e-6 * x[:, 1]
                x[0] += 1e-6 * x[1]
        return tuple(wrong)

    return call


def scaled(function):
    def call(*arguments, **options):
        return tuple(x if x.ndim == 2 else x * (1 + 1e-6) for x in function(*arguments, **options))

    return call


def shuffled(function):
    """Orthonormal vectors that belong to other values."""

    def call(*arguments, **options):
        return tuple(x.flip(-1).clone() if x.ndim == 2 else x for x in function(*arguments, **options))

    return call


def half_missing(function):
    """The longer side's vectors are NaN, or with eigh the only ones."""

    def call(*arguments, **options):
        found = list(function(*arguments, **options))
        longest = max(range(len(found)), key=lambda i: found[i].numel())
        found[longest] = torch.full_like(found[longest], math.nan)
        return tuple(found)

    return call


FAULTS = {
    "raises": lambda _: refuse,
    "NaN": nan_of,
    "skewed": skewed,
    "scaled": scaled,
    "shuffled": shuffled,
    "half": half_missing,
}


@pytest.fixture
def broken(monkeypatch):
    def spoil(fault, *names):
        for name in names:
            monkeypatch.setattr(torch.linalg, name, FAULTS[fault](getattr(torch.linalg, name)))

    return spoil


# --- the result -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_matrix(kind, m, n):
    W = twin.of_kind(kind, m, n)
    assert_decomposes(W, decompose(torch.from_numpy(W)))


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize("kind", KINDS)
def test_every_scale(kind, scale):
    W = twin.of_kind(kind, 9, 14)
    plain, found = decompose(torch.from_numpy(W)), decompose(torch.from_numpy(W * scale))
    assert ((found.sigma / scale - plain.sigma).abs() <= found.sigma_error / scale + plain.sigma_error).all()
    assert torch.isfinite(found.U).all()
    assert torch.isfinite(found.V).all()


@twin.EXAMPLES
@given(twin.pairs())
def test_any_stored_matrix(pair):
    W = pair[1].double()
    assert_decomposes(W.numpy(), decompose(W))


@pytest.mark.parametrize("condition", [1e3, 9e5])
@pytest.mark.parametrize("shape", [(2, 20000), (20000, 2), (8, 5000), (5000, 8)])
def test_the_error_covers_long_sums(shape, condition):
    W = twin.with_spectrum(*shape, np.geomspace(1, 1 / condition, min(shape)))
    found = decompose(torch.from_numpy(W))
    assert found.route == "gram"
    assert (abs(found.sigma.numpy() - np.linalg.svd(W, compute_uv=False)) <= found.sigma_error.numpy()).all()


@pytest.mark.parametrize("kind", ["repeated", "steep"])
def test_the_error_covers_close_values_on_every_route(kind, broken):
    sigma = twin.SPECTRA[kind](200)
    W = torch.from_numpy(twin.with_spectrum(200, 200, sigma, 1))
    for route, spoilt in (("gram", ()), ("gesdd", ("eigh",)), ("gesvd", ("svd",))):
        broken("raises", *spoilt)
        found = decompose(W)
        assert found.route == route
        assert (abs(found.sigma.numpy() - sigma) <= found.sigma_error.numpy() + 4 * EPS).all()


def test_known_spectrum():
    sigma = np.array([5, 3, 3, 2, 1e-3])
    found = decompose(torch.from_numpy(twin.with_spectrum(8, 5, sigma)))
    np.testing.assert_allclose(found.sigma, sigma, atol=1e-14)


# --- the chain --------------------------------------------------------------------------------------------------


def ordinary():
    return torch.from_numpy(twin.with_spectrum(20, 30, np.linspace(2, 1, 20)))


def test_the_gram_route_is_the_ordinary_one():
    assert decompose(ordinary()).route == "gram"
    assert decompose(ordinary().mT).route == "gram"


@pytest.mark.parametrize("kind", ["condition 1e8", "deficient", "rank one"])
@pytest.mark.parametrize(("m", "n"), [(12, 31), (31, 12), (16, 16)])
def test_gram_is_refused_where_it_would_lose_small_values(kind, m, n):
    W = twin.of_kind(kind, m, n)
    found = decompose(torch.from_numpy(W))
    assert found.route == "gesdd"
    assert_decomposes(W, found)


def test_condition_1e8_keeps_its_smallest_value():
    sigma = np.geomspace(1, 1e-8, 16)
    found = decompose(torch.from_numpy(twin.with_spectrum(16, 24, sigma)))
    assert float(found.sigma[-1]) == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_gram_goes_to_gesdd(broken, fault):
    broken(fault, "eigh")
    found = decompose(ordinary())
    assert found.route == "gesdd"
    assert_decomposes(ordinary().numpy(), found)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_failed_gesdd_goes_to_gesvd(broken, fault, turned):
    broken(fault, "eigh", "svd")
    W = ordinary().mT.contiguous() if turned else ordinary()
    found = decompose(W)
    assert found.route == "gesvd"
    assert_decomposes(W.numpy(), found)


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("SVD did not converge"), None])
def test_nothing_is_returned_when_all_fail(broken, monkeypatch, error):
    broken("NaN", "eigh", "svd")

    def svd(W, **_):
        if error:
            raise error
        return np.full((20, 20), np.nan), np.full(20, np.nan), np.full((20, 30), np.nan)

    monkeypatch.setattr(scipy.linalg, "svd", svd)
    with pytest.raises(NumericalError) as caught:
        decompose(ordinary())
    assert str(caught.value) == (
        "Matrix of shape (20, 30): expected a decomposition with orthonormal vectors, found none by gram, gesdd, gesvd."
    )


def test_zero_needs_no_lapack(broken, monkeypatch):
    broken("raises", "eigh", "svd")
    monkeypatch.setattr(scipy.linalg, "svd", refuse)
    found = decompose(torch.zeros(3, 5, dtype=torch.float64))
    assert found.route == "zero"
    assert_decomposes(np.zeros((3, 5)), found)


# --- the base ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(twin.STORED))
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_base_keeps_its_stored_values(dtype, m, n):
    stored, _ = twin.pair(m, n, dtype=dtype)
    basis = Basis(stored, PLAN)
    assert torch.equal(basis.stored, stored)
    assert basis.stored.dtype == stored.dtype
    assert basis.W.dtype == torch.float64
    assert basis.shape == (m, n)
    assert basis.norm == pytest.approx(twin.norm(stored.double()), rel=1e-14)
    assert_decomposes(stored.double().numpy(), basis.svd)


@pytest.mark.parametrize(("kind", "rank"), [("gaussian", 12), ("deficient", 8), ("rank one", 1), ("zero", 0)])
def test_numerical_rank_caps_the_angles(kind, rank):
    W = twin.of_kind(kind, 12, 31)
    basis = Basis(torch.from_numpy(W), Plan(angle_rank=512, method="exact", null="none"))
    assert basis.rank == rank == np.linalg.matrix_rank(W)
    assert basis.k == max(1, min(6, rank))
    assert basis.r == 6


def test_condition_1e8_is_full_rank():
    assert Basis(torch.from_numpy(twin.of_kind("condition 1e8", 16, 16)), PLAN).rank == 16


@pytest.mark.parametrize("kind", ["gaussian", "steep", "condition 1e8"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_masks_equal_the_twins(kind, m, n, fraction):
    W = twin.of_kind(kind, m, n)
    basis = Basis(torch.from_numpy(W), Plan(mask_fraction=fraction, method="exact", null="none"))
    for mask, expected in (
        (basis.mask, twin.principal_mask(W, basis.r, fraction)),
        (basis.low_mask, twin.extreme(W, twin.size(fraction, m * n), largest=False)),
    ):
        assert mask.shape == (m, n)
        assert set(mask.flatten().nonzero().flatten().tolist()) == expected
        assert len(expected) == twin.size(fraction, m * n)


@pytest.mark.parametrize("factor", [1.01, 1.5, 3.0])
@pytest.mark.parametrize(
    "W",
    [
        np.ones((40, 40)),
        np.outer(np.sign(twin.gaussian(1, 30)), np.sign(twin.gaussian(1, 40))),
        np.outer(np.round(twin.gaussian(1, 25)), np.round(twin.gaussian(1, 60))),
        twin.gaussian(1, 300).round(1),
        twin.gaussian(300, 1).round(1),
        np.kron(np.diag([3.0, 2.0, 1.0]), np.ones((5, 7))),
    ],
    ids=["ones", "signs", "integers", "row", "column", "blocks"],
)
def test_entries_equal_up_to_rounding_are_ties(W, factor):
    """The truncated product carries rounding noise, which must not choose between equal entries."""
    r, fraction = max(1, min(W.shape) // 2), 0.1
    masks = [principal_mask(decompose(torch.from_numpy(W * scale)), r, fraction) for scale in (1, factor)]
    assert torch.equal(*masks)
    assert set(masks[0].flatten().nonzero().flatten().tolist()) == twin.principal_mask(W, r, fraction)


@pytest.mark.parametrize("view", ["transposed", "strided", "offset"])
def test_views_are_measured_as_what_they_show(view):
    W = torch.from_numpy(twin.gaussian(14, 22))
    shown = {"transposed": W.mT, "strided": W[::2, ::3], "offset": W[3:, 5:]}[view]
    one, other = Basis(shown, PLAN), Basis(shown.clone(memory_format=torch.contiguous_format), PLAN)
    assert torch.equal(one.mask, other.mask)
    assert torch.equal(one.low_mask, other.low_mask)
    torch.testing.assert_close(one.svd.sigma, other.svd.sigma, rtol=1e-14, atol=1e-14)


def test_a_parameter_is_a_matrix():
    W = torch.nn.Parameter(torch.from_numpy(twin.gaussian(6, 9)))
    basis = Basis(W, PLAN)
    assert not basis.W.requires_grad
    assert not basis.svd.U.requires_grad
    assert basis.rank == 6
    assert int(basis.mask.sum()) == 5


class LargestResult(TorchDispatchMode):
    """Record the number of entries of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            self.numel = max(self.numel, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize("shape", [(20000, 8), (8, 20000)])
def test_long_matrices_never_grow_a_square_of_their_long_side(shape):
    W = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    with LargestResult() as largest:
        basis = Basis(W, PLAN)
        _ = basis.mask, basis.low_mask
    assert largest.numel <= W.numel()
    assert_decomposes(W.double().numpy(), basis.svd)


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([math.nan], "1 NaN"),
        ([math.inf], "1 infinite"),
        ([-math.inf, math.inf], "2 infinite"),
        ([math.nan, math.inf, math.nan], "2 NaN and 1 infinite"),
    ],
)
@pytest.mark.parametrize("dtype", list(twin.STORED))
def test_values_that_are_not_numbers(entries, found, dtype):
    W = twin.tensor(twin.gaussian(4, 5), dtype)
    W.view(-1)[: len(entries)] = torch.tensor(entries)
    assert bad_values(W) == found
    with pytest.raises(NumericalError, match=f"^base: expected finite values, found {found}.$"):
        Basis(W, PLAN)


def test_large_finite_values_are_not_infinite():
    for dtype, largest in ((torch.float32, 3e38), (torch.float64, 1.7e308), (torch.float16, 65504.0)):
        assert bad_values(torch.full((4, 5), largest, dtype=dtype)) == ""


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 3), (3, 0), (0, 0)])
def test_shapes_that_are_no_matrix(shape):
    with pytest.raises(ShapeError) as caught:
        Basis(torch.zeros(shape), PLAN)
    assert str(caught.value) == f"base: expected a matrix with entries, found shape {shape}."


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64])
def test_types_that_are_no_weights(dtype):
    with pytest.raises(ShapeError, match=f"^base: expected floating-point values, found {dtype}.$"):
        Basis(torch.ones(3, 4, dtype=dtype), PLAN)
