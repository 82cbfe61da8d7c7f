"""Models of the Hugging Face hub: ``hf:org/name@revision``, fetched into the hub's own cache only when asked for so.

A path on disk is never taken for such a name, and nothing is fetched for one. ``hf://org/name@revision`` is an address
like any other (:mod:`driftlab.checkpoints.remote`): read by ranges, nothing kept.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from driftlab.checkpoints.readers import SAFETENSORS, TORCH
from driftlab.checkpoints.readers.shards import is_candidate
from driftlab.checkpoints.stepname import Found, describe
from driftlab.errors import CheckpointError, UsageError, first_line
from driftlab.naming import is_remote

_NAME = re.compile(r"^hf:(?P<repo>(?:[\w.-]+/)?[\w.-]+)(?:@(?P<revisions>[\w./,-]+))?$")
_SETTINGS = ["config.json", "adapter_config.json"]


def is_hub_name(argument: str) -> bool:
    """Whether an argument asks for a model of the hub.

    Examples
    --------
    >>> [is_hub_name(text) for text in ("hf:org/name@step1000", "org/name", "hf://org/name")]
    [True, False, False]
    """
    return argument.startswith("hf:") and not is_remote(argument) and not Path(argument).exists()


def find_on_hub(argument: str) -> tuple[str, list[Found]]:
    """Fetch the revisions of a model, in the order given, and describe each.

    Parameters
    ----------
    argument : str
        ``hf:org/name``, ``hf:org/name@revision`` or ``hf:org/name@one,two,three``.

    Returns
    -------
    name : str
        The model's name without its owner.
    found : list of Found
        One for each revision; a revision like ``step1000`` tells the step.

    Raises
    ------
    UsageError
        If the argument has another form.
    CheckpointError
        If a revision cannot be fetched and is not in the cache.
    """
    match = _NAME.match(argument)
    if match is None:
        raise UsageError(f"Model {argument[:80]!r}: expected hf:org/name@revision.", "Give several as @one,two,three.")
    revisions = [revision for revision in (match["revisions"] or "main").split(",") if revision]
    found = [_describe(_fetch(argument, match["repo"], revision), revision) for revision in revisions]
    return match["repo"].rpartition("/")[2], found


def _describe(folder: Path, revision: str) -> Found:
    told = describe(Path("/") / revision.replace("/", "-"))
    return replace(told, path=folder, is_base=False)


def _fetch(argument: str, repo: str, revision: str) -> Path:
    """Return the folder of one revision: its safetensors, or where there are none its torch files."""
    from huggingface_hub import snapshot_download

    def fetch(patterns: list[str]) -> Path:
        wanted = [*_SETTINGS, *patterns]
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))

    try:
        folder = fetch(["*.safetensors", "*.safetensors.index.json"])
        if not _holds(folder, lambda name: is_candidate(SAFETENSORS, name) or name.startswith("adapter_model")):
            folder = fetch(["pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_model.bin"])
    except Exception as error:  # the hub's client raises its own errors, those of its transport, and the system's
        raise CheckpointError(
            f"{argument}: revision {revision!r} cannot be fetched and is not in the cache "
            f"({type(error).__name__}: {first_line(error)}).",
            "Check name, revision and network, or download it elsewhere and give the folder.",
        ) from None
    kinds = (SAFETENSORS, TORCH)
    if not _holds(folder, lambda name: "adapter" in name or any(is_candidate(kind, name) for kind in kinds)):
        raise CheckpointError(
            f"{argument}: revision {revision!r} holds neither safetensors nor torch weights.", "Give another revision."
        )
    return folder


def _holds(folder: Path, wanted: Callable[[str], bool]) -> bool:
    return folder.is_dir() and any(wanted(entry.name) for entry in folder.iterdir())
