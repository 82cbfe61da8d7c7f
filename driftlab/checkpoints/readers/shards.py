"""Hugging Face folders: one file, an index with the shards it names, or numbered shards without an index.

The same rules hold for ``.safetensors`` and for the older ``pytorch_model.bin``, as the transformers library has them.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from driftlab.checkpoints.disk import read_json
from driftlab.checkpoints.readers.stored import Stored, by_name
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.errors import CheckpointError

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)$")
Header = Callable[[AnyPath], tuple[dict[str, TensorInfo], str, list[str]]]


@dataclass(frozen=True)
class Kind:
    """One family of files: suffix, the name of a whole model, the name of an index, and how a file is read."""

    suffix: str
    single: str
    index: str
    header: Header
    any_name: bool
    """Whether a lone file of another name is the model too."""


def read_shards(kind: Kind, folder: AnyPath, names: list[str]) -> Stored | None:
    """Return the model in a folder, or None where no file of this kind is one.

    Raises
    ------
    CheckpointError
        If it is not clear which files are the model, one is missing or damaged, or index and files disagree.
    """
    candidates = [name for name in names if is_candidate(kind, name)]
    index: dict[str, str] = {}
    if kind.single in candidates:
        chosen, why = [kind.single], f"{kind.single} is the model"
    elif kind.index in names:
        index = _read_index(folder / kind.index, kind.suffix)
        chosen, why = sorted(set(index.values())), "not named by the index"
    else:
        chosen, why = _unindexed(folder, candidates, kind)
    if not chosen:
        return None
    used = frozenset({*chosen, *([kind.index] if index else [])})
    doubts = list(_doubts(kind, names, chosen))
    return collect(kind, folder, [folder / name for name in chosen], index, used, why, doubts)


def is_candidate(kind: Kind, name: str) -> bool:
    """Whether a file of that name may be, or be part of, the model."""
    if not name.endswith(kind.suffix) or name.startswith((".", "adapter_", "optimizer")):
        return False
    stem = kind.single.removesuffix(kind.suffix)
    return kind.any_name or name == kind.single or (name.startswith(stem) and _SHARD.match(name) is not None)


def collect(
    kind: Kind,
    path: AnyPath,
    files: list[AnyPath],
    index: dict[str, str] | None = None,
    used: frozenset[str] = frozenset(),
    why: str = "",
    notes: list[str] | None = None,
) -> Stored:
    """Read the headers of the chosen files and check them against the index.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or the index places a tensor where it is not.
    """
    index, notes = index or {}, list(notes or [])
    digest = hashlib.sha256()
    found: list[tuple[str, TensorInfo]] = []
    extra = 0
    for file in files:
        if index and not file.exists() and not file.is_symlink():
            raise CheckpointError(
                f"{path}: the index names {len(files)} shards, {file.name} is missing.",
                "Copy or save the checkpoint again.",
            )
        tensors, header, remarks = kind.header(file)
        digest.update(header.encode())
        notes += [text for text in remarks if text not in notes]
        here = [(name, tensor) for name, tensor in tensors.items() if not index or index.get(name) == file.name]
        found += here
        extra += len(tensors) - len(here)
    _check_index(path, index, {name for name, _ in found})
    if extra:
        notes.append(f"{extra} stored tensors that the index does not place there were left out")
    return Stored(path, by_name(path, found), digest.hexdigest(), used, why, tuple(notes))


def one_of(name: str) -> list[str]:
    """Return the remark that a file is one shard of several, where its name says so."""
    match = _SHARD.match(name)
    several = match is not None and int(match["count"]) > 1
    return [f"{name} is one shard, given alone: the rest of the model is not compared"] if several else []


def _doubts(kind: Kind, names: list[str], chosen: list[str]) -> Iterator[str]:
    """Say where a folder holds more than one thing that could have been meant."""
    if kind.single in chosen and kind.index in names:
        yield f"{kind.single} was taken, as transformers does; {kind.index} and its shards beside it were not"
    counts = {int(match["count"]) for name in chosen if (match := _SHARD.match(name))}
    if len(counts) == 1 and len(chosen) < max(counts):
        yield f"the index names {len(chosen)} shards of {max(counts)}"


def _unindexed(folder: AnyPath, candidates: list[str], kind: Kind) -> tuple[list[str], str]:
    shards = [(match, name) for name in candidates if (match := _SHARD.match(name))]
    sets = sorted({(match["stem"], int(match["count"])) for match, _ in shards})
    if len(sets) > 1:
        raise CheckpointError(
            f"{folder}: expected one set of shards, found {len(sets)} and no index that says which: "
            + " and ".join(f"{stem}-*-of-{count:05d}{kind.suffix}" for stem, count in sets[:3])
            + ".",
            "Move the older set away.",
        )
    if sets:
        stem, count = sets[0]
        present = set(candidates)
        absent = (f"{stem}-{i:05d}-of-{count:05d}{kind.suffix}" for i in range(1, count + 1))
        missing = next((name for name in absent if name not in present), None)
        if missing or not count:
            raise CheckpointError(
                f"{folder}: expected {count} shards, found {len(shards)}; {missing} is missing.",
                "Copy or save the checkpoint again.",
            )
        return [f"{stem}-{i:05d}-of-{count:05d}{kind.suffix}" for i in range(1, count + 1)], "not one of the shards"
    if len(candidates) > 1:
        raise CheckpointError(
            f"{folder}: expected one model, found {len(candidates)} {kind.suffix.lstrip('.')} files "
            f"({', '.join(candidates[:3])}) and no index that says which.",
            "Give the one file as the checkpoint.",
        )
    return candidates, "not the model"


def _read_index(file: AnyPath, suffix: str) -> dict[str, str]:
    try:
        index = read_json(file)["weight_map"]
        valid = isinstance(index, dict) and all(isinstance(name, str) for name in index.values())
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid or not index:
        raise CheckpointError(f"{file}: expected an index with a weight_map, found none.", "Save the checkpoint again.")
    for name in set(index.values()):
        if PurePosixPath(name).name != name or not name.endswith(suffix) or "\0" in name:
            raise CheckpointError(
                f"{file}: expected shard names ending in {suffix} in the same folder, found {name[:80]!r}."
            )
    return dict(index)


def _check_index(path: AnyPath, index: dict[str, str], found: set[str]) -> None:
    absent = [name for name in index if name not in found]
    if absent:
        raise CheckpointError(
            f"{path}: the index places {absent[0]} in {index[absent[0]]}, whose header does not have it "
            f"({len(absent)} such tensors).",
            "Index and shards come from different saves: save the checkpoint again.",
        )
