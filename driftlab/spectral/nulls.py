"""What an update of the same size would show anyway: the same magnitudes without their coherence."""

import hashlib

import numpy as np
import torch
from torch import Tensor

from driftlab.errors import UsageError


def null_update(D: Tensor, kind: str, seed: int, key: str) -> Tensor:
    r"""Draw a null of an update.

    ``sign``: :math:`D\circ\varepsilon` with random signs, so that base, support and magnitudes stay. ``permute``:
    the entries of D in random places, so that the support moves too.

    Parameters
    ----------
    D : Tensor of shape (m, n)
        The update.
    kind : str
        ``sign`` or ``permute``.
    seed : int
        The run's seed.
    key : str
        What the draw is for (matrix, run, checkpoint, number): equal keys give equal draws, in any order of the work
        and on any device.

    Returns
    -------
    Tensor of shape (m, n)
        Of the type of D and with its Frobenius norm.

    Raises
    ------
    UsageError
        If the kind is unknown.

    Examples
    --------
    >>> null_update(torch.ones(2, 3), "sign", 0, "a").abs().sum()
    tensor(6.)
    """
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    if kind == "sign":
        packed = np.frombuffer(generator.bytes((D.numel() + 7) // 8), dtype=np.uint8)
        bits = np.unpackbits(packed, count=D.numel())
        signs = torch.from_numpy(bits).to(D.device).reshape(D.shape)
        return torch.where(signs.bool(), -D, D)
    if kind == "permute":
        order = torch.from_numpy(generator.permutation(D.numel())).to(D.device)
        return D.flatten()[order].reshape(D.shape)
    raise UsageError(f"The null: expected sign or permute, found {kind!r}.")
