import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from driftlab.contrasts import contrasts, interval, over_seeds


def table(**methods: list[float]) -> pd.DataFrame:
    rows = [(m, seed, "kl", value) for m, values in methods.items() for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["method", "seed", "number", "value"])


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(0).normal(size=5)
    low, high = interval(values)
    known = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert (low, high) == pytest.approx(known, rel=1e-12)


def test_one_seed_has_no_interval_and_no_verdict() -> None:
    found = over_seeds(table(grpo=[1.0]))
    assert found[["seeds", "mean"]].to_numpy().tolist() == [[1, 1.0]]
    assert found[["low", "high"]].isna().all().all()
    assert contrasts(table(grpo=[1.0], sdpo=[2.0]), [("sdpo", "grpo")])["verdict"].tolist() == ["one seed"]


def test_differences_are_paired_by_seed() -> None:
    noise = np.random.default_rng(1).normal(scale=10.0, size=6)
    numbers = table(grpo=list(noise), sdpo=list(noise + 1 + 0.01 * np.arange(6)))
    row = contrasts(numbers, [("sdpo", "grpo")]).iloc[0]
    assert row["verdict"] == "above"  # the spread between seeds is a thousand times the difference
    assert row["difference"] == pytest.approx(1.025)
    assert row["p_value"] == pytest.approx(stats.ttest_1samp(1 + 0.01 * np.arange(6), 0).pvalue)


def test_seeds_of_one_side_alone_and_missing_values_do_not_count() -> None:
    numbers = table(grpo=[1.0, 2.0, math.nan], sdpo=[2.0, 4.0, 9.0, 5.0])
    row = contrasts(numbers, [("sdpo", "grpo")]).iloc[0]
    assert (row["seeds"], row["difference"]) == (2, 1.5)
    assert contrasts(numbers, [("sdpo", "none")]).empty


def test_p_values_are_adjusted_for_the_pairs_of_a_number() -> None:
    rng = np.random.default_rng(2)
    numbers = table(a=list(rng.normal(size=5)), b=list(rng.normal(1, 1, 5)), c=list(rng.normal(2, 1, 5)))
    found = contrasts(numbers, [("b", "a"), ("c", "a")])
    assert found["p_holm"].min() == pytest.approx(2 * found["p_value"].min())


def test_equal_differences_are_handled() -> None:
    same = contrasts(table(a=[1.0, 2.0], b=[1.0, 2.0]), [("b", "a")]).iloc[0]
    assert (same["p_value"], same["verdict"]) == (1.0, "not separated")
    shifted = contrasts(table(a=[1.0, 2.0], b=[2.0, 3.0]), [("b", "a")]).iloc[0]
    assert (shifted["p_value"], shifted["verdict"]) == (0.0, "above")


def test_rounding_separates_nothing() -> None:
    thirds = [0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2]  # 0.30000000000000004: the same tiny difference in every seed
    row = contrasts(table(a=[0.3, 0.3, 0.3], b=thirds), [("b", "a")]).iloc[0]
    assert (row["difference"], row["p_value"], row["verdict"]) == (0.0, 1.0, "not separated")


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_interval_covers_the_true_difference(shift: float) -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        noise = rng.normal(size=4)
        row = contrasts(table(a=list(noise), b=list(noise + shift + rng.normal(size=4))), [("b", "a")]).iloc[0]
        covered += row["low"] <= shift <= row["high"]
    assert 0.92 <= covered / 400 <= 0.98
