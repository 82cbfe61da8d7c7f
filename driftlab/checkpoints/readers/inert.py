"""Stand-ins for the classes of trainers that checkpoints mention: they hold what they are given and do nothing."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from driftlab.errors import CheckpointError, first_line

_TRAINERS = (
    "deepspeed.",
    "lightning.",
    "lightning_fabric.",
    "pytorch_lightning.",
    "megatron.",
    "omegaconf.",
    "transformers.",
    "verl.",
    "argparse.Namespace",
    "pathlib.",
)
"""Modules whose objects lie beside weights (settings, loss scalers); not their code but a stand-in is used."""
_DISTRIBUTED = "torch.distributed.tensor"
_OLD_DISTRIBUTED = "torch.distributed._tensor"


class Inert:
    """Holds the arguments and the state of an object whose class is not loaded."""

    def __new__(cls, *args: Any) -> "Inert":
        """Make one, whatever the arguments."""
        made = super().__new__(cls)
        made.__dict__["arguments"] = args
        return made

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Keep the state as it is."""
        self.__dict__["state"] = state


@contextmanager
def stand_ins(file: Path) -> Iterator[None]:
    """Permit what a torch file mentions beyond plain tensors: as stand-ins, or refuse it by name.

    Raises
    ------
    CheckpointError
        If it asks for anything that is neither a distributed tensor nor of a known trainer.
    """
    try:
        asked = torch.serialization.get_unsafe_globals_in_checkpoint(file)
        if any(name.startswith("torch.distributed.") for name in asked):
            importlib.import_module(_DISTRIBUTED)  # torch permits its distributed tensors once that is loaded
            asked = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:  # the scan of a damaged pickle fails in as many ways as its reading
        raise CheckpointError(
            f"{file}: its pickle cannot be read ({first_line(error)}).", "Copy or save it again."
        ) from None
    permitted = [(_stand_in(file, name), name) for name in asked]
    with torch.serialization.safe_globals(permitted):  # type: ignore[arg-type]
        yield


def _stand_in(file: Path, name: str) -> Any:
    if name.startswith(_OLD_DISTRIBUTED + "."):
        found = getattr(importlib.import_module(_DISTRIBUTED), name.rpartition(".")[2], None)
        if found is not None:
            return found
    if name.startswith(_TRAINERS):
        return Inert
    raise CheckpointError(
        f"{file}: asks for {name}, which is neither a tensor nor a known trainer's setting; nothing of it was run.",
        "If you trust its origin, load it yourself and save the weights as safetensors.",
    )
