"""What the tests of this room share and the twins must not: calls of the library."""

import numpy as np
import pytest
import torch
import twin

from driftlab.spectral import MEASURES, Basis, Plan, measure
from driftlab.spectral.decomposition import EPS

SHAPES = list(twin.SHAPES.values())
KINDS = ["gaussian", *twin.SPECTRA]


def plan(**options):
    return Plan(method="exact", null="none", **options)


def drift(base, new, **options):
    base, new = (W if isinstance(W, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(W)) for W in (base, new))
    return measure(Basis(base, plan(**options)), new)


def assert_same(found, expected, names=tuple(MEASURES), rel=1e-9, absolute=1e-10):
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=rel, abs=absolute, nan_ok=True), name


def assert_twin(found, pair, fraction=0.1, rel=1e-9):
    assert_same(found.values, twin.measures(*pair, found.angle_rank, found.mask_rank, fraction), rel=rel)


def assert_decomposes(W, found):
    """Orthonormal, complete, ordered, and no further off than it says."""
    d = min(W.shape)
    U, s, V, error = (x.numpy() for x in (found.U, found.sigma, found.V, found.sigma_error))
    assert (U.shape, s.shape, V.shape) == ((W.shape[0], d), (d,), (W.shape[1], d))
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    np.testing.assert_allclose((U * s) @ V.T, W, atol=1e-13 * (s[0] or 1.0))
    expected = np.linalg.svd(W, compute_uv=False)
    assert (abs(s - expected) <= error + 4 * d * EPS * s[0]).all()
    near, far = (U, V) if W.shape[0] <= W.shape[1] else (V, U)
    np.testing.assert_allclose(near.T @ near, np.eye(d), atol=1e-12)
    if s[0]:  # the far side of a Gram decomposition loses orthogonality with sigma_1² / (sigma_i sigma_j)
        loss = np.ones((d, d)) if found.route != "gram" else s[0] ** 2 / np.outer(s, s)
        assert (abs(far.T @ far - np.eye(d)) <= 50 * EPS * d * loss).all()


def refuse(*_, **__):
    """Stand in for a LAPACK call that fails."""
    raise torch.linalg.LinAlgError("failed to converge")
