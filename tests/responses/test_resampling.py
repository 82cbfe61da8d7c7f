"""Intervals against their closed form, tests against every one of the 2^n flips."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import norm, wasserstein_distance

from driftlab.responses.resampling import bootstrap, bootstrap_mean, sign_flip_p, wasserstein_null


def test_the_interval_of_the_mean_is_the_normal_one():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_mean(values, 0)
    half = norm.ppf(0.975) * values.std() / 20
    assert (high - low) / 2 == pytest.approx(half, rel=0.06)
    assert (high + low) / 2 == pytest.approx(values.mean(), abs=0.1 * half)
    assert bootstrap(values, 0)["mean"] == (low, high)


def test_median_and_share_have_intervals_too():
    values = np.random.default_rng(1).uniform(size=400)
    found = bootstrap(values, 0, below=0.9)
    share = (values < 0.9).mean()
    assert (found["share"][1] - found["share"][0]) / 2 == pytest.approx(
        1.96 * np.sqrt(share * (1 - share) / 400), rel=0.1
    )
    assert found["median"][0] <= np.median(values) <= found["median"][1]
    # the median of n uniform values has standard deviation 1 / (2 sqrt(n))
    assert (found["median"][1] - found["median"][0]) / 2 == pytest.approx(1.96 / 40, rel=0.35)


def test_a_constant_has_an_interval_of_no_width_and_one_value_has_none():
    assert bootstrap(np.full(5, 0.5), 0)["mean"] == (0.5, 0.5)
    assert np.isnan(bootstrap(np.array([0.5]), 0)["median"]).all()
    assert np.isnan(bootstrap_mean(np.array([]), 0)).all()


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.5])
def test_the_sign_flip_test_against_all_flips(shift):
    d = np.random.default_rng(2).normal(shift, size=10)
    sums = np.array([np.dot(signs, d) for signs in product((-1, 1), repeat=10)])
    exact = (np.abs(sums) >= abs(d.sum()) - 1e-9).mean()
    error = np.sqrt(exact * (1 - exact) / 9999) + 1e-4
    assert sign_flip_p(d, 0) == pytest.approx(exact, abs=4 * error)


def test_no_difference_is_p_1_and_p_is_never_0():
    assert sign_flip_p(np.zeros(20), 0) == 1.0
    assert sign_flip_p(np.ones(40), 0) == 1 / 10000
    assert np.isnan(sign_flip_p(np.array([]), 0))


def test_the_noise_floor_of_the_distance_against_a_loop():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(2, 60))
    found = []
    for _ in range(2000):
        swap = rng.integers(2, size=60).astype(bool)
        found.append(wasserstein_distance(np.where(swap, right, left), np.where(swap, left, right)))
    assert wasserstein_null(left, right, 0) == pytest.approx(np.quantile(found, 0.95), rel=0.06)
    assert wasserstein_null(left, left, 0) == 0.0
