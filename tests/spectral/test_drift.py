"""One base, one checkpoint, every measure: twins, known answers, invariances, bounds, refusals, global state."""

import math
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import twin
from hypothesis import given

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral import MEASURES, Basis, Plan, measure
from driftlab.spectral.measures import NO_DRIFT

SHAPES = list(twin.SHAPES.values())
OF_BASE = {"gap_at_rank", "effective_rank_base", "effective_rank_new"}
SPECTRAL = {  # what a rotation or a common factor of both matrices leaves as it is
    "nss",
    "gap_at_rank",
    "rel_frobenius",
    "rel_spectral",
    "isospectral_ratio",
    "stable_rank_update",
    "effective_rank_base",
    "effective_rank_new",
    "subspace_similarity",
    "principal_energy",
    "intruder_dimensions",
    *(name for name in MEASURES if name.endswith("_deg")),
}


def plan(**options):
    return Plan(method="exact", null="none", **options)


def drift(base, new, **options):
    base, new = (W if isinstance(W, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(W)) for W in (base, new))
    return measure(Basis(base, plan(**options)), new)


def assert_same(found, expected, names=tuple(MEASURES), rel=1e-9, absolute=1e-10):
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=rel, abs=absolute, nan_ok=True), name


def assert_twin(found, pair, fraction=0.1, rel=1e-9):
    """The Frobenius norm of a difference of 16-bit matrices is summed in float32, and documented to 1e-7."""
    expected = twin.measures(*pair, found.angle_rank, found.mask_rank, fraction)
    if pair[0].dtype.itemsize == pair[1].dtype.itemsize == 2:
        assert found.values["rel_frobenius"] == pytest.approx(expected["rel_frobenius"], rel=1e-7, nan_ok=True)
        expected["rel_frobenius"] = found.values["rel_frobenius"]
    assert_same(found.values, expected, rel=rel)


# --- twins ------------------------------------------------------------------------------------------------------


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


# --- known answers ----------------------------------------------------------------------------------------------


