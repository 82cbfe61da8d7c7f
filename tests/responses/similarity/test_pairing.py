"""Pairs are made by id or by exact prompt, and whatever is not a pair says why."""

import pytest

from driftlab.errors import DataError
from driftlab.responses.pairing import pair, refuse_none
from driftlab.responses.readers import normal_form


def without_ids(responses):
    rows = [{"id": "", "task": "", "prompt": p, "response": r, "reward": None, "truncated": None, "tokens": None}
            for p, r in responses.items()]  # fmt: skip
    return normal_form(rows, "noids", "verl")


def reasons(pairs):
    return dict(zip(pairs["key"], pairs["reason"], strict=True))


def test_the_order_of_rows_does_not_matter(answered):
    one = pair(answered({"a": "1", "b": "2", "c": "3"}), answered({"c": "30", "a": "10", "b": "20"}))
    assert one["key"].tolist() == ["a", "b", "c"]
    assert one["response_new"].tolist() == ["10", "20", "30"]
    assert (one["reason"] == "").all()


def test_every_row_of_either_side_is_there_with_its_reason(answered):
    reference = answered({"both": "1", "only ref": "1", "empty ref": " ", "empty new": "1", "asked": "1"})
    new = answered(
        {"only new": "2", "empty new": "\n", "empty ref": "2", "both": "2", "asked": "2"},
        prompt={
            "asked": "something else",
            "both": " ask both\n",
            "only new": "x",
            "empty new": "ask empty new",
            "empty ref": "ask empty ref",
        },
    )
    assert reasons(pair(reference, new)) == {
        "both": "",
        "only ref": "no new response",
        "empty ref": "empty reference response",
        "empty new": "empty new response",
        "asked": "the prompts differ",
        "only new": "no reference response",
    }


def test_several_responses_under_one_id_name_their_side(answered):
    row = {"task": "", "prompt": "ask a", "reward": None, "truncated": None, "tokens": None}
    twice = normal_form(
        [row | {"id": "a", "response": "x"}, row | {"id": "a", "response": "y"},
         row | {"id": "b", "prompt": "ask b", "response": "z"}], "twice", "records"
    )  # fmt: skip
    plain = answered({"a": "1", "b": "2"})
    assert reasons(pair(plain, twice)) == {"a": "several responses with this id (new)", "b": ""}
    assert reasons(pair(twice, plain)) == {"a": "several responses with this id (reference)", "b": ""}


def test_without_ids_on_one_side_the_prompt_joins(answered):
    pairs = pair(answered({"a": "1", "b": "2"}), without_ids({"ask b": "20", " ask a": "10"}))
    assert pairs["response_new"].tolist() == ["10", "20"]
    assert pairs["id"].tolist() == ["a", "b"]
    same = answered({"a": "1", "b": "2"}, prompt={"a": "same", "b": "same"})
    with pytest.raises(DataError, match="noids has no ids, and 2 of 2 prompts here are not unique"):
        pair(same, without_ids({"same": "1"}))


def test_other_questions_under_the_same_ids_are_refused_with_the_cause(answered):
    other = answered({"a": "1"}, source="seed1", prompt={"a": "another question"})
    refuse_none(answered({"a": "1"}), answered({"a": "1"}))
    with pytest.raises(DataError, match=r"seed1 and file: expected common prompts.*1 the prompts differ.*one seed"):
        refuse_none(answered({"a": "1"}), other)
    with pytest.raises(DataError, match=r"1 no new response, 1 no reference response.*answer the same prompts"):
        refuse_none(answered({"a": "1"}), answered({"b": "1"}))
