"""The one loop: every tensor of the base through every checkpoint of every run.

Name-major: for each tensor the base is read and decomposed once, all checkpoints are walked, everything is released.
In memory are one basis, one checkpoint tensor and the next one being read, whatever the model's size. Tensors are
independent, so an engine's workers may take them; this process alone writes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from driftlab.basiscache import GIGABYTE
from driftlab.checkpoints.remote import RemotePath
from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.signature import signature
from driftlab.checkpoints.tracks import Checkpoint, Track
from driftlab.devices import resolve_device
from driftlab.engines import Engine, Unit, heavy_first
from driftlab.errors import CheckpointError
from driftlab.planning.costs import cost
from driftlab.results import ResultsDir
from driftlab.spectral.measures import Plan
from driftlab.tables import SPECTRAL, summarise
from driftlab.units import Labour, Measured, given_up, groups, in_file_order, slim

TABLES = ("spectral", "spectral_summary")
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Outcome:
    """What a scan did: how many rows ended in which status, and what a reader must know."""

    ok: int
    skipped: int
    failed: int
    notes: tuple[str, ...]


def scan(
    sequence: CheckpointSequence,
    plan: Plan,
    results: ResultsDir,
    *,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    basis_cache: Path | None = None,
    cache_limit: int = 50 * GIGABYTE,
    io: str = "read",
    prefetch: int = 0,
    on_unit: Progress = lambda nbytes, name: None,
) -> Outcome:
    """Measure a sequence and fill the tables ``spectral`` and ``spectral_summary``.

    Parameters
    ----------
    sequence : CheckpointSequence
        What to measure.
    plan : Plan
        Which measures, with which ranks.
    results : ResultsDir
        Where to write; tensors whose part is there already are not measured again.
    include, exclude : list of str, optional
        Regular expressions on tensor names.
    device : str, default "auto"
        Where to compute.
    engine : Engine, optional
        Whose workers measure; by default this process does.
    basis_cache : Path, optional
        Folder of decompositions made before, to be used and filled.
    cache_limit : int
        Its size in bytes.
    io : str, default "read"
        ``read`` or ``mmap``.
    prefetch : int, default 0
        Bytes that each worker may read ahead beyond the next tensor.
    on_unit : callable, optional
        Called with (bytes read, tensor name) after each tensor.

    Raises
    ------
    UsageError
        If the device or an expression is wrong.
    CheckpointError
        If no tensor is a matrix that can be measured.
    """
    where = torch.device(device) if engine else resolve_device(device)
    tracks = sequence.tracks(include, exclude)
    require_matrices(tracks)
    if all(results.has(table) for table in TABLES):  # a finished run, resumed: nothing is left to do
        results.drop_parts("spectral")
        return _outcome(results.table("spectral"))
    done = {track.name for track in tracks if results.has_part("spectral", track.name)}
    on_unit(sum(track.nbytes for track in tracks if track.name in done), "resumed")
    todo = groups([track for track in in_file_order(tracks) if track.name not in done], where)
    size = {track.name: track.nbytes for track in tracks}
    labour = Labour(plan, str(where), engine.threads if engine else None, basis_cache, cache_limit, io, prefetch)
    counts: Counter[str] = Counter()
    for measured in _by(engine, todo, labour) if engine else _here(todo, labour, where):
        results.write_part("spectral", measured.name, measured.table)
        counts.update(measured.counts)
        on_unit(size[measured.name], measured.name)
    seconds = counts.get("read_seconds", 0.0)
    rate = counts["read_bytes"] / seconds / 1e6 if seconds else None
    results.update(counts=dict(counts), read_megabytes_per_second=rate)
    return _finish(results, tracks, sequence)


def _here(todo: list[list[Track]], labour: Labour, device: torch.device) -> Iterator[Measured]:
    """Measure in this process, reading ahead across tensors."""
    with labour.here(device) as measure:
        yield from measure(todo)


def _by(engine: Engine, todo: list[list[Track]], labour: Labour) -> Iterator[Measured]:
    """Measure with an engine's workers."""
    units = [Unit(group[0].name, [slim(t) for t in group], sum(cost(t, labour.plan) for t in group)) for group in todo]
    for finished in engine.run(heavy_first(units), labour):
        if finished.error:
            yield from (given_up(track, finished.error) for track in finished.unit.payload)
        else:
            yield from finished.result


