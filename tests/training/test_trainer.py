"""The loop: stop and resume, evaluation, micro-batches, empty batches, several updates, and that it learns."""

import dataclasses
import json
import random

import pytest
import torch

from driftlab.errors import DataError, NumericalError, ResultsError, UsageError
from driftlab.training.config import load_preset, merge
from driftlab.training.experience import collect, teacher_prompt
from driftlab.training.language import head, recompute_activations
from driftlab.training.learner import Learner, Sums
from driftlab.training.teachers import make_teacher, trainable
from driftlab.training.terms import mixture_log_probs, token_terms
from driftlab.training.trainer import prepare, train

CLOCKS = {"seconds_rollout", "seconds_train", "tokens_per_second", "peak_memory_mb"}


class StopError(Exception):
    pass


def stop_at(step):
    def on_step(row):
        if row["global_step"] == step:
            raise StopError

    return on_step


def log(folder, name="steps"):
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows]


def weight_bytes(folder):
    return {file.parent.name: file.read_bytes() for file in (folder / "checkpoints").glob("*/model.safetensors")}


def learner_of(setup, **teacher):
    config = setup.config
    made = make_teacher(config.teacher, setup.language.model, **teacher) if config.method != "grpo" else None
    return Learner(setup.language, config, setup.ranks, made, None)


def batch(setup, step=1):
    task = next(task for task in setup.tasks if task.name == "math")
    return collect(setup.language, task, setup.config, setup.frame, step, range(setup.config.prompts))


def gradient(setup, samples, **changes):
    """Return the gradient of one step without moving the weights."""
    setup.config = dataclasses.replace(setup.config, **changes)
    learner = learner_of(setup)
    learner._accumulate(samples, None, Sums())
    return torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "sdpo", "teacher": "stable", "teacher_k": 3, "teacher_gamma": 0.5},
        {"method": "sdpo", "teacher": "ema", "optimizer_reset": "stage", "teacher_reset": "stage", "mask_ratio": 0.8},
        {"method": "grpo", "kl_weight": 0.1, "updates_per_batch": 2, "warmup": 4},
    ],
)
def test_stop_and_resume_equal_no_stop_bit_for_bit(small, tmp_path, settings):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(small(**settings), whole)
    with pytest.raises(StopError):
        train(small(**settings), parts, on_step=stop_at(3))  # after the step, before its checkpoint: back to step 2
    train(small(**settings), parts, resume=True, on_step=lambda row: None)
    assert weight_bytes(parts) == weight_bytes(whole)
    assert len(weight_bytes(whole)) == 5
    assert log(parts) == log(whole)
    assert log(parts, "scores") == log(whole, "scores")
    for file in (whole / "responses").iterdir():
        assert (parts / "responses" / file.name).read_text() == file.read_text()
    states = [torch.load(folder / "state/last/state.pt", weights_only=True)["learner"] for folder in (whole, parts)]
    for left, right in zip(_tensors(states[0]), _tensors(states[1]), strict=True):
        assert torch.equal(left, right)


def _tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list) else []
    return [tensor for value in values for tensor in _tensors(value)]


def test_evaluation_changes_no_weight(small, tmp_path):
    settings = {"method": "grpo", "stages": "math:2"}
    train(small(**settings, eval_every=1, eval_samples=5), tmp_path / "on")
    train(small(**settings, evaluate=False), tmp_path / "off")
    on, off = (weight_bytes(tmp_path / name)["000002-math@2"] for name in ("on", "off"))
    assert on == off
    assert not (tmp_path / "off" / "scores.jsonl").exists()
    assert {row["label"] for row in log(tmp_path / "on", "scores")} == {"base", "math@1", "math@2"}


def test_global_random_state_changes_nothing(small, tmp_path):
    weights = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        train(small(method="sdpo", stages="math:2", evaluate=False), tmp_path / str(seed))
        weights.append(weight_bytes(tmp_path / str(seed)))
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "grpo"},
        {"method": "grpo", "aggregate": "sequence"},
        {"method": "sdpo"},
        {"method": "sdpo", "jsd_form": "topk", "top_k": 5, "distill_cot": True},
        {"method": "sdpo", "jsd_form": "sampled", "aggregate": "sequence"},
        {"method": "hybrid", "hybrid_weight": 0.3},
    ],
)
def test_gradient_does_not_depend_on_the_micro_batch(small, settings):
    setup = small(**settings)
    samples = batch(setup)
    whole = gradient(setup, samples)
    assert whole.norm() > 1e-3
    for size in (1, 3, 8):
        part = gradient(setup, samples, micro_batch=size)
        assert (part - whole).norm() <= 2e-6 * max(1.0, whole.norm().item() / 0.1)


