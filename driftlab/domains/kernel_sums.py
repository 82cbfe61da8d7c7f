r"""One blocked pass over all stacked domains: everything that MMD, intervals and p-values need, and no kernel matrix.

With k(x, y) = exp(-gamma ||x - y||^2) the pass fills, for every row i and every domain b,

.. math:: R_{ib} = \sum_{j \in b,\, j \ne i} k(x_i, x_j),

an N x domains table (one for each gamma that is asked for). Leaving one row out, or taking the whole, is arithmetic
on this table. A permutation is not: it needs the kernel summed over an arbitrary subset. Written as a swap (see
:mod:`driftlab.domains.swaps`) with u, v the 0/1 vectors of the rows that leave a and b,

.. math::

    S'_{AA} &= S_{aa} - 2\,u^T R_{\cdot a} + P_a + 2\,(v^T R_{\cdot a} - X) + P_b \\
    S'_{BB} &= S_{bb} - 2\,v^T R_{\cdot b} + P_b + 2\,(u^T R_{\cdot b} - X) + P_a \\
    S'_{AA} + 2 S'_{AB} + S'_{BB} &= S_{aa} + 2 S_{ab} + S_{bb}

so all terms but three come from the table: P_a = u'K_aa u, P_b = v'K_bb v and X = u'K_ab v. These quadratic forms are
accumulated tile by tile in the same pass (one matrix product of the tile with the 0/1 matrix of all permutations).
P_a is shared by all partners of one size. For D domains of n rows the cost is D(D-1)/2 + D/2 products of n x n x B
instead of 2 D(D-1), and the memory is that of a tile.

Tiles never cross a domain's border and their shapes depend on the two domains alone: adding a domain repeats every
old product with the same shapes, and the old numbers stay what they were.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from driftlab.devices import exact_math
from driftlab.domains.swaps import SizeClass, Swaps

Vector = NDArray[np.float64]
Advance = Callable[[int], None]


@dataclass
class KernelSums:
    """What the pass leaves behind.

    Attributes
    ----------
    rows : dict of (str, str) to array of shape (gammas, n)
        ``rows[a, b][g, i]``: sum of the kernel between row i of a and all rows of b, without i itself.
    clustered : dict of str to array of shape (n,)
        For the first gamma: sum of the kernel between row i and the other rows of its cluster.
    within : dict of (str, SizeClass) to array of shape (B,)
        P: the kernel summed over the ordered pairs of moved rows of one domain, for the first gamma.
    between : dict of (str, str) to array of shape (B,)
        X: the kernel summed between the moved rows of two domains, for the first gamma.
    """

    rows: dict[tuple[str, str], Vector] = field(default_factory=dict)
    clustered: dict[str, Vector] = field(default_factory=dict)
    within: dict[tuple[str, SizeClass], Vector] = field(default_factory=dict)
    between: dict[tuple[str, str], Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """The settings of one pass; ``block`` is the side of a tile and bounds the memory."""

    gammas: Sequence[float]
    block: int
    dtype: torch.dtype
    device: torch.device


def pass_units(sizes: Sequence[int]) -> int:
    """Return how many kernel values a pass computes, the unit of its progress."""
    total = sum(sizes)
    return (total * total + sum(n * n for n in sizes)) // 2


def sum_kernel(
    vectors: Mapping[str, NDArray[np.floating]],
    clusters: Mapping[str, NDArray[np.int64]],
    swaps: Swaps,
    settings: Pass,
    advance: Advance = lambda values: None,
) -> KernelSums:
    """Run the pass over checked input (rows finite, same width, at least one row per domain).

    Products in ``settings.dtype`` without TF32, sums in float64.
    """
    sums = KernelSums()
    names = list(vectors)
    with exact_math():
        for position, left in enumerate(names):
            _within_domain(left, vectors[left], clusters[left], swaps, settings, sums, advance)
            for right in names[position + 1 :]:
                _between_domains(left, right, vectors, swaps, settings, sums, advance)
    return sums


def _within_domain(
    name: str,
    x: NDArray[np.floating],
    clusters: NDArray[np.int64],
    swaps: Swaps,
    settings: Pass,
    sums: KernelSums,
    advance: Advance,
) -> None:
    """Fill the sums of one domain with itself from the upper triangle of tiles."""
    table = _zeros(len(settings.gammas), len(x), settings)
    clustered = _zeros(1, len(x), settings)[0]
    grouped = int(clusters.max()) + 1 < len(x)
    ids = torch.from_numpy(clusters).to(settings.device)
    classes = swaps.classes(name) if swaps.permutations else []
    within = {key: _zeros(1, swaps.permutations, settings)[0] for key in classes}
    for top in _tiles(len(x), settings.block):
        upper = _on_device(x[top], settings)
        moved_top = {key: _moved(swaps, name, key, top, settings) for key in classes}
        for side in _tiles(len(x), settings.block, start=top.start):
            diagonal = side.start == top.start
            distance = squared_distances(upper, upper if diagonal else _on_device(x[side], settings))
            for g, gamma in enumerate(settings.gammas):
                kernel = torch.exp(-gamma * distance)
                if diagonal:
                    kernel.fill_diagonal_(0.0)
                wide = kernel.double()
                table[g, top] += wide.sum(1)
                if not diagonal:
                    table[g, side] += wide.sum(0)
                if g > 0:
                    continue
                if grouped:
                    together = wide * (ids[top, None] == ids[None, side])
                    clustered[top] += together.sum(1)
                    if not diagonal:
                        clustered[side] += together.sum(0)
                for key, total in within.items():
                    moved = moved_top[key] if diagonal else _moved(swaps, name, key, side, settings)
                    total += _form(moved_top[key], kernel, moved) * (1 if diagonal else 2)
            advance(distance.numel() if diagonal else 2 * distance.numel())
    sums.rows[name, name] = table.cpu().numpy()
    sums.clustered[name] = clustered.cpu().numpy()
    sums.within |= {(name, key): total.cpu().numpy() for key, total in within.items()}


def _between_domains(
    left: str,
    right: str,
    vectors: Mapping[str, NDArray[np.floating]],
    swaps: Swaps,
    settings: Pass,
    sums: KernelSums,
    advance: Advance,
) -> None:
    """Fill the sums of two domains with each other, both ways, from one rectangle of tiles."""
    x, y = vectors[left], vectors[right]
    forth = _zeros(len(settings.gammas), len(x), settings)
    back = _zeros(len(settings.gammas), len(y), settings)
    between = _zeros(1, swaps.permutations, settings)[0]
    key = swaps.size_class(left, right)
    for top in _tiles(len(x), settings.block):
        upper = _on_device(x[top], settings)
        moved_top = _moved(swaps, left, key, top, settings) if swaps.permutations else None
        for side in _tiles(len(y), settings.block):
            distance = squared_distances(upper, _on_device(y[side], settings))
            for g, gamma in enumerate(settings.gammas):
                kernel = torch.exp(-gamma * distance)
                wide = kernel.double()
                forth[g, top] += wide.sum(1)
                back[g, side] += wide.sum(0)
                if g == 0 and moved_top is not None:
                    between += _form(moved_top, kernel, _moved(swaps, right, key, side, settings))
            advance(distance.numel())
    sums.rows[left, right] = forth.cpu().numpy()
    sums.rows[right, left] = back.cpu().numpy()
    sums.between[left, right] = between.cpu().numpy()


def squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    r"""Squared distances between rows by :math:`\|x\|^2 + \|y\|^2 - 2 x^T y`, clamped at 0.

    The product form costs one matrix product; ``torch.cdist`` takes square roots that would be squared again.
    Its rounding error is about eps times the squared norms, so rows should be unit vectors or float64.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    y : Tensor of shape (m, d)

    Returns
    -------
    Tensor of shape (n, m), at least 0

    Examples
    --------
    >>> squared_distances(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]]))
    tensor([[0., 4.],
            [1., 1.]])
    """
    norms = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :]
    return torch.addmm(norms, x, y.T, alpha=-2).clamp_min_(0.0)


def _form(left: torch.Tensor, kernel: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the B quadratic forms ``left[:, t]' kernel right[:, t]``, summed in float64."""
    return (kernel @ right).mul_(left).double().sum(0)


def _moved(swaps: Swaps, name: str, key: SizeClass, rows: slice, settings: Pass) -> torch.Tensor:
    return torch.from_numpy(swaps.moved(name, key, rows)).to(settings.device, settings.dtype)


def _tiles(size: int, block: int, start: int = 0) -> Iterator[slice]:
    return (slice(begin, min(begin + block, size)) for begin in range(start, size, block))


def _on_device(rows: NDArray[np.floating], settings: Pass) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(settings.device, settings.dtype)


def _zeros(height: int, width: int, settings: Pass) -> torch.Tensor:
    return torch.zeros((height, width), dtype=torch.float64, device=settings.device)
