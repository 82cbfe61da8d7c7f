import json
from pathlib import Path

import pytest

from driftlab.errors import DataError, UsageError
from driftlab.runlog import read_run, read_runs


def make_run(folder: Path, *, method: str = "grpo", seed: int = 0) -> Path:
    (folder / "responses").mkdir(parents=True)
    run = {"method": method, "seed": seed, "config": {"ema_rate": 0.05}, "stages": [{"name": "math", "steps": 2}]}
    (folder / "run.json").write_text(json.dumps(run))
    steps = [{"global_step": 1, "stage": "math", "reward": 0.5}, {"global_step": 2, "stage": "math", "reward": 0.6}]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps) + '{"global_st')
    scores = [{"label": label, "task": "math", "score": 0.4} for label in ("base", "math@2")]
    (folder / "scores.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
    for label in ("math@2", "base", "another"):
        (folder / "responses" / f"{label}.jsonl").write_text("")
    return folder


def test_a_run_is_read_with_its_settings_before_its_numbers(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a"))
    assert (run.name, run.method, run.seed, run.stages, run.dropped) == ("grpo", "grpo", 0, ["math"], 1)
    assert list(run.responses) == ["base", "math@2", "another"]
    table = run.table("steps")
    assert list(table.columns[:3]) == ["run", "method", "seed"]
    assert table["ema_rate"].tolist() == [0.05, 0.05]
    assert table["reward"].tolist() == [0.5, 0.6]


def test_runs_of_one_method_get_the_names_that_svd_gives_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"seed{seed}", seed=seed)
    assert [run.name for run in read_runs([str(tmp_path / "*")])] == ["grpo (seed0)", "grpo (seed1)"]
    assert [run.name for run in read_runs([f"x={tmp_path / 'seed0'}", tmp_path / "seed1"])] == ["x", "grpo"]


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No run was given"):
        read_runs([])
    with pytest.raises(DataError, match=r"missing: expected a run folder with run\.json"):
        read_runs([tmp_path / "missing"])
    with pytest.raises(DataError, match="expected run folders, found none"):
        read_runs([f"{tmp_path}/*"])
