"""Whether a checkpoint's drift stands apart from its null: a paired test over matrices, and its result in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy.stats import binomtest

LEVEL = 0.05
WORDED = ("nss", "max_angle_left_deg", "mask_overlap", "mask_update_iou", "rel_spectral", "principal_energy")
RANDOM_LEVEL = {
    "mask_update_iou": "mask_update_iou_random",
    "mask_update_overlap": "mask_fraction",
    "low_mask_overlap": "mask_fraction",
}
"""Measures of the support, which sign flips leave as it is: their null is the level of a random update."""


@dataclass(frozen=True)
class Separation:
    """A paired comparison of values with their nulls.

    Attributes
    ----------
    above, below : int
        Matrices whose value lies above, below its null; equal ones are in neither.
    ratio : float
        Median of value over null.
    p_value : float
        Two-sided exact sign test. NaN where no pair differs.
    """

    above: int
    below: int
    ratio: float
    p_value: float


def compare(values: np.ndarray, nulls: np.ndarray) -> Separation:
    """Compare paired values with their nulls by the sign test.

    A value and its null differ by the signs of the update only. Where those carry no structure the two are
    exchangeable, each is the larger with probability ½, and the test is exact whatever their distribution; it does
    assume that matrices are independent.

    Parameters
    ----------
    values, nulls : array of shape (n,)
        Without NaN.

    References
    ----------
    J. Dixon and A. Mood, "The statistical sign test", J. Am. Stat. Assoc. 41, 1946.

    Examples
    --------
    >>> compare(np.array([2.0, 2.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0]))
    Separation(above=3, below=0, ratio=2.0, p_value=0.25)
    """
    above, below = int((values > nulls).sum()), int((values < nulls).sum())
    known = nulls != 0
    ratio = float(np.median(values[known] / nulls[known])) if known.any() else math.nan
    return Separation(above, below, ratio, _sign_test(above, above + below))


@cache
def _sign_test(above: int, differing: int) -> float:
    return float(binomtest(above, differing).pvalue) if differing else math.nan


def verdict(above: int, below: int, p_holm: float) -> str:
    """Return ``above``, ``below`` or ``not separated``; ``no null`` where no pair differs or none was drawn.

    Examples
    --------
    >>> verdict(20, 1, 0.001), verdict(12, 9, 1.0), verdict(0, 0, float("nan"))
    ('above', 'not separated', 'no null')
    """
    if above + below == 0 and math.isnan(p_holm):
        return "no null"
    if not p_holm < LEVEL:
        return "not separated"
    return "above" if above > below else "below"


def in_words(summary: pd.DataFrame) -> Iterator[str]:
    """Say for the last checkpoint of each run how the main measures stand to their nulls.

    Parameters
    ----------
    summary : DataFrame
        The table ``spectral_summary``.
    """
    model = summary[(summary["group_by"] == "model") & summary["verdict"].ne("no null") & (summary["order"] > 0)]
    for run, rows in model.groupby("run", sort=False):
        last = rows[rows["order"] == rows["order"].max()].set_index("measure")
        label = last["label"].iloc[0]
        for measure in (name for name in WORDED if name in last.index):
            row = last.loc[measure]
            counts = f"{row['above']:.0f} of {row['n']:.0f} matrices above, {row['below']:.0f} below"
            stands = "not separated from" if row["verdict"] == "not separated" else f"{row['verdict']}"
            null = "the level of a random update" if measure in RANDOM_LEVEL else "its null"
            yield (
                f"{run} {label}: {measure} is {stands} {null} (median {_number(row['median'])} against "
                f"{_number(row['null_median'])}; {counts}; p {_p(row['p_holm'])})"
            )


def _number(value: float) -> str:
    return f"{value:.6f}" if 0.99 < abs(value) < 1 else f"{value:.3g}"


def _p(value: float) -> str:
    return "< 1e-4" if value < 1e-4 else f"= {value:.2g}"
