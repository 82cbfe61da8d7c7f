"""Quantised weights: multiplied by their scales where the format is known to the bit, refused by name elsewhere.

Read are fp8 and int8 weights with scales for the whole tensor, for rows or for blocks, and the MXFP4 blocks of gpt-oss.
The names ``weight_scale_inv`` and ``weight_scale`` both mean a factor (transformers,
``integrations/finegrained_fp8.py``; compressed-tensors; DeepSeek-V3, arXiv 2412.19437).
"""

import math
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.views import Made, MadeStack, Recipe
from driftlab.errors import CheckpointError

_FP8 = ("F8_E4M3", "F8_E5M2")
_SCALES = ("_scale_inv", "_scale")
_PACKED: tuple[tuple[str, str], ...] = (
    (r"\.weight_scale_2$|\.weight_global_scale$", "NVFP4"),
    (r"\.weight_packed$", "compressed-tensors packed integers"),
    (r"\.qweight$", "GPTQ or AWQ"),
    (r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\.|\.SCB$", "bitsandbytes"),
    (r"\.W_q$", "HQQ"),
    (r"\.weight\._(data|scale)$", "quanto"),
    (r"\.(codebooks|codes)$", "AQLM"),
    (r"\.bitmask$|\.weight\.compressed$", "compressed-tensors sparse weights"),
)
_INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "F4", "F6_E2M3", "F6_E3M2")
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
Tensors = dict[str, TensorInfo]


def dequantise(path: AnyPath, tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, list[str]]:
    """Return the tensors with quantised ones in place of weights and scales, and what to say about it.

    Raises
    ------
    CheckpointError
        If weights are quantised in a way that is not undone here, or scales do not fit their weights.
    """
    settings = _settings(config)
    _refuse_packed(path, tensors, settings)
    plain, used = dict(tensors), set()
    for name, info in tensors.items():
        if name.endswith("_blocks") and (scales := tensors.get(f"{name.removesuffix('_blocks')}_scales")):
            plain[name] = _mxfp4(path, name, info, scales)
            used.add(f"{name.removesuffix('_blocks')}_scales")
        elif info.dtype in (*_FP8, "I8") and len(info.shape) >= 2:
            found = next((f"{name}{end}" for end in _SCALES if f"{name}{end}" in tensors), None)
            if f"{name}_zero_point" in tensors:
                raise _refused(path, name, "integers with zero points")
            if found is not None:
                plain[name] = _scaled(path, name, info, tensors[found], settings)
                used.add(found)
    left = [name for name, info in plain.items() if _is_packed(name, info) and not isinstance(info, Made)]
    method = str(settings.get("quant_method") or "")[:40]
    if left and method:
        raise _refused(path, left[0], method)
    kept = {name: info for name, info in plain.items() if name not in used}
    notes = [f"{len(used)} quantised tensors were multiplied by their scales"] if used else []
    return kept, notes


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(holder.get(key), dict):
                return dict(holder[key])
    return {}


def _refuse_packed(path: AnyPath, tensors: Tensors, settings: dict[str, Any]) -> None:
    for name in tensors:
        for pattern, what in _PACKED:
            if re.search(pattern, name):
                raise _refused(path, name, what)
    if settings.get("transform_config"):
        raise _refused(path, next(iter(tensors)), "compressed-tensors with rotated weights")
    sparsity = settings.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise _refused(path, next(iter(tensors)), f"compressed-tensors {str(sparsity['format'])[:40]}")


def _refused(path: AnyPath, name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: expected weights, found quantised ones ({what}; {name}), which are not unpacked here.",
        "Give the bf16 checkpoint they were made from, or save a dequantised one (model.dequantize()).",
    )


def _is_packed(name: str, info: TensorInfo) -> bool:
    return info.dtype in _INTEGERS and len(info.shape) >= 2 and name.endswith(("weight", "_proj", "_blocks"))


# -- fp8 and int8 with scales -------------------------------------------------------------------------------------


def _scaled(path: AnyPath, name: str, info: TensorInfo, scale: TensorInfo, settings: dict[str, Any]) -> TensorInfo:
    block = _block(path, name, info, scale, settings)
    exponents = scale.dtype in ("F8_E8M0", "U8")
    factor = TensorInfo(
        scale.name, "U8" if exponents else scale.dtype, scale.shape, scale.file, scale.start, scale.stop, scale.stamp
    )
    recipe = partial(_multiply, block, exponents)
    stack = len(info.shape) == 3 and len(scale.shape) == 3
    return _made(MadeStack if stack else Made, name, info.shape, "F32", [info, factor], recipe)


