"""A whole study at the smallest size: its tables, its resume, its controls."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab.study.plan import StudyPlan, make_plan
from driftlab.study.study import TABLES, run_study
from driftlab_analyses import FIGURES
from driftlab_analyses.draw import draw_all
from driftlab_analyses.report.build import build_report

TABLE: dict[str, Any] = {
    "seeds": [0],
    "runs": {"grpo": {"preset": "grpo"}, "ema": {"preset": "sdpo-ema", "style_bias": True}},
    "train": {
        "stages": "math:2,science:1", "prompts": 2, "group": 4, "save_every": 1, "eval_samples": 8,
        "max_new_tokens": 24,
    },
    "measure": {"permutations": 49, "domain_texts": 20, "policy_prompts": 2, "policy_copies": 2},
}  # fmt: skip
CLOCKS = ("seconds", "seconds_rollout", "seconds_train", "tokens_per_second", "peak_memory_mb")
PLACES = ("folder", "path", "source")


def plan() -> StudyPlan:
    return make_plan(TABLE)


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=[name for name in (*CLOCKS, *PLACES) if name in table])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    outcome = run_study(plan(), out, workers=2)
    assert outcome.failed == {}
    return out


def test_every_room_leaves_its_tables(done: Path) -> None:
    results = ResultsDir.open(done)
    missing = [name for name in TABLES if not results.has(name)]
    assert set(missing) <= {"mmd_reference"}
    runs = results.table("runs")
    assert runs["run"].tolist() == ["grpo-s0", "grpo-no-kl-s0", "ema-s0", "ema-unbiased-s0"]
    for name in ("spectral", "policy", "artifacts", "similarity", "scores", "forgetting", "steps", "study_numbers"):
        assert list(dict.fromkeys(results.table(name)["run"])) == runs["run"].tolist(), name
    assert set(results.table("spectral")["status"]) <= {"ok", "skipped"}


def test_each_control_is_measured_against_its_own_base(done: Path) -> None:
    spectral = ResultsDir.open(done).table("spectral")
    first = spectral[(spectral["order"] == 1) & (spectral["status"] == "ok")].groupby("run")["rel_frobenius"].median()
    assert 0 < first["ema-unbiased-s0"] < 3 * first["ema-s0"]  # bases differ by far more than a step
    bases = spectral[(spectral["order"] == 0) & (spectral["status"] == "ok")]
    assert set(bases["method"]) == {"identical"}  # every run's own copy of the base it is measured against


def test_numbers_are_those_of_the_tables(done: Path) -> None:
    results = ResultsDir.open(done)
    found = results.table("study_numbers").set_index(["run", "number"])["value"]
    summary = results.table("spectral_summary")
    row = summary.query("run == 'ema-s0' and label == 'science@1' and group_by == 'model' and measure == 'nss'")
    assert found["ema-s0", "nss"] == row["median"].item()
    policy = results.table("policy").query("run == 'grpo-s0' and label == 'science@1' and task == 'all'")
    assert found["grpo-s0", "kl_new_to_base"] == policy["kl_new_to_base"].item()


def test_one_seed_separates_nothing(done: Path) -> None:
    table = ResultsDir.open(done).table("study_contrasts")
    assert set(table["verdict"]) == {"one seed"}
    assert set(zip(table["left"], table["right"], strict=True)) == {
        ("ema", "grpo"), ("grpo-no-kl", "grpo"), ("ema-unbiased", "ema"),
    }  # fmt: skip


def test_figures_and_the_report_are_made(done: Path, tmp_path: Path) -> None:
    drawn, missing = draw_all([done], tmp_path / "figures")
    names = {name for name, _ in drawn}
    assert {"parameter_drift", "response_drift", "collapse", "razor_plane", "continual", "domain_distance"} <= names
    assert names | {name for name, _ in missing} <= set(FIGURES)
    page = build_report(done, tmp_path / "report.html").read_text()
    for section in ("weights", "domains", "responses", "policy", "forgetting", "study"):
        assert f'id="{section}"' in page


def test_a_finished_study_is_left_alone(done: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in done.rglob("*.parquet") if file.parent == done}
    run_study(plan(), done, workers=1, resume=True)
    kept = {file.name for file, stamp in before.items() if file.stat().st_mtime_ns == stamp}
    assert {"spectral.parquet", "policy.parquet", "mmd.parquet", "similarity.parquet", "scores.parquet"} <= kept
    with pytest.raises(ResultsError, match="--resume"):
        run_study(plan(), done)
    with pytest.raises(ResultsError, match="Cannot resume"):
        run_study(make_plan(TABLE, seeds=[1]), done, resume=True)


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    short = {**TABLE["train"], "stages": "math:1"}
    table = {
        **TABLE,
        "train": short,
        "runs": {"good": {"preset": "sdpo"}, "bad": {"preset": "sdpo", "prompt_budget": 1}},
    }
    outcome = run_study(make_plan(table), tmp_path / "out", workers=2)
    assert list(outcome.failed) == ["bad-s0"]
    runs = outcome.results.table("runs").set_index("run")
    assert runs.loc["bad-s0", "status"] == "failed"
    assert runs.loc["bad-s0", "reason"]
    assert set(outcome.results.table("spectral")["run"]) == {"good-s0"}


@pytest.mark.slow
def test_killed_anywhere_it_ends_with_the_same_tables(done: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "plan.json"
    file.write_text(json.dumps(TABLE))
    code = (
        "import json, sys\n"
        "from driftlab.study.plan import make_plan\n"
        "from driftlab.study.study import run_study\n"
        "if __name__ == '__main__':\n"
        "    run_study(make_plan(json.load(open(sys.argv[1]))), sys.argv[2], workers=2, resume=True)\n"
    )
    script = tmp_path / "go.py"
    script.write_text(code)
    for wait in (6.0, 9.0, 12.0, 16.0, None):
        child = subprocess.Popen([sys.executable, str(script), str(file), str(out)], start_new_session=True)
        try:
            assert child.wait(timeout=wait) == 0
            break
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)  # the workers find out by themselves
            child.wait()
            time.sleep(3)
    left, right = ResultsDir.open(done), ResultsDir.open(out)
    for name in TABLES:
        if left.has(name):
            pd.testing.assert_frame_equal(numbers(left.table(name)), numbers(right.table(name)), check_exact=True)
