"""Which response tokens count: functions from one response to one boolean per token.

Masks are made from lengths and sampled ids, never from re-encoded text and never from the value of a padding token,
which many models share with their end-of-sequence token.
"""

import re
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from driftlab.errors import UsageError

Decode = Callable[[Sequence[int]], str]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def answer_mask(
    ids: Sequence[int], decode: Decode, answer_start: str, *, stop_ids: Collection[int] = (), in_thought: bool = False
) -> Tensor:
    r"""Mark the answer of a response; what is not marked is its chain of thought.

    With think tags the answer is what follows the first ``</think>``. Without them it starts at the token in which the
    first match of ``answer_start`` begins. A response with an open thought, or without any answer mark, is all
    thought. A stop token at the end always belongs to the answer.

    Parameters
    ----------
    ids : sequence of int
        The sampled response.
    decode : callable
        Ids to text, special tokens kept. Only prefixes of ``ids`` are decoded; nothing is encoded again.
    answer_start : str
        Regular expression.
    stop_ids : collection of int
        The stop tokens of the sampler.
    in_thought : bool
        Whether the prompt already opened the think tag.

    Returns
    -------
    Tensor of shape (len(ids),), bool
    """
    text = decode(ids)
    place = _answer_character(text, answer_start, in_thought)
    start = len(ids) if place is None else _token_at(ids, decode, place)
    mask = torch.arange(len(ids)) >= start
    if len(ids) and ids[-1] in stop_ids:
        mask[-1] = True
    return mask


def string_mask(ids: Sequence[int], decode: Decode, patterns: Sequence[str]) -> Tensor:
    """Mark every token that shares a character with a match of one of the regular expressions ``patterns``."""
    mask = torch.zeros(len(ids), dtype=torch.bool)
    text = decode(ids)
    for pattern in patterns:
        for match in re.finditer(pattern, text):
            if match.end() > match.start():
                first, last = (_token_at(ids, decode, place) for place in (match.start(), match.end() - 1))
                mask[first : last + 1] = True
    return mask


def random_mask(length: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Keep each of ``length`` tokens with probability ``ratio`` in [0, 1]."""
    if not 0 <= ratio <= 1:
        raise UsageError(f"mask_ratio: expected a number in [0, 1], found {ratio}.")
    return torch.rand(length, generator=generator) < ratio


def opens_thought(prompt: str) -> bool:
    """Tell whether a rendered prompt ends inside a think tag.

    Examples
    --------
    >>> opens_thought("<|assistant|><think>"), opens_thought("<think></think> Hello")
    (True, False)
    """
    return prompt.rfind(THINK_OPEN) > prompt.rfind(THINK_CLOSE)


def answer_text(text: str, answer_start: str) -> str:
    """Return the answer of a response text, all of it where no answer is found."""
    place = _answer_character(text, answer_start, False)
    return text if place is None else text[place:].strip()


def _answer_character(text: str, answer_start: str, in_thought: bool) -> int | None:
    closed = text.find(THINK_CLOSE)
    if closed >= 0:
        return closed + len(THINK_CLOSE)
    if in_thought or THINK_OPEN in text:
        return None
    match = re.search(answer_start, text)
    return match.start() if match else None


def _token_at(ids: Sequence[int], decode: Decode, place: int) -> int:
    """Return the index of the token in which character ``place`` lies, by bisection over decoded prefixes."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(decode(ids[: middle + 1])) > place:
            high = middle
        else:
            low = middle + 1
    return low
