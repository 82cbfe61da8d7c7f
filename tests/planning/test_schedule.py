"""The simulated schedule, where it can be told by hand."""

import importlib.util
import math
from pathlib import Path

import pytest

from driftlab.planning.forecast import makespan

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "schedule.py"
SECONDS = sorted((1.0 + (7 * i) % 11 for i in range(40)), reverse=True)


@pytest.fixture(scope="module")
def schedule():
    spec = importlib.util.spec_from_file_location("benchmark_schedule", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 100])
def test_where_nothing_goes_wrong_it_is_the_forecasts_schedule(schedule, workers):
    assert schedule.simulate(SECONDS, workers, schedule.Fate()) == (makespan(SECONDS, workers), 0, 0)


def test_slow_workers_and_beginnings_by_hand(schedule):
    assert schedule.simulate([6.0], 1, schedule.Fate(slow_share=1.0, slow_factor=3.0)) == (18.0, 0, 0)
    assert schedule.simulate([6.0, 6.0], 2, schedule.Fate(slow_share=0.5, slow_factor=3.0)) == (18.0, 0, 0)
    assert schedule.simulate([6.0], 1, schedule.Fate(replace=60.0)) == (66.0, 0, 0)


def test_losses_cost_time_and_units_that_cannot_end_are_given_up(schedule):
    some = schedule.Fate(losses=600.0)  # one in six seconds
    runs = [schedule.simulate(SECONDS, 4, some, seed) for seed in range(50)]
    assert all(span > 0 and lost >= 3 * given for span, lost, given in runs)
    mean = sum(lost for _, lost, _ in runs) / len(runs)
    by_hand = sum(3 if s == math.inf else sum((1 - math.exp(-s / 6)) ** k for k in (1, 2, 3)) for s in SECONDS)
    assert mean == pytest.approx(by_hand, rel=0.1)
    _, lost, given = schedule.simulate([1e9] * 5, 2, some)
    assert (lost, given) == (15, 5)


def test_the_noise_has_mean_one(schedule):
    spans = [schedule.simulate([1.0] * 2000, 1, schedule.Fate(tail=0.5), seed)[0] for seed in range(20)]
    assert sum(spans) / 20 / 2000 == pytest.approx(1.0, rel=0.02)


def test_a_70b_model_by_hand(schedule):
    from driftlab.planning.rates import Rates
    from driftlab.spectral import Plan

    seconds, sums = schedule.model_seconds("70b", 100, Rates(0, 0, 0, 1, 0, 0), Plan())
    layer = 2 * 8192**2 + 2 * 1024 * 8192 + 3 * 28672 * 8192
    assert sums["units"] == 560
    assert sum(seconds) == 80 * layer
    assert sums["terabytes"] * 1e12 == pytest.approx(2 * 101 * 80 * layer)
