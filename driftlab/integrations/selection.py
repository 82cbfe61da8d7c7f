"""Which matrices of a model are measured while it trains: all of them would be too many."""

import re
from collections.abc import Mapping

from driftlab.checkpoints.names import is_embedding, is_head, natural_key, place
from driftlab.errors import UsageError

Shape = tuple[int, ...]


def choose(
    shapes: Mapping[str, Shape], include: str | None = None, largest: int = 0, every_layer: int = 0
) -> list[str]:
    """Choose matrices by one of three rules, else a small representative set.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        The trained matrices, by name.
    include : str, optional
        A regular expression searched in the name; takes embeddings and the output head where it matches them.
    largest : int, default 0
        Take so many matrices of the most entries.
    every_layer : int, default 0
        Take every matrix of every n-th layer, and of the last.

    Returns
    -------
    list of str
        Names in natural order. The representative set is the largest attention matrix and the largest other matrix of
        the first, the middle and the last layer.

    Raises
    ------
    UsageError
        If more than one rule is given, the expression is invalid, or nothing is left.

    Examples
    --------
    >>> shapes = {f"layers.{i}.{m}.weight": (8, 8) for i in range(9) for m in ("attn.q", "attn.k", "mlp.up")}
    >>> choose(shapes, every_layer=8, include=None)[:2]
    ['layers.0.attn.k.weight', 'layers.0.attn.q.weight']
    >>> choose(shapes)
    ['layers.0.attn.k.weight', 'layers.0.mlp.up.weight', 'layers.4.attn.k.weight', 'layers.4.mlp.up.weight', \
'layers.8.attn.k.weight', 'layers.8.mlp.up.weight']
    """
    if (include is not None) + bool(largest) + bool(every_layer) > 1:
        raise UsageError("The matrices: expected one of include, largest and every_layer, found more.")
    if largest < 0 or every_layer < 0:
        raise UsageError(f"largest and every_layer: expected at least 1, found {min(largest, every_layer)}.")
    names = sorted((name for name, shape in shapes.items() if len(shape) == 2), key=natural_key)
    if include is not None:
        chosen = _matching(names, include)
    else:
        plain = [name for name in names if not is_embedding(name) and not is_head(name)]
        if largest:
            by_size = sorted(plain, key=lambda name: -shapes[name][0] * shapes[name][1])
            chosen = [name for name in plain if name in set(by_size[:largest])]
        else:
            chosen = _of_layers(plain, every_layer) if every_layer else _representative(plain, shapes)
    if not chosen:
        example = next(iter(names or shapes), "(none)")
        raise UsageError(
            f"The matrices: expected at least one trained matrix, found none of {len(shapes)} trained weights; names "
            f"look like {example!r}.",
            "Choose with include=REGEX.",
        )
    return chosen


def _matching(names: list[str], include: str) -> list[str]:
    try:
        pattern = re.compile(include)
    except re.error as error:
        raise UsageError(f"include {include!r}: not a regular expression ({error}).") from None
    return [name for name in names if pattern.search(name)]


def _layers(names: list[str]) -> list[int]:
    return sorted({layer for name in names if (layer := place(name).layer) is not None})


def _of_layers(names: list[str], every: int) -> list[str]:
    layers = _layers(names)
    kept = {*layers[::every], *layers[-1:]}
    return [name for name in names if place(name).layer in kept]


def _representative(names: list[str], shapes: Mapping[str, Shape]) -> list[str]:
    layers = _layers(names)
    if not layers:
        return names[:6]
    kept = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    chosen = []
    for layer in kept:
        inside = [name for name in names if place(name).layer == layer and place(name).expert in (None, 0)]
        for attention in (True, False):
            kind = [name for name in inside if ("att" in place(name).role.lower()) is attention]
            chosen += sorted(kind, key=lambda name: -shapes[name][0] * shapes[name][1])[:1]
    return [name for name in names if name in set(chosen)]
