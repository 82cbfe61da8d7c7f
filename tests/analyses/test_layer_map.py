"""The heat map: layers against roles, one cell a matrix."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from driftlab.errors import ResultsError
from driftlab_analyses.layer_map import figure, table
from driftlab_analyses.style import styled


def test_golden_table(two_runs):
    found = table(two_runs)
    assert set(found["label"]) == {"code@10"}
    assert found.query("run == 'GRPO'")[["layer", "role", "n"]].to_dict("list") == {
        "layer": [0, 0, 1, 1, 2, 2],
        "role": ["self_attn.q_proj", "mlp.down_proj"] * 3,
        "n": [1] * 6,
    }
    expected = [3e-5 * (1 + layer + 0.5 * i) for layer in range(3) for i in range(2)]
    assert list(found.query("run == 'GRPO'")["value"]) == pytest.approx(expected)


def test_another_measure_at_another_checkpoint(two_runs):
    found = table(two_runs, measure="max_angle_left_deg", label="math@10")
    assert set(found["measure"]) == {"max_angle_left_deg"}
    assert found["value"].iloc[0] == pytest.approx(0.1)


def test_each_runs_last_checkpoint(store, make_rows):
    found = table(store(make_rows("a", ["x@1", "x@2"], 1e-5), make_rows("b", ["x@1"], 1e-5)))
    assert dict(zip(found["run"], found["label"], strict=True)) == {"a": "x@2", "b": "x@1"}


def test_experts_of_one_layer_are_averaged(store, make_rows):
    one = list(make_rows("a", ["x@1"], 1e-5))
    two = [row | {"nss": 3 * row["nss"], "matrix": row["matrix"] + ".1"} for row in one]
    found = table(store(one, two))
    assert set(found["n"]) == {2}
    assert found["value"].iloc[0] == pytest.approx(2e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"measure": "pie"}, "measure 'pie' is not in the table spectral"),
        ({"label": "x@9"}, "no layer has 'nss' at checkpoint x@9"),
        ({"measure": "intruder_dimensions"}, "no layer has 'intruder_dimensions' at checkpoint last"),
    ],
)
def test_what_is_not_there(two_runs, options, words):
    with pytest.raises(ResultsError, match=words):
        table(two_runs, **options)


@pytest.fixture
def drawn(two_runs):
    with styled():
        return figure(table(two_runs))


def test_one_map_a_run_on_one_scale(drawn):
    left, right, bar = drawn.axes
    assert [ax.get_title() for ax in (left, right)] == ["GRPO\ncode@10", "SDPO\ncode@10"]
    (one,), (two,) = left.collections, right.collections
    assert one.norm is two.norm
    assert isinstance(one.norm, LogNorm)
    expected = [[3e-5 * (1 + layer + 0.5 * i) for i in range(2)] for layer in range(3)]
    np.testing.assert_allclose(one.get_array(), expected)
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["q", "down"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["0", "1", "2"]
    assert bar.get_ylabel() == "nss"


def test_roles_of_towers_are_told_apart(store, make_rows):
    one = list(make_rows("a", ["x@1"], 1e-5))
    two = [row | {"role": f"visual.{row['role']}", "matrix": f"visual.{row['matrix']}"} for row in one]
    with styled():
        drawn = figure(table(store(one, two)))
    assert [tick.get_text() for tick in drawn.axes[0].get_xticklabels()] == ["q", "visual q", "down", "visual down"]


def test_an_untrained_model_is_a_map_of_zeros(store, make_rows):
    with styled():
        drawn = figure(table(store(make_rows("a", ["x@1"], 0.0))))
        drawn.canvas.draw()
    assert not drawn.axes[0].collections[0].get_array().any()


def test_a_missing_cell_is_grey_not_zero(store, make_rows, nan):
    rows = list(make_rows("a", ["x@1"], 1e-5))
    rows[0]["status"] = "failed"
    with styled():
        drawn = figure(table(store(rows)))
    assert (
        np.ma.getmaskarray(drawn.axes[0].collections[0].get_array()).sum() == 1
        or np.isnan(drawn.axes[0].collections[0].get_array()).sum() == 1
    )
