"""Folder layouts of trainers: which checkpoints a folder holds, in which order, and what lies beside them."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftlab.checkpoints.disk import read_object
from driftlab.checkpoints.formats import WEIGHT_SUFFIXES, holds_weights
from driftlab.checkpoints.names import natural_key
from driftlab.checkpoints.remote import AnyPath, RemotePath, absolute
from driftlab.checkpoints.stepname import Found, describe, home, is_holder, is_step, is_unfinished, stem
from driftlab.checkpoints.weights import has_model, has_safetensors
from driftlab.errors import CheckpointError
from driftlab.naming import is_remote

_ZERO_STATE = re.compile(r"^global_step\d+$")
_COUNTED = re.compile(r"^(\D*)(\d+)")
HALF_WRITTEN = "half-written: never renamed to its final name"
Ignored = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FoundRun:
    """One run: its name, its checkpoints in order, its own base where it has one, and what was left out.

    ``base_named`` is the base that ``run.json`` speaks of where that is not to be found; ``folder`` the run's folder.
    """

    name: str
    checkpoints: tuple[Found, ...]
    base: Found | None = None
    ignored: Ignored = ()
    base_named: str = ""
    folder: AnyPath | None = None


def find_run(path: AnyPath) -> FoundRun | None:
    """Return the run in folder ``path``, or None where ``path`` is itself one checkpoint.

    Raises
    ------
    CheckpointError
        If the folder holds neither, or the names in it do not tell the order.
    """
    if not path.is_dir():
        return None
    inner = _inner(path)
    steps = _steps(inner)
    if inner is path and is_checkpoint(path):
        inside = is_step(stem(home(path)))
        steps = [s for s in steps if has_safetensors(s) or not (inside or _ZERO_STATE.match(s.name))]
        if not steps:
            return None
    entries = steps or [child for child in _folders(inner) if holds_weights(child) and not is_unfinished(child.name)]
    if not entries:
        raise _no_checkpoints(path, _folders(inner))
    top = absolute(path)
    top = top.parent if is_holder(top.name) else top
    meta = read_object(path / "run.json") or read_object(top / "run.json")
    found = in_order([describe(entry) for entry in entries], path, meta)
    bases = [entry for entry in found if entry.is_base]
    base, named = (bases[0], "") if bases else _base_of(meta, top)
    rest = tuple(entry for entry in found if not entry.is_base)
    name = meta.get("method") if isinstance(meta.get("method"), str) else None
    return FoundRun(name or top.name or "run", rest, base, _left(inner, entries), named, top)


def holds_steps(path: AnyPath) -> bool:
    """Whether a folder holds checkpoints that :func:`find_run` would take."""
    inner = _inner(path)
    return bool(_steps(inner)) or any(holds_weights(child) for child in _folders(inner))


def is_checkpoint(path: AnyPath) -> bool:
    """Whether a folder is one checkpoint, readable or not, rather than a run."""
    return holds_weights(path) or has_model(path) or (is_step(stem(home(path))) and not _is_run(path))


# -- one folder ---------------------------------------------------------------------------------------------------


def _inner(path: AnyPath) -> AnyPath:
    """Return where the run's checkpoints lie: prime-rl keeps training states and weights apart."""
    holders = [path / name for name in ("checkpoints", "weights") if (path / name).is_dir()]
    readable = [holder for holder in holders if any(has_model(step) for step in _steps(holder))]
    if holds_weights(path) and not readable:
        return path
    return (readable or [holder for holder in holders if _steps(holder)] or [path])[0]


def _folders(folder: AnyPath) -> list[AnyPath]:
    return sorted((child for child in folder.iterdir() if child.is_dir()), key=lambda child: natural_key(child.name))


def _steps(folder: AnyPath) -> list[AnyPath]:
    """Return the entries whose names are steps: folders, links to lost folders, and weight files if there are two."""
    named = [child for child in folder.iterdir() if is_step(stem(child)) and not is_unfinished(child.name)]
    folders = [child for child in named if child.is_dir() and not _is_run(child)]
    lost = [child for child in named if child.is_symlink() and not child.exists()]
    files = [child for child in named if child.suffix in WEIGHT_SUFFIXES and child.is_file()]
    return folders + lost + (files if len(files) > 1 else [])


