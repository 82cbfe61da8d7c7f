"""Holm, the difference test, and rankings."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from driftlab.domains.comparisons import compare_distances, kendall, rank_agreement
from driftlab.domains.mmd import measure_distances
from driftlab.multiplicity import holm


def test_holm_matches_its_definition():
    p = np.random.default_rng(0).uniform(size=12) ** 3
    order = np.argsort(p)
    twin = np.empty(12)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (12 - rank) * p[index]))
        twin[index] = running
    np.testing.assert_allclose(holm(p), twin)


def test_holm_leaves_missing_tests_out_of_the_family():
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)


def domains(rng, sizes, shifts):
    return {
        name: rng.normal(size=(n, 3)) + np.array([shift, 0, 0])
        for name, n, shift in zip("abcd", sizes, shifts, strict=False)
    }


def test_every_two_distances_that_share_a_domain_are_compared_once():
    result = measure_distances(domains(np.random.default_rng(0), (8, 9, 10, 11), (0, 1, 2, 3)), 0.2, permutations=0)
    found = compare_distances(result.names, result.matrix(), result.left_out)
    assert len(found) == 4 * 3
    assert {(d.shared, frozenset((d.near, d.far))) for d in found} == {
        (s, frozenset(pair)) for s in "abcd" for pair in combinations(sorted(set("abcd") - {s}), 2)
    }
    assert all(d.difference >= 0 for d in found)
    place = {name: i for i, name in enumerate(result.names)}
    square = result.matrix()
    for d in found:
        direct = square[place[d.shared], place[d.far]] - square[place[d.shared], place[d.near]]
        assert d.difference == pytest.approx(direct)


def test_the_error_of_a_difference_is_that_of_leaving_rows_out_of_both():
    vectors = domains(np.random.default_rng(1), (9, 7, 8), (0, 1, 2))
    gamma = 0.3

    def difference(rows):
        result = measure_distances(rows, gamma, permutations=0, precision="float64").matrix()
        return result[0, 2] - result[0, 1]

    variance = 0.0
    for name, x in vectors.items():
        values = np.array([difference({**vectors, name: np.delete(x, i, 0)}) for i in range(len(x))])
        variance += (len(x) - 1) / len(x) * ((values - values.mean()) ** 2).sum()
    result = measure_distances(vectors, gamma, permutations=0, precision="float64")
    found = next(d for d in compare_distances(result.names, result.matrix(), result.left_out) if d.shared == "a")
    assert found.se == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(found.difference / found.se))


def test_the_difference_test_holds_its_level():
    rng = np.random.default_rng(2)
    rejected = []
    for _ in range(200):
        vectors = domains(rng, (50, 40, 60), (0, 1.5, -1.5))  # b and c are equally far from a
        result = measure_distances(vectors, 0.2, permutations=0, precision="float64")
        found = next(d for d in compare_distances(result.names, result.matrix(), result.left_out) if d.shared == "a")
        rejected.append(found.p_value < 0.05)
    assert 0.005 <= np.mean(rejected) <= 0.1


def test_two_rows_give_no_difference_test():
    vectors = domains(np.random.default_rng(3), (2, 9, 9), (0, 1, 2))
    result = measure_distances(vectors, 0.2, permutations=0)
    found = compare_distances(result.names, result.matrix(), result.left_out)
    assert all(math.isnan(d.p_value) and math.isnan(d.se) and math.isnan(d.p_holm) for d in found)


def test_kendall_counts_concordant_pairs():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    assert kendall(x, y) == pytest.approx((5 - 1) / 6)
    assert math.isnan(kendall(x[:1], y[:1]))


def test_rank_agreement_uses_common_pairs_only():
    one = {frozenset("ab"): 1.0, frozenset("ac"): 2.0, frozenset("bc"): 3.0}
    other = {frozenset("ab"): 9.0, frozenset("ac"): 8.0, frozenset("xy"): 1.0}
    found = rank_agreement(one, other)
    assert found == pytest.approx({"pairs": 2, "kendall_tau": -1.0, "spearman_rho": -1.0})
    assert math.isnan(rank_agreement(one, {frozenset("ab"): 1.0})["kendall_tau"])
