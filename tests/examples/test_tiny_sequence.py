"""The tiny example writes the run folders it promises, the same bytes each time, and its models learn."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "examples" / "tiny_sequence.py"
STEPS, EVERY = 8, 3


def run_script(out: Path, hash_seed: str) -> subprocess.CompletedProcess[str]:
    sizes = ["--steps", str(STEPS), "--save-every", str(EVERY), "--pretrain", "20", "--seed", "1"]
    return subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), str(out), *sizes],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny") / "runs"
    return out, run_script(out, "1").stdout


def files(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def steps(out: Path, run: str) -> list[dict]:
    return [json.loads(line) for line in (out / run / "steps.jsonl").read_text().splitlines()]


def test_one_line_a_run_and_nothing_left_over(first):
    out, printed = first
    assert [line.split(":")[0] for line in printed.splitlines()] == [str(out / "gentle"), str(out / "hard")]
    assert sorted(entry.name for entry in out.iterdir()) == ["gentle", "hard"]
    assert not [name for name in files(out) if ".tmp" in name]


@pytest.mark.parametrize(
    ("run", "names"),
    [
        ("gentle", ["000000-base", "000003-math@3", "000006-math@6", "000008-math@8"]),
        ("hard", ["000000-base", "000003-math@3", "000004-math@4", "000007-words@3", "000008-words@4"]),
    ],
)
def test_checkpoints_carry_their_place_in_the_run(first, run, names):
    folders = sorted((first[0] / run / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == names
    for folder in folders:
        place = json.loads((folder / "driftlab.json").read_text())
        assert folder.name == f"{place['global_step']:06d}-{place['label']}"
        assert set(place) == {"label", "stage", "step", "global_step"}
        assert place["label"] == (f"{place['stage']}@{place['step']}" if place["stage"] else "base")
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("run", "method", "stages"),
    [
        ("gentle", "SFT 3e-4", [{"name": "math", "steps": 8}]),
        ("hard", "SFT 1e-3", [{"name": "math", "steps": 4}, {"name": "words", "steps": 4}]),
    ],
)
def test_run_json_says_how_the_run_was_made(first, run, method, stages):
    record = json.loads((first[0] / run / "run.json").read_text())
    expected = ["method", "config", "seed", "stages", "base", "versions", "git_commit", "device", "dtype"]
    assert sorted(record) == sorted(expected)
    assert (record["method"], record["stages"], record["seed"]) == (method, stages, 1)
    assert (first[0] / run / record["base"] / "model.safetensors").is_file()
    assert record["versions"]["torch"] == torch.__version__
    assert str(first[0]) not in json.dumps(record)


def test_weights_are_bf16_with_rectangular_keys_and_no_second_copy_of_the_tied_one(first):
    weights = load_file(first[0] / "hard" / "checkpoints" / "000008-words@4" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert weights["model.layers.2.self_attn.k_proj.weight"].shape == (32, 64)
    assert weights["model.layers.0.mlp.down_proj.weight"].shape == (64, 160)
    assert "lm_head.weight" not in weights


def test_both_runs_start_from_one_base_and_move_away_from_it(first):
    base, other, last = (
        load_file(first[0] / name / "model.safetensors")
        for name in (
            "gentle/checkpoints/000000-base",
            "hard/checkpoints/000000-base",
            "gentle/checkpoints/000008-math@8",
        )
    )
    assert all(torch.equal(base[name], other[name]) for name in base)
    matrices = [name for name in base if base[name].ndim == 2]
    assert not any(torch.equal(base[name], last[name]) for name in matrices)


def test_loss_falls_in_each_stage(first):
    for run in ("gentle", "hard"):
        rows = steps(first[0], run)
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        for stage in {row["stage"] for row in rows}:
            losses = [row["loss"] for row in rows if row["stage"] == stage]
            assert losses[-1] < 0.97 * losses[0]


def test_the_same_seed_gives_the_same_bytes_and_replaces_earlier_runs(first, tmp_path):
    out = tmp_path / "runs"
    (out / "gentle").mkdir(parents=True)
    (out / "gentle" / "run.json").write_text("{}")
    run_script(out, "2")
    assert files(out) == files(first[0])


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("tiny_sequence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--steps must be at least 2"),
        (["--save-every", "0"], "--save-every and --pretrain at least 1"),
        ([], "is not a run folder: choose another folder"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(script, monkeypatch, capsys, tmp_path, arguments, message):
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stop:
        script.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "hard" / "thesis.txt").read_text() == "years of work"


def test_the_script_needs_no_driftlab():
    imports = [
        node for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in imports for alias in node.names} | {getattr(node, "module", "") for node in imports}
    assert not [name for name in names if name and name.startswith("driftlab")]
