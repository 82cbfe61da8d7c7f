"""A base tensor with a low-rank update on it, as an adapter holds it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from driftlab.checkpoints import views
from driftlab.checkpoints.tensorfile import TensorInfo


@dataclass(frozen=True)
class LowRankUpdate:
    """An update that was read: the matrix is the base plus ``scale`` times ``B @ A``."""

    B: Tensor
    A: Tensor
    scale: float

    def rows_on(self, base: Tensor, first: int, last: int) -> Tensor:
        """Return rows ``first`` up to ``last`` of the updated matrix, float64."""
        return base[first:last].double() + self.scale * (self.B[first:last].double() @ self.A.double())


@dataclass(frozen=True)
class LowRank(TensorInfo):
    r"""A matrix :math:`W_0 + s\,BA`; name, type and shape are those of the base.

    Attributes
    ----------
    B : TensorInfo of shape (m, r)
    A : TensorInfo of shape (r, n)
    scale : float
        s; α/r for LoRA (E. Hu et al., arXiv 2106.09685), α/√r with rank stabilisation (D. Kalajdzievski, arXiv
        2312.03732).
    """

    B: TensorInfo = field(kw_only=True)
    A: TensorInfo = field(kw_only=True)
    scale: float = field(kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the factors: that is what is read."""
        return self.B.nbytes + self.A.nbytes

    def slab(self, first: int, shape: tuple[int, ...]) -> "LowRank":
        """Return whole rows of it; other slabs have no factors."""
        width = self.shape[1]
        assert shape[1:] == (width,)
        assert first % width == 0
        row = first // width
        return replace(self, shape=shape, B=self.B.rows(row, row + shape[0]))

    def update(self) -> LowRankUpdate:
        """Read the factors.

        Raises
        ------
        CheckpointError
            If one of them cannot be read.
        """
        return LowRankUpdate(self.B.read(), self.A.read(), self.scale)

    def read(self) -> Tensor:
        """Refuse: the matrix itself is never made, its factors are read by :meth:`update`."""
        raise NotImplementedError


def turned(info: TensorInfo) -> TensorInfo:
    """Return the transposed matrix; that of a low-rank update has the transposed factors in the other order."""
    if not isinstance(info, LowRank):
        return views.turned(info)
    return replace(info, shape=(info.shape[1], info.shape[0]), B=views.turned(info.A), A=views.turned(info.B))


def picked_rows(info: TensorInfo, pick: Callable[[Tensor], Tensor], rows: int) -> TensorInfo:
    """Return some rows of a tensor, in the order in which ``pick`` gives them."""
    if not isinstance(info, LowRank):
        return views.picked_rows(info, pick, rows)
    return replace(info, shape=(rows, info.shape[1]), B=views.picked_rows(info.B, pick, rows))
