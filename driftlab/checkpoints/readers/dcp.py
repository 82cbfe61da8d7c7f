"""torch distributed checkpoints: ``.metadata`` and ``.distcp`` files, read one tensor at a time.

``.metadata`` is a pickle of plain records: for every tensor its type, size and chunks, and for every chunk a range of
bytes in a ``.distcp`` file, which is itself a small ``torch.save`` file (torch.distributed.checkpoint,
``metadata.py`` and ``filesystem.py``). The pickle is read by an unpickler that knows stand-ins only and calls nothing.
"""

import hashlib
import io
import math
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from driftlab.checkpoints.disk import stamp_of
from driftlab.checkpoints.readers.inert import Inert
from driftlab.checkpoints.readers.stored import Stored, by_name
from driftlab.checkpoints.remote import AnyPath, on_disk
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import DTYPE_NAMES, made
from driftlab.errors import CheckpointError, first_line

_MODEL = ("model", "state_dict", "model_state_dict", "module", "app")
_MAX_METADATA = 1 << 30
_AGAIN = "Copy or save the checkpoint again."


def read_dcp(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return the model in a distributed checkpoint, or None where the folder is none.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged, or a tensor is stored in a way that is not read here.
    """
    data = [name for name in names if name.endswith(".distcp")]
    if not data:
        return None
    folder = on_disk(folder, "torch distributed checkpoints")
    file = folder / ".metadata"
    if not file.exists():
        raise CheckpointError(f"{folder}: expected .metadata beside {data[0]}, found none.", _AGAIN)
    raw, metadata = _metadata(file)
    entries = _state(metadata, "state_dict_metadata")
    paths = metadata.get("planner_data")
    places = {key: (info, index) for index, info in _state(metadata, "storage_data").items() if (key := _key(index))}
    kept, others = _model_entries(entries, paths if isinstance(paths, Mapping) else {})
    found = [(name, _tensor(folder, key, entries[key], places)) for name, key in kept.items()]
    notes = [f"{others} entries beside the model (optimizer, counters) were not read"] if others else []
    tensors = by_name(folder, ((name, tensor) for name, tensor in found if tensor is not None))
    return Stored(folder, tensors, hashlib.sha256(raw).hexdigest(), frozenset(data), "not the model", tuple(notes))


class _Unpickler(pickle._Unpickler):
    """Builds stand-ins for the records of torch's checkpoints, sizes and dtypes, and refuses every other name.

    The unpickler written in Python keeps its memo in a dictionary, so that a damaged file cannot ask for memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("torch", "Size"):
            return _size
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module.startswith(("torch.distributed.checkpoint.", "pathlib")) or module == "torch.serialization":
            return Inert
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _size(numbers: Any = ()) -> tuple[int, ...]:
    return tuple(int(n) for n in numbers)


def _metadata(file: Path) -> tuple[bytes, dict[str, Any]]:
    if stamp_of(file)[0] > _MAX_METADATA:
        raise CheckpointError(f"{file}: expected at most {_MAX_METADATA} bytes, found {stamp_of(file)[0]}.")
    try:
        raw = file.read_bytes()
        content = _Unpickler(io.BytesIO(raw)).load()
        return raw, dict(content.state)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # a damaged pickle fails in every way
        raise CheckpointError(
            f"{file}: expected the metadata of a torch distributed checkpoint, found a damaged or foreign pickle "
            f"({first_line(error)}).",
            _AGAIN,
        ) from None


def _state(holder: Any, name: str) -> dict[Any, Any]:
    state = holder if isinstance(holder, dict) else getattr(holder, "state", None)
    value = state.get(name) if isinstance(state, dict) else None
    return dict(value) if isinstance(value, Mapping) else {}


def _field(record: Any, name: str) -> Any:
    state = getattr(record, "state", None)
    return state.get(name) if isinstance(state, dict) else None


def _key(index: Any) -> tuple[str, tuple[int, ...]] | None:
    name, offset = _field(index, "fqn"), _field(index, "offset")
    return (name, tuple(offset)) if isinstance(name, str) and isinstance(offset, tuple) else None


def _model_entries(entries: dict[Any, Any], paths: Mapping[Any, Any]) -> tuple[dict[str, str], int]:
    """Return the model's entries, name to key, and how many others there are; without any wrapper all are the model."""
    split = {key: [str(part) for part in paths.get(key, ())] or [str(key)] for key in entries if _chunks(entries[key])}
    tops = {parts[0] for parts in split.values() if len(parts) > 1}
    wrapper = next((name for name in _MODEL if name in tops), None)
    if wrapper is None:
        dotted = _dotted_wrapper([str(key) for key in split])
        kept = {str(key): key for key in split if str(key).startswith(dotted)}
        return kept, len(entries) - len(kept)
    kept = {".".join(parts[1:]): key for key, parts in split.items() if parts[0] == wrapper and len(parts) > 1}
    return kept, len(entries) - len(kept)


def _dotted_wrapper(names: list[str]) -> str:
    """Return the prefix of the model's names where an optimizer's lie beside them, else an empty one."""
    if not any(name.startswith("optim") for name in names):
        return ""
    return next((f"{top}." for top in _MODEL if any(name.startswith(f"{top}.") for name in names)), "")


def _chunks(entry: Any) -> list[Any]:
    chunks = _field(entry, "chunks")
    return chunks if isinstance(chunks, list) else []


def _tensor(folder: Path, key: str, entry: Any, places: dict[Any, tuple[Any, Any]]) -> TensorInfo:
    properties = getattr(_field(entry, "properties"), "state", None)
    dtype = properties[0] if isinstance(properties, tuple) and properties else None
    if isinstance(properties, dict):
        dtype = properties.get("dtype")
    shape = _field(entry, "size")
    if dtype not in DTYPE_NAMES or not isinstance(shape, tuple):
        raise CheckpointError(f"{folder}: tensor {key} is of a kind that is not read ({dtype}).")
    boxes = [(tuple(_field(c, "offsets") or ()), tuple(_field(c, "sizes") or ())) for c in _chunks(entry)]
    if not _tile(boxes, shape):
        raise CheckpointError(f"{folder}: the chunks of tensor {key} do not fill its shape {list(shape)}.", _AGAIN)
    parts = [_bytes(folder, key, places.get((key, offsets))) for offsets, _ in boxes]
    return made(key, shape, DTYPE_NAMES[dtype], list(parts), partial(_assemble, dtype, shape, boxes))


def _tile(boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, ...]) -> bool:
    """Whether boxes lie inside the shape, apart from each other, and fill it."""
    for offsets, sizes in boxes:
        if not len(offsets) == len(sizes) == len(shape):
            return False
        if any(o < 0 or s < 0 or o + s > n for o, s, n in zip(offsets, sizes, shape, strict=True)):
            return False
    return len({box[0] for box in boxes}) == len(boxes) and sum(math.prod(s) for _, s in boxes) == math.prod(shape)


