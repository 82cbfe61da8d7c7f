"""From the table of kernel sums to estimates, delete-one values, intervals and relabelled values; no kernel here."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from driftlab.domains.kernel_sums import KernelSums, Vector
from driftlab.domains.swaps import Swaps

CONFIDENCE = 0.95


def unbiased(s_aa: ArrayLike, s_bb: ArrayLike, s_ab: ArrayLike, n: ArrayLike, m: ArrayLike) -> Vector:
    """Return MMD2_U from sums without diagonals; works element by element."""
    aa, bb, ab, n, m = (np.asarray(value, dtype=np.float64) for value in (s_aa, s_bb, s_ab, n, m))
    return np.asarray(aa / (n * (n - 1)) + bb / (m * (m - 1)) - 2 * ab / (n * m))


def totals(a: str, b: str, sums: KernelSums, g: int = 0) -> tuple[float, float, float]:
    """Return S_aa, S_bb (no diagonals) and S_ab at the g-th bandwidth."""
    return (
        float(sums.rows[a, a][g].sum()),
        float(sums.rows[b, b][g].sum()),
        float(sums.rows[a, b][g].sum()),
    )


def leave_out(a: str, b: str, ids: Mapping[str, NDArray[np.int64]], sums: KernelSums) -> Vector:
    r"""Return the distance of a and b without each unit c of a in turn, from the table alone.

    Taking c out of a takes :math:`2 \sum_{i \in c} R_{ia}` out of S_aa, but the pairs inside c then twice, and
    :math:`\sum_{i \in c} R_{ib}` out of S_ab. NaN where fewer than two rows would be left.
    """
    s_aa, s_bb, s_ab = totals(a, b, sums)
    unit = ids[a]
    size = np.bincount(unit)
    own = np.bincount(unit, sums.rows[a, a][0])
    inside = np.bincount(unit, sums.clustered[a])
    cross = np.bincount(unit, sums.rows[a, b][0])
    rest = len(unit) - size
    with np.errstate(divide="ignore", invalid="ignore"):
        values = unbiased(s_aa - 2 * own + inside, s_bb, s_ab - cross, rest, len(ids[b]))
    return np.where(rest >= 2, values, np.nan)


def interval(one: Vector, other: Vector) -> tuple[float, float, str]:
    """Return the standard error, the half width of the interval, and why there is none."""
    fewest = min(len(one), len(other))
    if fewest < 3:
        return math.nan, math.nan, f"no interval: {fewest} independent rows or groups on one side, at least 3 needed"
    parts = [jackknife_variance(one), jackknife_variance(other)]
    variance = sum(parts)
    if not math.isfinite(variance):
        return math.nan, math.nan, "no interval: one group holds almost the whole domain"
    spread = sum(part**2 / (len(left) - 1) for part, left in zip(parts, (one, other), strict=True))
    freedom = variance**2 / spread if spread > 0 else math.inf
    se = math.sqrt(variance)
    return se, se * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)), ""


def jackknife_variance(left_out: Vector) -> float:
    r"""Variance of an estimate from its n delete-one values, :math:`\frac{n-1}{n}\sum_i(\theta_{(i)}-\bar\theta)^2`.

    Parameters
    ----------
    left_out : array of shape (n,)
        The estimate without each unit in turn.

    Returns
    -------
    float
        At least 0, in the squared unit of the estimate; NaN if a value is NaN.

    References
    ----------
    Efron and Stein, "The jackknife estimate of variance", Ann. Statist. 9(3), 1981.

    Examples
    --------
    >>> jackknife_variance(np.array([1.0, 2.0, 3.0]))
    1.3333333333333333
    """
    n = len(left_out)
    return float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())


def relabelled(a: str, b: str, ids: Mapping[str, NDArray[np.int64]], swaps: Swaps, sums: KernelSums) -> Vector:
    """Return MMD2_U of every relabelling of one pair; the algebra is in :mod:`driftlab.domains.kernel_sums`."""
    key = swaps.size_class(a, b)
    own_a, out_a, n_out = _moved_sums(swaps, a, key, sums.rows[a, a][0], sums.rows[a, b][0])
    own_b, out_b, m_out = _moved_sums(swaps, b, key, sums.rows[b, b][0], sums.rows[b, a][0])
    s_aa, s_bb, s_ab = totals(a, b, sums)
    inside = sums.within[a, key] + sums.within[b, key]
    between = sums.between[a, b]
    new_aa = s_aa - 2 * own_a + 2 * (out_b - between) + inside
    new_bb = s_bb - 2 * own_b + 2 * (out_a - between) + inside
    new_ab = (s_aa + 2 * s_ab + s_bb - new_aa - new_bb) / 2
    n = len(ids[a]) - n_out + m_out
    return unbiased(new_aa, new_bb, new_ab, n, len(ids[a]) + len(ids[b]) - n)


def _moved_sums(
    swaps: Swaps, name: str, key: tuple[int, int], own: Vector, other: Vector, block: int = 4096
) -> tuple[Vector, Vector, Vector]:
    """Return, per permutation, the sums of two columns over the rows that leave, and how many leave."""
    columns = np.stack([own, other, np.ones_like(own)])
    total = np.zeros((3, swaps.permutations))
    for start in range(0, len(own), block):
        rows = slice(start, start + block)
        total += columns[:, rows] @ swaps.moved(name, key, rows)
    return total[0], total[1], total[2]