def require_matrices(tracks: list[Track]) -> None:
    """Raise unless the spectral measures apply to one tensor at least.

    Raises
    ------
    CheckpointError
        With the reason that leaves out most of them.
    """
    reasons = [track.left_out for track in tracks if not track.excluded]
    if reasons and all(reasons):
        most = max(reasons, key=reasons.count)
        raise CheckpointError(
            f"No matrix to measure among {len(reasons)} tensors; {reasons.count(most)} of them: {most}.",
            "Embeddings and output heads are measured where --include names them.",
        )


def describe(sequence: CheckpointSequence, plan: Plan, **options: Any) -> dict[str, Any]:
    """Return every setting and input that a scan's numbers depend on, for the manifest."""
    base = sequence.base
    checkpoints = [{"run": run, "label": c.label, **_source(c), "error": c.error} for run, c in sequence.checkpoints]
    inputs = {"base": _source(base), "checkpoints": checkpoints}
    return {**asdict(plan), **options, **inputs}


def _source(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what tells that the files are still the same: where, their headers, when they were last written.

    Remote files have no order in time that could be relied on: all that identifies them is kept.
    """
    told = {"path": str(checkpoint.path.resolve()), "header": checkpoint.digest}
    if checkpoint.weights and isinstance(checkpoint.path, RemotePath):
        return told | {"files": [list(file) for file in signature(checkpoint.weights)]}
    tensors = checkpoint.weights.tensors.values() if checkpoint.weights else ()
    return told | {"written_ns": max((tensor.stamp[1] for tensor in tensors), default=None)}


def _finish(results: ResultsDir, tracks: list[Track], sequence: CheckpointSequence) -> Outcome:
    table = results.merge_parts("spectral", [track.name for track in tracks], SPECTRAL)
    runs = {run.name: i for i, run in enumerate(sequence.runs)}
    position = {track.name: i for i, track in enumerate(tracks)}
    frame = table.to_pandas()
    frame["_run"], frame["_matrix"] = frame["run"].map(runs), frame["matrix"].map(position)
    frame = frame.sort_values(["_run", "order", "_matrix"], kind="stable").drop(columns=["_run", "_matrix"])
    results.write_table("spectral", pa.Table.from_pandas(frame, schema=SPECTRAL, preserve_index=False))
    results.write_table("spectral_summary", summarise(frame))
    results.drop_parts("spectral")
    return _outcome(frame)


def _outcome(frame: pd.DataFrame) -> Outcome:
    counts = frame["status"].value_counts()
    return Outcome(
        int(counts.get("ok", 0)), int(counts.get("skipped", 0)), int(counts.get("failed", 0)), tuple(_notes(frame))
    )


def _notes(frame: pd.DataFrame) -> Iterator[str]:
    """Say what a reader of the table would otherwise overlook."""
    ok = frame[frame["status"] == "ok"]
    for (run, label), rows in frame.groupby(["run", "label"], sort=False):
        measured = rows[rows["status"] == "ok"]
        failed = rows[rows["status"] == "failed"]
        is_base = (rows["order"] == 0).any()
        moved = ((measured["method"] != "identical") & (measured["rel_frobenius"] != 0)).any()
        if measured.empty:
            reason = (rows if failed.empty else failed)["reason"].mode()[0]
            yield f"{run} {label}: no matrix was measured; most often: {reason}"
        elif is_base and moved:
            yield f"the base of run {run} is not the base of this sequence: its row 'base' shows the difference"
        elif not is_base and not moved:
            yield f"{run} {label} equals the base in every compared matrix: is it the trained model?"
    mixed = ok.loc[ok["dtype"] != ok["base_dtype"], ["base_dtype", "dtype"]].drop_duplicates()
    for before, after in mixed.itertuples(index=False):
        yield f"base stored as {before}, checkpoints as {after}: part of the drift is that rounding"
    if ok["base_dtype"].eq("F32").any() and ok["dtype"].eq("F32").any():
        yield "float32 files: update_density is what would change after rounding to bf16, not what was stored"