def _is_run(folder: AnyPath) -> bool:
    """Whether a folder with the name of a step, a date for instance, holds readable steps of its own instead."""
    inside = [child for child in folder.iterdir() if child.is_dir() and is_step(child.name)]
    return not has_model(folder) and any(has_model(child) for child in inside)


def _left(inner: AnyPath, entries: list[AnyPath]) -> Ignored:
    """List what lies beside the checkpoints and was not taken for one of them."""
    others = [child for child in _folders(inner) if child not in entries]
    half = [(child.name, HALF_WRITTEN) for child in others if is_unfinished(child.name)]
    beside = [child.name for child in others if not is_unfinished(child.name) and has_model(child)]
    if holds_weights(inner) and not all(entry.is_file() for entry in entries):
        beside.append("(weights beside the checkpoints)")
    return (*half, *((name, "not a step; give it by name to add it") for name in beside))


def _base_of(meta: dict[str, Any], folder: AnyPath) -> tuple[Found | None, str]:
    """Return the base that ``run.json`` names, or its name where nothing lies there.

    An address in a file is not followed, and a remote run's base is looked for beside it only.
    """
    base = meta.get("base")
    if not isinstance(base, str) or not base:
        return None, ""
    if is_remote(base):
        return None, base
    for candidate in [folder / base, *([] if isinstance(folder, RemotePath) else [Path(base)])]:
        if candidate.exists():
            return replace(describe(candidate), label="base", is_base=True), ""
    return None, base


def _no_checkpoints(path: AnyPath, folders: list[AnyPath]) -> CheckpointError:
    stages = [folder.name for folder in folders if _steps(folder)]
    if stages:
        return CheckpointError(
            f"{path}: expected checkpoints, found folders that hold them ({', '.join(stages[:4])}), whose "
            "order their names do not tell.",
            f"Give them in order under one name: {path.name}={path / stages[0]} {path.name}=...",
        )
    entries = ", ".join(sorted(child.name for child in path.iterdir())[:4]) or "an empty folder"
    return CheckpointError(
        f"{path}: expected a checkpoint or folders of checkpoints, found {entries}.", "Check the path."
    )


# -- order --------------------------------------------------------------------------------------------------------


def in_order(found: list[Found], where: object, meta: dict[str, Any] | None = None) -> list[Found]:
    """Sort the checkpoints of one folder or glob: the base, then by global step, else stage by stage.

    Raises
    ------
    CheckpointError
        If there are several stages or names and nothing tells which came first.
    """
    open_ended = [entry for entry in found if entry.position is None and not entry.is_base]
    stages = _told_stages(meta or {}) or counted(sorted({e.stage for e in open_ended if e.step is not None}), where)
    counted([entry.label for entry in open_ended if entry.step is None], where)
    rank = {stage: i for i, stage in enumerate(stages)}

    def key(entry: Found) -> tuple[Any, ...]:
        last = float("inf")
        if entry.position is not None:
            return (not entry.is_base, 0, entry.position, ())
        step = last if entry.step is None else entry.step
        return (not entry.is_base, 1 + rank.get(entry.stage, len(rank)), step, natural_key(stem(entry.path)))

    return sorted(found, key=key)


def _told_stages(meta: dict[str, Any]) -> list[str]:
    stages = meta.get("stages")
    names = [stage.get("name") if isinstance(stage, dict) else stage for stage in stages] if stages else []
    return [name for name in names if isinstance(name, str)]


def counted(names: list[str], where: object) -> list[str]:
    """Sort names that are counted (``stage1``, ``2-code``); refuse several that are not."""
    counts = [_COUNTED.match(name) for name in names]
    told = len({match[1] for match in counts if match}) == 1 and len({int(m[2]) for m in counts if m}) == len(names)
    if len(names) > 1 and not told:
        raise CheckpointError(
            f"{where}: expected checkpoints in an order that their names tell, found {', '.join(sorted(names)[:4])}.",
            "Give them one by one in order, or stage by stage under one name: NAME=PATH NAME=PATH.",
        )
    return sorted(names, key=natural_key)
