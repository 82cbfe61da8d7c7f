"""Facts of texts by hand and by a naive twin; rates; amplified phrases."""

import math
import random

import numpy as np
import pytest

from driftlab.responses.artifacts import (
    LOOP_REPEATS,
    MARKERS,
    MAX_PERIOD,
    broken,
    degenerate,
    flood_limits,
    read_text,
    summarise,
    words,
)
from driftlab.responses.ngrams import PRIOR, amplified


def naive_loop(tokens):
    """Try every start, period and length."""
    best = 0
    for start in range(len(tokens)):
        for period in range(1, min(MAX_PERIOD, len(tokens) // LOOP_REPEATS) + 1):
            length = period
            while start + length < len(tokens) and tokens[start + length] == tokens[start + length - period]:
                length += 1
            if length >= LOOP_REPEATS * period:
                best = max(best, length)
    return best / len(tokens) if tokens else 0.0


def test_loops_against_every_start_and_period():
    rng = random.Random(0)
    for _ in range(300):
        block = [rng.choice("abc") for _ in range(rng.randint(1, 4))]
        tokens = [rng.choice("abc") for _ in range(rng.randint(0, 8))] + block * rng.randint(0, 6)
        assert read_text(" ".join(tokens)).loop_cover == pytest.approx(naive_loop(tokens)), tokens


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        (r"\boxed { 7 2 } " * 6, True),
        (r"6 + 7 = 1 3 ; \boxed { 7 2 }", False),
        ("``` print ( x ) ``` " * 3, True),
        (r"6 + 7 = 1 3 ; 9 + 2 + 1 = 1 2 ; \boxed { 7 2 } \boxed { 7 2 }", False),  # said twice
        ("the answer is a list ``` [ 3 3 3 3 ] ``` as asked for", False),  # equal items inside an answer
        ("no no no no no no", True),
        ("我是我是我是我是", True),
        ("", False),
    ],
)
def test_what_is_a_loop(text, looping):
    assert read_text(text).looping is looping


def test_facts_of_a_text():
    found = read_text(r"<think> a b a b </think> \boxed{3} ```x``` Action: go <answer>b</answer>", True)
    assert found.markers == {"boxed": 1, "think": 2, "answer_tag": 2, "code_fence": 2, "action": 1}
    assert found.truncated
    assert read_text("a b a b").distinct_1 == 0.5
    assert read_text("a b a b").distinct_2 == pytest.approx(2 / 3)
    assert read_text("x x x y").longest_run == 3
    assert read_text("a b c d a b c d").repeated == pytest.approx(1 / 5)
    empty = read_text("  ")
    assert (empty.words, empty.repeated, empty.longest_run) == (0, 0.0, 0)
    assert math.isnan(empty.distinct_1)
    assert words("x2 = π/2;") == ["x2", "=", "π", "/", "2", ";"]


def test_a_marker_floods_relative_to_the_base():
    plain, fences = read_text(r"\boxed{1}"), read_text("``` a ``` then ``` b ```")
    flood = read_text(r"\boxed{1} or \boxed{2} or \boxed{3}")
    assert flood_limits([plain] * 50)["boxed"] == 2
    assert degenerate([plain, flood, fences], flood_limits([plain] * 50)).tolist() == [False, True, True]
    assert degenerate([plain, flood, fences], flood_limits([flood, fences] * 50)).tolist() == [False, False, False]
    assert degenerate([read_text("")], flood_limits([])).tolist() == [True]


def test_what_is_no_answer_at_all():
    texts = [read_text("so", True), read_text(r"\boxed{1} " * 4), read_text(r"\boxed{1} " * 4, True), read_text("")]
    texts += [read_text(r"\boxed{1} " * 10), read_text(r"\boxed{1} " * 9)]
    bad = degenerate(texts, flood_limits([]))
    assert bad.tolist() == [False, True, True, True, True, True]
    assert broken(texts, bad).tolist() == [False, False, True, True, True, False]
    assert texts[4].loop_repeats == 10


def test_rates_and_means_of_some_texts():
    texts = [read_text(r"\boxed{1}", True), read_text("so"), read_text("so"), read_text("x x x x x x")]
    found = summarise(texts, ["a", "b", "c", "d"], degenerate(texts, flood_limits([])))
    assert (found["n"], found["prompts"]) == (4, 4)
    assert (found["artifact_rate"], found["truncated"], found["boxed_rate"]) == (0.25, 0.25, 0.25)
    assert found["mean_words"] == (4 + 1 + 1 + 6) / 4
    assert found["mean_words_se"] == pytest.approx(np.std([4, 1, 1, 6], ddof=1) / 2)
    for name in ("artifact_rate", *(f"{marker}_rate" for marker in MARKERS)):
        assert 0 <= found[f"{name}_low"] <= found[name] <= found[f"{name}_high"] <= 1


def test_log_odds_by_hand():
    new, base = ["a b"] * 30 + ["a c"] * 10, ["a b"] * 10 + ["a c"] * 30
    found = {row["ngram"]: row for row in amplified(new, base, top=5) if row["size"] == 1}
    assert list(found) == ["b"]  # "a" did not change, "c" became rarer
    prior = PRIOR * 40 / 160
    odds = [(y + prior) / (80 + PRIOR - y - prior) for y in (30, 10)]
    assert found["b"]["log_odds"] == pytest.approx(math.log(odds[0] / odds[1]))
    assert found["b"]["log_odds_se"] == pytest.approx(math.sqrt(1 / (30 + prior) + 1 / (10 + prior)))
    assert (found["b"]["share"], found["b"]["share_base"]) == (0.75, 0.25)


def test_nothing_is_amplified_where_nothing_changed():
    texts = ["a b c d e", "f g h i"] * 5
    assert amplified(texts, texts) == []
    assert amplified(["", ""], texts) == []
