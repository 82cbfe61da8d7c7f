r"""What a degenerate response looks like: facts of one text, and rates over many beside those of the base.

Texts are cut into words and single symbols by one rule that needs no tokenizer (:func:`words`), so that stored and
fresh responses, and models of different tokenizers, are measured alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftlab.responses.estimates import over_prompts, rate_over_prompts

MARKERS = {
    "boxed": r"\\boxed\b",
    "think": r"</?think>",
    "answer_tag": r"</?answer>",
    "code_fence": r"```",
    "action": r"Action:",
}
"""Format markers: what a response says to be read by a verifier."""

MAX_PERIOD = 32
"""Longest block, in words, whose repetition is looked for: a formula is a dozen words, a sentence about twenty."""
LOOP_REPEATS = 3
"""A block must stand three times in a row: twice happens in honest answers, an answer said again for instance."""
LOOP_COVER = 0.5
"""... and cover half of the response: a list of equal items inside an answer is no loop."""
BROKEN_REPEATS = 10
"""A loop of ten rounds is no answer even if it ends by itself: no format asks for one."""
FLOOD_QUANTILE = 0.99
FLOOD_LEAST = 3
"""A marker floods a response if it stands there more often than in 99 of 100 of the base's responses to that task,
and three times or more: so the base's own rate is 1 % at most, whatever its habits."""

_WORD = re.compile(r"\\?\w+|`{3}|</?\w+>|[^\w\s]")
_WIDE = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")  # scripts that write no spaces
_NGRAM = 4


@dataclass(frozen=True)
class Text:
    """Facts of one response: counts and shares, nothing relative to anybody else."""

    words: int
    repeated: float
    distinct_1: float
    distinct_2: float
    longest_run: int
    loop_cover: float
    loop_repeats: float
    markers: dict[str, int]
    truncated: bool

    @property
    def empty(self) -> bool:
        """Whether there is no word at all."""
        return self.words == 0

    @property
    def looping(self) -> bool:
        """Whether most of the response is one block repeated."""
        return self.loop_cover >= LOOP_COVER


def words(text: str) -> list[str]:
    r"""Cut a text into words, commands such as ``\boxed``, and single symbols.

    Examples
    --------
    >>> words(r"So \boxed{72}.")
    ['So', '\\boxed', '{', '72', '}', '.']
    """
    return _WORD.findall(_WIDE.sub(r" \1 ", text))


def read_text(text: str, truncated: bool = False) -> Text:
    r"""Take the facts of one response.

    ``repeated`` is the share of 4-grams that stood before (0 for fewer than two 4-grams), ``distinct_n`` the share of
    different n-grams (Li et al. 2016, arXiv 1510.03055; NaN without any), ``longest_run`` the longest run of one word,
    ``loop_cover`` the share of the response in its longest stretch of one block said three times or more, and
    ``loop_repeats`` how often it is said.

    Examples
    --------
    >>> found = read_text(r"\boxed{3}" * 5)
    >>> found.looping, found.markers["boxed"], found.loop_cover
    (True, 5, 1.0)
    >>> read_text(r"1 + 2 = 3 ; \boxed{3}").looping
    False
    """
    tokens = words(text)
    _, codes = np.unique(np.array(tokens, dtype=str), return_inverse=True)
    repeated = 1 - _distinct(tokens, _NGRAM)
    cover, repeats = _loop(codes)
    counts = {name: len(re.findall(pattern, text)) for name, pattern in MARKERS.items()}
    return Text(
        words=len(tokens),
        repeated=0.0 if np.isnan(repeated) else repeated,
        distinct_1=_distinct(tokens, 1),
        distinct_2=_distinct(tokens, 2),
        longest_run=_streak(codes[1:] == codes[:-1]) + 1 if tokens else 0,
        loop_cover=cover,
        loop_repeats=repeats,
        markers=counts,
        truncated=truncated,
    )


def flood_limits(base: Sequence[Text]) -> dict[str, float]:
    """Return for each marker how often it may stand in a response, judged by the base's responses to the same task."""
    limits = {}
    for name in MARKERS:
        seen = [text.markers[name] for text in base]
        usual = float(np.quantile(seen, FLOOD_QUANTILE, method="higher")) if seen else 0.0
        limits[name] = max(usual, FLOOD_LEAST - 1)
    return limits


def flooded(text: Text, limits: dict[str, float]) -> bool:
    """Whether a response repeats a format marker beyond what the base does."""
    return any(text.markers[name] > limit for name, limit in limits.items())


def degenerate(texts: Sequence[Text], limits: dict[str, float]) -> NDArray[np.bool_]:
    """Mark the responses that loop, are flooded with a marker, or are empty."""
    return np.array([text.looping or text.empty or flooded(text, limits) for text in texts], dtype=bool)


def broken(texts: Sequence[Text], bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the responses that are no answer at all.

    Those that are empty, that are degenerate and ran into the length limit, or that loop ten times or more. A box said
    three times before the response ends is a bad habit around an answer.
    """
    worse = [text.empty or text.truncated or (text.looping and text.loop_repeats >= BROKEN_REPEATS) for text in texts]
    both: NDArray[np.bool_] = bad & np.array(worse, dtype=bool)
    return both


def summarise(texts: Sequence[Text], prompts: Sequence[str], bad: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the means and rates of some responses, each rate with its 95 % interval.

    Parameters
    ----------
    texts : sequence of Text
        The responses, one or more.
    prompts : sequence of str
        Which prompt each answers.
    bad : array of shape (len(texts),), bool
        From :func:`degenerate`, each response against the limits of its task.
    """
    row: dict[str, Any] = {"n": len(texts), "prompts": len(set(prompts))}
    means = {
        "repeat_rate": [text.repeated for text in texts],
        "distinct_1": [text.distinct_1 for text in texts],
        "distinct_2": [text.distinct_2 for text in texts],
        "longest_run": [text.longest_run for text in texts],
        "loop_cover": [text.loop_cover for text in texts],
        "mean_words": [text.words for text in texts],
        **{f"{name}_count": [text.markers[name] for text in texts] for name in MARKERS},
    }
    for name, values in means.items():
        found = over_prompts(np.array(values, dtype=float), prompts)
        row |= {name: found.value, f"{name}_se": found.se}
    shares = {
        "artifact_rate": bad,
        "broken_rate": broken(texts, bad),
        "loop_rate": np.array([text.looping for text in texts]),
        "empty_rate": np.array([text.empty for text in texts]),
        "truncated": np.array([text.truncated for text in texts]),
        **{f"{name}_rate": np.array([text.markers[name] > 0 for text in texts]) for name in MARKERS},
    }
    for name, hits in shares.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = rate_over_prompts(hits, prompts)
    return row


def _distinct(tokens: Sequence[str], n: int) -> float:
    grams = list(zip(*(tokens[start:] for start in range(n)), strict=False))
    return len(set(grams)) / len(grams) if grams else float("nan")


def _loop(codes: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of the longest stretch with a period, said LOOP_REPEATS times or more, and how often it is."""
    best, repeats, size = 0, 0.0, len(codes)
    for period in range(1, min(MAX_PERIOD, size // LOOP_REPEATS) + 1):
        same = _streak(codes[period:] == codes[:-period])
        if same >= (LOOP_REPEATS - 1) * period and same + period > best:
            best, repeats = same + period, (same + period) / period
    return (best / size if size else 0.0), repeats


def _streak(flags: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
