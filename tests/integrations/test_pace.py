"""When to measure, and what it cost: seconds are given, none is taken."""

import math

import pytest

from driftlab.integrations.pace import Pace


def steps(pace, count, seconds, busy=False):
    for _ in range(count):
        pace.stepped(seconds, busy)


def test_overhead_is_held_and_slowed_seconds_over_step_seconds():
    pace = Pace(10, 0.02)
    steps(pace, 2, 100.0)  # warm-up
    steps(pace, 8, 1.0)
    steps(pace, 4, 1.5, busy=True)
    pace.hold(0.5)
    assert pace.slowed == pytest.approx(4 * 0.5)
    assert pace.training == pytest.approx(12.0)
    assert pace.overhead == pytest.approx(2.5 / 12.0)
    assert pace.step_seconds == (1.0, 1.5)


def test_faster_steps_beside_a_measurement_are_no_credit():
    pace = Pace(10, 0.02)
    steps(pace, 10, 1.0)
    steps(pace, 4, 0.5, busy=True)
    assert (pace.slowed, pace.overhead) == (0.0, 0.0)


def test_nothing_is_known_before_the_third_step():
    pace = Pace(10, 0.02)
    steps(pace, 2, 1.0)
    assert math.isnan(pace.overhead)


def test_without_a_budget_it_measures_every_n_steps():
    pace = Pace(3, math.inf)
    found = []
    for step in range(1, 11):
        pace.stepped(1.0, False)
        if pace.due(step, False):
            found.append(step)
            pace.hold(100.0)
            pace.done()
    assert found == [3, 6, 9]


def test_one_that_falls_due_while_another_runs_is_skipped_and_counted():
    pace = Pace(2, math.inf)
    assert [pace.due(step, busy=step < 6) for step in range(1, 9)] == [False] * 5 + [True, False, True]
    assert pace.skipped == 2


@pytest.mark.parametrize("budget", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("cost", [0.01, 1.0, 7.0])
def test_the_interval_stretches_to_keep_the_budget(budget, cost):
    """Each measurement holds the loop for a time: the share stays within the budget but for the first one's cost."""
    pace, measured = Pace(5, budget), 0
    for step in range(1, 20_001):
        pace.stepped(1.0, False)
        if pace.due(step, False):
            measured += 1
            pace.hold(cost)
            pace.done()
    assert pace.overhead <= budget
    affordable = budget * 19_998 / cost
    assert measured == pytest.approx(min(affordable, 20_000 / 5), rel=0.02, abs=2)


def test_a_resumed_run_counts_from_where_it_goes_on():
    pace = Pace(4, math.inf)
    pace.begin(100)
    assert [step for step in range(101, 109) if pace.due(step, False)] == [104, 108]


def test_after_slow_steps_it_waits_until_there_is_something_to_compare_with():
    pace = Pace(2, 1.0)
    steps(pace, 10, 5.0, busy=True)
    assert not pace.due(10, False)
    steps(pace, 5, 5.0)
    assert pace.due(15, False)
