"""Tensor names: wrappers taken off, layer and role read out, names of two checkpoints paired."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from driftlab.errors import CheckpointError

_WRAPPERS = re.compile(r"(^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")
_EXPERT = re.compile(r"\.experts?\.(\d+)(?=\.)")
_NUMBER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_EMBEDDING = re.compile(r"embed|(^|\.)(wte|wpe|shared|relative_attention_bias)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|score|classifier)\.|^output\.weight$")
_PREFIX = re.compile(r"^(?:(?:base_model|model|language_model|transformer)\.)+")
_TOWER = re.compile(r"(?:^|\.)((?:visual|vision|audio|encoder|decoder)\w*)(?=\.)")


@dataclass(frozen=True)
class Place:
    """Where a matrix sits in the model.

    Attributes
    ----------
    layer : int or None
        The first number in its name, the index of the block.
    role : str
        The module within the block with expert numbers taken out, ``self_attn.q_proj`` for instance. The name of a
        tower stands before it where a model has several: ``visual.attn.qkv``, ``decoder.layer.0.SelfAttention.q``.
    expert : int or None
        The expert's index in a mixture-of-experts block.
    """

    layer: int | None
    role: str
    expert: int | None


def unwrap(name: str) -> str:
    """Take off the prefixes that torch.compile, DDP, FSDP and activation checkpointing put into names.

    Examples
    --------
    >>> unwrap("_orig_mod.module.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    before = None
    while before != name:
        before, name = name, _WRAPPERS.sub("", name)
    return name


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that orders embedded numbers by value: layer 2 before layer 10.

    Examples
    --------
    >>> sorted(["checkpoint-1000", "checkpoint-500"], key=natural_key)
    ['checkpoint-500', 'checkpoint-1000']
    """
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def place(name: str) -> Place:
    """Read layer, role and expert out of a tensor name.

    Examples
    --------
    >>> place("model.layers.7.mlp.experts.3.up_proj.weight")
    Place(layer=7, role='mlp.experts.up_proj', expert=3)
    >>> place("lm_head.weight")
    Place(layer=None, role='lm_head', expert=None)
    """
    expert = _EXPERT.search(name)
    number = int(expert[1]) if expert else None
    stem = _EXPERT.sub(".experts", name).removesuffix(".weight")
    layer = _NUMBER.search(stem)
    if layer is None:
        return Place(None, _PREFIX.sub("", stem), number)
    tower = _TOWER.search(stem[: layer.start()])
    role = stem[layer.end() + 1 :]
    return Place(int(layer[1]), f"{tower[1]}.{role}" if tower else role, number)


def is_embedding(name: str) -> bool:
    """Whether a tensor is an embedding table, by its name."""
    return _EMBEDDING.search(name) is not None and not is_head(name)


def is_head(name: str) -> bool:
    """Whether a tensor is the output head, by its name."""
    return _HEAD.search(name) is not None


def pair(base: Iterable[str], other: Iterable[str], where: str) -> dict[str, str]:
    """Pair the tensor names of a checkpoint with those of the base.

    Names are compared as they are, then without the prefixes that a re-save by another class of the same model adds
    or drops (``model.`` and ``model.language_model.`` for instance); the way that pairs more of them is taken.

    Parameters
    ----------
    base, other : iterable of str
        Unwrapped names.
    where : str
        The checkpoint, for the message.

    Returns
    -------
    dict of str to str
        Base name to the checkpoint's name, for every pair.

    Raises
    ------
    CheckpointError
        If fewer than half of the smaller side pair.
    """
    left, right = list(base), list(other)
    best: dict[str, str] = {}
    for style in (str, _strip_prefix):
        here, there = {style(name): name for name in left}, {style(name): name for name in right}
        if len(here) < len(left) or len(there) < len(right):
            continue  # two names would become one
        found = {here[key]: there[key] for key in here if key in there}
        if len(found) > len(best):
            best = found
    if 2 * len(best) < min(len(left), len(right)) or not best:
        raise CheckpointError(
            f"{where}: only {len(best)} of {len(right)} tensor names agree with the base; the base has names like "
            f"{_example(left)!r}, this checkpoint like {_example(right)!r}.",
            "Check that --base is the model this run started from.",
        )
    return best


def _strip_prefix(name: str) -> str:
    return _PREFIX.sub("", name)


def _example(names: list[str]) -> str:
    numbered = [name for name in names if _NUMBER.search(name)]
    return (numbered or names or ["(none)"])[0]
