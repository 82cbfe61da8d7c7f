"""The parabola against NumPy, its bootstrap against a slow twin, its limits."""

import numpy as np
import pytest

from driftlab.errors import ShapeError
from driftlab.forgetting.quadratic import fit_parabola


@pytest.fixture
def points():
    rng = np.random.default_rng(3)
    tasks = np.repeat([f"t{i}" for i in range(8)], 4)
    x = rng.uniform(0, 0.45, 32)
    return x, 10 - 40 * x + 90 * x**2 + rng.normal(0, 1, 32), list(tasks)


def test_the_fit_is_least_squares(points):
    x, y, tasks = points
    fit = fit_parabola(x, y, tasks, draws=10)
    c, b, a = np.polyfit(x, y, 2)
    assert (fit.a, fit.b, fit.c) == pytest.approx((a, b, c))
    assert fit.vertex == pytest.approx(-b / (2 * c))
    assert fit.y == pytest.approx(a + b * fit.x + c * fit.x**2)
    residual = y - np.polyval([c, b, a], x)
    assert fit.r2 == pytest.approx(1 - residual.var() / y.var())
    assert fit.extreme == "minimum"


def test_the_bootstrap_draws_whole_tasks(points):
    x, y, tasks = points
    fit = fit_parabola(x, y, tasks, draws=200, seed=7)
    names = list(dict.fromkeys(tasks))
    counts = np.random.default_rng(7).multinomial(8, np.full(8, 1 / 8), size=200)
    slow = []
    for row in counts:
        rows = [i for k, n in enumerate(row) for _ in range(n) for i in range(32) if tasks[i] == names[k]]
        slow.append(np.polyfit(x[rows], y[rows], 2))
    slow = np.array(slow)
    assert (fit.c_low, fit.c_high) == pytest.approx(tuple(np.percentile(slow[:, 0], [2.5, 97.5])), rel=1e-6)
    band = np.stack([np.polyval(one, fit.x) for one in slow])
    assert fit.low == pytest.approx(np.percentile(band, 2.5, axis=0), rel=1e-6, abs=1e-8)
    vertices = -slow[:, 1] / (2 * slow[:, 0])
    assert fit.vertex_bounded
    assert (fit.vertex_low, fit.vertex_high) == pytest.approx(tuple(np.percentile(vertices, [2.5, 97.5])), rel=1e-6)


def test_leaving_one_task_out(points):
    x, y, tasks = points
    without = [task != "t3" for task in tasks]
    (found,) = [one for one in fit_parabola(x, y, tasks, draws=10).left_out if one["cluster"] == "t3"]
    assert (found["c"], found["b"], found["a"]) == pytest.approx(tuple(np.polyfit(x[without], y[without], 2)))


def test_the_order_of_points_and_the_scale_of_x_change_nothing(points):
    x, y, tasks = points
    fit = fit_parabola(x, y, tasks, draws=50)
    scaled = fit_parabola(100 * x, y, tasks, draws=50)
    assert scaled.vertex == pytest.approx(100 * fit.vertex)
    assert scaled.c == pytest.approx(fit.c / 1e4)
    assert (scaled.low, scaled.high) == (pytest.approx(fit.low), pytest.approx(fit.high))


def test_a_line_has_an_unbounded_vertex():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 40)
    fit = fit_parabola(x, 3 * x + rng.normal(0, 1, 40), [f"t{i % 10}" for i in range(40)])
    assert fit.c_low < 0 < fit.c_high
    assert not fit.vertex_bounded
    assert (fit.vertex_low, fit.vertex_high) == (-np.inf, np.inf)


def test_resamples_without_three_places_are_counted_and_left_out():
    x = np.array([0.0, 0.1, 0.2, 0.3])
    fit = fit_parabola(x, x**2, list("abcd"), draws=500)
    assert fit.degenerate > 0
    assert fit.draws + fit.degenerate == 500
    assert fit.c == pytest.approx(1)
    assert np.isfinite(fit.low).all()


def test_too_few_points_are_a_sentence():
    x = np.array([0.0, 0.1, 0.1, 0.1])
    assert "found 4 at 2 from 4" in fit_parabola(x, x, list("abcd"))
    assert "from 2" in fit_parabola(np.arange(4.0), x, list("aabb"))
    with pytest.raises(ShapeError, match="found 4 x, 3 y and 4 clusters"):
        fit_parabola(x, x[:3], list("abcd"))


def test_the_same_seed_gives_the_same_band(points):
    x, y, tasks = points
    one, two, other = (fit_parabola(x, y, tasks, draws=100, seed=seed) for seed in (1, 1, 2))
    assert (one.low == two.low).all()
    assert not (one.low == other.low).all()
