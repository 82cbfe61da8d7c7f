"""One small run with two checkpoints, made once, and a study of it."""

import pytest
import torch

from driftlab.training.config import merge
from driftlab.training.trainer import prepare, train

torch.set_num_threads(1)

SMALL = {
    "method": "sdpo",
    "prompts": 4,
    "group": 4,
    "lr": 3e-3,
    "max_new_tokens": 28,
    "eval_samples": 6,
    "stages": "math:2,science:2",
    "save_every": 2,
    "seed": 3,
}


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "small"
    train(prepare(merge(SMALL), "cpu"), out)
    return out
