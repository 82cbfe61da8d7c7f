"""LoRA adapters as PEFT saves them, put on a base as low-rank updates that are never multiplied out.

``adapter_config.json`` gives r, alpha, their patterns and the variant; ``adapter_model.safetensors`` (or ``.bin``)
holds ``base_model.model.NAME.lora_A.weight`` of shape (r, in) and ``lora_B.weight`` of shape (out, r). The update is
s B A with s = alpha / r, or alpha / sqrt(r) with rank stabilisation (E. Hu et al., arXiv 2106.09685; D. Kalajdzievski,
arXiv 2312.03732; PEFT, ``tuners/lora/layer.py`` and ``utils/save_and_load.py``).
"""

import json
import math
import re
from typing import Any

from driftlab.checkpoints.disk import read_json, shown
from driftlab.checkpoints.lowrank import LowRank
from driftlab.checkpoints.names import unwrap
from driftlab.checkpoints.readers.statedict import read_state_dict
from driftlab.checkpoints.readers.stored import Stored
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo, read_header
from driftlab.checkpoints.views import turned
from driftlab.errors import CheckpointError

_CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = re.compile(r"^base_model\.model\.")
_FACTOR = re.compile(
    r"^(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.(?!weight|bias)\w+)?(?:\.weight)?$"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.\w+(?=\.))?|\.base_layer")
# fmt: off
_HARMLESS = frozenset((
    "auto_mapping", "base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "modules_to_save", "peft_type",
    "peft_version", "r", "rank_pattern", "alpha_pattern", "revision", "target_modules", "exclude_modules",
    "task_type", "use_rslora", "megatron_core", "megatron_config", "loftq_config", "eva_config", "corda_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying", "velora_config",
))
# fmt: on
"""Settings that do not change what the factors mean; any other that is set is a variant."""
_MOVED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "milora")
"""Initialisations that change the base too: the adapter is no update of the published weights."""


def is_adapter(names: list[str]) -> bool:
    """Whether a folder is an adapter, by the names of its files."""
    return any(name in names for name in _FILES)


def apply_adapter(folder: AnyPath, names: list[str], base: dict[str, TensorInfo]) -> Stored:
    """Return the base with the adapter on it: adapted tensors as low-rank updates, the others those of the base.

    Parameters
    ----------
    folder : Path
        The adapter's folder.
    names : list of str
        Its files.
    base : dict of str to TensorInfo
        The base as stored.

    Raises
    ------
    CheckpointError
        If files are missing or damaged, the variant is not plain LoRA, or a factor does not fit the base.
    """
    settings = _settings(folder)
    name = next(name for name in _FILES if name in names)
    file = folder / name
    if name.endswith(".bin"):
        tensors, digest, _ = read_state_dict(file)
    else:
        tensors, digest = read_header(file)
    factors: dict[str, dict[str, TensorInfo]] = {}
    whole: dict[str, TensorInfo] = {}
    for stored, info in tensors.items():
        key = unwrap(_PREFIX.sub("", stored))
        match = _FACTOR.match(key)
        if match:
            side = f"{match['embedding'] or ''}{match['side']}"
            factors.setdefault(_SAVED.sub("", match["module"]), {})[side] = info
        elif "lora_" in key or "token_adapter" in key:
            raise _refused(file, f"{key} (DoRA, a bias of LoRA, or another variant)")
        else:
            whole[_SAVED.sub("", key)] = info
    names_of = _bare(base)
    out = dict(base)
    for module, pair in factors.items():
        target = _find(file, f"{module}.weight", names_of)
        out[target] = _update(file, module, pair, base[target], settings)
    for key, info in whole.items():
        out[_find(file, key, names_of)] = info
    if not factors and not whole:
        raise CheckpointError(f"{file}: expected LoRA factors, found no tensors.", "Save the adapter again.")
    note = f"an adapter on the base: {len(factors)} low-rank updates, {len(whole)} tensors replaced"
    return Stored(folder, out, digest, frozenset({name, _CONFIG}), "not the adapter", (note,))


