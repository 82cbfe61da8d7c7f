"""Errors over prompts: against closed forms, and by how often they cover."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from driftlab.responses.estimates import over_prompts, rate_over_prompts, wilson


def test_one_response_a_prompt_is_the_usual_standard_error():
    values = np.random.default_rng(0).standard_normal(30)
    found = over_prompts(values, np.arange(30))
    assert found.value == pytest.approx(values.mean())
    assert found.se == pytest.approx(values.std(ddof=1) / math.sqrt(30))


def test_copies_of_one_response_add_nothing():
    values = np.random.default_rng(0).standard_normal(30)
    once, often = over_prompts(values, np.arange(30)), over_prompts(values.repeat(5), np.arange(30).repeat(5))
    assert (often.value, often.se) == (pytest.approx(once.value), pytest.approx(once.se))


def test_a_ratio_of_sums_and_its_error():
    rng = np.random.default_rng(1)
    population = rng.integers(1, 30, 4000)
    totals = population * 0.3 + rng.standard_normal(4000)
    exact = totals.sum() / population.sum()
    covered = 0
    for _ in range(400):
        i = rng.integers(4000, size=50)
        found = over_prompts(totals[i], np.arange(50), population[i])
        covered += abs(found.value - exact) <= 2.01 * found.se
    assert 0.91 <= covered / 400 <= 0.98


def test_differences_between_tasks_are_no_noise():
    values = np.array([1.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    tasks = ["a"] * 3 + ["b"] * 3
    assert over_prompts(values, np.arange(6), strata=tasks).se == 0
    assert over_prompts(values, np.arange(6)).se > 1


def test_strata_add_their_variances():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(10), rng.standard_normal(20)
    found = over_prompts(np.concatenate([a, b]), np.arange(30), strata=["a"] * 10 + ["b"] * 20)
    parts = [10 / 30 * a.std(ddof=1) / math.sqrt(10), 20 / 30 * b.std(ddof=1) / math.sqrt(20)]
    assert found.se == pytest.approx(math.hypot(*parts), rel=1e-12)


def test_unknown_values_count_nowhere():
    found = over_prompts([1.0, math.nan, 3.0], ["a", "b", "c"])
    assert (found.value, found.se) == (2.0, pytest.approx(1.0))
    assert math.isnan(over_prompts([math.nan], ["a"]).value)
    assert math.isnan(over_prompts([1.0], ["a"]).se)
    assert over_prompts([math.inf, 1.0], ["a", "b"]).value == math.inf


@pytest.mark.parametrize(("hits", "n"), [(0, 16), (3, 16), (16, 16), (61, 128)])
def test_wilson_against_scipy(hits, n):
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits / n, n) == (pytest.approx(expected.low, abs=1e-12), pytest.approx(expected.high, abs=1e-12))
    assert math.isnan(wilson(0.5, 0)[0])


def test_a_rate_counts_as_many_responses_as_it_is_worth():
    rng = np.random.default_rng(3)
    prompts = np.arange(40).repeat(4)
    alike = (rng.random(40) < 0.5).repeat(4)
    apart = rng.random(160) < 0.5
    rate, low, high = rate_over_prompts(alike, prompts)
    assert (low, high) == (pytest.approx(wilson(rate, 40)[0], abs=0.01), pytest.approx(wilson(rate, 40)[1], abs=0.01))
    rate, low, high = rate_over_prompts(apart, np.arange(160))
    assert high - low < 0.16
    assert rate_over_prompts([False] * 160, prompts) == (0.0, 0.0, wilson(0.0, 40)[1])
    assert math.isnan(rate_over_prompts([], [])[0])
