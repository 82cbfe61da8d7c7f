"""Files beside or instead of a model: training states and weights in forms that are not read here, by their names.

Nothing in this module opens a file.
"""

import re
from collections.abc import Iterator, Sequence

from driftlab.checkpoints.names import natural_key
from driftlab.checkpoints.remote import AnyPath
from driftlab.errors import CheckpointError

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Suffixes of files that can be a checkpoint by themselves."""

_FORMATS: tuple[tuple[str, str, str], ...] = (
    (
        r"^adapter_model\.(safetensors|bin)$",
        "an adapter without its base",
        "Give the model it was trained on with --base.",
    ),
    (
        r"^model_world_size_\d+_rank_\d+\.pt$",
        "verl FSDP shards",
        "Convert them with `python -m verl.model_merger merge --backend fsdp`.",
    ),
    (
        r"^((bf16_|fp16_)?zero_pp_rank_.*|mp_rank_\d+_model_states)\.pt$",
        "DeepSpeed ZeRO shards",
        "Convert them with the zero_to_fp32.py script that DeepSpeed left beside them (--safe_serialization).",
    ),
    (
        r"\.distcp$",
        "a torch distributed checkpoint",
        "Convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save and save as safetensors.",
    ),
    (
        r"^model_optim_rng\.pt$",
        "a Megatron checkpoint",
        "Convert it to Hugging Face format with Megatron Bridge or the trainer's own converter.",
    ),
    (
        r"^checkpoint_metadata\.json$",
        "a nanotron checkpoint",
        "Convert it to Hugging Face format with the converter in nanotron's examples.",
    ),
    (
        r"^consolidated\.(0[1-9]|[1-9]\d)\.pth$",
        "a model cut for tensor parallelism",
        "Convert it with transformers' convert_llama_weights_to_hf.py.",
    ),
    (r"^pytorch_model(-\d+-of-\d+)?\.bin$", "PyTorch weights", "Save them as safetensors."),
    (r"^consolidated.*\.pth$", "PyTorch weights", "Save them as safetensors."),
    (r"\.ckpt$", "a Lightning checkpoint", "Export its state_dict as safetensors."),
    (r"\.gguf$", "a GGUF file, whose rows are reordered and often quantised", "Give the bf16 or fp32 folder."),
    (r"\.(h5|msgpack|onnx|npz|tflite|ot)$", "weights of another framework", "Export them as safetensors."),
    (r"\.(pt|pth|bin)$", "a torch file", "Save the model as safetensors."),
)
"""(pattern on the file's name, what it is, next step), the most specific first."""

_READ = (
    "an adapter without its base",
    "verl FSDP shards",
    "DeepSpeed ZeRO shards",
    "a torch distributed checkpoint",
)
LOOSE = ("PyTorch weights", "a Lightning checkpoint", "a torch file")
_STATE = re.compile(
    r"^(optimizer|scheduler|rng_state|training_args|scaler|trainer_state|random_states|optim_|extra_state)"
)
_ANY_SAFETENSORS = (".safetensors", ".safetensors.index.json")


def file_names(folder: AnyPath) -> list[str]:
    """Names of the files in a folder, links included even where their target is gone."""
    try:
        return sorted((entry.name for entry in folder.iterdir() if not entry.is_dir()), key=natural_key)
    except OSError:
        return []


def other_format(name: str) -> tuple[int, str, str] | None:
    """Return (place in the list, what it is, next step) for a file that holds weights in a form not read here."""
    if _STATE.match(name):
        return None
    for i, (pattern, what, step) in enumerate(_FORMATS):
        if re.search(pattern, name):
            return i, what, step
    return None


def is_loose(name: str) -> bool:
    """Whether a file may be a whole model in one ``torch.save`` file, by its name."""
    other = other_format(name)
    return other is not None and other[1] in LOOSE and not name.startswith(("pytorch_model-", "."))


def is_read(name: str) -> bool:
    """Whether a file that is no ``.safetensors`` file belongs to a format that is read, by its name."""
    other = other_format(name)
    return other is not None and not name.startswith(".") and other[1] in (*LOOSE, *_READ)


def holds_weights(folder: AnyPath) -> bool:
    """Whether a folder itself holds weight files of any format, readable here or not."""
    return any(
        (name.endswith(_ANY_SAFETENSORS) and not _STATE.match(name)) or other_format(name)
        for name in file_names(folder)
    )


def ignored_files(names: list[str], used: set[str], why: str) -> Iterator[tuple[str, str]]:
    """Yield (file, reason) for every weight or state file of a folder that is not ``used``."""
    for name in names:
        if name in used:
            continue
        if name.startswith("adapter_"):
            yield name, "adapter beside full weights: not applied"
        elif _STATE.match(name):
            yield name, "training state"
        elif name.endswith(_ANY_SAFETENSORS):
            yield name, why
        elif (other := other_format(name)) is not None:
            yield name, f"{other[1]}; not opened"


def foremost(path: AnyPath, tried: Sequence[AnyPath]) -> tuple[int, str, str, str] | None:
    """Return the most telling weight file in or right under a folder: (place in the list, what, next step, name)."""
    folders = [*tried, *(child for child in _children(path) if child.is_dir() and child not in tried)]
    found = [(*other, name) for folder in folders for name in file_names(folder) if (other := other_format(name))]
    return min(found, key=lambda entry: entry[0], default=None)


def not_found(path: AnyPath, tried: Sequence[AnyPath]) -> CheckpointError:
    """Return the error for a folder without readable weights: it says what is there instead."""
    found = foremost(path, tried)
    if found is not None:
        _, what, step, name = found
        return CheckpointError(f"{path}: expected weights, found {what} ({name}).", step)
    entries = ", ".join(child.name for child in _children(path)[:4]) or "an empty folder"
    return CheckpointError(f"{path}: expected weights, found {entries}.", "Give a folder that holds a model.")


def _children(folder: AnyPath) -> list[AnyPath]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def not_a_checkpoint(file: AnyPath) -> CheckpointError:
    """Return the error for a single file that is not read as a checkpoint."""
    other = other_format(file.name)
    if other is not None:
        return CheckpointError(f"{file}: expected a checkpoint, found {other[1]}.", other[2])
    return CheckpointError(
        f"{file}: expected a checkpoint folder or weight file, found a {file.suffix} file.",
        "Give the folder that holds the model.",
    )
