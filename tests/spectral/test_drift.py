"""One base, one checkpoint, every measure: twins, no drift, edges and refusals."""

import math

import numpy as np
import pytest
import torch
import twin
from hypothesis import given
from support import SHAPES, assert_twin, drift, plan

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral import MEASURES, Basis, measure
from driftlab.spectral.measures import NO_DRIFT

OF_BASE = {"gap_at_rank", "effective_rank_base", "effective_rank_new"}


# --- twins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(twin.STORED))
@pytest.mark.parametrize("step", [1e-3, 1e-1])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_equals_the_twin(m, n, step, dtype):
    pair = twin.pair(m, n, step, dtype=dtype)
    found = drift(*pair)
    assert list(found.values) == list(MEASURES)
    assert (found.method, found.nulls, found.reason) == ("exact", {}, "")
    assert_twin(found, pair)


@twin.EXAMPLES
@given(twin.pairs())
def test_equals_the_twin_on_any_pair(pair):
    found = drift(*pair, mask_fraction=0.3)
    # the differences of two spectra and of two matrices cancel: what is left is as good as their size allows
    size = found.values["rel_frobenius"]
    assert_twin(found, pair, 0.3, rel=1e-9 + (1e-13 / size if size else 0))


@pytest.mark.parametrize(
    ("first", "second"), [("bfloat16", "float32"), ("float16", "bfloat16"), ("float64", "float16")]
)
def test_two_stored_types(first, second):
    W0, W1 = twin.pair(12, 31, 1e-2)
    pair = W0.to(twin.STORED[first]), W1.to(twin.STORED[second])
    found = drift(*pair)
    assert_twin(found, pair)


@twin.EXAMPLES
@given(twin.pairs())
def test_ranges_and_bounds(pair):
    found = drift(*pair, mask_fraction=0.3)
    values = {name: value for name, value in found.values.items() if not math.isnan(value)}
    limits = {"d": min(pair[0].shape), "inf": math.inf, "rel_frobenius": values["rel_frobenius"]}
    for name, value in values.items():
        high = MEASURES[name].high
        high = limits[high] if high in limits else float(high)
        slack = 1e-12 * limits["d"] if name.startswith(("effective_rank", "stable_rank")) else 0.0
        if name == "nss":
            slack = found.errors.get("nss", 0.0)
        assert float(MEASURES[name].low) - slack <= value <= high + slack, name
    assert values["rel_spectral"] <= math.sqrt(min(pair[0].shape)) * values["rel_frobenius"] * (1 + 1e-9)
    assert values["update_density"] + values["update_sparsity"] == 1


