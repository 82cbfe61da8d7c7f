"""The weights of a live model: which are trained, under which plain names, and copies of them taken between steps."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.checkpoints.names import unwrap
from driftlab.errors import UsageError

_PEFT = re.compile(r"^base_model\.model\.|\.base_layer(?=\.)|\.modules_to_save\.[^.]+(?=\.)")


@dataclass(frozen=True)
class Site:
    """One trained matrix of the model.

    Attributes
    ----------
    weight : Parameter of shape (m, n)
        The matrix itself, or what an adapter adds to.
    adapter : module or None
        The peft layer around it; None where the matrix itself is trained.
    """

    weight: Tensor
    adapter: Any = None


@dataclass(frozen=True)
class Copied:
    """A matrix as it was between two steps: whole, or as the factors of its adapter, B A added to a frozen weight."""

    whole: Tensor | None = None
    B: Tensor | None = None
    A: Tensor | None = None


@dataclass(frozen=True)
class Found:
    """The trained matrices of a model, and why others are not among them."""

    sites: dict[str, Site]
    left_out: dict[str, str] = field(default_factory=dict)


def plain_name(name: str) -> str:
    """Return the name a saved model would give a parameter, without what trainers and peft wrap around it.

    Examples
    --------
    >>> plain_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    return _PEFT.sub("", unwrap(name))


def find_sites(model: nn.Module) -> Found:
    """Find the matrices of a model that training can move.

    Raises
    ------
    UsageError
        If the parameters are sharded over processes, or nothing is trained.
    """
    modules = dict(model.named_modules())
    sites, left_out = {}, {}
    for name, weight in model.named_parameters():
        if ".lora_" in name or ".original_module." in name:
            continue
        _require_whole(name, weight)
        owner = modules.get(name.rpartition(".base_layer.")[0]) if ".base_layer." in name else None
        adapter = owner if hasattr(owner, "lora_A") and getattr(owner, "lora_A", None) else None
        if weight.ndim != 2 or not (weight.requires_grad or adapter is not None):
            continue
        reason = _unusable(weight, adapter)
        if reason:
            left_out[plain_name(name)] = reason
        else:
            sites[plain_name(name)] = Site(weight, adapter)
    if not sites:
        reasons = "; ".join(sorted(set(left_out.values()))) or "no parameter with a gradient"
        raise UsageError(f"Model: expected trained matrices, found none ({reasons}).", "Check what is frozen.")
    return Found(sites, left_out)


def copy_sites(sites: Mapping[str, Site], names: Iterable[str]) -> dict[str, Copied]:
    """Copy matrices to memory of their own on the CPU; of adapted ones the factors only."""
    with torch.no_grad():
        return {name: _copy(sites[name]) for name in names}


def copy_starts(sites: Mapping[str, Site], names: Iterable[str]) -> dict[str, Copied]:
    """Copy matrices with all that the drift is counted from: of adapted ones the frozen weight too."""
    with torch.no_grad():
        return {name: Copied(_detached(sites[name].weight), *_factors(sites[name])) for name in names}


def _copy(site: Site) -> Copied:
    return Copied(None, *_factors(site)) if site.adapter is not None else Copied(_detached(site.weight))


def _detached(weight: Tensor) -> Tensor:
    return weight.detach().to("cpu", copy=True)


def _factors(site: Site) -> tuple[Tensor | None, Tensor | None]:
    """Return (B, A) with everything scaled in B, the active adapters side by side; nothing without an adapter."""
    layer = site.adapter
    if layer is None:
        return None, None
    B, A = [], []
    for name in [adapter for adapter in layer.active_adapters if adapter in layer.lora_A]:
        down, up = layer.lora_A[name].weight.detach().double(), layer.lora_B[name].weight.detach().double()
        up = up * layer.scaling[name]
        if getattr(layer, "fan_in_fan_out", False):  # the weight is stored transposed, and so is what is added
            up, down = down.mT, up.mT
        B.append(up.cpu())
        A.append(down.cpu())
    if not B:  # every adapter is switched off
        rows, cols = site.weight.shape
        return torch.zeros(rows, 1, dtype=torch.float64), torch.zeros(1, cols, dtype=torch.float64)
    return torch.cat(B, dim=1), torch.cat(A, dim=0)


def _require_whole(name: str, weight: Tensor) -> None:
    if hasattr(weight, "ds_id") or hasattr(weight, "device_mesh") or (weight.numel() == 0 and weight.requires_grad):
        raise UsageError(
            f"Parameter {name}: expected a whole matrix in each process, found a shard (FSDP or ZeRO-3).",
            "Use `driftlab watch` on the saved checkpoints instead.",
        )


def _unusable(weight: Tensor, adapter: Any) -> str:
    if not weight.dtype.is_floating_point or weight.dtype.itemsize < 2:
        return f"stored as {str(weight.dtype).removeprefix('torch.')}: not weights without their scales"
    if adapter is None:
        return ""
    if any(getattr(adapter, "use_dora", {}).values()):
        return "a DoRA adapter, which is more than a low-rank sum"
    if getattr(adapter, "merged", False):
        return "the adapter is merged into the weight: unmerge it before training"
    return ""
