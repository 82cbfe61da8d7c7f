"""``driftlab ls``: what would be measured, in which order, and what is left out."""

from collections import Counter
from typing import Annotated, Any

import typer

from driftlab_cli.options import Base, Every, Exclude, Include, Json, Runs
from driftlab_cli.output import Output


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

    Reads headers only.

    Examples:  driftlab ls runs/grpo   |   driftlab ls out/checkpoint-* --base Qwen3-4B
    """
    import pandas as pd

    from driftlab.checkpoints import CheckpointSequence

    sequence = CheckpointSequence.open(runs, base, every)
    tracks = sequence.tracks(include, exclude)
    out = Output(as_json=as_json)
    rows = [_line("-", sequence.base), *(_line(run, checkpoint) for run, checkpoint in sequence.checkpoints)]
    reasons = Counter("left out by --include/--exclude" if t.excluded else t.left_out for t in tracks)
    measured = reasons.pop("", 0)
    names = [{"tensor": t.name, "left_out": t.left_out, "excluded": t.excluded} for t in tracks]
    files = [{"run": run.name, "file": name, "reason": why} for run in sequence.runs for name, why in run.ignored]
    files += [
        {"run": run, "file": name, "reason": why}
        for run, c in [("-", sequence.base), *sequence.checkpoints]
        for name, why in (c.weights.ignored if c.weights else [])
    ]
    out.result(
        pd.DataFrame(rows),
        extra={"measured": measured, "left_out": dict(reasons), "files_left_out": files, "tensors": names},
    )
    if as_json:
        return
    print(f"\n{measured} matrices are measured in each checkpoint; left out:")
    print("\n".join(f"  {count:5d}  {reason}" for reason, count in reasons.most_common()) or "      0")
    for (file, why), count in Counter((f["file"], f["reason"]) for f in files).most_common():
        print(f"  file {file} in {count} folder(s): {why}")
    if tensors:
        print("\n".join(f"{'  ' if t['left_out'] or t['excluded'] else '* '}{t['tensor']}" for t in names))
    for problem in [c.error for _, c in sequence.checkpoints if c.error]:
        out.warn(problem)


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
