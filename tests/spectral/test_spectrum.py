"""Measures of singular values and norms against their twins, closed forms and limits."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
import twin
from hypothesis import given

from driftlab.errors import ShapeError
from driftlab.spectral.exact import spectral_norm
from driftlab.spectral.spectrum import (
    effective_rank,
    gap_at_rank,
    isospectral_ratio,
    nss,
    ratio,
    share,
    stable_rank,
)

SHAPES = list(twin.SHAPES.values())


def sigma(W):
    return torch.from_numpy(scipy.linalg.svdvals(W))


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("step", [1e-6, 1e-2, 1.0])
def test_equals_the_twin(m, n, step):
    W0, W1 = (W.numpy() for W in twin.pair(m, n, step))
    update = float(np.linalg.norm(W1 - W0))
    rel = 1e-15 / step + 1e-12
    assert nss(sigma(W0), sigma(W1)) == pytest.approx(twin.nss(W0, W1), rel=rel, abs=1e-15)
    assert isospectral_ratio(sigma(W0), sigma(W1), update) == pytest.approx(
        twin.isospectral_ratio(W0, W1), rel=rel, abs=1e-15 / step
    )
    assert effective_rank(sigma(W1)) == pytest.approx(twin.effective_rank(W1), rel=1e-13)
    assert stable_rank(update, spectral_norm(torch.from_numpy(W1 - W0))) == pytest.approx(
        twin.stable_rank(W1 - W0), rel=1e-12
    )
    for k in range(1, min(m, n) + 1):
        assert gap_at_rank(sigma(W0), k) == pytest.approx(twin.gap_at_rank(W0, k), abs=1e-13)


@twin.EXAMPLES
@given(twin.pairs())
def test_mirsky_and_weyl_hold(pair):
    W0, W1 = (W.double().numpy() for W in pair)
    D = W1 - W0
    shift = nss(sigma(W0), sigma(W1))
    assert shift <= twin.rel_frobenius(W0, W1) + 1e-14
    worst = float((sigma(W1) - sigma(W0)).abs().max())
    assert worst <= spectral_norm(torch.from_numpy(D)) + 1e-14 * np.linalg.norm(W1)
    if D.any():
        assert 0 <= isospectral_ratio(sigma(W0), sigma(W1), float(np.linalg.norm(D))) <= 1


def test_nss_sorts_before_it_compares():
    assert nss(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 1.0, 2.0])) == 0
    assert nss(torch.tensor([3.0, 4.0]), torch.tensor([4.5, 3.0])) == 0.1


def test_nss_of_a_common_factor_is_the_factor():
    values = torch.linspace(3, 1, 7, dtype=torch.float64)
    for e in (-0.25, 1e-3, 0.5):
        assert nss(values, (1 + e) * values) == pytest.approx(abs(e), rel=1e-12)


def test_integer_and_half_spectra_are_computed_in_float64():
    assert nss(torch.tensor([3, 4]), torch.tensor([3, 4])) == 0
    values = torch.full((1000,), 0.1, dtype=torch.float16)
    assert effective_rank(values) == pytest.approx(1000, rel=1e-12)


def test_a_rotation_moves_no_spectrum():
    values = torch.tensor([3.0, 2.0, 1.0])
    assert isospectral_ratio(values, values.flip(0), 0.5) == 0


def test_a_common_factor_is_all_spectrum_and_not_more_by_rounding():
    for seed in range(50):
        values = torch.from_numpy(abs(twin.gaussian(1, 12, seed)[0]))
        assert 1 - 1e-14 < isospectral_ratio(values, 1.25 * values, 0.25 * float(values.norm())) <= 1


def test_share_is_a_ratio_that_ends_at_one():
    assert [share(1.0, 4.0), share(1.0, 1 - 1e-16), share(0.0, 1.0)] == [0.25, 1.0, 0.0]
    assert math.isnan(share(1.0, 0.0))
    assert math.isnan(share(math.nan, 1.0))


@pytest.mark.parametrize("d", [1, 2, 5, 64])
def test_effective_rank_of_flat_and_of_one(d):
    assert effective_rank(torch.full((d,), 0.3)) == pytest.approx(d, rel=1e-12)
    one = torch.zeros(d)
    one[d // 2] = 7
    assert effective_rank(one) == 1


def test_effective_rank_is_scipys_entropy():
    values = twin.gaussian(1, 50)[0] ** 2
    expected = math.exp(scipy.stats.entropy(values))
    assert effective_rank(torch.from_numpy(values)) == pytest.approx(expected, rel=1e-12)
    assert effective_rank(torch.from_numpy(1e-200 * values)) == pytest.approx(expected, rel=1e-12)


def test_stable_rank_of_known_matrices():
    assert stable_rank(math.sqrt(7), 1.0) == pytest.approx(7)
    assert stable_rank(2.5, 2.5) == 1
    W = twin.gaussian(9, 14)
    library = scipy.linalg.norm(W) ** 2 / scipy.linalg.norm(W, 2) ** 2
    assert stable_rank(twin.norm(W), float(np.linalg.norm(W, 2))) == pytest.approx(library, rel=1e-13)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 1e-200, 1e200])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_spectral_norm_is_scipys_at_any_scale(m, n, scale):
    W = twin.gaussian(m, n)
    assert spectral_norm(torch.from_numpy(W * scale)) == pytest.approx(scipy.linalg.norm(W, 2) * scale, rel=1e-13)


def test_spectral_norm_of_zero():
    assert spectral_norm(torch.zeros(3, 4, dtype=torch.float64)) == 0


def test_gap_at_the_last_rank_is_one_and_between_equals_zero():
    values = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    assert [gap_at_rank(values, k) for k in (1, 2, 3)] == [0, 0.5, 1]


def test_undefined_is_nan_never_zero_and_never_an_exception():
    zero = torch.zeros(3)
    assert math.isnan(nss(zero, torch.ones(3)))
    assert math.isnan(isospectral_ratio(zero, zero, 0.0))
    assert math.isnan(stable_rank(0.0, 0.0))
    assert math.isnan(effective_rank(zero))
    assert math.isnan(gap_at_rank(zero, 1))
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(0.0, 2.0) == 0


@pytest.mark.parametrize("measure", [nss, lambda a, b: isospectral_ratio(a, b, 1.0)])
@pytest.mark.parametrize("shape", [(4,), (3, 1), ()])
def test_spectra_that_do_not_belong_together(measure, shape):
    with pytest.raises(ShapeError) as caught:
        measure(torch.ones(3), torch.ones(shape))
    assert str(caught.value) == (f"Spectra: expected two vectors of one length, found shapes (3,) and {tuple(shape)}.")


def test_effective_rank_wants_a_vector():
    with pytest.raises(ShapeError, match=r"^sigma: expected a vector of singular values, found shape \(2, 2\)\.$"):
        effective_rank(torch.ones(2, 2))


@pytest.mark.parametrize("k", [0, 4, -1])
def test_gap_wants_a_rank_that_is_there(k):
    with pytest.raises(ShapeError, match=f"^rank: expected 1 to 3, found {k}.$"):
        gap_at_rank(torch.ones(3), k)
