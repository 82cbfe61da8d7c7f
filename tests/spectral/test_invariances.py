"""What must not change a drift: rotations, scales, orders, signs, routes, and the process around."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
import twin
from support import SHAPES, assert_same, assert_twin, drift, plan, refuse

from driftlab.spectral import MEASURES, Basis, Plan, measure

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


# --- the matrices -------------------------------------------------------------------------------------------------


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


# --- the process around -------------------------------------------------------------------------------------------


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
