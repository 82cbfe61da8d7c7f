"""The model among the objects of a ``torch.save`` file: under which key, and what lies beside it."""

from collections.abc import Iterator
from typing import Any

from driftlab.checkpoints.readers.inert import Inert
from driftlab.checkpoints.readers.torchzip import Shard, read_tree
from driftlab.checkpoints.remote import AnyPath, on_disk
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.errors import CheckpointError

_HOLDERS = ("state_dict", "model_state_dict", "model", "module", "weights", "params")
"""Keys under which trainers put the model, the most telling first."""
_LIGHTNING = "pytorch-lightning_version"


def read_state_dict(file: AnyPath) -> tuple[dict[str, TensorInfo], str, list[str]]:
    """Return the model's tensors in a ``torch.save`` file, its digest, and what to say about the choice.

    Raises
    ------
    CheckpointError
        If the file cannot be read, holds no model, or holds one rank's part of one.
    """
    file = on_disk(file, "torch weights")
    tree, digest = read_tree(file)
    model, where = find_model(file, tree)
    tensors, notes = dict(_plain(file, model, set())), []
    if where and len(tree) > 1:
        beside = ", ".join(key for key in map(str, tree) if key != where.partition(".")[0])
        notes.append(f"the model is {where}; beside it, not read: {beside[:80]}")
    if _LIGHTNING in tree:
        tensors, taken = _without_attribute(tensors)
        notes += [f"names without the Lightning module's attribute {taken!r}"] if taken else []
    other = [key for key, value in model.items() if not isinstance(value, (TensorInfo, dict))]
    if other:
        notes.append(f"{len(other)} entries of the state dict are no tensors: {', '.join(map(str, other[:3]))}")
    return tensors, digest, notes


def find_model(file: AnyPath, tree: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds the model, and the keys that lead to it.

    Raises
    ------
    CheckpointError
        If no dictionary of tensors is where one is expected.
    """
    node, path = tree, ""
    while not any(isinstance(value, (TensorInfo, Shard)) for value in node.values()):
        key = next((key for key in _HOLDERS if isinstance(node.get(key), dict) and node[key]), None)
        if key is None:
            found = ", ".join(map(str, list(tree)[:4])) or "nothing"
            raise CheckpointError(
                f"{file}: expected a state dict of tensors, found {found}.", "Save the model's state_dict."
            )
        node, path = node[key], f"{path}.{key}" if path else key
    return node, path


def _plain(file: AnyPath, model: dict[str, Any], seen: set[int], prefix: str = "") -> Iterator[tuple[str, TensorInfo]]:
    """Yield the tensors of nested dictionaries under dotted names; a dictionary that stands twice is walked once."""
    seen.add(id(model))
    for key, value in model.items():
        name = f"{prefix}{key}"
        if isinstance(value, TensorInfo):
            yield name, value
        elif isinstance(value, dict):
            if id(value) not in seen:
                yield from _plain(file, value, seen, f"{name}.")
        elif isinstance(value, Shard):
            raise CheckpointError(
                f"{file}: tensor {name} is one rank's part of a distributed tensor.",
                "Give the folder with the files of all ranks, or merge them with the trainer's own tool.",
            )
        elif isinstance(value, Inert):
            raise CheckpointError(
                f"{file}: expected a tensor under {name}, found an object of a class that is not loaded.",
                "Save the model's state_dict as plain tensors.",
            )


def _without_attribute(tensors: dict[str, TensorInfo]) -> tuple[dict[str, TensorInfo], str]:
    """Take off the attribute under which a Lightning module keeps the model, where all names begin with it."""
    first = {name.partition(".")[0] for name in tensors}
    if len(first) != 1 or not all("." in name for name in tensors):
        return tensors, ""
    (attribute,) = first
    return {name.partition(".")[2]: tensor for name, tensor in tensors.items()}, attribute
