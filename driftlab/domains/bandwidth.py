r"""One bandwidth for a whole matrix: the median heuristic on a pooled sample in which every domain counts alike."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from driftlab.devices import exact_math
from driftlab.domains.kernel_sums import squared_distances
from driftlab.domains.seeding import generator
from driftlab.errors import DataError

SAMPLE = 1000
"""The largest number of rows of one domain in the pooled sample."""

_TILE = 1024
_GUESS = 1500
# A product of d float32 terms is wrong by about eps sqrt(d), up to eps d where all errors lean to one side. Squared
# distances of unit rows below this multiple of eps sqrt(d) belong to equal rows.
_SAME = 8.0


def median_gamma(vectors: Mapping[str, NDArray[np.floating]], *, sample: int = SAMPLE, seed: int = 0) -> float:
    r"""Bandwidth :math:`\gamma = 1 / \mathrm{median}\{ d_{ij}^2 : i < j,\ d_{ij} \ne 0 \}` of the pooled domains.

    "The median heuristic" names at least four formulas in this literature; this is the one used here. Each domain
    gives min(``sample``, size of the smallest domain, n) rows, drawn at random, so that a large domain does not set
    the scale alone. The median is exact; distances are counted tile by tile and never held together.

    Parameters
    ----------
    vectors : mapping of str to array of shape (n, d)
        Unit rows.
    sample : int, default 1000
        The largest number of rows of one domain.
    seed : int, default 0
        Seed of the sample.

    Returns
    -------
    float
        In 1 / squared distance, > 0.

    Raises
    ------
    DataError
        If all rows are the same.

    References
    ----------
    Garreau, Jitkrittum and Kanagawa, "Large sample analysis of the median heuristic", 2017, arXiv 1707.07269.

    Examples
    --------
    >>> square = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> median_gamma({"a": square, "b": -square})
    0.5
    """
    size = min([sample, *(len(x) for x in vectors.values())])
    pooled = np.concatenate([_draw(name, x, size, seed) for name, x in vectors.items()])
    rows = torch.from_numpy(np.ascontiguousarray(pooled, dtype=np.float32))
    with exact_math():
        median = _median(rows)
    if math.isnan(median):
        raise DataError(
            f"All {len(rows)} sampled rows of {len(vectors)} domains are the same: no bandwidth fits.",
            "Check the column that was read, or give --bandwidth a number.",
        )
    return 1.0 / median


def _draw(name: str, x: NDArray[np.floating], size: int, seed: int) -> NDArray[np.floating]:
    rng = generator("bandwidth", seed, name)
    return x[np.sort(rng.choice(len(x), size, replace=False))] if size < len(x) else x


def _median(rows: torch.Tensor) -> float:
    """Exact median of the non-zero squared distances; NaN if there are none.

    A small sample brackets the median; the full pass counts what lies below the bracket and keeps what lies inside.
    Should the bracket miss, the second pass keeps everything.
    """
    generator = torch.Generator().manual_seed(0)
    some = rows[torch.randperm(len(rows), generator=generator)[:_GUESS]]
    _, guess = _collect(some, 0.0, math.inf)
    if len(guess) == 0 or len(some) == len(rows):
        low, high = 0.0, math.inf
    else:
        low, high = (float(v) for v in np.quantile(guess, [0.47, 0.53]))
    for bounds in ((low, high), (0.0, math.inf)):
        (below, total), inside = _collect(rows, *bounds)
        first, last = (total - 1) // 2 - below, total // 2 - below
        if first >= 0 and last < len(inside):
            middle = np.partition(inside, [first, last])[[first, last]]
            return float(middle.astype(np.float64).mean())
    return math.nan


def _collect(rows: torch.Tensor, low: float, high: float) -> tuple[tuple[int, int], NDArray[np.float32]]:
    """Return how many non-zero distances lie below ``low``, how many there are, and those in [low, high]."""
    below = total = 0
    inside = []
    zero = _SAME * torch.finfo(rows.dtype).eps * math.sqrt(rows.shape[1]) * float((rows * rows).sum(1).max())
    for top in range(0, len(rows), _TILE):
        upper = rows[top : top + _TILE]
        for side in range(top, len(rows), _TILE):
            distance = squared_distances(upper, rows[side : side + _TILE])
            if side == top:
                row, column = torch.triu_indices(len(distance), len(distance), offset=1)
                distance = distance[row, column]
            distance = distance[distance > zero]
            below += int((distance < low).sum())
            total += distance.numel()
            inside.append(distance[(distance >= low) & (distance <= high)].numpy())
    return (below, total), np.concatenate(inside)
