"""``driftlab similarity``: how far responses to the same prompts moved."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import Csv, Device, Force, Json, Out, Quiet, Resume, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.results import ResultsDir

_SHOWN = [
    *("run", "label", "n", "mean", "mean_low", "mean_high", "q05", "q25", "median", "q75", "share_below_90"),
    *("identical_share", "other_seed_mean", "random_mean", "w1_random"),
]


def similarity(
    responses: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... | BASE [NAME=]FILE[::COLUMN]...",
            help="Run folders, or response files: the first is the reference; files of one NAME are its steps.",
            show_default=False,
        ),
    ],
    out: Out,
    base: Annotated[str, typer.Option(help="FILE[::COLUMN] or run folder: the reference of everything.")] = "",
    seed_run: Annotated[
        str, typer.Option(help="File or run folder: the base's responses under another seed, as a baseline.")
    ] = "",
    against: Annotated[str, typer.Option(help="base, or previous: each label against the one before it.")] = "base",
    encoder: Annotated[
        str, typer.Option(help="Folder of a sentence-transformers model, hf:NAME, or char-ngrams (no model).")
    ] = "char-ngrams",
    dtype: Annotated[str, typer.Option(help="Of the encoder: float32, float16, bfloat16.")] = "float32",
    max_tokens: Annotated[int | None, typer.Option(help="Window of the encoder; its own by default.")] = None,
    batch: Annotated[int, typer.Option(help="Texts the encoder takes at once.")] = 32,
    cache: Annotated[Path | None, typer.Option(help="Folder for embeddings; the user's cache by default.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
    csv: Csv = False,
) -> None:
    """Compare responses with those of the base: cosine of embeddings, tails, baselines, paired tests between runs.

    Examples:  driftlab similarity runs/grpo runs/sdpo --encoder models/embedder -o out   |
    driftlab similarity base.jsonl grpo=grpo.jsonl sdpo=sdpo.jsonl --seed-run base-seed1.jsonl -o out
    """
    from driftlab.devices import resolve_device
    from driftlab.domains.cache import default_cache
    from driftlab.domains.encoder import open_encoder
    from driftlab.errors import UsageError
    from driftlab.responses.similarity import TABLES, describe, measure_sequences
    from driftlab.responses.sources import open_sequences, read_reference
    from driftlab.responses.study import finish, inputs
    from driftlab.results import ResultsDir

    say = Output(as_json=as_json, quiet=quiet)
    if against not in ("base", "previous"):
        raise UsageError(f"--against: expected base or previous, found {against!r}.")
    where, previous = str(resolve_device(device)), against == "previous"
    sequences = open_sequences(responses, base)
    other = read_reference(seed_run) if seed_run else None
    engine = open_encoder(encoder, dtype=dtype, max_tokens=max_tokens, batch=batch, device=where)
    config = describe(sequences, engine, seed, previous, other)
    results = ResultsDir.create(
        out, command="similarity", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    if not results.has("similarity"):
        kept = cache or default_cache()
        with say.progress(sum(len(one.steps) for one in sequences), "labels") as advance:
            pairs = measure_sequences(
                sequences, engine, results, seed=seed, previous=previous, other_seed=other, cache=kept, advance=advance
            )
        finish(pairs, sequences, engine, results, seed=seed, previous=previous, other_seed=other)
        results.finish(inputs=inputs(sequences))
    if csv:
        for name in TABLES:
            results.write_csv(name)
    _report(say, results)


def _report(say: Output, results: "ResultsDir") -> None:
    """Print what is stored, so that a run and its ``--resume`` say the same."""
    stored, summary = results.read_json("similarity"), results.table("similarity_summary")
    for remark in stored["remarks"]:
        say.warn(remark)
    whole = summary[summary["task"] == "all"]
    extra = {"out": str(results.path), "words": stored["words"], "encoder": stored["encoder"]}
    say.result(whole[_SHOWN], title=f"Encoder: {stored['encoder']['name']}\n", extra=extra)
    if stored["words"] and not say.as_json:
        print("\n".join(["", *stored["words"]]))
    say.note(f"Tables in {results.path}; driftlab figures {results.path} -o FIGURES draws them")
    if whole["failed"].any() or (whole["n"] == 0).any():
        raise typer.Exit(3)