def _bytes(folder: Path, key: str, place: tuple[Any, Any] | None) -> TensorInfo:
    name, start, length, coded = (
        _field(place[0], field) if place else None
        for field in ("relative_path", "offset", "length", "transform_descriptors")
    )
    if not isinstance(name, str) or not isinstance(start, int) or not isinstance(length, int) or min(start, length) < 0:
        raise CheckpointError(f"{folder}: the metadata does not place every chunk of tensor {key}.", _AGAIN)
    if PurePosixPath(name).name != name:
        raise CheckpointError(f"{folder}: expected data files in the same folder, found {name[:80]!r}.")
    if coded:
        raise CheckpointError(
            f"{folder}: tensor {key} is stored through {coded}, which is not undone here.",
            "Convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save.",
        )
    file = folder / name
    stamp = stamp_of(file)
    if start + length > stamp[0]:
        raise CheckpointError(f"{file}: expected at least {start + length} bytes, found {stamp[0]}; truncated.", _AGAIN)
    return TensorInfo(key, "U8", (length,), file, start, start + length, stamp)


def _assemble(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]],
    parts: list[Tensor],
) -> Tensor:
    whole = torch.empty(shape, dtype=dtype)
    for (offsets, sizes), part in zip(boxes, parts, strict=True):
        chunk = _load(part)
        if tuple(chunk.shape) != sizes or chunk.dtype != dtype:
            raise ValueError(f"a chunk of shape {list(sizes)} holds {list(chunk.shape)} of {chunk.dtype}")
        whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] = chunk
    return whole


def _load(part: Tensor) -> Tensor:
    raw = part.numpy().tobytes()
    if raw[:2] != b"PK":
        raise ValueError("a chunk is no torch file")
    try:
        chunk = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(first_line(error)) from None
    if not isinstance(chunk, Tensor):
        raise ValueError("a chunk is no tensor")
    return chunk.detach()
