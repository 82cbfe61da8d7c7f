"""Decompositions of one shape made together: the same as one by one, with the same checks."""

import pytest
import torch

from driftlab.errors import NumericalError
from driftlab.spectral import decomposition
from driftlab.spectral.decomposition import decompose, decompose_many


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(20, 33), (33, 20), (20, 20)])
def test_together_as_alone(shape):
    matrices = [noise(*shape, seed=i) * 10.0 ** (i * 20 - 20) for i in range(3)]
    for W, found in zip(matrices, decompose_many(matrices), strict=True):
        alone = decompose(W)
        assert found.route == "gram"
        assert torch.allclose(found.sigma, alone.sigma, rtol=1e-10, atol=0)
        assert torch.allclose((found.U * found.sigma) @ found.V.mT / W.abs().max(), W / W.abs().max(), atol=1e-10)


def test_hard_ones_are_taken_alone():
    zero, low = torch.zeros(12, 15, dtype=torch.float64), noise(12, 1) @ noise(1, 15)
    routes = [found.route for found in decompose_many([noise(12, 15), zero, low])]
    assert routes == ["gram", "zero", "gesdd"]


def test_a_batch_that_does_not_converge_is_taken_one_by_one(monkeypatch):
    eigh = torch.linalg.eigh

    def fail(W):
        if W.ndim == 3:
            raise RuntimeError("did not converge")
        return eigh(W)

    monkeypatch.setattr(decomposition.torch.linalg, "eigh", fail)
    assert [found.route for found in decompose_many([noise(5, 8), noise(5, 8, seed=1)])] == ["gram", "gram"]


def test_nothing_passes(monkeypatch):
    monkeypatch.setattr(decomposition, "_passes", lambda W, found: False)
    with pytest.raises(NumericalError, match="expected a decomposition with orthonormal vectors"):
        decompose_many([noise(5, 8), noise(5, 8)])
