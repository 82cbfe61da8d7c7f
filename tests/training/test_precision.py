"""bfloat16 autocast over float32 master weights: what can be checked without a GPU."""

import json

import pytest
import torch
from safetensors.torch import load_file

from driftlab.training.experience import collect
from driftlab.training.language import head, response_hidden
from driftlab.training.learner import Learner, Sums
from driftlab.training.teachers import make_teacher
from driftlab.training.trainer import train


def gradient(setup, samples):
    teacher = make_teacher("frozen", setup.language.model) if setup.config.method == "sdpo" else None
    learner, sums = Learner(setup.language, setup.config, setup.ranks, teacher, None), Sums()
    learner._accumulate(samples, None, sums)
    return torch.cat([parameter.grad.flatten() for parameter in learner.parameters]), sums


@pytest.mark.parametrize("method", ["grpo", "sdpo"])
def test_autocast_keeps_masters_and_stays_close(small, method):
    setup = small(method=method, prompts=8)
    task = next(task for task in setup.tasks if task.name == "math")
    samples = collect(setup.language, task, setup.config, setup.frame, 1, range(8))
    exact, log = gradient(setup, samples)
    setup.language.bf16 = True
    near, rough = gradient(setup, samples)
    assert near.dtype == torch.float32
    assert near.isfinite().all()
    assert torch.nn.functional.cosine_similarity(near, exact, dim=0) > 0.99
    assert 0 < (near - exact).norm() < 0.1 * exact.norm()  # it did compute in less
    entropy, expected = (sums.sums["entropy"] / sums.counts["entropy"] for sums in (rough, log))
    assert entropy == pytest.approx(expected, rel=0.02)


def test_autocast_covers_the_blocks_and_not_the_logits(small):
    setup = small(bf16="on")
    language, seen = setup.language, {}
    block = language.model.model.layers[0].mlp.down_proj
    block.register_forward_hook(lambda module, inputs, output: seen.update(block=output.dtype))
    hidden = response_hidden(language, language.model, [[2, 5, 6]] * 2, [[7, 8], [9]])
    logits = head(language.model, hidden)
    assert seen["block"] == torch.bfloat16
    assert logits.dtype == torch.float32
    assert {parameter.dtype for parameter in language.model.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_a_run_under_autocast_moves_float32_weights_by_less_than_bfloat16_can_hold(small, tmp_path):
    train(small(method="grpo", bf16="on", stages="math:2", lr=1e-6, evaluate=False), tmp_path / "run")
    base, last = (
        load_file(tmp_path / "run/checkpoints" / name / "model.safetensors")
        for name in ("000000-base", "000002-math@2")
    )
    rows = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [1, 1]
    assert {tensor.dtype for tensor in last.values()} == {torch.float32}
    moved = torch.cat([(last[name] != base[name]).flatten() for name in base]).float().mean()
    rounded = torch.cat([(last[name].bfloat16() != base[name].bfloat16()).flatten() for name in base]).float().mean()
    assert moved > 0.5
    assert rounded < 0.2 * moved
