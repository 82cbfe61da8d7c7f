"""Questions about several distances at once: two distances, two rankings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from driftlab.multiplicity import holm

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Is ``shared`` further from ``far`` than from ``near``? The fields are columns of ``mmd_differences.parquet``.

    Attributes
    ----------
    shared, near, far : str
        The three domains; ``near`` is the one with the smaller estimate.
    difference : float
        ``mmd2_u(shared, far) - mmd2_u(shared, near)``, at least 0.
    se, ci_low, ci_high : float
        Joint jackknife standard error and 95 % interval; NaN where one of the distances has no interval.
    p_value, p_holm : float
        Two-sided, from the normal approximation; and corrected for the number of triples.
    """

    shared: str
    near: str
    far: str
    difference: float
    se: float
    ci_low: float
    ci_high: float
    p_value: float
    p_holm: float


def compare_distances(
    names: Sequence[str], mmd2_u: Vector, left_out: Mapping[tuple[str, str], Vector]
) -> list[Difference]:
    r"""Test the difference of every two distances that share a domain.

    The two estimates use the same rows of the shared domain and are correlated, so their intervals must not be
    compared by eye. Leaving a row of the shared domain out changes both; the jackknife takes the variance of the
    *difference*, domain by domain:
    :math:`\sum_d \frac{n_d - 1}{n_d} \sum_{i \in d} (\delta_{(i)} - \bar\delta)^2`.

    Parameters
    ----------
    names : sequence of str
    mmd2_u : array of shape (domains, domains)
        Symmetric, squared distances.
    left_out : mapping of (str, str) to array of shape (units,)
        ``left_out[a, b]``: the distance of a and b without each unit of a in turn
        (:class:`driftlab.domains.mmd.Distances`).

    Returns
    -------
    list of Difference
        One for each choice of a shared domain and two others.

    Notes
    -----
    The normal approximation fails for two distances that are both at the noise floor; the jackknife variance is then
    too large and the test conservative.

    References
    ----------
    Bounliphone et al., "A test of relative similarity for model selection in generative models", 2015,
    arXiv 1511.04581 (the same question with a plug-in variance).
    """
    found = []
    for s, shared in enumerate(names):
        for i, j in combinations([k for k in range(len(names)) if k != s], 2):
            near, far = (i, j) if mmd2_u[s, i] <= mmd2_u[s, j] else (j, i)
            found.append(_difference(shared, names[near], names[far], mmd2_u[s, far] - mmd2_u[s, near], left_out))
    corrected = holm([one.p_value for one in found])
    return [replace(one, p_holm=float(p)) for one, p in zip(found, corrected, strict=True)]


def _difference(
    shared: str, near: str, far: str, value: float, left_out: Mapping[tuple[str, str], Vector]
) -> Difference:
    parts = [left_out[shared, far] - left_out[shared, near], left_out[near, shared], left_out[far, shared]]
    enough = min(len(part) for part in parts) >= 3
    variance = sum((len(p) - 1) / len(p) * float(((p - p.mean()) ** 2).sum()) for p in parts) if enough else math.nan
    se = math.sqrt(variance)
    half = se * float(stats.norm.ppf(0.975))
    p_value = math.nan if math.isnan(se) else 1.0
    if se > 0:
        p_value = float(2 * stats.norm.sf(abs(value) / se))
    return Difference(shared, near, far, float(value), se, value - half, value + half, p_value, math.nan)


def kendall(one: Vector, other: Vector) -> float:
    r"""Kendall's rank correlation tau-b of two lists of distances.

    Parameters
    ----------
    one, other : array of shape (pairs,)

    Returns
    -------
    float
        In [-1, 1]; 1 means the same order. NaN for fewer than two pairs or where one list is constant.

    References
    ----------
    Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945.

    Examples
    --------
    >>> kendall(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0]))
    1.0
    """
    if len(one) < 2:
        return math.nan
    return float(stats.kendalltau(one, other).statistic)


def rank_agreement(one: Mapping[frozenset[str], float], other: Mapping[frozenset[str], float]) -> dict[str, float]:
    """Compare two heat maps by the order of the pairs they share; the scale and the kernel do not matter.

    Parameters
    ----------
    one, other : mapping of frozenset of two names to float
        A distance for each pair.

    Returns
    -------
    dict
        ``pairs`` in common, ``kendall_tau`` and ``spearman_rho`` in [-1, 1] (NaN below two pairs).

    Examples
    --------
    >>> ab, ac = frozenset("ab"), frozenset("ac")
    >>> rank_agreement({ab: 0.1, ac: 0.3}, {ab: 12.0, ac: 40.0})["kendall_tau"]
    1.0
    """
    common = sorted(one.keys() & other.keys(), key=sorted)
    x = np.array([one[pair] for pair in common])
    y = np.array([other[pair] for pair in common])
    rho = float(stats.spearmanr(x, y).statistic) if len(common) > 1 else math.nan
    return {"pairs": len(common), "kendall_tau": kendall(x, y), "spearman_rho": rho}
