"""Every per-token number of a step, from logits: no model, no batch, no reduction."""

import torch
from torch import Tensor, nn

from driftlab.training import objectives
from driftlab.training.config import TrainConfig
from driftlab.training.language import head


def token_terms(
    logits: Tensor,
    tokens: Tensor,
    config: TrainConfig,
    *,
    advantages: Tensor,
    old_log_probs: Tensor | None = None,
    teacher: Tensor | None = None,
    reference: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute every per-token number of one step from logits; no model and no reduction in it.

    Parameters
    ----------
    logits : Tensor of shape (N, V)
        The student's.
    tokens : Tensor of shape (N,)
        Sampled ids.
    config : TrainConfig
        Objective and temperature.
    advantages : Tensor of shape (N,)
        Of the response of each token.
    old_log_probs : Tensor of shape (N,), optional
        Of the tokens when they were sampled; None if the student has not moved since.
    teacher, reference : Tensor of shape (N, V), optional
        Log-probabilities of the teacher; logits of the reference.

    Returns
    -------
    dict of Tensor of shape (N,)
        ``policy`` and ``distil`` carry gradients; the rest is for the log.
    """
    student = objectives.log_softmax(logits, config.temperature)
    log_probs = objectives.gather(student, tokens)
    old = log_probs.detach() if old_log_probs is None else old_log_probs
    terms = {"log_probs": log_probs.detach(), "entropy": objectives.entropy(student.detach())}
    if config.method == "sft":
        terms["policy"] = -log_probs
    elif config.method in ("grpo", "hybrid"):
        terms["policy"], terms["clip_ratio"] = objectives.policy_loss(
            log_probs, old, advantages,
            clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip or None,
        )  # fmt: skip
        if reference is not None:
            theirs = objectives.gather(objectives.log_softmax(reference, config.temperature), tokens)
            kl = objectives.kl_estimate(log_probs, theirs, config.kl_estimator)
            terms["policy"] = terms["policy"] + config.kl_weight * kl
            terms["kl_ref"] = kl.detach()
    if teacher is not None:
        terms |= _distillation(student, teacher, tokens, config)
        if old_log_probs is not None:
            weight = objectives.importance_weight(log_probs, old, config.importance_clip)
            terms["distil"] = terms["distil"] * weight
        terms["teacher_entropy"] = objectives.entropy(teacher)
    return terms


def _distillation(student: Tensor, teacher: Tensor, tokens: Tensor, config: TrainConfig) -> dict[str, Tensor]:
    """Return the distillation loss and the JS divergence (weight one half) of each token."""
    if config.jsd_form == "sampled":
        ours, theirs = objectives.gather(student, tokens), objectives.gather(teacher, tokens)
        _, surrogate = objectives.jsd_sampled(ours, theirs, config.jsd_beta)
        return {"distil": surrogate, "js": objectives.jsd_sampled(ours.detach(), theirs, 0.5)[0]}
    terms = {}
    if config.jsd_form == "topk" and config.top_k < student.shape[-1]:
        student, teacher = objectives.top_k(student, teacher, config.top_k)
        terms["topk_mass"] = 1 - student[:, -1].detach().exp()
    loss = objectives.jsd(student, teacher, config.jsd_beta)
    js = loss if config.jsd_beta == 0.5 else objectives.jsd(student.detach(), teacher, 0.5)
    return {**terms, "distil": loss, "js": js.detach()}


def mixture_log_probs(mixture: list[tuple[float, nn.Module, Tensor]], rows: slice, temperature: float) -> Tensor | None:
    """Return the teacher's log-probabilities, the normalised geometric mixture of its models."""
    if not mixture:
        return None
    parts = [weight * objectives.log_softmax(head(net, hidden[rows]), temperature) for weight, net, hidden in mixture]
    return parts[0] if len(parts) == 1 else torch.log_softmax(torch.stack(parts).sum(0), -1)
