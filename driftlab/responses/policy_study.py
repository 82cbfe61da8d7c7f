"""The loop over runs and checkpoints: answer, compare, write the part of each checkpoint, merge."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch

from driftlab.errors import DataError, DriftlabError, UsageError
from driftlab.responses.policy_tables import ARTIFACTS, NGRAMS, POLICY, to_table
from driftlab.responses.policy_walks import LiveWalk, Plan, StoredWalk, Walk
from driftlab.responses.trails import Stop, Trail
from driftlab.responses.verdict import ALL, first_collapse, first_step, js_reading
from driftlab.results import ResultsDir

__all__ = ["STEPS", "TABLES", "Outcome", "Plan", "describe", "measure_policies"]

SCHEMAS = {"policy": POLICY, "artifacts": ARTIFACTS, "ngrams": NGRAMS}
TABLES = tuple(SCHEMAS)
"""The tables this study owns. It also writes ``steps``, which other commands may write for the same runs."""
STEPS = "steps"
OnUnit = Callable[[float, str], None]


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
        walk = StoredWalk(trail, plan) if not plan.logits else LiveWalk(trail, plan, torch.device(device))
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


def _unit(walk: Walk, place: int, stop: Stop) -> dict[str, list[dict[str, Any]]]:
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
