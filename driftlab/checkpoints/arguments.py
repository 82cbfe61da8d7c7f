"""The RUN arguments of a command: paths, globs and names turned into runs."""

import glob
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from driftlab.checkpoints.formats import is_loose
from driftlab.checkpoints.hub import find_on_hub, is_hub_name
from driftlab.checkpoints.layout import (
    HALF_WRITTEN,
    FoundRun,
    counted,
    find_run,
    holds_steps,
    in_order,
    is_checkpoint,
)
from driftlab.checkpoints.names import natural_key
from driftlab.checkpoints.remote import AnyPath, RemotePath, forget, located
from driftlab.checkpoints.stepname import (
    DEFAULT_STAGE,
    Found,
    describe,
    home,
    is_step,
    is_unfinished,
    stage_folder,
    stem,
)
from driftlab.errors import CheckpointError, UsageError
from driftlab.naming import distinct


def find_runs(arguments: list[str]) -> list[FoundRun]:
    """Turn the RUN arguments of a command into runs.

    Parameters
    ----------
    arguments : list of str
        Each is a run folder, a checkpoint folder or file, a glob of those, or a model of the hub as
        ``hf:org/name@revision``, with an optional ``NAME=`` before it. All but the last may be addresses such as
        ``s3://bucket/run``; what their folders hold is listed anew.
        Paths under one name follow one another as the stages of one run. Bare checkpoints together form one run.

    Raises
    ------
    UsageError
        If nothing was given, or an argument has no path.
    CheckpointError
        If a path is missing or holds no checkpoint, or names do not tell the order.
    """
    forget()
    if not arguments:
        raise UsageError("No run was given.", "Give run folders, a glob, or checkpoints in order.")
    groups: dict[str, tuple[str, list[FoundRun]]] = {}
    for argument in arguments:
        try:
            name, parts = _expand(argument)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or argument}: cannot be listed ({error.strerror}).", "Check its permissions."
            ) from None
        for part in parts:
            key = f"={name}" if name else "" if part.folder is None else f"#{len(groups)}"
            groups.setdefault(key, (name, []))[1].append(part)
    runs = [_join(name, parts) for name, parts in groups.values()]
    return _distinct([replace(run, checkpoints=tuple(_unique_labels(run.checkpoints))) for run in runs])


def _expand(argument: str) -> tuple[str, list[FoundRun]]:
    """Return the name before ``=`` and what the path or glob behind it means."""
    name, equals, rest = argument.partition("=")
    if not equals or "/" in name or name.startswith("hf:") or _is_there(Path(argument)) or glob.glob(argument):
        name, rest = "", argument
    if not rest:
        raise UsageError(f"Run {argument!r}: expected NAME=PATH, found no path.")
    if is_hub_name(rest):
        model, found = find_on_hub(rest)
        return name or model, [FoundRun("", tuple(found))]
    path = located(rest)
    if _is_there(path):
        return name, [find_run(path) or FoundRun("", (describe(path),))]
    if glob.has_magic(rest):
        return name, _glob(rest)
    raise CheckpointError(f"{rest}: expected a run folder or checkpoint, found nothing.", "Check the path.")


def _is_there(path: AnyPath) -> bool:
    return path.exists() or path.is_symlink()


def _glob(pattern: str) -> list[FoundRun]:
    """Return the runs and checkpoints that a pattern matches; other things it matches are listed as ignored."""
    runs, single, ignored = [], [], []
    for path in _matches(pattern):
        if path.is_file() and not _is_weight_file(path):
            ignored.append((path.name, "not a weight file"))
        elif is_unfinished(path.name):
            ignored.append((path.name, HALF_WRITTEN))
        elif path.is_dir() and not is_checkpoint(path) and not holds_steps(path):
            ignored.append((path.name, "no checkpoint in it"))
        elif (run := find_run(path)) is not None:
            runs.append(run)
        else:
            single.append(describe(path))
    if not runs and not single:
        what = ", ".join(name for name, _ in ignored[:3]) or "nothing"
        raise CheckpointError(f"Glob {pattern!r}: expected checkpoints, found {what}.", "Check the pattern.")
    if runs and not single:
        return [replace(runs[0], ignored=(*runs[0].ignored, *ignored)), *runs[1:]]
    return [*runs, FoundRun("", tuple(_sorted(single, f"Glob {pattern!r}")), None, tuple(ignored))]


