"""Files of ``torch.save``: where each tensor lies in them, found without running anything they hold.

Such a file is a zip archive of uncompressed records: one pickle that describes the objects and one record of raw bytes
for each storage (https://docs.pytorch.org/docs/stable/notes/serialization.html). The pickle is read by torch's own
restricted unpickler (``weights_only=True``), which builds tensors and plain containers and calls nothing else. Its
storages are only mapped, not read; they are matched with the records, and the tensors are then read by offset.
"""

import hashlib
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftlab.checkpoints.disk import stamp_of
from driftlab.checkpoints.readers.archive import read_records
from driftlab.checkpoints.readers.inert import stand_ins
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import DTYPE_NAMES, made
from driftlab.errors import CheckpointError, first_line

_MAX_DEPTH = 50
_PAGE = 4096  # a memory map starts at a multiple of it
_AGAIN = "Copy or save it again."
_lock = threading.Lock()  # torch keeps its list of permitted classes for the whole process


@dataclass(frozen=True)
class Shard:
    """One rank's part of a distributed tensor.

    Attributes
    ----------
    local : TensorInfo
        What the rank holds.
    placements : tuple of (int or str)
        For each dimension of the mesh the tensor's dimension that is cut along it, or the name of another placement.
    mesh : tuple of int
        Shape of the mesh of ranks; empty where the ranks are not numbered in its order.
    shape : tuple of int
        Shape of the whole tensor.
    """

    local: TensorInfo
    placements: tuple[int | str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, ...]


Leaf = TensorInfo | Shard
Tree = dict[str, Any]


def read_tree(file: Path) -> tuple[Tree, str]:
    """Read the objects of a ``torch.save`` file, with tensors replaced by where they lie.

    Parameters
    ----------
    file : Path
        The file.

    Returns
    -------
    tree : dict
        Nested dictionaries, lists by number; a tensor is a :class:`TensorInfo`, a distributed one a :class:`Shard`.
    digest : str
        SHA-256 of the pickle: names, types and shapes, not values.

    Raises
    ------
    CheckpointError
        If the file is damaged, asks for anything but tensors and plain containers, or is no such file.
    """
    stamp = stamp_of(file)
    records, pickle = read_records(file, stamp[0])
    if pickle[:1] == b"\x80" and pickle[1:2] > b"\x03":
        raise CheckpointError(
            f"{file}: expected pickle protocol 2, found {pickle[1]}, which torch's restricted unpickler does not read.",
            "Save it again without pickle_protocol, or as safetensors.",
        )
    with _silent(), _lock:
        try:
            with stand_ins(file):
                content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        except CheckpointError:
            raise
        except Exception as error:  # whatever a damaged pickle makes the unpickler do is a damaged file
            raise CheckpointError(f"{file}: cannot be read as a torch file ({first_line(error)}).", _AGAIN) from None
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{file}: expected a dictionary of tensors, found a {type(content).__name__}.",
            "Save the model's state_dict.",
        )
    tensors = list(_tensors(content))
    base = _start_of_map(file, tensors, records)
    return _Locator(file, stamp, base).walk(content, ""), hashlib.sha256(pickle).hexdigest()


# -- from storages to bytes of the file ---------------------------------------------------------------------------