# --- no drift -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(twin.STORED))
@pytest.mark.parametrize("kind", ["gaussian", "flat", "rank one", "zero", "condition 1e8"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_equal_matrices_read_no_drift_exactly(kind, m, n, dtype):
    base, _ = twin.pair(m, n, kind=kind, dtype=dtype)
    found = drift(base, base.clone())
    assert found.method == "identical"
    assert found.errors == {}
    for name in MEASURES.keys() - OF_BASE:
        assert found.values[name] == NO_DRIFT[name] or math.isnan(found.values[name]) == math.isnan(NO_DRIFT[name])
    effective = [found.values["effective_rank_base"], found.values["effective_rank_new"]]
    assert effective[0] == effective[1] or np.isnan(effective).all()
    assert effective[0] == pytest.approx(twin.effective_rank(base.double()), rel=1e-9, nan_ok=True)


def test_equal_matrices_cost_nothing(monkeypatch):
    base, _ = twin.pair(12, 31)
    basis = Basis(base, plan())
    for name in ("eigh", "eigvalsh", "svd", "svdvals", "qr"):
        monkeypatch.setattr(torch.linalg, name, None)
    assert measure(basis, base.clone()).method == "identical"


def test_the_sign_of_zero_is_no_drift():
    base = torch.from_numpy(twin.gaussian(6, 9))
    base[0] = 0.0
    new = base.clone()
    new[0] = -0.0
    found = drift(base, new)
    assert found.method == "identical"
    assert found.values["update_density"] == 0


def test_the_same_values_in_another_type_differ_by_rounding_alone():
    base = twin.tensor(twin.gaussian(12, 31), "bfloat16")
    found = drift(base, base.float()).values
    for name in ("nss", "rel_frobenius", "rel_spectral", "update_density", "mask_update_iou"):
        assert found[name] == 0, name
    assert (found["mask_overlap"], found["update_sparsity"], found["intruder_dimensions"]) == (1, 1, 0)
    for name in MEASURES:
        if name.endswith("_deg"):
            assert found[name] < 1e-12
    for name in ("isospectral_ratio", "stable_rank_update", "principal_energy", "mask_update_overlap"):
        assert math.isnan(found[name]), name


# --- shapes and spectra at the edge -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20000, 8), (8, 20000)])
def test_very_long_matrices(shape):
    W0, W1 = twin.pair(*shape, 1e-2)
    found = drift(W0, W1)
    (U0, s0, V0), (U1, s1, V1) = twin.svd(W0), twin.svd(W1)
    k = found.angle_rank
    assert k == 2
    assert found.values["nss"] == pytest.approx(np.linalg.norm(s1 - s0) / np.linalg.norm(s0), rel=1e-9)
    for side, A, B in (("left", U0, U1), ("right", V0, V1)):
        cosines = np.linalg.svd(A[:, :k].T @ B[:, :k], compute_uv=False)
        assert math.cos(math.radians(found.values[f"max_angle_{side}_deg"])) == pytest.approx(cosines[-1], rel=1e-9)
    overlap = found.values["mask_overlap"]
    masks = [
        np.argsort(-abs((U[:, :4] * s[:4]) @ V[:, :4].T).ravel())[:16000] for U, s, V in ((U0, s0, V0), (U1, s1, V1))
    ]
    assert overlap == twin.iou(*(set(mask.tolist()) for mask in masks))


@pytest.mark.parametrize(("shape", "side"), [((1, 40), "left"), ((40, 1), "right")])
def test_the_short_side_of_a_vector_cannot_turn(shape, side):
    found = drift(*twin.pair(*shape, 0.5)).values
    assert found[f"max_angle_{side}_deg"] == 0
    assert found[f"max_angle_{ {'left': 'right', 'right': 'left'}[side] }_deg"] > 1
    assert found["gap_at_rank"] == 1


def test_one_entry():
    found = drift(torch.tensor([[2.0]]), torch.tensor([[2.5]]), mask_fraction=0.5).values
    assert (found["nss"], found["rel_frobenius"], found["rel_spectral"]) == (0.25, 0.25, 0.25)
    assert (found["mask_overlap"], found["stable_rank_update"], found["max_angle_left_deg"]) == (1, 1, 0)


@pytest.mark.parametrize("rank", [1, 3, 16, 512])
def test_ranks_are_capped_and_said(rank):
    found = drift(*twin.pair(12, 31, 1e-2), angle_rank=rank, mask_rank=rank)
    assert found.angle_rank == found.mask_rank == min(rank, 6)


@pytest.mark.parametrize("kind", ["gaussian", "steep", "condition 1e8", "deficient"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_the_spectrum_of_every_kind(kind, m, n):
    W0, W1 = twin.pair(m, n, 1e-3, kind=kind)
    found, expected = drift(W0, W1), twin.measures(W0, W1, 1, 1, 0.1)
    assert found.values["nss"] == pytest.approx(expected["nss"], rel=1e-9)
    for name in ("rel_frobenius", "rel_spectral", "stable_rank_update", "isospectral_ratio"):
        assert found.values[name] == pytest.approx(expected[name], rel=1e-8), name
    for name in ("effective_rank_base", "effective_rank_new"):
        assert found.values[name] == pytest.approx(expected[name], rel=1e-8), name


def test_a_base_of_zeros_says_so():
    found = drift(torch.zeros(12, 20), torch.from_numpy(twin.gaussian(12, 20)).float())
    assert found.reason == "the base is zero: relative measures are undefined"
    relative = ("nss", "rel_frobenius", "rel_spectral", "mask_overlap", "mask_update_iou", "max_angle_left_deg")
    for name in relative:
        assert math.isnan(found.values[name]), name
    assert found.values["update_density"] == 1
    assert 1 <= found.values["stable_rank_update"] <= 12


def test_a_checkpoint_of_zeros_says_so():
    found = drift(torch.from_numpy(twin.gaussian(12, 20)), torch.zeros(12, 20))
    assert found.values["nss"] == pytest.approx(1)
    assert found.values["rel_frobenius"] == pytest.approx(1)
    assert math.isnan(found.values["max_angle_left_deg"])
    assert found.reason == "the checkpoint is zero: angles and masks are undefined"


def test_a_checkpoint_that_lost_rank_says_so():
    W0 = twin.gaussian(12, 20)
    found = drift(W0, np.outer(W0[:, 0], W0[0]))
    assert math.isnan(found.values["max_angle_left_deg"])
    assert found.reason == "the checkpoint's rank is below the angle rank 3: angles are undefined"


def test_a_mask_without_entries_says_so():
    found = drift(torch.tensor([[2.0, 1.0]]), torch.tensor([[2.5, 1.0]]))
    assert math.isnan(found.values["mask_overlap"])
    assert found.reason == "the mask fraction 0.1 of 2 entries is none: mask_overlap is undefined"


def test_only_what_was_asked_for():
    asked = ("rel_spectral", "nss", "update_density")
    assert list(drift(*twin.pair(12, 31), measures=asked).values) == ["nss", "update_density", "rel_spectral"]


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(twin.STORED))
@pytest.mark.parametrize(("value", "found"), [(math.nan, "1 NaN"), (math.inf, "1 infinite"), (-math.inf, "1 infinite")])
def test_a_checkpoint_with_values_that_are_not_numbers(value, found, dtype):
    W0, W1 = twin.pair(6, 9, dtype=dtype)
    W1[2, 3] = value
    with pytest.raises(NumericalError, match=f"^checkpoint: expected finite values, found {found}.$"):
        drift(W0, W1)


def test_nan_in_both_is_no_identity():
    W0, _ = twin.pair(6, 9)
    basis = Basis(W0, plan())
    W0 = W0.clone()
    W0[0, 0] = math.nan
    with pytest.raises(NumericalError, match=r"^checkpoint: expected finite values, found 1 NaN\.$"):
        measure(basis, W0)


@pytest.mark.parametrize("shape", [(9, 6), (6, 8), (54,), (1, 6, 9), (0, 9)])
def test_a_checkpoint_of_another_shape(shape):
    with pytest.raises(ShapeError) as caught:
        drift(twin.gaussian(6, 9), torch.zeros(shape))
    assert str(caught.value) == f"Matrices: expected shape (6, 9), found {shape}."


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.complex64])
def test_a_checkpoint_of_another_kind_of_number(dtype):
    with pytest.raises(ShapeError, match=f"^checkpoint: expected floating-point values, found {dtype}.$"):
        drift(twin.gaussian(6, 9), torch.ones(6, 9, dtype=dtype))


def test_a_spectrum_that_breaks_mirskys_bound_is_not_reported(monkeypatch):
    """A decomposition wrong by a factor would pass every check of its own."""
    W0, W1 = twin.pair(12, 31, 1e-3)
    basis = Basis(W0, plan())
    object.__setattr__(basis.svd, "sigma", basis.svd.sigma * 1.1)
    with pytest.raises(NumericalError, match=r"^Self-check failed: nss 0\.09\d* exceeds rel_frobenius 0\.001"):
        measure(basis, W1)