@pytest.mark.parametrize("settings", [{"method": "grpo"}, {"method": "sdpo"}, {"method": "hybrid"}])
def test_samples_without_a_gradient_are_left_out_of_it_and_counted(small, settings):
    """A group of equal rewards and a response without demonstration: the same gradient and log, and less work."""
    setup = small(**settings, prompts=6)
    samples = batch(setup)
    for sample in samples[:8]:
        sample.advantage, sample.distil = 0.0, torch.zeros_like(sample.distil)
    backward = []
    passes = Learner._passes

    def all_active(self, samples, active):
        backward.append(sum(active))
        return passes(self, samples, [True] * len(samples))

    found, whole, sums = gradient(setup, samples), None, [Sums(), Sums()]
    learner_of(setup)._accumulate(samples, None, sums[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "_passes", all_active)
        whole = gradient(setup, samples)
        learner_of(setup)._accumulate(samples, None, sums[1])
    assert 0 < backward[0] <= len(samples) - 8
    torch.testing.assert_close(found, whole, atol=2e-7, rtol=1e-4)
    assert sums[0].counts == sums[1].counts
    assert sums[0].sums == pytest.approx(sums[1].sums, rel=1e-5)


def test_tiny_world_cuts_a_batch_and_keeps_a_given_size(small):
    assert small().config.micro_batch == 64
    assert small(micro_batch=7).config.micro_batch == 7


def test_equal_demonstrations_share_one_teacher_prompt(small):
    setup = small(method="sdpo", prompts=6, demo="gold")
    samples = batch(setup)
    for row in range(6):
        group = samples[4 * row : 4 * row + 4]
        assert all(sample.context is group[0].context for sample in group)
        shown = teacher_prompt(setup.language, group[0].question, setup.frame, 999, solution=group[0].question.answer)
        assert group[0].context == shown
    assert len({sample.context.text for sample in samples}) == 6


def test_gradient_does_not_depend_on_the_chunks_of_logits(small):
    setup = small(method="sdpo")
    samples = batch(setup)
    whole = gradient(setup, samples)
    learner = learner_of(setup)
    learner.chunk_logits = 173 * 7
    learner._accumulate(samples, None, Sums())
    chunked = torch.cat([parameter.grad.flatten() for parameter in learner.parameters])
    torch.testing.assert_close(chunked, whole, atol=2e-6, rtol=1e-4)


def test_gradient_checkpointing_changes_nothing(small):
    plain = small(method="sdpo")
    samples = batch(plain)
    expected = gradient(plain, samples)
    setup = small(method="sdpo")
    recompute_activations(setup.language.model)
    found = gradient(setup, samples, gradient_checkpointing=True)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)
    assert not setup.language.model.training  # sampling keeps its cache
    assert [sample.response for sample in batch(setup)] == [sample.response for sample in samples]


def test_hybrid_is_the_weighted_sum_of_both(small):
    setup = small(method="hybrid", hybrid_weight=0.3)
    samples = batch(setup)
    mixed = gradient(setup, samples)
    policy = gradient(setup, samples, hybrid_weight=1.0)
    distil = gradient(setup, samples, hybrid_weight=0.0)
    torch.testing.assert_close(mixed, 0.3 * policy + 0.7 * distil, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(gradient(setup, samples, method="sdpo"), distil, atol=1e-6, rtol=1e-4)


def test_grpo_gradient_equals_a_loop_over_responses(small):
    """The slow twin: one response at a time, one token at a time, float64, plain formula."""
    setup = small(method="grpo")
    samples = batch(setup)
    found = gradient(setup, samples)
    model = setup.language.model.double()
    model.zero_grad()
    tokens = sum(len(sample.response.ids) for sample in samples)
    for sample in samples:
        if sample.advantage:
            ids = sample.prompt.ids + sample.response.ids
            table = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            start = len(sample.prompt.ids)
            for place, token in enumerate(sample.response.ids):
                (-sample.advantage * table[start + place - 1, token] / tokens).backward(retain_graph=True)
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).float()
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_no_target_no_step(small):
    setup = small(method="sdpo", max_new_tokens=3)  # too short for an answer: no success, no demonstration
    before = [tensor.clone() for tensor in trainable(setup.language.model)]
    learner = learner_of(setup)
    samples = batch(setup)
    assert not any(sample.shown for sample in samples)
    row = learner.learn(samples)
    assert row["updates"] == 0
    assert row["js_distilled"] is None  # a gap, not a zero
    assert row["js_response"] == pytest.approx(0.0, abs=1e-6)
    assert learner.teacher.iterations == 0
    assert learner.optimizer_steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainable(setup.language.model), strict=True))


