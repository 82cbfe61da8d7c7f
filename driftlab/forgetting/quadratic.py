"""A parabola through points, with a cluster bootstrap: y = a + b x + c x²."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from driftlab.errors import ShapeError

Vector = NDArray[np.float64]
DRAWS = 2000
GRID = 61
_SINGULAR = 1e-10
"""A resample whose normal matrix has a smaller reciprocal condition has fewer than three places to hold a parabola."""


@dataclass(frozen=True)
class Parabola:
    """A least-squares parabola and what resampling the clusters does to it.

    Attributes
    ----------
    a, b, c : float
        Coefficients of 1, x and x².
    c_low, c_high : float
        95 % percentile interval of c over the resamples.
    vertex : float
        -b / 2c.
    vertex_low, vertex_high : float
        95 % percentile interval of the vertex; infinite where ``vertex_bounded`` is false.
    vertex_bounded : bool
        False where the interval of c holds 0: the curve may bend either way or not at all, and its vertex may lie
        anywhere.
    extreme : str
        ``minimum`` or ``maximum``, whichever the vertex of the fit is.
    r2 : float
        Share of the variance of y that the fit takes; NaN for constant y.
    n, clusters : int
        Points and clusters.
    draws, degenerate : int
        Resamples used, and resamples that hold no parabola (fewer than three different x) and were left out.
    x, y, low, high : arrays
        The fit and its pointwise 95 % band on a grid over the range of x.
    left_out : list of dict
        ``cluster``, ``a``, ``b``, ``c`` and ``vertex`` of the fit without each cluster in turn; NaN where the others
        hold no parabola.
    """

    a: float
    b: float
    c: float
    c_low: float
    c_high: float
    vertex: float
    vertex_low: float
    vertex_high: float
    vertex_bounded: bool
    extreme: str
    r2: float
    n: int
    clusters: int
    draws: int
    degenerate: int
    x: Vector
    y: Vector
    low: Vector
    high: Vector
    left_out: list[dict[str, object]] = field(default_factory=list)


def fit_parabola(x: Vector, y: Vector, clusters: Sequence[str], *, draws: int = DRAWS, seed: int = 0) -> Parabola | str:
    r"""Fit :math:`y = a + bx + cx^2` by least squares; resample whole clusters for its uncertainty.

    The points of one evaluation task share their base score and their questions, so they are drawn together: as many
    clusters as there are, with replacement. Percentile intervals; they are rough below about ten clusters.

    Parameters
    ----------
    x, y : array of shape (n,)
    clusters : sequence of str of length n
    draws : int
        Resamples.
    seed : int

    Returns
    -------
    Parabola or str
        Why there is none: fewer than four points, fewer than three different x, or fewer than three clusters.

    Raises
    ------
    ShapeError
        If the lengths differ.

    References
    ----------
    A. C. Cameron, J. B. Gelbach and D. L. Miller, "Bootstrap-based improvements for inference with clustered errors",
    Rev. Econ. Stat. 90(3), 2008 (the pairs cluster bootstrap).

    Examples
    --------
    >>> x = np.linspace(0, 1, 12)
    >>> found = fit_parabola(x, 2 - 4 * x + 4 * x**2, list("abcdef") * 2, draws=200)
    >>> [round(number, 6) + 0.0 for number in (found.a, found.b, found.c, found.vertex)]
    [2.0, -4.0, 4.0, 0.5]
    """
    if not len(x) == len(y) == len(clusters):
        raise ShapeError(f"Points: expected equal lengths, found {len(x)} x, {len(y)} y and {len(clusters)} clusters.")
    names = list(dict.fromkeys(clusters))
    if len(x) < 4 or len(np.unique(x)) < 3 or len(names) < 3:
        return (
            "a parabola needs 4 points at 3 different distances from 3 tasks, found "
            f"{len(x)} at {len(np.unique(x))} from {len(names)}"
        )
    middle, half = (x.min() + x.max()) / 2, (x.max() - x.min()) / 2
    design = _powers((x - middle) / half)
    member = np.array([names.index(name) for name in clusters])
    gram = np.stack([design[member == k].T @ design[member == k] for k in range(len(names))])
    moment = np.stack([design[member == k].T @ y[member == k] for k in range(len(names))])
    whole = _solve(gram.sum(axis=0)[None], moment.sum(axis=0)[None])[0]
    counts = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    drawn = _solve(np.einsum("bk,kij->bij", counts, gram), np.einsum("bk,ki->bi", counts, moment))
    good = drawn[~np.isnan(drawn).any(axis=1)]
    grid = np.linspace(-1, 1, GRID)
    band = _band(good, grid)
    a, b, c = _unscaled(whole[None], middle, half)[0]
    inner = _unscaled(good, middle, half)
    c_low, c_high = _percentiles(inner[:, 2])
    bounded = bool(c_low > 0 or c_high < 0)
    vertices = _vertex(inner) if bounded else np.array([-math.inf, math.inf])
    spread = float(((y - y.mean()) ** 2).sum())
    residual = float(((y - design @ whole) ** 2).sum())
    vertex_low, vertex_high = _percentiles(vertices) if bounded else (-math.inf, math.inf)
    return Parabola(
        float(a),
        float(b),
        float(c),
        c_low,
        c_high,
        float(_vertex(np.array([[a, b, c]]))[0]),
        vertex_low,
        vertex_high,
        bounded,
        "minimum" if c > 0 else "maximum",
        1 - residual / spread if spread > 0 else math.nan,
        len(x),
        len(names),
        len(good),
        draws - len(good),
        middle + half * grid,
        _powers(grid) @ whole,
        *band,
        _leave_one_out(names, gram, moment, middle, half),
    )


def _powers(x: Vector) -> Vector:
    return np.stack([np.ones_like(x), x, x**2], axis=1)


def _solve(gram: Vector, moment: Vector) -> Vector:
    """Solve many normal equations of three unknowns; NaN where they have no single solution."""
    found = np.full(moment.shape, np.nan)
    sizes = np.linalg.eigvalsh(gram)
    good = sizes[:, 0] > _SINGULAR * sizes[:, 2]
    found[good] = np.linalg.solve(gram[good], moment[good][..., None])[..., 0]
    return found


def _unscaled(found: Vector, middle: float, half: float) -> Vector:
    """Return coefficients in x from those in (x - middle) / half."""
    p, q, r = found[:, 0], found[:, 1] / half, found[:, 2] / half**2
    return np.stack([p - q * middle + r * middle**2, q - 2 * r * middle, r], axis=1)


def _vertex(found: Vector) -> Vector:
    with np.errstate(divide="ignore", invalid="ignore"):
        return -found[:, 1] / (2 * found[:, 2])


def _percentiles(values: Vector) -> tuple[float, float]:
    if not len(values):
        return math.nan, math.nan
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _band(good: Vector, grid: Vector) -> tuple[Vector, Vector]:
    if not len(good):
        return np.full(len(grid), np.nan), np.full(len(grid), np.nan)
    low, high = np.percentile(good @ _powers(grid).T, [2.5, 97.5], axis=0)
    return low, high


def _leave_one_out(
    names: Sequence[str], gram: Vector, moment: Vector, middle: float, half: float
) -> list[dict[str, object]]:
    without = _unscaled(_solve(gram.sum(axis=0) - gram, moment.sum(axis=0) - moment), middle, half)
    columns = zip(names, without, _vertex(without), strict=True)
    return [
        {"cluster": name, "a": float(one[0]), "b": float(one[1]), "c": float(one[2]), "vertex": float(vertex)}
        for name, one, vertex in columns
    ]
