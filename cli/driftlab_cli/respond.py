"""``driftlab respond``: responses of checkpoints to a fixed file of prompts."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from driftlab_cli.options import Device, Force, Json, Out, Quiet, Resume, Seed
from driftlab_cli.output import Output


def respond(
    models: Annotated[
        list[str], typer.Argument(metavar="[NAME=]MODEL...", help="Local Hugging Face folders.", show_default=False)
    ],
    out: Out,
    prompts: Annotated[
        Path, typer.Option(help="JSON Lines (or any data file) with id, prompt [, system, task].", show_default=False)
    ],
    temperature: Annotated[float, typer.Option(help="0 for greedy; above 0 sampled, no top-k or top-p.", min=0)] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest response.", min=1)] = 256,
    limit: Annotated[int | None, typer.Option(help="Only the first so many prompts.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Prompts answered together.", min=1)] = 8,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute the blocks in bfloat16.")] = False,
    device: Device = "auto",
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let models answer the same prompts: OUT/responses/NAME.jsonl, which `driftlab similarity` compares.

    Example:  driftlab respond base=models/base tuned=runs/x/checkpoint-500 --prompts prompts.jsonl -o answers
    """
    from driftlab.devices import resolve_device
    from driftlab.responses.generate import Sampling
    from driftlab.responses.respond import TABLE, answer_all, describe, name_models, read_prompts
    from driftlab.results import ResultsDir

    say = Output(as_json=as_json, quiet=quiet)
    where, asked, named = str(resolve_device(device)), read_prompts(prompts, limit), name_models(models)
    sampling = Sampling(temperature, max_new_tokens, seed)
    config = describe(named, asked, sampling) | {"batch": batch, "bf16": bf16, "device": where.split(":")[0]}
    results = ResultsDir.create(
        out, command="respond", config=config, argv=sys.argv[1:], tables=(TABLE,), resume=resume, force=force
    )
    with say.progress(len(named) * len(asked), "prompts") as advance:
        table = answer_all(named, asked, sampling, results, batch=batch, device=where, bf16=bf16, advance=advance)
    results.finish(inputs={"prompts": str(prompts)})
    for reason in table.loc[table["reason"] != "", "reason"].unique():
        say.warn(f"No response: {reason}.")
    grouped = table.groupby("model", sort=False)
    summary = grouped.agg(n=("id", "size"), truncated=("truncated", "sum"), mean_tokens=("tokens", "mean"))
    files = [str(results.path / TABLE / f"{name}.jsonl") for name in summary.index]
    say.result(summary.reset_index().assign(file=files), extra={"out": str(out)})
