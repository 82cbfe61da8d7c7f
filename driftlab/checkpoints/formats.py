"""Files beside or instead of a model: training states and weights in forms that are not read here, by their names.

Nothing in this module opens a file.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from driftlab.checkpoints.names import natural_key
from driftlab.errors import CheckpointError

_FORMATS: tuple[tuple[str, str, str], ...] = (
    (
        r"^adapter_model\.(safetensors|bin)$",
        "a LoRA adapter without its base",
        "Merge it into the base (peft: merge_and_unload, save_pretrained) and give the merged folder.",
    ),
    (
        r"^model_world_size_\d+_rank_\d+\.pt$",
        "verl FSDP shards",
        "Convert them with `python -m verl.model_merger merge --backend fsdp`.",
    ),
    (
        r"^(bf16_|fp16_)?zero_pp_rank_.*\.pt$|^mp_rank_\d+_model_states\.pt$",
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
        r"^pytorch_model(-\d+-of-\d+)?\.bin$|^consolidated.*\.pth$",
        "PyTorch pickle weights",
        "Save them with save_pretrained(..., safe_serialization=True).",
    ),
    (r"\.ckpt$", "a Lightning checkpoint", "Export its state_dict as safetensors."),
    (r"\.gguf$", "a GGUF file of quantised weights", "Give the original bf16 or fp32 folder."),
    (r"\.(h5|msgpack|onnx|npz)$", "weights of another framework", "Export them as safetensors."),
    (r"\.(pt|pth|bin)$", "a pickle file", "Save the model as safetensors."),
)
"""(pattern on the file's name, what it is, next step), the most specific first."""

_STATE = re.compile(
    r"^(optimizer|scheduler|rng_state|training_args|scaler|trainer_state|random_states|optim_|extra_state)"
)
_ANY_SAFETENSORS = (".safetensors", ".safetensors.index.json")


def file_names(folder: Path) -> list[str]:
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


def holds_weights(folder: Path) -> bool:
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
            yield name, f"{other[1]}; never opened"


def not_found(path: Path, tried: list[Path]) -> CheckpointError:
    """Return the error for a folder without readable weights: it says what is there instead."""
    children = sorted(path.iterdir())
    folders = [*tried, *(child for child in children if child.is_dir() and child not in tried)]
    found = [(*other, name) for folder in folders for name in file_names(folder) if (other := other_format(name))]
    if found:
        _, what, step, name = min(found, key=lambda entry: entry[0])
        return CheckpointError(f"{path}: expected safetensors weights, found {what} ({name}).", step)
    entries = ", ".join(child.name for child in children[:4]) or "an empty folder"
    return CheckpointError(
        f"{path}: expected safetensors weights, found {entries}.", "Give a folder that holds a model."
    )


def not_safetensors(file: Path) -> CheckpointError:
    """Return the error for a single file under another suffix."""
    other = other_format(file.name)
    if other is not None:
        return CheckpointError(f"{file}: expected a .safetensors file, found {other[1]}.", other[2])
    return CheckpointError(
        f"{file}: expected a checkpoint folder or .safetensors file, found a {file.suffix} file.",
        "Give the folder that holds the model.",
    )
