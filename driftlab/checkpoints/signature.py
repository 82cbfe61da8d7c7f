"""What tells that files are still those that were read: names, sizes and times of writing."""

from collections.abc import Iterator
from typing import Any

from driftlab.checkpoints.lowrank import LowRank
from driftlab.checkpoints.remote import AnyPath, RemotePath
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import Made
from driftlab.checkpoints.weights import Weights, open_weights
from driftlab.errors import CheckpointError

Signature = tuple[tuple[str, int, int], ...]
"""Name, size and time of writing of the files that hold a model."""


def signature(weights: Weights) -> Signature:
    """Return name, size and time of writing of the files that hold the tensors, an adapter's base included."""
    stamps: dict[str, tuple[int, int]] = {}
    for tensor in weights.tensors.values():
        for part in _parts(tensor):
            stamps[f"{part.file.parent.name}/{part.file.name}"] = part.stamp
    return tuple((name, *stamps[name]) for name in sorted(stamps))


def _parts(tensor: TensorInfo) -> Iterator[TensorInfo]:
    """Yield a tensor and those it is made of, which may lie in other files."""
    yield tensor
    made_of = tensor.parts if isinstance(tensor, Made) else ()
    for part in (tensor.A, tensor.B) if isinstance(tensor, LowRank) else made_of:
        yield from _parts(part)


def current(path: AnyPath, base: Weights | None = None) -> Signature | None:
    """Return the signature of what lies at ``path`` now; None where that is no whole model."""
    try:
        return signature(open_weights(path, base))
    except (CheckpointError, OSError):
        return None


def rough(path: AnyPath) -> Signature:
    """Return what can be said of files that do not make a model yet."""
    found = []
    for file in sorted(_within(path)) if path.is_dir() else [path]:
        try:
            found.append((file.name, *_status(file)))
        except OSError:  # gone since it was listed
            continue
    return tuple(found)


def _within(folder: AnyPath) -> list[Any]:
    return list(folder.iterdir()) if isinstance(folder, RemotePath) else list(folder.rglob("*"))


def _status(file: AnyPath) -> tuple[int, int]:
    if isinstance(file, RemotePath):
        return file.entry().stamp
    found = file.stat()
    return found.st_size, found.st_mtime_ns
