r"""Who is imitated: teachers made from the student's own weights.

A teacher answers two questions: which models, with which exponents, give its distribution
(:math:`\log T = \sum_i w_i \log p_i` up to normalisation), and what happens to them after an iteration.

References
----------
Hübotter et al., "Reinforcement learning via self-distillation" (SDPO), 2026, arXiv 2601.20802.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.errors import UsageError
from driftlab.training.distributed import Ranks, local, shard, take, whole

TEACHERS = ("frozen", "ema", "stable", "live", "trust")


def matched_gamma(ema_rate: float, k: int) -> float:
    r"""Return the restart rate that moves as far in one restart as ``k`` EMA updates, :math:`1 - (1 - r)^k`.

    Examples
    --------
    >>> round(matched_gamma(0.05, 10), 6)
    0.401263
    """
    return 1.0 - (1.0 - ema_rate) ** k


class Teacher:
    """A teacher that never changes (SDPO with rate 0), and the base of the others.

    Parameters
    ----------
    student : nn.Module
        Its trainable weights are copied in float32; frozen ones are shared, so that a LoRA teacher is small.
    """

    def __init__(self, student: nn.Module) -> None:
        self.iterations = 0
        self.shadow, self.tensors = shadow_of(student)

    def mixture(self, student: nn.Module) -> list[tuple[float, nn.Module]]:
        """Return (exponent, model) pairs; the exponents sum to 1."""
        return [(1.0, self.shadow)]

    def after_iteration(self, student: nn.Module) -> None:
        """Apply the teacher's rule; called once per iteration in which the student learnt."""
        self.iterations += 1
        self._update(student)

    def restart(self, student: nn.Module) -> None:
        """Anchor the teacher at the present student."""
        self.iterations = 0
        _move(self.tensors, student, 1.0)

    def shard(self, device: torch.device) -> None:
        """Give every process its part of the weights, all of which follow the student."""
        shard(self.shadow, device)
        self.tensors = [parameter.detach() for parameter in self.shadow.parameters()]

    def distance(self, student: nn.Module, ranks: Ranks = Ranks()) -> float:  # noqa: B008
        """Return the relative distance between teacher and student weights, >= 0."""
        pairs = [(local(s), local(t)) for s, t in zip(trainable(student), self.tensors, strict=True)]
        gap = ranks.add_parts(sum(float((s - t).double().square().sum()) for s, t in pairs))
        return math.sqrt(gap / ranks.add_parts(sum(float(s.double().square().sum()) for s, _ in pairs)))

    def state(self) -> dict[str, Any]:
        """Return what a resume needs; a sharded teacher is put together by all processes."""
        return {"iterations": self.iterations, "tensors": [whole(tensor.clone()) for tensor in self.tensors]}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.iterations = state["iterations"]
        for tensor, saved in zip(self.tensors, state["tensors"], strict=True):
            take(tensor, saved)

    def _update(self, student: nn.Module) -> None:
        pass


class EmaTeacher(Teacher):
    """T ← (1 - r)·T + r·S after each iteration."""

    def __init__(self, student: nn.Module, ema_rate: float) -> None:
        if not 0 <= ema_rate <= 1:
            raise UsageError(f"ema_rate: expected a number in [0, 1], found {ema_rate}.")
        super().__init__(student)
        self.ema_rate = ema_rate

    def _update(self, student: nn.Module) -> None:
        _move(self.tensors, student, self.ema_rate)


class StableTeacher(Teacher):
    """T ← (1 - γ)·T + γ·S every k iterations, frozen between (StableSDPO); γ = 1 is a hard restart."""

    def __init__(self, student: nn.Module, k: int, gamma: float) -> None:
        if k < 1:
            raise UsageError(f"teacher_k: expected 1 or more, found {k}.")
        if not 0 < gamma <= 1:
            raise UsageError(f"teacher_gamma: expected a number in (0, 1], found {gamma}.")
        super().__init__(student)
        self.k, self.gamma = k, gamma

    def _update(self, student: nn.Module) -> None:
        if self.iterations % self.k == 0:
            _move(self.tensors, student, self.gamma)


class TrustTeacher(Teacher):
    """The geometric mixture of the anchor and the live student, log T = (1 - w)·log anchor + w·log S + const."""

    def __init__(self, student: nn.Module, weight: float) -> None:
        if not 0 <= weight < 1:
            raise UsageError(f"trust_weight: expected a number in [0, 1), found {weight}.")
        super().__init__(student)
        self.weight = weight

    def mixture(self, student: nn.Module) -> list[tuple[float, nn.Module]]:
        """Return the anchor and the student."""
        return [(1.0 - self.weight, self.shadow), (self.weight, student)]


class LiveTeacher(Teacher):
    """The student itself, without gradient; it keeps no weights."""

    def __init__(self, student: nn.Module) -> None:
        self.iterations = 0
        self.tensors = []

    def mixture(self, student: nn.Module) -> list[tuple[float, nn.Module]]:
        """Return the student."""
        return [(1.0, student)]

    def restart(self, student: nn.Module) -> None:
        """Count anew; there are no weights to anchor."""
        self.iterations = 0

    def shard(self, device: torch.device) -> None:
        """Do nothing: the student is sharded already."""

    def distance(self, student: nn.Module, ranks: Ranks = Ranks()) -> float:  # noqa: B008
        """Return 0: teacher and student are one."""
        return 0.0


def make_teacher(
    name: str, student: nn.Module, *, ema_rate: float = 0.0, k: int = 10, gamma: float = 1.0, trust_weight: float = 0.5
) -> Teacher:
    """Return the teacher called ``name``: frozen, ema, stable, live or trust."""
    match name:
        case "frozen":
            return Teacher(student)
        case "ema":
            return EmaTeacher(student, ema_rate)
        case "stable":
            return StableTeacher(student, k, gamma)
        case "live":
            return LiveTeacher(student)
        case "trust":
            return TrustTeacher(student, trust_weight)
    raise UsageError(f"Teacher {name!r}: expected one of {', '.join(TEACHERS)}.")


def trainable(model: nn.Module) -> list[Tensor]:
    """Return the trainable weights, detached, each tied weight once, always in the same order."""
    return [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]


def shadow_of(student: nn.Module) -> tuple[nn.Module, list[Tensor]]:
    """Return a copy for scoring and its trained tensors, in float32; weights that are never trained are shared."""
    shared = {id(parameter): parameter for parameter in student.parameters() if not parameter.requires_grad}
    trained = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    shadow = copy.deepcopy(student, shared).eval()
    tensors = []
    for name, parameter in shadow.named_parameters():
        if name in trained:
            parameter.requires_grad_(False)
            parameter.data = parameter.data.float()
            tensors.append(parameter.detach())
    return shadow, tensors


def _move(tensors: list[Tensor], student: nn.Module, rate: float) -> None:
    """Move ``tensors`` towards the student: T ← (1 - rate)·T + rate·S, exactly S for rate 1."""
    for tensor, target in zip(tensors, trainable(student), strict=True):
        part, towards = local(tensor), local(target)
        part.copy_(towards) if rate == 1.0 else part.lerp_(towards.to(part.dtype), rate)
