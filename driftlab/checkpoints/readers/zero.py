"""DeepSpeed ZeRO checkpoints, read without DeepSpeed by the structure that its ``zero_to_fp32.py`` documents.

Stages 1 and 2 keep the whole model, in the type it was trained in, under ``module`` of ``mp_rank_00_model_states.pt``.
Stage 3 cuts every parameter into one equal part a rank (the last one padded) and lays the fp32 parts of a rank one
after the other, in the order of ``param_shapes``, in the flat groups of its ``*_optim_states.pt``; parameters that are
not trained lie as fragments in ``*_model_states.pt``.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftlab.checkpoints.readers.statedict import read_state_dict
from driftlab.checkpoints.readers.stored import Stored, by_name
from driftlab.checkpoints.readers.torchzip import read_tree
from driftlab.checkpoints.remote import AnyPath, on_disk
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import made
from driftlab.errors import CheckpointError

_MODEL = re.compile(r"^(?:(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_)?mp_rank_(?P<mp>\d+)_model_states\.pt$")
_OPTIM = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt$")
_CONVERT = "Convert it with the zero_to_fp32.py that DeepSpeed left beside it (--safe_serialization)."
Tree = dict[str, Any]


def read_zero(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return the model of a ZeRO checkpoint, or None where the folder is none.

    Raises
    ------
    CheckpointError
        If ranks are missing or damaged, the model is cut for tensor parallelism, or sizes do not add up.
    """
    models = [match for name in names if (match := _MODEL.match(name))]
    optims = [match for name in names if (match := _OPTIM.match(name))]
    if not models and not optims:
        return None
    folder = on_disk(folder, "DeepSpeed ZeRO shards")
    if any(int(match["mp"]) for match in [*models, *optims]):
        raise CheckpointError(
            f"{folder}: expected a model that is not cut for tensor parallelism, found several mp_ranks.",
            "Convert it with DeepSpeed's ds_to_universal.py or the trainer's own tool.",
        )
    if not models:
        raise CheckpointError(f"{folder}: expected *_model_states.pt, found optimizer states only.", _CONVERT)
    whole = [match[0] for match in models if match["rank"] is None]
    return _whole_model(folder, whole[0]) if whole else _cut_model(folder, models, optims)


def _whole_model(folder: Path, name: str) -> Stored:
    tensors, digest, _ = read_state_dict(folder / name)
    note = "ZeRO stage 1 or 2: the weights the model ran with; the optimizer's fp32 copies of them are not read"
    return Stored(folder, by_name(folder, tensors.items()), digest, frozenset({name}), "optimizer state", (note,))


def _cut_model(folder: Path, models: list[re.Match[str]], optims: list[re.Match[str]]) -> Stored:
    world = len(models)
    digest = hashlib.sha256()
    trees: dict[str, list[Tree]] = {"model": [], "optim": []}
    used = set()
    for kind, matches in (("model", models), ("optim", optims)):
        present = {int(match["rank"]): match[0] for match in matches}
        missing = [rank for rank in range(max(len(models), len(optims))) if rank not in present]
        if missing:
            raise CheckpointError(
                f"{folder}: expected {kind} states of every rank, found {len(present)}; rank {missing[0]} is missing.",
                "Copy the checkpoint again, from every node.",
            )
        for rank in range(world):
            tree, header = read_tree(folder / present[rank])
            digest.update(header.encode())
            trees[kind].append(tree)
            used.add(present[rank])
    if any("autoep" in str(key).lower() for key in trees["model"][0]):
        raise CheckpointError(f"{folder}: its experts are partitioned in a way of their own (AutoEP).", _CONVERT)
    tensors = by_name(folder, _parameters(folder, trees["model"], trees["optim"]))
    note = f"put together from the fp32 ZeRO-3 parts of {world} ranks"
    return Stored(folder, tensors, digest.hexdigest(), frozenset(used), "training state", (note,))


def _parameters(folder: Path, models: list[Tree], optims: list[Tree]) -> Iterator[tuple[str, TensorInfo]]:
    first, world = models[0], len(models)
    found: dict[str, TensorInfo] = {}
    groups = [_groups(folder, optim, world) for optim in optims]
    offset = 0
    for name, shape in _shapes(folder, first.get("param_shapes")).items():
        size = math.ceil(math.prod(shape) / world)
        found[name] = _gather(folder, name, shape, [part for rank in groups for part in _span(rank, offset, size)])
        offset += size
    if any(offset != sum(group.numel for group in rank) for rank in groups):
        raise CheckpointError(
            f"{folder}: its parameters need {offset} entries a rank, the flat groups hold "
            f"{sum(group.numel for group in groups[0])}.",
            _CONVERT,
        )
    for name, shape in _shapes(folder, first.get("frozen_param_shapes") or {}).items():
        parts = [(model.get("frozen_param_fragments") or {}).get(name) for model in models]
        found[name] = _gather(folder, name, shape, [part for part in parts if isinstance(part, TensorInfo)])
    module = first.get("module") or {}
    for name in (first.get("buffer_names") or {}).values() if isinstance(first.get("buffer_names"), dict) else ():
        if isinstance(module.get(name), TensorInfo):
            found.setdefault(name, module[name])
    for alias, source in (first.get("shared_params") or {}).items():
        if source in found:
            found.setdefault(alias, found[source])
    yield from found.items()


def _groups(folder: Path, optim: Tree, world: int) -> list[TensorInfo]:
    state = optim.get("optimizer_state_dict")
    groups = state.get("fp32_flat_groups") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(groups, dict):
        raise CheckpointError(f"{folder}: expected the fp32 flat groups of ZeRO stage 3, found none.", _CONVERT)
    flat = [group for group in groups.values() if isinstance(group, TensorInfo) and len(group.shape) == 1]
    count = state.get("partition_count", world)
    count = max(count.values()) if isinstance(count, dict) and count else count
    if len(flat) != len(groups) or count != world:
        raise CheckpointError(f"{folder}: expected flat groups of {world} ranks, found those of {count}.", _CONVERT)
    return flat


def _shapes(folder: Path, found: Any) -> dict[str, tuple[int, ...]]:
    """Return name to shape; one dictionary, or one for each group of parameters."""
    if not isinstance(found, dict):
        raise CheckpointError(f"{folder}: expected the shapes of the parameters, found none.", _CONVERT)
    nested = [value for value in found.values() if isinstance(value, dict)]
    flat = {name: shape for group in nested for name, shape in group.items()} if nested else found
    if not all(isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) for shape in flat.values()):
        raise CheckpointError(f"{folder}: expected the shapes of the parameters, found something else.", _CONVERT)
    return flat


def _span(groups: list[TensorInfo], offset: int, size: int) -> Iterator[TensorInfo]:
    """Yield the pieces of entries ``offset`` to ``offset + size`` of groups that lie one after the other."""
    for group in groups:
        first, last = max(offset, 0), min(offset + size, group.numel)
        if first < last:
            yield group.slab(first, (last - first,))
        offset -= group.numel


def _gather(folder: Path, name: str, shape: tuple[int, ...], parts: list[TensorInfo]) -> TensorInfo:
    have = sum(part.numel for part in parts)
    if not parts or have < math.prod(shape) or len({part.dtype for part in parts}) > 1:
        raise CheckpointError(
            f"{folder}: tensor {name} of shape {list(shape)} needs {math.prod(shape)} entries, its parts have {have}.",
            _CONVERT,
        )
    return made(name, shape, parts[0].dtype, parts, partial(_unpad, math.prod(shape)))


def _unpad(numel: int, parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])[:numel]
