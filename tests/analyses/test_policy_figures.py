"""Collapse, razor plane and KL against forgetting: their tables, and what is drawn."""

import numpy as np
import pytest
from policy_tables import artifacts, forgetting, policy, steps, stored, summary

from driftlab.errors import ResultsError
from driftlab.responses.razor import kl_bernoulli
from driftlab_analyses import collapse, kl_forgetting, razor_plane
from driftlab_analyses.style import styled


def draw(module, results):
    with styled():
        table = module.table(results)
        figure = module.figure(table)
        figure.canvas.draw()
    return table, figure


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# -- collapse ------------------------------------------------------------------------------------------------------


def test_collapse_holds_logs_and_checkpoints(tmp_path):
    table = collapse.table(stored(tmp_path / "out"))
    assert list(table["measure"].unique()) == [*collapse.STEPS, "artifact_rate"]
    rates = table[table["measure"] == "artifact_rate"]
    assert rates["value"].tolist() == artifacts()["artifact_rate"].tolist()
    js = table[(table["measure"] == "js_distilled") & (table["run"] == "ema")].set_index("global_step")
    assert np.isnan(js.loc[15, "smooth"])  # no target, no value: the mean does not bridge it
    assert js.loc[5, "smooth"] == pytest.approx(np.mean([0.1 / step for step in range(1, 6)]))


def test_collapse_marks_the_first_collapsed_checkpoint_of_each_run(tmp_path):
    _, figure = draw(collapse, stored(tmp_path / "out"))
    axes = figure.axes
    assert len(axes) == 5
    stars = [line for line in axes[-1].lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in stars] == [[20], [20]]
    assert texts(figure) == ["grpo", "sdpo-ema"]  # seeds of a method share its look and its name
    assert [a.get_text() for a in axes[0].texts] == ["math", "code"]
    gaps = [line for line in axes[0].lines if line.get_marker() == "|"]
    assert [line.get_xdata().tolist() for line in gaps] == [[15], [15]]
    caption = figure.get_supxlabel()
    assert "640 sampled responses (160 prompts)" in caption
    assert "up to 2 runs a method" in caption
    assert "without any target" in caption


def test_columns_that_are_empty_everywhere_may_be_missing(tmp_path):
    bare = stored(
        tmp_path / "out", artifacts=artifacts().drop(columns="first_step"), policy=policy().drop(columns="success_se")
    )
    draw(collapse, bare)
    draw(razor_plane, bare)


def test_a_log_without_gaps_is_drawn_too(tmp_path):
    whole = steps()
    whole["js_distilled"] = whole["js_distilled"].mask(whole["method"] != "grpo", 0.01)
    _, figure = draw(collapse, stored(tmp_path / "out", steps=whole))
    assert "without any target" not in figure.get_supxlabel()


def test_collapse_says_where_there_is_none(tmp_path):
    calm = artifacts().assign(verdict="none", first_label="")
    _, figure = draw(collapse, stored(tmp_path / "out", "steps", "artifacts", artifacts=calm))
    assert "no collapse" in figure.get_supxlabel()
    with pytest.raises(ResultsError, match="was logged, collapse has nothing to draw"):
        collapse.table(stored(tmp_path / "b", "steps", "artifacts", steps=steps()[["run", "global_step"]]))


# -- razor plane ---------------------------------------------------------------------------------------------------


def test_razor_plane_takes_the_trained_tasks(tmp_path):
    table, figure = draw(razor_plane, stored(tmp_path / "out"))
    assert list(table["task"].unique()) == ["math", "code"]
    assert [ax.get_title() for ax in figure.axes if ax.get_visible()] == ["math", "code"]
    assert texts(figure) == ["grpo", "sdpo-ema", "least KL for that success"]


def test_the_curve_is_the_least_kl(tmp_path):
    _, figure = draw(razor_plane, stored(tmp_path / "out"))
    curve = max(figure.axes[0].lines, key=lambda line: len(line.get_xdata()))
    np.testing.assert_allclose(curve.get_xdata(), kl_bernoulli(curve.get_ydata(), 0.5), atol=1e-12)


def test_razor_plane_without_success_has_nothing_to_draw(tmp_path):
    blind = policy().assign(success=np.nan)
    with pytest.raises(ResultsError, match="both a KL and a success rate"):
        razor_plane.table(stored(tmp_path / "out", "policy", policy=blind))


