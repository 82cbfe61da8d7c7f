"""``driftlab forgetting``: what runs gained and what they forgot."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import Csv, Force, Json, Out, Quiet, Resume, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.results import ResultsDir

_SHOWN = ["method", "n_seeds", "after", "metric", "value", "low", "high", "unit", "interval", "n_tasks", "reason"]
_DIFFERENT = ["method", "other", "metric", "value", "low", "high", "n_seeds", "verdict"]


def forgetting(
    out: Out,
    scores: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCORES...", help="Run folders, globs, CSV or Parquet, or [RUN/]LABEL=results.json."),
    ] = None,
    mmd: Annotated[Path | None, typer.Option(help="Results folder of driftlab mmd, or its table: the curve.")] = None,
    train_task: Annotated[
        list[str] | None, typer.Option(metavar="STAGE=TASK[,TASK]", help="Evaluation tasks of a stage's own domain.")
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DOMAIN", help="What --mmd calls a stage's training data, or a task."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]SCALE", help="fraction or percent where it cannot be told; NAME: task or file."),
    ] = None,
    lower_is_better: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="Tasks where less is better.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="[TASK=]METRIC", help="Which metric, where a task has several.")
    ] = None,
    source: Annotated[str, typer.Option(help="Where the scores come from; said under the figures.")] = "",
    draws: Annotated[int, typer.Option(help="Resamples of the curve's band.", min=1)] = 2000,
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
    csv: Csv = False,
) -> None:
    """Measure gain, forgetting and the metrics of continual learning, each with an interval.

    Examples:  driftlab forgetting runs/grpo runs/sdpo -o out   |
    driftlab forgetting scores.csv --train-task math=AIME --mmd distances --domain math=Math -o out   |
    driftlab forgetting base=base.json sdpo/math@50=results.json --scale fraction -o out
    """
    from driftlab.forgetting.curve import read_distances
    from driftlab.forgetting.gather import gather
    from driftlab.forgetting.readers import read_pairs, read_scores
    from driftlab.forgetting.scales import parse_scale
    from driftlab.forgetting.settings import assignments, describe, task_lists
    from driftlab.forgetting.study import TABLES, measure_forgetting
    from driftlab.results import ResultsDir

    say = Output(as_json=as_json, quiet=quiet)
    own, names = task_lists("--train-task", train_task or []), assignments("--domain", domain or [])
    found = gather(
        read_scores(scores or []), scale=parse_scale(scale or []), lower=lower_is_better or [], metrics=metric or []
    )
    distances = read_distances(read_pairs(mmd), names) if mmd else None
    study = measure_forgetting(found, own=own, distances=distances, draws=draws, seed=seed)
    config = describe(found, own, distances, draws, seed)
    results = ResultsDir.create(
        out, command="forgetting", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    (results.path / "curve.json").unlink(missing_ok=True)  # of an earlier run, perhaps with distances
    if study.curve is not None:
        results.write_json("curve", study.curve)
    for name in reversed(study.tables):
        results.write_table(name, study.tables[name])
    results.finish(remarks=study.remarks, source=source)
    if csv:
        for name in study.tables:
            results.write_csv(name)
    _report(say, results, study.remarks)


def _report(say: Output, results: "ResultsDir", remarks: list[str]) -> None:
    """Print the metrics after the last stage of each run, and the methods against each other."""
    for remark in remarks:
        say.warn(remark)
    summary = results.table("forgetting_summary")
    means = summary[(summary["task"] == "") & (summary["metric"] != "acc")]
    runs = means[means["level"] == "run"]
    last = runs[runs["stage_index"] == runs.groupby("run")["stage_index"].transform("max")]
    pairs = means[means["level"] == "difference"]
    if say.as_json:
        differences = json.loads(pairs.to_json(orient="records"))
        curve = results.read_json("curve") if results.has("curve") else None
        say.result(last, extra={"out": str(results.path), "differences": differences, "curve": curve})
        return
    known = last[last["value"].notna()]
    say.result(known[["run", *_SHOWN[2:]]], title="Each run after its last stage; intervals 95 %\n")
    if len(known) < len(last):
        say.note(f"{len(last) - len(known)} of {len(last)} metrics have no value; forgetting_summary says why")
    over = means[(means["level"] == "method") & (means["n_seeds"] > 1)]
    if len(over):
        over = over[over["stage_index"] == over.groupby("method")["stage_index"].transform("max")]
        say.result(over[_SHOWN], title="\nMethods over their seeds; t intervals\n")
    if len(pairs):
        say.result(pairs[_DIFFERENT], title="\nOne method less another, after the last stage both reached\n")
    say.note(f"Tables in {results.path}; driftlab figures {results.path} -o FIGURES draws them")
