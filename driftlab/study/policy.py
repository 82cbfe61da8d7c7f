"""Policy drift of the runs of a study, each measured where it was trained, then joined."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.responses.policy_study import SCHEMAS, Plan, describe, measure_policies
from driftlab.responses.policy_tables import to_table
from driftlab.responses.trails import open_trails
from driftlab.results import ResultsDir
from driftlab.study.plan import StudyPlan
from driftlab.study.runs import StudyRun


def measure_run_policy(
    plan: StudyPlan, name: str, run: Path, out: Path, device: str, on_unit: Callable[[float, str], None]
) -> None:
    """Measure one run into a results folder of its own, resuming what was begun."""
    settings = Plan(prompts=plan.measure.policy_prompts, copies=plan.measure.policy_copies)
    trails = open_trails([f"{name}={run}"], every=plan.measure.policy_every)
    folder = ResultsDir.create(out, command="policy", config=describe(trails, settings), resume=True)
    if not folder.has("policy"):
        outcome = measure_policies(trails, settings, folder, device=device, on_unit=on_unit)
        folder.finish(notes=outcome.notes)


def join_policies(runs: list[StudyRun], results: ResultsDir) -> list[str]:
    """Join what was measured run by run into the tables of ``driftlab policy``, and return the remarks."""
    opened = [ResultsDir.open(results.path / "policies" / run.name) for run in runs]
    steps = [folder.table("steps").dropna(axis=1, how="all") for folder in opened if folder.has("steps")]
    if steps:
        results.write_table("steps", pd.concat(steps, ignore_index=True))
    for name, schema in reversed(SCHEMAS.items()):  # "policy" last: it says that all are there
        rows = [row for folder in opened if folder.has(name) for row in _records(folder.table(name))]
        results.write_table(name, to_table(rows, schema))
    return [note for folder in opened for note in folder.manifest()["commands"]["policy"].get("notes", [])]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
