"""Pairs with planted angles give the planted cosines; what has no cosine says why."""

import math

import numpy as np
import pytest

from driftlab.domains.encoder import open_encoder
from driftlab.errors import NumericalError
from driftlab.responses.similarity import NOT_FINITE, SCHEMA, compare, measure_sequences, seed_noise
from driftlab.responses.sources import Answers, ResponseSequence
from driftlab.results import ResultsDir


def by_id(rows, column):
    return dict(zip(rows["id"], rows[column], strict=True))


def cos(degrees):
    return math.cos(math.radians(degrees))


def test_planted_angles_come_back(answered, angles):
    rows = compare(answered({"a": "0", "b": "10", "c": "90"}), answered({"c": "0", "b": "10", "a": "25"}), angles)
    assert by_id(rows, "similarity") == pytest.approx({"a": cos(25), "b": 1.0, "c": cos(90)}, abs=1e-7)
    assert by_id(rows, "identical") == {"a": False, "b": True, "c": False}
    assert rows["same_text"].tolist() == [1.0, 1.0, 1.0]
    assert rows["other_seed"].isna().all()
    assert (rows["status"] == "ok").all()


def test_random_pairs_are_of_other_prompts_of_the_same_task(answered, angles):
    ids = [f"{task}/{i}" for task in ("m", "s") for i in range(5)]
    tasks = {name: name[0] for name in ids}
    # two answers of a task lie 0 or 60 degrees apart, two of different tasks 7, 53 or 67
    angle = {name: ("0" if name[0] == "m" else "7") if int(name[2]) % 2 else ("60" if name[0] == "m" else "67")
             for name in ids}  # fmt: skip
    rows = compare(answered(angle, task=tasks), answered(angle, task=tasks), angles)
    assert set(np.round(rows["random"].astype(float), 6)) <= {1.0, 0.5}
    assert (rows["random"].astype(float) < 0.9).any()  # with themselves all would be 1
    again = compare(answered(dict(reversed(angle.items())), task=tasks), answered(angle, task=tasks), angles)
    assert by_id(again, "random") == by_id(rows, "random")


def test_one_prompt_of_a_task_has_no_random_partner(answered, angles):
    rows = compare(answered({"a": "0"}), answered({"a": "5"}), angles)
    assert rows["random"].isna().all()


@pytest.mark.parametrize("broken", ["bad", "nan"])
def test_a_text_without_a_vector_is_named_and_the_others_are_measured(answered, angles, broken):
    new = answered({"a": "5", "b": "6", "c": broken, "d": "7", "e": "8"})
    rows = compare(answered(dict.fromkeys("abcde", "0")), new, angles)
    assert by_id(rows, "status") == {"a": "ok", "b": "ok", "c": "failed", "d": "ok", "e": "ok"}
    assert by_id(rows, "reason")["c"] == NOT_FINITE
    assert by_id(rows, "similarity")["d"] == pytest.approx(cos(7), abs=1e-7)
    assert rows["random"].notna().sum() == 4


def test_an_encoder_that_fails_on_everything_stops(answered, angles):
    with pytest.raises(NumericalError, match=r"none of the vectors of 1 responses is finite. Use --dtype float32"):
        compare(answered({"a": "0"}), answered({"a": "bad"}), angles)


def test_empty_responses_are_counted_and_never_encoded(answered, angles):
    rows = compare(answered({"a": "0", "b": " "}), answered({"a": "0", "b": "1"}), angles)  # float(" ") would raise
    assert by_id(rows, "status") == {"a": "ok", "b": "skipped"}
    assert math.isnan(by_id(rows, "similarity")["b"])


def test_lengths_the_window_and_what_it_hides(answered, angles):
    rows = compare(
        answered({"a": "30.0", "b": "1.25"}), answered({"a": "30", "b": "01.25"}, truncated={"b": True}), angles
    )
    assert by_id(rows, "cut_new") == {"a": False, "b": True}
    assert by_id(rows, "cut_ref") == {"a": False, "b": False}
    assert by_id(rows, "indistinct") == {"a": True, "b": True}
    assert by_id(rows, "length_new") == {"a": 2, "b": 5}
    assert by_id(rows, "truncated_new")["b"]


def test_seed_noise_needs_the_same_question(answered, angles):
    base = answered({"a": "0", "b": "0"})
    other = answered({"a": "30", "b": "40"}, prompt={"a": "ask a", "b": "another question"})
    assert seed_noise(base, other, angles) == pytest.approx({"a": cos(30)}, abs=1e-7)
    assert seed_noise(base, answered({"z": "0"}), angles) == {}
    assert seed_noise(base, None, angles) == {}


@pytest.fixture
def sequence(answered):
    steps = [Answers(f"math@{n}", i, answered({"a": str(n), "b": str(2 * n)})) for i, n in enumerate((10, 30), 1)]
    return ResponseSequence("grpo", "grpo", 3, Answers("base", 0, answered({"a": "0", "b": "0"})), tuple(steps))


def store(tmp_path, name="out", resume=False):
    return ResultsDir.create(tmp_path / name, command="similarity", config={}, tables=("similarity",), resume=resume)


def test_a_sequence_against_its_base_and_against_the_step_before(tmp_path, sequence, angles):
    table = measure_sequences([sequence], angles, store(tmp_path))
    assert list(table.columns) == SCHEMA.names
    assert table["similarity"].tolist() == pytest.approx([cos(10), cos(20), cos(30), cos(60)], abs=1e-7)
    assert table[["stage", "step", "order", "seed"]].drop_duplicates().to_numpy().tolist() == [
        ["math", 10, 1, 3],
        ["math", 30, 2, 3],
    ]
    previous = measure_sequences([sequence], angles, store(tmp_path, "previous"), previous=True)
    assert previous["reference"].tolist() == ["base", "base", "math@10", "math@10"]
    assert previous["similarity"].tolist() == pytest.approx([cos(10), cos(20), cos(20), cos(40)], abs=1e-7)


def test_a_resumed_run_makes_only_what_is_missing(tmp_path, sequence, angles):
    whole = measure_sequences([sequence], angles, store(tmp_path))
    part = next((tmp_path / "out" / "similarity").glob("part-*math_30*"))
    part.unlink()
    before = angles.calls
    again = measure_sequences([sequence], angles, store(tmp_path, resume=True))
    assert again.equals(whole)
    assert angles.calls - before == 3  # the reference, the same texts again, the one step
    assert part.is_file()


def test_the_cache_gives_the_same_numbers(tmp_path, answered):
    encoder = open_encoder()
    reference, new = answered({"a": "one two", "b": "three"}), answered({"a": "one too", "b": "four"})
    first = compare(reference, new, encoder, cache=tmp_path)
    assert compare(reference, new, encoder, cache=tmp_path).equals(first)
    assert compare(reference, new, encoder).equals(first)
    assert 0 < by_id(first, "similarity")["a"] < 1
