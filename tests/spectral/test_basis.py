"""A base matrix: its stored values, ranks and masks, and what it must be."""

import math

import numpy as np
import pytest
import torch
import twin
from support import SHAPES, assert_decomposes, plan
from torch.utils._python_dispatch import TorchDispatchMode

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral import Basis, Plan
from driftlab.spectral.basis import bad_values, principal_mask
from driftlab.spectral.decomposition import decompose

PLAN = plan()


# --- the base -----------------------------------------------------------------------------------------------------


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


# --- refusals -----------------------------------------------------------------------------------------------------


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
