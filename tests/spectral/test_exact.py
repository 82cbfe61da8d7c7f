"""The exact path: two decompositions, every structural measure, and how far each can be off."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from support import SHAPES, plan, refuse

from driftlab.errors import NumericalError
from driftlab.spectral import MEASURES, Basis
from driftlab.spectral.decomposition import EPS, decompose
from driftlab.spectral.exact import angle_floor_deg, measure_exact, spectral_norm

SIDES = ("left", "right")
ANGLES = [f"{kind}_angle_{side}_deg" for kind in ("max", "median") for side in SIDES]


def both(W0, W1, **options):
    """The exact path's values and errors and the twin's values, of two float64 arrays."""
    W0, W1 = torch.as_tensor(W0), torch.as_tensor(W1)
    basis = Basis(W0, plan(**options))
    values, errors = measure_exact(basis, W1)
    return values, errors, twin.measures(W0, W1, basis.k, basis.r, basis.plan.mask_fraction)


def assert_agree(values, errors, expected, rel=1e-9):
    for name, value in values.items():
        allowed = rel * abs(expected[name]) + errors.get(name, 0.0) + 1e-12
        if name.endswith("_deg"):
            allowed += 1e-9
        assert abs(value - expected[name]) <= allowed or (math.isnan(value) and math.isnan(expected[name])), name


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_equals_the_twin(m, n, step):
    values, errors, expected = both(*twin.pair(m, n, step))
    assert_agree(values, errors, expected, rel=1e-14 / step + 1e-11)
    assert all(errors[name] < 1e-9 for name in errors)


@twin.EXAMPLES
@given(twin.pairs(dtypes=("float64",)), st.integers(1, 10), st.integers(1, 10), st.sampled_from([0.05, 0.1, 0.5, 0.9]))
def test_equals_the_twin_at_any_rank_and_fraction(pair, k, r, fraction):
    values, errors, expected = both(*pair, angle_rank=k, mask_rank=r, mask_fraction=fraction)
    assert_agree(values, errors, expected, rel=1e-7)


def test_everything_structural_is_there():
    support = {"gap_at_rank", "rel_frobenius", "effective_rank_base"} | {
        name for name in MEASURES if name.startswith(("update_", "mask_update_", "low_"))
    }
    values, errors, _ = both(*twin.pair(12, 31))
    assert set(values) == set(MEASURES) - support
    assert set(errors) == {"nss", "rel_spectral", "mask_overlap", *ANGLES}


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "flat", "steep", "repeated", "condition 1e8", "deficient", "rank one"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("step", [1e-6, 1e-2])
def test_the_errors_cover_the_twin(kind, m, n, step):
    W0, W1 = twin.pair(m, n, step, kind=kind)
    values, errors, expected = both(W0, W1, angle_rank=512)
    unit = 4 * min(m, n) * EPS
    k = int(Basis(W0, plan(angle_rank=512)).k)
    gaps = [twin.gap_at_rank(W, k) * s[k - 1] / s[0] for W in (W0, W1) for s in [twin.svd(W)[1]]]
    own = {"nss": unit, "rel_spectral": unit} | dict.fromkeys(ANGLES, math.degrees(4 * unit / max(min(gaps), EPS)))
    for name in ("nss", "rel_spectral", *ANGLES):
        assert abs(values[name] - expected[name]) <= errors[name] + own[name], name


@pytest.mark.parametrize("which", ["base", "checkpoint"])
def test_a_closed_gap_on_either_side_is_an_angle_that_can_be_anything(which):
    """Where the k-th value equals the next, the subspace is LAPACK's choice: two equal problems give other angles."""
    flat, other = twin.orthonormal(32, 32, 1), twin.gaussian(32, 32, 2)
    Q = twin.orthonormal(32, 32, 3)
    first, second = (flat, other) if which == "base" else (other, flat)
    found = [both(first, second), both(Q @ first, Q @ second)]
    difference = abs(found[0][0]["max_angle_right_deg"] - found[1][0]["max_angle_right_deg"])
    assert difference > 1e-3
    for _, errors, _ in found:
        assert all(errors[name] >= difference for name in ANGLES)


@pytest.mark.parametrize("condition", [9e5, 1e6, 1.1e6])
@pytest.mark.parametrize(("m", "n"), [(48, 96), (96, 48)])
def test_a_common_factor_turns_nothing_whichever_routes_are_taken(condition, m, n):
    W = twin.with_spectrum(m, n, np.geomspace(1, 1 / condition, 48))
    values, errors, _ = both(W, 1.01 * W, angle_rank=24)
    for name in ANGLES:
        assert values[name] <= errors[name] < 1e-5
    assert abs(values["nss"] - 0.01) <= errors["nss"]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_angle_floor_is_error_over_gap(scale):
    svd = decompose(torch.from_numpy(np.diag([5.0, 4.0, 1.0, 1.0]) * scale))
    assert angle_floor_deg(svd, 2) == pytest.approx(math.degrees(float(svd.sigma_error[1]) / (3 * scale)))
    assert angle_floor_deg(svd, 1) < angle_floor_deg(svd, 2) * 10 < 1e-11
    assert angle_floor_deg(svd, 3) == 90
    assert angle_floor_deg(svd, 4) < 1e-12


