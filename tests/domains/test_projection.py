"""The maps keep distances where they can, and say why where they cannot."""

import numpy as np
import pytest

from driftlab.domains.projection import mds_map, tsne_map


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clouds(**sizes):
    rng = np.random.default_rng(0)
    return {name: unit(rng.normal(size=(n, 8)) + 4 * rng.normal(size=8)) for name, n in sizes.items()}


def test_mds_recovers_points_of_the_plane():
    points = np.random.default_rng(1).normal(size=(6, 2))
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    placed, stress = mds_map(squared)
    found = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    np.testing.assert_allclose(found, np.sqrt(squared), atol=1e-6)
    assert stress < 1e-6


def test_mds_says_what_two_dimensions_cannot_hold():
    squared = 1.0 - np.eye(5)  # five points at one distance need four dimensions
    _, stress = mds_map(squared)
    assert 0.1 < stress < 0.5


def test_mds_is_the_same_every_time_and_takes_negative_values_as_zero():
    squared = np.array([[0.0, -0.01, 0.3], [-0.01, 0.0, 0.3], [0.3, 0.3, 0.0]])
    one, other = mds_map(squared)[0], mds_map(squared)[0]
    np.testing.assert_array_equal(one, other)
    assert np.linalg.norm(one[0] - one[1]) == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_array_equal(mds_map(np.zeros((3, 3)))[0], 0.0)


def test_tsne_takes_a_balanced_sample_and_keeps_clusters_apart():
    vectors = clouds(a=60, b=20)
    found = tsne_map(vectors, cap=25, seed=3)
    assert {name: len(rows) for name, rows in found.chosen.items()} == {"a": 25, "b": 20}
    assert found.settings["perplexity"] == pytest.approx(44 / 3)
    a, b = found.points["a"], found.points["b"]
    apart = np.linalg.norm(a.mean(0) - b.mean(0))
    assert apart > np.linalg.norm(a - a.mean(0), axis=1).mean()
    assert len(set(found.chosen["a"])) == 25
    assert found.chosen["a"].max() >= 25  # not the head of the file


def test_tsne_repeats_itself_for_a_seed():
    vectors = clouds(a=12, b=9)
    np.testing.assert_array_equal(tsne_map(vectors).points["a"], tsne_map(vectors).points["a"])


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        ({"a": np.eye(3, dtype=np.float32)[:1], "b": np.eye(3, dtype=np.float32)[1:]}, "fewer than 4 texts"),
        ({"a": np.ones((5, 3), np.float32), "b": np.ones((4, 3), np.float32)}, "all texts are the same"),
    ],
)
def test_no_map_where_there_is_nothing_to_see(vectors, reason):
    found = tsne_map(vectors)
    assert found.points == {}
    assert found.settings["reason"] == f"no t-SNE map: {reason}"
