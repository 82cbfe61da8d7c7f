"""Folder layouts of trainers: which checkpoints a path holds, in which order, under which label.

Known habits: driftlab's own run folder, HF Trainer and TRL ``checkpoint-500``, verl ``global_step_10``, prime-rl
``step_5``, OpenRLHF ``global_step10_hf``, numbered or named folders, and single ``.safetensors`` files.
"""

import glob
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftlab.checkpoints.names import natural_key
from driftlab.checkpoints.weights import holds_weights
from driftlab.errors import CheckpointError, UsageError

_OWN = re.compile(r"^(?P<global>\d{6,})-(?P<label>(?P<stage>[^@]+)(?:@(?P<step>\d+))?)$")
_STEP = re.compile(
    r"^(?:(?P<stage>.+?)[-_.])?(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?(?P<step>\d+)(?:[-_]hf)?$",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"^(?P<step>\d+)$")
_UNFINISHED = re.compile(r"^(\.|tmp)|[-_.]tmp$|\.incomplete$", re.IGNORECASE)
_DEFAULT_STAGE = "train"


@dataclass(frozen=True)
class Found:
    """One checkpoint as its folder name, or the ``driftlab.json`` in it, describes it."""

    path: Path
    stage: str
    step: int | None
    label: str
    position: int | None
    is_base: bool = False


@dataclass(frozen=True)
class FoundRun:
    """One run: its name, its checkpoints in order, its own base where it has one, and what was left out."""

    name: str
    checkpoints: tuple[Found, ...]
    base: Found | None = None
    ignored: tuple[tuple[str, str], ...] = ()


def find_runs(arguments: list[str]) -> list[FoundRun]:
    """Turn the RUN arguments of a command into runs.

    Parameters
    ----------
    arguments : list of str
        Each is a run folder, a checkpoint folder or file, or a glob of those, with an optional ``NAME=`` before it.
        Paths under one name follow one another as the stages of one run. Bare checkpoints together form one run.

    Raises
    ------
    UsageError
        If nothing was given.
    CheckpointError
        If a path is missing or holds no checkpoint.
    """
    if not arguments:
        raise UsageError("No run was given.", "Give run folders, a glob, or checkpoints in order.")
    named: dict[str, list[FoundRun]] = {}
    loose: list[Path] = []
    for argument in arguments:
        name, paths = _expand(argument)
        for path in paths:
            run = find_run(path)
            if run is None and not name:
                loose.append(path)
                continue
            run = run or FoundRun(path.name, (describe(path),))
            key = name or f"\0{len(named)}"
            named.setdefault(key, []).append(replace(run, name=name) if name else run)
    runs = [_join(parts) for parts in named.values()]
    if loose:
        runs.append(_loose(loose))
    return _distinct(runs)


def find_run(path: Path) -> FoundRun | None:
    """Return the run in folder ``path``, or None where ``path`` is itself one checkpoint.

    Raises
    ------
    CheckpointError
        If the folder holds neither.
    """
    if not path.is_dir():
        return None
    meta = read_json(path / "run.json")
    inner = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    folders = [child for child in inner.iterdir() if child.is_dir()]
    stepped = [child for child in folders if _is_step(child.name) and not _UNFINISHED.search(child.name)]
    if not stepped and inner is path and (holds_weights(path) or _is_step(path.name) or _nested_model(path)):
        return None
    entries = stepped or [child for child in folders if holds_weights(child)]
    if not entries:
        raise _no_checkpoints(path, folders)
    found = sorted((describe(entry) for entry in entries), key=_order)
    ignored = [(f.name, "half-written: never renamed to its final name") for f in folders if _UNFINISHED.search(f.name)]
    if stepped and inner is path and holds_weights(path):
        ignored.append(("(weights beside the checkpoints)", "not a step; give them by name to add them"))
    bases = [entry for entry in found if entry.is_base] or _base_of(meta, path)
    rest = tuple(_unique_labels([entry for entry in found if not entry.is_base]))
    name = meta.get("method") if isinstance(meta.get("method"), str) else None
    return FoundRun(name or path.resolve().name, rest, bases[0] if bases else None, tuple(ignored))


def describe(path: Path) -> Found:
    """Read stage, step and label of one checkpoint from ``driftlab.json`` or from its folder name."""
    meta = read_json(path / "driftlab.json") if path.is_dir() else {}
    name = path.stem if path.suffix == ".safetensors" else path.name
    own = _OWN.match(name)
    if meta or own:
        stage = str(meta.get("stage") or (own["stage"] if own else "") or _DEFAULT_STAGE)
        step = _integer(meta.get("step"), own["step"] if own else None)
        position = _integer(meta.get("global_step"), own["global"] if own else None)
        label = str(meta.get("label") or (own["label"] if own else f"{stage}@{step}"))
        return Found(path, stage, step, label, position, is_base=label == "base")
    match = _STEP.match(name) or _NUMBERED.match(name)
    if match is None:
        return Found(path, "", None, name, None, is_base=name == "base")
    stage = match.groupdict().get("stage") or _DEFAULT_STAGE
    step = int(match["step"])
    return Found(path, stage, step, f"{stage}@{step}", step)


