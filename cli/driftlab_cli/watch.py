"""``driftlab watch``: measure the checkpoints of a run as they appear."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import Base, Device, Exclude, Force, Include, Json, Out, Quiet, Resume, Runs, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.watching.watch import Measured


def watch(
    runs: Runs,
    out: Out,
    base: Base = None,
    alarm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Mark checkpoints above: nss, rel_frobenius, max_angle_deg."),
    ] = None,
    poll: Annotated[float, typer.Option(help="Seconds between two looks.")] = 10.0,
    until_idle: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End when nothing new came for so long; by default never."),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Keep OUT/report.html up to date.")] = False,
    null: Annotated[str, typer.Option(help="sign, permute or none.")] = "sign",
    include: Include = None,
    exclude: Exclude = None,
    device: Device = "auto",
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure each checkpoint once, as soon as it lies there whole; one line each, with alarms.

    Example:  driftlab watch runs/grpo --base Qwen3-4B -o drift --alarm rel_frobenius=0.01 --report
    """
    from driftlab.devices import resolve_device
    from driftlab.live.alarms import read_limits
    from driftlab.live.growing import TABLES
    from driftlab.results import ResultsDir
    from driftlab.spectral.measures import Plan
    from driftlab.watching.watch import Measured, Watcher
    from driftlab.watching.watch import watch as events

    say = Output(as_json=as_json, quiet=quiet)
    plan, limits = Plan(null=null, seed=seed), read_limits(alarm or [], "--alarm")
    where = str(resolve_device(device))
    config = {**asdict(plan), "runs": runs, "base": base and str(base), "include": include, "exclude": exclude}
    results = ResultsDir.create(
        out, command="watch", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    watcher = Watcher(
        runs, base, plan, results, limits=limits, include=include, exclude=exclude, device=where, quiet=poll
    )
    failed = 0
    try:
        for event in events(watcher, poll=poll, until_idle=until_idle):
            if not isinstance(event, Measured):
                say.note(event.text)
                continue
            failed += int(event.values["failed"])
            print(_json(event) if as_json else _line(event), flush=True)
            if report:
                _report(out)
    except KeyboardInterrupt:
        say.note("stopped; --resume goes on")
    waiting = {" ".join(key): why for key, why in watcher.pending.items()}
    results.finish(notes=[], waiting=waiting)
    for name, why in waiting.items():
        say.warn(f"{name} was not measured: {why}")
    if failed or waiting:
        raise typer.Exit(3)


def _report(out: Path) -> None:
    from driftlab_analyses.report.build import build_report

    build_report(out, out / "report.html", force=True)


def _line(event: "Measured") -> str:
    v = event.values
    null = "" if math.isnan(v["nss_null"]) else f" (null {v['nss_null']:.3g})"
    counts = f"{v['matrices']:.0f} matrices" + (f", {v['failed']:.0f} failed" if v["failed"] else "")
    parts = [f"{event.run} {event.label}: {counts}"]
    if v["matrices"]:
        parts += [f"nss {v['nss']:.3g}{null}", f"rel_frobenius {v['rel_frobenius']:.3g}"]
        parts += [f"max angle {v['max_angle_deg']:.3g} deg", f"update density {v['update_density']:.3g}"]
    return "; ".join([*parts, *(f"ALARM {text}" for text in event.alarms)])


def _json(event: "Measured") -> str:
    values = {name: None if math.isnan(value) else value for name, value in event.values.items()}
    return json.dumps({"run": event.run, "label": event.label, **values, "alarms": event.alarms})
