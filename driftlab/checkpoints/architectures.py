"""Fused and turned layouts, brought to one matrix for each linear map, rows out and columns in.

What is split is told by ``config.json``: its model type says how, its sizes must agree with the shapes. Where they do
not, or the type is not known, tensors stay as they are stored, and that is said. The layouts are those of the
transformers library (``conversion_mapping.py`` and the models' own files) and of vLLM for ``qkv_proj``.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from driftlab.checkpoints.disk import shown
from driftlab.checkpoints.experts import split_experts
from driftlab.checkpoints.lowrank import picked_rows, turned
from driftlab.checkpoints.tensorfile import DTYPES, TensorInfo

_CONV1D = ("gpt2", "openai-gpt")
_CONV1D_WEIGHT = re.compile(r"\.(c_attn|q_attn|c_proj|c_fc)\.weight$")
_FUSED = re.compile(
    r"^(?P<stem>.*\.)(?P<module>qkv_proj|gate_up_proj|query_key_value|c_attn|Wqkv|wqkv|W_pack|dense_h_to_4h)"
    r"\.(?P<kind>weight|bias)$"
)
_JOINED = {
    "qkv_proj": ("phi3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2"),
    "gate_up_proj": ("phi3", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "glm", "glm4"),
    "c_attn": ("gpt2", "openai-gpt", "qwen"),
    "Wqkv": ("mpt",),
    "W_pack": ("baichuan",),
    "dense_h_to_4h": ("chatglm",),
}
"""Modules whose parts lie one after the other, with the model types of which that is known."""
_BY_HEAD = {"query_key_value": ("gpt_neox", "bloom", "falcon"), "wqkv": ("internlm2",)}
"""Modules whose rows go head by head, or group by group: the queries, then one key and one value."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model's attention that its configuration gives; zero where it does not."""

    heads: int
    groups: int
    head: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Sizes":
        """Read them under the names that configurations use."""
        heads = _number(config, "num_attention_heads", "n_head", "n_heads")
        hidden = _number(config, "hidden_size", "n_embd", "d_model")
        groups = _number(config, "num_key_value_heads", "num_kv_heads") or heads
        if config.get("model_type") == "falcon" and not config.get("new_decoder_architecture"):
            groups = 1 if config.get("multi_query", True) else heads
        head = _number(config, "head_dim") or (hidden // heads if heads else 0)
        return cls(heads, groups, head)


def arrange(tensors: dict[str, TensorInfo], config: dict[str, Any]) -> tuple[dict[str, TensorInfo], list[str]]:
    """Return tensors with fused ones split and turned ones turned, and what to say about those that were not.

    Parameters
    ----------
    tensors : dict of str to TensorInfo
        In the layout of the files.
    config : dict
        ``config.json``.
    """
    text = config.get("text_config")
    whole = {**config, **text} if isinstance(text, dict) else config
    kind = str(whole.get("model_type", ""))
    sizes = Sizes.of(whole)
    found, notes = split_experts(tensors, whole)
    if kind in _CONV1D:
        found = {name: _linear(name, info) for name, info in found.items()}
    out: dict[str, TensorInfo] = {}
    kept: dict[str, list[str]] = {}
    for name, info in found.items():
        match = _FUSED.match(name) if info.dtype in DTYPES else None
        parts = dict(_split(match, info, kind, sizes)) if match else {}
        if match and not parts and _is_fused(match["module"], name):
            kept.setdefault(match["module"], []).append(name)
        out |= parts if parts and not parts.keys() & (found.keys() | out.keys()) else {name: info}
    for module, names in kept.items():
        why = f"model type {shown(kind)}" if kind else "no config.json"
        notes.append(f"{len(names)} fused tensors ({module}) are measured as stored: their parts are not known ({why})")
    return out, notes


def _linear(name: str, info: TensorInfo) -> TensorInfo:
    """Turn the weight of a Conv1D layer, stored in by out (transformers, ``pytorch_utils.Conv1D``)."""
    return turned(info) if _CONV1D_WEIGHT.search(name) and len(info.shape) == 2 and info.dtype in DTYPES else info


def _is_fused(module: str, name: str) -> bool:
    """Whether a module of that name always is fused; ``gate_up_proj`` of experts and ``c_attn`` are told apart."""
    return module != "dense_h_to_4h" and ".experts." not in name and not name.endswith(".bias")


def _split(match: re.Match[str], info: TensorInfo, kind: str, sizes: Sizes) -> Iterator[tuple[str, TensorInfo]]:
    """Yield the parts of one fused tensor, or nothing where its shape is not the one that the sizes give."""
    stem, module, end = match["stem"], match["module"], match["kind"]
    rows = info.shape[0] if info.shape else 0
    query, key = sizes.heads * sizes.head, sizes.groups * sizes.head
    if len(info.shape) != (2 if end == "weight" else 1):
        return
    if kind in _JOINED.get(module, ()):
        if module in ("gate_up_proj", "dense_h_to_4h"):
            parts = [("gate_proj", rows // 2), ("up_proj", rows // 2)] if rows % 2 == 0 else []
        else:
            parts = [("q_proj", query), ("k_proj", key), ("v_proj", key)]
        if parts and sum(count for _, count in parts) == rows and all(count for _, count in parts):
            first = 0
            for name, count in parts:
                yield f"{stem}{name}.{end}", info.rows(first, first + count)
                first += count
    elif kind in _BY_HEAD.get(module, ()) and key and rows == query + 2 * key and query % key == 0:
        share = query // key
        for name, start, count in (("q_proj", 0, share), ("k_proj", share, 1), ("v_proj", share + 1, 1)):
            pick: Callable[[Tensor], Tensor] = partial(_heads, sizes, start, start + count)
            yield f"{stem}{name}.{end}", picked_rows(info, pick, count * key)


def _heads(sizes: Sizes, first: int, last: int, rows: Tensor) -> Tensor:
    """Return heads ``first`` up to ``last`` of every group of rows; they lie as [groups, heads, head size]."""
    grouped = rows.reshape(sizes.groups, -1, sizes.head, *rows.shape[1:])
    return grouped[:, first:last].reshape(-1, *rows.shape[1:])


def _number(config: dict[str, Any], *names: str) -> int:
    return next((config[name] for name in names if type(config.get(name)) is int and config[name] > 0), 0)
