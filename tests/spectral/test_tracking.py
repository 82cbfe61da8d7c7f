"""Tracked numbers against decompositions in float64: values, errors, and when tracking steps aside."""

import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from driftlab.errors import NumericalError, ShapeError
from driftlab.spectral import Basis, Plan, measure, measure_adapter
from driftlab.spectral.exact import measure_exact
from driftlab.spectral.exact import spectral_norm as exact_norm
from driftlab.spectral.measures import ESTIMATED, MEASURES
from driftlab.spectral.norms import spectral_norm
from driftlab.spectral.tracked_spectrum import windows
from driftlab.spectral.tracking import measure_tracked
from driftlab.spectral.update import Frame, Update, Window, gram, mixing

ROOT = Path(__file__).parents[2]
QUIET = Plan(null="none")
EXACT = Plan(null="none", method="exact")


@pytest.fixture(scope="module")
def slices():
    return load_file(ROOT / "tests/data/smollm2_slices.safetensors")


def noise(m, n, seed=0):
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(m, n, sigma, seed=0):
    left, _ = torch.linalg.qr(noise(m, len(sigma), seed))
    right, _ = torch.linalg.qr(noise(n, len(sigma), seed + 1))
    return (left * sigma) @ right.mT


@pytest.mark.parametrize("run", ["gentle", "hard"])
@pytest.mark.parametrize("name", ["k_proj", "up_proj", "o_proj"])
def test_real_weights_agree_with_the_exact_path_within_the_printed_errors(slices, name, run):
    base, new = slices[f"{name}.base"], slices[f"{name}.{run}"]
    tracked, exact = measure(Basis(base, QUIET), new), measure(Basis(base, EXACT), new)
    assert tracked.method == "tracked"
    assert exact.method == "exact"
    for measure_name in MEASURES:
        a, b = tracked.values[measure_name], exact.values[measure_name]
        allowed = tracked.errors.get(measure_name, 2e-3 * abs(b)) + exact.errors.get(measure_name, 0.0)
        assert a == pytest.approx(b, abs=allowed, nan_ok=True), measure_name
    for measure_name in ESTIMATED:
        assert tracked.errors[measure_name] <= QUIET.tolerance * max(
            tracked.values[measure_name], 0.01 * tracked.values["max_angle_left_deg"]
        )


