"""Uncertainty of scores and of differences of scores: paired over questions where they are the same, else not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from driftlab.contrasts import interval

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution: all intervals are 95 % intervals."""
_DIGITS = 9


@dataclass(frozen=True)
class Cell:
    """One score with what is known of its uncertainty.

    Attributes
    ----------
    score : float
        Mean over the questions, in the unit of ``top``.
    stderr : float or None
        Standard error as it was reported.
    n : int or None
        Number of questions.
    rewards : mapping of str to float, or None
        Reward of each question by its id, in the unit of ``top``.
    top : float or None
        The best possible score, 100 for percents; None where there is none (a perplexity), and then ``n`` alone says
        nothing about the uncertainty.
    """

    score: float
    stderr: float | None = None
    n: int | None = None
    rewards: Mapping[str, float] | None = None
    top: float | None = 100.0


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Attributes
    ----------
    value : float
    low, high : float
        NaN where the scores come without any uncertainty.
    variance : float
        Squared standard error behind the interval; NaN likewise.
    n_paired : int
        Questions that all scores of the combination share; 0 if it is not paired.
    source : str
        ``samples`` (paired questions), ``stderr``, ``counts`` (binomial), a mixture such as ``counts+stderr``,
        ``exact`` (a score less itself), or ``none``.
    """

    value: float
    low: float
    high: float
    variance: float
    n_paired: int = 0
    source: str = "none"


Terms = Sequence[tuple[float, Cell]]


def combine(terms: Terms, value: float | None = None) -> Estimate:
    r"""Return a weighted sum of scores, :math:`\sum_i w_i s_i`, with its interval.

    Where the scores come with the rewards of shared questions the interval is paired: the sum is taken question by
    question, one pseudo-question at the largest and one at the smallest possible value are added, and the normal
    interval of that sample is given. For a difference of two success rates this is the Bonett-Price interval, for a
    single rate the Agresti-Coull interval with two added questions. Otherwise the scores count as independent:
    variances are those of the reported standard errors or, where there is only a number of questions, of the rates
    with one success and one failure added (Agresti and Caffo). Adding pseudo-questions keeps the interval of 128
    right answers out of 128 from having no width.

    Parameters
    ----------
    terms : sequence of (float, Cell)
        Weights and scores. A score less itself is 0 without any uncertainty.
    value : float, optional
        The number itself where the sum is only its linearisation (a ratio).

    Returns
    -------
    Estimate
        In the unit of the scores times that of the weights.

    References
    ----------
    D. Bonett and R. Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data", J. Educ. Behav. Stat. 37(4), 2012.

    A. Agresti and B. Caffo, "Simple and effective confidence intervals for proportions and differences of
    proportions result from adding two successes and two failures", Am. Stat. 54(4), 2000.

    Examples
    --------
    >>> change = combine([(1.0, Cell(60.0, n=100)), (-1.0, Cell(50.0, n=100))])
    >>> round(change.low, 2), change.value, round(change.high, 2), change.source
    (-3.79, 10.0, 23.39, 'counts')
    """
    terms = _merged(terms)
    if not terms:
        return Estimate(0.0, 0.0, 0.0, 0.0, source="exact")
    plain = sum(weight * cell.score for weight, cell in terms)
    shown = plain if value is None else value
    shared = _shared(terms)
    if len(shared) > 1 and all(cell.top for _, cell in terms):
        centre, variance = _paired(terms, shared)
        # Both ends follow the estimate if some questions were not shared: they widen, never move, the interval.
        centre += plain - _mean_over(terms, shared)
        source = "samples"
    else:
        parts = [_alone(cell) for _, cell in terms]
        variance = sum(weight**2 * part[1] for (weight, _), part in zip(terms, parts, strict=True))
        centre = sum(weight * part[0] for (weight, _), part in zip(terms, parts, strict=True))
        source = "+".join(sorted({part[2] for part in parts})) if not math.isnan(variance) else "none"
        shared = []
    half, shift = Z * math.sqrt(variance), shown - plain
    return Estimate(shown, centre + shift - half, centre + shift + half, variance, len(shared), source)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates over different tasks, whose questions are independent.

    Examples
    --------
    >>> found = mean_of([Estimate(1.0, 0.0, 2.0, 0.25), Estimate(3.0, 2.0, 4.0, 0.25)])
    >>> found.value, round(found.high - found.value, 3)
    (2.0, 0.693)
    """
    value = sum(one.value for one in estimates) / len(estimates)
    variance = sum(one.variance for one in estimates) / len(estimates) ** 2
    half = Z * math.sqrt(variance)
    sources = {part for one in estimates for part in one.source.split("+")}
    source = "+".join(sorted(sources - {"exact"} or sources))
    return Estimate(value, value - half, value + half, variance, sum(one.n_paired for one in estimates), source)


