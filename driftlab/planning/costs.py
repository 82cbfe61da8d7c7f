r"""What a scan costs, counted from shapes alone: bytes, floating-point operations, memory.

For a matrix with short side d, long side D and N = dD entries, with r the mask rank. Products are counted, everything
else goes with the entries and is left to calibration. The base, in float64:

.. math:: 2d^2D \text{ (Gram)} + 2d^2D \text{ (long-side vectors)} + 2d^3 \text{ (self-check)} + 2rN \text{ (mask)}

and an eigendecomposition of order d, about :math:`9d^3`. A tracked checkpoint, in float32, and once more for its null:

.. math:: 2d^2D\,(U^TD) + 2d^2D\,(XV) + d^2D\,(XX^T) + 2d^2r + 4rN \text{ (mask)}

An exact checkpoint costs a base.

References
----------
G. Golub and C. Van Loan, Matrix Computations, 4th ed., sections 8.3 and 8.6 (counts of the eigendecomposition).
"""

from dataclasses import dataclass

from driftlab.checkpoints.reading import to_read
from driftlab.checkpoints.tracks import Track
from driftlab.spectral.drift import SMALLEST
from driftlab.spectral.measures import Plan

EIGEN = 9.0
"""Operations of a symmetric eigendecomposition with vectors, per cube of its order."""
_SKIMMED = 8.0  # operations an entry of a tensor that is compared but not decomposed


@dataclass(frozen=True)
class Shape:
    """A matrix to be measured: short side, long side, mask rank."""

    d: int
    D: int
    r: int

    @classmethod
    def of(cls, rows: int, cols: int, plan: Plan) -> "Shape":
        """Return the shape of a matrix of ``rows`` x ``cols``."""
        d = min(rows, cols)
        return cls(d, max(rows, cols), plan.ranks(d)[1])

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.d * self.D

    @property
    def base_products(self) -> float:
        """Operations of the base's float64 products."""
        return 4.0 * self.d**2 * self.D + 2.0 * self.d**3 + 2.0 * self.r * self.entries

    @property
    def eigen(self) -> float:
        """Operations of the base's eigendecomposition."""
        return EIGEN * self.d**3

    @property
    def tracked_products(self) -> float:
        """Operations of the float32 products of one tracked update."""
        return 5.0 * self.d**2 * self.D + 2.0 * self.d**2 * self.r + 4.0 * self.r * self.entries

    @property
    def basis_bytes(self) -> int:
        """Memory of a basis: the matrix as stored and in float64, vectors in float64 and float32, masks."""
        vectors = self.d * (self.d + self.D)
        return (8 + 4 + 2) * self.entries + (8 + 4) * vectors


def measured_shape(track: Track, plan: Plan) -> Shape | None:
    """Return the shape of a track that is decomposed; None for one that is at most skimmed."""
    if track.base is None or track.left_out or not to_read(track):
        return None
    rows, cols = track.base.shape
    return Shape.of(rows, cols, plan)


def is_tracked(shape: Shape, plan: Plan) -> bool:
    """Whether updates of this shape are tracked, unless their errors forbid it."""
    return plan.method == "auto" and shape.d >= SMALLEST


def updates(plan: Plan) -> int:
    """Count the updates measured for each checkpoint: itself and the draws of its null."""
    return 1 if plan.null == "none" else 1 + plan.null_draws


def cost(track: Track, plan: Plan) -> float:
    """Operations of a whole track, an order of magnitude that tells heavy units from light ones.

    Examples
    --------
    >>> shape = Shape.of(64, 32, Plan())
    >>> shape.d, shape.D, shape.eigen
    (32, 64, 294912.0)
    """
    shape, read = measured_shape(track, plan), to_read(track)
    if shape is None:
        return _SKIMMED * sum(info.numel for info in read)
    base = shape.base_products + shape.eigen
    each = shape.tracked_products if is_tracked(shape, plan) else base
    return base + (len(read) - 1) * updates(plan) * each
