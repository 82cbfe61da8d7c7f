"""Intervals against closed forms, a slow twin and their coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from driftlab.forgetting.intervals import Cell, combine, mean_of, over_seeds, transitions


def cell(values):
    return Cell(100 * float(np.mean(values)), n=len(values), rewards={f"q{i}": 100.0 * v for i, v in enumerate(values)})


def bonett_price(before, after):
    """Return the published form: counts of the two discordant cells, each with one added."""
    n = len(before)
    lost = (sum(b > a for b, a in zip(before, after, strict=True)) + 1) / (n + 2)
    gained = (sum(b < a for b, a in zip(before, after, strict=True)) + 1) / (n + 2)
    half = stats.norm.ppf(0.975) * math.sqrt((lost + gained - (gained - lost) ** 2) / (n + 2))
    return 100 * (gained - lost - half), 100 * (gained - lost + half)


@pytest.mark.parametrize("seed", range(5))
def test_a_paired_difference_is_the_bonett_price_interval(seed):
    rng = np.random.default_rng(seed)
    before, after = rng.integers(0, 2, size=(2, 37))
    found = combine([(1.0, cell(after)), (-1.0, cell(before))])
    assert (found.low, found.high) == pytest.approx(bonett_price(before, after))
    assert found.value == pytest.approx(100 * (after.mean() - before.mean()))
    assert (found.n_paired, found.source) == (37, "samples")


def test_counts_give_the_agresti_caffo_interval():
    found = combine([(1.0, Cell(70.0, n=30)), (-1.0, Cell(50.0, n=20))])
    p, q = 22 / 32, 11 / 22
    half = stats.norm.ppf(0.975) * math.sqrt(p * (1 - p) / 32 + q * (1 - q) / 22)
    assert (found.low, found.high) == pytest.approx((100 * (p - q - half), 100 * (p - q + half)))


def test_pairing_is_by_question_and_not_by_place():
    before = Cell(50.0, rewards={"a": 100.0, "b": 0.0, "c": 100.0, "d": 0.0})
    after = Cell(50.0, rewards={"d": 0.0, "c": 100.0, "b": 0.0, "a": 100.0})
    assert transitions(before, after) == (4, 0.0, 0.0)
    assert transitions(before, Cell(50.0, rewards={"e": 100.0}))[0] == 0


def test_shares_of_lost_and_gained_questions():
    assert transitions(cell([1, 1, 1, 0, 0]), cell([1, 0, 0, 1, 0])) == (5, 0.4, 0.2)


def test_questions_that_one_side_lacks_move_no_estimate():
    after = Cell(75.0, n=4, rewards={"q0": 100.0, "q1": 100.0, "q2": 0.0, "q3": 100.0})
    before = Cell(50.0, n=2, rewards={"q0": 100.0, "q1": 0.0})
    found = combine([(1.0, after), (-1.0, before)])
    assert found.value == 25
    assert found.n_paired == 2
    assert found.low < 25 < found.high


def test_all_right_has_a_width_and_a_score_less_itself_has_none():
    perfect = cell([1] * 128)
    assert combine([(1.0, perfect)]).low < 100
    nothing = combine([(1.0, perfect), (-1.0, perfect)])
    assert (nothing.value, nothing.low, nothing.high, nothing.source) == (0, 0, 0, "exact")


def test_without_any_uncertainty_there_is_no_interval():
    found = combine([(1.0, Cell(60.0)), (-1.0, Cell(50.0, n=10))])
    assert found.value == 10
    assert math.isnan(found.low)
    assert found.source == "none"
    assert math.isnan(mean_of([found, combine([(1.0, Cell(1.0, n=3))])]).high)


def test_a_raw_number_gets_no_binomial_interval_from_its_count():
    assert combine([(1.0, Cell(60.0, n=10, top=None))]).source == "none"


def test_coverage_of_the_paired_interval():
    rng = np.random.default_rng(0)
    hits, repeats, truth = 0, 1000, 100 * (0.3 - 0.1)
    for _ in range(repeats):
        kind = rng.choice(4, size=40, p=[0.3, 0.1, 0.3, 0.3])  # gained, lost, kept, never
        before, after = np.isin(kind, [1, 2]), np.isin(kind, [0, 2])
        found = combine([(1.0, cell(after)), (-1.0, cell(before))])
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / repeats <= 0.98


def test_seeds_against_scipy():
    values = [3.0, 4.5, 2.0, 5.0]
    mean, low, high, p = over_seeds(values)
    expected = stats.ttest_1samp(values, 0)
    interval = expected.confidence_interval(0.95)
    assert (mean, low, high, p) == pytest.approx((3.625, interval.low, interval.high, expected.pvalue))


def test_one_seed_has_no_interval_and_equal_seeds_are_no_chance():
    assert [math.isnan(x) for x in over_seeds([2.0])] == [False, True, True, True]
    assert over_seeds([2.0, 2.0]) == (2, 2, 2, 0)
    assert over_seeds([0.0, 0.0])[3] == 1


def test_a_difference_that_is_rounding_alone_is_none():
    assert over_seeds([1.1e-14, 1.2e-14, 1.15e-14]) == (0, 0, 0, 1)
