"""Measures that compare the leading singular subspaces of two matrices."""

import torch
from torch import Tensor

from driftlab.errors import ShapeError
from driftlab.spectral.spectrum import share


def principal_angles_deg(base: Tensor, new: Tensor) -> Tensor:
    r"""Principal angles between the spans of two orthonormal bases.

    Sines are the singular values of :math:`(I-QQ^T)Q'`, cosines those of :math:`Q^TQ'`, and the angle is
    :math:`\mathrm{atan2}(\sin,\cos)`. The arc cosine alone reads 0.05° for identical float32 matrices.

    Parameters
    ----------
    base, new : Tensor of shape (m, k)
        Orthonormal columns.

    Returns
    -------
    Tensor of shape (k,), float64
        Degrees, in [0, 90], ascending; 0 for no drift. Errors are about the rounding unit of the input's type.

    Raises
    ------
    ShapeError
        If the two are not matrices of one shape with 1 ≤ k ≤ m.

    References
    ----------
    Å. Björck and G. Golub, "Numerical methods for computing angles between linear subspaces", Math. Comp. 27, 1973;
    A. Knyazev and M. Argentati, SIAM J. Sci. Comput. 23(6), 2002.

    Examples
    --------
    >>> turned = torch.tensor([[0.8, 0.0], [0.6, 0.0], [0.0, 1.0]])
    >>> [round(a, 3) for a in principal_angles_deg(torch.eye(3)[:, [0, 2]], turned).tolist()]
    [0.0, 36.87]
    """
    _check_bases(base, new)
    base, new = base.double(), new.double()
    inside = base.mT @ new
    cosines = torch.linalg.svdvals(inside)
    sines = torch.linalg.svdvals(new - base @ inside).flip(0)
    return torch.rad2deg(torch.atan2(sines, cosines)).sort().values


def subspace_similarity(base: Tensor, new: Tensor) -> float:
    r"""Mean squared cosine of the principal angles, :math:`\|Q^TQ'\|_F^2/k`.

    Parameters
    ----------
    base, new : Tensor of shape (m, k)
        Orthonormal columns.

    Returns
    -------
    float
        Dimensionless, in [0, 1]; 1 for no drift.

    Raises
    ------
    ShapeError
        If the two are not matrices of one shape with 1 ≤ k ≤ m.

    References
    ----------
    E. Hu et al., "LoRA", arXiv 2106.09685, section 7.2.

    Examples
    --------
    >>> subspace_similarity(torch.eye(3)[:, :2], torch.eye(3)[:, 1:])
    0.5
    """
    _check_bases(base, new)
    outside = new.double() - base.double() @ (base.double().mT @ new.double())
    return max(0.0, 1.0 - float(outside.square().sum()) / base.shape[1])


def principal_energy(core: Tensor, update_norm: float) -> float:
    r"""Share of the update inside the base's principal subspaces, :math:`\|U_kU_k^TDV_kV_k^T\|_F^2/\|D\|_F^2`.

    Parameters
    ----------
    core : Tensor of shape (k, k)
        :math:`U_k^T D V_k`, whose norm equals that of the projected update.
    update_norm : float
        :math:`\|D\|_F`.

    Returns
    -------
    float
        Dimensionless, in [0, 1]; 1 minus it is the off-principal share. NaN where there is no update.

    Raises
    ------
    ShapeError
        If ``core`` is not a square matrix.

    References
    ----------
    After the on- and off-principal split of "The Path Not Taken", arXiv 2511.08567.

    Examples
    --------
    >>> principal_energy(torch.tensor([[1.0]]), 2.0)
    0.25
    """
    if core.ndim != 2 or core.shape[0] != core.shape[1]:
        raise ShapeError(f"core: expected a square matrix, found shape {tuple(core.shape)}.")
    return share(float(core.double().norm()), update_norm) ** 2


def intruder_dimensions(cosines: Tensor, threshold: float = 0.5) -> int:
    r"""Count new leading left singular vectors that resemble none of the base's.

    :math:`\#\{i \le 10 : \max_j |u^1_i \cdot u^0_j| < 0.5\}`

    Parameters
    ----------
    cosines : Tensor of shape (d, top)
        :math:`U_0^T u^1_i`, all d base vectors against the first ``top`` (10) new ones.
    threshold : float, default 0.5
        A new vector below it with every base vector is an intruder.

    Returns
    -------
    int
        Count, 0 … top; 0 for no drift.

    Raises
    ------
    ShapeError
        If ``cosines`` is not a matrix.

    References
    ----------
    R. Shuttleworth et al., "LoRA vs full fine-tuning: an illusion of equivalence", arXiv 2410.21228.

    Examples
    --------
    >>> intruder_dimensions(torch.tensor([[0.9, 0.1], [0.1, 0.4]]))
    1
    """
    if cosines.ndim != 2:
        raise ShapeError(f"cosines: expected a matrix, found shape {tuple(cosines.shape)}.")
    return int((cosines.abs().amax(0) < threshold).sum())


def _check_bases(base: Tensor, new: Tensor) -> None:
    if base.ndim != 2 or base.shape != new.shape or not 1 <= base.shape[1] <= base.shape[0]:
        raise ShapeError(
            f"Subspaces: expected two (m, k) matrices of one shape with 1 <= k <= m, found {tuple(base.shape)} and "
            f"{tuple(new.shape)}."
        )
