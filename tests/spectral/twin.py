"""Slow float64 twins of every measure, written from the definitions, and matrices to try them on.

NumPy's SVD, loops and sets: nothing here shares code or method with the library.
"""

import math
import statistics

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

TOP = 10  # intruders are looked for among this many leading vectors
STORED = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# --- twins ------------------------------------------------------------------------------------------------------


def svd(W):
    U, s, Vh = np.linalg.svd(np.asarray(W, dtype=np.float64), full_matrices=False)
    return U, s, Vh.T


def norm(W):
    return math.sqrt(math.fsum(float(x) ** 2 for x in np.ravel(W)))


def divide(a, b):
    return a / b if b else math.nan


def nss(W0, W1):
    s0, s1 = svd(W0)[1], svd(W1)[1]
    return divide(norm([b - a for a, b in zip(s0, s1, strict=True)]), norm(s0))


def isospectral_ratio(W0, W1):
    s0, s1 = svd(W0)[1], svd(W1)[1]
    return divide(norm([b - a for a, b in zip(s0, s1, strict=True)]), norm(np.subtract(W1, W0)))


def rel_frobenius(W0, W1):
    return divide(norm(np.subtract(W1, W0)), norm(W0))


def rel_spectral(W0, W1):
    return divide(svd(np.subtract(W1, W0))[1][0], svd(W0)[1][0])


def stable_rank(D):
    return divide(norm(D) ** 2, svd(D)[1][0] ** 2)


def effective_rank(W):
    s = [float(x) for x in svd(W)[1]]
    total = math.fsum(s)
    if total == 0:
        return math.nan
    shares = [x / total for x in s if x > 0]
    return math.exp(-math.fsum(p * math.log(p) for p in shares))


def gap_at_rank(W, k):
    s = [*svd(W)[1], 0.0]
    return divide(s[k - 1] - s[k], s[k - 1])


def angles_deg(A, B):
    """Principal angles of two orthonormal bases, through the explicit projector on the complement."""
    A, B = np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)
    sines = np.linalg.svd((np.eye(len(A)) - A @ A.T) @ B, compute_uv=False)
    cosines = np.linalg.svd(A.T @ B, compute_uv=False)
    return sorted(math.degrees(math.atan2(s, c)) for s, c in zip(sorted(sines), sorted(cosines)[::-1], strict=True))


def subspace_similarity(A, B):
    k = A.shape[1]
    return math.fsum(float(np.dot(A[:, i], B[:, j])) ** 2 for i in range(k) for j in range(k)) / k


def principal_energy(W0, W1, k):
    U, _, V = svd(W0)
    D = np.subtract(W1, W0)
    inside = U[:, :k] @ U[:, :k].T @ D @ V[:, :k] @ V[:, :k].T
    return divide(norm(inside) ** 2, norm(D) ** 2)


def intruders(W0, W1):
    U0, U1 = svd(W0)[0], svd(W1)[0]
    top = min(TOP, U1.shape[1])
    return sum(all(abs(float(np.dot(U1[:, i], u))) < 0.5 for u in U0.T) for i in range(top))


def size(f, numel):
    return math.floor(f * numel + 0.5)


def extreme(values, count, *, largest=True):
    """Flat indices of the ``count`` largest (smallest) magnitudes, the smaller index first among equals."""
    flat = [abs(float(x)) for x in np.ravel(values)]
    sign = -1 if largest else 1
    return set(sorted(range(len(flat)), key=lambda i: (sign * flat[i], i))[:count])


def truncation(W, r):
    U, s, V = svd(W)
    return sum(s[i] * np.outer(U[:, i], V[:, i]) for i in range(r))


def principal_mask(W, r, f):
    """The rank-r mask; twelve digits are kept, so that entries equal up to rounding are ties."""
    X = truncation(W, r)
    X = np.round(X / (np.abs(X).max() or 1.0), 12)
    return extreme(X, size(f, X.size))


def bf16(x):
    """Round a float to the nearest bfloat16, ties to even, from the definition of the format."""
    if x == 0:
        return 0.0
    exponent = max(math.frexp(abs(x))[1], -125)
    quantum = 2.0 ** (exponent - 8)
    rounded = round(abs(x) / quantum) * quantum
    return math.copysign(math.inf if rounded >= 2.0**128 else rounded, x)


def changed(A, B):
    """Flat indices of the changed entries of two stored tensors."""
    half = A.dtype == B.dtype == torch.float16
    out = set()
    for i, (a, b) in enumerate(zip(A.double().flatten().tolist(), B.double().flatten().tolist(), strict=True)):
        if half:
            moved = a != b
        else:
            a, b = bf16(a), bf16(b)
            moved = a != b and abs(a - b) > 1e-3 * max(abs(a), abs(b))
        if moved:
            out.add(i)
    return out