# --- definitions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_angles_are_scipys_and_the_median_is_the_lower_of_the_middle_two(k):
    W0, W1 = twin.pair(10, 14, 0.3)
    values, _, _ = both(W0, W1, angle_rank=k)
    for side, index in (("left", 0), ("right", 2)):
        U0, U1 = twin.svd(W0)[index][:, :k], twin.svd(W1)[index][:, :k]
        angles = np.rad2deg(scipy.linalg.subspace_angles(U0, U1))[::-1]
        assert values[f"median_angle_{side}_deg"] == pytest.approx(float(angles[(k - 1) // 2]), rel=1e-9)
        assert values[f"max_angle_{side}_deg"] == pytest.approx(float(angles[-1]), rel=1e-9)


@pytest.mark.parametrize("k", [1, 3, 15])
def test_intruders_are_sought_among_ten_vectors_whatever_the_angle_rank(k):
    """Five strong new directions, orthogonal to those the base has."""
    U, V = twin.orthonormal(40, 35, 1), twin.orthonormal(60, 35, 2)
    W0 = (U[:, :30] * np.linspace(3, 1, 30)) @ V[:, :30].T
    W1 = W0 + (U[:, 30:] * np.linspace(20, 10, 5)) @ V[:, 30:].T
    values, _, _ = both(W0, W1, angle_rank=k)
    assert values["intruder_dimensions"] == 5


def test_intruders_do_not_depend_on_vectors_that_belong_to_no_value():
    """A base of rank two: the rest of its left vectors is any basis of the complement."""
    U, V = twin.orthonormal(6, 6, 1), twin.orthonormal(9, 6, 2)
    W0 = (U[:, :2] * [3, 2]) @ V[:, :2].T
    counts = set()
    for seed in range(8):
        Q = twin.orthonormal(6, 6, 100 + seed)
        W1 = W0 + 10 * np.outer(U[:, 2], V[:, 2])
        counts.add(both(Q @ W0, Q @ W1)[0]["intruder_dimensions"])
    assert counts == {1}


def test_a_checkpoint_that_lost_rank_has_no_angle_but_keeps_its_spectrum():
    W0 = twin.gaussian(12, 20)
    values, errors, expected = both(W0, np.outer(W0[:, 0], W0[0]), angle_rank=3)
    assert not {*ANGLES, "subspace_similarity"} & values.keys()
    for name in ("nss", "rel_spectral", "stable_rank_update", "effective_rank_new", "mask_overlap"):
        assert values[name] == pytest.approx(expected[name], rel=1e-9)
    assert not set(ANGLES) & errors.keys()


def test_a_checkpoint_of_zeros_has_no_mask():
    W0 = twin.gaussian(12, 20)
    values, _, _ = both(W0, 0 * W0)
    assert values["nss"] == pytest.approx(1, rel=1e-15)
    assert values["rel_spectral"] == pytest.approx(1, rel=1e-14)
    assert not {*ANGLES, "subspace_similarity", "mask_overlap", "intruder_dimensions"} & values.keys()


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [refuse, lambda G: torch.full((len(G),), math.nan, dtype=torch.float64)])
def test_a_spectral_norm_that_fails_goes_down_the_chain(monkeypatch, fault):
    D = torch.from_numpy(twin.gaussian(9, 14))
    expected = spectral_norm(D)
    monkeypatch.setattr(torch.linalg, "eigvalsh", fault)
    assert spectral_norm(D) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("fault", [refuse, lambda A: torch.full((A.shape[1],), math.nan, dtype=torch.float64)])
def test_angles_that_fail_are_a_failed_matrix_not_a_crash(monkeypatch, fault):
    W0, W1 = twin.pair(12, 31)
    basis = Basis(W0, plan())
    monkeypatch.setattr(torch.linalg, "svdvals", fault)
    with pytest.raises(NumericalError, match=r"^Principal angles of \(12, 3\) bases: expected finite values, found "):
        measure_exact(basis, W1)


def test_a_mask_at_a_closed_gap_is_undetermined_and_says_so():
    import torch

    from driftlab.spectral import Basis, Plan
    from driftlab.spectral.exact import measure_exact

    plan = Plan(method="exact", null="none", mask_rank=3)
    generator = torch.Generator().manual_seed(0)
    orthogonal, _ = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64))
    spread = orthogonal * torch.linspace(2, 1, 12, dtype=torch.float64)
    for W, expected in ((orthogonal, 1.0), (spread, 0.0)):
        _, errors = measure_exact(Basis(W, plan), 1.25 * W)
        assert errors["mask_overlap"] == expected
