"""The violins: golden numbers, panels by the number of runs, seeds of a method pooled."""

import numpy as np
import pandas as pd
import pytest

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses import FIGURES, response_drift
from driftlab_analyses.style import save, styled

LABELS = ("math@50", "code@20")


def rows(run, spread, method=None, seed=0, labels=LABELS):
    rng = np.random.default_rng(len(run) + seed)
    for order, label in enumerate(labels, 1):
        for i in range(40):
            yield {
                "run": run, "method": method or run, "seed": seed, "label": label, "order": order, "reference": "base",
                "task": "t", "id": f"t/{i}", "similarity": 1 - spread * order * rng.uniform() * (i % 4 > 0),
                "random": 0.5, "other_seed": None, "status": "ok", "identical": i % 4 == 0,
            }  # fmt: skip


@pytest.fixture
def store(tmp_path):
    def write(*runs, **change):
        results = ResultsDir.create(tmp_path / "out", command="similarity", config={}, force=True)
        results.write_table("similarity", pd.DataFrame([row | change for one in runs for row in one]))
        results.write_json("similarity", {"encoder": {"name": "an encoder"}})
        return results

    return write


def draw(results):
    table = response_drift.table(results)
    with styled():
        return table, response_drift.figure(table)


def test_the_table_is_in_hundredths_and_leaves_out_what_was_not_measured(store):
    more = [next(rows("GRPO", 0.1)) | {"status": "skipped", "similarity": None}]
    table = response_drift.table(store(rows("GRPO", 0.1), more))
    assert len(table) == 80
    assert table.iloc[0].to_dict() == {
        "run": "GRPO", "label": "math@50", "order": 1, "task": "t", "id": "t/0", "similarity": 100.0, "random": 50.0,
        "other_seed": None, "seed": 0, "identical": True, "reference": "base", "encoder": "an encoder",
    } | {"other_seed": pytest.approx(float("nan"), nan_ok=True)}  # fmt: skip
    assert table["similarity"].between(80, 100).all()


def test_two_runs_share_one_panel_with_the_share_of_equal_texts(store):
    _, figure = draw(store(rows("GRPO", 0.1), rows("SDPO", 0.2), other_seed=0.95))
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["25 %"] * 4
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(LABELS)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["GRPO", "SDPO", "random pairs", "base, other seed"]
    caption = figure.get_supxlabel().replace("\n", " ")
    for part in (
        "n = 40 pairs in each half, 1 seed a run",
        "Left: GRPO, right: SDPO",
        "against base",
        "Encoder: an encoder",
    ):
        assert part in caption


def test_quartiles_are_where_numpy_puts_them(store):
    table, figure = draw(store(rows("GRPO", 0.1), rows("SDPO", 0.2)))
    drawn = {round(line.get_ydata()[0], 6) for line in figure.axes[0].lines if len(line.get_ydata())}
    for (_, _), half in table.groupby(["run", "label"]):
        assert {round(float(q), 6) for q in np.percentile(half["similarity"], [25, 50, 75])} <= drawn
    assert 50.0 in drawn


def test_more_runs_get_a_panel_each_against_the_first(store):
    _, figure = draw(store(*(rows(name, 0.1) for name in ("a", "b", "c", "d"))))
    assert [ax.get_title() for ax in figure.axes] == ["a | b", "a | c", "a | d"]


def test_seeds_of_a_method_are_pooled_and_other_runs_of_it_are_not(store):
    seeds = [rows(f"GRPO ({s})", 0.1, "GRPO", s) for s in (0, 1, 2)]
    table, figure = draw(store(*seeds, rows("SDPO", 0.1)))
    assert table["run"].unique().tolist() == ["GRPO", "SDPO"]
    assert "1 to 3 seeds a run" in figure.get_supxlabel().replace("\n", " ")
    variants = response_drift.table(store(rows("lr 1", 0.1, "GRPO"), rows("lr 2", 0.1, "GRPO")))
    assert variants["run"].unique().tolist() == ["lr 1", "lr 2"]


def test_one_run_and_equal_values_can_be_drawn(store, tmp_path):
    table, figure = draw(store(rows("GRPO", 0.0)))
    save(figure, table, tmp_path / "one")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_files_are_named_by_their_run(store):
    table = response_drift.table(store(rows("a", 0.1, labels=("a",)), rows("b", 0.1, labels=("b",))))
    assert table["label"].unique().tolist() == ["all prompts"]


def test_pairs_out_of_view_are_counted(store):
    _, figure = draw(store(rows("a", 0.1), [next(rows("a", 0.1)) | {"similarity": -0.5}]))
    assert "1 of 81 pairs lie below 50, out of view" in figure.get_supxlabel().replace("\n", " ")


def test_nothing_measured_is_said(store):
    with pytest.raises(ResultsError, match="no pair of responses was measured"):
        response_drift.table(store(rows("a", 0.1), status="failed"))
    assert FIGURES["response_drift"] == ("similarity",)
