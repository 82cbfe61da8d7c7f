"""Tensors that are made of stored ones when they are read: turned, cut, joined or scaled, one at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from driftlab.checkpoints.remote import AnyPath
from driftlab.checkpoints.tensorfile import DTYPES, TensorInfo
from driftlab.errors import CheckpointError, first_line

Recipe = Callable[[list[Tensor]], Tensor]
"""What makes one tensor of the parts that were read; a module-level function or a partial of one."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Made(TensorInfo):
    """A tensor made of others when it is read.

    ``start`` and ``stop`` are a range of bytes of the whole that ``recipe`` makes of ``parts``, so that slabs of it
    are described as those of a stored tensor are.
    """

    parts: tuple[TensorInfo, ...] = ()
    recipe: Recipe = lambda parts: parts[0]

    def read(self) -> Tensor:
        """Read the parts, make the whole, and return the range asked for.

        Raises
        ------
        CheckpointError
            If a part cannot be read, or the parts do not make what was announced.
        """
        try:
            whole = self.recipe([part.read() for part in self.parts])
        except (RuntimeError, ValueError, IndexError, KeyError, EOFError) as error:
            raise CheckpointError(
                f"{self.file}: tensor {self.name} cannot be put together ({first_line(error)}).",
                "Its parts do not fit: copy or save the checkpoint again.",
            ) from None
        dtype = DTYPES[self.dtype]
        first, last = self.start // dtype.itemsize, self.stop // dtype.itemsize
        if whole.dtype != dtype or whole.numel() < last:
            raise CheckpointError(
                f"{self.file}: tensor {self.name} was announced as {self.dtype} with {last} entries or more, its parts "
                f"make {whole.numel()} of {whole.dtype}.",
                "Copy or save the checkpoint again.",
            )
        flat = whole.reshape(-1)
        part = flat if flat.numel() == last - first else flat[first:last].clone()
        return part.reshape(self.shape)


@dataclass(frozen=True)
class MadeStack(Made):
    """A stack of matrices each of which can be made by itself, of the same place in every part."""

    def item(self, i: int) -> Made:  # type: ignore[override]
        """Return the i-th matrix: only its share of the parts is read."""
        return made(self.name, self.shape[1:], self.dtype, [part.item(i) for part in self.parts], self.recipe)


def made(
    name: str, shape: tuple[int, ...], dtype: str, parts: list[TensorInfo], recipe: Recipe, file: AnyPath | None = None
) -> Made:
    """Return a whole made tensor; ``file`` is the one to blame, by default that of the first part."""
    first = parts[0]
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    return Made(name, dtype, shape, file or first.file, 0, nbytes, first.stamp, tuple(parts), recipe)


def turned(info: TensorInfo) -> TensorInfo:
    """Return the transposed matrix."""
    return made(info.name, (info.shape[1], info.shape[0]), info.dtype, [info], _turn)


def picked_rows(info: TensorInfo, pick: Callable[[Tensor], Tensor], rows: int) -> TensorInfo:
    """Return some rows of a tensor, in the order that ``pick`` gives them."""
    return made(info.name, (rows, *info.shape[1:]), info.dtype, [info], partial(_pick, pick))


def joined(name: str, parts: list[TensorInfo], dim: int) -> TensorInfo:
    """Return the parts one after the other along a dimension."""
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return made(name, tuple(shape), parts[0].dtype, parts, partial(_join, dim))


def _turn(parts: list[Tensor]) -> Tensor:
    return parts[0].mT.contiguous()


def _pick(pick: Callable[[Tensor], Tensor], parts: list[Tensor]) -> Tensor:
    return pick(parts[0]).contiguous()


def _join(dim: int, parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim)
