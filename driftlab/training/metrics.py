"""The numbers of one step that come from the responses themselves: rewards, lengths, repetition, demonstrations."""

from collections.abc import Sequence
from typing import Any

from driftlab.training.experience import Sample


def distinct_n(ids: Sequence[int], n: int = 4) -> float | None:
    """Return the share of different n-grams among all, in (0, 1]; None for a response shorter than n.

    Examples
    --------
    >>> distinct_n([1, 2, 1, 2, 1, 2], 2)
    0.4
    """
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def longest_run(ids: Sequence[int]) -> int:
    """Return the length of the longest run of one token.

    Examples
    --------
    >>> longest_run([5, 7, 7, 7, 5])
    3
    """
    best = run = 0
    for place, token in enumerate(ids):
        run = run + 1 if place and token == ids[place - 1] else 1
        best = max(best, run)
    return best


def summarise(samples: Sequence[Sample], group: int) -> dict[str, Any]:
    """Return the step's numbers that need no model, over all samples of the batch in order.

    A name stands for what TRL logs under it. ``repeat_rate`` is the mean share of repeated 4-grams.
    """
    scores = [sample.verdict.score for sample in samples]
    known = [score for score in scores if score is not None]
    groups = [
        [score for score in scores[start : start + group] if score is not None]
        for start in range(0, len(scores), group)
    ]
    spreads = [_deviation(values) for values in groups if len(values) > 1]
    lengths = [len(sample.response.ids) for sample in samples]
    distinct = [value for sample in samples if (value := distinct_n(sample.response.ids)) is not None]
    distilled = sum(int(sample.distil.sum()) for sample in samples)
    return {
        "reward": _mean(known),
        "reward_std": _mean(spreads),
        "success_rate": _mean([float(sample.verdict.ok) for sample in samples if sample.verdict.score is not None]),
        "unknown_reward": len(scores) - len(known),
        "frac_reward_zero_std": _mean([float(spread == 0) for spread in spreads]),
        "completions/mean_length": _mean(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": _mean([float(sample.response.truncated) for sample in samples]),
        "repeat_rate": 1 - _mean(distinct) if distinct else None,  # type: ignore[operator]
        "longest_run": _mean([longest_run(sample.response.ids) for sample in samples]),
        "demo_fraction": _mean([float(sample.shown) for sample in samples]),
        "lone_success": sum(sample.lone_success for sample in samples),
        "empty_target": int(distilled == 0),
        "distilled_token_fraction": distilled / sum(lengths),
        "tokens": sum(lengths),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _deviation(values: Sequence[float]) -> float:
    if min(values) == max(values):
        return 0.0
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
