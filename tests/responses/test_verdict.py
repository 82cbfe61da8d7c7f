"""The verdict on responses made up by rule: collapse, more repetition, a base that loops; readings of the log."""

import math

import pandas as pd
import pytest

from driftlab.responses.answers import Answer
from driftlab.responses.policy_tables import artifact_rows
from driftlab.responses.verdict import first_collapse, first_step, js_reading

HONEST = "{a} + {b} = {c} ; \\boxed {{ {c} }}"
TASKS = ("math", "science", "tool")


def answers(kinds, tasks=TASKS, prompts=16, copies=4):
    """Give each task a share of responses of each kind; ``kinds`` maps a template to a share, a task to a mapping."""
    found = []
    for task in tasks:
        shares = kinds.get(task, kinds.get("*", {})) if set(kinds) & {*tasks, "*"} else kinds
        for place in range(prompts * copies):
            text, level = HONEST, (place * 7 % 64 + 0.5) / 64  # spread over the prompts
            for template, share in shares.items():
                if level < share:
                    text = template
                    break
                level -= share
            a, b = place % 9, place % 7
            text = text.format(a=a, b=b, c=a + b)
            found.append(Answer(task, f"{task}/{place // copies}", text, 1.0, text.endswith(CUT)))
    return found


CUT = "\\boxed {"
HABIT = "{a} + {b} " + "\\boxed {{ {c} }} " * 8
LOOP = HABIT + CUT.replace("{", "{{")
DRIFTING = "\\boxed {{ {c} }} \\boxed {{ 1 {c} }} \\boxed {{ 2 {c} }} \\boxed {{ {c} 3 }} or " + CUT.replace("{", "{{")
ENDLESS = "\\boxed {{ {c} }} " * 12
TWICE = HONEST + " \\boxed {{ {c} }}"


def verdicts(new, base=None):
    rows = artifact_rows(new, answers({}) if base is None else base)
    return {row["task"]: row["verdict"] for row in rows}, {row["task"]: row["evidence"] for row in rows}


def test_the_base_against_itself():
    found, why = verdicts(answers({}))
    assert set(found.values()) == {"none"}
    assert set(why.values()) == {""}


@pytest.mark.parametrize("kind", [LOOP, DRIFTING, ENDLESS, ""])
def test_most_responses_degenerate_is_a_collapse(kind):
    found, why = verdicts(answers({kind: 0.8}))
    assert set(found.values()) == {"collapsed"}
    assert why["all"].startswith("80 % degenerate (")
    assert "base 0 %" in why["all"]


def test_more_repetition_is_no_collapse():
    """A rise of loops from nothing to 16 %, and most answers said twice, with honest answers still the rule."""
    assert verdicts(answers({LOOP: 0.16}))[0]["all"] == "elevated"
    assert verdicts(answers({TWICE: 0.9}))[0]["all"] == "none"
    assert verdicts(answers({HABIT: 0.9}))[0]["all"] == "elevated"  # a habit, and then the response ends
    assert verdicts(answers({LOOP: 0.45}))[0]["all"] == "elevated"


def test_a_majority_that_is_not_sure_is_no_collapse():
    assert verdicts(answers({LOOP: 0.52}))[0]["all"] == "elevated"
    assert verdicts(answers({LOOP: 0.70}))[0]["all"] == "collapsed"


def test_one_task_collapsed_is_partial():
    found, why = verdicts(answers({"math": {LOOP: 1.0}}))
    assert (found["math"], found["science"], found["all"]) == ("collapsed", "none", "partial")
    assert why["all"].endswith("collapsed: math")


def test_a_base_that_loops_already_has_not_collapsed():
    base = answers({LOOP: 0.8})
    assert set(verdicts(answers({LOOP: 0.85}), base)[0].values()) == {"none"}


def test_a_task_the_base_never_answered_is_not_judged():
    found, why = verdicts(answers({LOOP: 0.9}, ("math", "new")), answers({}, ("math",)))
    assert found["new"] == "none"
    assert why["new"] == "the base has no responses to this task"


def test_evidence_names_the_marker_and_the_length_limit():
    why = verdicts(answers({LOOP: 1.0}))[1]["all"]
    assert "boxed 9.0 times a response (base 1.0)" in why


def test_the_first_collapse_is_by_step():
    rows = pd.DataFrame(
        {
            "task": ["all", "all", "all", "math"],
            "label": ["b@1", "a@2", "a@1", "a@1"],
            "global_step": [3, 2, 1, 1],
            "verdict": ["collapsed", "partial", "elevated", "collapsed"],
        }
    )
    assert first_collapse(rows) == "a@2"
    assert first_collapse(rows[rows["verdict"] == "elevated"]) == ""


def steps(repeat, **columns):
    return pd.DataFrame({"global_step": range(1, len(repeat) + 1), "repeat_rate": repeat, **columns})


def test_the_first_step_of_lasting_repetition():
    assert first_step(steps([0.0, 0.1, 0.1, 0.9, 0.1, 0.6, 0.7, 0.8])) == 6
    assert first_step(steps([0.0, 0.1, 0.1, 0.9, 0.9, 0.1])) is None
    assert first_step(steps([0.0, 0.1, 0.1, 0.9, 0.9])) is None  # two steps before the end are not three
    assert first_step(steps([0.9, 0.9, 0.9, 0.9, 0.9])) is None  # it began that way
    assert first_step(pd.DataFrame({"loss": [1.0]})) is None


def log(js, target):
    return steps([0.0] * len(js), js_distilled=js, js_response=[0.01] * len(js), empty_target=target)


def test_a_small_js_is_read_by_whether_there_was_a_target():
    closed = log([0.2, 0.2, 0.1, 0.01, 0.01, 0.01], [0] * 6)
    assert js_reading(closed, 0, 3)["js_reading"] == "apart"
    found = js_reading(closed, 3, 6)
    assert (found["js_reading"], found["js_distilled"]) == ("agreement", pytest.approx(0.01))
    none = log([0.2, 0.2, 0.1, None, None, 0.01], [0, 0, 0, 1, 1, 0])
    found = js_reading(none, 3, 6)
    assert (found["js_reading"], found["no_target_share"]) == ("no target", pytest.approx(2 / 3))
    zeros = log([0.2, 0.2, 0.1, 0.0, 0.0, 0.0], [0, 0, 0, 1, 1, 1])  # logged as 0 where there was nothing
    found = js_reading(zeros, 3, 6)
    assert found["js_reading"] == "no target"
    assert math.isnan(found["js_distilled"])


def test_a_run_without_a_teacher_or_a_log_has_no_js():
    assert js_reading(steps([0.0, 0.0]), 0, 2)["js_reading"] == "no teacher"
    assert js_reading(pd.DataFrame(), 0, 2)["js_reading"] == ""
    assert js_reading(log([0.1], [0]), 1, 2)["js_reading"] == ""
