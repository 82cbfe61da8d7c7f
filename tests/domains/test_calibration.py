"""Simulations with known truth: p is uniform when two samples are alike, intervals cover when they are not."""

import numpy as np
from scipy import stats

from driftlab.domains.mmd import measure_distances


def test_p_is_uniform_when_both_samples_come_from_one_distribution():
    rng = np.random.default_rng(11)
    p_values = []
    for seed in range(250):
        pool = rng.normal(size=(45, 4))
        result = measure_distances(
            {"a": pool[:25], "b": pool[25:]}, 0.2, permutations=99, seed=seed, precision="float64"
        )
        p_values.append(result.pairs[0].p_value)
    # p takes the values 1/100 … 1: jitter makes it continuous.
    jittered = np.array(p_values) - rng.uniform(0, 0.01, len(p_values))
    assert stats.kstest(jittered, "uniform").pvalue > 0.01
    assert np.mean(np.array(p_values) <= 0.05) < 0.1


def test_p_is_uniform_when_whole_groups_are_alike_and_not_when_rows_are_relabelled():
    rng = np.random.default_rng(12)
    grouped, alone = [], []
    for seed in range(120):
        centres = rng.normal(size=(16, 3))
        rows = np.repeat(centres, 4, axis=0) + 0.2 * rng.normal(size=(64, 3))
        vectors, ids = {"a": rows[:32], "b": rows[32:]}, np.repeat(np.arange(8), 4)
        options = {"permutations": 99, "seed": seed, "precision": "float64"}
        grouped.append(measure_distances(vectors, 0.3, clusters={"a": ids, "b": ids}, **options).pairs[0].p_value)
        alone.append(measure_distances(vectors, 0.3, **options).pairs[0].p_value)
    assert stats.kstest(np.array(grouped) - rng.uniform(0, 0.01, 120), "uniform").pvalue > 0.01
    assert np.mean(np.array(alone) <= 0.05) > 0.3  # what ignoring the groups would report


def test_intervals_cover_the_closed_form():
    rng = np.random.default_rng(13)
    gamma, width, shift = 0.25, 3, 0.7
    scale = 1 + 4 * gamma
    truth = 2 * scale ** (-width / 2) * (1 - np.exp(-gamma * shift**2 / scale))
    covered = []
    for _ in range(200):
        x, y = rng.normal(size=(60, width)), rng.normal(size=(40, width))
        y[:, 0] += shift
        pair = measure_distances({"x": x, "y": y}, gamma, permutations=0, precision="float64").pairs[0]
        covered.append(pair.ci_low <= truth <= pair.ci_high)
    assert np.mean(covered) >= 0.9


def test_intervals_cover_zero_when_both_samples_are_alike():
    rng = np.random.default_rng(14)
    covered = []
    for _ in range(200):
        x, y = rng.normal(size=(60, 3)), rng.normal(size=(60, 3))
        pair = measure_distances({"x": x, "y": y}, 0.25, permutations=0, precision="float64").pairs[0]
        covered.append(pair.ci_low <= 0 <= pair.ci_high)
    assert np.mean(covered) >= 0.9


def test_group_intervals_cover_where_row_intervals_are_too_narrow():
    rng = np.random.default_rng(15)
    gamma, width = 0.25, 3
    scale = 1 + 4 * gamma * 1.04
    truth = 2 * scale ** (-width / 2) * (1 - np.exp(-gamma * 1.5**2 / scale))
    by_group, by_row = [], []
    for _ in range(120):
        rows = [np.repeat(rng.normal(size=(15, width)), 5, axis=0) + 0.2 * rng.normal(size=(75, width)) for _ in "xy"]
        rows[1][:, 0] += 1.5
        vectors, ids = dict(zip("xy", rows, strict=True)), np.repeat(np.arange(15), 5)
        for found, clusters in ((by_group, {"x": ids, "y": ids}), (by_row, None)):
            pair = measure_distances(vectors, gamma, clusters=clusters, permutations=0, precision="float64").pairs[0]
            found.append(pair.ci_low <= truth <= pair.ci_high)
    assert np.mean(by_row) < 0.75
    assert np.mean(by_group) > np.mean(by_row) + 0.1
