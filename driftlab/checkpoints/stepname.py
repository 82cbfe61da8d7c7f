"""What the name of a checkpoint says: stage, step and label; or the ``driftlab.json`` in it, which goes first.

Known habits: driftlab's own ``000010-math@10``, HF Trainer and TRL ``checkpoint-500``, verl ``global_step_10``,
prime-rl ``step_5``, OpenRLHF ``global_step10_hf``, ``iter_0000010``, plain numbers, each with an optional stage name
before it.
"""

import re
from dataclasses import dataclass
from typing import Any

from driftlab.checkpoints.disk import read_object
from driftlab.checkpoints.formats import WEIGHT_SUFFIXES
from driftlab.checkpoints.remote import AnyPath, absolute

_OWN = re.compile(r"^(?P<global>\d{6,})-(?P<label>(?P<stage>[^@]+)(?:@(?P<step>\d+))?)$")
_STEP = re.compile(
    r"^(?:(?P<stage>.+?)[-_.])??(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?(?P<step>\d+)(?:[-_]hf)?$",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"^(?P<step>\d+)$")
_UNFINISHED = re.compile(r"^tmp[-_.]|[-_.](tmp|incomplete|partial)([-_.]|$)", re.IGNORECASE)
_INNER = ("actor", "huggingface", "hf", "hf_model", "policy", "weights", "model")
_HOLDERS = ("checkpoints", "weights", "ckpt", "ckpts", "models")
DEFAULT_STAGE = "train"


@dataclass(frozen=True)
class Found:
    """One checkpoint as its name or its ``driftlab.json`` describes it.

    Attributes
    ----------
    path : Path
        Where it lies, as given.
    stage : str
        Empty where the name tells neither stage nor step.
    step : int or None
        Step within the stage.
    label : str
        ``math@50``, or the plain name.
    position : int or None
        Step counted over all stages of the run, where that is known.
    is_base : bool
        Whether it is the start of its run.
    """

    path: AnyPath
    stage: str
    step: int | None
    label: str
    position: int | None = None
    is_base: bool = False


def describe(path: AnyPath) -> Found:
    """Read stage, step and label of one checkpoint from ``driftlab.json``, else from its name."""
    name = stem(home(path))
    meta = read_object(path / "driftlab.json") if path.is_dir() else {}
    own = _OWN.match(name)
    if meta or own:
        stage = str(meta.get("stage") or (own["stage"] if own else "") or DEFAULT_STAGE)
        step = _integer(meta.get("step"), own["step"] if own else None)
        position = _integer(meta.get("global_step"), own["global"] if own else None)
        label = str(meta.get("label") or (own["label"] if own else f"{stage}@{step}"))
        return Found(path, stage, step, label, position, is_base=label == "base")
    match = _STEP.match(name) or _NUMBERED.match(name)
    if match is None:
        return Found(path, "", None, name, is_base=name == "base")
    stage = match.groupdict().get("stage") or DEFAULT_STAGE
    return Found(path, stage, int(match["step"]), f"{stage}@{int(match['step'])}")


def home(path: AnyPath) -> AnyPath:
    """Return the absolute path whose name carries the step: verl's ``global_step_10`` above ``actor/huggingface``.

    A file called ``model.safetensors`` stands for its folder.
    """
    whole = absolute(path)
    above = whole
    while stem(above) in _INNER:
        above = above.parent
    if is_step(stem(above)):
        return above
    return whole.parent if whole.name == "model.safetensors" else whole


def stage_folder(path: AnyPath) -> str:
    """Return the name of the folder a checkpoint's stage is called after: the first above it with a name of its own."""
    return next((folder.name for folder in home(path).parents if folder.name not in _HOLDERS), "") or "run"


def is_step(name: str) -> bool:
    """Whether a name has the form of a step.

    Examples
    --------
    >>> [is_step(name) for name in ("checkpoint-500", "global_step10_hf", "000010-math@10", "best")]
    [True, True, True, False]
    """
    return any(pattern.match(name) for pattern in (_OWN, _STEP, _NUMBERED))


def is_unfinished(name: str) -> bool:
    """Whether a name is one that trainers rename when the checkpoint is whole.

    Examples
    --------
    >>> [is_unfinished(name) for name in ("tmp-checkpoint-500", "step_5.tmp", ".cache", "checkpoint-500")]
    [True, True, False, False]
    """
    return _UNFINISHED.search(name) is not None


def stem(path: AnyPath) -> str:
    """Return a folder's name, or a weight file's without its suffix."""
    return path.stem if path.suffix in WEIGHT_SUFFIXES else path.name


def is_holder(name: str) -> bool:
    """Whether a folder of that name holds the checkpoints of the run above it."""
    return name in _HOLDERS


def _integer(*candidates: Any) -> int | None:
    for value in candidates:
        if isinstance(value, (int, str)) and str(value).isdecimal():
            return int(value)
    return None
