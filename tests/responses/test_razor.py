"""The identity on random tables, the known answer, the sampled excess against exact enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom
from tabular_policies import draw, policy

from driftlab.errors import ShapeError
from driftlab.responses import tabular
from driftlab.responses.razor import combine, excess_drift, kl_bernoulli

BASE, SUCCESS = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, False])


def world(seed, vocabulary=3, length=3):
    rng = np.random.default_rng(seed)
    new, base = (policy(rng, vocabulary, length) for _ in range(2))
    inside = rng.random((vocabulary,) * length) < 0.4
    inside.flat[0], inside.flat[-1] = True, False
    return new, base, inside


def test_the_known_answer():
    found = tabular.razor(np.array([0.35, 0.25, 0.3, 0.1]), BASE, SUCCESS)
    assert round(found.drift, 8) == 0.35562349
    assert round(found.required, 8) == 0.19204199
    assert round(found.excess, 8) == 0.16358150
    assert (found.success, found.success_base) == (pytest.approx(0.6), pytest.approx(0.3))


@pytest.mark.parametrize("seed", range(20))
def test_drift_is_what_success_required_and_the_rest(seed):
    new, base, inside = world(seed)
    found = tabular.razor(tabular.joint(new), tabular.joint(base), inside)
    assert found.drift == pytest.approx(found.required + found.excess, abs=1e-12)
    assert found.excess > 0


@pytest.mark.parametrize("seed", range(5))
def test_no_policy_of_that_success_is_closer(seed):
    new, base, inside = world(seed)
    base_table, level = tabular.joint(base), float(tabular.joint(new)[inside].sum())
    best = tabular.minimal_policy(base_table, inside, level)
    assert best[inside].sum() == pytest.approx(level)
    assert tabular.razor(best, base_table, inside).excess == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(seed)
    for _ in range(50):  # any other policy of the same success
        other = best * np.exp(0.3 * rng.standard_normal(best.shape))
        other[inside] *= level / other[inside].sum()
        other[~inside] *= (1 - level) / other[~inside].sum()
        assert tabular.kl(other, base_table) > tabular.kl(best, base_table)


@pytest.mark.parametrize("seed", range(5))
def test_the_token_kernel_multiplies_out_to_the_minimal_policy(seed):
    _, base, inside = world(seed, 2 + seed % 3)
    kernel = tabular.token_kernel(base, inside, 0.8)
    best = tabular.minimal_policy(tabular.joint(base), inside, 0.8)
    np.testing.assert_allclose(tabular.joint(kernel), best, atol=1e-14)
    for ours, theirs in zip(kernel, tabular.conditionals(best), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


def test_conditionals_undo_joint():
    kernel = policy(np.random.default_rng(1), 3, 3)
    for ours, theirs in zip(tabular.conditionals(tabular.joint(kernel)), kernel, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)
    never = tabular.conditionals(np.array([[0.5, 0.5], [0.0, 0.0]]))
    np.testing.assert_array_equal(never[1][1], [0.5, 0.5])


def test_bernoulli_divergence_at_its_ends():
    assert kl_bernoulli([0.0, 1.0, 0.3], [0.0, 1.0, 0.3]).tolist() == [0, 0, 0]
    assert kl_bernoulli([0.5, 0.5], [0.0, 1.0]).tolist() == [math.inf, math.inf]
    assert float(kl_bernoulli(1.0, 0.25)) == pytest.approx(math.log(4))
    assert np.isnan(kl_bernoulli(math.nan, 0.5))
    with pytest.raises(ShapeError, match=r"expected s in \[0, 1\], found 1.5"):
        kl_bernoulli(1.5, 0.5)


def sampled(rng, worlds, copies):
    """Return what a study sees of several prompts: exact-KL sums and successes of sampled responses."""
    drift, ours, theirs = [], [], []
    for new, base, inside in worlds:
        ids = draw(rng, new, copies)
        logs = [np.log(new[t][tuple(ids[:, : t + 1].T)]) - np.log(base[t][tuple(ids[:, : t + 1].T)]) for t in range(3)]
        drift.append(np.sum(logs, axis=0).mean())
        ours.append(inside[tuple(ids.T)].mean())
        theirs.append(inside[tuple(draw(rng, base, copies).T)].mean())
    return np.array(drift), np.array(ours), np.array(theirs)


def test_the_pooled_excess_covers_its_exact_value_and_bounds_the_one_of_each_prompt():
    """Prompts are drawn from ten worlds, so the exact values over prompts are known."""
    worlds = [world(seed) for seed in range(10)]
    found = [tabular.razor(tabular.joint(new), tabular.joint(base), inside) for new, base, inside in worlds]
    drift, s, p = (float(np.mean([getattr(r, n) for r in found])) for n in ("drift", "success", "success_base"))
    exact = drift - float(kl_bernoulli(s, p))
    each = float(np.mean([r.excess for r in found]))
    assert exact > each  # convexity: pooling asks less of success
    rng = np.random.default_rng(0)
    covered, values = 0, []
    trials = 300
    for _ in range(trials):
        chosen = [worlds[i] for i in rng.integers(10, size=40)]
        one = excess_drift(*sampled(rng, chosen, 2), copies=2)
        covered += one.low <= exact <= one.high
        values.append((one.excess, one.se))
    spread = np.array(values)
    assert 0.91 <= covered / trials <= 0.98
    assert spread[:, 0].mean() == pytest.approx(exact, abs=0.02)  # the plug-in's bias is of order 1/n
    assert spread[:, 1].mean() == pytest.approx(spread[:, 0].std(), rel=0.15)


def test_no_drift_costs_nothing_at_either_level():
    s = np.array([0.0, 0.25, 1.0, 0.5])
    found = excess_drift(np.zeros(4), s, s, copies=4)
    assert (found.excess, found.low, found.high, found.kl_bernoulli_prompt) == (0, 0, 0, 0)


def test_per_prompt_numbers_need_two_copies_and_see_each_prompt():
    drift, s, p = np.full(4, 2.0), np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0])
    assert math.isnan(excess_drift(drift, s, p).kl_bernoulli_prompt)
    found = excess_drift(drift, s, p, copies=4)
    assert found.kl_bernoulli == 0  # pooled, nothing changed
    assert found.kl_bernoulli_prompt == pytest.approx(float(kl_bernoulli(0.9, 0.1)))
    assert found.excess_prompt == pytest.approx(2.0 - float(kl_bernoulli(0.9, 0.1)))


def test_where_all_succeed_the_upper_end_allows_for_the_failures_not_seen():
    p = np.array([0.5, 0.25, 0.75, 0.5])
    found = excess_drift(np.full(4, 1.0), np.ones(4), p, copies=4)
    narrow = found.excess + (found.excess - found.low)
    assert found.high > narrow + 0.3
    assert found.excess == pytest.approx(1 - math.log(2))


def test_a_base_that_never_succeeds_has_no_price():
    found = excess_drift(np.ones(3), np.array([0.5, 0.5, 0.0]), np.zeros(3), copies=2)
    assert math.isnan(found.excess)
    assert found.reason.startswith("the base failed in all 6 responses")
    assert math.isnan(excess_drift(np.ones(2), np.full(2, np.nan), np.ones(2)).excess)
    with pytest.raises(ShapeError, match=r"three arrays of one length, found \(2,\), \(3,\), \(2,\)"):
        excess_drift(np.ones(2), np.ones(3), np.ones(2))


def test_prompts_without_a_known_reward_are_left_out():
    found = excess_drift([1.0, 5.0, 2.0], [0.5, np.nan, 1.0], [0.5, 0.5, 0.5])
    assert (found.prompts, found.kl) == (2, 1.5)


def test_tasks_are_averaged_by_their_prompts_and_those_without_a_number_are_counted():
    one = excess_drift(np.array([1.0, 1.2]), np.array([0.5, 1.0]), np.array([0.5, 0.25]), copies=2)
    two = excess_drift(np.full(6, 3.0), np.array([0.5, 1.0] * 3), np.array([0.5, 0.25] * 3), copies=2)
    none = excess_drift(np.ones(3), np.ones(3), np.zeros(3))
    whole = combine([one, two, none])
    assert whole.excess == pytest.approx((2 * one.excess + 6 * two.excess) / 8)
    assert whole.se == pytest.approx(math.hypot(2 * one.se, 6 * two.se) / 8)
    assert whole.low < whole.excess < whole.high
    assert whole.reason == "1 of 3 tasks have no excess drift"
    assert math.isnan(combine([none]).excess)


def test_tables_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match=r"expected equal shapes, found \(4,\) and \(3,\)"):
        tabular.kl(BASE, BASE[:3])
    with pytest.raises(ShapeError, match=r"success rate between 0 and 1, found 1\.0"):
        tabular.minimal_policy(BASE, np.ones(4, dtype=bool), 0.5)


@pytest.mark.parametrize(("copies", "low", "high"), [(4, -0.78, 0.20), (16, -0.15, 0.07)])
def test_the_bias_of_the_price_of_each_prompt_is_what_the_docstring_says(copies, low, high):
    """Expectation over both binomials, exactly: one prompt of each pair of counts beside one that sets the pool."""
    counts = np.arange(copies + 1)
    price = np.zeros((copies + 1, copies + 1))
    for i, j in itertools.product(counts, counts):
        anchor = excess_drift([1.0], [0.5], [0.5], copies)
        both = excess_drift([1.0, 1.0], [i / copies, 0.5], [j / copies, 0.5], copies)
        price[i, j] = 2 * both.kl_bernoulli_prompt - anchor.kl_bernoulli_prompt
    rates = itertools.product((0.1, 0.3, 0.5, 0.7, 0.9, 0.97), (0.1, 0.3, 0.5, 0.7, 0.9))
    bias = [
        float(binom.pmf(counts, copies, s) @ price @ binom.pmf(counts, copies, p) - kl_bernoulli(s, p))
        for s, p in rates
    ]
    assert low < min(bias) < 0 < max(bias) < high
