r"""An update seen from the base's singular vectors: the small matrices that all tracked numbers are made of.

With :math:`W_0=U\Sigma V^T` (m ≤ n), :math:`W_1=W_0+D`, :math:`X=U^TD` and :math:`E=XV`,

.. math:: G = U^T W_1 W_1^T U = \Sigma^2 + H + XX^T,\qquad H=\Sigma E^T+E\Sigma

has the squared singular values of :math:`W_1` as eigenvalues and its left singular vectors, written in U, as
eigenvectors. All but :math:`\Sigma^2` is small and formed without cancellation, so float32 products serve. G is
nearly diagonal: distant levels act on each other in low order, neighbours, whose gaps may be closed, are solved
exactly in windows into which the rest is folded (quasi-degenerate perturbation theory; P.-O. Löwdin, J. Chem. Phys.
19, 1951). No Gram matrix of a weight is ever formed in float32.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from driftlab.spectral.decomposition import Decomposition

WINDOW = 64
_ROWS = 96  # of a symmetric product computed at once
_CLOSED = 1e-18  # stands for a gap of 0 between levels near 1; its square is not 0 in float32


@dataclass(frozen=True)
class Frame:
    """A basis turned so that rows are the short side, scaled by a power of two to a largest value near 1.

    Attributes
    ----------
    U, V : Tensor of shape (m, m) and (n, m), float32
        Vectors of the short and of the long side.
    sigma : Tensor of shape (m,), float64
        Scaled singular values, descending.
    scale : float
        The power of two.
    tall : bool
        Whether the matrix was transposed to make rows the short side.
    """

    U: Tensor
    V: Tensor
    sigma: Tensor
    scale: float
    tall: bool

    @classmethod
    def of(cls, svd: Decomposition) -> "Frame":
        """Turn and scale the decomposition of a non-zero matrix."""
        tall = svd.U.shape[0] > svd.V.shape[0]
        near, far = (svd.V, svd.U) if tall else (svd.U, svd.V)
        scale = 2.0 ** math.floor(math.log2(float(svd.sigma[0])))
        return cls(near.float().contiguous(), far.float().contiguous(), svd.sigma / scale, scale, tall)

    def turn(self, D: Tensor) -> Tensor:
        """Turn and scale an update into this frame, as float32."""
        turned = D.mT if self.tall else D
        return turned.float() if self.scale == 1.0 else (turned / self.scale).float()

    def turn_factors(self, B: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
        """Turn and scale two factors of an update."""
        B, A = (A.mT, B.mT) if self.tall else (B, A)
        return (B / self.scale).float(), A.float()


class Update:
    """One update in the frame of its base.

    Parameters
    ----------
    frame : Frame
        The base.
    D : Tensor of shape (m, n), float32
        The update, turned and scaled by :meth:`Frame.turn`.
    factors : (Tensor of shape (m, r), Tensor of shape (r, n)), optional
        Two matrices whose product is D, turned and scaled: then the products cost r instead of m.
    """

    def __init__(self, frame: Frame, D: Tensor, factors: tuple[Tensor, Tensor] | None = None) -> None:
        self.frame = frame
        if factors is None:
            self.X = frame.U.mT @ D
            self.E = self.X @ frame.V
        else:
            left = frame.U.mT @ factors[0]
            self.X = left @ factors[1]
            self.E = left @ (factors[1] @ frame.V)
        self.s = frame.sigma.float()

    @cached_property
    def row_energy(self) -> Tensor:
        """Squared row norms of X, float64."""
        energy: Tensor = torch.linalg.vector_norm(self.X, dim=1).double().square()
        return energy

    @cached_property
    def second(self) -> Tensor:
        """Second-order part of G without its diagonal, :math:`XX^T`: symmetric, float32."""
        second = gram(self.X)
        second.fill_diagonal_(0)
        return second

    @cached_property
    def contrast(self) -> float:
        """Largest entry of E over the root mean square of those off its diagonal.

        Float32 rounding scales with the former, angles with the latter: it is about 5 for noise, hundreds for an
        update that mostly rescales the base.
        """
        m = len(self.s)
        whole = float(torch.linalg.vector_norm(self.E, dtype=torch.float64)) ** 2
        off = whole - float(torch.linalg.vector_norm(self.E.diagonal(), dtype=torch.float64)) ** 2
        rms = math.sqrt(max(off, 0.0) / max(1, m * (m - 1)))
        low, high = torch.aminmax(self.E)
        return max(-float(low), float(high)) / rms if rms else math.inf

    @cached_property
    def norm(self) -> float:
        """Frobenius norm of the scaled update."""
        return math.sqrt(float(self.row_energy.sum()))

    @cached_property
    def first(self) -> Tensor:
        """First-order part of G without its diagonal, H: symmetric, float32."""
        half = self.E * self.s
        H = half + half.mT
        H.fill_diagonal_(0)
        return H

    @cached_property
    def both(self) -> Tensor:
        """All of G but its diagonal and Σ²: symmetric, float32."""
        return self.first + self.second

    @cached_property
    def mixed(self) -> Tensor:
        """Mixing of every level with every other by the first-order part, float32; antisymmetric."""
        narrow = self.level.float()
        return mixing(self.first, narrow[:, None], narrow)

    @cached_property
    def level(self) -> Tensor:
        """Diagonal of G, float64."""
        sigma = self.frame.sigma
        return sigma.square() + 2 * sigma * self.E.diagonal().double() + self.row_energy


def gram(X: Tensor) -> Tensor:
    """Return XXᵀ: the lower triangle of blocks is computed and mirrored."""
    m = X.shape[0]
    out = X.new_empty(m, m)
    for start in range(0, m, _ROWS):
        rows = slice(start, min(start + _ROWS, m))
        torch.mm(X[rows], X[: rows.stop].mT, out=out[rows, : rows.stop])
        out[:start, rows] = out[rows, :start].mT
    return out


def mixing(H: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    r"""Tangent of the rotation that solves each 2 × 2 problem with off-diagonal H and diagonal ``upper``, ``lower``.

    :math:`H/(g/2+\mathrm{sign}(g)\sqrt{g^2/4+H^2})` with g = upper - lower: H/g for wide gaps, ±1 for closed ones,
    0 where H = 0.

    Examples
    --------
    >>> mixing(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([1., 0.])
    """
    half = (0.5 * upper - 0.5 * lower).add_(_CLOSED)
    root = (half * half).addcmul_(H, H).sqrt_()
    root.copysign_(half).add_(half)
    return torch.div(H, root, out=root)


@dataclass(frozen=True)
class Window:
    """A block of G with the rest folded in.

    Attributes
    ----------
    start, stop : int
        The rows and columns.
    M : Tensor of shape (w, w), float64
        Its effective matrix to second order; eigenvalues are squared singular values.
    folded : Tensor of shape (w, w), float32
        The part of M that comes from the rest.
    """

    start: int
    stop: int
    M: Tensor
    folded: Tensor

    @classmethod
    def of(cls, update: Update, start: int, stop: int) -> "Window":
        """Fold the rest of G into rows ``start`` to ``stop``."""
        T, H = update.mixed[start:stop], update.first[start:stop]
        half = T[:, :start] @ H[:, :start].mT
        half.addmm_(T[:, stop:], H[:, stop:].mT)
        folded = 0.5 * (half + half.mT)
        inside = update.both[start:stop, start:stop] + folded
        return cls(start, stop, torch.diag(update.level[start:stop]) + inside.double(), folded)
