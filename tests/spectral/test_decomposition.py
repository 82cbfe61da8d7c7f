"""The decomposition: every kind of matrix, its chain of fallbacks and self-checks, and how far it can be off."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
import twin
from hypothesis import given
from support import KINDS, SHAPES, assert_decomposes, refuse

from driftlab.errors import NumericalError
from driftlab.spectral.decomposition import EPS, decompose

# --- faults -------------------------------------------------------------------------------------------------------


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


def stretched(function):
    """Vectors a little too long, with the right values: only their own norm tells."""

    def call(*arguments, **options):
        return tuple(x * (1 + 1e-6) if x.ndim == 2 else x for x in function(*arguments, **options))

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
    "stretched": stretched,
    "shuffled": shuffled,
    "half": half_missing,
}


@pytest.fixture
def broken(monkeypatch):
    def spoil(fault, *names):
        for name in names:
            monkeypatch.setattr(torch.linalg, name, FAULTS[fault](getattr(torch.linalg, name)))

    return spoil


# --- the result ---------------------------------------------------------------------------------------------------


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


# --- the chain ----------------------------------------------------------------------------------------------------


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
