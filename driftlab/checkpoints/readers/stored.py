"""What a reader hands over, and the checks on names that all of them share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from driftlab.checkpoints.disk import is_name, shown
from driftlab.checkpoints.names import natural_key, unwrap
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.errors import CheckpointError


@dataclass(frozen=True)
class Stored:
    """The model as it lies in files.

    Attributes
    ----------
    path : Path
        The folder of the files, or the single file.
    tensors : dict of str to TensorInfo
        By unwrapped name, in natural order, in the layout of the files.
    digest : str
        SHA-256 over all headers: names, types, shapes and places, not values.
    used : frozenset of str
        Names of the files taken.
    why : str
        Why other weight files in the folder were not.
    notes : tuple of str
        Facts a user should know about the choice.
    """

    path: AnyPath
    tensors: dict[str, TensorInfo]
    digest: str
    used: frozenset[str] = frozenset()
    why: str = ""
    notes: tuple[str, ...] = field(default=())


def by_name(path: AnyPath, found: Iterable[tuple[str, TensorInfo]]) -> dict[str, TensorInfo]:
    """Return tensors by unwrapped name in natural order.

    Raises
    ------
    CheckpointError
        If there are none, or two have the same name.
    """
    tensors: dict[str, TensorInfo] = {}
    for name, tensor in found:
        key = unwrap(name)
        if not is_name(key):
            raise CheckpointError(
                f"{path}: expected names of tensors, found {shown(name)}.", "Save the checkpoint again."
            )
        if key in tensors:
            raise CheckpointError(
                f"{path}: tensor {key} is stored twice, in {tensors[key].file.name} and {tensor.file.name}."
            )
        tensors[key] = tensor
    if not tensors:
        raise CheckpointError(f"{path}: expected tensors, found a header without any.", "Save the checkpoint again.")
    return dict(sorted(tensors.items(), key=lambda item: natural_key(item[0])))
