"""From a rollout batch to new weights: losses in micro-batches, one gradient, one optimizer step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from driftlab.errors import NumericalError
from driftlab.training import objectives
from driftlab.training.config import TrainConfig
from driftlab.training.distributed import Ranks, like, local, take, whole
from driftlab.training.experience import Sample
from driftlab.training.language import Language, head, response_hidden
from driftlab.training.teachers import Teacher, trainable
from driftlab.training.terms import mixture_log_probs, token_terms

# Logits in memory at a time: 2**26 numbers are 256 MiB a copy.
_LOGITS = 2**26


@dataclass
class Sums:
    """Means over tokens, kept as sums and counts so that they add up over micro-batches and processes."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Add values, or those that a boolean mask marks."""
        chosen = values if mask is None else values[mask]
        self.sums[name] = self.sums.get(name, 0.0) + float(chosen.double().sum())
        self.counts[name] = self.counts.get(name, 0.0) + chosen.numel()

    def means(self, ranks: Ranks) -> dict[str, float | None]:
        """Return the means over all processes; None where nothing was counted."""
        parts = ranks.gather((dict(self.sums), dict(self.counts)))
        names = sorted({name for sums, _ in parts for name in sums})
        total = {name: sum(sums.get(name, 0.0) for sums, _ in parts) for name in names}
        count = {name: sum(counts.get(name, 0.0) for _, counts in parts) for name in names}
        return {name: total[name] / count[name] if count[name] else None for name in names}