def over_seeds(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Return mean, 95 % t interval, and the two-sided p-value against 0 of values of several seeds.

    Returns
    -------
    tuple of (mean, low, high, p_value)
        The last three are NaN below two values; p is 0 or 1 where all values are equal.

    Examples
    --------
    >>> [round(number, 3) for number in over_seeds([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484, 0.074]
    """
    # Differences that are 0 but for rounding must not be told apart from 0 by their tiny spread.
    x: NDArray[np.float64] = np.round(np.asarray(values, dtype=float), _DIGITS)
    mean = float(x.mean())
    if len(x) < 2:
        return mean, math.nan, math.nan, math.nan
    se = float(x.std(ddof=1)) / math.sqrt(len(x))
    p = float(2 * stats.t.sf(abs(mean) / se, len(x) - 1)) if se > 0 else float(mean == 0)
    return mean, *interval(x), p


def transitions(before: Cell, after: Cell) -> tuple[int, float, float]:
    """Return the number of shared questions and the shares that went from right to wrong and from wrong to right.

    Right means at least half of the best reward. The shares are of all shared questions, so their difference is the
    change of the success rate; NaN without shared questions.

    Examples
    --------
    >>> transitions(Cell(50.0, rewards={"a": 100.0, "b": 0.0}), Cell(0.0, rewards={"a": 0.0, "b": 0.0, "c": 0.0}))
    (2, 0.5, 0.0)
    """
    shared = _shared([(1.0, before), (1.0, after)])
    if not shared or before.rewards is None or after.rewards is None:
        return 0, math.nan, math.nan
    level = (before.top or 0.0) / 2
    was = np.array([before.rewards[key] >= level for key in shared])
    is_now = np.array([after.rewards[key] >= level for key in shared])
    return len(shared), float((was & ~is_now).mean()), float((~was & is_now).mean())


def _merged(terms: Terms) -> Terms:
    """Add the weights of one and the same score: less itself it is exactly 0."""
    weights: dict[int, float] = {}
    cells = {id(cell): cell for _, cell in terms}
    for weight, cell in terms:
        weights[id(cell)] = weights.get(id(cell), 0.0) + weight
    return [(weight, cells[key]) for key, weight in weights.items() if weight]


def _shared(terms: Terms) -> list[str]:
    """Return the questions that every score of the sum knows."""
    known = [cell.rewards for _, cell in terms if cell.rewards is not None]
    if len(known) < len(terms) or not known:
        return []
    return [key for key in known[0] if all(key in rewards for rewards in known[1:])]


def _sums(terms: Terms, shared: Sequence[str]) -> NDArray[np.float64]:
    return np.array([sum(w * cell.rewards[key] for w, cell in terms if cell.rewards) for key in shared])


def _mean_over(terms: Terms, shared: Sequence[str]) -> float:
    return float(_sums(terms, shared).mean())


def _paired(terms: Terms, shared: Sequence[str]) -> tuple[float, float]:
    best = sum(max(weight, 0.0) * (cell.top or 0.0) for weight, cell in terms)
    worst = sum(min(weight, 0.0) * (cell.top or 0.0) for weight, cell in terms)
    values = np.append(_sums(terms, shared), [best, worst])
    return float(values.mean()), float(values.var()) / len(values)


def _alone(cell: Cell) -> tuple[float, float, str]:
    """Return centre, variance and source of one score."""
    if cell.stderr is not None:
        return cell.score, cell.stderr**2, "stderr"
    if cell.n and cell.top:
        rate = (cell.score / cell.top * cell.n + 1) / (cell.n + 2)
        return cell.top * rate, cell.top**2 * rate * (1 - rate) / (cell.n + 2), "counts"
    return cell.score, math.nan, "none"
