"""``driftlab study``: train every method and its controls, measure everything, draw it, report it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab_cli.options import Device, Force, Json, Out, Quiet, Resume
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.study.plan import StudyPlan

_SHOWN = ["number", "left", "right", "seeds", "difference", "low", "high", "p_holm", "verdict"]


def study(
    out: Out,
    profile: Annotated[str, typer.Option(help="A study that comes with driftlab: smoke, default or full.")] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file of a study of your own.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds by commas, instead of the study's own.")] = "",
    model: Annotated[str, typer.Option(help="Local Hugging Face folder, instead of the built-in tiny world.")] = "",
    task: Annotated[list[str] | None, typer.Option(help="NAME=FILE.jsonl[::VERIFIER] or rg:NAME.")] = None,
    stages: Annotated[str, typer.Option(help="Domains and steps of every run.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of every run, NAME=VALUE; repeat for several.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time; 0 for one a core.", min=0)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the whole plan, and stop.")] = False,
    device: Device = "auto",
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study: methods, controls and seeds from training to the report.

    Examples:  driftlab study --profile smoke -o out   |   driftlab study --profile default -o out --resume   |
    driftlab study --config mine.toml --model ./Qwen3-0.6B --task math=train.jsonl::boxed --stages math:50 -o out
    """
    from driftlab.devices import resolve_device
    from driftlab.study.study import run_study
    from driftlab_analyses.draw import draw_all
    from driftlab_analyses.report.build import build_report
    from driftlab_analyses.report.findings import KEY_NUMBERS

    say = Output(as_json=as_json, quiet=quiet)
    plan = _plan(profile, config, seeds, {"model": model, "tasks": task, "stages": stages}, settings or [])
    if dry_run:
        return say.data(plan.to_dict(), plan.describe())
    outcome = run_study(
        plan, out, workers=workers, device=str(resolve_device(device)), argv=sys.argv[1:], resume=resume, force=force,
        progress=say.progress, say=say.note,
    )  # fmt: skip
    _, missing = draw_all([out], out / "figures", force=True)
    page = build_report(out, out / "report.html", force=True)
    for text in [*outcome.remarks, *(f"{name}: {why}" for name, why in missing)]:
        say.note(text)
    for name, why in outcome.failed.items():
        say.warn(f"run {name} failed: {why}")
    table = outcome.results.table("study_contrasts")[_SHOWN]
    shown = table if as_json else table[table["number"].isin(KEY_NUMBERS)]
    say.result(shown, extra={"out": str(out), "report": str(page)})
    say.note(f"Report: {page}; figures in {out / 'figures'}")
    if outcome.failed:
        raise typer.Exit(3)
    return None


def _plan(profile: str, config: Path | None, seeds: str, flags: dict[str, Any], settings: list[str]) -> "StudyPlan":
    from driftlab.errors import UsageError
    from driftlab.study.plan import load_profile, make_plan, parse_seeds
    from driftlab.training.config import load_file, parse_setting

    if profile and config:
        raise UsageError("--profile and --config: expected one of them, found both.")
    table = load_file(config) if config else load_profile(profile or "default")
    train = {name: value for name, value in flags.items() if value}
    for text in settings:
        train |= parse_setting(text)
    return make_plan(table, seeds=parse_seeds(seeds), train=train)
