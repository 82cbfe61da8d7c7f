"""The loop over runs and checkpoints: answer, compare, write the part of each checkpoint, merge."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from driftlab.errors import CheckpointError, DataError, DriftlabError, UsageError
from driftlab.responses.answers import Answer, Exam, encode_stored, make_exam, read_answers, take
from driftlab.responses.policy_tables import (
    ARTIFACTS,
    NGRAMS,
    POLICY,
    Scored,
    artifact_rows,
    ngram_rows,
    policy_rows,
    to_table,
)
from driftlab.responses.scoring import require_same_vocabulary, score
from driftlab.responses.trails import Stop, Trail
from driftlab.responses.verdict import ALL, first_collapse, first_step, js_reading
from driftlab.results import ResultsDir
from driftlab.training.config import TrainConfig, merge
from driftlab.training.language import Language, load_language

SCHEMAS = {"policy": POLICY, "artifacts": ARTIFACTS, "ngrams": NGRAMS}
TABLES = tuple(SCHEMAS)
"""The tables this study owns. It also writes ``steps``, which other commands may write for the same runs."""
STEPS = "steps"
OnUnit = Callable[[float, str], None]
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


@dataclass(frozen=True)
class Outcome:
    """Checkpoints that were measured, that failed, and remarks for the reader."""

    ok: int
    failed: int
    notes: list[str]


def describe(trails: Sequence[Trail], plan: Plan) -> dict[str, Any]:
    """Return everything that changes a number, for the manifest: a resumed study must have the same."""
    runs = [[t.name, [[s.label, s.digest] for s in t.stops], sorted(t.log.responses) if t.log else []] for t in trails]
    return {"runs": runs, "plan": asdict(plan)}


def measure_policies(
    trails: Sequence[Trail],
    plan: Plan,
    results: ResultsDir,
    *,
    device: str = "cpu",
    on_unit: OnUnit = lambda amount, what: None,
) -> Outcome:
    """Measure every checkpoint of every run and leave the tables ``policy``, ``artifacts``, ``ngrams`` and ``steps``.

    What is done already is not done again. A checkpoint that cannot be measured gets a row with the reason.

    Raises
    ------
    DriftlabError
        If nothing at all can be measured.
    """
    notes: list[str] = []
    for trail in trails:
        walk = _Stored(trail, plan) if not plan.logits else _Live(trail, plan, torch.device(device))
        for place, stop in enumerate(trail.stops):
            unit = f"{trail.name}/{stop.label}"
            if not results.has_part(plan.units[-1], unit):
                tables = _unit(walk, place, stop)
                for name in plan.units:
                    results.write_part(name, unit, to_table(tables[name], SCHEMAS[name]))
            on_unit(1.0, unit)
        notes += [note for note in [*trail.notes, *walk.notes] if note not in notes]
    units = [f"{trail.name}/{stop.label}" for trail in trails for stop in trail.stops]
    return _finish(trails, plan, results, units, notes)


class _Walk:
    """One run: the responses of its base, and the rows of each checkpoint."""

    def __init__(self, trail: Trail, plan: Plan) -> None:
        self.trail, self.plan = trail, plan
        self.notes: list[str] = []

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        raise NotImplementedError

    def text_rows(
        self, stop: Stop, new: Sequence[Answer], base: Sequence[Answer], unreadable: int, source: str
    ) -> dict[str, list[dict[str, Any]]]:
        found = [row | {"source": source} for row in artifact_rows(new, base)]
        found[-1] |= {"unreadable": unreadable}
        return {"artifacts": found, "ngrams": ngram_rows(new, base, self.plan.top)}


class _Stored(_Walk):
    """Stored responses alone."""

    def __init__(self, trail: Trail, plan: Plan) -> None:
        super().__init__(trail, plan)
        self._base: list[Answer] | None = None

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        if self._base is None:
            self._base, _ = _read(self.trail, "base")
        answers, unreadable = _read(self.trail, stop.label)
        base = [a for a in self._base if not self.plan.tasks or a.task in self.plan.tasks]
        answers = [a for a in answers if not self.plan.tasks or a.task in self.plan.tasks]
        if not answers or not base:
            raise DataError(f"{stop.label}: expected responses to {', '.join(self.plan.tasks)}, found none.")
        return self.text_rows(stop, answers, base, unreadable, "stored")


class _Live(_Walk):
    """Both models on the responses of both."""

    def __init__(self, trail: Trail, plan: Plan, device: torch.device) -> None:
        super().__init__(trail, plan)
        self.device = device
        self._start: tuple[Language, Exam, list[Answer], int] | None = None

    def rows(self, stop: Stop) -> dict[str, list[dict[str, Any]]]:
        if stop.error or stop.path is None:
            raise CheckpointError(stop.error or f"{stop.label}: no weights were found.")
        base, exam, theirs, lost_base = self._start or self._begin()
        new = base if stop.order == 0 else load_language(stop.path, self.device)
        require_same_vocabulary(new, base)
        ours, lost, unreadable = self._answers(new, exam, stop.label)
        scored = [
            Scored(
                answers, *score(new, base, answers, temperature=exam.config.temperature, batch=self.plan.batch), mine
            )
            for answers, mine in ((ours, True), (theirs, False))
        ]
        rows = [
            row | {"mismatches": lost + lost_base, "source": self.plan.source}
            for row in policy_rows(scored[0], scored[1], exam.success_level)
        ]
        return {"policy": rows, **self.text_rows(stop, ours, theirs, unreadable, self.plan.source)}

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


def _unit(walk: _Walk, place: int, stop: Stop) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of one checkpoint; where it fails, one row a table that says why."""
    trail = walk.trail
    keys = {"run": trail.name, "method": trail.method, "seed": trail.seed, "label": stop.label, "stage": stop.stage}
    keys |= {"order": stop.order, "global_step": stop.global_step}
    try:
        tables = walk.rows(stop)
    except UsageError:
        raise
    except DriftlabError as error:
        failed = {"task": ALL, "status": "failed", "reason": str(error)}
        tables = {"policy": [failed], "artifacts": [failed], "ngrams": []}
    if trail.log is not None and stop.global_step is not None:
        before = trail.stops[place - 1].global_step if place else None
        after = before if before is not None and before < stop.global_step else -1
        tables["artifacts"][-1] |= js_reading(trail.log.steps, after, stop.global_step)
    return {name: [keys | row for row in rows] for name, rows in tables.items()}