def _tensors(node: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested containers, each container once."""
    left, seen = [node], set()
    while left:
        found = left.pop()
        if isinstance(found, Tensor):
            yield local_of(found)
        elif isinstance(found, (Mapping, list, tuple)) and id(found) not in seen:
            seen.add(id(found))
            left.extend(found.values() if isinstance(found, Mapping) else found)


def local_of(tensor: Tensor) -> Tensor:
    """Return the plain tensor that a distributed one or a parameter wraps."""
    inner = getattr(tensor, "_local_tensor", tensor)
    return inner.detach() if isinstance(inner, Tensor) else tensor


def _start_of_map(file: Path, tensors: list[Tensor], records: dict[int, int]) -> int:
    """Return the address of the file's first byte in the memory map: the one at which every storage is a record.

    A storage whose size is not that of its record, as a forged pickle may claim, fits nowhere and is refused.
    """
    storages = {(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors if t.is_cpu}
    storages.discard((0, 0))
    if not storages:
        return 0
    pointer, nbytes = min(storages, key=lambda pair: Counter(records.values())[pair[1]])
    fits = [
        base
        for base in (pointer - start for start, length in records.items() if length == nbytes)
        if base % _PAGE == 0 and all(records.get(ptr - base) == n for ptr, n in storages)
    ]
    if len(fits) > 1:
        fits = [base for base in fits if all(_same_bytes(file, ptr - base, t) for t in tensors for ptr in [_start(t)])]
    if not fits:
        raise CheckpointError(f"{file}: its storages are not as long as its records; the file is damaged.", _AGAIN)
    return fits[0]


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_bytes(file: Path, start: int, tensor: Tensor) -> bool:
    """Compare a storage with the bytes at a place of the file; needed only where two places fit all sizes."""
    storage = tensor.untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8).set_(storage)
    with file.open("rb") as handle:
        handle.seek(start)
        return handle.read(storage.nbytes()) == raw.numpy().tobytes()


class _Locator:
    """Replaces the tensors of nested containers; a container that is mentioned twice is walked once."""

    def __init__(self, file: Path, stamp: tuple[int, int], base: int) -> None:
        self.file, self.stamp, self.base = file, stamp, base
        self.done: dict[int, Any] = {}

    def walk(self, node: Any, path: str, depth: int = 0) -> Any:
        if isinstance(node, Tensor):
            return _locate(self.file, self.stamp, self.base, node, path)
        if isinstance(node, torch.Size):
            return tuple(node)
        if not isinstance(node, (Mapping, list, tuple)):
            return node
        if id(node) not in self.done:
            if depth > _MAX_DEPTH:
                raise CheckpointError(f"{self.file}: its containers are nested more than {_MAX_DEPTH} deep.", _AGAIN)
            pairs = node.items() if isinstance(node, Mapping) else enumerate(node)
            self.done[id(node)] = None  # a container inside itself holds nothing more
            self.done[id(node)] = {
                key: self.walk(child, f"{path}.{key}" if path else str(key), depth + 1) for key, child in pairs
            }
        return self.done[id(node)]


def _locate(file: Path, stamp: tuple[int, int], base: int, tensor: Tensor, path: str) -> Leaf:
    local = local_of(tensor)
    if not local.is_cpu or local.layout != torch.strided or local.dtype not in DTYPE_NAMES or local.is_quantized:
        raise CheckpointError(
            f"{file}: tensor {path} is of a kind that is not read ({local.dtype}, {local.layout}, {local.device}).",
            "Save it as a plain bf16, fp16 or fp32 tensor.",
        )
    name, width = DTYPE_NAMES[local.dtype], local.dtype.itemsize
    storage = local.untyped_storage()
    start = storage.data_ptr() - base if storage.nbytes() else 0
    if local.numel() * width > storage.nbytes():
        raise CheckpointError(
            f"{file}: tensor {path} of shape {list(local.shape)} repeats {storage.nbytes()} stored bytes; expanded "
            "tensors are not read.",
            "Save a contiguous copy.",
        )
    if local.is_contiguous():
        first = start + int(local.storage_offset()) * width
        info = TensorInfo(path, name, tuple(local.shape), file, first, first + local.numel() * width, stamp)
    else:
        count = storage.nbytes() // width
        whole = TensorInfo(path, name, (count,), file, start, start + count * width, stamp)
        strides = partial(_strided, tuple(local.shape), tuple(local.stride()), int(local.storage_offset()))
        info = made(path, tuple(local.shape), name, [whole], strides)
    if not hasattr(tensor, "_local_tensor"):
        return info
    return _shard(info, tensor)


def _shard(local: TensorInfo, tensor: Any) -> Shard:
    ranks = tensor.device_mesh.mesh
    ordered = torch.equal(ranks.flatten().long(), torch.arange(ranks.numel()))
    kinds = [(type(placement).__name__, placement) for placement in tensor.placements]
    placements = tuple(placement.dim if kind == "Shard" else kind for kind, placement in kinds)
    return Shard(local, placements, tuple(ranks.shape) if ordered else (), tuple(tensor.shape))


def _strided(shape: tuple[int, ...], stride: tuple[int, ...], offset: int, parts: list[Tensor]) -> Tensor:
    return parts[0].as_strided(shape, stride, offset).contiguous()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep torch from remarking on device meshes without processes, and on pickle protocols other than its own."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before
