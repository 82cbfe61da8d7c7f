"""The score figures: their tables are those of the results, and the pictures show what the tables say."""

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from score_support import MATRIX, long_rows, read

from driftlab.errors import ResultsError
from driftlab.forgetting.curve import read_distances
from driftlab.forgetting.study import measure_forgetting
from driftlab.results import ResultsDir
from driftlab_analyses import (
    continual,
    forgetting_curve,
    stable_teacher,
    supervision_density,
    tables,
    teacher_freshness,
)
from driftlab_analyses.dynamics import root_ticks, signed_root, step_curves
from driftlab_analyses.score_means import final_means
from driftlab_analyses.style import styled

PAIRS = pd.DataFrame(
    [("A", "B", 0.1), ("A", "C", 0.2), ("A", "O", 0.3), ("B", "C", 0.15), ("B", "O", 0.25), ("C", "O", 0.4)],
    columns=["left", "right", "mmd2_u"],
)
TEACHERS = {
    "sdpo": {"teacher": "frozen", "ema_rate": 0.05, "distill_cot": False},
    "sdpo-cot": {"teacher": "frozen", "ema_rate": 0.05, "distill_cot": True},
    "sdpo-ema": {"teacher": "ema", "ema_rate": 0.05, "distill_cot": False},
    "stable": {"teacher": "stable", "ema_rate": 0.05, "distill_cot": False},
}


def shifted(by):
    return {label: {t: s + (by if label != "base" else 0) for t, s in row.items()} for label, row in MATRIX.items()}


