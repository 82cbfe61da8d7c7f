"""Means over seeds and differences of methods, against scipy and by hand."""

import pytest
from scipy import stats
from score_support import MATRIX, long_rows, read, run_folder

from driftlab.forgetting.gather import gather
from driftlab.forgetting.history import histories
from driftlab.forgetting.readers import read_scores
from driftlab.forgetting.summary import summarise

NOISE = {"x": (1.0, -2.0, 0.5), "y": (-9.0, -11.0, -10.5)}


def shifted(by, **change):
    matrix = {label: {t: s + (by if label == "C" else 0) for t, s in row.items()} for label, row in MATRIX.items()}
    return {label: row | change.get(label, {}) for label, row in matrix.items()}


@pytest.fixture
def seeds(tmp_path):
    rows = [
        row
        for method, shifts in NOISE.items()
        for seed, by in enumerate(shifts)
        for row in long_rows(shifted(by / 3), run=f"{method}{seed}", method=method, seed=seed)
    ]
    return summarise(histories(read(tmp_path, rows)))


def test_a_method_is_the_mean_over_its_seeds_with_a_t_interval(seeds):
    table, remarks = seeds
    assert remarks == []
    row = table.query("level == 'method' and method == 'x' and metric == 'last' and task == '' and after == 'C'")
    values = [(50 + 60 + 95) / 3 + by / 3 for by in NOISE["x"]]
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert row[["value", "low", "high"]].to_numpy()[0] == pytest.approx((sum(values) / 3, interval.low, interval.high))
    assert row[["n_seeds", "interval", "tasks"]].to_numpy()[0].tolist() == [3, "seeds", "A, B, C"]


def test_methods_are_compared_seed_by_seed(seeds):
    table, _ = seeds
    row = table.query("level == 'difference' and metric == 'last'").iloc[0]
    paired = stats.ttest_rel([by / 3 for by in NOISE["x"]], [by / 3 for by in NOISE["y"]])
    assert (row["method"], row["other"], row["n_seeds"]) == ("x", "y", 3)
    assert row["value"] == pytest.approx(sum(x - y for x, y in zip(*NOISE.values(), strict=True)) / 9)
    assert row["p_value"] == pytest.approx(paired.pvalue)
    assert row["p_holm"] == pytest.approx(paired.pvalue)  # one pair
    assert row["verdict"] == "separated"
    current = table.query("level == 'difference' and metric == 'fwt'").iloc[0]
    assert (current["value"], current["verdict"]) == (0, "not separated")


def test_p_values_are_adjusted_for_the_pairs(tmp_path):
    rows = [
        row
        for method, shifts in (NOISE | {"z": (0.3, 0.1, -0.6)}).items()
        for seed, by in enumerate(shifts)
        for row in long_rows(shifted(by), run=f"{method}{seed}", method=method, seed=seed)
    ]
    table, _ = summarise(histories(read(tmp_path, rows)))
    pairs = table.query("level == 'difference' and metric == 'last'")
    assert len(pairs) == 3
    assert (pairs["p_holm"] >= pairs["p_value"]).all()
    assert pairs["p_holm"].min() == pytest.approx(3 * pairs["p_value"].min())


def test_methods_are_compared_on_the_tasks_both_have(tmp_path):
    full = shifted(0)
    part = shifted(0, C={"A": None})
    rows = [*long_rows(full, run="x", method="x"), *long_rows(part, run="y", method="y")]
    table, _ = summarise(histories(read(tmp_path, rows)))
    row = table.query("level == 'difference' and metric == 'last'").iloc[0]
    assert row["value"] == 0  # 68.3 against 77.5 by the means of each
    assert (row["tasks"], row["reason"]) == ("B, C", "left out: A")


def test_one_seed_is_compared_over_its_questions_and_called_so(tmp_path):
    right = {"base": {"A": [0, 1] * 20}, "A@2": {"A": [1] * 40}}
    wrong = {"base": {"A": [0, 1] * 20}, "A@2": {"A": [1] * 20 + [0] * 20}}
    runs = [run_folder(tmp_path / name, r, name=name, stages=("A",)) for name, r in (("x", right), ("y", wrong))]
    table, _ = summarise(histories(gather(read_scores(runs))))
    row = table.query("level == 'difference' and metric == 'current'").iloc[0]
    assert row["value"] == 50
    assert (row["interval"], row["verdict"], row["n_seeds"]) == ("samples", "one seed", 1)
    assert 0 < row["low"] < 50 < row["high"]
    method = table.query("level == 'method' and metric == 'current' and task == ''")
    assert method["low"].isna().all()
    assert set(method["reason"]) == {"one seed: no interval over seeds"}


def test_scores_without_uncertainty_are_compared_without_a_verdict(tmp_path):
    rows = [*long_rows(run="x", method="x"), *long_rows(shifted(1), run="y", method="y")]
    table, _ = summarise(histories(read(tmp_path, rows)))
    assert set(table.query("level == 'difference'")["verdict"]) == {"no interval"}


def test_methods_are_compared_after_the_last_stage_both_reached(tmp_path):
    short = {label: row for label, row in MATRIX.items() if label != "C"}
    rows = [*long_rows(run="x", method="x"), *long_rows(short, run="y", method="y")]
    scores = read(tmp_path, rows)
    scores.plans["y"].append(("C", "C"))
    table, _ = summarise(histories(scores))
    assert set(table.query("level == 'difference'")["after"]) == {"B"}


def test_runs_of_one_method_that_are_no_seeds_stand_alone(tmp_path):
    rows = [*long_rows(run="r1"), *long_rows(run="r2")]
    table, remarks = summarise(histories(read(tmp_path, rows)))
    assert remarks == ["m: its 2 runs are not taken as seeds of one method, their seeds are not told apart."]
    assert set(table.query("level == 'method'")["method"]) == {"r1", "r2"}


def test_tasks_without_percents_are_in_no_mean(tmp_path):
    scores = read(tmp_path, long_rows(), lower=["B"])
    table, _ = summarise(histories(scores))
    row = table.query("level == 'run' and metric == 'last' and task == '' and after == 'C'").iloc[0]
    assert row["value"] == pytest.approx((50 + 95) / 2)
    assert row["reason"] == "left out: B: its scores are no percents"
