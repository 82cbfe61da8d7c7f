"""Points of the curve belong to one stage and one task, and what has no distance is counted."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from score_support import MATRIX, long_rows, read

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.curve import measure_curve, read_distances
from driftlab.forgetting.history import histories

PAIRS = pd.DataFrame(
    [("A", "B", 0.1), ("A", "C", 0.2), ("A", "O", 0.3), ("B", "C", 0.15), ("B", "O", -0.002), ("C", "O", 0.4)],
    columns=["left", "right", "mmd2_u"],
)


@pytest.fixture
def runs(tmp_path):
    return histories(read(tmp_path, long_rows()))


def test_each_point_is_the_change_during_one_stage(runs):
    table, content = measure_curve(runs, read_distances(PAIRS, {}), draws=20)
    points = table.query("what == 'point' and outcome == 'change'").set_index(["stage", "task"])
    assert len(points) == 12
    assert points.loc[("A", "O"), ["x", "y", "before", "after"]].tolist() == [0.3, -10, "base", "A"]
    assert points.loc[("B", "A"), ["x", "y"]].tolist() == [0.1, 12.5]  # 80 -> 90, not 20 -> 90
    assert points.loc[("C", "O"), "y"] == pytest.approx(100 * (40 - 60) / 60)
    assert points.loc[("C", "C"), "x"] == 0
    assert points.loc[("B", "O"), "x"] == -0.002  # an unbiased estimate keeps its sign
    both = table[table["what"] == "point"].set_index(["stage", "task"])
    gain, forgetting = (both[both["outcome"] == name]["y"] for name in ("gain", "forgetting"))
    assert (gain - forgetting).to_numpy() == pytest.approx(points["y"].to_numpy())
    assert content["left_out"] == []


def test_fits_are_json_with_their_doubts(runs):
    _, content = measure_curve(runs, read_distances(PAIRS, {}), draws=50)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert [(fit["method"], fit["outcome"]) for fit in content["fits"]] == [
        ("m", name) for name in ("gain", "forgetting", "change")
    ]
    for fit in content["fits"]:
        assert fit["status"] == "ok"
        if not fit["vertex_bounded"]:
            assert fit["vertex_interval"] == [None, None]
            assert "the vertex is unbounded" in fit["reason"]
        assert len(fit["leave_one_task_out"]["fits"]) == 4
        assert fit["points"] == 12
        assert fit["without_in_domain"]["points"] == 9
    assert any(not fit["vertex_bounded"] for fit in content["fits"])
    assert "significant" not in json.dumps(content)


def test_the_bend_without_the_tasks_just_trained(runs):
    table, content = measure_curve(runs, read_distances(PAIRS, {}), draws=20)
    others = table.query("what == 'point' and outcome == 'change' and kind != 'in-domain'")
    expected = np.polyfit(others["x"].astype(float), others["y"].astype(float), 2)[0]
    assert content["fits"][2]["without_in_domain"]["c"] == pytest.approx(expected)


def test_points_without_distance_or_score_are_counted_with_their_reason(tmp_path):
    matrix = MATRIX | {"B": MATRIX["B"] | {"O": None}, "base": MATRIX["base"] | {"C": 0.0}}
    found = histories(read(tmp_path, long_rows(matrix)))
    table, content = measure_curve(found, read_distances(PAIRS[PAIRS["right"] != "B"], {}), draws=5)
    reasons = {one["reason"]: one["points"] for one in content["left_out"]}
    assert reasons == {
        "no distance between A and B": 1,
        "C at base: the score before is 0: no per cent of it": 1,
        "no distance between B and A": 1,
        "O was not evaluated at B": 2,
    }
    assert len(table.query("what == 'point' and outcome == 'gain'")) == 12 - 5


def test_names_of_domains(runs):
    pairs = PAIRS.replace({"O": "other", "A": "alpha"})
    named = read_distances(pairs, {"O": "other", "A": "alpha"})
    assert named.between("A", "O") == 0.3
    assert named.between("a", "b") == "no domain of the distances is called a"
    assert named.between("b", "c") == 0.15
    with pytest.raises(UsageError, match="--domain O=nowhere: expected a domain, one of"):
        read_distances(PAIRS, {"O": "nowhere"})


def test_too_few_points_are_no_fit(runs):
    _, content = measure_curve(runs, read_distances(PAIRS.iloc[:1], {}), draws=5)
    assert {fit["status"] for fit in content["fits"]} == {"no fit"}
    assert "a parabola needs 4 points" in content["fits"][0]["reason"]


def test_tables_that_are_no_distances():
    with pytest.raises(DataError, match="expected columns left, right and mmd2_u, found left, right"):
        read_distances(PAIRS[["left", "right"]], {})
    with pytest.raises(DataError, match="expected numbers in mmd2_u, found 'nan'"):
        read_distances(PAIRS.assign(mmd2_u=math.nan), {})
