"""FSDP shards as verl writes them: ``model_world_size_W_rank_R.pt``, one state dict a rank, put together on the fly.

Entries are distributed tensors, whose placements say how they are cut (verl, ``model_merger/fsdp_model_merger.py``;
torch.distributed.tensor), or plain tensors: buffers that every rank holds, or parts along the first dimension.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from driftlab.checkpoints.readers.stored import Stored, by_name
from driftlab.checkpoints.readers.torchzip import Leaf, Shard, read_tree
from driftlab.checkpoints.remote import AnyPath, on_disk
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import joined
from driftlab.errors import CheckpointError

_FILE = re.compile(r"^model_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt$")


def read_fsdp(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return the model of all ranks, or None where the folder holds no such shards.

    Raises
    ------
    CheckpointError
        If ranks are missing or damaged, hold different tensors, or are cut in a way that is not put together here.
    """
    matches = [match for name in names if (match := _FILE.match(name))]
    if not matches:
        return None
    folder = on_disk(folder, "verl FSDP shards")
    worlds = sorted({int(match["world"]) for match in matches})
    if len(worlds) > 1:
        raise CheckpointError(
            f"{folder}: expected the shards of one world size, found those of {' and '.join(map(str, worlds[:3]))}.",
            "Move the older set away.",
        )
    world = worlds[0]
    present = {int(match["rank"]): match[0] for match in matches}
    missing = next((rank for rank in range(max(world, 1)) if rank not in present), None)
    if missing is not None or not world:
        raise CheckpointError(
            f"{folder}: expected the shards of {world} ranks, found {len(present)}; rank {missing} is missing.",
            "Copy the checkpoint again, from every node.",
        )
    files = [folder / present[rank] for rank in range(world)]
    digest = hashlib.sha256()
    ranks: list[dict[str, Leaf]] = []
    for file in files:
        tree, header = read_tree(file)
        digest.update(header.encode())
        ranks.append({name: leaf for name, leaf in tree.items() if isinstance(leaf, (TensorInfo, Shard))})
        if set(ranks[0]) != set(ranks[-1]):
            odd = sorted(set(ranks[0]) ^ set(ranks[-1]))
            raise CheckpointError(
                f"{file}: expected the tensors of {files[0].name}, found {len(odd)} others or missing ({odd[0]}).",
                "The ranks come from different saves: copy the checkpoint again.",
            )
    tensors = by_name(folder, _whole(folder, ranks))
    notes = (f"put together from the FSDP shards of {world} ranks",)
    return Stored(folder, tensors, digest.hexdigest(), frozenset(map(str, present.values())), "not a shard", notes)


def _whole(folder: Path, ranks: list[dict[str, Leaf]]) -> Iterator[tuple[str, TensorInfo]]:
    distributed = any(isinstance(leaf, Shard) for leaf in ranks[0].values())
    copies = distributed or _are_copies(ranks)
    for name in ranks[0]:
        parts = [rank[name] for rank in ranks]
        shards = [part for part in parts if isinstance(part, Shard)]
        plain = [part for part in parts if isinstance(part, TensorInfo)]
        if shards and plain:
            raise CheckpointError(f"{folder}: tensor {name} is distributed on some ranks and plain on others.")
        if shards:
            yield name, _merge(folder, name, shards)
        elif copies or not plain[0].shape:
            yield name, plain[0]
        else:
            yield name, _join(folder, name, plain, 0)


def _are_copies(ranks: list[dict[str, Leaf]]) -> bool:
    """Whether plain tensors are the same on every rank: told by the first matrix."""
    name = next((n for n, leaf in ranks[0].items() if isinstance(leaf, TensorInfo) and len(leaf.shape) == 2), None)
    if len(ranks) == 1 or name is None:
        return True
    first, second = ranks[0][name], ranks[1][name]
    assert isinstance(first, TensorInfo)
    assert isinstance(second, TensorInfo)
    return first.shape == second.shape and torch.equal(first.read(), second.read())


def _merge(folder: Path, name: str, shards: list[Shard]) -> TensorInfo:
    first = shards[0]
    cut = [(axis, dim) for axis, dim in enumerate(first.placements) if isinstance(dim, int)]
    others = [kind for kind in first.placements if not isinstance(kind, int) and kind != "Replicate"]
    if math.prod(first.mesh) != len(shards) or others or len(cut) > 1:
        placed = ", ".join(f"Shard({p})" if isinstance(p, int) else p for p in first.placements)
        raise CheckpointError(
            f"{folder}: tensor {name} is placed as ({placed}) on a mesh of {list(first.mesh)} ranks; expected one cut "
            f"dimension over {len(shards)} ranks in order.",
            "Merge it with `python -m verl.model_merger merge --backend fsdp`.",
        )
    if not cut:
        return first.local
    axis, dim = cut[0]
    stride = math.prod(first.mesh[axis + 1 :])  # ranks whose other coordinates are 0 hold one copy of every part
    parts = [shards[i * stride].local for i in range(first.mesh[axis])]
    whole = _join(folder, name, parts, dim)
    if whole.shape != first.shape:
        raise CheckpointError(
            f"{folder}: tensor {name} should have shape {list(first.shape)}, its parts make {list(whole.shape)}.",
            "The ranks come from different saves: copy the checkpoint again.",
        )
    return whole


def _join(folder: Path, name: str, parts: list[TensorInfo], dim: int) -> TensorInfo:
    around = {(part.dtype, part.shape[:dim], part.shape[dim + 1 :]) for part in parts if part.numel}
    if len(around) > 1 or any(len(part.shape) <= dim for part in parts):
        raise CheckpointError(f"{folder}: the ranks' parts of tensor {name} do not fit each other.")
    filled = [part for part in parts if part.numel] or parts[:1]
    return filled[0] if len(filled) == 1 else joined(name, filled, dim)
