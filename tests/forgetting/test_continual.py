"""The metrics of continual learning by hand, and the mistakes that other code bases make with them."""

import pytest
from score_support import MATRIX, history, long_rows

from driftlab.forgetting.continual import METRICS, items
from driftlab.forgetting.summary import summarise


def means(found, **where):
    summary, _ = summarise([found])
    rows = summary[(summary["level"] == "run") & (summary["task"] == "") & (summary["after"] == where["after"])]
    return rows.set_index("metric")


@pytest.fixture
def after_c(tmp_path):
    return means(history(tmp_path, long_rows()), after="C")


def test_by_hand_after_the_last_stage(after_c):
    by_hand = {
        "base": (20 + 30 + 40) / 3,
        "current": (80 + 70 + 95) / 3,
        "last": (50 + 60 + 95) / 3,
        "acc": (50 + 60 + 95) / 3,
        "bwt": ((50 - 80) + (60 - 70)) / 2,
        "fwt": ((36 - 30) + (38 - 40)) / 2,
        "forgetting": ((90 - 50) + (70 - 60)) / 2,
        "fm": ((50 - 90) + (60 - 70) + 0) / 3,
        "ood_base": 50,
        "ood": 40,
        "ood_change": -10,
        "ood_retention": 80,
    }
    assert set(by_hand) == set(METRICS)
    for metric, value in by_hand.items():
        assert after_c.loc[metric, "value"] == pytest.approx(value), metric


def test_bwt_is_negative_where_something_is_forgotten_and_leaves_out_the_task_just_learnt(after_c):
    assert after_c.loc["bwt", "value"] == -20
    assert after_c.loc["bwt", "tasks"] == "A, B"
    assert after_c.loc["forgetting", "tasks"] == "A, B"


def test_forgetting_takes_the_best_of_the_earlier_stages_without_the_last(tmp_path):
    matrix = MATRIX | {"C": {"A": 99.0, "B": 60.0, "C": 95.0, "O": 40.0}}
    found = {item.task: item for item in items(history(tmp_path, long_rows(matrix)), "forgetting", 3)}
    assert found["A"].estimate().value == pytest.approx(90 - 99)  # negative: A is better than ever


def test_forgetting_takes_the_best_and_not_the_score_right_after_learning(tmp_path):
    found = {item.task: item for item in items(history(tmp_path, long_rows()), "forgetting", 3)}
    assert found["A"].estimate().value == pytest.approx(90 - 50)
    assert found["B"].estimate().value == pytest.approx(70 - 60)


def test_a_task_counts_from_its_own_stage_on(tmp_path):
    rows = means(history(tmp_path, long_rows()), after="B")
    assert rows.loc["last", "tasks"] == "A, B"
    assert rows.loc["last", "value"] == pytest.approx((90 + 70) / 2)
    assert rows.loc["bwt", "value"] == pytest.approx(90 - 80)
    assert rows.loc["ood", "tasks"] == "O"  # C is not yet trained, and no unseen domain either


def test_fwt_is_measured_from_the_base_model_at_the_stage_before(tmp_path):
    found = {item.task: item for item in items(history(tmp_path, long_rows()), "fwt", 3)}
    assert set(found) == {"B", "C"}
    assert found["B"].estimate().value == pytest.approx(36 - 30)  # not 36 - 0, nor 36 - chance
    assert found["C"].estimate().value == pytest.approx(38 - 40)


def test_after_one_stage_there_is_no_transfer_and_the_reason_says_so(tmp_path):
    rows = means(history(tmp_path, long_rows()), after="A")
    for metric in ("bwt", "fwt", "forgetting"):
        assert rows.isna().loc[metric, "value"]
        assert rows.loc[metric, "reason"] == "defined from the second stage on"


def test_a_missing_cell_takes_its_task_out_and_says_so(tmp_path):
    matrix = MATRIX | {"B": MATRIX["B"] | {"A": None}}
    rows = means(history(tmp_path, long_rows(matrix)), after="C")
    assert rows.loc["bwt", "value"] == -20  # R[C,A] and R[A,A] are there
    assert rows.loc["forgetting", "value"] == 10  # the best of A is not known without R[B,A]
    assert rows.loc["forgetting", "tasks"] == "B"
    assert rows.loc["forgetting", "reason"] == "left out: A was not evaluated at B"


def test_a_run_that_stopped_is_measured_as_far_as_it_went(tmp_path):
    matrix = {label: row for label, row in MATRIX.items() if label != "C"}
    found = history(tmp_path, long_rows(matrix))
    assert found.ends == ["A", "B"]
    assert means(found, after="B").loc["last", "value"] == 80


def test_retention_of_a_base_of_zero(tmp_path):
    matrix = MATRIX | {"base": MATRIX["base"] | {"O": 0.0}}
    rows = means(history(tmp_path, long_rows(matrix)), after="C")
    assert rows.isna().loc["ood_retention", "value"]
    assert rows.loc["ood_retention", "reason"] == "O: its base is 0"
    assert rows.loc["ood_change", "value"] == 40


def test_own_tasks_may_have_other_names_and_be_several(tmp_path):
    matrix = {label: {"a1": row["A"], "a2": row["O"], "B": row["B"], "C": row["C"]} for label, row in MATRIX.items()}
    found = history(tmp_path, long_rows(matrix), own={"A": ["a1", "a2"]})
    assert [item.task for item in items(found, "current", 3)] == ["a1", "a2", "B", "C"]
    assert found.ood == []
    rows = means(found, after="C")
    assert rows.loc["ood", "reason"] == "no task of its kind"


def test_a_stage_twice_over_the_same_questions_keeps_zero_exact(tmp_path):
    rows = means(history(tmp_path, [row | {"n": 40} for row in long_rows()]), after="C")
    fm_of_c = next(item for item in items(history(tmp_path, long_rows()), "fm", 3) if item.task == "C").estimate()
    assert (fm_of_c.value, fm_of_c.low, fm_of_c.high) == (0, 0, 0)
    assert rows.loc["fm", "interval"] == "counts"