def _matches(pattern: str) -> list[AnyPath]:
    path = located(pattern)
    found = path.glob() if isinstance(path, RemotePath) else map(Path, glob.glob(pattern))
    return sorted(found, key=lambda each: natural_key(str(each)))


def _is_weight_file(path: AnyPath) -> bool:
    """Whether a file that a glob matches is a checkpoint: torch files are if their name is a step's."""
    return path.suffix == ".safetensors" or (is_loose(path.name) and (path.suffix == ".ckpt" or is_step(stem(path))))


def _sorted(found: list[Found], where: str) -> list[Found]:
    if len({home(entry.path).parent for entry in found}) == 1:
        return in_order(found, where)
    counted(sorted({stage_folder(entry.path) for entry in found}), where)
    return found


def _join(name: str, parts: list[FoundRun]) -> FoundRun:
    """Make one run of the parts given under one name, or of all bare checkpoints."""
    if len(parts) == 1 and parts[0].folder is not None:
        return replace(parts[0], name=name or parts[0].name)
    flat = [entry for part in parts for entry in part.checkpoints]
    ignored = [entry for part in parts for entry in part.ignored]
    distinct: dict[AnyPath, Found] = {}
    for entry in flat:
        distinct.setdefault(entry.path.resolve(), entry)
    kept = list(distinct.values())
    if len(kept) < len(flat):
        ignored.append((f"({len(flat) - len(kept)} checkpoints)", "given twice"))
    bases = [base for base in (parts[0].base, *(entry for entry in kept if entry.is_base)) if base]
    rest = _step_by_step([entry for entry in kept if not entry.is_base])
    folders = list(dict.fromkeys(stage_folder(entry.path) for entry in kept))
    default = folders[0] if len(folders) == 1 else "run"
    base = bases[0] if bases else None
    return FoundRun(name or default, tuple(rest), base, tuple(ignored), parts[0].base_named)


def _step_by_step(found: list[Found]) -> list[Found]:
    """Keep stages in the order given, steps within one stage by number, and call stages after their folders."""
    folders = {home(entry.path).parent for entry in found}
    staged = [_with_stage(entry) for entry in found] if len(folders) > 1 else found
    groups = list(dict.fromkeys(_group(entry) for entry in staged))
    return sorted(staged, key=lambda entry: (groups.index(_group(entry)), _place(entry)))


def _group(entry: Found) -> tuple[AnyPath, str]:
    return home(entry.path).parent, entry.stage if entry.position is None else ""


def _place(entry: Found) -> int:
    return next((number for number in (entry.position, entry.step) if number is not None), -1)


def _with_stage(entry: Found) -> Found:
    if entry.stage not in ("", DEFAULT_STAGE):
        return entry
    stage = stage_folder(entry.path)
    return replace(entry, stage=stage, label=f"{stage}@{entry.step}" if entry.step is not None else entry.label)


# -- names ---------------------------------------------------------------------------------------------------------


def _unique_labels(found: tuple[Found, ...]) -> list[Found]:
    """Tell checkpoints of one label apart by the folder above them, then by their place in the run."""
    by_folder = _relabel(list(found), lambda entry, i: f"{stage_folder(entry.path)}/{entry.label}")
    return _relabel(by_folder, lambda entry, i: f"{entry.label} #{i}")


def _relabel(found: list[Found], new: Callable[[Found, int], str]) -> list[Found]:
    labels = [entry.label for entry in found]
    return [
        replace(entry, label=new(entry, i)) if labels.count(entry.label) > 1 else entry
        for i, entry in enumerate(found, 1)
    ]


def _distinct(runs: list[FoundRun]) -> list[FoundRun]:
    names = distinct([run.name for run in runs], [run.folder for run in runs])
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
