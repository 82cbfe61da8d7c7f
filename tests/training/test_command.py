"""``driftlab train`` from the outside: exit codes, messages, dry run, resume, and a quick help."""

import json
import subprocess
import sys

import pytest

from driftlab_cli.main import run

SMALL = ["--stages", "math:1", "--prompts", "2", "--group", "2", "--set", "eval_samples=2"]


def test_a_run_and_its_resume(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert run(["train", "-o", out, "--preset", "sdpo", *SMALL]) == 0
    assert "1 steps" in capsys.readouterr().out
    assert run(["train", "-o", out, "--preset", "sdpo", *SMALL]) == 1
    assert "Give --resume" in capsys.readouterr().err
    assert run(["train", "-o", out, "--preset", "sdpo", *SMALL, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    assert len((tmp_path / "run/steps.jsonl").read_text().splitlines()) == 1


def test_dry_run_shows_prompts_and_masks_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "run"
    assert run(["train", "-o", str(out), "--preset", "sdpo", "--stages", "math:1,tooluse:1", "--dry-run"]) == 0
    text = capsys.readouterr().out
    for words in ("== math", "== tooluse", "<user> add", "hint", "⟦", "⟧", "<eos>"):
        assert words in text
    shown = next(line for line in text.splitlines() if line.startswith("⟦"))
    assert r"\boxed" not in shown.split("⟧")[0]  # the thought is outside the loss, the answer is not
    assert not out.exists()


def test_flags_win_over_file_over_preset(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text("group = 6\nprompts = 3\nseed = 5\n")
    arguments = ["--preset", "sdpo", "--config", str(file), "--set", "prompts=5", "--group", "2", "--seed", "0"]
    assert run(["train", "-o", str(tmp_path / "x"), *arguments, "--list-settings", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group"], found["prompts"], found["seed"], found["method"]) == (2, 5, 0, "sdpo")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "ppo"], "Preset 'ppo'"),
        (["--group", "1"], "group: expected 2 or more"),
        (["--temperature", "0"], "temperature: expected a number above 0"),
        (["--set", "teacher_k=0"], "teacher_k: expected at least 1"),
        (["--set", "speed=1"], "Setting 'speed' is unknown"),
        (["--stages", "chess:5"], "Stage 'chess'"),
        (["--task", "sums"], "Task 'sums'"),
        (["--track", "paper"], "Tracker 'paper'"),
    ],
)
def test_usage_errors(tmp_path, capsys, arguments, words):
    assert run(["train", "-o", str(tmp_path / "x"), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "x").exists()


def test_weight_near_an_end_warns(tmp_path, capsys):
    assert (
        run(["train", "-o", str(tmp_path / "x"), "--method", "sdpo", "--set", "jsd_beta=0.01", "--list-settings"]) == 0
    )
    assert "warning: jsd_beta 0.01 is near an end" in capsys.readouterr().err


def test_help_loads_no_torch():
    code = (
        "import sys; from driftlab_cli.main import run; run(['train', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "driftlab train -o runs/grpo --preset grpo" in done.stdout
