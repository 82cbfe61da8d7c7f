"""The integrity of a sequence: every checkpoint's headers against its files, its tensors against the base, its values.

Headers, sizes, indexes and links are checked whenever a sequence is opened; here the findings are gathered, and on
request every value is read once.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from driftlab.checkpoints.lowrank import LowRank
from driftlab.checkpoints.sequence import CheckpointSequence
from driftlab.checkpoints.tensorfile import TensorInfo
from driftlab.checkpoints.tracks import Checkpoint
from driftlab.errors import CheckpointError

_SLICE = 1 << 24
WRONG = ("unreadable", "not finite", "other model")


@dataclass(frozen=True)
class Finding:
    """One thing about one checkpoint.

    Attributes
    ----------
    run, label, tensor : str
        Where; ``tensor`` is empty where the whole checkpoint is meant.
    kind : str
        ``unreadable``, ``not finite`` and ``other model`` are wrong; ``zero``, ``same as before`` and ``missing`` may
        be meant so.
    text : str
        One sentence.
    """

    run: str
    label: str
    tensor: str
    kind: str
    text: str

    @property
    def wrong(self) -> bool:
        """Whether something is wrong, not only worth a look."""
        return self.kind in WRONG


def check(
    sequence: CheckpointSequence, values: bool = False, on_tensor: Callable[[int, str], None] = lambda n, name: None
) -> Iterator[Finding]:
    """Yield what is wrong or odd in a sequence, base first, checkpoint by checkpoint.

    Parameters
    ----------
    sequence : CheckpointSequence
        What to check.
    values : bool, default False
        Read every tensor once: NaN and infinity, zeros, checkpoints equal to the one before.
    on_tensor : callable, optional
        Called with (bytes read, tensor name) after each tensor.
    """
    before: dict[str, tuple[str, str]] = {}
    for run, checkpoint in [("-", sequence.base), *sequence.checkpoints]:
        weights = checkpoint.weights
        if checkpoint.error or weights is None:
            kind = "unreadable" if weights is None else "other model"
            yield Finding(run, checkpoint.label, "", kind, checkpoint.error)
            continue
        yield from _missing(run, checkpoint, sequence.base)
        if values:
            digest = hashlib.sha256()
            for name, info in weights.tensors.items():
                yield from _values(run, checkpoint.label, name, info, digest.update)
                on_tensor(info.nbytes, name)
            previous = before.get(run) or before.get("-")
            if previous and previous[0] == digest.hexdigest():
                text = f"every value is that of {previous[1]}: was it trained, and was it merged?"
                yield Finding(run, checkpoint.label, "", "same as before", text)
            before[run] = (digest.hexdigest(), checkpoint.label)


def _missing(run: str, checkpoint: Checkpoint, base: Checkpoint) -> Iterator[Finding]:
    """Tensors of the base that a checkpoint lacks, counted."""
    if checkpoint is base or base.weights is None:
        return
    absent = [name for name in base.weights.tensors if name not in checkpoint.names]
    if absent:
        text = f"{len(absent)} tensors of the base are not stored, {absent[0]} for instance"
        yield Finding(run, checkpoint.label, absent[0], "missing", text)


def _values(run: str, label: str, name: str, info: TensorInfo, take: Callable[[bytes], None]) -> Iterator[Finding]:
    try:
        if isinstance(info, LowRank):
            update = info.update()
            tensors = [update.B, update.A]
        else:
            tensors = [info.read()]
    except CheckpointError as error:
        yield Finding(run, label, name, "unreadable", str(error))
        return
    bad, nonzero = 0, False
    for part in (piece for tensor in tensors for piece in _pieces(tensor)):
        take(part.view(torch.uint8).numpy().tobytes())
        if part.dtype.is_floating_point:
            wide = part.float() if part.dtype.itemsize < 4 else part
            bad += int((~torch.isfinite(wide)).sum())
            nonzero = nonzero or bool((wide != 0).any())
        else:
            nonzero = True
    if bad:
        text = f"{bad} of {info.numel} values are NaN or infinite"
        yield Finding(run, label, name, "not finite", text)
    elif not nonzero and len(info.shape) >= 2 and info.numel:
        yield Finding(run, label, name, "zero", "every value is zero")


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.reshape(-1)
    for i in range(0, flat.numel(), _SLICE):
        yield flat[i : i + _SLICE].contiguous()