def _settings(folder: AnyPath) -> dict[str, Any]:
    file = folder / _CONFIG
    try:
        settings = read_json(file)
    except (CheckpointError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{file}: expected the settings of an adapter, found none.", "Save the adapter again.")
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise _refused(file, f"peft_type {shown(kind)}")
    initial = str(settings.get("init_lora_weights", ""))
    if initial.lower().startswith(_MOVED_BASE):
        raise _refused(file, f"init_lora_weights {shown(initial)}, which changed the base as well")
    odd = [key for key, value in settings.items() if value and key not in _HARMLESS]
    if odd:
        raise _refused(file, f"{odd[0]} = {json.dumps(settings[odd[0]])[:60]}")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(settings.get(key) or {}, dict):
            raise CheckpointError(f"{file}: expected {key} to be an object, found {shown(settings[key])}.")
    return settings


def _refused(file: AnyPath, what: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: expected a plain LoRA adapter, found {what}.",
        "Merge it into its base (peft: merge_and_unload, save_pretrained) and give the merged folder.",
    )


def _bare(base: dict[str, TensorInfo]) -> dict[str, str]:
    """Return the base's names by what an adapter may call them: with and without the model's own prefix."""
    found: dict[str, str] = {}
    for name in base:
        for alias in (
            name.removeprefix("model."),
            name.removeprefix("transformer."),
            f"model.{name}",
            f"transformer.{name}",
        ):
            found.setdefault(alias, name)
    return found | {name: name for name in base}


def _find(file: AnyPath, name: str, names: dict[str, str]) -> str:
    if name not in names:
        raise CheckpointError(
            f"{file}: adapts {name}, which the base does not have; the base has names like {next(iter(names), '')!r}.",
            "Check that --base is the model the adapter was trained on.",
        )
    return names[name]


def _update(
    file: AnyPath, module: str, pair: dict[str, TensorInfo], base: TensorInfo, settings: dict[str, Any]
) -> LowRank:
    embedding = "embedding_A" in pair or "embedding_B" in pair
    A, B = (pair.get("embedding_A"), pair.get("embedding_B")) if embedding else (pair.get("A"), pair.get("B"))
    if A is None or B is None or len(pair) != 2:
        raise CheckpointError(f"{file}: expected lora_A and lora_B of {module}, found one.", "Save the adapter again.")
    if len(A.shape) != 2 or len(B.shape) != 2 or A.shape[0] != B.shape[1] or not A.shape[0]:
        raise CheckpointError(
            f"{file}: the factors of {module} have shapes {list(B.shape)} and {list(A.shape)}, whose product is none."
        )
    rank = _by_pattern(settings.get("rank_pattern"), module, settings.get("r"))
    alpha = _by_pattern(settings.get("alpha_pattern"), module, settings.get("lora_alpha"))
    if rank != A.shape[0] or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(
            f"{file}: {module} has factors of rank {A.shape[0]}, adapter_config.json says r = {shown(rank)} and "
            f"alpha = {shown(alpha)}.",
            "Files come from different saves: save the adapter again.",
        )
    scale = alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank
    if embedding or settings.get("fan_in_fan_out"):
        A, B = turned(B), turned(A)
    if (B.shape[0], A.shape[1]) != base.shape:
        raise CheckpointError(
            f"{file}: the update of {module} has shape {[B.shape[0], A.shape[1]]}, the base {list(base.shape)}.",
            "Check that --base is the model the adapter was trained on.",
        )
    return LowRank(
        base.name, base.dtype, base.shape, file, base.start, base.stop, A.stamp, B=B, A=A, scale=float(scale)
    )


def _by_pattern(patterns: Any, module: str, default: Any) -> Any:
    """Return a setting of one module: the first pattern that its name, or the end of it after a dot, matches."""
    for pattern, value in (patterns or {}).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            continue
    return default
