"""One tensor of the base through all checkpoints of all runs, and why a tensor is not compared."""

import re
from dataclasses import dataclass, field, replace

from driftlab.checkpoints.names import is_embedding, is_head
from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import WEIGHT_DTYPES, TensorInfo
from driftlab.checkpoints.weights import Weights

_SCALE = re.compile(r"(^|[._])(scales?|scale_inv|zeros|qzeros|g_idx|absmax|quant_map|quant_state)([._]|$)")


@dataclass(frozen=True)
class Checkpoint:
    """One saved model of a run.

    Attributes
    ----------
    path : Path
        Where it lies, as found.
    label, stage : str
        ``math@50`` and ``math``.
    step : int or None
        Step within the stage.
    order : int
        Position in its run, 1 for the first after the base; 0 for a run's own base.
    weights : Weights or None
        Its tensors; None where it cannot be read.
    names : dict of str to str
        Base tensor name to the name in this checkpoint, for the pairs.
    error : str
        Why it cannot be read or compared; empty where it can.
    """

    path: AnyPath
    label: str
    stage: str
    step: int | None
    order: int
    weights: Weights | None
    names: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def digest(self) -> str | None:
        """Digest of the headers."""
        return self.weights.digest if self.weights else None


@dataclass(frozen=True)
class Run:
    """One training run: a name and its checkpoints in order."""

    name: str
    checkpoints: list[Checkpoint]
    ignored: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Member:
    """One checkpoint's share in a track: its tensor, or the reason why there is none to compare."""

    run: str
    checkpoint: Checkpoint
    tensor: TensorInfo | None
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True)
class Track:
    """One tensor of the base through all checkpoints of all runs.

    Attributes
    ----------
    name : str
        The base's name of it.
    base : TensorInfo or None
        None for a tensor that only checkpoints have.
    members : list of Member
        One for each checkpoint of each run, in order.
    left_out : str
        Why the spectral measures do not apply to it; empty where they do.
    excluded : bool
        Whether the user asked to leave it out altogether.
    """

    name: str
    base: TensorInfo | None
    members: list[Member]
    left_out: str = ""
    excluded: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes to read for the whole track."""
        return sum(t.nbytes for t in (self.base, *(m.tensor for m in self.members)) if t is not None)


def left_out(name: str, info: TensorInfo, named: bool = False) -> str:
    """Return why the spectral measures leave a tensor out, or an empty string.

    Spectral measures take two-dimensional linear weights. Embeddings and the output head are left out unless the
    user names them; vectors, scalars, stacks, packed integers and the scales of quantised tensors always are.
    """
    if info.dtype not in WEIGHT_DTYPES:
        return unscaled(info.dtype)
    if info.numel == 0:
        return "empty tensor"
    if len(info.shape) != 2:
        return f"{len(info.shape)}-dimensional: spectral measures take matrices"
    if _SCALE.search(name):
        return "scales of a quantised tensor, not weights"
    if named:
        return ""
    if is_embedding(name):
        return "embedding: left out of the spectral measures by default"
    if is_head(name):
        return "output head: left out of the spectral measures by default"
    return ""


def member(run: str, checkpoint: Checkpoint, name: str, base: Checkpoint, named: bool = False) -> Member:
    """Return a checkpoint's share in the track of base tensor ``name``.

    Parameters
    ----------
    run : str
        The run's name.
    checkpoint, base : Checkpoint
        Whose tensors are paired; the base is readable.
    name : str
        A tensor of the base.
    named : bool, default False
        Whether the user asked for it by name: then it is compared whole, or not at all.
    """
    assert base.weights is not None
    origin = base.weights.tensors[name]
    if checkpoint.error or checkpoint.weights is None:
        return Member(run, checkpoint, None, "failed", checkpoint.error)
    tensor = checkpoint.weights.tensors.get(checkpoint.names.get(name, ""))
    if tensor is None:
        return Member(run, checkpoint, None, "skipped", "not stored in this checkpoint" + tie(name, checkpoint))
    if is_head(name) and not named and _counted_as_embedding(base) and _counted_as_embedding(checkpoint):
        return Member(run, checkpoint, tensor, "skipped", "tied to the embedding: counted there")
    if tensor.dtype not in WEIGHT_DTYPES and origin.dtype in WEIGHT_DTYPES:
        return Member(run, checkpoint, tensor, "skipped", unscaled(tensor.dtype))
    if tensor.shape != origin.shape:
        return _resized(Member(run, checkpoint, tensor), name, origin, named)
    return Member(run, checkpoint, tensor)


def tie(name: str, checkpoint: Checkpoint) -> str:
    """Return what an output head that a checkpoint does not store is replaced by, as far as its config tells."""
    if not is_head(name) or checkpoint.weights is None or checkpoint.weights.tied is False:
        return ""
    return ": tied to the embedding" if checkpoint.weights.tied else ": perhaps tied to the embedding"


def _counted_as_embedding(checkpoint: Checkpoint) -> bool:
    weights = checkpoint.weights
    return weights is not None and weights.tied is True and any(is_embedding(name) for name in weights.tensors)


def _resized(found: Member, name: str, base: TensorInfo, named: bool) -> Member:
    """Compare the common rows of a grown or shrunk vocabulary; other shapes do not pair."""
    assert found.tensor is not None
    tensor = found.tensor
    reason = f"shape {_shape(base)} in the base, {_shape(tensor)} here"
    vocabulary = (is_embedding(name) or is_head(name)) and len(base.shape) == len(tensor.shape) == 2
    if named or not vocabulary or tensor.shape[1] != base.shape[1]:
        return replace(found, status="skipped", reason=reason)
    rows = min(base.shape[0], tensor.shape[0])
    return replace(found, tensor=tensor.rows(0, rows), reason=f"{reason}: the {rows} common rows were compared")


def unscaled(dtype: str) -> str:
    """Return why a stored type is not compared."""
    if dtype.startswith("F"):
        return f"stored as {dtype}: its values are no weights without their scales; dequantise the checkpoint first"
    return f"stored as {dtype}: not a floating-point weight"


def _shape(info: TensorInfo) -> str:
    return "x".join(map(str, info.shape))