def test_no_step_even_when_the_optimizer_has_momentum(small):
    setup = small(method="grpo")
    learner = learner_of(setup)
    learner.learn(batch(setup))
    before = [tensor.clone() for tensor in trainable(setup.language.model)]
    flat = [dataclasses.replace(sample, advantage=0.0) for sample in batch(setup, 2)]
    row = learner.learn(flat)
    assert (row["updates"], row["update_norm"], row["grad_norm"]) == (0, 0.0, None)
    assert all(torch.equal(a, b) for a, b in zip(before, trainable(setup.language.model), strict=True))


def test_no_step_on_a_gradient_that_is_exactly_zero(small):
    """With a KL term there is a loss, but not before the policy has left its reference."""
    setup = small(method="grpo", kl_weight=0.2)
    reference = make_teacher("frozen", setup.language.model)
    learner = Learner(setup.language, setup.config, setup.ranks, None, reference)
    before = [tensor.clone() for tensor in trainable(setup.language.model)]
    row = learner.learn([dataclasses.replace(sample, advantage=0.0) for sample in batch(setup)])
    assert (row["updates"], row["update_norm"], row["kl_ref"]) == (0, 0.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, trainable(setup.language.model), strict=True))


def test_several_updates_a_batch_use_the_policy_that_sampled(small):
    setup = small(method="grpo", prompts=8, updates_per_batch=2, lr=1e-3)
    learner = learner_of(setup)
    row = learner.learn(batch(setup))
    assert row["updates"] == learner.optimizer_steps == 2
    assert row["clip_ratio"] > 0  # the later shares are off-policy


def test_temperature_is_the_same_everywhere(small):
    """At temperature T everything must read logits / T: scaling the logits by T undoes it."""
    setup = small(method="grpo", temperature=0.5)
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0))
    tokens, advantages = torch.arange(6), torch.ones(6)
    config = dataclasses.replace(setup.config, kl_weight=0.1, method="hybrid")
    teacher = torch.log_softmax(logits.flip(0), -1)
    cold = token_terms(logits, tokens, config, advantages=advantages, teacher=teacher, reference=logits.flip(1))
    warm = token_terms(
        logits / 0.5, tokens, dataclasses.replace(config, temperature=1.0), advantages=advantages, teacher=teacher,
        reference=logits.flip(1) / 0.5,
    )  # fmt: skip
    for name, values in cold.items():
        torch.testing.assert_close(values, warm[name])


def test_trust_region_teacher_is_the_normalised_product(small):
    setup = small(method="sdpo", teacher="trust", trust_weight=0.3)
    model = setup.language.model
    teacher = make_teacher("trust", model, trust_weight=0.3)
    with torch.no_grad():
        next(iter(model.parameters())).add_(0.05)
        hidden = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
        found = mixture_log_probs([(w, net, hidden) for w, net in teacher.mixture(model)], slice(None), 1.0)
        anchor, live = (head(net, hidden).double().softmax(-1) for _, net in teacher.mixture(model))
    product = anchor**0.7 * live**0.3
    torch.testing.assert_close(found.exp().double(), product / product.sum(-1, keepdim=True), atol=1e-6, rtol=1e-5)


def test_groups_are_by_prompt_and_demonstrations_come_from_others(small):
    setup = small(method="sdpo", prompts=6)
    samples = batch(setup)
    for row in range(6):
        group = samples[4 * row : 4 * row + 4]
        assert len({sample.question.prompt for sample in group}) == 1
        good = [sample for sample in group if sample.verdict.ok]
        for sample in group:
            others = [peer for peer in good if peer is not sample]
            assert sample.shown == bool(others)
            assert sample.lone_success == (good == [sample])
            if sample.shown:
                assert sample.context.text.count("hint") == 1
                assert sample.context.text.split(" hint ")[0] == sample.prompt.text.removesuffix(" <assistant>")


def test_long_demonstration_is_cut_and_the_question_is_not(small):
    setup = small(method="sdpo")
    question = setup.tasks[0].sample(1, random.Random(0))[0]
    whole = teacher_prompt(setup.language, question, setup.frame, 999, solution=question.gold)
    cut = teacher_prompt(setup.language, question, setup.frame, len(whole.ids) - 4, solution=question.gold)
    assert len(cut.ids) == len(whole.ids) - 4
    assert question.prompt in cut.text
    with pytest.raises(DataError, match="teacher prompt of at most 3 tokens"):
        teacher_prompt(setup.language, question, setup.frame, 3, solution=question.gold)


def test_sft_learns_gold_and_own_successes(small, tmp_path):
    train(small(method="sft", stages="math:3", evaluate=False, lr=1e-3), tmp_path / "gold")
    rows = log(tmp_path / "gold")
    assert [(row["reward"], row["updates"]) for row in rows] == [(None, 1)] * 3
    setup = small(method="sft", sft_on="own")
    samples = batch(setup)
    assert [bool(sample.learn.any()) for sample in samples] == [sample.verdict.ok for sample in samples]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["grpo", "sdpo"])