def test_rotated_rows_of_a_diagonal_matrix():
    W0 = np.diag([5.0, 4.0, 1.0, 0.5])
    c, s = math.cos(math.radians(1)), math.sin(math.radians(1))
    R = np.eye(4)
    R[1:3, 1:3] = [[c, -s], [s, c]]
    found = drift(W0, R @ W0, angle_rank=2).values
    assert found["max_angle_left_deg"] == pytest.approx(1, rel=1e-12)
    assert found["median_angle_left_deg"] == pytest.approx(0, abs=1e-13)
    assert found["max_angle_right_deg"] == pytest.approx(0, abs=1e-13)
    assert found["nss"] == pytest.approx(0, abs=1e-15)
    assert found["isospectral_ratio"] == pytest.approx(0, abs=1e-13)
    assert found["rel_frobenius"] == pytest.approx(0.0110709, abs=5e-8)
    assert found["gap_at_rank"] == 0.75
    assert drift(W0, R @ W0, angle_rank=1).values["max_angle_left_deg"] == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("kind", ["gaussian", "flat", "steep", "repeated", "deficient", "rank one", "condition 1e8"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("e", [-0.5, 1e-6, 1e-3, 2.0])
def test_a_common_factor(kind, m, n, e):
    W0 = twin.of_kind(kind, m, n)
    found = drift(W0, (1 + e) * W0)
    assert abs(found.values["nss"] - abs(e)) <= found.errors["nss"] + 1e-15
    assert found.values["rel_frobenius"] == pytest.approx(abs(e), rel=1e-9)
    assert found.values["isospectral_ratio"] == pytest.approx(1, rel=1e-8)
    for name in MEASURES:
        if name.endswith("_deg"):
            assert found.values[name] <= found.errors[name], name
    if kind not in ("flat", "repeated"):  # there the rank-r truncation is not determined
        assert found.values["mask_overlap"] == 1


@pytest.mark.parametrize(("m", "n"), [(12, 31), (31, 12), (16, 16)])
def test_a_row_permutation_moves_the_left_vectors_and_the_masks_alone(m, n):
    W0 = twin.gaussian(m, n)
    found = drift(W0, np.roll(W0, 1, axis=0)).values
    assert found["nss"] == pytest.approx(0, abs=1e-14)
    assert found["max_angle_right_deg"] == pytest.approx(0, abs=1e-10)
    assert found["max_angle_left_deg"] > 10
    assert found["mask_overlap"] < 0.5
    assert found["update_sparsity"] < 0.03


@pytest.mark.parametrize(("theta", "dtype"), [(1e-4, "float32"), (1e-8, "float64")])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_planted_angle_comes_back_within_one_percent(theta, dtype, side):
    """The k-th left (right) vector turned by theta towards the next: far below what an arc cosine could see."""
    k, sigma = 5, np.concatenate([np.linspace(10, 6, 5), np.linspace(2, 1, 15)])
    U, V = twin.orthonormal(30, 20, 1), twin.orthonormal(24, 20, 2)
    turned = (U if side == "left" else V).copy()
    one, other = turned[:, k - 1].copy(), turned[:, k].copy()
    turned[:, k - 1], turned[:, k] = (
        math.cos(theta) * one + math.sin(theta) * other,
        math.cos(theta) * other - math.sin(theta) * one,
    )
    new = (turned * sigma) @ V.T if side == "left" else (U * sigma) @ turned.T
    found = drift(twin.tensor((U * sigma) @ V.T, dtype), twin.tensor(new, dtype), angle_rank=k).values
    assert math.radians(found[f"max_angle_{side}_deg"]) == pytest.approx(theta, rel=1e-2)
    opposite = {"left": "right", "right": "left"}[side]
    assert math.radians(found[f"max_angle_{opposite}_deg"]) < 0.01 * theta


@pytest.mark.parametrize(("step", "changed"), [(2**-9, False), (2**-8, False), (2**-8 + 2**-12, True), (2**-7, True)])
def test_the_four_bfloat16_cases(step, changed):
    base = torch.ones(4, 6)
    new = base.clone()
    new[1, 2] += step
    found = drift(base, new).values
    assert found["update_density"] == (1 / 24 if changed else 0)
    assert found["update_sparsity"] == (23 / 24 if changed else 1)
    assert found["rel_frobenius"] == pytest.approx(step / math.sqrt(24), rel=1e-12)


@pytest.mark.parametrize("step", [2**-10, 2**-9])
def test_float16_pairs_are_compared_as_stored(step):
    base = torch.ones(4, 6, dtype=torch.float16)
    new = base.clone()
    new[0, 0] += step
    assert drift(base, new).values["update_density"] == 1 / 24
    assert drift(base.float(), new.float()).values["update_density"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_density_identity(dtype):
    found = drift(*twin.pair(40, 50, 3e-3, dtype=dtype)).values
    o, u = found["mask_update_overlap"], found["update_density"]
    assert 0 < u < 1
    assert found["mask_update_iou"] == pytest.approx(o * u / (0.1 + u - o * u), rel=1e-12)
    assert found["mask_update_iou_random"] == pytest.approx(0.1 * u / (0.1 + u - 0.1 * u), rel=1e-12)


def test_the_published_point_of_the_identity():
    """f .1 and u .28: where a random .1 of the changed entries is on the mask, the IoU is .0795."""
    base = torch.from_numpy(twin.gaussian(20, 50)).bfloat16()
    basis = Basis(base, plan())
    inside, outside = (mask.flatten().nonzero().flatten() for mask in (basis.mask, ~basis.mask))
    new = base.clone()
    new.view(-1)[torch.cat([inside[:28], outside[:252]])] *= 2
    found = measure(basis, new).values
    assert found["update_density"] == pytest.approx(0.28)
    assert found["mask_update_overlap"] == pytest.approx(0.1)
    assert found["mask_update_iou"] == pytest.approx(found["mask_update_iou_random"], rel=1e-14)
    assert found["mask_update_iou"] == pytest.approx(0.0795, abs=5e-5)


def test_everything_changed():
    base = torch.from_numpy(twin.gaussian(20, 50))
    found = drift(base, -base).values
    assert found["update_density"] == 1
    for name in ("mask_update_iou", "mask_update_overlap", "low_mask_overlap", "mask_update_iou_random"):
        assert found[name] == pytest.approx(0.1), name
    assert found["nss"] == pytest.approx(0, abs=1e-14)
    assert found["mask_overlap"] == 1


def test_a_rank_one_update():
    W0 = twin.gaussian(20, 30)
    D = 0.1 * np.outer(twin.gaussian(1, 20)[0], twin.gaussian(1, 30)[0])
    found = drift(W0, W0 + D).values
    assert found["stable_rank_update"] == pytest.approx(1, rel=1e-12)
    assert found["rel_spectral"] == pytest.approx(np.linalg.norm(D) / np.linalg.norm(W0, 2), rel=1e-12)


def test_a_flat_update_has_full_stable_rank():
    W0 = twin.gaussian(16, 16)
    found = drift(W0, W0 + 0.01 * twin.orthonormal(16, 16)).values
    assert found["stable_rank_update"] == pytest.approx(16, rel=1e-10)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_an_update_inside_or_outside_the_principal_subspaces(where):
    U, V, k = twin.orthonormal(20, 20, 1), twin.orthonormal(24, 20, 2), 5
    W0 = (U * np.linspace(3, 1, 20)) @ V.T
    rows = slice(None, k) if where == "inside" else slice(k, None)
    D = 1e-3 * U[:, rows] @ twin.gaussian(*(2 * [5 if where == "inside" else 15])) @ V[:, rows].T
    found = drift(W0, W0 + D).values
    assert found["principal_energy"] == pytest.approx(1 if where == "inside" else 0, abs=1e-12)


# --- no drift ---------------------------------------------------------------------------------------------------


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


# --- invariances ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(12, 31), (31, 12), (16, 16)])
@pytest.mark.parametrize("step", [1e-4, 1e-1])
@pytest.mark.parametrize("sides", ["left", "right", "both"])
def test_rotations_of_both_matrices(m, n, step, sides):
    W0, W1 = (W.numpy() for W in twin.pair(m, n, step))
    P = twin.orthonormal(m, m, 5) if sides != "right" else np.eye(m)
    Q = twin.orthonormal(n, n, 6) if sides != "left" else np.eye(n)
    plain, turned = drift(W0, W1).values, drift(P @ W0 @ Q, P @ W1 @ Q).values
    assert_same(turned, plain, SPECTRAL, rel=1e-8)


def test_masks_and_sparsity_belong_to_the_entries():
    W0 = twin.gaussian(12, 31)
    W1 = W0.copy()
    W1[:6] *= 1.5
    Q = twin.orthonormal(31, 31, 6)
    plain, turned = drift(W0, W1).values, drift(W0 @ Q, W1 @ Q).values
    assert turned["nss"] == pytest.approx(plain["nss"], rel=1e-12)
    assert turned["update_density"] == plain["update_density"] == 0.5  # rows are kept by a rotation from the right
    assert turned["mask_overlap"] != plain["mask_overlap"]
    P = twin.orthonormal(12, 12, 5)
    assert drift(P @ W0, P @ W1).values["update_density"] > 0.9


@pytest.mark.parametrize("dtype", list(twin.STORED))
@pytest.mark.parametrize("scale", [2.0**-7, 2.0**6])
def test_a_common_power_of_two_changes_nothing_at_all(dtype, scale):
    W0, W1 = twin.pair(12, 31, 1e-2, dtype=dtype)
    if dtype == "float16":  # keep clear of its subnormal numbers, where scaling rounds
        W0, W1 = W0.where(W0.abs() > 0.02, 0), W1.where(W1.abs() > 0.02, 0)
    assert_same(drift(W0 * scale, W1 * scale).values, drift(W0, W1).values, rel=1e-13, absolute=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_of_thirty_digits(dtype, scale):
    W0, W1 = twin.pair(12, 31, 1e-2)
    pair = [twin.tensor(W.numpy() * scale, dtype) for W in (W0, W1)]
    found = drift(*pair)
    assert_twin(found, pair)
    if dtype == "float64":
        assert_same(found.values, drift(W0, W1).values, SPECTRAL | {"mask_overlap"})


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_common_order_of_rows_and_columns(dtype):
    W0, W1 = twin.pair(12, 31, 1e-2, dtype=dtype)
    rows, columns = (torch.from_numpy(np.random.default_rng(3).permutation(side)) for side in W0.shape)
    names = MEASURES.keys() - ({"low_mask_overlap"} if dtype == "bfloat16" else set())  # its ties go by place
    assert_same(drift(W0[rows][:, columns], W1[rows][:, columns]).values, drift(W0, W1).values, names)


@pytest.mark.parametrize(("m", "n"), [(12, 31), (16, 16), (1, 40)])
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_transpose_swaps_the_sides(m, n, contiguous):
    W0, W1 = twin.pair(m, n, 1e-2)
    plain = drift(W0, W1).values
    left, right = (W.mT.contiguous() if contiguous else W.mT for W in (W0, W1))
    turned = drift(left, right).values
    for name in ("max", "median"):
        assert turned[f"{name}_angle_left_deg"] == pytest.approx(plain[f"{name}_angle_right_deg"], rel=1e-9, abs=1e-12)
        assert turned[f"{name}_angle_right_deg"] == pytest.approx(plain[f"{name}_angle_left_deg"], rel=1e-9, abs=1e-12)
    one_sided = {"subspace_similarity", "intruder_dimensions"}
    assert_same(turned, plain, [name for name in MEASURES.keys() - one_sided if not name.endswith("_deg")])


def test_both_negated_is_the_same():
    W0, W1 = twin.pair(12, 31, 1e-2)
    assert_same(drift(-W0, -W1).values, drift(W0, W1).values, rel=1e-13, absolute=1e-13)


@pytest.mark.parametrize(("m", "n"), [(12, 31), (31, 12)])
def test_signs_of_singular_vectors_do_not_matter(monkeypatch, m, n):
    W0, W1 = twin.pair(m, n, 1e-2)
    plain = drift(W0, W1).values
    eigh, rng = torch.linalg.eigh, np.random.default_rng(0)

    def other_signs(G):
        values, vectors = eigh(G)
        return values, vectors * torch.from_numpy(rng.choice([-1.0, 1.0], len(values)))

    monkeypatch.setattr(torch.linalg, "eigh", other_signs)
    assert_same(drift(W0, W1).values, plain, rel=1e-12, absolute=1e-13)


@pytest.mark.parametrize("spoilt", [("eigh",), ("eigh", "svd")])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_every_route_of_the_decomposition_gives_the_same_numbers(monkeypatch, spoilt, m, n):
    pair = twin.pair(m, n, 1e-2)
    plain = drift(*pair).values

    def refuse(*_, **__):
        raise torch.linalg.LinAlgError("failed to converge")

    for name in spoilt:
        monkeypatch.setattr(torch.linalg, name, refuse)
    assert_same(drift(*pair).values, plain)


def test_a_repeated_call_gives_the_same_bits_and_leaves_the_input_alone():
    W0, W1 = twin.pair(12, 31, 1e-2, dtype="bfloat16")
    kept = W0.clone(), W1.clone()
    basis = Basis(W0, plan())
    assert measure(basis, W1) == measure(basis, W1) == drift(W0, W1)
    assert torch.equal(W0, kept[0])
    assert torch.equal(W1, kept[1])


# --- shapes and spectra at the edge -----------------------------------------------------------------------------


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
    assert found.values["nss"] == found.values["rel_frobenius"] == pytest.approx(1)
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


# --- refusals ---------------------------------------------------------------------------------------------------


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


# --- the process around -----------------------------------------------------------------------------------------


def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    return lambda: torch.set_default_dtype(before)


def precision(value):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    return lambda: torch.set_float32_matmul_precision(before)


def deterministic():
    torch.use_deterministic_algorithms(True)
    return lambda: torch.use_deterministic_algorithms(False)


STATES = {
    "float64 by default": lambda stack: stack.callback(default_dtype(torch.float64)),
    "bfloat16 by default": lambda stack: stack.callback(default_dtype(torch.bfloat16)),
    "TF32": lambda stack: stack.callback(precision("medium")),
    "deterministic": lambda stack: stack.callback(deterministic()),
    "autocast": lambda stack: stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16)),
    "gradients": lambda stack: stack.enter_context(torch.enable_grad()),
    "inference": lambda stack: stack.enter_context(torch.inference_mode()),
    "another device": lambda stack: stack.enter_context(torch.device("meta")),
}


def state():
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_device(),
        torch.get_rng_state().tolist() if torch.get_default_device().type == "cpu" else None,
    )


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_of_the_process_neither_leaks_in_nor_is_changed(name, dtype):
    W0, W1 = twin.pair(12, 31, 1e-2, dtype=dtype)
    plain = drift(W0, W1)
    with ExitStack() as stack:
        STATES[name](stack)
        before = state()
        inside = drift(W0, W1)
        assert state() == before
    assert inside == plain


@pytest.mark.parametrize("null", ["none", "sign", "permute"])
def test_the_random_numbers_of_the_process_are_left_alone(null):
    W0, W1 = twin.pair(12, 31, 1e-2, dtype="bfloat16")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    measure(Basis(W0, Plan(null=null)), W1, "key")
    assert torch.equal(torch.rand(3), expected)


def test_parameters_are_matrices():
    W0, W1 = twin.pair(12, 31, 1e-2)
    found = drift(torch.nn.Parameter(W0), torch.nn.Parameter(W1))
    assert found == drift(W0, W1)
