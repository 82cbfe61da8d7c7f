"""A lone ``torch.save`` file under any name: Lightning's ``.ckpt``, ``consolidated.00.pth``, ``policy.pt``."""

from driftlab.checkpoints.formats import is_loose
from driftlab.checkpoints.readers.statedict import read_state_dict
from driftlab.checkpoints.readers.stored import Stored, by_name
from driftlab.checkpoints.remote import AnyPath
from driftlab.errors import CheckpointError


def read_loose(folder: AnyPath, names: list[str]) -> Stored | None:
    """Return the model in the only such file of a folder, or None where there is none.

    Raises
    ------
    CheckpointError
        If there are several, or the file holds no model that can be read.
    """
    loose = [name for name in names if is_loose(name)]
    if not loose:
        return None
    if len(loose) > 1:
        raise CheckpointError(
            f"{folder}: expected one model, found {len(loose)} torch files ({', '.join(loose[:3])}) and nothing that "
            "says which.",
            "Give the one file as the checkpoint.",
        )
    return read_file(folder / loose[0])


def read_file(file: AnyPath) -> Stored:
    """Return the model in one ``torch.save`` file.

    Raises
    ------
    CheckpointError
        If the file cannot be read or holds no model.
    """
    tensors, digest, notes = read_state_dict(file)
    path = file.parent
    return Stored(path, by_name(file, tensors.items()), digest, frozenset({file.name}), "not the model", tuple(notes))
