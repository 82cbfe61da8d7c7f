"""The shipped tiny base, loaded once, and small runs of it."""

import copy

import pytest
import torch

from driftlab.training.config import merge
from driftlab.training.language import Language, load_language
from driftlab.training.trainer import prepare
from driftlab.training.world.base import base_folder

torch.set_num_threads(1)

SMALL = {
    "prompts": 4,
    "group": 4,
    "max_new_tokens": 28,
    "eval_samples": 4,
    "stages": "math:3,science:3",
    "save_every": 2,
}


@pytest.fixture(scope="session")
def _loaded() -> Language:
    return load_language(base_folder(), torch.device("cpu"))


@pytest.fixture
def language(_loaded) -> Language:
    """A fresh copy of the base with its tokenizer."""
    fresh = copy.copy(_loaded)
    fresh.model = copy.deepcopy(_loaded.model)
    return fresh


@pytest.fixture
def small():
    """Make the setup of a small run."""
    return lambda **settings: prepare(merge(SMALL, settings), "cpu")