def steps(methods, seeds):
    rows = [
        {"run": f"{method}{seed}", "method": method, "seed": seed, "teacher_k": 4, "teacher_gamma": 0.4}
        | TEACHERS.get(method, {"teacher": "frozen", "ema_rate": 0.05, "distill_cot": False})
        | {"global_step": step, "stage": "ABC"[(step - 1) // 4], "reward": 0.5 + 0.1 * seed, "entropy": 1.0 / step}
        | {"completions/mean_length": 20.0, "js_distilled": None if method == "grpo" or step == 6 else 0.01 * step}
        for method in methods
        for seed in seeds
        for step in range(1, 13)
    ]
    return pd.DataFrame(rows).astype({"js_distilled": float})


@pytest.fixture
def store(tmp_path):
    def write(methods=("grpo", "sdpo"), seeds=(0,), gap=0.0, source="", **more):
        rows = [
            row
            for i, method in enumerate(methods)
            for seed in seeds
            for row in long_rows(shifted(gap * i + 0.5 * seed), run=f"{method}{seed}", method=method, seed=seed, **more)
        ]
        study = measure_forgetting(read(tmp_path, rows), distances=read_distances(PAIRS, {}), draws=30)
        results = ResultsDir.create(tmp_path / "out", command="forgetting", config={})
        for name, found in study.tables.items():
            results.write_table(name, found)
        results.write_json("curve", study.curve)
        results.write_table("steps", steps(methods, seeds))
        results.finish(source=source)
        return results

    return write


def draw(module, results):
    with styled():
        found = module.table(results)
        return found, module.figure(found)


def note(figure):
    return " ".join(figure._supxlabel.get_text().split())


def texts(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_curve_draws_points_fits_and_the_interval_of_the_bend(store):
    found, figure = draw(forgetting_curve, store(source="from a paper"))
    assert [ax.get_ylabel() for ax in figure.axes] == ["Gain (%)", "Forgetting (%)", "Signed change (%)"]
    points = found[(found["what"] == "point") & (found["outcome"] == "change")]
    assert len(points) == 24
    shown = np.concatenate([dots.get_offsets() for dots in figure.axes[2].collections if len(dots.get_offsets()) > 1])
    assert sorted(shown[:, 1]) == pytest.approx(sorted(points["y"]))
    assert texts(figure) == {"grpo", "sdpo", "A", "B", "C"}
    assert "grpo 12 points; sdpo 12 points; one seed each; 4 tasks." in note(figure)
    assert "30 resamples of whole tasks" in note(figure)
    assert "c with its 95 % interval: grpo gain" in note(figure)
    assert note(figure).endswith("from a paper")


def test_continual_shows_a_task_from_its_own_stage_on(store):
    found, figure = draw(continual, store(n=50))
    lines = found[(found["panel"] == "lines") & (found["method"] == "grpo")]
    by_hand = {
        ("A", 1): 300, ("A", 2): 350, ("A", 3): 150, ("B", 2): 400 / 3, ("B", 3): 100, ("C", 3): 137.5,
        ("OOD", 1): -10, ("OOD", 2): 20, ("OOD", 3): -20,
    }  # fmt: skip
    assert {(r.task, r.stage_index): r.mean for r in lines.itertuples(index=False)} == pytest.approx(by_hand)
    bars = found[(found["panel"] == "bars") & (found["method"] == "grpo")]
    assert bars[["task", "mean"]].to_numpy().tolist() == [["O", -20]]
    assert bars["low"].item() < -20 < bars["high"].item()
    assert [ax.get_title() for ax in figure.axes][:2] == ["grpo: trained", "grpo: never trained"]
    drawn = {c.get_label(): c.lines[0].get_ydata() for c in figure.axes[0].containers}
    assert list(drawn["A"]) == pytest.approx([300, 350, 150])
    assert "whiskers are 95 % intervals over the evaluation questions" in note(figure)


def test_continual_over_seeds_shows_mean_and_range(store):
    found, figure = draw(continual, store(seeds=(0, 1, 2)))
    row = found.query("panel == 'bars' and method == 'sdpo'").iloc[0]
    assert row[["mean", "low", "high", "n_seeds", "band"]].tolist() == [-19, -20, -18, 3, "seeds"]
    assert "means over 3 seeds, whiskers: their range" in note(figure)


def test_continual_leaves_a_task_out_of_the_mean_that_a_run_lacks(store, tmp_path):
    results = store()
    changes = results.table("forgetting")
    more = changes[changes["task"] == "O"].assign(task="P", change=99.0)
    more.loc[(more["method"] == "sdpo") & (more["label"] == "C"), "change"] = math.nan
    results.write_table("forgetting", pd.concat([changes, more]))
    found = continual.table(results)
    ood = found.query("panel == 'lines' and task == 'OOD' and method == 'grpo'")
    assert ood["mean"].tolist() == [-10, 20, -20]
    assert set(ood["n_tasks"]) == {1}


def test_continual_without_a_stage_end(store):
    results = store()
    results.write_table("forgetting", results.table("forgetting").assign(stage_end=False))
    with pytest.raises(ResultsError, match="continual has nothing to draw"):
        continual.table(results)


def test_the_symmetric_root():
    assert signed_root(np.array([-4.0, 0.0, 9.0])).tolist() == [-2, 0, 3]


def test_freshness_compares_teachers_and_leaves_out_runs_without(store):
    found, figure = draw(teacher_freshness, store(("grpo", "sdpo-ema", "sdpo", "stable"), n=50))
    names = ["sdpo (frozen, 0 %)", "sdpo-ema (EMA 5 %)", "stable (stable, k 4, γ 0.4)"]
    assert list(dict.fromkeys(found.loc[found["measure"] != "score", "line"])) == names
    assert texts(figure) == set(names)
    trained = found.query("measure == 'score' and group == 'trained' and method == 'sdpo'").iloc[0]
    assert trained["mean"] == pytest.approx((50 + 60 + 95) / 3)
    assert found.query("group == 'base, trained'")["mean"].iloc[0] == 30
    assert "means over 1 never trained tasks, 3 trained tasks" in note(figure)
    js = found.query("measure == 'js_distilled' and method == 'sdpo'").set_index("global_step")["mean"]
    assert math.isnan(js[6])  # a step without a target stays a gap


def test_running_means_stay_within_a_stage_and_a_run():
    found = step_curves(steps(["sdpo"], [0, 1]).assign(line="x"), ["reward", "entropy", "absent"])
    reward = found.query("measure == 'reward'")
    assert set(reward["mean"].round(9)) == {0.55}
    assert set(reward["low"].round(9)) == {0.5}
    assert set(reward["n_seeds"]) == {2}
    entropy = found.query("measure == 'entropy'").set_index("global_step")["mean"]
    assert entropy[4] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert entropy[5] == pytest.approx((1 / 5 + 1 / 6 + 1 / 7) / 3)


def test_one_teacher_is_no_comparison(store):
    with pytest.raises(ResultsError, match="all distilled runs have one teacher"):
        teacher_freshness.table(store(("sdpo", "sdpo-cot")))


def test_no_distilled_run(store):
    with pytest.raises(ResultsError, match="no run was distilled from a teacher"):
        teacher_freshness.table(store(("grpo",)))


def test_stable_teacher_marks_its_restarts(store):
    found, figure = draw(stable_teacher, store(("grpo", "sdpo", "sdpo-ema", "stable"), seeds=(0, 1)))
    assert set(found["method"]) == {"sdpo", "stable"}
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "Reward",
        "JS, distilled tokens",
        "Entropy (nats)",
        "Length (tokens)",
    ]
    ticks = [line for line in figure.axes[0].lines if line.get_marker() == "|"]
    assert [list(line.get_xdata()) for line in ticks] == [[4, 8, 12]]
    assert "mean over 2 seeds; band: their range" in note(figure)


def test_no_restarted_teacher(store):
    with pytest.raises(ResultsError, match="no run has a teacher that restarts"):
        stable_teacher.table(store(("sdpo",)))


def test_density_compares_cot_on_and_off_under_one_teacher(store):
    found, figure = draw(supervision_density, store(("sdpo", "sdpo-cot", "sdpo-ema"), n=50))
    assert texts(figure) == {"sdpo (CoT off)", "sdpo-cot (CoT on)"}
    assert set(found["method"]) == {"sdpo", "sdpo-cot"}
    assert [ax.get_ylabel() for ax in figure.axes][1:] == ["Length (tokens)", "Entropy (nats)", "JS, distilled tokens"]


def test_cot_of_one_kind_is_no_comparison(store):
    with pytest.raises(ResultsError, match="found one kind only"):
        supervision_density.table(store(("sdpo", "sdpo-ema")))


def test_means_of_scores_over_seeds_and_questions(store):
    results = store(("sdpo",), seeds=(0, 2))
    found = final_means(results.table("scores"), results.table("forgetting")).set_index("group")
    assert found.loc["trained", ["mean", "low", "high"]].tolist() == pytest.approx(
        [205 / 3 + 0.5, 205 / 3, 205 / 3 + 1]
    )


def test_table_shows_the_base_the_methods_and_the_means(store):
    found, figure = draw(tables, store(n=50))
    header, cells, _ = tables.grid(found)
    assert header == ["Method", "A", "B", "C", "O", "Current", "Last", "OOD"]
    assert [row[0] for row in cells] == ["Base", "grpo", "sdpo"]
    assert [cell.split(" ±")[0] for cell in cells[1][1:]] == ["50.0", "60.0", "95.0", "40.0", "81.7", "68.3", "40.0"]
    assert [cell.split(" ±")[0] for cell in cells[0][1:]] == ["20.0", "30.0", "40.0", "50.0", "–", "30.0", "50.0"]
    assert "Nothing is bold" in note(figure)
    assert "one seed, ± 95 % over the evaluation questions" in note(figure)


def test_a_best_mean_is_bold_only_where_it_is_separated(store, tmp_path):
    results = store(("grpo", "sdpo"), seeds=(0, 1, 2), gap=3.0)
    found = tables.table(results)
    best = found[found["best"]]
    assert set(best["method"]) == {"sdpo"}
    assert set(best["column"]) == {"Current", "Last", "OOD"}
    assert "| sdpo |" in tables.to_markdown(found)
    assert "**" in tables.to_markdown(found)
    summary = results.table("forgetting_summary")
    summary.loc[summary["level"] == "difference", "verdict"] = "not separated"
    results.write_table("forgetting_summary", summary)
    assert not tables.table(results)["best"].any()


def test_another_base_has_a_line_of_its_own(store):
    results = store()
    summary = results.table("forgetting_summary")
    other = (summary["method"] == "sdpo") & (summary["metric"] == "base")
    summary.loc[other, "value"] += 5
    results.write_table("forgetting_summary", summary)
    _, cells, _ = tables.grid(tables.table(results))
    assert [row[0] for row in cells] == ["Base", "grpo", "Base of sdpo", "sdpo"]
    assert "one seed, no uncertainty given" in tables.words(tables.table(results))


def test_markdown_and_latex_hold_the_same_cells(store, tmp_path):
    found = tables.table(store(("a|b", "x_1"), n=50))
    tables.write_beside(found, tmp_path / "tables")
    markdown, latex = (tmp_path / "tables.md").read_text(), (tmp_path / "tables.tex").read_text()
    assert "| a\\|b |" in markdown
    assert r"x\_1 & 50.0 $\pm$" in latex
    assert latex.count(r"\\") == 4
    assert "% Scores in % after the last stage" in latex


def test_the_modules_need_no_torch():
    names = "continual, forgetting_curve, stable_teacher, supervision_density, tables, teacher_freshness"
    code = f"import sys; from driftlab_analyses import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("low", "high"), [(-108, 740), (-75, 187), (0, 75), (-0.5, 0.02), (-3e4, 2e4), (3, 700)])
def test_ticks_of_the_root_axis_reach_both_ends_and_do_not_touch(low, high):
    ticks = np.array(root_ticks(low, high))
    places = np.sign(ticks) * np.sqrt(np.abs(ticks))
    bottom, top = np.sign([low, high]) * np.sqrt(np.abs([low, high]))
    assert (0 in ticks) == (low <= 0 <= high)
    assert min(np.diff(places)) >= (top - bottom) / 12 - 1e-12
    assert low <= ticks[0]
    assert ticks[-1] <= high
    assert max(places[0] - bottom, top - places[-1]) < (top - bottom) / 4  # 1, 2, 5: the next is at most 1.6 times off
