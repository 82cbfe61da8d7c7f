"""The drift figure: the table it draws is the summary's, and the picture shows what the table says."""

import subprocess
import sys

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from driftlab.errors import ResultsError
from driftlab_analyses.parameter_drift import PANELS, figure, table
from driftlab_analyses.style import styled


def test_golden_table(two_runs):
    found = table(two_runs).query("run == 'GRPO' and measure == 'nss'")
    assert found.drop(columns=["q25", "q75", "null_q25", "null_q75"]).round(12).to_dict("list") == {
        "run": ["GRPO"] * 3,
        "label": ["math@10", "math@20", "code@10"],
        "stage": ["math", "math", "code"],
        "step": [10, 20, 10],
        "order": [1, 2, 3],
        "measure": ["nss"] * 3,
        "n": [6] * 3,
        "mean": [2.25e-5, 4.5e-5, 6.75e-5],
        "median": [2.25e-5, 4.5e-5, 6.75e-5],
        "error": [1e-9] * 3,
        "null_median": [2.025e-5, 4.05e-5, 6.075e-5],
        "verdict": ["not separated"] * 3,
    }
    assert list(found["q25"].round(12)) == [1.625e-5, 3.25e-5, 4.875e-5]


def test_the_null_of_the_mask_update_overlap_is_its_random_level(two_runs):
    found = table(two_runs).query("measure == 'mask_update_iou'")
    assert (found["null_median"] == 0.06).all()
    assert (found["median"] == 0.05).all()


def test_a_null_that_was_drawn_goes_before_the_random_level(store, make_rows):
    found = table(store(make_rows("a", ["x@1"], 1e-5), mask_update_iou_null=0.055)).query(
        "measure == 'mask_update_iou'"
    )
    assert list(found["null_median"]) == [0.055]


def test_the_row_of_another_base_is_not_on_the_line(store, make_rows):
    parts = [row | {"order": row["order"] - 1} for row in make_rows("a", ["base", "x@1"], 1e-5)]
    assert set(table(store(parts))["label"]) == {"x@1"}


def test_nothing_measured(store, make_rows):
    results = store(make_rows("a", ["x@1"], 1e-5), status="failed")
    with pytest.raises(ResultsError, match="parameter_drift has nothing to draw"):
        table(results)


@pytest.fixture
def drawn(two_runs):
    with styled():
        return figure(table(two_runs))


def test_four_panels_one_line_and_band_a_run(drawn):
    assert [ax.get_ylabel() for ax in drawn.axes] == [label for label, _ in PANELS.values()]
    for ax in drawn.axes:
        named = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
        assert set(named) == {"GRPO", "SDPO"}
        assert named["GRPO"].get_marker() != named["SDPO"].get_marker() != "None"
        assert len(ax.collections) >= 2
    nss = {line.get_label(): list(line.get_ydata()) for line in drawn.axes[0].lines}
    assert nss["GRPO"] == pytest.approx([2.25e-5, 4.5e-5, 6.75e-5])
    overlap = {line.get_label(): list(line.get_ydata()) for line in drawn.axes[2].lines}
    assert overlap["SDPO"][0] == pytest.approx(100 * (1 - 100 * 3e-5 * 2.25))


def test_ticks_are_the_labels_and_the_legend_names_the_runs(drawn):
    assert [tick.get_text() for tick in drawn.axes[-1].get_xticklabels()] == ["math@10", "math@20", "code@10"]
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["GRPO", "SDPO"]


def test_error_and_null_are_visible(drawn):
    assert "numeric error" in drawn.axes[0].texts[0].get_text()
    assert sum(line.get_linestyle() == ":" for line in drawn.axes[0].lines) == 2
    assert "dotted: null" in drawn._supxlabel.get_text()


def test_many_checkpoints_name_the_last_of_each_stage(store, make_rows):
    labels = [f"math@{i}" for i in range(1, 8)] + [f"code@{i}" for i in range(1, 5)]
    with styled():
        drawn = figure(table(store(make_rows("a", labels, 1e-6))))
    shown = [tick.get_text() for tick in drawn.axes[-1].get_xticklabels()]
    assert [text for text in shown if text] == ["math@7", "code@4"]
    assert len(shown) == 11


def test_fewer_measures_fewer_panels(store, make_rows, nan):
    results = store(make_rows("a", ["x@1"], 1e-5), max_angle_left_deg=nan, mask_overlap=nan)
    with styled():
        drawn = figure(table(results))
    assert [ax.get_ylabel() for ax in drawn.axes] == ["NSS", "PM update (%)"]


def test_one_checkpoint_a_run_shows_quartiles_and_null_too(store, make_rows):
    """Lines and bands of a single point have no width."""
    found = table(store(make_rows("a", ["x"], 1e-5), make_rows("b", ["y"], 3e-5)))
    with styled():
        drawn = figure(found)
    for run, (bar, dash, point) in zip("ab", [drawn.axes[0].lines[:3], drawn.axes[0].lines[3:]], strict=True):
        row = found[(found["run"] == run) & (found["measure"] == "nss")].iloc[0]
        assert list(bar.get_ydata()) == [row["q25"], row["q75"]]
        assert list(dash.get_ydata()) == [row["null_median"]] * 2
        assert dash.get_xdata()[0] < point.get_xdata()[0] < dash.get_xdata()[1]
        assert list(point.get_ydata()) == [row["median"]]
    assert drawn._supxlabel.get_text().startswith("Point: median over 6 matrices; bar: quartiles; dotted: null")


def test_the_names_of_one_position_stand_under_each_other_and_are_not_turned(store, make_rows):
    with styled():
        drawn = figure(table(store(make_rows("a", ["chain_sum@12"], 1e-5), make_rows("b", ["calendar@12"], 3e-5))))
        along = figure(table(store(make_rows("a", ["x@1", "x@2"], 1e-5), out="along")))
    (tick,) = drawn.axes[-1].get_xticklabels()
    assert (tick.get_text(), tick.get_rotation()) == ("chain_sum@12\ncalendar@12", 0)
    assert {tick.get_rotation() for tick in along.axes[-1].get_xticklabels()} == {20}


def test_no_null_no_word_of_it(store, make_rows, nan):
    results = store(make_rows("a", ["x@1"], 1e-5), nss_null=nan, mask_update_iou_random=nan)
    with styled():
        assert "null" not in figure(table(results))._supxlabel.get_text()


def test_no_figure_is_left_open_and_the_users_settings_stay(two_runs):
    before = dict(plt.rcParams)
    with styled():
        figure(table(two_runs))
    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before


def test_the_module_needs_no_torch():
    code = (
        "import sys, driftlab_analyses.parameter_drift, driftlab_analyses.layer_map, driftlab_analyses.draw\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_table_survives_its_csv(two_runs, tmp_path):
    expected = table(two_runs)
    expected.to_csv(tmp_path / "x.csv", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "x.csv"), expected, check_dtype=False)
