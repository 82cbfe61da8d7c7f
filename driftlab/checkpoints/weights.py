"""Which files of a folder are the model, which are not, and the tensors they hold.

One set of weights is chosen, in this order, as the transformers library would load it:

1. ``model.safetensors``
2. ``model.safetensors.index.json`` and the shards it names
3. shards ``NAME-00001-of-0000N.safetensors`` without an index, all N of them
4. the only other ``.safetensors`` file

Everything else is listed with the reason why it was left out. Nothing else is ever opened.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from driftlab.checkpoints.names import natural_key, unwrap
from driftlab.checkpoints.tensorfile import TensorInfo, read_header
from driftlab.errors import CheckpointError

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_NESTED = (
    "actor/huggingface",
    "actor/hf",
    "actor",
    "huggingface",
    "hf",
    "hf_model",
    "policy",
    "weights",
    "model",
)

# File patterns that hold a model, or part of a training state, in a form that is not read here:
# (pattern on the path inside the folder, what it is, next step).
_FORMATS: tuple[tuple[str, str, str], ...] = (
    (
        r"^adapter_model\.(safetensors|bin)$",
        "a LoRA adapter without its base",
        "Merge it into the base (peft: merge_and_unload, save_pretrained) and give the merged folder.",
    ),
    (
        r"model_world_size_\d+_rank_\d+\.pt$",
        "verl FSDP shards",
        "Convert them with `python -m verl.model_merger merge --backend fsdp`.",
    ),
    (
        r"^(global_step\d+/)?(bf16_)?zero_pp_rank_.*\.pt$|mp_rank_\d+_model_states\.pt$",
        "DeepSpeed ZeRO shards",
        "Convert them with the zero_to_fp32.py script that DeepSpeed left beside them (--safe_serialization).",
    ),
    (
        r"\.distcp$",
        "a torch distributed checkpoint",
        "Convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save and save as safetensors.",
    ),
    (
        r"^(mp_rank_\d+(_\d+)?/.*|model_optim_rng)\.pt$",
        "a Megatron checkpoint",
        "Convert it to Hugging Face format with Megatron Bridge or the trainer's own converter.",
    ),
    (
        r"^pytorch_model(-\d+-of-\d+)?\.bin$|^consolidated.*\.pth$",
        "PyTorch pickle weights",
        "Save them with save_pretrained(..., safe_serialization=True).",
    ),
    (r"\.ckpt$", "a Lightning checkpoint", "Export its state_dict as safetensors."),
    (r"\.gguf$", "a GGUF file of quantised weights", "Give the original bf16 or fp32 folder."),
    (r"\.(h5|msgpack|onnx)$", "weights of another framework", "Export them as safetensors."),
    (r"\.(pt|pth|bin)$", "a pickle file", "Save the model as safetensors."),
)
_STATES = re.compile(
    r"^(optimizer|scheduler|rng_state|training_args|scaler|trainer_state|random_states|optim_|extra_state)"
)


@dataclass(frozen=True)
class Weights:
    """The model in a folder or file.

    Attributes
    ----------
    path : Path
        The folder that holds the chosen files, or the single file.
    tensors : dict of str to TensorInfo
        Every tensor under its unwrapped name, in natural order.
    ignored : list of (str, str)
        Files left out, with the reason.
    notes : list of str
        Facts a user should know about the choice.
    digest : str
        SHA-256 over all headers.
    config : dict
        ``config.json``, or an empty dictionary.
    """

    path: Path
    tensors: dict[str, TensorInfo]
    ignored: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    digest: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def tied(self) -> bool:
        """Whether the configuration says that the output head is the embedding."""
        text = self.config.get("text_config")
        nested = text.get("tie_word_embeddings") if isinstance(text, dict) else None
        return bool(self.config.get("tie_word_embeddings", nested))


def open_weights(path: Path) -> Weights:
    """Find the model at ``path`` and read its headers.

    Parameters
    ----------
    path : Path
        A ``.safetensors`` file, a Hugging Face folder, or a trainer's step folder that holds one.

    Raises
    ------
    CheckpointError
        If there is no readable model; the message says what was found instead.
    """
    if path.is_dir():
        return _open_folder(path)
    if path.is_symlink() or path.is_file():
        return _collect(path, [path], {}, [], [])
    raise CheckpointError(
        f"{path}: expected a checkpoint folder or .safetensors file, found nothing.", "Check the path."
    )


def holds_weights(folder: Path) -> bool:
    """Whether a folder itself holds weight files of any format, readable here or not."""
    return any(
        name.endswith(".safetensors") or name == "model.safetensors.index.json" or _format(name)
        for name in _files(folder)
    )


def _open_folder(path: Path) -> Weights:
    tried = [path, *(path / nested for nested in _NESTED if (path / nested).is_dir())]
    for folder in tried:
        chosen = _choose(folder)
        if chosen is not None:
            return _collect(folder, *chosen)
    raise _not_found(path, tried)


def _choose(folder: Path) -> tuple[list[Path], dict[str, str], list[tuple[str, str]], list[str]] | None:
    """Return files, index (tensor to file name), ignored files and notes, or None where nothing is readable."""
    names = [name for name in _files(folder) if not name.startswith(".")]
    candidates = [n for n in names if n.endswith(".safetensors") and not n.startswith(("adapter_", "optimizer"))]
    index_name = "model.safetensors.index.json"
    index: dict[str, str] = {}
    if "model.safetensors" in candidates:
        chosen, why = ["model.safetensors"], "model.safetensors is the model"
    elif index_name in names:
        index = _read_index(folder / index_name)
        chosen, why = sorted(set(index.values())), "not named by the index"
    else:
        chosen, why = _unindexed(folder, candidates)
    if not chosen:
        return None
    used = {*chosen, *([index_name] if index else [])}
    return [folder / name for name in chosen], index, list(_ignored(names, used, why)), []


def _unindexed(folder: Path, candidates: list[str]) -> tuple[list[str], str]:
    shards = [(match, name) for name in candidates if (match := _SHARD.match(name))]
    stems = {(match["stem"], int(match["count"])) for match, _ in shards}
    if len(stems) == 1:
        (stem, count) = stems.pop()
        expected = [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        missing = [name for name in expected if name not in candidates]
        if missing:
            raise CheckpointError(
                f"{folder}: expected {count} shards, found {count - len(missing)}; {missing[0]} is missing.",
                "Copy or save the checkpoint again.",
            )
        return expected, "not one of the shards"
    if len(candidates) == 1:
        return candidates, "not the model"
    if len(candidates) > 1:
        raise CheckpointError(
            f"{folder}: expected one model, found {len(candidates)} safetensors files ({', '.join(candidates[:3])}) "
            "and no index that says which.",
            "Give the one file as the checkpoint.",
        )
    return [], ""


def _read_index(file: Path) -> dict[str, str]:
    try:
        index = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        valid = isinstance(index, dict) and all(isinstance(name, str) for name in index.values())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        valid = False
    if not valid or not index:
        raise CheckpointError(f"{file}: expected an index with a weight_map, found none.", "Save the checkpoint again.")
    for name in set(index.values()):
        if PurePosixPath(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{file}: expected shard names ending in .safetensors in the same folder, found {name!r}."
            )
    return dict(index)


def _collect(
    path: Path, files: list[Path], index: dict[str, str], ignored: list[tuple[str, str]], notes: list[str]
) -> Weights:
    tensors: dict[str, TensorInfo] = {}
    digest = hashlib.sha256()
    extra = 0
    for file in files:
        if index and not file.exists() and not file.is_symlink():
            raise CheckpointError(
                f"{path}: the index names {len(files)} shards, {file.name} is missing.",
                "Copy or save the checkpoint again.",
            )
        found, header = read_header(file)
        digest.update(header.encode())
        for name, tensor in found.items():
            if index and index.get(name) != file.name:
                extra += 1
                continue
            key = unwrap(name)
            if key in tensors:
                raise CheckpointError(
                    f"{path}: tensor {key} is stored twice, in {tensors[key].file.name} and {file.name}."
                )
            tensors[key] = tensor
    _check_index(path, index, tensors)
    if extra:
        notes = [*notes, f"{extra} stored tensors are not in the index and were left out"]
    if not tensors:
        raise CheckpointError(f"{path}: expected tensors, found an empty file.", "Save the checkpoint again.")
    ordered = dict(sorted(tensors.items(), key=lambda item: natural_key(item[0])))
    return Weights(path, ordered, ignored, notes, digest.hexdigest(), _config(path))


def _check_index(path: Path, index: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    absent = [name for name in index if unwrap(name) not in tensors]
    if absent:
        raise CheckpointError(
            f"{path}: the index places {absent[0]} in {index[absent[0]]}, whose header does not have it "
            f"({len(absent)} such tensors).",
            "Index and shards come from different saves: save the checkpoint again.",
        )


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _files(folder: Path) -> list[str]:
    """Names of the files in a folder, links included even where their target is gone."""
    try:
        return sorted((entry.name for entry in folder.iterdir() if not entry.is_dir()), key=natural_key)
    except OSError:
        return []


def _ignored(names: list[str], used: set[str], why: str) -> Iterator[tuple[str, str]]:
    for name in names:
        if name in used:
            continue
        if name.startswith("adapter_"):
            yield name, "adapter beside full weights: not applied"
        elif name.endswith((".safetensors", ".safetensors.index.json")):
            yield name, why
        elif _STATES.match(name):
            yield name, "training state"
        elif (kind := _format(name)) is not None:
            yield name, f"{kind[0]}; never opened"


def _format(name: str) -> tuple[str, str] | None:
    for pattern, what, step in _FORMATS:
        if re.search(pattern, name):
            return what, step
    return None


def _not_found(path: Path, tried: list[Path]) -> CheckpointError:
    for folder in [*tried, *(child for child in sorted(path.iterdir()) if child.is_dir())]:
        for name in _files(folder):
            if not _STATES.match(name) and (kind := _format(name)) is not None:
                return CheckpointError(f"{path}: expected safetensors weights, found {kind[0]} ({name}).", kind[1])
    entries = sorted(child.name for child in path.iterdir())[:4]
    found = ", ".join(entries) if entries else "an empty folder"
    return CheckpointError(f"{path}: expected safetensors weights, found {found}.", "Give a folder that holds a model.")
