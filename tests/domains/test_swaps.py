"""The relabellings are uniform, independent of other domains, and few bits."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from driftlab.domains.swaps import Swaps


def ids(**sizes):
    return {name: np.arange(n) for name, n in sizes.items()}


def both(swaps, a, b):
    key = swaps.size_class(a, b)
    return swaps.moved(a, key, slice(None)), swaps.moved(b, key, slice(None))


def test_as_many_rows_come_as_go():
    swaps = Swaps(ids(a=7, b=5, c=9), 50, 0)
    for a, b in combinations("abc", 2):
        u, v = both(swaps, a, b)
        np.testing.assert_array_equal(u.sum(0), v.sum(0))


def test_every_relabelling_is_equally_likely():
    draws = 20_000
    u, v = both(Swaps(ids(a=2, b=3), draws, 1), "a", "b")
    left = np.concatenate([1 - u, v])  # who is in a afterwards
    assert set(left.sum(0)) == {2}
    codes = np.array([1, 2, 4, 8, 16]) @ left
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 0.001


def test_rows_are_exchangeable_in_a_large_domain():
    u, v = both(Swaps(ids(a=40, b=60), 4000, 2), "a", "b")
    # Every row changes sides with the share of the other domain.
    assert stats.chisquare(u.sum(1)).pvalue > 0.001
    assert u.mean() == pytest.approx(0.6, abs=0.01)
    assert v.mean() == pytest.approx(0.4, abs=0.01)


def test_partners_of_one_size_share_their_bits_and_other_domains_change_nothing():
    few, many = Swaps(ids(a=6, b=8), 30, 0), Swaps(ids(z=8, a=6, c=4, b=8), 30, 0)
    for one, other in zip(both(few, "a", "b"), both(many, "a", "b"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert many.classes("a") == [(4, 6), (6, 8)]
    assert not np.array_equal(both(many, "z", "a")[0], both(many, "b", "a")[0])


def test_the_seed_matters():
    one, other = (both(Swaps(ids(a=9, b=9), 40, seed), "a", "b")[0] for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_groups_move_together():
    clusters = {"a": np.array([0, 1, 0, 2, 2]), "b": np.arange(4)}
    u, _ = both(Swaps(clusters, 50, 0), "a", "b")
    np.testing.assert_array_equal(u[0], u[2])
    np.testing.assert_array_equal(u[3], u[4])


def test_fifty_thousand_rows_take_a_bit_a_permutation():
    swaps = Swaps(ids(a=25_000, b=25_000), 16, 0)
    assert sum(bits.nbytes for bits in swaps._bits.values()) == 50_000 * 2
