r"""What is minimised: pure functions on flat lists of response tokens.

Every function takes N tokens, already packed (no padding), and returns one value a token. Weighting and summing are
left to :func:`token_weights`, so that a gradient never depends on how a batch was cut into micro-batches. All
arithmetic is float32 or better, in log space.

References
----------
Shao et al., "DeepSeekMath" (GRPO), 2024, arXiv 2402.03300. Agarwal et al., "On-policy distillation of language
models" (generalised JSD), 2023, arXiv 2306.13649. Schulman, "Approximating KL divergence", 2020.
"""

import math

import torch
from torch import Tensor

from driftlab.errors import ShapeError, UsageError

KL_ESTIMATORS = ("k1", "k2", "k3")


def log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return float32 (or float64) log-probabilities of shape (N, V) at a sampling temperature > 0."""
    if not temperature > 0:
        raise UsageError(f"Temperature: expected a number above 0, found {temperature}.")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide if temperature == 1 else wide / temperature, dim=-1)


def gather(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token: (N, V) and (N,) to (N,)."""
    return log_probs.gather(-1, tokens[:, None])[:, 0]


def entropy(log_probs: Tensor) -> Tensor:
    """Return the Shannon entropy of each row in nats: (N, V) to (N,), in [0, log V]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def group_advantages(rewards: Tensor, *, scale: str = "std", eps: float = 1e-4) -> Tensor:
    r"""Advantage of each response within its group, :math:`(r_i - \bar r) / (\mathrm{std} + \epsilon)`.

    Parameters
    ----------
    rewards : Tensor of shape (P, G)
        One row a prompt. NaN marks a response whose verifier failed: it gets 0 and counts in no mean.
    scale : {"std", "none"}
        ``none`` subtracts the mean only.
    eps : float
        Added to the standard deviation (the unbiased one, as public trainers take it).

    Returns
    -------
    Tensor of shape (P, G)
        Exactly 0 in groups whose known rewards are all equal.

    Raises
    ------
    ShapeError
        If a group has fewer than two responses: there is nothing to compare with.

    Examples
    --------
    >>> group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), scale="none")
    tensor([[ 0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ShapeError(f"Rewards: expected (prompts, group) with a group of 2 or more, found {tuple(rewards.shape)}.")
    if scale not in ("std", "none"):
        raise UsageError(f"Advantage scale {scale!r}: expected 'std' or 'none'.")
    known = ~rewards.isnan()
    count = known.sum(1, keepdim=True)
    filled = rewards.nan_to_num(0.0)
    centred = torch.where(known, filled - filled.sum(1, keepdim=True) / count.clamp(min=1), 0.0)
    low = torch.where(known, filled, torch.inf).amin(1, keepdim=True)
    high = torch.where(known, filled, -torch.inf).amax(1, keepdim=True)
    if scale == "std":
        deviation = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (deviation + eps)
    return torch.where(high > low, centred, 0.0)  # the mean of equal numbers need not equal them in floating point


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Clipped policy-gradient loss of each token, :math:`-\min(\rho A, \mathrm{clip}(\rho, 1-l, 1+h) A)`.

    Parameters
    ----------
    log_probs, old_log_probs : Tensor of shape (N,)
        Of the sampled tokens under the present policy and the one that sampled, at the same temperature.
    advantages : Tensor of shape (N,)
        Of the response each token belongs to.
    clip_low, clip_high : float
        How far the ratio may move down and up.
    dual_clip : float, optional
        Bound c > 1 on the loss of tokens with a negative advantage, ``c * |A|``.

    Returns
    -------
    loss, clipped : Tensor of shape (N,)
        The loss, and whether a bound was active.

    References
    ----------
    Schulman et al., 2017, arXiv 1707.06347; dual clip: Ye et al., 2020, arXiv 1912.09729.
    """
    if dual_clip is not None and not dual_clip > 1:
        raise UsageError(f"dual_clip: expected a number above 1, found {dual_clip}.")
    ratio = (log_probs - old_log_probs).exp()
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss, clipped = torch.maximum(plain, bounded), bounded > plain
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        above = (advantages < 0) & (loss > ceiling)
        loss, clipped = torch.where(above, ceiling, loss), clipped | above
    return loss, clipped


def kl_estimate(log_probs: Tensor, other_log_probs: Tensor, estimator: str = "k3") -> Tensor:
    r"""Estimate KL(policy‖other) at tokens sampled from the policy: (N,), (N,) to (N,).

    With :math:`x = \log q - \log p` (other minus policy): k1 is :math:`-x` (unbiased, any sign), k2 is
    :math:`x^2/2` (biased, >= 0), k3 is :math:`e^x - 1 - x` (unbiased, >= 0). Nothing is clamped.

    Examples
    --------
    >>> kl_estimate(torch.tensor([0.0]), torch.tensor([0.0]), "k3")
    tensor([0.])
    """
    _known(estimator, KL_ESTIMATORS, "KL estimator")
    difference = other_log_probs - log_probs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.expm1(difference) - difference


def jsd(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    r"""Generalised Jensen-Shannon divergence of each row.

    :math:`(1-\beta)\,KL(S\|m) + \beta\,KL(T\|m)` with :math:`m = (1-\beta) S + \beta T`. The ends are switched
    exactly: :math:`\beta = 0` is KL(T‖S) (mass covering) and :math:`\beta = 1` is KL(S‖T) (mode seeking).

    Parameters
    ----------
    student, teacher : Tensor of shape (N, V)
        Log-probabilities.
    beta : float
        In [0, 1]. Close to an end, but not at it, the gradient almost vanishes.

    Returns
    -------
    Tensor of shape (N,)
        In nats, >= 0 up to rounding (a negative value is never clamped away); <= log 2 for ``beta = 0.5``.

    References
    ----------
    Agarwal et al., 2023, arXiv 2306.13649.

    Examples
    --------
    >>> s, t = torch.tensor([[.7, .2, .1]]).log(), torch.tensor([[.5, .3, .2]]).log()
    >>> round(jsd(s, t).item(), 6)
    0.021901
    """
    _same_shape(student, teacher)
    if not 0 <= beta <= 1:
        raise UsageError(f"jsd_beta: expected a number in [0, 1], found {beta}.")
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    mixture = torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))
    return (1 - beta) * _kl(student, mixture) + beta * _kl(teacher, mixture)


def top_k(student: Tensor, teacher: Tensor, k: int, *, tail: bool = True) -> tuple[Tensor, Tensor]:
    """Reduce two (N, V) log-probability tables to the student's k likeliest words and one bucket for the rest.

    The bucket makes the k + 1 numbers a distribution again, so that :func:`jsd` of them is a divergence (a lower
    bound of the full one). ``tail=False`` renormalises the k words instead, as some trainers do; that number says
    nothing about mass outside them.
    """
    _same_shape(student, teacher)
    if not 1 <= k < student.shape[-1]:
        raise UsageError(f"top_k: expected 1 to {student.shape[-1] - 1} (vocabulary minus one), found {k}.")
    index = student.detach().topk(k, dim=-1).indices
    return _bucket(student, index, tail), _bucket(teacher, index, tail)


def jsd_sampled(student: Tensor, teacher: Tensor, beta: float = 0.5) -> tuple[Tensor, Tensor]:
    r"""One-sample estimate of :func:`jsd` from the log-probabilities of tokens that the student sampled.

    Returns
    -------
    value : Tensor of shape (N,)
        Unbiased estimate of the divergence, no gradient; may be negative.
    surrogate : Tensor of shape (N,)
        Its gradient is an unbiased estimate of the gradient of the divergence:
        :math:`w(y) \nabla \log S(y)` with :math:`w = (1-\beta) \log(S/m)`, or :math:`\log(S/T)` at 1 and
        :math:`-T/S` at 0.
    """
    _same_shape(student, teacher)
    if not 0 <= beta <= 1:
        raise UsageError(f"jsd_beta: expected a number in [0, 1], found {beta}.")
    fixed = student.detach()
    ratio = (teacher - fixed).exp()
    if beta == 0:
        return ratio * (teacher - fixed), -ratio * student
    if beta == 1:
        return fixed - teacher, (fixed - teacher) * student
    mixture = torch.logaddexp(fixed + math.log1p(-beta), teacher + math.log(beta))
    weight = (1 - beta) * (fixed - mixture)
    return weight + beta * ratio * (teacher - mixture), weight * student


def importance_weight(log_probs: Tensor, old_log_probs: Tensor, clip: float) -> Tensor:
    """Return min(p / p_old, clip) without gradient: what a stale sample counts."""
    return (log_probs.detach() - old_log_probs).exp().clamp(max=clip)


def token_weights(masks: list[Tensor], aggregate: str = "token", *, total: float | None = None) -> list[Tensor]:
    """Weight of each token in one optimizer step, so that the loss is the weighted sum of token losses.

    Parameters
    ----------
    masks : list of boolean Tensor
        One a response, all of those that share the optimizer step.
    aggregate : {"token", "sequence"}
        ``token``: every masked token weighs the same. ``sequence``: every response weighs the same, those without
        any masked token included (they dilute the rest, as in trainers with one response a micro-batch).
    total : float, optional
        Tokens (responses) of the whole step, where ``masks`` are one process's share of it.

    Returns
    -------
    list of Tensor
        Zero outside the masks; all zero, never NaN, where nothing is masked in.
    """
    _known(aggregate, ("token", "sequence"), "aggregate")
    counts = [int(mask.sum()) for mask in masks]
    whole = max(total if total is not None else sum(counts) if aggregate == "token" else len(masks), 1)
    if aggregate == "token":
        return [mask.float() / whole for mask in masks]
    return [mask.float() / max(count, 1) / whole for mask, count in zip(masks, counts, strict=True)]


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _bucket(log_probs: Tensor, index: Tensor, tail: bool) -> Tensor:
    chosen = log_probs.gather(-1, index)
    if not tail:
        return chosen.log_softmax(-1)
    rest = log_probs.scatter(-1, index, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([chosen, rest], -1)


def _same_shape(left: Tensor, right: Tensor) -> None:
    if left.shape != right.shape:
        raise ShapeError(
            f"Student and teacher: expected equal shapes, found {tuple(left.shape)}, {tuple(right.shape)}."
        )


def _known(name: str, known: tuple[str, ...], what: str) -> None:
    if name not in known:
        raise UsageError(f"{what} {name!r}: expected one of {', '.join(known)}.")
