"""Trackers start only if asked, go on where a stopped run was, and say in one sentence what they lack."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from driftlab_cli.main import run

SMALL = ["--stages", "math:2", "--prompts", "2", "--group", "2", "--no-evaluate", "--save-every", "1"]


class FakeRun:
    def __init__(self, settings):
        self.settings, self.rows, self.exit_code = settings, [], None
        self.id = settings["id"] or "made-up"

    def log(self, numbers, step):
        self.rows.append((step, numbers))

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """A module of that name which keeps what it is told."""
    module = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.runs, module.Error, module.Settings = [], RuntimeError, SimpleNamespace

    def init(**settings):
        module.runs.append(FakeRun(settings))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_nothing_starts_unless_asked(tmp_path, wandb):
    assert run(["train", "-o", str(tmp_path / "run"), *SMALL]) == 0
    assert wandb.runs == []


def test_steps_settings_and_the_same_run_after_a_resume(tmp_path, wandb):
    arguments = ["train", "-o", str(tmp_path / "run"), *SMALL, "--track", "wandb"]
    assert run(arguments) == 0
    (first,) = wandb.runs
    assert [step for step, _ in first.rows] == [1, 2]
    assert {"reward", "entropy", "completions/mean_length"} <= set(first.rows[0][1])
    assert all(isinstance(value, float) for _, numbers in first.rows for value in numbers.values())
    assert first.settings["config"]["prompts"] == 2
    assert (first.settings["id"], first.settings["name"], first.exit_code) == (None, "run", 0)
    run_folder = tmp_path / "run"
    (run_folder / "state/last/state.pt").unlink()  # as if killed before its first state
    assert run([*arguments, "--resume"]) == 0
    assert wandb.runs[1].settings["id"] == "made-up"


def test_a_start_that_fails_is_one_sentence(tmp_path, wandb, capsys):
    def init(**settings):
        raise wandb.Error("no API key\nusage")

    wandb.init = init
    assert run(["train", "-o", str(tmp_path / "run"), *SMALL, "--track", "wandb"]) == 2
    error = capsys.readouterr().err
    assert "expected a run to start, found: no API key" in error
    assert "WANDB_MODE=offline" in error


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr("driftlab.training.tracking.find_spec", lambda name: None)
    assert run(["train", "-o", str(tmp_path / "run"), *SMALL, "--track", name]) == 2
    assert f"pip install 'driftlab[{name}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_wandb_itself_offline(tmp_path):
    """In a process of its own: the package starts another and keeps it."""
    pytest.importorskip("wandb")
    arguments = ["train", "-o", str(tmp_path / "run"), *SMALL, "--track", "wandb", "-q"]
    entry = "import sys; from driftlab_cli.main import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", entry, *arguments],
        env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") <= 1  # the result alone
    assert list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))
    assert (tmp_path / "run/state/wandb.txt").read_text()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    assert run(["train", "-o", str(tmp_path / "run"), *SMALL, "--track", "tensorboard"]) == 0
    assert list((tmp_path / "run/tensorboard").iterdir())
