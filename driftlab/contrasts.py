"""Numbers of several seeds: the mean of a method with its interval, and whether two methods stand apart.

A seed is the unit: everything that one run yields is one number, and its spread over seeds is what an interval means.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from driftlab.multiplicity import holm
from driftlab.separation import LEVEL

COVERAGE = 0.95
_ROUNDING = 1e-12  # a difference below this share of its terms is none: equal runs must not stand apart


def over_seeds(numbers: pd.DataFrame) -> pd.DataFrame:
    r"""Average each number of each method over its seeds.

    Parameters
    ----------
    numbers : DataFrame
        Columns ``method, seed, number, value``, one row a run and number; NaN values do not count.

    Returns
    -------
    DataFrame
        Columns ``number, method, seeds, mean, low, high``: the mean and its 95 % interval
        :math:`\bar x \pm t_{n-1} s/\sqrt n` (Student, 1908); NaN bounds for a single seed.

    Examples
    --------
    >>> rows = [("grpo", seed, "kl", value) for seed, value in enumerate((1.0, 2.0, 3.0))]
    >>> found = over_seeds(pd.DataFrame(rows, columns=["method", "seed", "number", "value"])).iloc[0]
    >>> int(found["seeds"]), float(found["mean"]), round(float(found["low"]), 3)
    (3, 2.0, -0.484)
    """
    rows = []
    for (number, method), group in numbers.dropna(subset="value").groupby(["number", "method"], sort=False):
        low, high = interval(group["value"].to_numpy(dtype=float))
        mean = float(group["value"].mean())
        rows.append({"number": number, "method": method, "seeds": len(group), "mean": mean, "low": low, "high": high})
    return pd.DataFrame(rows, columns=["number", "method", "seeds", "mean", "low", "high"])


def contrasts(numbers: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Compare pairs of methods, seed by seed: two runs of one seed saw the same questions in the same order.

    Parameters
    ----------
    numbers : DataFrame
        As for :func:`over_seeds`.
    pairs : iterable of (str, str)
        Methods; the difference is the first minus the second.

    Returns
    -------
    DataFrame
        Columns ``number, left, right, seeds, difference, low, high, p_value, p_holm, verdict``. The interval is that
        of the mean paired difference; the p-value that of the paired t-test, ``p_holm`` adjusted for all pairs of one
        number. ``verdict`` is ``above``, ``below``, ``not separated``, or ``one seed`` where nothing can be said.
    """
    wanted = list(pairs)
    columns = ["number", "left", "right", "seeds", "difference", "low", "high", "p_value", "p_holm", "verdict"]
    rows: list[dict[str, Any]] = []
    for number, group in numbers.dropna(subset="value").groupby("number", sort=False):
        wide = group.pivot_table(index="seed", columns="method", values="value")
        found = list(_differences(wide, wanted))
        for row, p_holm in zip(found, holm([row["p_value"] for row in found]), strict=True):
            rows.append({"number": number, **row, "p_holm": p_holm, "verdict": _verdict(row, p_holm)})
    return pd.DataFrame(rows, columns=columns)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % t-interval of a mean; NaN for fewer than two values, the mean itself where none differs."""
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    half = float(stats.t.ppf(0.5 + COVERAGE / 2, n - 1)) * float(values.std(ddof=1)) / math.sqrt(n)
    return float(values.mean()) - half, float(values.mean()) + half


def _differences(wide: pd.DataFrame, pairs: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for left, right in pairs:
        if left in wide and right in wide:
            both = wide[[left, right]].dropna()
            gaps = both[left] - both[right]
            values = gaps.where(gaps.abs() > _ROUNDING * both.abs().max(axis=1), 0.0).to_numpy(dtype=float)
            if len(values):
                low, high = interval(values)
                yield {
                    "left": left, "right": right, "seeds": len(values), "difference": float(values.mean()),
                    "low": low, "high": high, "p_value": _p_value(values),
                }  # fmt: skip


def _p_value(values: np.ndarray) -> float:
    """Two-sided p-value of a mean of zero; 1 where every difference is 0, NaN for a single one."""
    if len(values) < 2:
        return math.nan
    spread = float(values.std(ddof=1))
    if spread == 0:
        return 1.0 if values[0] == 0 else 0.0
    t = float(values.mean()) / (spread / math.sqrt(len(values)))
    return float(2 * stats.t.sf(abs(t), len(values) - 1))


def _verdict(row: dict[str, Any], p_holm: float) -> str:
    if row["seeds"] < 2:
        return "one seed"
    if not p_holm < LEVEL:
        return "not separated"
    return "above" if row["difference"] > 0 else "below"
