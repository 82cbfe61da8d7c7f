"""``driftlab train``: a run folder of checkpoints, one domain after the other."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab_cli.options import Device, Force, Json, Quiet
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.training.config import TrainConfig

_EXAMPLES = """Examples:\n
  driftlab train -o runs/grpo --preset grpo\n
  driftlab train -o runs/ema --preset sdpo --set teacher=ema --set ema_rate=0.01 --stages math:50,science:50\n
  driftlab train -o runs/real --preset sdpo --model ./SmolLM2-135M --task rg:chain_sum --stages chain_sum:20\n
  driftlab train -o runs/real --preset grpo --model ./Qwen3-0.6B --task math=train.jsonl::boxed --stages math:50
"""
_Resume = Annotated[bool, typer.Option("--resume", help="Continue in --out after the last saved state, if any.")]


def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder to write.", show_default=False)],
    preset: Annotated[
        str, typer.Option(help="sft, grpo, grpo-fork, sdpo, sdpo-ema, sdpo-cot or stable-sdpo; empty for none.")
    ] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; flags win over it.")] = None,
    method: Annotated[str | None, typer.Option(help="sft, grpo, sdpo or hybrid.", show_default=False)] = None,
    stages: Annotated[
        str | None, typer.Option(help="Domains and steps, e.g. math:50,science:50,tooluse:50,coding:20.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Local Hugging Face folder; without it the built-in tiny world.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE.jsonl[::VERIFIER] or rg:NAME[?OPTION=VALUE&...][::VERIFIER]; repeat."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything drawn at random.", min=0)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default=False)] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts a step.", show_default=False)] = None,
    group: Annotated[int | None, typer.Option(help="Responses a prompt.", show_default=False)] = None,
    temperature: Annotated[float | None, typer.Option(help="One temperature everywhere.", show_default=False)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest response.", show_default=False)] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Responses a forward pass.", show_default=False)] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", show_default=False)] = None,
    evaluate: Annotated[
        bool | None, typer.Option("--evaluate/--no-evaluate", help="Score all tasks at step 0 and at stage ends.")
    ] = None,
    allow_code_execution: Annotated[
        bool | None, typer.Option("--allow-code-execution", help="Let python verifiers run model-written code.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; repeat for several.")
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--list-settings", help="Show every setting with its value, and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show one student and teacher prompt a stage, and stop.")
    ] = False,
    track: Annotated[
        list[str] | None, typer.Option(help="tensorboard or wandb (extra [tracking]); repeat for both.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; one is best for the tiny world.", min=1)] = 1,
    device: Device = "auto",
    resume: _Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a model over a sequence of domains and save its checkpoints."""
    flags = {
        "method": method, "stages": stages, "model": model, "tasks": task, "seed": seed, "lr": lr,
        "prompts": prompts, "group": group, "temperature": temperature, "max_new_tokens": max_new_tokens,
        "micro_batch": micro_batch, "save_every": save_every, "evaluate": evaluate,
        "allow_code_execution": allow_code_execution,
    }  # fmt: skip
    output = Output(as_json=as_json, quiet=quiet or os.environ.get("RANK", "0") != "0")
    merged = _merge(preset, config, settings or [], {name: value for name, value in flags.items() if value is not None})
    for remark in merged.remarks():
        output.warn(remark)
    if list_settings:
        return output.data(merged.to_dict(), merged.describe())

    import torch

    from driftlab.training.preview import preview
    from driftlab.training.tracking import trackers
    from driftlab.training.trainer import prepare, train

    torch.set_num_threads(threads)
    setup = prepare(merged, device)
    if dry_run:
        return output.data(*preview(setup))
    total = sum(stage.steps for stage in merged.stage_list())
    with output.progress(total, preset or merged.method) as advance, trackers(track or [], out, setup) as record:

        def on_step(row: dict[str, Any]) -> None:
            advance(1, _line(row))
            record(row)

        train(setup, out, resume=resume, force=force, on_step=on_step)
    if setup.ranks.leads:
        output.data({"run": str(out), "steps": total}, f"{out}: {total} steps, see checkpoints/ and scores.jsonl")
    return None


train.__doc__ = f"{train.__doc__}\n\n\b\n{_EXAMPLES}"


def _merge(preset: str, config: Path | None, settings: list[str], flags: dict[str, Any]) -> "TrainConfig":
    """Merge preset, file, --set and flags, later ones winning."""
    from driftlab.training.config import load_file, load_preset, merge, parse_setting

    layers = [load_preset(preset)] if preset else []
    layers += [load_file(config)] if config else []
    return merge(*layers, *map(parse_setting, settings), flags)


def _line(row: dict[str, Any]) -> str:
    """Return what the progress bar says about a step."""
    shown = (("reward", row.get("reward")), ("JS", row.get("js_distilled")), ("entropy", row.get("entropy")))
    numbers = " ".join(f"{name} {value:.3f}" for name, value in shown if value is not None)
    return f"{row['stage']}@{row['step']} {numbers}"
