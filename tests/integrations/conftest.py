"""The shipped tiny model in a real Trainer of ``transformers``."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from driftlab.training.world.base import base_folder

torch.set_num_threads(1)


class Rows(torch.utils.data.Dataset):
    """Fixed rows of random tokens."""

    def __init__(self, count=64, width=12):
        self.ids = torch.randint(3, 60, (count, width), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


@pytest.fixture
def tiny():
    """Load the tiny model in a type."""
    return lambda dtype=torch.float32: AutoModelForCausalLM.from_pretrained(base_folder(), dtype=dtype)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(base_folder())


@pytest.fixture
def trainer(tmp_path, tiny, tokenizer):
    """Make a Trainer; keyword arguments are those of TrainingArguments."""

    def make(model=None, callbacks=(), folder="trainer", **options):
        defaults = {"max_steps": 12, "per_device_train_batch_size": 4, "logging_steps": 2, "learning_rate": 1e-3}
        fixed = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "seed": 1}
        arguments = TrainingArguments(str(tmp_path / folder), **fixed | defaults | options)
        return Trainer(
            model if model is not None else tiny(),
            arguments,
            train_dataset=Rows(),
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )

    return make


@pytest.fixture
def unlimited():
    return {"every": 4, "max_overhead": math.inf}
