"""Gain and forgetting cell by cell, and what they are not."""

import math

import pytest
from score_support import MATRIX, history, long_rows, read

from driftlab.forgetting.changes import change, change_table
from driftlab.forgetting.history import histories
from driftlab.forgetting.intervals import Cell


@pytest.mark.parametrize(("base", "now", "gain"), [(32.71, 56.42, 72.49), (73.85, 84.29, 14.14)])
def test_the_two_points_that_the_paper_gives(base, now, gain):
    found = change(Cell(base), Cell(now))
    assert found["gain"] == pytest.approx(gain, abs=0.005)
    assert found["forgetting"] == 0
    assert found["points"] == pytest.approx(now - base)


def test_every_cell_by_hand(tmp_path):
    table = change_table([history(tmp_path, long_rows())]).set_index(["label", "task"])
    by_hand = {
        ("A", "A"): (300.0, 0.0, "in-domain"),
        ("A", "B"): (20.0, 0.0, "not-yet"),
        ("A", "C"): (10.0, 0.0, "not-yet"),
        ("A", "O"): (0.0, 10.0, "ood"),
        ("B", "A"): (350.0, 0.0, "trained-before"),
        ("B", "B"): (400 / 3, 0.0, "in-domain"),
        ("B", "C"): (0.0, 5.0, "not-yet"),
        ("B", "O"): (20.0, 0.0, "ood"),
        ("C", "A"): (150.0, 0.0, "trained-before"),
        ("C", "B"): (100.0, 0.0, "trained-before"),
        ("C", "C"): (137.5, 0.0, "in-domain"),
        ("C", "O"): (0.0, 20.0, "ood"),
    }
    assert set(table.index) == set(by_hand)
    for where, (gain, forgetting, kind) in by_hand.items():
        row = table.loc[where]
        assert row["gain"] == pytest.approx(gain)
        assert row["forgetting"] == pytest.approx(forgetting)
        assert row["kind"] == kind
        assert row["points"] == pytest.approx(MATRIX[where[0]][where[1]] - MATRIX["base"][where[1]])
        assert row["change"] == pytest.approx(gain - forgetting)
    assert table["order"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert table["stage_end"].all()


def test_a_base_of_zero_has_points_and_a_reason_but_no_per_cent(tmp_path):
    matrix = MATRIX | {"base": MATRIX["base"] | {"O": 0.0}}
    rows = change_table([history(tmp_path, long_rows(matrix))]).query("task == 'O'")
    assert rows["points"].tolist() == [45.0, 60.0, 40.0]
    assert rows[["gain", "forgetting", "change"]].isna().all(axis=None)
    assert set(rows["status"]) == {"no base"}
    assert set(rows["reason"]) == {"the score before is 0: no per cent of it"}


def test_a_missing_cell_is_a_row_with_a_reason_and_never_a_zero(tmp_path):
    matrix = MATRIX | {"B": MATRIX["B"] | {"O": None}}
    table = change_table([history(tmp_path, long_rows(matrix))]).set_index(["label", "task"])
    row = table.loc["B", "O"]
    assert math.isnan(row["points"])
    assert math.isnan(row["forgetting"])
    assert (row["status"], row["reason"]) == ("missing", "O was not evaluated at B")
    assert table.loc[("C", "O"), "forgetting"] == pytest.approx(20)


def test_a_missing_base_leaves_the_score_and_says_so(tmp_path):
    matrix = MATRIX | {"base": MATRIX["base"] | {"O": None}}
    row = change_table([history(tmp_path, long_rows(matrix))]).set_index(["label", "task"]).loc["C", "O"]
    assert row["score"] == 40
    assert math.isnan(row["base"])
    assert row["reason"] == "O was not evaluated at base"


def test_where_less_is_better_a_fall_is_a_gain(tmp_path):
    scores = read(tmp_path, long_rows(), lower=["O"])
    table = change_table(histories(scores)).set_index(["label", "task"])
    assert table.loc[("C", "O"), "gain"] == pytest.approx(20)
    assert table.loc[("B", "O"), "forgetting"] == pytest.approx(20)
    assert table.loc[("C", "O"), "points"] == pytest.approx(10)


def test_the_unit_changes_points_and_no_per_cent(tmp_path):
    shares = [row | {"score": row["score"] / 100} for row in long_rows()]
    one, other = (change_table(histories(read(tmp_path, rows))) for rows in (long_rows(), shares))
    for name in ("gain", "forgetting", "points", "score"):
        assert one[name].tolist() == pytest.approx(other[name].tolist())


def test_a_reported_error_goes_before_the_number_of_questions(tmp_path):
    rows = [row | {"stderr": 3.0, "n": 50} for row in long_rows()]
    row = change_table([history(tmp_path, rows)]).iloc[0]
    assert row["stderr"] == 3
    assert row["interval"] == "stderr"
    assert row["points_high"] - row["points"] == pytest.approx(1.959964 * 18**0.5, abs=1e-5)
