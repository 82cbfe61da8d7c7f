"""The command: what it prints, what it leaves, its exit codes."""

import json
import shutil

import pandas as pd
import pytest

from driftlab.training.config import merge
from driftlab.training.trainer import prepare, train
from driftlab_cli.main import run

SMALL = {
    "method": "grpo",
    "prompts": 2,
    "group": 2,
    "eval_samples": 3,
    "stages": "math:2",
    "max_new_tokens": 24,
    "lr": 3e-3,
}
FEW = ["--prompts", "2", "--copies", "2", "--task", "math"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "tiny"
    train(prepare(merge(SMALL), "cpu"), out)
    return out


def test_tables_and_output(trained, tmp_path, capsys):
    assert run(["policy", str(trained), "-o", str(tmp_path / "out"), "--csv", "-q", "--device", "cpu", *FEW]) == 0
    out, err = capsys.readouterr()
    assert "math@2" in out
    assert "verdict" in out
    assert err == ""
    for name in ("policy", "artifacts", "ngrams", "steps"):
        assert len(pd.read_csv(tmp_path / "out" / f"{name}.csv")) > 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())["commands"]["policy"]
    assert manifest["checkpoints"] == {"ok": 2, "failed": 0}
    assert manifest["config"]["plan"]["copies"] == 2


def test_a_folder_in_use_is_refused_and_resume_repeats(trained, tmp_path, capsys):
    arguments = ["policy", str(trained), "-o", str(tmp_path / "out"), "-q", "--json", "--device", "cpu", *FEW]
    assert run(arguments) == 0
    first = capsys.readouterr().out
    assert run(arguments) == 1
    assert "Give --resume to continue" in capsys.readouterr().err
    assert run([*arguments, "--resume"]) == 0
    assert capsys.readouterr().out == first
    content = json.loads(first)
    assert [row["label"] for row in content["rows"]] == ["base", "math@2"]
    assert [row["verdict"] for row in content["artifacts"]] == ["none", "none"]


def test_no_logits(trained, tmp_path, capsys):
    assert run(["policy", str(trained), "-o", str(tmp_path / "out"), "--no-logits", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in content["rows"]] == ["base", "math@2"]
    assert not (tmp_path / "out/policy.parquet").exists()


def test_some_failed_is_exit_3(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run/checkpoints/000002-math@2/tokenizer.json").write_text("{}")
    assert run(["policy", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--device", "cpu", *FEW]) == 3
    assert "1 checkpoints ok, 1 failed" in capsys.readouterr().err


def test_wrong_usage_is_exit_2(trained, tmp_path, capsys):
    assert run(["policy", str(trained), "-o", str(tmp_path / "out"), "--responses", "greedy"]) == 2
    assert "--responses 'greedy': expected generate or stored." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
