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

from driftlab.checkpoints.formats import file_names, ignored_files, not_found, not_safetensors
from driftlab.checkpoints.names import natural_key, unwrap
from driftlab.checkpoints.tensorfile import TensorInfo, read_header
from driftlab.errors import CheckpointError

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_INDEX = "model.safetensors.index.json"
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
    def tied(self) -> bool | None:
        """Whether the configuration says that the output head is the embedding; None where it does not say."""
        text = self.config.get("text_config")
        nested = text.get("tie_word_embeddings") if isinstance(text, dict) else None
        value = self.config.get("tie_word_embeddings", nested)
        return value if isinstance(value, bool) else None


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
    if not path.is_symlink() and not path.exists():
        raise CheckpointError(
            f"{path}: expected a checkpoint folder or .safetensors file, found nothing.",
            "Give a local path: nothing is downloaded.",
        )
    if path.suffix not in ("", ".safetensors"):  # no suffix: a blob of a download cache
        raise not_safetensors(path)
    return _collect(path, [path], {}, [], [])


def has_model(folder: Path) -> bool:
    """Whether a folder, or a place in it where trainers put the model, holds ``.safetensors`` files of a model."""
    return any(_candidates(file_names(place)) for place in _places(folder))


def _places(folder: Path) -> list[Path]:
    return [folder, *(folder / nested for nested in _NESTED if (folder / nested).is_dir())]


def _candidates(names: list[str]) -> list[str]:
    return [n for n in names if n.endswith(".safetensors") and not n.startswith((".", "adapter_", "optimizer"))]


def _open_folder(path: Path) -> Weights:
    for folder in _places(path):
        chosen = _choose(folder)
        if chosen is not None:
            return _collect(folder, *chosen)
    raise not_found(path, _places(path))


def _choose(folder: Path) -> tuple[list[Path], dict[str, str], list[tuple[str, str]], list[str]] | None:
    """Return files, index (tensor to file name), ignored files and notes, or None where nothing is readable."""
    names = [name for name in file_names(folder) if not name.startswith(".")]
    candidates = _candidates(names)
    index: dict[str, str] = {}
    if "model.safetensors" in candidates:
        chosen, why = ["model.safetensors"], "model.safetensors is the model"
    elif _INDEX in names:
        index = _read_index(folder / _INDEX)
        chosen, why = sorted(set(index.values())), "not named by the index"
    else:
        chosen, why = _unindexed(folder, candidates)
    if not chosen:
        return None
    ignored = list(ignored_files(names, {*chosen, *([_INDEX] if index else [])}, why))
    return [folder / name for name in chosen], index, ignored, list(_doubts(names, chosen))


def _doubts(names: list[str], chosen: list[str]) -> Iterator[str]:
    """Say where a folder holds more than one thing that could have been meant."""
    if "model.safetensors" in chosen and _INDEX in names:
        yield f"model.safetensors was taken, as transformers does; {_INDEX} and its shards beside it were not"
    if any(name.startswith("adapter_model.") for name in names):
        yield "an adapter lies beside the full weights and was not applied"
    counts = {int(match["count"]) for name in chosen if (match := _SHARD.match(name))}
    if len(counts) == 1 and len(chosen) < max(counts):
        yield f"the index names {len(chosen)} shards of {max(counts)}"


def _unindexed(folder: Path, candidates: list[str]) -> tuple[list[str], str]:
    shards = [(match, name) for name in candidates if (match := _SHARD.match(name))]
    sets = sorted({(match["stem"], int(match["count"])) for match, _ in shards})
    if len(sets) > 1:
        raise CheckpointError(
            f"{folder}: expected one set of shards, found {len(sets)} and no index that says which: "
            + " and ".join(f"{stem}-*-of-{count:05d}.safetensors" for stem, count in sets[:3])
            + ".",
            "Move the older set away.",
        )
    if sets:
        stem, count = sets[0]
        expected = [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        missing = [name for name in expected if name not in candidates]
        if missing:
            raise CheckpointError(
                f"{folder}: expected {count} shards, found {len(shards)}; {missing[0]} is missing.",
                "Copy or save the checkpoint again.",
            )
        return expected, "not one of the shards"
    if len(candidates) > 1:
        raise CheckpointError(
            f"{folder}: expected one model, found {len(candidates)} safetensors files ({', '.join(candidates[:3])}) "
            "and no index that says which.",
            "Give the one file as the checkpoint.",
        )
    return candidates, "not the model"


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
    _check_merged(path, tensors)
    if extra:
        notes = [*notes, f"{extra} stored tensors that the index does not place there were left out"]
    if not tensors:
        raise CheckpointError(f"{path}: expected tensors, found a header without any.", "Save the checkpoint again.")
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


def _check_merged(path: Path, tensors: dict[str, TensorInfo]) -> None:
    unmerged = next((name for name in tensors if ".lora_A." in name), None)
    if unmerged is not None:
        raise CheckpointError(
            f"{path}: expected whole weights, found an adapter that is not merged into them ({unmerged}).",
            "Merge it (peft: merge_and_unload, save_pretrained) and give the merged folder.",
        )


def _config(path: Path) -> dict[str, Any]:
    folder = path if path.is_dir() else path.parent
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
