r"""Maximum mean discrepancy between every pair of domains: estimates, intervals, p-values, noise floors.

With the kernel sums S_aa (no diagonal), S_bb and S_ab of two domains of n and m rows

.. math:: \mathrm{MMD}^2_U = \frac{S_{aa}}{n(n-1)} + \frac{S_{bb}}{m(m-1)} - \frac{2 S_{ab}}{nm}.

It estimates the squared distance without bias and is therefore negative about half of the time when the two domains
are alike: the sign is kept, a negative value means "not distinguishable from 0".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from driftlab.devices import resolve_device
from driftlab.domains.estimates import interval, leave_out, relabelled, totals, unbiased
from driftlab.domains.kernel_sums import Advance, KernelSums, Pass, Vector, sum_kernel
from driftlab.domains.swaps import Swaps
from driftlab.errors import DataError, ShapeError, UsageError
from driftlab.multiplicity import holm

FACTORS = (0.25, 0.5, 2.0, 4.0)
"""The other bandwidths, as multiples of gamma, at which every distance is also taken."""

# Two relabellings that are equal by symmetry (duplicates, swapped sides) differ by the rounding of their sums.
# Counting such ties as "at least as large" errs to the safe side by less than any null spread seen in practice.
_TIE = {torch.float32: 2e-7, torch.float64: 1e-12}


@dataclass(frozen=True)
class PairDistance:
    """The distance of one pair of domains; the fields are the columns of ``mmd.parquet``.

    Attributes
    ----------
    left, right : str
        The two domains.
    n_left, n_right : int
        Their numbers of rows.
    mmd2_u : float
        Unbiased squared MMD, in [-1, 2]; 0 means alike, negative values are noise around 0.
    mmd2_v : float
        Biased squared MMD (with the diagonals), in [0, 2].
    mmd : float
        ``sqrt(max(mmd2_u, 0))``, a distance, in [0, 1.42].
    nammd : float
        Norm-adaptive MMD: ``mmd2_u / (4 - |mu_left|^2 - |mu_right|^2)`` with unbiased squared norms.
    se, ci_low, ci_high : float
        Jackknife standard error and 95 % interval of ``mmd2_u``; NaN where there are too few rows.
    p_value, p_holm : float
        Permutation p-value of "alike", never 0; and corrected for the number of pairs (Holm). NaN without permutations.
    null_q95 : float
        95 % quantile of ``mmd2_u`` over the relabellings: the noise floor of this cell.
    gamma : float
        The bandwidth of the kernel.
    reason : str
        Why a value is missing; empty otherwise.
    """

    left: str
    right: str
    n_left: int
    n_right: int
    mmd2_u: float
    mmd2_v: float
    mmd: float
    nammd: float
    se: float
    ci_low: float
    ci_high: float
    p_value: float
    p_holm: float
    null_q95: float
    gamma: float
    reason: str = ""


@dataclass(frozen=True)
class Distances:
    """All pairs, and what later questions about them need.

    Attributes
    ----------
    names : tuple of str
    pairs : tuple of PairDistance
        In the order (0, 1), (0, 2), …
    left_out : dict of (str, str) to array of shape (units,)
        ``left_out[a, b]``: the distance of a and b with each unit (row or cluster) of a left out in turn.
    by_factor : dict of float to array of shape (pairs,)
        ``mmd2_u`` of every pair at a multiple of gamma; 1.0 is gamma itself.
    """

    names: tuple[str, ...]
    pairs: tuple[PairDistance, ...]
    left_out: dict[tuple[str, str], Vector]
    by_factor: dict[float, Vector]

    def matrix(self) -> Vector:
        """Return ``mmd2_u`` as a symmetric array of shape (domains, domains) with a zero diagonal."""
        place = {name: i for i, name in enumerate(self.names)}
        square = np.zeros((len(place), len(place)))
        for pair in self.pairs:
            i, j = place[pair.left], place[pair.right]
            square[i, j] = square[j, i] = pair.mmd2_u
        return square


def measure_distances(
    vectors: Mapping[str, NDArray[np.floating]],
    gamma: float,
    *,
    clusters: Mapping[str, NDArray[np.integer]] | None = None,
    permutations: int = 1999,
    seed: int = 0,
    block: int = 1024,
    precision: str = "float32",
    device: str = "cpu",
    advance: Advance = lambda values: None,
) -> Distances:
    r"""Measure MMD between every pair of domains with one Gaussian kernel and in one pass.

    The kernel is :math:`k(x, y) = \exp(-\gamma \|x - y\|^2)`. Intervals are two-sample delete-one jackknife
    intervals (delete-one-cluster with ``clusters``): with :math:`\theta_{(i)}` the distance without unit i of a
    domain of n units, the variance is :math:`\sum \frac{n-1}{n} \sum_i (\theta_{(i)} - \bar\theta)^2` over both
    domains, and the interval uses Student's t with Welch's degrees of freedom. p-values are
    :math:`(1 + \#\{\text{relabelled} \ge \text{observed}\}) / (1 + B)`.

    Parameters
    ----------
    vectors : mapping of str to array of shape (n, d)
        The rows of each domain; n may differ, d may not. Unit rows, or float64 precision: see
        :func:`driftlab.domains.kernel_sums.squared_distances`.
    gamma : float
        Kernel bandwidth, > 0, in 1 / squared distance.
    clusters : mapping of str to int array of shape (n,), optional
        Rows of a domain with equal numbers belong together (one document, one template): they are left out together
        and relabelled together.
    permutations : int, default 1999
        B; 0 for none.
    seed : int, default 0
        Seed of the relabellings.
    block : int, default 1024
        Side of a tile; the working memory is a few tiles, whatever n. The result does not depend on it beyond the
        rounding of ``precision``.
    precision : {"float32", "float64"}, default "float32"
        Arithmetic of the matrix products. Sums are float64 in both.
    device : str, default "cpu"
        ``cpu``, ``cuda`` or ``auto``.
    advance : callable, optional
        Called with the number of kernel values computed since the last call
        (in all :func:`driftlab.domains.kernel_sums.pass_units`).

    Returns
    -------
    Distances

    Raises
    ------
    DataError
        If there are fewer than two domains, or a domain has fewer than two rows or a row that is not finite.
    ShapeError
        If the rows of two domains have different widths.
    UsageError
        If an option is out of its range.

    References
    ----------
    Gretton et al., "A kernel two-sample test", JMLR 13, 2012. Phipson and Smyth, "Permutation p-values should never
    be zero", 2010, arXiv 1603.05766. Arvesen, "Jackknifing U-statistics", Ann. Math. Statist. 40(6), 1969.
    Zhou et al., "A kernel distribution closeness testing" (NAMMD), 2025, arXiv 2507.12843.

    Examples
    --------
    >>> x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
    >>> pair = measure_distances({"x": x, "y": y}, 0.5, permutations=0, precision="float64").pairs[0]
    >>> round(pair.mmd2_u, 8), round(pair.mmd2_v, 8), pair.mmd
    (-0.43233236, 0.19673467, 0.0)
    """
    check_options(gamma, permutations, block, precision)
    _check_vectors(vectors)
    ids = {name: _unit_ids(name, x, (clusters or {}).get(name)) for name, x in vectors.items()}
    chosen = resolve_device(device)
    if chosen.type == "mps":
        raise UsageError("Device 'mps' has no float64 sums, which MMD needs.", "Use --device cpu.")
    dtype = torch.float32 if precision == "float32" else torch.float64
    settings = Pass([gamma, *(gamma * factor for factor in FACTORS)], block, dtype, chosen)
    swaps = Swaps(ids, permutations, seed)
    sums = sum_kernel(vectors, ids, swaps, settings, advance)
    return _estimate(tuple(vectors), ids, swaps, sums, gamma, _TIE[dtype])


def _estimate(
    names: tuple[str, ...],
    ids: Mapping[str, NDArray[np.int64]],
    swaps: Swaps,
    sums: KernelSums,
    gamma: float,
    tie: float,
) -> Distances:
    couples = list(combinations(names, 2))
    left_out = {}
    for a, b in couples:
        left_out[a, b] = leave_out(a, b, ids, sums)
        left_out[b, a] = leave_out(b, a, ids, sums)
    pairs = [_pair(a, b, ids, swaps, sums, left_out, gamma, tie) for a, b in couples]
    corrected = holm([pair.p_value for pair in pairs])
    by_factor = {
        factor: np.array([unbiased(*totals(a, b, sums, g), len(ids[a]), len(ids[b])) for a, b in couples])
        for g, factor in enumerate([1.0, *FACTORS])
    }
    done = tuple(replace(pair, p_holm=float(p)) for pair, p in zip(pairs, corrected, strict=True))
    return Distances(names, done, left_out, dict(sorted(by_factor.items())))


def _pair(
    a: str,
    b: str,
    ids: Mapping[str, NDArray[np.int64]],
    swaps: Swaps,
    sums: KernelSums,
    left_out: Mapping[tuple[str, str], Vector],
    gamma: float,
    tie: float,
) -> PairDistance:
    n, m = len(ids[a]), len(ids[b])
    s_aa, s_bb, s_ab = totals(a, b, sums)
    value = float(unbiased(s_aa, s_bb, s_ab, n, m))
    norms = float(s_aa / (n * (n - 1)) + s_bb / (m * (m - 1)))
    se, half, reason = interval(left_out[a, b], left_out[b, a])
    p_value, floor = math.nan, math.nan
    if swaps.permutations and min(ids[a].max(), ids[b].max()) > 0:
        null = relabelled(a, b, ids, swaps, sums)
        p_value = float((1 + np.count_nonzero(null >= value - tie)) / (1 + len(null)))
        floor = float(np.quantile(null, 0.95, method="higher"))
    return PairDistance(
        left=a,
        right=b,
        n_left=n,
        n_right=m,
        mmd2_u=value,
        mmd2_v=float((s_aa + n) / n**2 + (s_bb + m) / m**2 - 2 * s_ab / (n * m)),
        mmd=math.sqrt(max(value, 0.0)),
        nammd=value / (4.0 - norms),
        se=se,
        ci_low=value - half,
        ci_high=value + half,
        p_value=p_value,
        p_holm=math.nan,
        null_q95=floor,
        gamma=gamma,
        reason=reason,
    )


def _unit_ids(name: str, x: NDArray[np.floating], given: NDArray[np.integer] | None) -> NDArray[np.int64]:
    if given is None:
        return np.arange(len(x), dtype=np.int64)
    if len(given) != len(x):
        raise ShapeError(f"Domain {name!r}: expected one group per row ({len(x)}), found {len(given)}.")
    ids: NDArray[np.int64] = np.unique(given, return_inverse=True)[1].astype(np.int64)
    return ids


def check_options(gamma: float, permutations: int, block: int, precision: str) -> None:
    """Raise UsageError for an option out of its range, before anything is computed."""
    if not (math.isfinite(gamma) and gamma > 0):
        raise UsageError(f"Bandwidth gamma: expected a positive number, found {gamma}.")
    if permutations < 0:
        raise UsageError(f"Permutations: expected 0 or more, found {permutations}.")
    if block < 1:
        raise UsageError(f"Block: expected 1 or more, found {block}.")
    if precision not in ("float32", "float64"):
        raise UsageError(f"Precision: expected float32 or float64, found {precision!r}.")


def _check_vectors(vectors: Mapping[str, NDArray[np.floating]]) -> None:
    if len(vectors) < 2:
        raise DataError(f"A distance needs at least two domains, found {len(vectors)}.")
    first = next(iter(vectors))
    for name, x in vectors.items():
        if x.ndim != 2:
            raise ShapeError(f"Domain {name!r}: expected an array of shape (n, d), found {x.shape}.")
        if len(x) < 2:
            raise DataError(
                f"Domain {name!r}: expected at least 2 rows, found {len(x)}: one text says nothing about spread."
            )
        if x.shape[1] != vectors[first].shape[1]:
            raise ShapeError(
                f"Domain {name!r} has vectors of width {x.shape[1]}, domain {first!r} of width "
                f"{vectors[first].shape[1]}: they live in different spaces.",
                "Embed all domains with one encoder.",
            )
        bad = np.flatnonzero(~np.isfinite(x).all(1))
        if len(bad):
            raise DataError(f"Domain {name!r}: row {bad[0]} is not finite ({len(bad)} such rows).")
