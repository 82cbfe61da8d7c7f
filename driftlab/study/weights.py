"""Weight drift of all runs of a study, whatever base each of them started from."""

import pandas as pd
import pyarrow as pa

from driftlab.checkpoints import CheckpointSequence
from driftlab.results import ResultsDir
from driftlab.scan import describe, scan
from driftlab.spectral.measures import Plan
from driftlab.study.plan import StudyPlan
from driftlab.study.runs import StudyRun
from driftlab.tables import SPECTRAL, summarise


def measure_weights(plan: StudyPlan, runs: list[StudyRun], results: ResultsDir, device: str) -> None:
    """Fill the tables ``spectral`` and ``spectral_summary``, resuming where an earlier call was stopped.

    A sequence has one base. Runs from another base, as the control without style bias, are scanned apart, each
    against its own, and joined in one table.
    """
    settings = Plan(method=plan.measure.method, null=plan.measure.null)
    parts = []
    for name, members in _by_base(runs).items():
        sequence = CheckpointSequence.open([f"{run.name}={run.folder}" for run in members], every=plan.measure.every)
        folder = ResultsDir.create(
            results.path / "weights" / name, command="svd", config=describe(sequence, settings), resume=True
        )
        scan(sequence, settings, folder, device=device)
        parts.append(folder.table("spectral"))
    order = {run.name: place for place, run in enumerate(runs)}
    frame = pd.concat(parts, ignore_index=True).sort_values("run", key=lambda c: c.map(order), kind="stable")
    results.write_table("spectral_summary", summarise(frame))
    results.write_table("spectral", pa.Table.from_pandas(frame, schema=SPECTRAL, preserve_index=False))


def _by_base(runs: list[StudyRun]) -> dict[str, list[StudyRun]]:
    """Group runs by the model they started from, under names for folders."""
    bases = dict.fromkeys(_base(run) for run in runs)
    names = {base: f"base-{place}" for place, base in enumerate(bases)}
    return {names[base]: [run for run in runs if _base(run) == base] for base in bases}


def _base(run: StudyRun) -> tuple[str, bool]:
    config = run.method.config(run.seed)
    return config.model, config.style_bias
