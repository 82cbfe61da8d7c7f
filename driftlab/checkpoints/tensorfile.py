"""One ``.safetensors`` file: its header, checked against the bytes on disk, and its tensors, read one by one.

The format is eight bytes of length, a JSON header and raw little-endian data. Headers are checked here before any
weight is read, and tensors are read by offset instead of through a memory map: that bounds memory to the tensor
asked for and does not stall on network disks (huggingface/safetensors issue 562).
"""

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from driftlab.checkpoints.disk import Stamp, is_name, read_piece, read_range, shown, stamp_of
from driftlab.checkpoints.remote import AnyPath
from driftlab.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
WEIGHT_DTYPES = ("F64", "F32", "F16", "BF16")
"""Stored types whose values are weights as they stand, without a scale."""

_BITS = {
    **{name: 8 * dtype.itemsize for name, dtype in DTYPES.items()},
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "C64": 64,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
_MAX_HEADER = 100_000_000  # the limit of the format's reference implementation
_FOREIGN = (
    (b"version ", "a Git LFS pointer", "Fetch the weights with `git lfs pull`."),
    (b"PK\x03\x04", "a PyTorch pickle", "Save the model with safe_serialization=True."),
    (b"GGUF", "a GGUF file", "Give the original bf16 or fp32 weights."),
    (b"<", "a web page", "The download failed: fetch the file again."),
)
"""First bytes of files that turn up under a wrong name: (bytes, what it is, next step)."""


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes
    ----------
    name : str
        Its name as stored.
    dtype : str
        The format's name of its type: ``BF16``, ``F32``, ...
    shape : tuple of int
        Its shape as stored.
    file : Path or RemotePath
        The file it lies in.
    start, stop : int
        Its bytes in that file.
    stamp : (int, int)
        Size and modification time, or what stands for it, of the file when its header was read.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: AnyPath
    start: int
    stop: int
    stamp: Stamp = field(default=(0, 0), repr=False)

    @property
    def nbytes(self) -> int:
        """Size on disk in bytes."""
        return self.stop - self.start

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def slab(self, first: int, shape: tuple[int, ...]) -> Self:
        """Return the tensor of ``shape`` made of consecutive entries from entry ``first`` on, row by row."""
        width = self.nbytes // self.numel if self.numel else 0
        start = self.start + first * width
        return replace(self, shape=shape, start=start, stop=start + math.prod(shape) * width)

    def rows(self, first: int, last: int) -> Self:
        """Return rows ``first`` up to ``last``, which lie together."""
        return self.slab(first * math.prod(self.shape[1:]), (last - first, *self.shape[1:]))

    def item(self, i: int) -> Self:
        """Return the i-th tensor of a stack."""
        return self.slab(i * math.prod(self.shape[1:]), self.shape[1:])

    def read(self) -> torch.Tensor:
        """Read the tensor, in its stored type, on the CPU.

        Raises
        ------
        CheckpointError
            If torch has no such type, or the file has changed since its header was read.
        """
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{self.file}: tensor {self.name} has type {self.dtype}, which torch cannot hold.")
        buffer = bytearray(self.nbytes)
        got, found = read_range(self.file, self.start, memoryview(buffer))
        if found == self.stamp and got < self.nbytes:
            raise _short(self.file, self.start, self.nbytes, got)
        if found != self.stamp:
            raise CheckpointError(
                f"{self.file}: expected the {self.stamp[0]} bytes whose header was read, found {found[0]} bytes "
                "written since; the file changed while it was measured.",
                "Wait until the checkpoint is complete, then measure again.",
            )
        if not buffer:
            return torch.empty(self.shape, dtype=DTYPES[self.dtype])
        return torch.frombuffer(buffer, dtype=DTYPES[self.dtype]).reshape(self.shape)


def read_header(file: AnyPath) -> tuple[dict[str, TensorInfo], str]:
    """Read and check the header of a ``.safetensors`` file without touching its weights.

    Parameters
    ----------
    file : Path or RemotePath
        The file.

    Returns
    -------
    tensors : dict of str to TensorInfo
        Every tensor, in file order.
    digest : str
        SHA-256 of the header bytes, hexadecimal: it identifies names, types, shapes and layout, not values.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated, overlong, or its header does not describe its bytes.
    """
    written = stamp_of(file)
    head = _read_start(file, 0, min(8, written[0]))
    length = int.from_bytes(head, "little")
    _check_length(file, written[0], head, length)
    raw = _read_start(file, 8, length)
    tensors = _parse(file, raw, 8 + length, written)
    return tensors, hashlib.sha256(raw).hexdigest()


def _read_start(file: AnyPath, start: int, count: int) -> bytes:
    raw = read_piece(file, start, count)
    if len(raw) < count:
        raise _short(file, start, count, len(raw))
    return raw


def _short(file: AnyPath, start: int, expected: int, found: int) -> CheckpointError:
    return CheckpointError(
        f"{file}: expected {expected} bytes from byte {start} on, found {found}; the reading was cut short.",
        "Check the disk or server, then measure again.",
    )


def _check_length(file: AnyPath, size: int, head: bytes, length: int) -> None:
    if size < 8:
        raise CheckpointError(f"{file}: expected a safetensors file, found {size} bytes.", "Copy or save it again.")
    if length > _MAX_HEADER or length < 2:
        for magic, what, step in _FOREIGN:
            if head.startswith(magic):
                raise CheckpointError(f"{file}: expected a safetensors file, found {what}.", step)
        raise CheckpointError(
            f"{file}: expected a safetensors file, but its first 8 bytes give a header of {length} bytes.",
            "It may be another format with the wrong suffix, or damaged.",
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{file}: expected at least {8 + length} bytes for its header, found {size}; the file is truncated.",
            "Copy or save it again.",
        )


def _parse(file: AnyPath, raw: bytes, data_start: int, stamp: Stamp) -> dict[str, TensorInfo]:
    try:
        header = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise TypeError
        _check_whole(file, header.pop("__metadata__", None))
        tensors = {name: _tensor(file, name, entry, data_start, stamp) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{file}: its header is not valid safetensors JSON; the file is damaged.") from None
    end = data_start
    for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.stop)):
        if tensor.start != end:
            raise CheckpointError(
                f"{file}: tensor {tensor.name} should start at byte {end}, its header says {tensor.start}; the file is "
                "damaged."
            )
        end = tensor.stop
    if end != stamp[0]:
        what = "truncated" if stamp[0] < end else "overlong"
        raise CheckpointError(
            f"{file}: expected {end} bytes by its header, found {stamp[0]}; the file is {what}.",
            "Copy or save it again.",
        )
    return tensors


