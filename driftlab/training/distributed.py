"""Several processes, one gradient: the few collective operations that training needs.

Every process holds the whole model and takes its share of the prompts; gradients and counts are summed. Started by
``accelerate launch`` or ``torchrun``, which set the environment that is read here.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """One process among all of them; alone by default."""

    rank: int = 0
    size: int = 1

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


def join(device: torch.device) -> Ranks:
    """Join the other processes if a launcher started several."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
