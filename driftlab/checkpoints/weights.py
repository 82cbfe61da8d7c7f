"""Which files of a folder are the model, which are not, and the tensors they hold.

One set of weights is chosen: the first format of :data:`driftlab.checkpoints.readers.READERS` that is found in the
folder or in a place where trainers put the model. Everything else is listed with the reason why it was left out, and
is not opened.
"""

from dataclasses import dataclass, field
from typing import Any

from driftlab.checkpoints.architectures import arrange
from driftlab.checkpoints.disk import read_object, stamp_of
from driftlab.checkpoints.formats import (
    LOOSE,
    WEIGHT_SUFFIXES,
    file_names,
    foremost,
    ignored_files,
    is_loose,
    is_read,
    not_a_checkpoint,
    not_found,
)
from driftlab.checkpoints.quantised import dequantise
from driftlab.checkpoints.readers import READERS, SAFETENSORS
from driftlab.checkpoints.readers.adapter import apply_adapter, is_adapter
from driftlab.checkpoints.readers.loose import read_file, read_loose
from driftlab.checkpoints.readers.shards import collect, is_candidate, one_of
from driftlab.checkpoints.readers.stored import Stored
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.errors import CheckpointError

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
    "pytorch_model_fsdp_0",
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
    stored : dict of str to TensorInfo
        The same tensors as they lie in the files, before they were scaled, turned and split.
    """

    path: AnyPath
    tensors: dict[str, TensorInfo]
    ignored: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    digest: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, TensorInfo] = field(default_factory=dict, repr=False)

    @property
    def tied(self) -> bool | None:
        """Whether the configuration says that the output head is the embedding; None where it does not say."""
        text = self.config.get("text_config")
        nested = text.get("tie_word_embeddings") if isinstance(text, dict) else None
        value = self.config.get("tie_word_embeddings", nested)
        return value if isinstance(value, bool) else None


def open_weights(path: AnyPath, base: Weights | None = None) -> Weights:
    """Find the model at ``path`` and read its headers.

    Parameters
    ----------
    path : Path
        A weight file, a folder that holds one model in any format that is read, or a trainer's step folder.
    base : Weights, optional
        The model that an adapter is put on.

    Raises
    ------
    CheckpointError
        If there is no readable model; the message says what was found instead.
    """
    if path.is_dir():
        return _open_folder(path, base)
    if not path.is_symlink() and not path.exists():
        raise CheckpointError(
            f"{path}: expected a checkpoint folder or weight file, found nothing.",
            "Give a local path, or hf:org/name@revision for a model of the Hugging Face hub.",
        )
    if path.suffix in ("", ".safetensors"):  # no suffix: a blob of a download cache
        return _finish(collect(SAFETENSORS, path, [path], notes=one_of(path.name)), [path.parent])
    if path.suffix in WEIGHT_SUFFIXES and is_loose(path.name):
        return _finish(read_file(path), [path.parent])
    raise not_a_checkpoint(path)


def has_model(folder: AnyPath) -> bool:
    """Whether a folder, or a place in it where trainers put the model, holds files of a model, by their names."""
    return any(_looks_like_model(file_names(place)) for place in _places(folder))


def has_safetensors(folder: AnyPath) -> bool:
    """Whether a folder, or a place in it where trainers put the model, holds ``.safetensors`` files of a model."""
    return any(is_candidate(SAFETENSORS, name) for place in _places(folder) for name in file_names(place))


def _looks_like_model(names: list[str]) -> bool:
    return any(is_candidate(SAFETENSORS, name) or is_read(name) for name in names)


def _places(folder: AnyPath) -> list[AnyPath]:
    """Return where the model of a step may lie; ZeRO's folder is the one that ``latest`` names, or the only one."""
    found = [folder, *(folder / nested for nested in _NESTED if (folder / nested).is_dir())]
    for place in found[:]:
        steps = [child for child in _children(place) if child.name.startswith("global_step") and child.is_dir()]
        latest = [step for step in steps if step.name == _latest(place)]
        found += latest or steps if len(latest or steps) == 1 else []
    return found


def _children(folder: AnyPath) -> list[AnyPath]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _latest(folder: AnyPath) -> str:
    file = folder / "latest"
    try:
        return file.read_text(encoding="utf-8").strip() if stamp_of(file)[0] < 200 else ""
    except (CheckpointError, OSError, ValueError):
        return ""


def _open_folder(path: AnyPath, base: Weights | None) -> Weights:
    places = {place: file_names(place) for place in _places(path)}
    for read in READERS:
        for folder, names in places.items():
            stored = read(folder, [name for name in names if not name.startswith(".")])
            if stored is not None:
                return _finish(stored, [folder, folder / "huggingface", path], names)
    for folder, names in places.items():
        if is_adapter(names):
            return _adapted(folder, names, base)
    found = foremost(path, list(places))
    for folder, names in places.items() if found and found[1] in LOOSE else ():
        stored = read_loose(folder, names)
        if stored is not None:
            return _finish(stored, [folder, path], names)
    raise not_found(path, list(places))


def _finish(stored: Stored, homes: list[AnyPath], names: list[str] | None = None) -> Weights:
    """Undo quantisation and layout, and list what was left out."""
    config = next((found for home in dict.fromkeys(homes) if (found := read_object(home / "config.json"))), {})
    ignored = list(ignored_files(names, set(stored.used), stored.why)) if names else []
    notes = list(stored.notes)
    if any(name.startswith("adapter_model.") for name in names or []):
        notes.append("an adapter lies beside the full weights and was not applied")
    _check_merged(stored.path, stored.tensors)
    plain, scaled = dequantise(stored.path, stored.tensors, config)
    tensors, arranged = arrange(plain, config)
    return Weights(stored.path, tensors, ignored, [*notes, *scaled, *arranged], stored.digest, config, plain)


def _adapted(folder: AnyPath, names: list[str], base: Weights | None) -> Weights:
    """Put an adapter on the base as stored, then lay out what comes of it as the base is laid out."""
    if base is None:
        raise CheckpointError(
            f"{folder}: expected whole weights, found an adapter without its base.",
            "Give the model it was trained on with --base.",
        )
    stored = apply_adapter(folder, names, base.stored)
    tensors, _ = arrange(stored.tensors, base.config)
    ignored = list(ignored_files(names, set(stored.used), stored.why))
    return Weights(folder, tensors, ignored, list(stored.notes), stored.digest, base.config, stored.tensors)


def _check_merged(path: AnyPath, tensors: dict[str, TensorInfo]) -> None:
    unmerged = next((name for name in tensors if ".lora_A." in name), None)
    if unmerged is not None:
        raise CheckpointError(
            f"{path}: expected whole weights, found an adapter that is not merged into them ({unmerged}).",
            "Merge it (peft: merge_and_unload, save_pretrained) and give the merged folder.",
        )
