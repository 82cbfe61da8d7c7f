"""Maps: t-SNE of the texts, and MDS of the domains from their distances. Pictures, not measurements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.seeding import generator

Points = NDArray[np.float64]


@dataclass(frozen=True)
class TextMap:
    """Coordinates of a balanced sample of texts.

    Attributes
    ----------
    chosen : dict of str to int array
        For each domain the rows of its vectors that are on the map.
    points : dict of str to array of shape (chosen, 2)
    settings : dict
        Everything that a redrawing needs: perplexity, cap, seed, iterations; or the reason why there is no map.
    """

    chosen: dict[str, NDArray[np.int64]]
    points: dict[str, Points]
    settings: dict[str, Any]


def tsne_map(
    vectors: Mapping[str, NDArray[np.float32]], *, cap: int = 300, perplexity: float = 30.0, seed: int = 0
) -> TextMap:
    """Place a balanced sample of all domains in the plane by t-SNE.

    Parameters
    ----------
    vectors : mapping of str to array of shape (n, d)
        Unit rows.
    cap : int, default 300
        At most so many rows of each domain, drawn at random: t-SNE gives area by number, not by spread.
    perplexity : float, default 30
        Lowered to (n - 1) / 3 where there are few rows, as the method requires.
    seed : int, default 0

    Notes
    -----
    Initialised with the first two principal components, so the picture depends on the seed only through the sample
    and the optimiser. Distances between clusters on a t-SNE map mean little; read them from the heat map.

    References
    ----------
    van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 9, 2008. Kobak and Berens, "The art of using
    t-SNE for single-cell transcriptomics", Nat. Commun. 10, 2019 (initialisation).
    """
    from sklearn.manifold import TSNE

    chosen = {name: _draw(name, len(x), cap, seed) for name, x in vectors.items()}
    stacked = np.concatenate([vectors[name][rows] for name, rows in chosen.items()])
    settings: dict[str, Any] = {"method": "tsne", "cap": cap, "seed": seed, "init": "pca", "rows": len(stacked)}
    if len(stacked) < 4 or float(stacked.std(0).max()) < 1e-6:
        reason = "fewer than 4 texts" if len(stacked) < 4 else "all texts are the same"
        return TextMap({}, {}, settings | {"reason": f"no t-SNE map: {reason}"})
    used = float(min(perplexity, (len(stacked) - 1) / 3))
    method = TSNE(perplexity=used, init="pca", random_state=seed)
    placed = method.fit_transform(stacked).astype(np.float64)
    edges = np.cumsum([len(rows) for rows in chosen.values()])[:-1]
    points = dict(zip(chosen, np.split(placed, edges), strict=True))
    details = {"perplexity": used, "iterations": int(method.n_iter_), "kl": float(method.kl_divergence_)}
    return TextMap(chosen, points, settings | details)


def mds_map(mmd2_u: Points) -> tuple[Points, float]:
    r"""Place the domains in the plane so that their distances approximate :math:`\sqrt{\mathrm{MMD}^2}`.

    Metric MDS (SMACOF) started from the classical solution, hence deterministic. Squared MMD is no distance (it
    breaks the triangle inequality); its root is.

    Parameters
    ----------
    mmd2_u : array of shape (domains, domains)
        Symmetric; negative entries count as 0.

    Returns
    -------
    points : array of shape (domains, 2)
        In units of MMD; orientation is arbitrary but fixed.
    stress : float
        Kruskal's stress-1, >= 0: the share of the distances that two dimensions cannot hold; below 0.1 is good.

    References
    ----------
    Borg and Groenen, "Modern multidimensional scaling", 2nd ed., 2005.

    Examples
    --------
    >>> points, stress = mds_map(np.array([[0.0, 0.09], [0.09, 0.0]]))
    >>> float(np.linalg.norm(points[0] - points[1]).round(6))
    0.3
    """
    from sklearn.manifold import smacof

    distances = np.sqrt(np.maximum(mmd2_u, 0.0))
    total = float((np.triu(distances) ** 2).sum())
    if total == 0:
        return np.zeros((len(distances), 2)), 0.0
    start = _classical(distances)
    points, _ = smacof(distances, n_components=2, init=start, n_init=1, eps=1e-9, max_iter=1000)
    placed = np.asarray(points, dtype=np.float64)
    apart = np.linalg.norm(placed[:, None] - placed[None, :], axis=2)
    stress = float(np.sqrt((np.triu(apart - distances) ** 2).sum() / total))
    return placed, stress


def _classical(distances: Points) -> Points:
    """Torgerson's solution: the top two eigenvectors of the doubly centred squared distances, signs fixed."""
    n = len(distances)
    centre = np.eye(n) - 1.0 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
    top = vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(values[::-1][:2], 0.0))
    signs = np.where(top[np.abs(top).argmax(0), range(top.shape[1])] < 0, -1.0, 1.0)
    return np.asarray(top * signs)


def _draw(name: str, size: int, cap: int, seed: int) -> NDArray[np.int64]:
    if size <= cap:
        return np.arange(size, dtype=np.int64)
    rng = generator("map", seed, name)
    return np.sort(rng.choice(size, cap, replace=False)).astype(np.int64)
