"""Mixtures of experts: stacks ``[expert, ...]`` split into one matrix for each expert.

Transformers keeps the experts of a layer in one tensor since version 5 and saves most models one tensor for each expert
(``conversion_mapping.py``); trainers that write their state dict leave the former. Llama 4 and gpt-oss store inputs
before outputs, gpt-oss gate and up in turn.
"""

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from driftlab.checkpoints.lowrank import picked_rows, turned
from driftlab.checkpoints.tensorfile import DTYPES, TensorInfo

_STACK = re.compile(
    r"^(?P<stem>.*\.)experts\.(?P<module>gate_up_proj|down_proj)(?P<packed>_blocks)?(?P<bias>_bias)?(?:\.weight)?$"
)
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_NUMBERED_W = {"mixtral": ".block_sparse_moe.", "minimax": ".block_sparse_moe.", "phimoe": ".block_sparse_moe."}
_TURNED = ("llama4", "llama4_text", "gpt_oss", "qwen3_vl_moe", "qwen3_vl_moe_text", "aria", "aria_text")
"""Model types that store [expert, in, out]."""
_IN_TURN = ("gpt_oss",)
"""Model types whose gate and up rows take turns."""
_ROUTER = re.compile(r"\.mlp\.(gate|router)\.weight$")
Tensors = dict[str, TensorInfo]


def split_experts(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, list[str]]:
    """Return tensors with stacks of experts split, and what to say about stacks whose parts are not known."""
    kind = str(config.get("model_type", ""))
    out: Tensors = {}
    unknown: list[str] = []
    stacked = any(_STACK.match(name) and len(info.shape) == 3 for name, info in tensors.items())
    for name, info in tensors.items():
        match = _STACK.match(name)
        if match is None or info.dtype not in DTYPES or len(info.shape) != (2 if match["bias"] else 3):
            out[_renamed(name, kind) if stacked else name] = info
            continue
        orientation = _orientation(match, info, config)
        if orientation is None:
            unknown.append(name)
        for i in range(info.shape[0]):
            out |= dict(_expert(match, info, i, kind, orientation))
    if unknown:
        return out, [
            f"{len(unknown)} stacks of experts ({unknown[0]}) are measured expert by expert as stored: config.json "
            "does not tell their layout"
        ]
    return out, []


def _orientation(match: re.Match[str], info: TensorInfo, config: dict[str, Any]) -> str | None:
    """Return "out in" or "in out", or None where neither fits the configuration."""
    kind, hidden = str(config.get("model_type", "")), config.get("hidden_size")
    if match["packed"]:
        return "out in"
    usual = "in out" if kind in _TURNED else "out in"
    if match["bias"]:
        return usual
    if not kind or type(hidden) is not int:
        return None
    last, first = ("out in", "in out") if match["module"] == "gate_up_proj" else ("in out", "out in")
    fits = [way for way, size in ((last, info.shape[2]), (first, info.shape[1])) if size == hidden]
    return usual if usual in fits else fits[0] if fits else None


def _expert(
    match: re.Match[str], info: TensorInfo, i: int, kind: str, orientation: str | None
) -> Iterator[tuple[str, TensorInfo]]:
    stem, end = f"{match['stem']}experts.{i}.", "bias" if match["bias"] else "weight"
    one = info.item(i)
    if orientation is None:
        yield f"{stem}{match['module']}.{end}", one
        return
    matrix = turned(one) if orientation == "in out" and not match["bias"] else one
    if match["module"] == "down_proj":
        yield _renamed(f"{stem}down_proj.{end}", kind), matrix
        return
    rows = matrix.shape[0]
    for name, pick, half in (
        ("gate_proj", _even, (0, rows // 2)),
        ("up_proj", _odd, (rows // 2, rows)),
    ):
        part = picked_rows(matrix, pick, rows // 2) if kind in _IN_TURN else matrix.rows(*half)
        yield _renamed(f"{stem}{name}.{end}", kind), part


def _renamed(name: str, kind: str) -> str:
    """Return the name under which models with numbered weights store one expert, or their router."""
    if kind == "lfm2_moe" and ".experts." in name:
        return _numbered(name)
    if kind not in _NUMBERED_W:
        return name
    if ".experts." in name:
        return _numbered(name).replace(".mlp.", _NUMBERED_W[kind])
    return _ROUTER.sub(f"{_NUMBERED_W[kind]}gate.weight", name)


def _numbered(name: str) -> str:
    for word, number in _MIXTRAL.items():
        name = name.replace(f".{word}.", f".{number}.")
    return name


def _even(rows: Tensor) -> Tensor:
    return rows[0::2]


def _odd(rows: Tensor) -> Tensor:
    return rows[1::2]
