"""The whole study: train, measure weights, domains, responses, policy and forgetting, and say what stands apart."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from driftlab.contrasts import contrasts, over_seeds
from driftlab.domains.encoder import open_encoder
from driftlab.domains.study import TABLES as DOMAINS
from driftlab.errors import ResultsError
from driftlab.forgetting.curve import read_distances
from driftlab.forgetting.gather import gather
from driftlab.forgetting.readers import read_scores
from driftlab.forgetting.study import TABLES as FORGETTING
from driftlab.forgetting.study import measure_forgetting
from driftlab.responses.policy_study import TABLES as POLICY
from driftlab.responses.similarity import TABLES as SIMILARITY
from driftlab.responses.similarity import measure_sequences
from driftlab.responses.sources import open_sequences
from driftlab.responses.study import finish
from driftlab.results import ResultsDir
from driftlab.scan import TABLES as WEIGHTS
from driftlab.study.domains import measure_study_domains
from driftlab.study.numbers import run_numbers
from driftlab.study.plan import StudyPlan
from driftlab.study.policy import join_policies
from driftlab.study.runs import StudyRun, make_runs, study_runs
from driftlab.study.weights import measure_weights

OWN = ("runs", "steps", "study_numbers", "study_methods", "study_contrasts")
TABLES = (*OWN, *WEIGHTS, *DOMAINS, *SIMILARITY, *POLICY, *FORGETTING)
Progress = Callable[[float, str], AbstractContextManager[Callable[[float, str], None]]]


@dataclass(frozen=True)
class Outcome:
    """What a study left: its folder, why runs failed, and remarks a reader must know."""

    results: ResultsDir
    failed: dict[str, str]
    remarks: list[str]


def run_study(
    plan: StudyPlan,
    out: str | Path,
    *,
    workers: int = 0,
    device: str = "cpu",
    argv: Sequence[str] = (),
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda total, label: nullcontext(lambda amount, what: None),
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run a study into a results folder.

    Killed anywhere, it goes on with ``resume``: runs continue after their last checkpoint, bit for bit; what is
    measured is not measured again.

    Parameters
    ----------
    plan : StudyPlan
        From :func:`driftlab.study.plan.make_plan`.
    out : str or Path
        The results folder; the runs lie in ``out/runs``.
    workers : int
        Processes that train at a time; 0 for one a core.
    device : str
        Where runs train and are measured.
    argv : sequence of str
        The command line, for the record.
    resume, force : bool
        As :meth:`driftlab.results.ResultsDir.create` has them.
    progress : callable
        ``progress(total, label)`` gives a context with a function ``advance(amount, what)``.
    say : callable
        Gets one line at the beginning of each part.

    Raises
    ------
    ResultsError
        If the folder is in use, was made with another plan, or every run failed.
    """
    results = ResultsDir.create(
        out, command="study", config=plan.to_dict(), argv=argv, tables=TABLES, resume=resume, force=force
    )
    runs = study_runs(plan, results.path)
    say(f"{len(runs)} runs: {len(plan.methods)} methods, {len(plan.seeds)} seeds")
    with progress(sum(run.steps for run in runs), "training") as advance:
        failed = make_runs(plan, runs, results, workers=workers or os.cpu_count() or 1, device=device, on_step=advance)
    done = [run for run in runs if run.name not in failed]
    _write_runs(runs, failed, results)
    if not done:
        raise ResultsError(f"Study {results.path}: every run failed, the first: {next(iter(failed.values()))}")
    remarks = _measure(plan, done, results, device, say)
    numbers = run_numbers(results)
    results.write_table("study_methods", over_seeds(numbers))
    results.write_table("study_contrasts", contrasts(numbers, plan.pairs()))
    results.write_table("study_numbers", numbers)
    results.finish(remarks=remarks, failed=failed)
    return Outcome(results, failed, remarks)


def _measure(
    plan: StudyPlan, runs: list[StudyRun], results: ResultsDir, device: str, say: Callable[[str], None]
) -> list[str]:
    """Measure what the runs left; each room's tables are whole or not there."""
    remarks = []
    named = [f"{run.name}={run.folder}" for run in runs]
    if not results.has("policy"):
        say("policy drift")
        remarks += join_policies(runs, results)
    if not results.has("spectral"):
        say("weight drift")
        measure_weights(plan, runs, results, device)
    if not results.has("mmd"):
        say("distances between the tasks")
        measure_study_domains(plan, results, device)
    if not results.has("similarity"):
        say("similarity of responses")
        encoder, sequences = open_encoder(plan.measure.encoder, device=device), open_sequences(named)
        pairs = [(f"{left}-s{seed}", f"{right}-s{seed}") for seed in plan.seeds for left, right in plan.pairs()]
        finish(measure_sequences(sequences, encoder, results), sequences, encoder, results, only=pairs)
    if not results.has("scores"):
        say("forgetting")
        study = measure_forgetting(gather(read_scores(named)), distances=read_distances(results.table("mmd"), {}))
        if study.curve is not None:
            results.write_json("curve", study.curve)
        for name in reversed(study.tables):
            results.write_table(name, study.tables[name])
        remarks += study.remarks
    return list(dict.fromkeys(remarks))


def _write_runs(runs: list[StudyRun], failed: dict[str, str], results: ResultsDir) -> None:
    """Write which runs there are; figures take a run's method, seed and subject from here."""
    rows = [
        {
            "run": run.name, "method": run.method.name, "seed": run.seed, "control_of": run.method.control_of,
            "steps": run.steps, "status": "failed" if run.name in failed else "ok",
            "reason": failed.get(run.name, ""), "folder": str(run.folder.relative_to(results.path)),
        }
        for run in runs
    ]  # fmt: skip
    results.write_table("runs", pd.DataFrame(rows))