def iou(left, right):
    return divide(len(left & right), len(left | right))


def measures(stored0, stored1, k, r, f):
    """Every measure of one pair of stored tensors."""
    W0, W1 = stored0.double().numpy(), stored1.double().numpy()
    (U0, _, V0), (U1, _, V1) = svd(W0), svd(W1)
    left, right = angles_deg(U0[:, :k], U1[:, :k]), angles_deg(V0[:, :k], V1[:, :k])
    mask, moved = principal_mask(W0, r, f), changed(stored0, stored1)
    u = len(moved) / W0.size
    low = extreme(W0, size(f, W0.size), largest=False)
    return {
        "nss": nss(W0, W1),
        "max_angle_left_deg": left[-1],
        "max_angle_right_deg": right[-1],
        "median_angle_left_deg": statistics.median_low(left),  # one of the angles, also where their number is even
        "median_angle_right_deg": statistics.median_low(right),
        "gap_at_rank": gap_at_rank(W0, k),
        "mask_overlap": iou(mask, principal_mask(W1, r, f)),
        "update_density": u,
        "update_sparsity": 1 - u,
        "mask_update_iou": iou(mask, moved),
        "mask_update_overlap": divide(len(mask & moved), len(moved)),
        "low_mask_overlap": divide(len(low & moved), len(moved)),
        "mask_update_iou_random": divide(f * u, f + u - f * u),
        "rel_frobenius": rel_frobenius(W0, W1),
        "rel_spectral": rel_spectral(W0, W1),
        "isospectral_ratio": isospectral_ratio(W0, W1),
        "stable_rank_update": stable_rank(W1 - W0),
        "effective_rank_base": effective_rank(W0),
        "effective_rank_new": effective_rank(W1),
        "subspace_similarity": subspace_similarity(U0[:, :k], U1[:, :k]),
        "principal_energy": principal_energy(W0, W1, k),
        "intruder_dimensions": float(intruders(W0, W1)),
    }


# --- matrices ---------------------------------------------------------------------------------------------------


def gaussian(m, n, seed=0):
    return np.random.default_rng([m, n, seed]).standard_normal((m, n))


def orthonormal(m, k, seed=0):
    return np.ascontiguousarray(np.linalg.qr(gaussian(m, k, seed))[0])


def with_spectrum(m, n, sigma, seed=0):
    d = len(sigma)
    return (orthonormal(m, d, seed) * np.asarray(sigma)) @ orthonormal(n, d, seed + 1).T


SPECTRA = {
    "flat": lambda d: np.ones(d),
    "steep": lambda d: np.geomspace(1, 1e-5, d),
    "repeated": lambda d: np.repeat(np.linspace(2, 1, (d + 1) // 2), 2)[:d],
    "deficient": lambda d: np.where(np.arange(d) < max(1, (2 * d) // 3), np.linspace(2, 1, d), 0.0),
    "condition 1e8": lambda d: np.geomspace(1, 1e-8, d),
    "rank one": lambda d: np.where(np.arange(d) < 1, 1.0, 0.0),
    "zero": np.zeros,
}
SHAPES = {"wide": (12, 31), "tall": (31, 12), "square": (16, 16), "row": (1, 40), "column": (40, 1)}


def of_kind(kind, m, n, seed=0):
    return gaussian(m, n, seed) if kind == "gaussian" else with_spectrum(m, n, SPECTRA[kind](min(m, n)), seed)


def tensor(W, dtype="float64"):
    return torch.from_numpy(np.array(W, dtype=np.float64)).to(STORED[dtype])


def pair(m, n, step=1e-2, seed=0, dtype="float64", kind="gaussian"):
    """A base and the same after an unstructured update of relative Frobenius size ``step``, as stored."""
    W, D = of_kind(kind, m, n, seed), gaussian(m, n, seed + 100)
    D *= step * (np.linalg.norm(W) or 1.0) / np.linalg.norm(D)
    return tensor(W, dtype), tensor(W + D, dtype)


EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)
SIDES, SEEDS = st.integers(1, 20), st.integers(0, 2**16)


@st.composite
def pairs(draw, largest=20, dtypes=tuple(STORED)):
    """Pairs of any shape, stored type and size of step; none so large that entries cancel to nothing."""
    m, n = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    return pair(m, n, 10.0 ** draw(st.integers(-5, -1)), draw(SEEDS), draw(st.sampled_from(dtypes)))
