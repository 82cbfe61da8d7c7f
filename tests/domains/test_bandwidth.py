"""One bandwidth: exact median, every domain alike, the same whatever else is measured."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from driftlab.domains import bandwidth
from driftlab.domains.bandwidth import median_gamma
from driftlab.errors import DataError


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def twin(rows):
    squared = pdist(rows.astype(np.float64), "sqeuclidean")
    return 1 / np.median(squared[squared > 1e-6])


@pytest.mark.parametrize("sizes", [(3, 3), (20, 20), (61, 61, 61)])
def test_gamma_is_one_over_the_median_squared_distance(sizes):
    rng = np.random.default_rng(0)
    vectors = {str(i): unit(rng.normal(size=(n, 6)) + i) for i, n in enumerate(sizes)}
    assert median_gamma(vectors) == pytest.approx(twin(np.concatenate(list(vectors.values()))), rel=1e-5)


def test_the_bracketed_pass_finds_the_exact_median(monkeypatch):
    monkeypatch.setattr(bandwidth, "_GUESS", 40)
    monkeypatch.setattr(bandwidth, "_TILE", 64)
    rng = np.random.default_rng(1)
    vectors = {name: unit(rng.normal(size=(200, 6)) + shift) for name, shift in (("a", 0), ("b", 0.5), ("c", 2))}
    assert median_gamma(vectors) == pytest.approx(twin(np.concatenate(list(vectors.values()))), rel=1e-5)


def test_a_bracket_that_misses_is_widened(monkeypatch):
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(unit(rng.normal(size=(300, 6))))
    monkeypatch.setattr(bandwidth, "_GUESS", 2)  # one distance: its quantiles bracket nothing
    found = bandwidth._median(rows)
    assert found == pytest.approx(1 / twin(rows.numpy()), rel=1e-5)


def test_a_large_domain_counts_no_more_than_a_small_one():
    rng = np.random.default_rng(2)
    tight, wide = unit(rng.normal(size=(2000, 4)) * 0.01 + 1), unit(rng.normal(size=(40, 4)))
    balanced = median_gamma({"tight": tight, "wide": wide})
    pooled = twin(np.concatenate([tight, wide]))
    assert balanced < pooled / 100


def test_at_most_a_thousand_rows_of_a_domain_are_drawn_at_random():
    rng = np.random.default_rng(3)
    x = unit(rng.normal(size=(1500, 4)))
    first = median_gamma({"a": x, "b": x[::-1].copy()}, seed=0)
    assert first == pytest.approx(twin(x), rel=0.02)
    assert first != median_gamma({"a": x, "b": x[::-1].copy()}, seed=1)


def test_half_duplicates_do_not_make_the_median_zero():
    rng = np.random.default_rng(4)
    same = np.tile(unit(np.ones((1, 6))), (30, 1))
    vectors = {"a": np.concatenate([same, unit(rng.normal(size=(10, 6)))]), "b": unit(rng.normal(size=(40, 6)))}
    assert median_gamma(vectors) == pytest.approx(twin(np.concatenate(list(vectors.values()))), rel=1e-5)


@pytest.mark.parametrize("width", [1, 384, 2560, 4096])
def test_equal_texts_have_no_bandwidth(width):
    same = np.tile(unit(np.full((1, width), 0.7)), (10, 1))
    with pytest.raises(DataError, match=r"All 20 sampled rows of 2 domains are the same: .*--bandwidth"):
        median_gamma({"a": same, "b": same})
