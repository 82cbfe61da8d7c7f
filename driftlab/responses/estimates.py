"""Means, ratios and rates over prompts, with their uncertainty.

Responses to one prompt are alike, so prompts are the unit: an interval over responses would be too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error; NaN where fewer than two prompts stand behind it."""

    value: float
    se: float


def over_prompts(
    values: ArrayLike, prompts: ArrayLike, counts: ArrayLike | None = None, strata: ArrayLike | None = None
) -> Estimate:
    r"""Mean of responses (or a ratio of sums), with the standard error over prompts.

    :math:`m = \sum v / \sum c`, and with :math:`e_j = \sum_{i \in j} (v_i - m c_i)` for prompt j,
    :math:`se^2 = \sum_s \frac{J_s}{J_s - 1} \sum_{j \in s} (e_j - \bar e_s)^2 / (\sum c)^2` (linearisation; Cochran,
    "Sampling Techniques", 1977).

    Parameters
    ----------
    values : array of shape (R,)
        One a response; NaN where unknown, which counts nowhere.
    prompts : array of shape (R,)
        Which prompt each response answers.
    counts : array of shape (R,), optional
        Denominators, the tokens of each response for a mean per token; 1 by default.
    strata : array of shape (R,), optional
        Tasks: they are fixed, not drawn, so differences between them are no noise.
    """
    v = np.asarray(values, dtype=float)
    known = ~np.isnan(v)
    if not known.any():
        return Estimate(math.nan, math.nan)
    c = np.ones(len(v)) if counts is None else np.asarray(counts, dtype=float)
    groups = np.zeros(len(v), dtype=int) if strata is None else np.unique(np.asarray(strata), return_inverse=True)[1]
    v, c, groups, keys = v[known], c[known], groups[known], np.asarray(prompts)[known]
    mean = float(v.sum() / c.sum())
    if not math.isfinite(mean):
        return Estimate(mean, math.nan)
    variance = 0.0
    for group in np.unique(groups):
        inside = groups == group
        _, place = np.unique(keys[inside], return_inverse=True)
        residuals = np.bincount(place, weights=v[inside] - mean * c[inside])
        n = len(residuals)
        variance += n * float(residuals.var(ddof=1)) if n > 1 else math.nan
    return Estimate(mean, math.sqrt(variance) / float(c.sum()))


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate among ``n`` independent responses.

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    Examples
    --------
    >>> [round(end, 4) for end in wilson(0.0, 16)]
    [0.0, 0.1936]
    """
    if not n > 0 or math.isnan(rate):
        return math.nan, math.nan
    centre = (rate + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(rate * (1 - rate) / n + Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def rate_over_prompts(hits: Sequence[bool] | NDArray[np.bool_], prompts: ArrayLike) -> tuple[float, float, float]:
    """Return a rate with its Wilson interval, on as many independent responses as these are worth.

    The effective number is rate·(1 − rate)/se² with the standard error over prompts (Kish, "Survey Sampling", 1965),
    kept between the number of prompts and the number of responses.
    """
    flags = np.asarray(hits, dtype=float)
    if not len(flags):
        return math.nan, math.nan, math.nan
    found = over_prompts(flags, prompts)
    fewest, most = len(np.unique(np.asarray(prompts))), len(flags)
    spread = found.value * (1 - found.value)
    effective = spread / found.se**2 if found.se > 0 and spread > 0 else float(fewest)
    return (found.value, *wilson(found.value, min(max(effective, fewest), most)))
