"""``driftlab ls``: what would be measured, in which order, and what is left out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab_cli.options import Base, Every, Exclude, Include, Json, Runs
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.checkpoints import CheckpointSequence
    from driftlab.checkpoints.checks import Finding
    from driftlab.checkpoints.tracks import Track


def ls(
    runs: Runs,
    base: Base = None,
    every: Every = 1,
    include: Include = None,
    exclude: Exclude = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, not only the counts.")] = False,
    check: Annotated[
        str | None,
        typer.Option(metavar="files|values", help="Check integrity: files against headers, or every value as well."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what would be measured: checkpoints, order, tensors, dtypes, what is left out and why.

    Reads headers only, unless --check values is given. Exit code 3 says that something is wrong.

    Examples:  driftlab ls runs/grpo   |   driftlab ls out/checkpoint-* --base Qwen3-4B --check values
    """
    import pandas as pd

    from driftlab.checkpoints import CheckpointSequence
    from driftlab.errors import UsageError

    if check not in (None, "files", "values"):
        raise UsageError(f"--check {check!r}: expected files or values.")
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
    findings = _check(sequence, check == "values", out) if check else []
    listed["findings"] = [asdict(finding) | {"wrong": finding.wrong} for finding in findings]
    out.result(pd.DataFrame(rows), extra=listed)
    if not as_json:
        print("\n".join([*_text(listed, tensors), *(_verdict(findings) if check else ())]))
    errors = [c.error for _, c in sequence.checkpoints if c.error]
    for text in [*errors, *sequence.notes]:
        out.warn(text)
    if errors or any(finding.wrong for finding in findings):
        raise typer.Exit(3)


def _check(sequence: "CheckpointSequence", values: bool, out: Output) -> "list[Finding]":
    from driftlab.checkpoints.checks import check

    weights = [c.weights for c in (sequence.base, *(c for _, c in sequence.checkpoints)) if c.weights and not c.error]
    total = sum(info.nbytes for found in weights for info in found.tensors.values())
    with out.progress(total, "check", in_bytes=True) as advance:
        return list(check(sequence, values, advance))


def _verdict(findings: "list[Finding]") -> Iterator[str]:
    wrong = sum(finding.wrong for finding in findings)
    yield f"\ncheck: {wrong} wrong, {len(findings) - wrong} worth a look"
    for finding in findings:
        where = " ".join(filter(None, (finding.run, finding.label, finding.tensor)))
        yield f"  {'wrong' if finding.wrong else 'look '}  {where}: {finding.kind}: {finding.text}"


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