class Learner:
    """The student, its optimizer, its teacher and its reference.

    Parameters
    ----------
    language : Language
        The student.
    config : TrainConfig
        All settings; ``lr`` resolved.
    ranks : Ranks
        The processes that share the step.
    teacher, reference : Teacher, optional
        Who is imitated, and whom the KL term measures against.
    """

    def __init__(
        self, language: Language, config: TrainConfig, ranks: Ranks, teacher: Teacher | None, reference: Teacher | None
    ) -> None:
        self.language, self.config, self.ranks = language, config, ranks
        self.teacher, self.reference = teacher, reference
        self.parameters = [parameter for parameter in language.model.parameters() if parameter.requires_grad]
        self.chunk_logits = _LOGITS
        self.vocabulary = language.model.get_output_embeddings().weight.shape[0]
        self.optimizer_steps = 0
        self.new_optimizer()

    def new_optimizer(self) -> None:
        """Start with an empty optimizer state and a new warm-up."""
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.config.lr, weight_decay=self.config.weight_decay, fused=True
        )
        self.warm_steps = 0

    def learn(self, samples: Sequence[Sample]) -> dict[str, float | None]:
        """Take the optimizer steps of one rollout batch and return the step's token means."""
        config = self.config
        before = [local(tensor).clone() for tensor in trainable(self.language.model)]
        parts = _shares(samples, config)
        old = self._old_log_probs(samples) if len(parts) > 1 else None  # with one step, nothing has moved since
        sums, updates, norm = Sums(), 0, 0.0
        for part in parts:
            if self._accumulate(part, old, sums):
                norm = self._step()
                updates += norm > 0
        if updates and self.teacher is not None:
            self.teacher.after_iteration(self.language.model)
        moved = self.ranks.add_parts(
            sum(
                float((local(new) - was).double().square().sum())
                for new, was in zip(trainable(self.language.model), before, strict=True)
            )
        )
        return {
            **sums.means(self.ranks),
            "grad_norm": norm if updates else None,
            "update_norm": moved**0.5,
            "updates": updates,
            "teacher_distance": self.teacher.distance(self.language.model, self.ranks) if self.teacher else None,
        }

    def _accumulate(self, samples: Sequence[Sample], old: dict[int, Tensor] | None, sums: Sums) -> bool:
        """Add up the gradient of one optimizer step; returns False if there is nothing to learn from.

        The token counts of the whole step, over all micro-batches and processes, are known before the first
        backward pass: cutting the step differently cannot change its gradient.
        """
        config = self.config
        policy_share = {"sft": 1.0, "grpo": 1.0, "sdpo": 0.0, "hybrid": config.hybrid_weight}[config.method]
        policy = self._weights([sample.learn for sample in samples], policy_share)
        distil = self._weights([sample.distil for sample in samples], 1.0 - policy_share)
        always = config.method == "sft" or config.kl_weight > 0
        active = [
            bool(distilled.any()) or (bool(learnt.any()) and (always or sample.advantage != 0))
            for sample, learnt, distilled in zip(samples, policy, distil, strict=True)
        ]
        learns = self.ranks.total(sum(active)) > 0
        if self.ranks.sharded:  # all processes go through the same passes, whatever there is to learn in their own
            active = [learns] * len(samples)
        self.optimizer.zero_grad()
        for rows, gradient in self._passes(samples, active):
            part = [samples[row] for row in rows]
            with torch.set_grad_enabled(gradient):
                loss = self._loss(part, [policy[row] for row in rows], [distil[row] for row in rows], old, sums)
            if loss.requires_grad:  # sharded gradients arrive as means over the processes
                (loss * self.ranks.size if self.ranks.sharded else loss).backward()  # type: ignore[no-untyped-call]
        return learns

    def _passes(self, samples: Sequence[Sample], active: Sequence[bool]) -> list[tuple[list[int], bool]]:
        """Cut a batch into passes: which samples, and whether they have a gradient.

        Samples that no loss looks at (a group of equal rewards, no demonstration) are scored for the log only. Those of
        like length go together, so that little of a pass is padding.
        """
        size = self.config.micro_batch or max(len(samples), 1)
        order = sorted(range(len(samples)), key=lambda row: len(samples[row].response.ids))
        passes = []
        for gradient in (True, False):
            rows = [row for row in order if active[row] == gradient]
            passes += [(rows[start : start + size], gradient) for start in range(0, len(rows), size)]
        return passes

    def _weights(self, masks: list[Tensor], share: float) -> list[Tensor]:
        counts = [float(mask.sum()) for mask in masks]
        total = self.ranks.total(sum(counts) if self.config.aggregate == "token" else len(masks))
        return [share * weight for weight in objectives.token_weights(masks, self.config.aggregate, total=total)]

    def _loss(
        self,
        samples: Sequence[Sample],
        policy: list[Tensor],
        distil: list[Tensor],
        old: dict[int, Tensor] | None,
        sums: Sums,
    ) -> Tensor:
        """Return the weighted loss of one micro-batch and add its numbers to the log."""
        device = self.language.device
        terms = self._terms(samples, old)
        loss = torch.zeros((), device=device)
        for name, weights in (("policy", policy), ("distil", distil)):
            weight = torch.cat(weights).to(device)
            if name in terms and (weight.any() or self.ranks.sharded):
                loss = loss + (terms[name] * weight)[weight > 0].sum()
        distilled = torch.cat([sample.distil for sample in samples]).to(device)
        for name in ("entropy", "teacher_entropy", "kl_ref", "clip_ratio", "topk_mass"):
            if name in terms:
                sums.add(name, terms[name])
        if "js" in terms:
            sums.add("js_response", terms["js"])
            sums.add("js_distilled", terms["js"], distilled)
        return loss

    def _terms(
        self, samples: Sequence[Sample], old: dict[int, Tensor] | None, *, judged: bool = True
    ) -> dict[str, Tensor]:
        """Score one micro-batch under the student and, if ``judged``, its teacher and reference.

        Logits exist for one chunk of tokens at a time.
        """
        config, language, model = self.config, self.language, self.language.model
        device = language.device
        responses = [sample.response.ids for sample in samples]
        prompts = [sample.prompt.ids for sample in samples]
        tokens = torch.tensor([token for ids in responses for token in ids], device=device)
        lengths = torch.tensor([len(ids) for ids in responses], device=device)
        advantages = torch.tensor([sample.advantage for sample in samples], device=device).repeat_interleave(lengths)
        olds = torch.cat([old[sample.row] for sample in samples]) if old is not None else None
        with torch.no_grad():  # before the student: nothing of the teacher's pass stays but its hidden states
            mixture = []
            if judged and self.teacher is not None:
                contexts = [sample.context.ids for sample in samples]
                mixture = [
                    (weight, net, response_hidden(language, net, contexts, responses))
                    for weight, net in self.teacher.mixture(model)
                ]
            reference = None
            if judged and self.reference is not None:
                ((_, net),) = self.reference.mixture(model)
                reference = (net, response_hidden(language, net, prompts, responses))
        with _training_mode(model, config.gradient_checkpointing):
            hidden = response_hidden(language, model, prompts, responses)

        def chunk(hidden: Tensor, rows: slice) -> dict[str, Tensor]:
            with torch.no_grad():
                teacher = mixture_log_probs(mixture, rows, config.temperature)
                anchor = head(reference[0], reference[1][rows]) if reference else None
            return token_terms(
                head(model, hidden), tokens[rows], self.config,
                advantages=advantages[rows], old_log_probs=None if olds is None else olds[rows],
                teacher=teacher, reference=anchor,
            )  # fmt: skip

        count = self.ranks.most(-(-len(tokens) // max(self.chunk_logits // self.vocabulary, 1)))
        if count == 1:
            return chunk(hidden, slice(None))
        size = -(-len(tokens) // count)
        pieces = [
            checkpoint(chunk, hidden[start : start + size], slice(start, start + size), use_reentrant=False)
            for start in range(0, size * count, size)
        ]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    @torch.no_grad()
    def _old_log_probs(self, samples: Sequence[Sample]) -> dict[int, Tensor]:
        """Return the log-probabilities of each response under the policy that sampled it, by row."""
        found: dict[int, Tensor] = {}
        for rows, _ in self._passes(samples, [False] * len(samples)):
            part = [samples[row] for row in rows]
            scores = self._terms(part, None, judged=False)["log_probs"]
            split = torch.split(scores, [len(sample.response.ids) for sample in part])
            found |= {sample.row: score for sample, score in zip(part, split, strict=True)}
        return found

    def _step(self) -> float:
        """Sum the gradient over the processes, clip it, and move; returns its norm before clipping.

        A gradient of exactly zero (equal rewards, and a policy that still is its reference) is no step: momentum and
        weight decay would move the weights with nothing to learn from.
        """
        for parameter in self.parameters:
            if parameter.grad is None:  # no sample of this process had a gradient
                parameter.grad = torch.zeros_like(parameter)
        if not self.ranks.sharded:
            self.ranks.add([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        norm = float(whole(nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)))
        if not norm < float("inf"):
            raise NumericalError(
                f"Gradient norm at optimizer step {self.optimizer_steps + 1}: expected a finite number, found {norm}.",
                "Lower --lr, and resume from the last checkpoint.",
            )
        if norm == 0:
            return norm
        self.warm_steps += 1
        rate = self.config.lr * min(1.0, self.warm_steps / max(self.config.warmup, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer_steps += 1
        return norm

    def state(self) -> dict[str, Any]:
        """Return what a resume needs, the same for any number of processes; sharded, all of them must ask."""
        return {
            "weights": [whole(tensor.clone()) for tensor in trainable(self.language.model)],
            "optimizer": whole(self.optimizer.state_dict()),
            "optimizer_steps": self.optimizer_steps,
            "warm_steps": self.warm_steps,
            "teacher": self.teacher.state() if self.teacher else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        for tensor, saved in zip(trainable(self.language.model), state["weights"], strict=True):
            take(tensor, saved)
        moments = {
            place: {name: like(saved, self.parameters[place]) for name, saved in kept.items()}
            for place, kept in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": moments})
        self.optimizer_steps, self.warm_steps = state["optimizer_steps"], state["warm_steps"]
        if self.teacher:
            self.teacher.load(state["teacher"])


def _shares(samples: Sequence[Sample], config: TrainConfig) -> list[list[Sample]]:
    """Cut a batch into one share of its prompts for each optimizer step; groups stay whole."""
    per_update = config.prompts // config.updates_per_batch
    shares: list[list[Sample]] = [[] for _ in range(config.updates_per_batch)]
    for sample in samples:
        shares[sample.row // config.group // per_update].append(sample)
    return shares


@contextmanager
def _training_mode(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Switch to training mode where activation checkpointing looks for it; dropout is off anyway."""
    model.train(wanted)
    try:
        yield
    finally:
        model.eval()
