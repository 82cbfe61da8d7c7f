"""Two processes with gloo take the same step as one."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from driftlab.errors import UsageError
from driftlab.training.distributed import Ranks, join
from driftlab.training.trainer import _check_shares

COMMAND = "from driftlab_cli.main import main; main()"


STOP = """
from driftlab.training import trainer
kept = trainer._milestone
def milestone(setup, run, learner, stage, step, global_step, *, scores):
    kept(setup, run, learner, stage, step, global_step, scores=scores)
    if global_step == 1:
        setup.ranks.wait()
        raise SystemExit(0)
trainer._milestone = milestone
"""


def run(out, processes, *settings, before=""):
    entry = out.parent / "entry.py"
    entry.write_text(f"{before}\n{COMMAND}")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    arguments = ["train", "-o", str(out), "--stages", "math:2", "--prompts", "4", "--group", "4", "--save-every", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *launcher, str(entry), *arguments, *settings],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 steps") == (before != STOP)  # one process speaks


GRPO = ("--method", "grpo", "--set", "kl_weight=0.1", "--no-evaluate")
HYBRID = ("--method", "hybrid", "--set", "teacher=ema", "--set", "aggregate=sequence", "--no-evaluate")
STABLE = (
    "--method", "sdpo", "--set", "teacher=stable", "--set", "teacher_k=1", "--set", "updates_per_batch=2",
    "--set", "eval_samples=2",
)  # fmt: skip
SHARDED = ("--set", "fsdp=on")
RECOMPUTED = (*SHARDED, "--set", "gradient_checkpointing=true", "--set", "micro_batch=3")
# Tokens are scored in chunks, and the two processes have unequally many.
FEW_LOGITS = "from driftlab.training import learner; learner._LOGITS = 173 * 50"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "sharded"),
    [(GRPO, ()), (HYBRID, ()), (GRPO, SHARDED), (HYBRID, SHARDED), (STABLE, RECOMPUTED)],
    ids=["grpo", "hybrid", "grpo-sharded", "hybrid-sharded", "stable-sharded"],
)
def test_two_processes_equal_one(tmp_path, settings, sharded):
    run(tmp_path / "one", 1, *settings)
    run(tmp_path / "two", 2, *settings, *sharded, before=FEW_LOGITS if sharded else "")
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_sharded_run_resumes_with_any_number_of_processes(tmp_path):
    """Stopped and resumed bit for bit with as many; the state is whole, so alone it goes on too, up to rounding."""
    for name in ("whole", "parts"):
        run(tmp_path / name, 2, *HYBRID, *SHARDED)
    last = tmp_path / "parts/checkpoints/000002-math@2"
    expected = (tmp_path / "whole/checkpoints/000002-math@2/model.safetensors").read_bytes()
    assert (last / "model.safetensors").read_bytes() == expected
    shutil.rmtree(tmp_path / "parts")
    run(tmp_path / "parts", 2, *HYBRID, *SHARDED, before=STOP)
    assert not last.exists()
    shutil.copytree(tmp_path / "parts", tmp_path / "alone")
    run(tmp_path / "parts", 2, *HYBRID, *SHARDED, "--resume")
    assert (last / "model.safetensors").read_bytes() == expected
    settings = json.loads((tmp_path / "alone/run.json").read_text())
    settings["config"]["fsdp"] = "off"
    (tmp_path / "alone/run.json").write_text(json.dumps(settings))
    run(tmp_path / "alone", 1, *HYBRID, "--set", "fsdp=off", "--resume")
    assert_same_run(tmp_path / "alone", tmp_path / "whole")


@pytest.mark.slow
def test_a_sharded_checkpoint_is_read_by_svd(tmp_path):
    from driftlab_cli.main import run as command

    run(tmp_path / "run", 2, *GRPO, *SHARDED)
    assert command(["svd", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert (tmp_path / "out/spectral.parquet").is_file()


def assert_same_run(one, two):
    logs = [_rows(folder / "steps.jsonl") for folder in (one, two)]
    for left, right in zip(*logs, strict=True):
        for key in ("reward", "completions/mean_length", "updates", "demo_fraction"):
            assert left[key] == right[key]
        for key in ("entropy", "grad_norm", "update_norm", "teacher_distance"):
            assert left[key] is right[key] is None or left[key] == pytest.approx(right[key], rel=1e-4)
    moved = {}
    for label in ("000001-math@1", "000002-math@2"):
        left, right, base = (
            load_file(folder / "checkpoints" / name / "model.safetensors")
            for folder, name in ((one, label), (two, label), (one, "000000-base"))
        )
        assert left.keys() == right.keys()
        gap, moved[label] = (
            math.sqrt(sum(float((left[name] - other[name]).double().square().sum()) for name in left))
            for other in (right, base)
        )
        # In norm: entries whose gradient is about Adam's epsilon react to the last bit of it.
        assert gap < 1e-4 * moved[label]
    assert moved["000002-math@2"] > 1e-2


def test_alone_everything_is_local():
    ranks = Ranks()
    tensor = torch.ones(3)
    ranks.add([tensor])
    ranks.wait()
    assert tensor.tolist() == [1, 1, 1]
    assert (ranks.total(2.5), ranks.gather("x"), ranks.leads) == (2.5, ["x"], True)


def _rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_sharing_weights_needs_processes_and_equal_shares(small, monkeypatch):
    with pytest.raises(UsageError, match="several processes to share the weights, found one"):
        small(fsdp="on")
    config = small(prompts=6, updates_per_batch=2).config
    with pytest.raises(UsageError, match=r"as many for each of 2 processes .* found 3 an optimizer step"):
        _check_shares(config, Ranks(0, 2, sharded=True))
    _check_shares(config, Ranks(0, 3, sharded=True))
    with pytest.raises(UsageError, match="expected 0 where weights are sharded, found 4"):
        _check_shares(dataclasses.replace(config, lora_rank=4), Ranks(0, 3, sharded=True))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    cpu = torch.device("cpu")
    assert join(cpu, "auto") == Ranks(1, 2, sharded=False)
    assert join(cpu, "on") == Ranks(1, 2, sharded=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as accelerate launch sets it
    assert join(cpu, "auto") == Ranks(1, 2, sharded=True)
    assert join(cpu, "off") == Ranks(1, 2, sharded=False)
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    with pytest.raises(UsageError, match="found offloading asked for"):
        join(cpu, "auto")
