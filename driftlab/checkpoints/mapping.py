"""A tensor as a map of its file: no copy of its own, and several workers of one machine share its pages.

A file that shrinks while it is mapped ends the process; reading (the default) gives a sentence instead. Remote
files are read.
"""

import mmap
import os

import numpy as np
import torch

from driftlab.checkpoints.remote import RemotePath
from driftlab.checkpoints.tensorfile import DTYPES, TensorInfo
from driftlab.errors import CheckpointError


def map_tensor(info: TensorInfo) -> torch.Tensor:
    """Return a tensor whose memory is its file, its pages fetched already.

    Writing to it changes neither the file nor other maps. A tensor that does not lie on a multiple of its entries'
    size, or is float64 and would be computed with as it lies, is copied: results must not depend on where it lies.

    Raises
    ------
    CheckpointError
        As :meth:`driftlab.checkpoints.tensorfile.TensorInfo.read`.
    """
    dtype = DTYPES.get(info.dtype)
    if dtype is None or not info.nbytes or isinstance(info.file, RemotePath):
        return info.read()
    first = info.start - info.start % mmap.ALLOCATIONGRANULARITY
    try:
        with info.file.open("rb") as handle:
            found = os.fstat(handle.fileno())
            if (found.st_size, found.st_mtime_ns) != info.stamp:
                return info.read()  # says what is wrong
            mapped = mmap.mmap(handle.fileno(), info.stop - first, access=mmap.ACCESS_COPY, offset=first)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{info.file}: cannot be mapped ({error}).", "Use --io read.") from None
    raw = np.frombuffer(mapped, dtype=np.uint8, offset=info.start - first)
    raw[:: mmap.PAGESIZE].max()  # touch every page now, in the reader's thread
    if info.start % dtype.itemsize or dtype == torch.float64:
        raw = raw.copy()
    return torch.from_numpy(raw).view(dtype).reshape(info.shape)
