"""Cosines against the inner product in long double, near 1 against the planted angle."""

import numpy as np
import pytest

from driftlab.errors import ShapeError
from driftlab.responses.cosines import cosine, partners


def test_against_the_inner_product():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40, 7)).astype(np.float32)
    wide = np.longdouble
    naive = (x.astype(wide) * y).sum(1) / np.sqrt((x.astype(wide) ** 2).sum(1) * (y.astype(wide) ** 2).sum(1))
    np.testing.assert_allclose(cosine(x, y), naive.astype(float), atol=1e-15)


@pytest.mark.parametrize("angle", [1e-7, 1e-5, 1e-3])
def test_a_small_angle_survives(angle):
    x, y = np.array([[1.0, 0.0]]), np.array([[np.cos(angle), np.sin(angle)]])
    assert 1 - cosine(x, y)[0] == pytest.approx(2 * np.sin(angle / 2) ** 2, rel=0.02)


def test_scale_rotation_and_exchange_change_nothing():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20, 5))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    np.testing.assert_allclose(cosine(3 * x, 0.1 * y), cosine(x, y), atol=1e-14)
    np.testing.assert_allclose(cosine(x @ turn, y @ turn), cosine(x, y), atol=1e-14)
    np.testing.assert_array_equal(cosine(y, x), cosine(x, y))


def test_ends_of_the_range_and_no_direction():
    x = np.array([[0.3, 0.4], [1.0, 0.0], [0.0, 0.0], [np.nan, 1.0]])
    y = np.array([[0.3, 0.4], [-2.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = cosine(x, y)
    assert found[:2].tolist() == [1.0, -1.0]
    assert np.isnan(found[2:]).all()
    with pytest.raises(ShapeError, match=r"found \(4, 2\) and \(3, 2\)"):
        cosine(x, y[:3])


@pytest.mark.parametrize("n", [2, 3, 50])
def test_partners_are_a_permutation_that_moves_everybody(n):
    for seed in range(20):
        found = partners(n, seed, "task")
        assert sorted(found.tolist()) == list(range(n))
        assert (found != np.arange(n)).all()
    np.testing.assert_array_equal(partners(n, 3, "task"), partners(n, 3, "task"))


def test_one_item_has_no_partner_and_seeds_differ():
    assert partners(1, 0).tolist() == [-1]
    assert partners(0, 0).tolist() == []
    assert partners(50, 0, "a").tolist() != partners(50, 1, "a").tolist() != partners(50, 1, "b").tolist()
