"""``driftlab svd``: weight drift of every matrix along a sequence of checkpoints."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import (
    Address,
    Base,
    BasisCache,
    BasisCacheSize,
    Csv,
    Device,
    EngineName,
    Every,
    Exclude,
    Force,
    Include,
    Io,
    Json,
    Out,
    Prefetch,
    Quiet,
    Resume,
    Runs,
    Seed,
    Threads,
    Workers,
)
from driftlab_cli.output import Output

if TYPE_CHECKING:
    import pandas as pd

    from driftlab.checkpoints.tracks import Track
    from driftlab.engines import Engine
    from driftlab.spectral import Plan


def _list_measures(show: bool) -> None:
    if show:
        import pandas as pd

        from driftlab.spectral import MEASURES

        rows = [(m.name, m.unit, f"[{m.low}, {m.high}]", m.no_drift, m.source, m.summary) for m in MEASURES.values()]
        Output().result(pd.DataFrame(rows, columns=["measure", "unit", "range", "no drift", "source", "what it says"]))
        raise typer.Exit


def svd(
    runs: Runs,
    out: Out,
    base: Base = None,
    measure: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these measures.")] = None,
    preset: Annotated[str | None, typer.Option(help="Settings of a publication: 2607.01763 or 2606.07082.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="k of the angles; default min(128, d/4).", show_default=False)
    ] = None,
    mask_rank: Annotated[
        int | None, typer.Option(help="r of the principal masks; default 64.", show_default=False)
    ] = None,
    mask_fraction: Annotated[
        float | None, typer.Option(help="Share of entries in a mask; default 0.1.", show_default=False)
    ] = None,
    method: Annotated[str, typer.Option(help="auto or exact.")] = "auto",
    tolerance: Annotated[float, typer.Option(help="Largest relative error estimate of a tracked value.")] = 1e-3,
    null: Annotated[str, typer.Option(help="sign, permute or none.")] = "sign",
    null_draws: Annotated[int, typer.Option(help="Draws of which a null is the median; odd.")] = 1,
    every: Every = 1,
    include: Include = None,
    exclude: Exclude = None,
    device: Device = "auto",
    workers: Workers = None,
    threads: Threads = None,
    engine: EngineName = "local",
    address: Address = None,
    basis_cache: BasisCache = None,
    basis_cache_size: BasisCacheSize = 50.0,
    io: Io = "read",
    prefetch: Prefetch = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take on this machine, and stop; --out is not touched.")
    ] = False,
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    csv: Csv = False,
    quiet: Quiet = False,
    as_json: Json = False,
    list_measures: Annotated[
        bool,
        typer.Option("--list-measures", callback=_list_measures, is_eager=True, help="Show all measures and stop."),
    ] = False,
) -> None:
    """Measure weight drift: spectra, angles, masks, sparsity, each with its error and its null.

    Examples:  driftlab svd runs/grpo runs/sdpo -o out   |   driftlab svd 'out/checkpoint-*' --base Qwen3-4B -o drift
    """
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.checkpoints.reading import Reader
    from driftlab.engines import choose_engine, device_of_workers
    from driftlab.results import ResultsDir
    from driftlab.scan import TABLES, describe, require_matrices, scan
    from driftlab.separation import in_words
    from driftlab.tables import headline

    say = Output(as_json=as_json, quiet=quiet)
    plan = _plan(preset, rank, mask_rank, mask_fraction, measure, method, tolerance, null, null_draws, seed)
    where = device_of_workers(device, engine)  # everything that can be wrong is asked for before --out is touched
    Reader(io)
    crew = choose_engine(engine, workers, threads, address, where)
    sequence = CheckpointSequence.open(runs, base, every)
    tracks = sequence.tracks(include, exclude)
    require_matrices(tracks)
    if dry_run:
        say.result(_expect(tracks, plan, where, crew))
        raise typer.Exit
    config = describe(sequence, plan, include=include, exclude=exclude, every=every)
    results = ResultsDir.create(
        out, command="svd", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    for text in [*(c.error for _, c in sequence.checkpoints if c.error), *sequence.notes]:
        say.warn(text)
    with say.progress(sum(track.nbytes for track in tracks), "svd", in_bytes=True) as advance:
        outcome = scan(
            sequence,
            plan,
            results,
            include=include,
            exclude=exclude,
            device=where,
            engine=crew,
            basis_cache=basis_cache,
            cache_limit=round(1e9 * basis_cache_size),
            io=io,
            prefetch=round(1e9 * prefetch),
            on_unit=advance,
        )
    notes = [*sequence.notes, *outcome.notes]
    rows = {"ok": outcome.ok, "skipped": outcome.skipped, "failed": outcome.failed}
    workers_used = {"engine": engine, "workers": crew.workers if crew else 1, "threads": crew.threads if crew else None}
    results.finish(rows=rows, notes=notes, device=where, **workers_used)
    for text in outcome.notes:
        say.warn(text)
    if csv:
        for table in TABLES:
            results.write_csv(table)
    words = list(in_words(results.table("spectral_summary")))
    extra = {"out": str(out), "notes": notes, "status": rows, "separation": words}
    say.result(headline(results.table("spectral")), extra=extra)
    if words and not as_json:
        print("\n".join(["", *words]))
    say.note(f"{outcome.ok} rows ok, {outcome.skipped} skipped, {outcome.failed} failed; tables in {out}")
    if outcome.failed:
        raise typer.Exit(3)


def _expect(tracks: "list[Track]", plan: "Plan", device: str, crew: "Engine | None") -> "pd.DataFrame":
    import torch

    from driftlab.planning.forecast import expect

    workers, threads = (crew.workers or 1, crew.threads) if crew else (1, None)
    return expect(tracks, plan, torch.device(device), workers, threads)


def _plan(
    preset: str | None,
    rank: int | None,
    mask_rank: int | None,
    mask_fraction: float | None,
    measures: list[str] | None,
    method: str,
    tolerance: float,
    null: str,
    null_draws: int,
    seed: int,
) -> "Plan":
    from driftlab.errors import UsageError
    from driftlab.spectral import PRESETS, Plan

    if preset is not None and preset not in PRESETS:
        raise UsageError(f"Preset {preset!r} is unknown: expected one of {', '.join(PRESETS)}.")
    flags = {"angle_rank": rank, "mask_rank": mask_rank, "mask_fraction": mask_fraction}
    given = {name: value for name, value in flags.items() if value is not None}
    chosen = {"measures": tuple(measures)} if measures else {}
    settings = {**(PRESETS[preset] if preset else {}), **given, **chosen}
    return Plan(**settings, method=method, tolerance=tolerance, null=null, null_draws=null_draws, seed=seed)  # type: ignore[arg-type]
