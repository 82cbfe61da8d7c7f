"""Tasks from files and from reasoning-gym."""

import json
import random

import pytest

from driftlab.errors import DataError, UsageError
from driftlab.training.sources import FileTask, GymTask, open_task


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"prompt": f"{n} + 1?", "answer": n + 1, "kind": "numeric"} for n in range(10)]


def test_file_task_keeps_its_evaluation_rows_out_of_training(tmp_path):
    task = open_task(f"sums={write(tmp_path / 'sums.jsonl', ROWS)}")
    assert task.name == "sums"
    drawn = {question.prompt for question in task.sample(40, random.Random(0))}
    held = {question.prompt for question in task.evaluation(99, random.Random(0))}
    assert (len(drawn), len(held)) == (8, 2)
    assert not drawn & held
    first = task.sample(8, random.Random(1))
    assert len({question.id for question in first}) == 8  # no repetition as far as the rows go


def test_rows_carry_system_feedback_kind_and_gold(tmp_path):
    rows = [
        {"prompt": "p", "answer": "B", "kind": "choice", "system": "s", "feedback": "think", "gold": "It is B"},
        {"prompt": "q", "answer": "1"},
    ]
    task = FileTask("mixed", write(tmp_path / "mixed.jsonl", rows), "numeric")
    (question,) = task.sample(1, random.Random(0))
    assert (question.system, question.gold) == ("s", "It is B")
    assert task.verify(question, "<answer>b</answer>").ok
    assert task.verify(question, "A").feedback == "think"
    (other,) = task.evaluation(1, random.Random(0))
    assert task.verify(other, "so 1").ok


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([{"prompt": "p", "answer": "1"}] * 2, UsageError, "line 1 of .*: expected a verifier, found none"),
        ([{"prompt": "p", "answer": "1", "kind": "magic"}] * 2, UsageError, "'magic'"),
        ([{"prompt": "p", "answer": "1", "kind": "python"}] * 2, UsageError, "consent"),
        ([{"answer": "1", "kind": "exact"}] * 2, DataError, "expected a text prompt, found None"),
        ([{"prompt": "p", "kind": "exact"}] * 2, DataError, "expected a text answer"),
        ([{"prompt": "p", "answer": "1", "kind": "exact"}], DataError, "two rows or more, found 1"),
        (["text"], DataError, "line 1: expected one JSON object a line"),
    ],
)
def test_messages(tmp_path, rows, kind, words):
    with pytest.raises(kind, match=words):
        FileTask("t", write(tmp_path / "t.jsonl", rows))


@pytest.mark.parametrize("text", ["math", "=x.jsonl", "math=", "rg:no_such_set"])
def test_descriptions_that_mean_nothing(text):
    with pytest.raises(UsageError, match="Task"):
        open_task(text)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="expected a readable UTF-8 file"):
        open_task(f"a={tmp_path / 'none.jsonl'}")


def test_reasoning_gym_task():
    pytest.importorskip("reasoning_gym")
    task = GymTask("chain_sum")
    questions = task.sample(5, random.Random(0))
    assert questions == task.sample(5, random.Random(0))
    assert {q.prompt for q in questions}.isdisjoint(q.prompt for q in task.evaluation(5, random.Random(0)))
    for question in questions:
        assert task.verify(question, f"I add. <answer>{question.answer}</answer>").ok
        wrong = task.verify(question, "<answer>none</answer>")
        assert not wrong.ok
        assert wrong.score < 1


def test_reasoning_gym_takes_options_and_another_verifier():
    pytest.importorskip("reasoning_gym")
    easy = "rg:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
    task = open_task(f"{easy}::numeric")
    question = task.sample(1, random.Random(0))[0]
    assert task.name == "chain_sum"
    assert len(question.prompt.split("=")[0].split()[-3:]) == 3
    assert question.system == ""
    assert question.gold == question.answer
    assert task.verify(question, f"I think it is {question.answer}.").ok
    assert not task.verify(question, "I think it is 12345.").ok
    tagged = open_task(easy).sample(1, random.Random(0))[0]
    assert tagged.gold == f"<answer>{tagged.answer}</answer>"
    assert "<answer>" in tagged.system


@pytest.mark.parametrize(
    ("text", "words"),
    [("rg:chain_sum?terms", "OPTION=VALUE"), ("rg:chain_sum?colour=3", "does not take"), ("rg:gcd::best", "Verifier")],
)
def test_wrong_options_of_reasoning_gym_are_named(text, words):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(UsageError, match=words):
        open_task(text)
