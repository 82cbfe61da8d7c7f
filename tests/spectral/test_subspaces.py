"""Angles between subspaces and their kin against twins, planted rotations, SciPy, and invariances."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st

from driftlab.errors import ShapeError
from driftlab.spectral.subspaces import (
    intruder_dimensions,
    principal_angles_deg,
    principal_energy,
    subspace_similarity,
)

DIAGONAL = np.diag([5.0, 4.0, 1.0, 0.5])


def plane_turn(m, i, j, theta):
    """Rotate coordinates i and j of m by theta radians."""
    R = np.eye(m)
    R[i, i] = R[j, j] = math.cos(theta)
    R[i, j], R[j, i] = -math.sin(theta), math.sin(theta)
    return R


def angles(A, B):
    return principal_angles_deg(torch.from_numpy(A), torch.from_numpy(B)).numpy()


@st.composite
def bases(draw):
    m = draw(twin.SIDES)
    k, seed = draw(st.integers(1, m)), draw(twin.SEEDS)
    A = twin.orthonormal(m, k, seed)
    tilt = 10.0 ** draw(st.integers(-10, 0))
    B = np.ascontiguousarray(np.linalg.qr(A + tilt * twin.gaussian(m, k, seed + 1))[0])
    return A, B


@twin.EXAMPLES
@given(bases())
def test_equals_the_twin_and_scipy(pair):
    A, B = pair
    found = angles(A, B)
    np.testing.assert_allclose(found, twin.angles_deg(A, B), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found, np.rad2deg(scipy.linalg.subspace_angles(A, B))[::-1], rtol=1e-6, atol=1e-11)
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() <= 90
    similarity = subspace_similarity(torch.from_numpy(A), torch.from_numpy(B))
    assert similarity == pytest.approx(twin.subspace_similarity(A, B), abs=1e-13)
    assert similarity == pytest.approx(float(np.mean(np.cos(np.deg2rad(found)) ** 2)), abs=1e-12)
    assert 0 <= similarity <= 1


@twin.EXAMPLES
@given(bases())
def test_depends_on_the_spans_alone(pair):
    A, B = pair
    m, k = A.shape
    Q, R = twin.orthonormal(m, m, 7), twin.orthonormal(k, k, 8)
    signs, order = np.where(np.arange(k) % 2, -1.0, 1.0), np.arange(k)[::-1]
    expected = angles(A, B)
    for other in (
        angles(Q @ A, Q @ B),
        angles(A @ R, B),
        angles(A, B @ R),
        angles(A * signs, B[:, order]),
        angles(B, A),
    ):
        np.testing.assert_allclose(other, expected, atol=1e-12)


def test_rotated_rows_of_a_diagonal_matrix():
    turned = plane_turn(4, 1, 2, math.radians(1)) @ DIAGONAL
    (U0, s0, V0), (U1, s1, V1) = twin.svd(DIAGONAL), twin.svd(turned)
    for k, expected in zip((1, 2, 3, 4), (0, 1, 0, 0), strict=True):
        assert angles(U0[:, :k], U1[:, :k])[-1] == pytest.approx(expected, abs=1e-13)
        assert angles(V0[:, :k], V1[:, :k])[-1] == pytest.approx(0, abs=1e-13)
    np.testing.assert_allclose(s0, s1, rtol=1e-14)


@pytest.mark.parametrize(("theta", "dtype"), [(1e-4, np.float32), (1e-8, np.float64), (1e-12, np.float64)])
def test_a_planted_angle_comes_back_within_one_percent(theta, dtype):
    A = twin.orthonormal(40, 40)
    B = A @ plane_turn(40, 3, 20, theta)
    k = 10
    found = angles(A[:, :k].astype(dtype), B[:, :k].astype(dtype))
    assert math.radians(found[-1]) == pytest.approx(theta, rel=1e-2)
    assert math.radians(found[-2]) < (1e-6 if dtype is np.float32 else 1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_identical_bases_read_zero_not_the_arc_cosines_noise(dtype):
    A = torch.from_numpy(twin.orthonormal(64, 16)).to(dtype)
    assert float(principal_angles_deg(A, A)[-1]) < {torch.float64: 1e-13, torch.float32: 1e-5}[dtype]


def test_right_angles():
    eye = torch.eye(4, dtype=torch.float64)
    assert principal_angles_deg(eye[:, :2], eye[:, 2:]).tolist() == [90, 90]
    assert subspace_similarity(eye[:, :2], eye[:, 2:]) == 0
    near = math.radians(90) - 1e-9
    turned = torch.from_numpy(plane_turn(4, 0, 2, near))
    cosine = math.cos(math.radians(float(principal_angles_deg(eye[:, :1], turned[:, :1])[-1])))
    assert cosine == pytest.approx(1e-9, rel=1e-6)


def test_the_whole_space_has_no_angle():
    A, B = twin.orthonormal(6, 6, 1), twin.orthonormal(6, 6, 2)
    assert angles(A, B)[-1] < 1e-13
    assert subspace_similarity(torch.from_numpy(A), torch.from_numpy(B)) == pytest.approx(1, abs=1e-14)


def test_similarity_stays_in_its_range():
    for seed in range(50):
        Q = torch.from_numpy(twin.orthonormal(12, 12, seed))
        assert 0 <= subspace_similarity(Q[:, :5], Q[:, 5:10]) < 1e-14


@pytest.mark.parametrize(("m", "n"), [(12, 31), (31, 12), (16, 16)])
@pytest.mark.parametrize("k", [1, 4, 12])
def test_principal_energy_equals_the_twin(m, n, k):
    W0, W1 = (W.numpy() for W in twin.pair(m, n))
    U, _, V = twin.svd(W0)
    D = W1 - W0
    core = torch.from_numpy(U[:, :k].T @ D @ V[:, :k])
    assert principal_energy(core, twin.norm(D)) == pytest.approx(twin.principal_energy(W0, W1, k), rel=1e-12)


def test_principal_energy_inside_and_outside():
    U, V = twin.orthonormal(9, 9, 1), twin.orthonormal(7, 7, 2)
    inside = U[:, :3] @ twin.gaussian(3, 3) @ V[:, :3].T
    outside = U[:, 3:] @ twin.gaussian(6, 4) @ V[:, 3:].T
    for D, expected in ((inside, 1), (outside, 0)):
        share = principal_energy(torch.from_numpy(U[:, :3].T @ D @ V[:, :3]), twin.norm(D))
        assert share == pytest.approx(expected, abs=1e-14)
        assert 0 <= share <= 1
    assert math.isnan(principal_energy(torch.zeros(2, 2), 0.0))


@pytest.mark.parametrize(("core", "norm"), [(torch.full((1, 1), 1 + 1e-15, dtype=torch.float64), 1.0)])
def test_principal_energy_is_never_pushed_over_one_by_rounding(core, norm):
    assert principal_energy(core, norm) <= 1


def test_intruders_by_hand():
    cosines = torch.tensor([[0.9, -0.1, 0.3], [0.1, -0.6, 0.4], [0.2, 0.2, -0.49]])
    assert intruder_dimensions(cosines) == 1
    assert intruder_dimensions(-cosines) == 1
    assert intruder_dimensions(cosines, threshold=0.7) == 2
    assert intruder_dimensions(torch.eye(3)) == 0
    assert intruder_dimensions(torch.tensor([[0.5]])) == 0  # "below" the threshold excludes it


def test_intruders_equal_the_twin():
    W0 = twin.gaussian(30, 40)
    W1 = W0 + 40 * np.outer(*(twin.orthonormal(side, 1, 5)[:, 0] for side in (30, 40)))
    U0, U1 = twin.svd(W0)[0], twin.svd(W1)[0]
    found = intruder_dimensions(torch.from_numpy(U0.T @ U1[:, :10]))
    assert found == twin.intruders(W0, W1)
    assert found >= 1


@pytest.mark.parametrize("measure", [principal_angles_deg, subspace_similarity])
@pytest.mark.parametrize(
    "shapes", [((4, 2), (4, 3)), ((4, 2), (5, 2)), ((2, 3), (2, 3)), ((4,), (4,)), ((4, 0), (4, 0))]
)
def test_bases_that_do_not_fit(measure, shapes):
    with pytest.raises(ShapeError) as caught:
        measure(*(torch.ones(shape) for shape in shapes))
    assert str(caught.value) == (
        f"Subspaces: expected two (m, k) matrices of one shape with 1 <= k <= m, found {shapes[0]} and {shapes[1]}."
    )


def test_core_and_cosines_want_matrices():
    with pytest.raises(ShapeError, match=r"^core: expected a square matrix, found shape \(2, 3\)\.$"):
        principal_energy(torch.ones(2, 3), 1.0)
    with pytest.raises(ShapeError, match=r"^cosines: expected a matrix, found shape \(3,\)\.$"):
        intruder_dimensions(torch.ones(3))
