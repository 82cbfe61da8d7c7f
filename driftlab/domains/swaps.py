r"""The permutations of all pairs of domains, held so that one pass over the kernel serves every pair.

A permutation of the pooled rows of two domains a and b matters only through who ends up on which side. Every such
relabelling is a *swap*: some rows M of a change places with equally many rows of b. So a uniformly random
relabelling is drawn in two steps: the number of swapped rows s is hypergeometric,

.. math:: P(s) = \binom{n_a}{s} \binom{n_b}{s} \Big/ \binom{n_a + n_b}{n_a},

and given s the rows that leave a, and those that leave b, are independent uniform s-subsets.

Two consequences keep 55 pairs cheap. The subset that leaves a does not depend on *which* b it meets, only on s, so
all partners of one size share it: a domain has one set of moved rows per partner size instead of one per partner.
And the subsets are bits, so that 50,000 rows with 1,999 permutations take 12.5 MB. Each pair alone sees exactly
uniform, independent relabellings; different pairs see dependent ones, which Holm's correction allows.

Rows that belong together (clusters) move together: the units that are swapped are then clusters, not rows.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.seeding import generator

SizeClass = tuple[int, int]
"""The number of units (rows or clusters) of the smaller and of the larger domain of a pair."""


class Swaps:
    """Random swaps between every pair of domains.

    Parameters
    ----------
    clusters : mapping of str to int array of shape (n,)
        For each domain the unit each row belongs to, numbered from 0; ``arange(n)`` where every row stands alone.
    permutations : int
        How many relabellings B to draw.
    seed : int
        The draws depend on this, on the names and sizes of the two domains, and on nothing else: a further domain
        changes no p-value of the old ones.
    """

    def __init__(self, clusters: Mapping[str, NDArray[np.int64]], permutations: int, seed: int) -> None:
        self.permutations = permutations
        self._clusters = clusters
        self._units = {name: int(ids.max()) + 1 for name, ids in clusters.items()}
        self._bits: dict[tuple[str, SizeClass], NDArray[np.uint8]] = {}
        if permutations == 0:
            return
        for name in clusters:
            for size_class in self.classes(name):
                counts = _swap_counts(size_class, permutations, seed)
                rng = generator("moved", seed, name, *size_class)
                self._bits[name, size_class] = _moved(self._units[name], counts, rng)

    def size_class(self, left: str, right: str) -> SizeClass:
        """Return the key under which the swaps of two domains are stored."""
        a, b = sorted((self._units[left], self._units[right]))
        return a, b

    def classes(self, name: str) -> list[SizeClass]:
        """Return the distinct size classes of one domain with all the others."""
        return sorted({self.size_class(name, other) for other in self._clusters if other != name})

    def moved(self, name: str, size_class: SizeClass, rows: slice) -> NDArray[np.uint8]:
        """Return a 0/1 array of shape (rows, B): whether each row of ``name`` leaves in each permutation."""
        bits = self._bits[name, size_class][self._clusters[name][rows]]
        return np.unpackbits(bits, axis=1, count=self.permutations)


def _swap_counts(size_class: SizeClass, permutations: int, seed: int) -> NDArray[np.int64]:
    small, large = size_class
    return (
        generator("swaps", seed, small, large).hypergeometric(large, small, small, size=permutations).astype(np.int64)
    )


def _moved(units: int, counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw, for each permutation, a uniform subset of ``counts[t]`` units; packed along the permutations."""
    packed = np.empty((units, -(-len(counts) // 8)), dtype=np.uint8)
    order = np.arange(units, dtype=np.int32)
    for byte, start in enumerate(range(0, len(counts), 8)):
        some = counts[start : start + 8]
        ranks = np.stack([rng.permutation(order) for _ in some], axis=1)
        packed[:, byte] = np.packbits(ranks < some, axis=1)[:, 0]
    return packed
