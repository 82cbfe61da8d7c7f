"""One file a format: each turns files into named tensors that are read later, one by one.

A reader takes a folder and the names of its files, and returns what it found, or None where the format is not there.
"""

from collections.abc import Callable

from driftlab.checkpoints.readers.dcp import read_dcp
from driftlab.checkpoints.readers.fsdp import read_fsdp
from driftlab.checkpoints.readers.shards import Kind, read_shards
from driftlab.checkpoints.readers.statedict import read_state_dict
from driftlab.checkpoints.readers.stored import Stored
from driftlab.checkpoints.readers.zero import read_zero
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo, read_header
from driftlab.checkpoints.transfer import UNKNOWN

Reader = Callable[[AnyPath, list[str]], Stored | None]


_UNSTAMPED = "its server tells neither a digest nor a time of files: a change that keeps their size is not noticed"


def _safetensors_header(file: AnyPath) -> tuple[dict[str, TensorInfo], str, list[str]]:
    tensors, digest = read_header(file)
    unknown = any(info.stamp[1] == UNKNOWN for info in tensors.values())
    return tensors, digest, [_UNSTAMPED] if unknown else []


SAFETENSORS = Kind(
    ".safetensors", "model.safetensors", "model.safetensors.index.json", _safetensors_header, any_name=True
)
TORCH = Kind(".bin", "pytorch_model.bin", "pytorch_model.bin.index.json", read_state_dict, any_name=False)


def read_safetensors(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return a model in ``.safetensors`` files; see :func:`read_shards`."""
    return read_shards(SAFETENSORS, folder, names)


def read_torch(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return a model in ``pytorch_model*.bin`` files; see :func:`read_shards`."""
    return read_shards(TORCH, folder, names)


READERS: tuple[Reader, ...] = (read_safetensors, read_torch, read_fsdp, read_dcp, read_zero)
"""In order of precedence: the first that finds its format in any of the places of a checkpoint is taken.

A lone ``torch.save`` file under any name comes last, where nothing else is there (:mod:`.loose`)."""
