"""The distances against double loops, closed forms and invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.devices import exact_math
from driftlab.domains.estimates import jackknife_variance
from driftlab.domains.kernel_sums import pass_units
from driftlab.domains.mmd import FACTORS, measure_distances
from driftlab.domains.swaps import Swaps
from driftlab.errors import DataError, ShapeError, UsageError

# -- the twin: double loops in Python floats -------------------------------


def kernel(x, y, gamma):
    return math.exp(-gamma * sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True)))


def mean_between(x, y, gamma):
    return sum(kernel(a, b, gamma) for a in x for b in y) / (len(x) * len(y))


def mean_inside(x, gamma):
    n = len(x)
    return sum(kernel(x[i], x[j], gamma) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def twin_u(x, y, gamma):
    return mean_inside(x, gamma) + mean_inside(y, gamma) - 2 * mean_between(x, y, gamma)


def twin_v(x, y, gamma):
    return mean_between(x, x, gamma) + mean_between(y, y, gamma) - 2 * mean_between(x, y, gamma)


def twin_nammd(x, y, gamma):
    return twin_u(x, y, gamma) / (4 - mean_inside(x, gamma) - mean_inside(y, gamma))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def sample(seed=0, sizes=(7, 5, 9), width=4):
    rng = np.random.default_rng(seed)
    return {
        name: unit(rng.normal(size=(n, width)) + shift)
        for name, n, shift in zip("abcdefgh", sizes, np.linspace(0, 1, len(sizes)), strict=False)
    }


def measured(vectors, gamma=0.7, **options):
    return measure_distances(vectors, gamma, **({"precision": "float64", "permutations": 0} | options))


# -- values ------------------------------------------------------------


def test_estimates_equal_the_double_loop_with_unequal_sizes():
    vectors = sample()
    for pair in measured(vectors).pairs:
        x, y = vectors[pair.left], vectors[pair.right]
        assert pair.mmd2_u == pytest.approx(twin_u(x, y, 0.7), abs=1e-13)
        assert pair.mmd2_v == pytest.approx(twin_v(x, y, 0.7), abs=1e-13)
        assert pair.nammd == pytest.approx(twin_nammd(x, y, 0.7), abs=1e-13)
        assert pair.mmd == math.sqrt(max(pair.mmd2_u, 0.0))
        assert (pair.n_left, pair.n_right) == (len(x), len(y))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-8), ("float32", 1e-7)])
def test_published_known_answer(precision, tolerance):
    x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
    pair = measured({"x": x, "y": y}, 0.5, precision=precision).pairs[0]
    assert pair.mmd2_v == pytest.approx(0.19673467, abs=tolerance)
    assert pair.mmd2_u == pytest.approx(-0.43233236, abs=tolerance)
    assert pair.mmd == 0.0


def test_every_bandwidth_of_the_same_pass_equals_the_double_loop():
    vectors = sample()
    found = measured(vectors).by_factor
    assert list(found) == sorted({1.0, *FACTORS})
    for factor, values in found.items():
        twins = [twin_u(vectors[a], vectors[b], 0.7 * factor) for a, b in (("a", "b"), ("a", "c"), ("b", "c"))]
        np.testing.assert_allclose(values, twins, atol=1e-13)


def gaussian_mmd2(gamma, width, shift, s1, s2):
    """Closed form for N(0, s1^2 I) and N(mu, s2^2 I) with |mu| = shift."""

    def mean(variance, distance):
        scale = 1 + 2 * gamma * variance
        return scale ** (-width / 2) * math.exp(-gamma * distance**2 / scale)

    return mean(2 * s1**2, 0) + mean(2 * s2**2, 0) - 2 * mean(s1**2 + s2**2, shift)


def test_the_closed_form_of_two_gaussians_lies_inside_the_interval():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(900, 3)), 0.8 * rng.normal(size=(700, 3)) + np.array([0.6, 0, 0])
    pair = measured({"x": x, "y": y}, 0.3).pairs[0]
    truth = gaussian_mmd2(0.3, 3, 0.6, 1.0, 0.8)
    assert pair.ci_low < truth < pair.ci_high
    assert pair.ci_high - pair.ci_low < truth  # the interval says something


def test_the_matrix_is_symmetric_and_zero_on_its_diagonal():
    square = measured(sample()).matrix()
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(np.diag(square), 0.0)


# -- invariances -------------------------------------------------------


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-13), ("float32", 1e-7)])
def test_every_block_size_gives_the_same_numbers(precision, tolerance):
    vectors = sample()
    options = {"precision": precision, "permutations": 39}
    whole = measured(vectors, **options)
    for block in range(1, max(map(len, vectors.values())) + 2):
        tiled = measured(vectors, block=block, **options)
        for one, other in zip(whole.pairs, tiled.pairs, strict=True):
            for name in ("mmd2_u", "mmd2_v", "nammd", "se", "ci_low", "ci_high", "null_q95"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), abs=tolerance), (block, name)
            assert one.p_value == other.p_value


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), block=st.integers(1, 12))
def test_row_order_rotation_and_side_do_not_matter(seed, block):
    rng = np.random.default_rng(seed)
    vectors = sample(seed)
    before = measured(vectors, block=block)
    rotation, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    turned = measured({name: rng.permutation(x) @ rotation for name, x in vectors.items()}, block=block)
    flipped = measured(dict(reversed(vectors.items())), block=block)
    for name in ("mmd2_u", "mmd2_v", "se"):
        values = {frozenset((p.left, p.right)): getattr(p, name) for p in before.pairs}
        for other in (*turned.pairs, *flipped.pairs):
            assert getattr(other, name) == pytest.approx(values[frozenset((other.left, other.right))], abs=1e-12)


def test_float32_products_stay_within_1e_7_of_float64():
    vectors = {name: x.astype(np.float32) for name, x in sample(1, (300, 200, 250), 64).items()}
    exact = measured(vectors, 1.0, permutations=99)
    quick = measured(vectors, 1.0, permutations=99, precision="float32")
    for one, other in zip(exact.pairs, quick.pairs, strict=True):
        assert one.mmd2_u == pytest.approx(other.mmd2_u, abs=1e-7)
        assert one.null_q95 == pytest.approx(other.null_q95, abs=1e-7)
        assert one.p_value == other.p_value


def test_a_further_domain_changes_no_old_number():
    vectors = {name: x.astype(np.float32) for name, x in sample(2, (40, 30, 50), 8).items()}
    more = {"new": unit(np.random.default_rng(9).normal(size=(35, 8))).astype(np.float32), **vectors}
    options = {"permutations": 199, "precision": "float32", "block": 16}
    old = measured(vectors, **options)
    new = {(p.left, p.right): p for p in measured(more, **options).pairs}
    for pair in old.pairs:
        same = new[pair.left, pair.right]
        for name in ("mmd2_u", "mmd2_v", "mmd", "nammd", "se", "ci_low", "ci_high", "p_value", "null_q95"):
            assert getattr(same, name) == getattr(pair, name), name  # to the last bit
        assert same.p_holm >= pair.p_holm  # the family of tests has grown


def test_the_process_settings_of_torch_do_not_leak_in():
    vectors = {name: x.astype(np.float32) for name, x in sample(1, (60, 50), 32).items()}
    before = measured(vectors, precision="float32").pairs[0].mmd2_u
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = measured(vectors, precision="float32").pairs[0].mmd2_u
    finally:
        torch.set_float32_matmul_precision("highest")
    assert inside == before
    with exact_math():
        assert measured(vectors, precision="float32").pairs[0].mmd2_u == before


def test_progress_adds_up():
    vectors = sample()
    seen = []
    measured(vectors, block=4, advance=seen.append)
    assert sum(seen) == pass_units([len(x) for x in vectors.values()])


# -- intervals ---------------------------------------------------------


def test_leaving_one_row_out_of_the_table_equals_leaving_it_out_of_the_data():
    vectors = sample()
    found = measured(vectors).left_out
    for (a, b), values in found.items():
        twins = [twin_u(np.delete(vectors[a], i, 0), vectors[b], 0.7) for i in range(len(vectors[a]))]
        np.testing.assert_allclose(values, twins, atol=1e-13)


def test_leaving_a_group_out_equals_leaving_it_out_of_the_data():
    vectors = sample()
    clusters = {"a": np.array([4, 4, 9, 9, 9, 1, 2]), "b": np.arange(5), "c": np.array([0, 1, 1, 2, 2, 2, 3, 3, 4])}
    for block in (2, 100):
        found = measured(vectors, clusters=clusters, block=block).left_out
        for a, b in (("a", "b"), ("c", "a")):
            twins = [twin_u(vectors[a][clusters[a] != c], vectors[b], 0.7) for c in np.unique(clusters[a])]
            np.testing.assert_allclose(found[a, b], twins, atol=1e-13)


def test_the_interval_is_t_times_the_jackknife_error_of_both_samples():
    vectors = sample()
    result = measured(vectors)
    pair = result.pairs[0]
    parts = [jackknife_variance(result.left_out["a", "b"]), jackknife_variance(result.left_out["b", "a"])]
    assert pair.se == pytest.approx(math.sqrt(sum(parts)), rel=1e-12)
    assert pair.ci_high - pair.mmd2_u == pytest.approx(pair.mmd2_u - pair.ci_low, rel=1e-9)
    assert (pair.ci_high - pair.mmd2_u) / pair.se > 1.96


def test_jackknife_variance_of_a_mean_is_the_textbook_one():
    x = np.random.default_rng(0).normal(size=30)
    left_out = (x.sum() - x) / 29
    assert jackknife_variance(left_out) == pytest.approx(x.var(ddof=1) / 30, rel=1e-12)


def test_two_rows_give_a_value_and_no_interval():
    vectors = {"a": sample()["a"][:2], "b": sample()["b"]}
    pair = measured(vectors, permutations=19).pairs[0]
    assert pair.mmd2_u == pytest.approx(twin_u(vectors["a"], vectors["b"], 0.7), abs=1e-13)
    assert math.isnan(pair.ci_low)
    assert math.isnan(pair.se)
    assert 0 < pair.p_value <= 1
    assert pair.reason == "no interval: 2 independent rows or groups on one side, at least 3 needed"


def test_a_group_that_is_almost_everything_gives_no_interval():
    clusters = {"a": np.array([0, 0, 0, 0, 0, 1, 2]), "b": np.arange(5)}
    vectors = {name: sample()[name] for name in "ab"}
    pair = measured(vectors, clusters={**clusters, "a": np.array([0] * 6 + [1])}).pairs[0]
    assert math.isnan(pair.se)
    one_left = {"a": np.array([0, 0, 0, 0, 0, 0, 1]), "b": np.arange(5)}
    assert math.isnan(measured(vectors, clusters=one_left).left_out["a", "b"][0])
    assert not math.isnan(measured(vectors, clusters=clusters).pairs[0].se)


def test_one_group_only_gives_no_p_value():
    vectors = {name: sample()[name] for name in "ab"}
    pair = measured(vectors, clusters={"a": np.zeros(7, int), "b": np.arange(5)}, permutations=19).pairs[0]
    assert math.isnan(pair.p_value)
    assert math.isnan(pair.p_holm)
    assert pair.reason


# -- relabellings ------------------------------------------------------


def relabelled_twins(vectors, a, b, permutations, clusters=None, seed=0, gamma=0.7):
    ids = clusters or {name: np.arange(len(x)) for name, x in vectors.items()}
    swaps = Swaps(ids, permutations, seed)
    key = swaps.size_class(a, b)
    u = swaps.moved(a, key, slice(None)).astype(bool)
    v = swaps.moved(b, key, slice(None)).astype(bool)
    x, y = vectors[a], vectors[b]
    return np.array(
        [
            twin_u(np.concatenate([x[~u[:, t]], y[v[:, t]]]), np.concatenate([x[u[:, t]], y[~v[:, t]]]), gamma)
            for t in range(permutations)
        ]
    )


@pytest.mark.parametrize("block", [3, 100])
def test_the_null_equals_relabelling_the_data(block):
    vectors = sample()
    for pair in measured(vectors, permutations=29, block=block).pairs:
        null = relabelled_twins(vectors, pair.left, pair.right, 29)
        observed = twin_u(vectors[pair.left], vectors[pair.right], 0.7)
        assert pair.p_value == (1 + (null >= observed - 1e-12).sum()) / 30
        assert pair.null_q95 == pytest.approx(np.quantile(null, 0.95, method="higher"), abs=1e-13)


def test_the_null_moves_groups_as_a_whole():
    vectors = sample()
    clusters = {"a": np.array([0, 0, 1, 1, 1, 2, 3]), "b": np.array([0, 0, 1, 2, 2]), "c": np.arange(9)}
    for pair in measured(vectors, clusters=clusters, permutations=29, block=4).pairs:
        null = relabelled_twins(vectors, pair.left, pair.right, 29, clusters)
        observed = twin_u(vectors[pair.left], vectors[pair.right], 0.7)
        assert pair.p_value == (1 + (null >= observed - 1e-12).sum()) / 30
        assert pair.null_q95 == pytest.approx(np.quantile(null, 0.95, method="higher"), abs=1e-13)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_equal_texts_are_never_apart(precision):
    vectors = {name: np.tile(unit(np.full((1, 384), 0.3)), (n, 1)) for name, n in (("a", 20), ("b", 31))}
    pair = measured(vectors, 1.0, permutations=99, precision=precision).pairs[0]
    assert pair.mmd2_u == pytest.approx(0.0, abs=1e-6)
    assert pair.p_value == 1.0
    assert pair.mmd2_u <= pair.null_q95 + 1e-6


def test_repeated_rows_give_the_right_value_and_ties_count_against_a_difference():
    x = sample(4, (12, 12), 5)
    half = {name: np.concatenate([rows[:6], rows[:6]]) for name, rows in x.items()}
    pair = measured(half, permutations=199).pairs[0]
    assert pair.mmd2_u == pytest.approx(twin_u(half["a"], half["b"], 0.7), abs=1e-13)
    same = {"a": half["a"], "b": half["a"]}
    assert measured(same, permutations=199, precision="float32").pairs[0].p_value > 0.5


def test_p_is_never_zero_and_no_permutations_give_no_p():
    far = {"a": unit(np.random.default_rng(0).normal(size=(30, 3)) + 9), "b": -unit(np.ones((30, 3)))}
    assert measured(far, permutations=99).pairs[0].p_value == 1 / 100
    assert math.isnan(measured(far, permutations=0).pairs[0].p_value)


# -- refusals ----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": np.ones((1, 4))}, DataError, "Domain 'a': expected at least 2 rows, found 1"),
        ({"a": np.ones(4)}, ShapeError, r"Domain 'a': expected an array of shape \(n, d\), found \(4,\)"),
        ({"b": np.ones((5, 3))}, ShapeError, "Domain 'b' has vectors of width 3, domain 'a' of width 4"),
        ({"a": np.array([[0.0] * 4, [np.nan] * 4])}, DataError, "Domain 'a': row 1 is not finite"),
    ],
)
def test_bad_rows_are_named(change, error, message):
    with pytest.raises(error, match=message):
        measured({**sample(), **change})


def test_one_domain_is_refused():
    with pytest.raises(DataError, match="at least two domains, found 1"):
        measured({"a": np.ones((3, 2))})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma: expected a positive number, found 0.0"),
        ({"gamma": math.inf}, "gamma: expected a positive number, found inf"),
        ({"permutations": -1}, "Permutations: expected 0 or more, found -1"),
        ({"block": 0}, "Block: expected 1 or more, found 0"),
        ({"precision": "bf16"}, "Precision: expected float32 or float64, found 'bf16'"),
        ({"device": "tpu"}, "Device 'tpu' is unknown"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        measured(sample(), **options)


def test_groups_must_match_the_rows():
    with pytest.raises(ShapeError, match=r"Domain 'a': expected one group per row \(7\), found 2"):
        measured(sample(), clusters={"a": np.array([0, 1])})


@pytest.mark.gpu
def test_cuda_gives_the_same_numbers():
    vectors = {name: x.astype(np.float32) for name, x in sample(1, (300, 200), 64).items()}
    cpu = measured(vectors, precision="float32", permutations=99).pairs[0]
    gpu = measured(vectors, precision="float32", permutations=99, device="cuda").pairs[0]
    assert gpu.mmd2_u == pytest.approx(cpu.mmd2_u, abs=1e-7)
    assert gpu.p_value == cpu.p_value