def _check_whole(file: AnyPath, metadata: Any) -> None:
    """Refuse files whose tensors are parts of larger ones (torch.distributed.checkpoint, ``_hf_utils.py``)."""
    if isinstance(metadata, dict) and "DCP_SHARDING_INFO" in metadata:
        raise CheckpointError(
            f"{file}: holds parts of tensors, as torch's distributed checkpoints write them in safetensors.",
            "Join them with torch.distributed.checkpoint's consolidate_safetensors_files.",
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: the one that JSON would keep is not the one that other readers keep."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(text)


def _tensor(file: AnyPath, name: str, entry: dict[str, Any], data_start: int, stamp: Stamp) -> TensorInfo:
    dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, start, stop]
    if not is_name(name) or not all(type(n) is int and n >= 0 for n in numbers) or stop < start:
        raise ValueError(name)
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError(
            f"{file}: tensor {name} has the unknown type {shown(dtype)}.", "Save it as bf16, fp16 or fp32."
        )
    if math.prod(shape) * _BITS[dtype] != 8 * (stop - start):
        raise CheckpointError(
            f"{file}: tensor {name} of shape {list(shape)} and type {dtype} needs "
            f"{math.prod(shape) * _BITS[dtype] // 8} bytes, its header gives it {stop - start}; the file is damaged."
        )
    return TensorInfo(name, dtype, tuple(shape), file, data_start + start, data_start + stop, stamp)