# -- KL against forgetting -----------------------------------------------------------------------------------------


def test_forgetting_is_of_the_other_tasks_and_the_kl_of_the_stage_s_own(tmp_path):
    changed = forgetting()
    changed.loc[(changed["label"] == "math@10") & (changed["task"] == "math"), "forgetting"] = 1e6  # being trained
    table = kl_forgetting.table(stored(tmp_path / "out", forgetting=changed))
    assert list(table["predictor"].unique()) == [
        "kl_base_to_new",
        "kl_new_to_base",
        "kl_new_to_base_all",
        "rel_frobenius",
    ]
    one = table[(table["run"] == "ema") & (table["label"] == "math@10")].set_index("predictor")
    assert one["forgetting"].tolist() == [10.0] * 4
    assert one["value"].to_dict() == {
        "kl_base_to_new": 2.0,
        "kl_new_to_base": 1.0,
        "kl_new_to_base_all": 1.0,
        "rel_frobenius": 2e-3,
    }
    assert set(table["tasks"]) == {2}
    assert "base" not in set(table["label"])


def test_without_weights_there_are_three_panels(tmp_path):
    _, figure = draw(kl_forgetting, stored(tmp_path / "out", "policy", "forgetting"))
    assert [ax.get_xlabel() for ax in figure.axes] == [
        "KL(base ‖ new), new task", "KL(new ‖ base), new task", "KL(new ‖ base), all tasks",
    ]  # fmt: skip
    assert figure.axes[0].get_title() == "R² = 1.00, n = 9"  # made up as a straight line


def test_fits_are_to_the_checkpoints_that_all_predictors_have(tmp_path):
    weights = summary().query("run != 'grpo'")
    table, figure = draw(kl_forgetting, stored(tmp_path / "out", spectral_summary=weights))
    assert set(table.loc[~table["common"], "run"]) == {"grpo"}
    assert {ax.get_title()[-5:] for ax in figure.axes if ax.get_visible() and ax.get_title()} == {"n = 6"}


def test_the_fit_against_numpy_and_its_limits():
    rng = np.random.default_rng(0)
    x = rng.random(30) * 1e-3
    y = 2 + 3e3 * x - 1e6 * x**2 + 0.1 * rng.standard_normal(30)
    found = kl_forgetting.fit(x, y)
    design = np.stack([np.ones(30), x, x**2], axis=1)
    expected, rest, *_ = np.linalg.lstsq(design, y, rcond=1e-14)
    np.testing.assert_allclose([found["constant"], found["linear"], found["quadratic"]], expected, rtol=1e-6)
    assert found["r2"] == pytest.approx(1 - rest[0] / ((y - y.mean()) ** 2).sum())
    assert np.isnan(kl_forgetting.fit([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])["r2"])
    assert kl_forgetting.fit([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])["r2"] == pytest.approx(1)
    assert np.isnan(kl_forgetting.fit([1, 2, 3, 4, 5, 6], [0] * 6)["r2"])
    assert np.isnan(kl_forgetting.fit([1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6])["r2"])


def test_noise_alone_gives_the_r2_that_the_caption_names():
    rng = np.random.default_rng(0)
    found = [kl_forgetting.fit(rng.random(6), rng.standard_normal(6))["r2"] for _ in range(4000)]
    assert np.mean(found) == pytest.approx(2 / 5, abs=0.02)


def test_few_checkpoints_are_points_without_a_curve(tmp_path):
    few = forgetting().query("run == 'ema'")
    _, figure = draw(kl_forgetting, stored(tmp_path / "out", "policy", "forgetting", forgetting=few))
    assert figure.axes[0].get_title() == "too few for a curve, n = 3"
    assert not any(len(line.get_xdata()) > 3 for line in figure.axes[0].lines)


def test_a_study_without_common_checkpoints_is_named(tmp_path):
    elsewhere = forgetting().assign(run="other")
    with pytest.raises(ResultsError, match="no checkpoint has both a KL on its stage's task and scores of others"):
        kl_forgetting.table(stored(tmp_path / "out", "policy", "forgetting", forgetting=elsewhere))