def test_error_estimates_cover_the_true_errors_and_are_not_uselessly_large():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import accuracy
    finally:
        sys.path.pop(0)
    cases = list(accuracy.sweep(accuracy.synthetic(((140, 190),), seed=3), sizes=(1e-6, 1e-4, 1e-2), seed=4))
    kept = [case for case in cases if case.kept]
    assert sum(case.truth <= case.estimate for case in kept) >= 0.99 * len(kept)
    for name in ESTIMATED:
        mine = [case for case in kept if case.measure == name]
        assert len(mine) > 30, name
        assert max(case.truth for case in mine) < 2 * QUIET.tolerance, name
    ratios = sorted(case.estimate / case.truth for case in kept if case.measure == "nss")
    assert ratios[len(ratios) // 2] < 30


@pytest.mark.parametrize("size", [1e-7, 2.5e-6, 2.5e-5])
def test_small_shifts_are_right_to_a_thousandth(size):
    W = with_spectrum(200, 300, torch.linspace(2, 0.05, 200, dtype=torch.float64))
    D = noise(200, 300, 5)
    D *= size * 20 * W.norm() / D.norm()
    tracked, errors = measure_tracked(Basis(W, QUIET), D)
    exact, _ = measure_exact(Basis(W, QUIET), W + D)
    assert tracked["nss"] == pytest.approx(exact["nss"], rel=1e-3)
    assert errors["nss"] < 1e-3 * tracked["nss"]


@pytest.mark.parametrize(
    ("spectrum", "size"),
    [
        (torch.ones(160, dtype=torch.float64), 1e-4),  # flat: every vector is as good as any other
        (torch.logspace(0, -8, 160, dtype=torch.float64), 1e-3),  # most values lie below the update
        (torch.linspace(2, 0.05, 160, dtype=torch.float64), 0.5),  # the update is as large as the base
    ],
)
def test_the_exact_path_takes_over_where_tracking_does_not_hold(spectrum, size):
    W = with_spectrum(160, 210, spectrum)
    D = noise(160, 210, 3)
    D *= size * W.norm() / D.norm()
    drift = measure(Basis(W, QUIET), W + D)
    exact, _ = measure_exact(Basis(W, QUIET), W + D)
    assert drift.method == "exact"
    assert drift.values["nss"] == exact["nss"]


@pytest.mark.parametrize("size", [1e-7, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("rank", [30, 106, 150])
def test_zero_singular_values_of_the_base_are_not_taken_for_distinct_ones(rank, size):
    sigma = torch.zeros(160, dtype=torch.float64)
    sigma[:rank] = torch.linspace(2, 0.5, rank, dtype=torch.float64)
    W = with_spectrum(160, 224, sigma)
    D = noise(160, 224, rank)
    D *= size * W.norm() / D.norm()
    drift = measure(Basis(W, QUIET), W + D)
    exact, _ = measure_exact(Basis(W, QUIET), W + D)
    assert drift.values["nss"] == pytest.approx(exact["nss"], abs=drift.errors["nss"])


def test_a_matrix_and_its_transpose_swap_their_sides(slices):
    base, new = slices["up_proj.base"], slices["up_proj.hard"]
    one, other = measure(Basis(base, QUIET), new), measure(Basis(base.T.contiguous(), QUIET), new.T.contiguous())
    assert one.values["nss"] == pytest.approx(other.values["nss"], rel=1e-5)
    assert one.values["max_angle_left_deg"] == pytest.approx(other.values["max_angle_right_deg"], rel=1e-5)
    assert one.values["median_angle_right_deg"] == pytest.approx(other.values["median_angle_left_deg"], rel=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 2.0**-40, 1e30])
def test_scale_changes_nothing(slices, scale):
    base, new = slices["k_proj.base"].double(), slices["k_proj.gentle"].double()
    one, other = measure(Basis(base, QUIET), new), measure(Basis(scale * base, QUIET), scale * new)
    assert other.method == "tracked"
    for name in ("nss", "max_angle_left_deg", "mask_overlap", "rel_spectral", "stable_rank_update", "principal_energy"):
        assert other.values[name] == pytest.approx(one.values[name], rel=1e-4), name


def test_crossing_values_are_compared_in_order():
    sigma = torch.linspace(2, 0.5, 140, dtype=torch.float64)
    W = with_spectrum(140, 180, sigma)
    svd = Basis(W, QUIET).svd
    gap = float(sigma[20] - sigma[21])
    D = 1.5 * gap * torch.outer(svd.U[:, 21], svd.V[:, 21])  # lifts value 21 above value 20
    drift = measure(Basis(W, QUIET), W + D)
    assert drift.values["nss"] == pytest.approx(gap * math.hypot(1, 0.5) / float(sigma.norm()), rel=1e-6)


def test_a_closed_gap_at_the_rank_is_solved_exactly():
    sigma = torch.linspace(2, 0.5, 160, dtype=torch.float64)
    sigma[40] = sigma[39] * (1 - 1e-9)  # the angle rank is 40: the cut lies in a closed gap
    W = with_spectrum(160, 200, sigma)
    D = 1e-5 * noise(160, 200, 9)
    tracked, _ = measure_tracked(Basis(W, QUIET), D)
    exact, _ = measure_exact(Basis(W, QUIET), W + D)
    assert exact["max_angle_left_deg"] > 10
    assert tracked["max_angle_left_deg"] == pytest.approx(exact["max_angle_left_deg"], rel=1e-3)


@pytest.mark.parametrize("shape", [(150, 260), (260, 150), (150, 150)])
def test_adapters_equal_their_product(shape):
    m, n = shape
    W = with_spectrum(m, n, torch.linspace(2, 0.1, min(shape), dtype=torch.float64)).float()
    B, A = noise(m, 8, 1), noise(8, n, 2)
    scale = 2e-4  # alpha / r with r = 8 and alpha = 1.6e-3: r and alpha differ
    adapter = measure_adapter(Basis(W, QUIET), B, A, scale, "x")
    dense = measure(Basis(W.double(), QUIET), W.double() + scale * B @ A, "x")
    for name in ("nss", "max_angle_left_deg", "max_angle_right_deg", "rel_frobenius", "rel_spectral", "mask_overlap"):
        assert adapter.values[name] == pytest.approx(dense.values[name], rel=2e-4), name


def test_an_adapter_of_zeros_is_no_drift_and_wrong_factors_are_refused():
    basis = Basis(noise(150, 160), QUIET)
    assert measure_adapter(basis, torch.zeros(150, 4), noise(4, 160), 1.0).method == "identical"
    with pytest.raises(ShapeError, match=r"Adapter: expected B of shape \(150, r\)"):
        measure_adapter(basis, noise(160, 4), noise(4, 150), 1.0)
    broken = noise(150, 4)
    broken[0, 0] = math.nan
    with pytest.raises(NumericalError, match="adapter B: expected finite values, found 1 NaN"):
        measure_adapter(basis, broken, noise(4, 160), 1.0)


def test_window_of_the_whole_matrix_has_the_new_spectrum():
    W, D = noise(40, 70), 0.05 * noise(40, 70, 2)
    basis = Basis(W, QUIET)
    update = Update(basis.frame, basis.frame.turn(D))
    values = torch.linalg.eigvalsh(Window.of(update, 0, 40).M).flip(0).sqrt() * basis.frame.scale
    assert torch.allclose(values, torch.linalg.svdvals(W + D), rtol=1e-6)


def test_windows_cover_every_row_once():
    for d in (1, 64, 65, 96, 200, 576):
        covered = [
            row for start, stop, low, high in windows(d) for row in range(low, high) if start <= low < high <= stop
        ]
        assert covered == list(range(d))


def test_mixing_solves_two_by_two_problems():
    for a, b, h in ((3.0, 1.0, 0.5), (1.0, 3.0, 0.5), (1.0, 1.0, 0.5), (2.0, 1.0, -4.0), (2.0, 1.0, 0.0)):
        t = float(mixing(*(torch.tensor([x], dtype=torch.float64) for x in (h, a, b))))
        shifted = a + t * h
        values = torch.linalg.eigvalsh(torch.tensor([[a, h], [h, b]], dtype=torch.float64))
        assert min(abs(float(v) - shifted) for v in values) < 1e-12
        assert abs(t) <= 1


def test_gram_is_the_full_product():
    X = noise(300, 80).float()
    assert torch.allclose(gram(X), X @ X.mT, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("D", [noise(90, 140), noise(90, 3) @ noise(3, 140), torch.ones(90, 140).double()])
def test_spectral_norm_of_an_update(D):
    square = (D @ D.mT).float()
    diagonal = square.diagonal().clone()
    square.fill_diagonal_(0)
    value, error = spectral_norm(square, diagonal, 1e-3)
    assert abs(value - exact_norm(D)) <= error
    assert error < 1e-3 * value


def test_frame_is_scaled_by_a_power_of_two():
    basis = Basis(3e-5 * noise(130, 140), QUIET)
    frame = Frame.of(basis.svd)
    assert math.log2(frame.scale).is_integer()
    assert 1 <= float(frame.sigma[0]) < 2
