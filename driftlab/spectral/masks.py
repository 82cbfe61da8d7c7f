"""Masks over the entries of a matrix: the principal ones, the small ones, the changed ones, and their overlaps."""

import math

import numpy as np
import torch
from torch import Tensor

from driftlab.errors import ShapeError
from driftlab.spectral.spectrum import ratio

_SAMPLE = 1 << 14


def mask_size(fraction: float, numel: int) -> int:
    """Return the number of entries in a mask, ``fraction * numel`` rounded half up.

    Examples
    --------
    >>> mask_size(0.1, 25)
    3
    """
    return math.floor(fraction * numel + 0.5)


def largest_mask(values: Tensor, count: int, tolerance: float = 0.0) -> Tensor:
    """Mark exactly ``count`` entries of largest magnitude; among equals the smaller flat index wins.

    Parameters
    ----------
    values : Tensor of any shape
        Finite entries.
    count : int
        0 … number of entries.
    tolerance : float, default 0.0
        Magnitudes this close to the smallest one taken count as equal to it.

    Returns
    -------
    Tensor of bool, shape of ``values``
        With exactly ``count`` true entries.

    Raises
    ------
    ShapeError
        If ``count`` is out of range.

    Examples
    --------
    >>> largest_mask(torch.tensor([[1.0, -3.0], [3.0, -3.0]]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    return _extreme_mask(values.detach().abs(), count, tolerance, largest=True)[0]


def largest_of(magnitude: Tensor, count: int) -> tuple[Tensor, float]:
    """Return :func:`largest_mask` of non-negative values, and the smallest value it holds."""
    return _extreme_mask(magnitude, count, 0.0, largest=True)


def smallest_mask(values: Tensor, count: int) -> Tensor:
    """Mark exactly ``count`` entries of smallest magnitude; among equals the smaller flat index wins.

    The counterpart of :func:`largest_mask`, with the same arguments and errors.

    Examples
    --------
    >>> smallest_mask(torch.tensor([0.0, 2.0, -1.0, 0.0]), 1)
    tensor([ True, False, False, False])
    """
    return _extreme_mask(values.detach().abs(), count, 0.0, largest=False)[0]


def _extreme_mask(magnitude: Tensor, count: int, tolerance: float, *, largest: bool) -> tuple[Tensor, float]:
    numel = magnitude.numel()
    if not 0 <= count <= numel:
        raise ShapeError(f"count: expected 0 to {numel}, found {count}.")
    if count in (0, numel):
        return torch.full(magnitude.shape, count == numel, device=magnitude.device), math.nan
    magnitude = magnitude.contiguous()  # a flat index means row-major order, whatever the input's strides
    threshold = _kth_smallest(magnitude.flatten(), numel - count if largest else count - 1)
    mask = magnitude >= threshold - tolerance if largest else magnitude <= threshold
    surplus = count_true(mask) - count
    if surplus:
        tied = magnitude <= threshold + tolerance if largest else magnitude >= threshold
        ties = torch.nonzero((mask & tied).flatten()).flatten()
        mask.view(-1)[ties[len(ties) - surplus :]] = False
    return mask, threshold


def _kth_smallest(values: Tensor, index: int) -> float:
    """Return the value of rank ``index`` (0 is the smallest)."""
    if values.device.type != "cpu":
        return float(torch.kthvalue(values, index + 1).values)
    known = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
    flat: np.ndarray = known.numpy()  # NumPy's introselect is an order of magnitude faster than torch.kthvalue
    if len(flat) > 4 * _SAMPLE:
        low, high = _bracket(flat, index / len(flat))
        rank = index - int(np.count_nonzero(flat < low))
        inside = flat[(flat >= low) & (flat <= high)]
        if 0 <= rank < len(inside):
            return float(np.partition(inside, rank)[rank])
    return float(np.partition(flat, index)[index])


def _bracket(flat: np.ndarray, quantile: float) -> tuple[float, float]:
    """Guess two values with the wanted one between them, from a sample: five standard deviations of its rank."""
    sample = np.sort(flat[:: len(flat) // _SAMPLE | 1])
    spread = 5 * math.sqrt(quantile * (1 - quantile) / len(sample)) + 1 / len(sample)
    low, high = (min(max(quantile + side * spread, 0.0), 1.0) for side in (-1, 1))
    last = len(sample) - 1
    return float(sample[math.floor(low * last)]), float(sample[math.ceil(high * last)])


def iou(left: Tensor, right: Tensor) -> float:
    """Intersection over union of two masks.

    Parameters
    ----------
    left, right : Tensor of bool, one shape

    Returns
    -------
    float
        Dimensionless, in [0, 1]; 1 for equal masks. NaN where both are empty.

    Raises
    ------
    ShapeError
        If shapes or types differ.

    References
    ----------
    "Denser ≠ Better", arXiv 2607.01763, appendices A.12 and A.14.

    Examples
    --------
    >>> iou(torch.tensor([True, True, False]), torch.tensor([True, False, True]))
    0.3333333333333333
    """
    _check_masks(left, right)
    both = count_both(left, right)
    return ratio(both, count_true(left) + count_true(right) - both)


def share_inside(changed: Tensor, mask: Tensor) -> float:
    """Share of the changed entries that lie inside a mask, ``|mask ∩ changed| / |changed|``.

    Parameters
    ----------
    changed, mask : Tensor of bool, one shape

    Returns
    -------
    float
        Dimensionless, in [0, 1]; a random update gives the mask's fraction. NaN where nothing changed.

    Raises
    ------
    ShapeError
        If shapes or types differ.

    References
    ----------
    "The Path Not Taken", arXiv 2511.08567.

    Examples
    --------
    >>> share_inside(torch.tensor([True, True]), torch.tensor([True, False]))
    0.5
    """
    _check_masks(changed, mask)
    return ratio(count_both(changed, mask), count_true(changed))


def count_both(left: Tensor, right: Tensor) -> int:
    """Count the entries true in both masks."""
    return count_true(left & right)


def count_true(mask: Tensor) -> int:
    """Count the true entries of a mask."""
    if mask.device.type == "cpu":  # NumPy's count is an order of magnitude faster than torch's
        return int(np.count_nonzero(mask.numpy()))
    return int(torch.count_nonzero(mask))


def changed_mask(base: Tensor, new: Tensor) -> Tensor:
    """Mark the entries that an update changed, at the resolution of bfloat16.

    Both values are rounded to bfloat16 and compared with a relative tolerance of 1e-3, which for bfloat16 is the
    same as "not equal", its spacing being at least 2⁻⁸ relative. Two float16 matrices are compared as stored
    instead: their spacing lies below that tolerance.

    Parameters
    ----------
    base, new : Tensor of one shape, in their stored types
        For float32 files the mask says what would change after rounding to bfloat16, and means less.

    Returns
    -------
    Tensor of bool

    Raises
    ------
    ShapeError
        If shapes differ.

    References
    ----------
    "The Path Not Taken", arXiv 2511.08567, definition 2.1.

    Examples
    --------
    >>> base = torch.ones(4)
    >>> changed_mask(base, base + torch.tensor([2**-9, 2**-8, 2**-8 + 2**-12, 2**-7]))
    tensor([False, False,  True,  True])
    """
    if base.shape != new.shape:
        raise ShapeError(f"Matrices: expected one shape, found {tuple(base.shape)} and {tuple(new.shape)}.")
    if base.dtype == new.dtype == torch.float16:
        return base != new
    return base.bfloat16() != new.bfloat16()


def random_iou(fraction: float, density: float) -> float:
    r"""Return the IoU expected of a mask and a random update of this density, :math:`fu/(f+u-fu)`.

    Parameters
    ----------
    fraction : float
        f, the mask's share of the entries, in [0, 1].
    density : float
        u, the update's share of the entries, in [0, 1].

    Returns
    -------
    float
        Dimensionless, in [0, 1]; f where everything changed, 0 where nothing did.

    Examples
    --------
    >>> random_iou(0.1, 1.0)
    0.1
    """
    return ratio(fraction * density, fraction + density - fraction * density)


def _check_masks(left: Tensor, right: Tensor) -> None:
    if left.dtype != torch.bool or right.dtype != torch.bool or left.shape != right.shape:
        raise ShapeError(
            f"Masks: expected two bool tensors of one shape, found {left.dtype} {tuple(left.shape)} and {right.dtype} "
            f"{tuple(right.shape)}."
        )
