"""``driftlab ls``: what would be measured, in which order, and what is left out."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab_cli.options import Base, Every, Exclude, Include, Json, Runs
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.checkpoints.tracks import Track


def ls(
    runs: Runs,
    base: Base = None,
    every: Every = 1,
    include: Include = None,
    exclude: Exclude = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, not only the counts.")] = False,
    as_json: Json = False,
) -> None:
    """List what would be measured: checkpoints, order, tensors, dtypes, what is left out and why.

    Reads headers only. Exit code 3 says that a checkpoint cannot be read.

    Examples:  driftlab ls runs/grpo   |   driftlab ls out/checkpoint-* --base Qwen3-4B
    """
    import pandas as pd

    from driftlab.checkpoints import CheckpointSequence

    sequence = CheckpointSequence.open(runs, base, every)
    tracks = sequence.tracks(include, exclude)
    rows = [_line("-", sequence.base), *(_line(run, checkpoint) for run, checkpoint in sequence.checkpoints)]
    reasons = Counter("left out by --include/--exclude" if t.excluded else t.left_out for t in tracks)
    measured = reasons.pop("", 0)
    listed = {
        "measured": measured,
        "left_out": dict(reasons.most_common()),
        "not_compared": _not_compared(tracks),
        "files_left_out": _files(sequence),
        "notes": sequence.notes,
        "tensors": [{"tensor": t.name, "left_out": t.left_out, "excluded": t.excluded} for t in tracks],
    }
    out = Output(as_json=as_json)
    out.result(pd.DataFrame(rows), extra=listed)
    if not as_json:
        print("\n".join(_text(listed, tensors)))
    errors = [c.error for _, c in sequence.checkpoints if c.error]
    for text in [*errors, *sequence.notes]:
        out.warn(text)
    if errors:
        raise typer.Exit(3)


def _not_compared(tracks: "list[Track]") -> list[dict[str, Any]]:
    """Tensors that single checkpoints lack, add or changed in shape."""
    return [
        {"run": m.run, "label": m.checkpoint.label, "tensor": track.name, "reason": m.reason}
        for track in tracks
        for m in track.members
        if m.reason and m.status != "failed" and not track.excluded
    ]


def _files(sequence: "CheckpointSequence") -> list[dict[str, str]]:
    """Files and folders beside the model that were not taken."""
    found = [(run.name, name, why) for run in sequence.runs for name, why in run.ignored]
    for run, checkpoint in [("-", sequence.base), *sequence.checkpoints]:
        found += [(run, name, why) for name, why in (checkpoint.weights.ignored if checkpoint.weights else [])]
    return [{"run": run, "file": name, "reason": why} for run, name, why in found]


def _text(listed: dict[str, Any], tensors: bool) -> Iterator[str]:
    yield f"\n{listed['measured']} matrices are measured in each checkpoint; left out:"
    yield from (f"  {count:5d}  {reason}" for reason, count in listed["left_out"].items())
    if not listed["left_out"]:
        yield "      0"
    for (tensor, why), count in Counter((m["tensor"], m["reason"]) for m in listed["not_compared"]).most_common():
        yield f"  tensor {tensor} in {count} checkpoint(s): {why}"
    for (file, why), count in Counter((f["file"], f["reason"]) for f in listed["files_left_out"]).most_common():
        yield f"  file {file} in {count} folder(s): {why}"
    if tensors:
        yield from (f"{'  ' if t['left_out'] or t['excluded'] else '* '}{t['tensor']}" for t in listed["tensors"])


def _line(run: str, checkpoint: Any) -> dict[str, Any]:
    weights = checkpoint.weights
    dtypes = Counter(t.dtype for t in weights.tensors.values()) if weights else {}
    return {
        "run": run,
        "order": checkpoint.order,
        "label": checkpoint.label,
        "tensors": len(weights.tensors) if weights else None,
        "MiB": round(sum(t.nbytes for t in weights.tensors.values()) / 2**20, 1) if weights else None,
        "dtypes": "+".join(dtypes),
        "state": "unreadable" if checkpoint.error else "ok",
        "path": str(checkpoint.path),
    }
