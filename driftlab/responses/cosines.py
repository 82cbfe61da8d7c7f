"""Cosines of paired vectors, and which other pair serves as the random baseline."""

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.seeding import generator
from driftlab.errors import ShapeError


def cosine(x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.float64]:
    r"""Cosine of paired vectors, :math:`1 - \tfrac12 \|x/\|x\| - y/\|y\|\|^2`.

    Computed from the difference in float64: the inner product of two nearly equal vectors has lost what they differ in.

    Parameters
    ----------
    x, y : array of shape (n, d)

    Returns
    -------
    float64 array of shape (n,)
        In [-1, 1]; exactly 1 for equal vectors; NaN where a vector is zero or not finite.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> cosine(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 0.0], [0.0, 3.0]])).round(6).tolist()
    [1.0, 0.707107]
    """
    if x.shape != y.shape or x.ndim != 2:
        raise ShapeError(f"Cosine: expected two arrays of one shape (n, d), found {x.shape} and {y.shape}.")
    difference = _unit(x) - _unit(y)
    found: NDArray[np.float64] = np.clip(1.0 - 0.5 * (difference**2).sum(axis=1), -1.0, 1.0)
    return found


def _unit(x: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    length = np.sqrt((wide**2).sum(axis=1, keepdims=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: NDArray[np.float64] = np.where(length > 0, wide / length, np.nan)
    return unit


def partners(n: int, seed: int, *key: str) -> NDArray[np.int64]:
    """Return for each of ``n`` items another one: a random cycle, so that nobody gets themselves.

    Parameters
    ----------
    n : int
    seed : int
    *key : str
        What the draw is for; the same for runs that answer the same prompts.

    Returns
    -------
    int array of shape (n,)
        A permutation without fixed points; for n = 1 there is none, and it is ``[-1]``.

    Examples
    --------
    >>> found = partners(5, 0, "math")
    >>> sorted(found.tolist()), bool((found == np.arange(5)).any())
    ([0, 1, 2, 3, 4], False)
    """
    if n < 2:
        return np.full(n, -1, dtype=np.int64)
    order = generator("response partners", seed, *key, n).permutation(n)
    found = np.empty(n, dtype=np.int64)
    found[order] = np.roll(order, -1)
    return found