def _finish(trails: Sequence[Trail], plan: Plan, results: ResultsDir, units: list[str], notes: list[str]) -> Outcome:
    last = plan.units[-1]
    merged = {name: results.merge_parts(name, units, SCHEMAS[name]) for name in plan.units}
    states = [row for row in merged[last].select(["task", "status", "reason"]).to_pylist() if row["task"] == ALL]
    failed = [row["reason"] for row in states if row["status"] == "failed"]
    if len(failed) == len(states):
        raise DataError(f"None of {len(states)} checkpoints could be measured; the first: {failed[0]}")
    merged["artifacts"] = to_table(
        _with_onsets(merged["artifacts"].to_pandas(), trails).to_dict("records"),  # type: ignore[arg-type]
        ARTIFACTS,
    )
    _write_steps(trails, results)
    for name in plan.units:
        results.write_table(name, merged[name])
    dropped = sum(trail.log.dropped for trail in trails if trail.log is not None)
    notes += [f"{dropped} lines of the runs' logs could not be read"] if dropped else []
    return Outcome(len(states) - len(failed), len(failed), notes)


def _write_steps(trails: Sequence[Trail], results: ResultsDir) -> None:
    """Write the logs of all runs as one table, and keep what is there of other runs."""
    logs = [trail.log.table("steps") for trail in trails if trail.log is not None and not trail.log.steps.empty]
    if not logs:
        return
    if results.has(STEPS):
        there = results.table(STEPS)
        logs.insert(0, there[~there["run"].isin([trail.name for trail in trails])])
    kept = [log.dropna(axis=1, how="all") for log in logs if not log.empty]
    results.write_table(STEPS, pd.concat(kept, ignore_index=True))


def _with_onsets(rows: pd.DataFrame, trails: Sequence[Trail]) -> pd.DataFrame:
    """Add where the collapse of each run begins: the first checkpoint, and the first step of its log."""
    found = rows.astype({"first_label": object, "first_step": object})
    for trail in trails:
        mine = (found["run"] == trail.name) & (found["task"] == ALL)
        found.loc[mine, "first_label"] = first_collapse(found[mine])
        step = first_step(trail.log.steps) if trail.log is not None else None
        found.loc[mine, "first_step"] = step
    return found
