"""Two processes with gloo take the same step as one."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from driftlab.training.distributed import Ranks

COMMAND = "from driftlab_cli.main import main; main()"


def run(out, processes, *settings):
    entry = out.parent / "entry.py"
    entry.write_text(COMMAND)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    arguments = ["train", "-o", str(out), "--stages", "math:2", "--prompts", "4", "--group", "4", "--save-every", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *launcher, str(entry), *arguments, *settings],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 steps") == 1  # one process speaks


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("--method", "grpo", "--set", "kl_weight=0.1", "--no-evaluate"),
        ("--method", "hybrid", "--set", "teacher=ema", "--set", "aggregate=sequence", "--no-evaluate"),
    ],
)
def test_two_processes_equal_one(tmp_path, settings):
    run(tmp_path / "one", 1, *settings)
    run(tmp_path / "two", 2, *settings)
    logs = [_rows(tmp_path / name / "steps.jsonl") for name in ("one", "two")]
    for left, right in zip(*logs, strict=True):
        for key in ("reward", "completions/mean_length", "updates", "demo_fraction"):
            assert left[key] == right[key]
        for key in ("entropy", "grad_norm", "update_norm"):
            assert left[key] == pytest.approx(right[key], rel=1e-4)
    moved = {}
    for label in ("000001-math@1", "000002-math@2"):
        one, two, base = (
            load_file(tmp_path / name / "checkpoints" / folder / "model.safetensors")
            for name, folder in (("one", label), ("two", label), ("one", "000000-base"))
        )
        gap = max(float((one[name] - two[name]).abs().max()) for name in one)
        moved[label] = max(float((one[name] - base[name]).abs().max()) for name in one)
        assert gap < 1e-3 * moved[label]
    assert moved["000002-math@2"] > 1e-4


def test_alone_everything_is_local():
    ranks = Ranks()
    tensor = torch.ones(3)
    ranks.add([tensor])
    ranks.wait()
    assert tensor.tolist() == [1, 1, 1]
    assert (ranks.total(2.5), ranks.gather("x"), ranks.leads) == (2.5, ["x"], True)


def _rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]
