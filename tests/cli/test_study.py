"""``driftlab study`` and ``driftlab report``: what is refused before anything runs, and what a plan shows."""

import json

import pytest

from driftlab_cli.main import run


def test_a_dry_run_shows_the_plan_with_its_controls_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["study", "--profile", "smoke", "--seeds", "4,7", "--dry-run", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "seeds 4, 7; compared with grpo" in shown
    assert "sdpo-ema-unbiased (control of sdpo-ema)" in shown
    assert "grpo-no-kl (control of grpo)" in shown
    assert not out.exists()


def test_settings_win_over_the_profile(tmp_path, capsys):
    command = ["study", "--profile", "smoke", "--set", "prompts=3", "--stages", "math:2", "--dry-run", "--json"]
    assert run([*command, "-o", str(tmp_path / "out")]) == 0
    settings = [method["settings"] for method in json.loads(capsys.readouterr().out)["methods"]]
    assert {one["prompts"] for one in settings} == {3}
    assert {one["stages"] for one in settings} == {"math:2"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "1,x"], "expected whole numbers separated by commas"),
        (["--profile", "huge"], "expected one of default, full, smoke"),
        (["--profile", "smoke", "--config", "mine.toml"], "expected one of them, found both"),
        (["--config", "no-such.toml"], "expected a readable TOML file"),
        (["--set", "prompts"], "expected NAME=VALUE"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(tmp_path, capsys, options, words):
    assert run(["study", "-o", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_of_what_is_no_results_folder(tmp_path, capsys):
    assert run(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 1
    assert "expected a results folder" in capsys.readouterr().err