def test_score_in_math_rises(small, tmp_path, preset):
    """On the same questions with the same random numbers, before and after: one batch's reward says too little."""
    settings = {**load_preset(preset), "prompts": 8, "group": 8, "stages": "math:25", "eval_samples": 128, "seed": 1}
    train(small(**settings), tmp_path / "run")
    scores = {row["label"]: row for row in log(tmp_path / "run", "scores") if row["task"] == "math"}
    before, after = scores["base"], scores["math@25"]
    assert before["n"] == after["n"] == 128
    assert 0.3 <= before["score"] <= 0.65  # the gate of the base: there is something to sharpen
    assert after["score"] >= before["score"] + 2 * (before["stderr"] ** 2 + after["stderr"] ** 2) ** 0.5


def test_run_folder_has_the_agreed_shape(small, tmp_path):
    setup = small(method="grpo", stages="math:3,coding:1", eval_samples=3)
    assert prepare(merge(load_preset("sdpo-ema")), "cpu").config.name == "sdpo-ema"
    train(setup, tmp_path / "run")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert set(run) == {
        "method", "config", "seed", "stages", "base", "versions", "git_commit", "device", "dtype",
    }  # fmt: skip
    assert run["method"] == "grpo"
    assert run["stages"] == [{"name": "math", "steps": 3}, {"name": "coding", "steps": 1}]
    folders = sorted(folder.name for folder in (tmp_path / "run/checkpoints").iterdir())
    assert folders == ["000000-base", "000002-math@2", "000003-math@3", "000004-coding@1"]
    last = tmp_path / "run/checkpoints/000004-coding@1"
    assert json.loads((last / "driftlab.json").read_text()) == {
        "label": "coding@1", "stage": "coding", "step": 1, "global_step": 4,
    }  # fmt: skip
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in last.iterdir()}
    scores = log(tmp_path / "run", "scores")
    assert [row["label"] for row in scores[::10]] == ["base", "math@3", "coding@1"]
    rows = [json.loads(line) for line in (tmp_path / "run/responses/math@3.jsonl").read_text().splitlines()]
    assert set(rows[0]) == {"id", "task", "prompt", "response", "reward", "truncated"}
    assert len({row["id"] for row in rows}) == len(rows) == 30
    base = [json.loads(line) for line in (tmp_path / "run/responses/base.jsonl").read_text().splitlines()]
    assert [(row["id"], row["prompt"]) for row in rows] == [(row["id"], row["prompt"]) for row in base]


def test_bfloat16_checkpoints(small, tmp_path):
    from safetensors.torch import load_file

    train(small(method="grpo", stages="math:1", evaluate=False, save_dtype="bfloat16"), tmp_path / "run")
    folder = tmp_path / "run/checkpoints/000001-math@1"
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_refusals(small, tmp_path):
    setup = small(stages="math:1", evaluate=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ResultsError, match="new or empty folder"):
        train(setup, tmp_path / "mine")
    with pytest.raises(ResultsError, match="--force replaces runs only"):
        train(setup, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    with pytest.raises(ResultsError, match=r"expected run\.json"):
        train(setup, tmp_path / "mine", resume=True)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    train(setup, tmp_path / "run")
    with pytest.raises(ResultsError, match="group: 4 there, 2 now"):
        train(small(stages="math:1", evaluate=False, group=2), tmp_path / "run", resume=True)
    train(setup, tmp_path / "run", force=True)
    assert len(log(tmp_path / "run")) == 1


def test_resume_starts_a_run_where_nothing_lies(small, tmp_path):
    setup = small(stages="math:1", evaluate=False)
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        train(setup, tmp_path / name, resume=True)
        assert [row["global_step"] for row in log(tmp_path / name)] == [1]


def test_long_prompts_and_unknown_stages_fail_before_the_first_step(small):
    with pytest.raises(DataError, match="at most 5 tokens, found"):
        small(prompt_budget=5)
    with pytest.raises(UsageError, match="Stage 'chess'"):
        small(stages="chess:3")
    with pytest.raises(UsageError, match="less than the model's context of 256, found 300"):
        small(max_new_tokens=300)
    assert small(max_new_tokens=56).config.teacher_budget == 200


def test_gradient_that_is_not_finite_stops_the_run(small):
    setup = small(method="grpo")
    samples = batch(setup)
    with torch.no_grad():
        setup.language.model.model.norm.weight[0] = float("inf")
    with pytest.raises(NumericalError, match="optimizer step 1: expected a finite number"):
        learner_of(setup).learn(samples)