def _block(path: AnyPath, name: str, info: TensorInfo, scale: TensorInfo, settings: dict[str, Any]) -> tuple[int, int]:
    """Return rows and columns that share one scale: told by the settings, never guessed from a grid alone."""
    m, n = info.shape[-2:]
    if math.prod(scale.shape) == 1:
        return (m, n)
    if scale.shape == (*info.shape[:-1], 1) or (len(info.shape) == 2 and scale.shape == (m,)):
        return (1, n)
    sizes = [size for size in (_told_block(settings), (128, 128)) if size]
    for rows, cols in sizes:
        rows, cols = min(rows, m), min(cols, n)
        if scale.shape == (*info.shape[:-2], math.ceil(m / rows), math.ceil(n / cols)):
            return (rows, cols)
    raise CheckpointError(
        f"{path}: the scales of {name} have shape {list(scale.shape)}, expected one, one a row, or one for each block "
        f"of {' or '.join(f'{r}x{c}' for r, c in sizes)} of its shape {list(info.shape)}.",
        "config.json should give the block size (weight_block_size): copy it from the original checkpoint.",
    )


def _told_block(settings: dict[str, Any]) -> tuple[int, int] | None:
    """Return the block size that the settings of the quantiser give."""
    groups = settings.get("config_groups")
    weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)] if isinstance(
        groups, dict
    ) else []  # fmt: skip
    for holder, key in [(settings, "weight_block_size"), *((w, "block_structure") for w in weights if w)]:
        size = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(size, list) and len(size) == 2 and all(type(k) is int and k > 0 for k in size):
            return (size[0], size[1])
    for weight in weights:
        group = weight.get("group_size") if isinstance(weight, dict) else None
        if type(group) is int and group > 0:
            return (1, group)
    return None


def _multiply(block: tuple[int, int], exponents: bool, parts: list[Tensor]) -> Tensor:
    """Return the weight times its scales, float32, block row by block row."""
    weight, scale = parts
    whole = weight.float()
    factor = torch.exp2(scale.float() - 127.0) if exponents else scale.float()
    if exponents:
        factor = factor.masked_fill(scale == 255, math.nan)
    if factor.numel() == 1:
        return whole * factor.reshape(())
    if factor.ndim == 1:
        return whole * factor[:, None]
    m, n = whole.shape[-2:]
    rows = factor.repeat_interleave(block[0], dim=-2)[..., :m, :]
    for j in range(factor.shape[-1]):
        whole[..., j * block[1] : min(n, (j + 1) * block[1])] *= rows[..., j : j + 1]
    return whole


# -- MXFP4 --------------------------------------------------------------------------------------------------------


def _mxfp4(path: AnyPath, name: str, blocks: TensorInfo, scales: TensorInfo) -> TensorInfo:
    """Return the matrices [..., out, in] of blocks [..., out, in / 32, 16] and their exponents [..., out, in / 32].

    Each byte holds two E2M1 numbers, the low half first; a block of 32 shares the factor 2^(e - 127) (Open Compute
    Project, "Microscaling Formats", 2023; transformers, ``integrations/mxfp4.py``). Every product is a bf16 number.
    """
    if blocks.dtype != "U8" or scales.dtype != "U8" or blocks.shape != (*scales.shape, 16) or len(scales.shape) < 2:
        raise CheckpointError(
            f"{path}: expected MXFP4 blocks [..., 16] with one scale each, found {name} of shape "
            f"{list(blocks.shape)} and scales of shape {list(scales.shape)}.",
            "Copy or save the checkpoint again.",
        )
    shape = (*scales.shape[:-1], 32 * scales.shape[-1])
    return _made(MadeStack, name, shape, "BF16", [blocks, scales], _unpack)


def _unpack(parts: list[Tensor]) -> Tensor:
    blocks, scales = parts
    table = torch.tensor(_E2M1, dtype=torch.float32)
    numbers = table[torch.stack([blocks & 15, blocks >> 4], dim=-1).long()].flatten(-2)
    factor = torch.exp2(scales.float() - 127.0).masked_fill(scales == 255, math.nan)
    return (numbers * factor[..., None]).flatten(-2).to(torch.bfloat16)


def _made(
    kind: type[Made], name: str, shape: tuple[int, ...], dtype: str, parts: list[TensorInfo], recipe: Recipe
) -> TensorInfo:
    nbytes = math.prod(shape) * (4 if dtype == "F32" else 2)
    return kind(name, dtype, shape, parts[0].file, 0, nbytes, parts[0].stamp, tuple(parts), recipe)
