"""Pairs of matrices whose drift is known in closed form."""

import math

import numpy as np
import pytest
import torch
import twin
from support import SHAPES, drift, plan

from driftlab.spectral import MEASURES, Basis, measure


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
