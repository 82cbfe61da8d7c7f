"""Several processes, one gradient: the few collective operations that training needs.

Every process takes its share of the prompts; gradients and counts are summed. Started by ``accelerate launch`` or
``torchrun``, which set the environment that is read here. Each process holds the whole model, or, sharded (FSDP2), its
part of every weight; then weights come together layer by layer while they are used, and all processes must call the
model equally often, whatever they have to say.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.errors import UsageError

# What a sharded model calls the part below its output layer, and the output layer.
GATHERED_READ, GATHERED_JUDGE = "gathered_read", "gathered_judge"


@dataclass(frozen=True)
class Ranks:
    """One process among all of them; alone by default."""

    rank: int = 0
    size: int = 1
    sharded: bool = False

    @property
    def leads(self) -> bool:
        """Whether this process writes files and evaluates."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in one message."""
        if self.size > 1 and tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            torch.distributed.all_reduce(flat)
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def total(self, number: float) -> float:
        """Return the sum of a number over the processes."""
        return math.fsum(self.gather(number))

    def add_parts(self, number: float) -> float:
        """Return the sum of a number over the processes where each knows it for its part of the weights only."""
        return self.total(number) if self.sharded else number

    def most(self, number: int) -> int:
        """Return the largest of a number over the processes where all must take equally many turns."""
        return max(self.gather(number)) if self.sharded else number

    def gather(self, item: Any) -> list[Any]:
        """Return every process's item, in rank order."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(items, item)
        return items

    def wait(self) -> None:
        """Let all processes arrive."""
        if self.size > 1:
            torch.distributed.barrier()


def join(device: torch.device, fsdp: str = "off") -> Ranks:
    """Join the other processes if a launcher started several.

    Parameters
    ----------
    device : torch.device
        Where to compute: decides how the processes talk.
    fsdp : {"auto", "on", "off"}
        Whether weights are sharded; ``auto`` where ``accelerate launch`` asks for FSDP.

    Raises
    ------
    UsageError
        If weights are to be sharded over a single process, or moved off their device.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        if fsdp == "on":
            raise UsageError(
                "fsdp: expected several processes to share the weights, found one.",
                "Start the command with torchrun or accelerate launch, or leave fsdp at auto.",
            )
        return Ranks()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    sharded = fsdp == "on" or (fsdp == "auto" and asked)
    if sharded and os.environ.get("FSDP_OFFLOAD_PARAMS", "").lower() in ("1", "true"):
        raise UsageError(
            "FSDP: expected weights that stay on their device, found offloading asked for in accelerate's settings.",
            "Set fsdp_offload_params to false.",
        )
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), sharded)


def shard(model: Any, device: torch.device) -> None:
    """Give every process its part of each weight of a causal language model, moved to ``device``.

    Layers are units of their own; embeddings, last norm and output layer are one more. What is called besides the
    model itself (its part below the output layer, and the output layer) gets a name that gathers that last unit.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # so that outside a call it is always sharded
    methods: dict[str, Callable[..., Any]] = {
        GATHERED_READ: lambda self, **inputs: self.get_decoder()(**inputs).last_hidden_state,
        GATHERED_JUDGE: lambda self, hidden: self.get_output_embeddings()(hidden),
    }
    for name, method in methods.items():
        setattr(model, name, MethodType(method, model))
        register_fsdp_forward_method(model, name)


def local(tensor: Any) -> Tensor:
    """Return this process's part of a tensor, in the same memory; all of it where it is not sharded."""
    part: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor
    return part


def whole(value: Any) -> Any:
    """Return a tensor, or a nest of lists and dicts of them, put together from all processes, on the CPU if sharded."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value.full_tensor().cpu() if _is_sharded(value) else value


def take(target: Tensor, saved: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    local(target).copy_(local(like(saved, target)))


def like(saved: Tensor, target: Any) -> Tensor:
    """Return a whole tensor as the same process's part as in ``target``."""
    if not _is_sharded(target) or saved.shape != target.shape:  # a step count has no parts
        return saved
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved.to(target.device), target.device_mesh, target.placements)


def _is_sharded(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def _layers(model: Any) -> list[nn.Module]:
    """Return the transformer layers: the longest list of modules below the output layer."""
    lists = [list(module) for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])
