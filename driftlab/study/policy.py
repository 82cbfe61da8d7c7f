"""Policy drift of the runs of a study, each measured where it was trained, then joined."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from driftlab.responses.policy_study import TABLES, Plan, describe, measure_policies
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
    for name in ("steps", *reversed(TABLES)):  # "policy" last: it says that all are there
        tables = [folder.table(name).dropna(axis=1, how="all") for folder in opened if folder.has(name)]
        if tables:
            results.write_table(name, pd.concat(tables, ignore_index=True))
    return [note for folder in opened for note in folder.manifest()["commands"]["policy"].get("notes", [])]
