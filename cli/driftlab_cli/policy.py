"""``driftlab policy``: how far the policy moved, what success required of it, and what its responses look like."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import Base, Csv, Device, Every, Force, Json, Out, Quiet, Resume, Runs, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.results import ResultsDir

_SHOWN = ["run", "label", "kl_new_to_base", "kl_new_to_base_se", "kl_base_to_new", "js", "entropy_new", "success"]
_SHOWN += ["excess_drift", "excess_drift_low", "excess_drift_high", "status"]
_LOOKS = ["run", "label", "artifact_rate", "repeat_rate", "truncated", "mean_words", "js_reading", "verdict", "status"]


def policy(
    runs: Runs,
    out: Out,
    base: Base = None,
    every: Every = 1,
    prompts: Annotated[int, typer.Option(help="Questions a task.", min=1)] = 16,
    copies: Annotated[int, typer.Option(help="Responses a question; per-prompt numbers need two.", min=1)] = 4,
    task: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these tasks of the run.")] = None,
    responses: Annotated[str, typer.Option(help="generate, or stored: the run folder's own, at stage ends.")] = (
        "generate"
    ),
    no_logits: Annotated[
        bool, typer.Option("--no-logits", help="Artefacts of the stored responses only; loads no model.")
    ] = False,
    questions: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.jsonl[::VERIFIER]", help="What to ask checkpoints of other trainers."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="For checkpoints of other trainers.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="For checkpoints of other trainers.", min=1)] = 256,
    top: Annotated[int, typer.Option(help="Amplified n-grams of each size that are kept.", min=0)] = 10,
    batch: Annotated[int, typer.Option(help="Responses a forward pass.", min=1)] = 128,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Let python verifiers run model-written code.")
    ] = False,
    device: Device = "auto",
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    csv: Csv = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure policy drift: KL both ways, excess over what success required, artefacts and a collapse verdict.

    Examples:  driftlab policy runs/grpo runs/sdpo -o out   |   driftlab policy runs/ema --no-logits -o looks   |
    driftlab policy 'out/checkpoint-*' --base Qwen3-0.6B --questions math=test.jsonl::boxed -o out
    """
    from driftlab.devices import resolve_device
    from driftlab.responses.policy_study import STEPS, TABLES, Plan, describe, measure_policies
    from driftlab.responses.trails import open_trails, text_trails
    from driftlab.results import ResultsDir

    say = Output(as_json=as_json, quiet=quiet)
    plan = Plan(
        prompts, copies, tuple(task or ()), responses, not no_logits, top, batch, seed, tuple(questions or ()),
        temperature, max_new_tokens, allow_code_execution,
    )  # fmt: skip
    where = str(resolve_device(device))
    trails = text_trails(runs) if no_logits else open_trails(runs, base, every)
    results = ResultsDir.create(
        out,
        command="policy",
        config=describe(trails, plan),
        argv=sys.argv[1:],
        tables=TABLES,
        resume=resume,
        force=force,
    )
    with say.progress(sum(len(trail.stops) for trail in trails), "policy") as advance:
        outcome = measure_policies(trails, plan, results, device=where, on_unit=advance)
    results.finish(checkpoints={"ok": outcome.ok, "failed": outcome.failed}, notes=outcome.notes, device=where)
    for note in outcome.notes:
        say.warn(note)
    if csv:
        for name in filter(results.has, (*TABLES, STEPS)):
            results.write_csv(name)
    _report(say, results)
    say.note(f"{outcome.ok} checkpoints ok, {outcome.failed} failed; tables in {results.path}")
    if outcome.failed:
        raise typer.Exit(3)


def _report(say: Output, results: "ResultsDir") -> None:
    """Print the rows of all tasks together, and one sentence for each run that collapsed."""
    looks = results.table("artifacts")
    looks = looks[looks["task"] == "all"]
    bad = looks[looks["verdict"].isin(["partial", "collapsed"]) & (looks["label"] == looks["first_label"])]
    words = [f"{row['run']}: {row['verdict']} from {row['label']}: {row['evidence']}" for _, row in bad.iterrows()]
    if results.has("policy"):
        drift = results.table("policy")
        drift = drift[drift["task"] == "all"]
        extra = {"out": str(results.path), "artifacts": looks[_LOOKS].to_dict("records"), "collapse": words}
        say.result(drift[_SHOWN], title="All tasks; nats a response, js and entropy a token\n", extra=extra)
        if say.as_json:
            return
        print()
    say.result(looks[_LOOKS], title="All tasks\n", extra={"out": str(results.path), "collapse": words})
    if words and not say.as_json:
        print("\n".join(["", *words]))
