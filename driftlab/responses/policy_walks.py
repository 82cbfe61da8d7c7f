"""One run's checkpoints one by one: its responses, fresh or stored, and the rows that come of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from driftlab.errors import CheckpointError, DataError, UsageError
from driftlab.responses.answers import Answer, Exam, encode_stored, make_exam, read_answers, take
from driftlab.responses.policy import TokenDrift
from driftlab.responses.policy_tables import Scored, artifact_rows, ngram_rows, policy_rows
from driftlab.responses.scoring import require_same_vocabulary, score
from driftlab.responses.trails import Stop, Trail
from driftlab.training.config import TrainConfig, merge
from driftlab.training.language import Language, load_language

_STORED_PROMPTS = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes
    ----------
    prompts, copies : int
        Questions a task and responses a question; with ``source="stored"`` all that are stored.
    tasks : tuple of str
        Only these; empty for all of the run.
    source : {"generate", "stored"}
        Fresh responses of every checkpoint, or those in the run folder.
    logits : bool
        False: artefacts of the stored responses alone, no model is loaded.
    top : int
        Amplified n-grams of each size that are kept.
    batch : int
        Responses a forward pass.
    seed : int
        Of the sampler.
    questions : tuple of str
        ``NAME=FILE.jsonl[::VERIFIER]`` for checkpoints of other trainers, which bring no tasks.
    temperature, max_new_tokens : float, int
        For checkpoints of other trainers; a run's own settings go first.
    run_code : bool
        Whether verifiers may run what a model wrote.
    """

    prompts: int = 16
    copies: int = 4
    tasks: tuple[str, ...] = ()
    source: str = "generate"
    logits: bool = True
    top: int = 10
    batch: int = 128
    seed: int = 0
    questions: tuple[str, ...] = ()
    temperature: float = 1.0
    max_new_tokens: int = 256
    run_code: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.source not in ("generate", "stored"):
            raise UsageError(f"--responses {self.source!r}: expected generate or stored.")
        for name in ("prompts", "copies", "batch", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, found {getattr(self, name)}.")

    @property
    def units(self) -> tuple[str, ...]:
        """Tables with a part a checkpoint; the last one written says that the checkpoint is done."""
        return ("ngrams", "artifacts", "policy") if self.logits else ("ngrams", "artifacts")


class Walk:
    """One run: the responses of its base, and the rows of each checkpoint."""

    def __init__(self, trail: Trail, plan: Plan) -> None:
        self.trail, self.plan = trail, plan
        self.notes: list[str] = []

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of one checkpoint by table.

        Raises
        ------
        DriftlabError
            If it cannot be measured.
        """
        raise NotImplementedError

    def text_rows(
        self, stop: Stop, new: Sequence[Answer], base: Sequence[Answer], unreadable: int, source: str
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that need the texts alone."""
        found = [row | {"source": source} for row in artifact_rows(new, base)]
        found[-1] |= {"unreadable": unreadable}
        return {"artifacts": found, "ngrams": ngram_rows(new, base, self.plan.top)}


class StoredWalk(Walk):
    """Stored responses alone."""

    def __init__(self, trail: Trail, plan: Plan) -> None:
        super().__init__(trail, plan)
        self._base: list[Answer] | None = None

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of one checkpoint by table."""
        if self._base is None:
            self._base, _ = _read(self.trail, "base")
        answers, unreadable = _read(self.trail, stop.label)
        base = [a for a in self._base if not self.plan.tasks or a.task in self.plan.tasks]
        answers = [a for a in answers if not self.plan.tasks or a.task in self.plan.tasks]
        if not answers or not base:
            raise DataError(f"{stop.label}: expected responses to {', '.join(self.plan.tasks)}, found none.")
        return self.text_rows(stop, answers, base, unreadable, "stored")


class LiveWalk(Walk):
    """Both models on the responses of both."""

    def __init__(self, trail: Trail, plan: Plan, device: torch.device) -> None:
        super().__init__(trail, plan)
        self.device = device
        self._start: tuple[Language, Exam, list[Answer], int] | None = None

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of one checkpoint by table."""
        if stop.error or stop.path is None:
            raise CheckpointError(stop.error or f"{stop.label}: no weights were found.")
        base, exam, theirs, lost_base = self._start or self._begin()
        new = base if stop.order == 0 else load_language(stop.path, self.device)
        require_same_vocabulary(new, base)
        drawn = new is base and self.plan.source == "generate"  # the same seed: sampled when the run was begun
        ours, lost, unreadable = (theirs, 0, 0) if drawn else self._answers(new, exam, stop.label)
        drift = self._score(new, base, ours, exam)
        # the base's own look: both samples are one, and a pass over all of it is most of the work
        drifts = [drift, drift if ours == theirs else self._score(new, base, theirs, exam)]
        scored = [
            Scored(answers, *found, mine)
            for answers, found, mine in zip((ours, theirs), drifts, (True, False), strict=True)
        ]
        rows = [
            row | {"mismatches": lost + lost_base, "source": self.plan.source}
            for row in policy_rows(scored[0], scored[1], exam.success_level)
        ]
        return {"policy": rows, **self.text_rows(stop, ours, theirs, unreadable, self.plan.source)}

    def _score(
        self, new: Language, base: Language, answers: Sequence[Answer], exam: Exam
    ) -> tuple[TokenDrift, NDArray[np.int64]]:
        return score(new, base, answers, temperature=exam.config.temperature, batch=self.plan.batch)

    def _begin(self) -> tuple[Language, Exam, list[Answer], int]:
        start = self.trail.stops[0]
        assert start.path is not None
        base = load_language(start.path, self.device)
        stored = self.plan.source == "stored"
        exam = make_exam(
            _config(self.trail, self.plan),
            prompts=_STORED_PROMPTS if stored else self.plan.prompts,
            copies=1 if stored else self.plan.copies,
            only=self.plan.tasks,
            seed=self.plan.seed,
            run_code=self.plan.run_code,
        )
        theirs, lost, _ = self._answers(base, exam, "base")
        self._start = (base, exam, theirs, lost)
        return self._start

    def _answers(self, language: Language, exam: Exam, label: str) -> tuple[list[Answer], int, int]:
        if self.plan.source == "generate":
            return take(language, exam, self.plan.batch), 0, 0
        stored, unreadable = _read(self.trail, label)
        kept, lost = encode_stored(language, exam, stored)
        if lost:
            self.notes.append(
                f"{self.trail.name}, {label}: {lost} stored responses do not read back as they were written and were "
                "left out; --responses generate scores the sampled ids instead"
            )
        if not kept:
            raise DataError(f"{label}: expected stored responses to the run's questions, found none that can be used.")
        return kept, lost, unreadable


def _config(trail: Trail, plan: Plan) -> TrainConfig:
    """Return the settings a run was sampled with; for other trainers' checkpoints those of the plan."""
    if trail.log is not None and not plan.questions:
        return merge(trail.log.config)
    if not plan.questions:
        raise UsageError(
            f"Run {trail.name}: expected questions to ask, found none, because driftlab did not train it.",
            "Give --questions NAME=FILE.jsonl::VERIFIER.",
        )
    return merge(
        {
            "model": trail.name,
            "tasks": list(plan.questions),
            "temperature": plan.temperature,
            "max_new_tokens": plan.max_new_tokens,
            "eval_samples": plan.prompts,
        }
    )


def _read(trail: Trail, label: str) -> tuple[list[Answer], int]:
    files: dict[str, Path] = trail.log.responses if trail.log else {}
    if label not in files:
        raise DataError(f"{trail.name}, {label}: expected stored responses, found none.")
    return read_answers(files[label])
