"""Foreign files of responses, as their tools write them, come to one normal form."""

import json

import pandas as pd
import pytest

from driftlab.errors import DataError
from driftlab.responses.readers import AMBIGUOUS, UNREADABLE, read_responses


def lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def lm_eval(doc, text, kept, name="strict-match", score=1.0):
    """One line as lm-evaluation-harness 0.4 writes it with --log_samples."""
    return {
        "doc_id": doc,
        "doc": {"question": f"Q{doc}", "answer": "7"},
        "target": "7",
        "arguments": {"gen_args_0": {"arg_0": f"Question: Q{doc}\nAnswer:", "arg_1": {"until": ["\n\n"]}}},
        "resps": [[text]],
        "filtered_resps": [kept],
        "filter": name,
        "metrics": ["exact_match"],
        "doc_hash": "a",
        "prompt_hash": "b",
        "target_hash": "c",
        "exact_match": score,
    }


def verl(prompt, text, score=1.0, step=10):
    return {"input": f"user\n{prompt}\nassistant\n", "output": text, "gts": "7", "score": score, "step": step}


def test_samples_of_lm_eval(tmp_path):
    rows = [
        lm_eval(doc, f"so it is {doc}", kept, name, score)
        for name, kept, score in (("strict-match", "[invalid]", 0.0), ("flexible-extract", "7", 1.0))
        for doc in (0, 1, 10)
    ]
    found = read_responses(lines(tmp_path / "samples_gsm8k_cot_2025-01-02T03-04-05.678901.jsonl", rows))
    assert (found.form, found.keyed) == ("lm-eval", "id")
    assert found.table["key"].tolist() == ["gsm8k_cot/0", "gsm8k_cot/1", "gsm8k_cot/10"]
    assert found.table["task"].unique().tolist() == ["gsm8k_cot"]
    assert found.table["response"].tolist() == ["so it is 0", "so it is 1", "so it is 10"]  # not what a filter kept
    assert found.table["prompt"][0] == "Question: Q0\nAnswer:"
    assert found.facts == {"rows": 6, "repeats": 3, "ambiguous": 0, "unreadable": 0, "empty": 0, "truncated": 0}


def test_older_samples_and_chats_of_lm_eval(tmp_path):
    old = lm_eval(0, "x", "x") | {"arguments": [["Question: Q0", {"until": []}]]}
    chat = lm_eval(1, "y", "y") | {"arguments": [[[{"role": "user", "content": "Q1"}], {}]]}
    table = read_responses(lines(tmp_path / "samples_t.jsonl", [old, chat])).table
    assert table["prompt"][0] == "Question: Q0"
    assert json.loads(table["prompt"][1]) == [{"content": "Q1", "role": "user"}]


def test_log_likelihoods_and_repeated_samples_are_no_text(tmp_path):
    choice = lm_eval(0, "", "") | {"resps": [[[-3.0, False]], [[-4.0, False]]]}
    twice = lm_eval(1, "", "") | {"resps": [["a", "b"]]}
    found = read_responses(lines(tmp_path / "samples_t.jsonl", [choice, twice, lm_eval(2, "good", "good")]))
    assert found.table["problem"].tolist() == [UNREADABLE, UNREADABLE, ""]
    assert found.facts["unreadable"] == 2


def test_dumps_of_verl_are_keyed_by_prompt(tmp_path):
    rows = [verl("one", "a"), verl("two", "", 0.5)]
    found = read_responses(lines(tmp_path / "10.jsonl", rows))
    assert (found.form, found.keyed) == ("verl", "prompt")
    assert found.table["key"].tolist() == ["user\none\nassistant", "user\ntwo\nassistant"]
    assert found.table["reward"].tolist() == [1.0, 0.5]
    assert found.facts["empty"] == 1


def test_several_rollouts_of_a_prompt_without_ids_are_refused(tmp_path):
    file = lines(tmp_path / "10.jsonl", [verl("one", "a"), verl("one", "b"), verl("two", "c")])
    with pytest.raises(DataError, match=r"no ids, and 2 of 3 responses share their prompt.*Add a column 'id'"):
        read_responses(file)


def test_plain_records_keep_their_task_and_whole_numbers(tmp_path):
    frame = pd.DataFrame(
        {
            "id": [1.0, 2.0],
            "task": ["math", "code"],
            "prompt": ["p", "q"],
            "completion": ["x", "y"],
            "truncated": [True, False],
            "tokens": [[4, 5, 6], [7]],
        }
    )
    frame.to_parquet(tmp_path / "r.parquet")
    found = read_responses(tmp_path / "r.parquet")
    assert found.table["key"].tolist() == ["math/1", "code/2"]
    assert found.table["tokens"].tolist() == [3, 1]
    assert found.facts["truncated"] == 1


def test_the_column_can_be_named_and_a_chat_gives_the_answer(tmp_path):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file = lines(tmp_path / "r.jsonl", [{"id": "a", "response": "other", "said": chat}, {"id": "b", "said": "plain"}])
    assert read_responses(file, "said").table["response"].tolist() == ["hello", "plain"]
    with pytest.raises(DataError, match=r"expected column 'nope', found id, response, said.*NAME=PATH::COLUMN"):
        read_responses(file, "nope")


def test_a_response_that_is_json_stays_as_it_is(tmp_path):
    call = '[{"role": "tool", "content": "x"}]'
    assert read_responses(lines(tmp_path / "r.jsonl", [{"id": 1, "response": call}])).table["response"][0] == call


def test_the_same_row_twice_counts_and_another_answer_is_set_aside(tmp_path):
    rows = [("a", "x"), ("a", "x"), ("b", "y"), ("b", "z"), ("c", None)]
    found = read_responses(lines(tmp_path / "r.jsonl", [{"id": name, "response": text} for name, text in rows]))
    assert found.table["problem"].tolist() == ["", AMBIGUOUS, ""]
    assert found.facts == {"rows": 5, "repeats": 1, "ambiguous": 2, "unreadable": 0, "empty": 1, "truncated": 0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "answer": "x"}], r"expected a column of responses \(response, .*found id, answer"),
        ([{"id": 1, "response": "x"}, {"response": "y"}], "expected an id in every row or in none, found 1 of 2"),
        ([{"response": "x"}, {"response": "y"}], "neither ids nor prompts, and rows are never paired by their order"),
    ],
)
def test_what_cannot_be_paired_is_refused(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_responses(lines(tmp_path / "r.jsonl", rows))
