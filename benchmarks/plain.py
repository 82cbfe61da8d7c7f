"""The plain loop: what people write to measure drift, in float32, for the benchmarks to stand beside."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlainBase:
    """A base matrix and its float32 decomposition."""

    W: Tensor
    U: Tensor
    S: Tensor
    Vh: Tensor
    mask: Tensor

    @classmethod
    def of(cls, stored: Tensor, r: int, fraction: float) -> "PlainBase":
        """Decompose a base once."""
        W = stored.float()
        U, S, Vh = torch.linalg.svd(W, full_matrices=False)
        return cls(W, U, S, Vh, plain_mask(U, S, Vh, r, fraction))


def plain_mask(U: Tensor, S: Tensor, Vh: Tensor, r: int, fraction: float) -> Tensor:
    """Mark the largest entries of the rank-r reconstruction."""
    truncated = (U[:, :r] * S[:r]) @ Vh[:r]
    count = round(fraction * truncated.numel())
    mask = torch.zeros(truncated.numel(), dtype=torch.bool, device=truncated.device)
    mask[truncated.abs().flatten().topk(count).indices] = True
    return mask.reshape(truncated.shape)


def plain_drift(
    base: PlainBase, base_stored: Tensor, stored: Tensor, k: int, r: int, fraction: float
) -> dict[str, float]:
    """Measure one checkpoint's matrix: spectrum, angles on both sides, masks, sparsity, norms."""
    W = stored.float()
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    D = W - base.W
    left = torch.linalg.svdvals(base.U[:, :k].T @ U[:, :k]).clamp(-1, 1)
    right = torch.linalg.svdvals(base.Vh[:k] @ Vh[:k].T).clamp(-1, 1)
    mask = plain_mask(U, S, Vh, r, fraction)
    changed = stored != base_stored
    return {
        "nss": float((S - base.S).norm() / base.S.norm()),
        "max_angle_left_deg": float(torch.rad2deg(torch.arccos(left.min()))),
        "max_angle_right_deg": float(torch.rad2deg(torch.arccos(right.min()))),
        "mask_overlap": float((mask & base.mask).sum() / (mask | base.mask).sum()),
        "mask_update_iou": float((changed & base.mask).sum() / (changed | base.mask).sum()),
        "update_density": float(changed.float().mean()),
        "rel_frobenius": float(D.norm() / base.W.norm()),
        "rel_spectral": float(torch.linalg.matrix_norm(D, 2) / base.S[0]),
    }
