"""From prepared domains to finished tables: encode, fix the bandwidth, measure, compare, map."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftlab.domains.cache import encode_cached
from driftlab.domains.comparisons import Difference, compare_distances, kendall
from driftlab.domains.encoded import TextEncoder, unit_rows
from driftlab.domains.kernel_sums import pass_units
from driftlab.domains.mmd import Distances, PairDistance, measure_distances
from driftlab.domains.projection import TextMap, mds_map, tsne_map
from driftlab.domains.reference import HeatMap, compare_heat_maps
from driftlab.domains.remarks import remarks_on
from driftlab.domains.settings import Settings, choose_bandwidth
from driftlab.domains.texts import BY_WINDOW, Domain, overlaps
from driftlab.errors import DataError, UsageError

TABLES = ("mmd", "mmd_domains", "mmd_differences", "mmd_sensitivity", "projection", "mmd_reference")
"""Every table a study may fill."""

Progress = Callable[[float, str], AbstractContextManager[Callable[[float, str], None]]]
Vectors = dict[str, NDArray[np.float32]]

_COLUMNS = [column.name for column in fields(PairDistance)]


@dataclass(frozen=True)
class Study:
    """Tables by name, a summary for ``mmd.json``, and remarks a reader of the numbers must know."""

    tables: dict[str, pd.DataFrame]
    summary: dict[str, Any]
    remarks: list[str] = field(default_factory=list)


def measure_domains(
    domains: Sequence[Domain],
    encoder: TextEncoder | None,
    settings: Settings,
    *,
    cache: Path | None = None,
    reference: HeatMap | None = None,
    progress: Progress = lambda total, label: nullcontext(lambda amount, what: None),
) -> Study:
    """Measure the distances between domains and everything that belongs beside them.

    Parameters
    ----------
    domains : sequence of Domain
        From :func:`driftlab.domains.texts.load_domains`.
    encoder : TextEncoder or None
        For the domains that are texts; None if all hold embeddings.
    settings : Settings
    cache : Path, optional
        Where embeddings are kept; None for nowhere.
    reference : HeatMap, optional
        Another heat map to compare the ranks with.
    progress : callable, optional
        ``progress(total, label)`` gives a context with a function ``advance(amount, what)``.

    Raises
    ------
    DataError
        If the domains live in different spaces, or all texts are the same.
    UsageError
        If texts are given without an encoder.
    """
    vectors, seen, windows = _encode(domains, encoder, cache, progress)
    gamma, rule = choose_bandwidth(settings.bandwidth, vectors, settings.seed, encoder.key if encoder else "")
    labels = {d.name: d.clusters for d in domains if d.clusters is not None}
    clusters = windows if settings.group_by == BY_WINDOW else labels
    with progress(pass_units([len(x) for x in vectors.values()]), "kernel values") as advance:
        distances = measure_distances(
            vectors,
            gamma,
            clusters=clusters,
            permutations=settings.permutations,
            seed=settings.seed,
            block=settings.block,
            precision=settings.precision,
            device=settings.device,
            advance=lambda values: advance(values, ""),
        )
    texts = tsne_map(vectors, cap=settings.map_cap, perplexity=settings.perplexity, seed=settings.seed)
    square = distances.matrix()
    places, stress = mds_map(square)
    tables = {
        "mmd": _pair_table(distances, encoder),
        "mmd_domains": pd.DataFrame(seen),
        "mmd_differences": _difference_table(compare_distances(distances.names, square, distances.left_out)),
        "mmd_sensitivity": _sensitivity_table(distances, gamma),
        "projection": _projection_table(domains, texts, places),
    }
    summary = _summary(domains, encoder, settings, distances, (gamma, rule), (texts.settings, stress))
    if reference is not None:
        tables["mmd_reference"] = _reference_table(reference)
        summary["compare"] = compare_heat_maps(_heat_map(distances), reference)
    remarks = remarks_on(tables, summary, encoder)
    return Study(tables, summary | {"remarks": remarks}, remarks)


def _summary(
    domains: Sequence[Domain],
    encoder: TextEncoder | None,
    settings: Settings,
    distances: Distances,
    bandwidth: tuple[float, dict[str, Any]],
    maps: tuple[dict[str, Any], float],
) -> dict[str, Any]:
    """Return the content of ``mmd.json``: what the numbers mean and how they were made."""
    ours = _heat_map(distances)
    taus = {f: kendall(distances.by_factor[1.0], values) for f, values in distances.by_factor.items() if f != 1.0}
    return {
        "gamma": bandwidth[0],
        "bandwidth": bandwidth[1],
        "estimator": "mmd2_u: unbiased squared MMD, k(x, y) = exp(-gamma |x - y|^2) on unit vectors",
        "encoder": {"name": encoder.name, "key": encoder.key, "window": encoder.window} if encoder else None,
        "settings": asdict(settings),
        "domains": list(ours.domains),
        "unit": ours.unit,
        "values": ours.matrix.tolist(),
        "overlaps": overlaps(domains),
        "sensitivity_kendall_tau": {str(f): None if math.isnan(tau) else tau for f, tau in taus.items()},
        "maps": {"tsne": maps[0], "mds": {"method": "smacof", "on": "sqrt(max(mmd2_u, 0))", "stress": maps[1]}},
    }


def _heat_map(distances: Distances) -> HeatMap:
    return HeatMap(distances.names, 100 * distances.matrix(), "this run", "100 x squared MMD, unbiased")


def describe(
    domains: Sequence[Domain], encoder: TextEncoder | None, settings: Settings, reference: HeatMap | None = None
) -> dict[str, Any]:
    """Return everything that changes a number, for the manifest: a resumed run must have the same."""
    return {
        "domains": [{"name": d.name, "group": d.group, "content": d.digest()} for d in domains],
        "encoder": encoder.key if encoder else "given embeddings",
        "settings": asdict(settings) | {"device": settings.device.split(":")[0]},
        "compare": None if reference is None else [reference.source, reference.matrix.tolist()],
    }


def _encode(
    domains: Sequence[Domain], encoder: TextEncoder | None, cache: Path | None, progress: Progress
) -> tuple[Vectors, list[dict[str, Any]], dict[str, NDArray[np.int64]]]:
    """Return unit vectors, one row of facts for each domain, and which texts look the same to the encoder."""
    vectors: Vectors = {}
    windows: dict[str, NDArray[np.int64]] = {}
    seen = []
    with progress(sum(len(d.rows) for d in domains), "texts") as advance:
        for domain in domains:
            truncated, distinct = 0, None
            if domain.vectors is not None:
                vectors[domain.name] = unit_rows(domain.vectors)
                advance(len(domain.rows), domain.name)
            else:
                if encoder is None:
                    raise UsageError(f"Domain {domain.name!r} holds texts: an encoder is needed.")
                encoded = encode_cached(encoder, domain.texts, cache, partial(_count, advance, domain.name))
                vectors[domain.name] = encoded.vectors
                windows[domain.name] = encoded.seen
                truncated, distinct = int(encoded.truncated.sum()), len(np.unique(encoded.seen))
            seen.append(_seen(domain, encoder, truncated, distinct))
    _one_space(vectors)
    return vectors, seen, windows


def _count(advance: Callable[[float, str], None], name: str, texts: int) -> None:
    advance(texts, name)


def _seen(domain: Domain, encoder: TextEncoder | None, truncated: int, distinct: int | None) -> dict[str, Any]:
    facts = domain.facts
    n = len(domain.rows)
    return {
        "domain": domain.name,
        "group": domain.group,
        "n": n,
        "truncated": truncated,
        "truncated_share": truncated / n,
        "distinct_seen": distinct,
        "repeats": n - len(set(domain.texts)) if domain.texts else 0,
        "window": encoder.window if encoder and domain.vectors is None else None,
        "duplicates": facts["duplicates"],
        "empty": facts["empty"],
        "unreadable": facts["unreadable"],
        "unreadable_rows": ", ".join(map(str, facts["unreadable_rows"])),
        "rows": facts["rows"],
        "groups": None if domain.clusters is None else len(np.unique(domain.clusters)),
        "column": facts["column"],
        "column_guessed": facts["column_guessed"],
        "split": facts["split"],
        "path": facts["path"],
    }


def _one_space(vectors: Vectors) -> None:
    widths = {name: x.shape[1] for name, x in vectors.items()}
    first = next(iter(widths))
    for name, width in widths.items():
        if width != widths[first]:
            raise DataError(
                f"Domain {name!r} has vectors of width {width}, domain {first!r} of width {widths[first]}: "
                "they live in different spaces.",
                "Embed all domains with one encoder.",
            )


def _pair_table(distances: Distances, encoder: TextEncoder | None) -> pd.DataFrame:
    table = pd.DataFrame([asdict(pair) for pair in distances.pairs], columns=_COLUMNS)
    table["at_noise_floor"] = table["mmd2_u"] <= table["null_q95"]
    table["encoder"] = encoder.name if encoder else "given embeddings"
    return table


def _difference_table(found: Sequence[Difference]) -> pd.DataFrame:
    columns = [column.name for column in fields(Difference)]
    return pd.DataFrame([asdict(one) for one in found], columns=columns)


def _sensitivity_table(distances: Distances, gamma: float) -> pd.DataFrame:
    rows = [
        (pair.left, pair.right, factor, factor * gamma, float(value))
        for factor, values in distances.by_factor.items()
        for pair, value in zip(distances.pairs, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["left", "right", "factor", "gamma", "mmd2_u"])


def _projection_table(domains: Sequence[Domain], texts: TextMap, places: NDArray[np.float64]) -> pd.DataFrame:
    rows = [
        ("tsne", domain.name, domain.group, int(domain.rows[index]), float(x), float(y))
        for domain in domains
        if domain.name in texts.points
        for index, (x, y) in zip(texts.chosen[domain.name], texts.points[domain.name], strict=True)
    ]
    rows += [
        ("mds", domain.name, domain.group, -1, float(x), float(y))
        for domain, (x, y) in zip(domains, places, strict=True)
    ]
    return pd.DataFrame(rows, columns=["method", "domain", "group", "row", "x", "y"])


def _reference_table(reference: HeatMap) -> pd.DataFrame:
    names = reference.domains
    rows = [
        (names[i], names[j], float(reference.matrix[i, j]), reference.unit, reference.source)
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]
    return pd.DataFrame(rows, columns=["left", "right", "value", "unit", "source"])
