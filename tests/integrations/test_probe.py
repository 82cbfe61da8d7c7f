"""Probes: an exact divergence at the start's responses, sampling that leaves no trace."""

import math

import numpy as np
import pytest
import torch

from driftlab.errors import UsageError
from driftlab.integrations.probe import Probe

PROMPTS = ["1 + 2 =", "3 + 4 =", "5 + 6 ="]


@pytest.fixture
def probe(tiny, tokenizer):
    model = tiny()
    return model, Probe(model, tokenizer, PROMPTS, 6, 0)


def moved(model):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)


def test_the_start_is_at_distance_zero(probe):
    model, found = probe
    numbers = found.numbers(found.look(model))
    assert (numbers["kl"], numbers["kl_se"]) == (0.0, 0.0)


def test_kl_is_the_sum_over_the_starts_own_responses_in_float64(probe, tiny):
    model, found = probe
    moved(model)
    start = tiny()
    sums = []
    for ids, response in zip(found.ids, found.responses, strict=True):
        row = torch.tensor([[*ids, *response]])
        with torch.no_grad():
            p, q = (
                m(input_ids=row).logits[0, len(ids) - 1 : -1].double().log_softmax(1).numpy() for m in (start, model)
            )
        sums.append((np.exp(p) * (p - q)).sum())
    numbers = found.numbers(found.look(model))
    assert numbers["kl"] == pytest.approx(np.mean(sums), rel=1e-6)
    assert numbers["kl"] > 1e-3
    assert numbers["kl_se"] == pytest.approx(np.std(sums, ddof=1) / math.sqrt(3), rel=1e-6)


def test_the_same_model_answers_the_same(probe):
    model, found = probe
    first, second = found.look(model), found.look(model)
    assert first.texts == second.texts
    assert all(torch.equal(*pair) for pair in zip(first.logits, second.logits, strict=True))


def test_looking_leaves_modes_and_random_numbers_as_they_were(probe):
    model, found = probe
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    settings = model.generation_config
    before = torch.get_rng_state()
    found.look(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert model.generation_config is settings


def test_repetition_is_seen(probe):
    model, found = probe
    look = found.look(model)
    same = found.numbers(type(look)(look.logits, ["a b c d e f g h"] * 3))
    loop = found.numbers(type(look)(look.logits, ["a b c d " * 10] * 3))
    assert same["repeat_rate"] == 0
    assert loop["repeat_rate"] > 0.8


def test_what_it_needs(tiny, tokenizer):
    with pytest.raises(UsageError, match="expected a trainer with a tokenizer"):
        Probe(tiny(), None, PROMPTS, 4, 0)
    with pytest.raises(UsageError, match="probe_tokens"):
        Probe(tiny(), tokenizer, PROMPTS, 0, 0)
