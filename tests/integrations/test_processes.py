"""Two processes: the first measures alone, and both stop after the same step."""

import json
import subprocess
import sys

import pytest

from driftlab.results import ResultsDir

SCRIPT = """
import json, math, sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from driftlab.integrations import DriftCallback
from driftlab.training.world.base import base_folder

torch.set_num_threads(1)
out = Path(sys.argv[1])
rows = torch.randint(3, 60, (400, 12), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(
    str(out / "trainer"), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, max_steps=300,
    per_device_train_batch_size=1, learning_rate=1e-3, logging_steps=1000,
)
trainer = Trainer(AutoModelForCausalLM.from_pretrained(base_folder()), arguments, train_dataset=data)
callback = DriftCallback(out / "drift", every=2, max_overhead=math.inf, stop={"rel_frobenius": 1e-4})
callback.attach(trainer)
trainer.train()
rank = torch.distributed.get_rank()
(out / f"{rank}.json").write_text(json.dumps([trainer.state.global_step, callback._start is not None]))
"""


@pytest.mark.slow
def test_all_processes_stop_after_the_same_step(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run([*launcher, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first[0] == second[0] < 300
    assert (first[1], second[1]) == (True, False)
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    assert table["step"].max() == first[0]
