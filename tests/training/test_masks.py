"""Masks against a character-by-character oracle and the cases that go wrong in practice."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import UsageError
from driftlab.training import masks
from driftlab.training.tasks import ANSWER_START

# A toy vocabulary whose tokens straddle every boundary.
PIECES = ["a", "b c", " so\n\\bo", "xed{", "}", "<think>", "</thi", "nk>", " x\\boxed", "<answer>", " 7", "<eos>"]
EOS = 11


def decode(ids):
    return "".join(PIECES[token] for token in ids)


def oracle(ids, in_thought=False):
    """Give each character to its token, find the answer by plain string search, then look up its token."""
    owner = [place for place, token in enumerate(ids) for _ in PIECES[token]]
    text = decode(ids)
    if "</think>" in text:
        start = text.index("</think>") + len("</think>")
    elif in_thought or "<think>" in text:
        start = len(text)
    else:
        places = [text.find(mark) for mark in (r"\boxed", "<answer>", "Action:", "```") if mark in text]
        start = min(places, default=len(text))
    first = owner[start] if start < len(text) else len(ids)
    mask = [place >= first for place in range(len(ids))]
    if ids and ids[-1] == EOS:
        mask[-1] = True
    return mask


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 10), max_size=9), st.booleans(), st.booleans())
def test_answer_mask_equals_the_oracle(ids, stopped, in_thought):
    ids = ids + [EOS] * stopped
    found = masks.answer_mask(ids, decode, ANSWER_START, stop_ids={EOS}, in_thought=in_thought)
    assert found.tolist() == oracle(ids, in_thought)


def test_the_token_in_which_the_answer_begins_belongs_to_it():
    ids = [0, 2, 3, 10, 4, EOS]
    assert masks.answer_mask(ids, decode, ANSWER_START, stop_ids={EOS}).tolist() == [False] + [True] * 5


def test_first_closing_tag_ends_the_thought():
    ids = [5, 0, 6, 7, 1, 6, 7, 10]
    assert masks.answer_mask(ids, decode, ANSWER_START).tolist() == [False] * 4 + [True] * 4


def test_thought_opened_by_the_prompt():
    assert masks.answer_mask([0, 8, 4], decode, ANSWER_START, in_thought=True).tolist() == [False] * 3


def test_end_token_is_part_of_the_answer_even_without_an_answer():
    assert masks.answer_mask([0, 1, EOS], decode, ANSWER_START, stop_ids={EOS}).tolist() == [False, False, True]


def test_string_mask_takes_every_token_that_touches_a_match():
    assert masks.string_mask([0, 2, 3, 10, 4], decode, [r"\\boxed"]).tolist() == [False, True, True, False, False]
    assert not masks.string_mask([0, 1], decode, ["z*"]).any()


def test_random_mask_rate_and_message():
    generator = torch.Generator().manual_seed(0)
    assert masks.random_mask(20_000, 0.3, generator).float().mean().item() == pytest.approx(0.3, abs=0.015)
    assert masks.random_mask(50, 1.0, generator).all()
    assert not masks.random_mask(50, 0.0, generator).any()
    with pytest.raises(UsageError, match="mask_ratio"):
        masks.random_mask(5, 1.2, generator)


def test_answer_text():
    assert masks.answer_text(r"2 + 2 = 4 so \boxed{4}", ANSWER_START) == r"\boxed{4}"
    assert masks.answer_text("<think> hm </think> Four.", ANSWER_START) == "Four."
    assert masks.answer_text("Four.", ANSWER_START) == "Four."