def read_json(file: Path) -> dict[str, Any]:
    """Read a small JSON object; an absent or damaged file is an empty one."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _expand(argument: str) -> tuple[str, list[Path]]:
    name, equals, rest = argument.partition("=")
    if not equals or "/" in name or Path(argument).exists():
        name, rest = "", argument
    if not rest:
        raise UsageError(f"Run {argument!r}: expected NAME=PATH, found no path.")
    if Path(rest).exists() or Path(rest).is_symlink():
        return name, [Path(rest)]
    if glob.has_magic(rest):
        matches = sorted(glob.glob(rest), key=natural_key)
        if not matches:
            raise CheckpointError(f"Glob {rest!r} matches nothing.", "Check the pattern.")
        return name, [Path(match) for match in matches]
    raise CheckpointError(f"{rest}: expected a run folder or checkpoint, found nothing.", "Check the path.")


def _is_step(name: str) -> bool:
    return any(pattern.match(name) for pattern in (_OWN, _STEP, _NUMBERED))


def _nested_model(path: Path) -> bool:
    return any((path / inner).is_dir() and holds_weights(path / inner) for inner in ("actor", "actor/huggingface"))


def _order(found: Found) -> tuple[Any, ...]:
    position = found.position if found.position is not None else float("inf")
    return (not found.is_base, position, natural_key(found.path.name))


def _base_of(meta: dict[str, Any], path: Path) -> list[Found]:
    base = meta.get("base")
    if not isinstance(base, str):
        return []
    for candidate in (Path(base), path / base):
        if candidate.exists():
            return [replace(describe(candidate), label="base", is_base=True)]
    return []


def _no_checkpoints(path: Path, folders: list[Path]) -> CheckpointError:
    stages = sorted(
        (f.name for f in folders if any(_is_step(child.name) for child in f.iterdir() if child.is_dir())),
        key=natural_key,
    )
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


def _join(parts: list[FoundRun]) -> FoundRun:
    """Make one run of the parts given under one name, each a stage named by its folder."""
    if len(parts) == 1:
        return parts[0]
    checkpoints: list[Found] = []
    for part in parts:
        for found in part.checkpoints:
            parent = found.path.resolve().parent.name
            stage = parent if found.stage == _DEFAULT_STAGE else found.stage or parent
            label = f"{stage}@{found.step}" if found.step is not None else found.label
            checkpoints.append(replace(found, stage=stage, label=label, position=None))
    ignored = tuple(entry for part in parts for entry in part.ignored)
    return FoundRun(parts[0].name, tuple(_unique_labels(checkpoints)), parts[0].base, ignored)


def _loose(paths: list[Path]) -> FoundRun:
    found = [describe(path) for path in paths]
    parents = {path.resolve().parent for path in paths}
    if len(parents) == 1 and all(entry.position is not None for entry in found):
        found.sort(key=_order)
    name = parents.pop().name if len(parents) == 1 else "run"
    bases = [entry for entry in found if entry.is_base]
    rest = [entry for entry in found if not entry.is_base]
    return FoundRun(name or "run", tuple(_unique_labels(rest)), bases[0] if bases else None)


def _unique_labels(found: list[Found]) -> list[Found]:
    """Tell checkpoints of one label apart by the folder above them, then by their position."""
    labels = [entry.label for entry in found]
    named = [
        replace(entry, stage=parent, label=f"{parent}@{entry.step}")
        if labels.count(entry.label) > 1 and (parent := entry.path.resolve().parent.name)
        else entry
        for entry in found
    ]
    labels = [entry.label for entry in named]
    return [
        replace(entry, label=f"{entry.label} #{i}") if labels.count(entry.label) > 1 else entry
        for i, entry in enumerate(named, 1)
    ]


def _distinct(runs: list[FoundRun]) -> list[FoundRun]:
    """Give runs of the same name different ones: the parent folder before it, then a number behind it."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [
            f"{run.checkpoints[0].path.resolve().parent.parent.name}/{run.name}"
            if names.count(run.name) > 1 and run.checkpoints
            else run.name
            for run in runs
        ]
    seen: dict[str, int] = {}
    result = []
    for run, name in zip(runs, names, strict=True):
        seen[name] = seen.get(name, 0) + 1
        result.append(replace(run, name=name if seen[name] == 1 else f"{name} #{seen[name]}"))
    return result


def _integer(*candidates: Any) -> int | None:
    for value in candidates:
        if isinstance(value, (int, str)) and str(value).isdecimal():
            return int(value)
    return None
