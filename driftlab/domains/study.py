"""From prepared domains to finished tables: encode, fix the bandwidth, measure, compare, map."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftlab.domains.bandwidth import SAMPLE, median_gamma
from driftlab.domains.cache import encode_cached
from driftlab.domains.comparisons import Difference, compare_distances, kendall
from driftlab.domains.encoder import CHAR_NGRAMS, TextEncoder, unit_rows
from driftlab.domains.kernel_sums import pass_units
from driftlab.domains.mmd import Distances, PairDistance, check_options, measure_distances
from driftlab.domains.projection import TextMap, mds_map, tsne_map
from driftlab.domains.reference import HeatMap, compare_heat_maps
from driftlab.domains.texts import BY_WINDOW, Domain, overlaps
from driftlab.errors import DataError, UsageError

TABLES = ("mmd", "mmd_domains", "mmd_differences", "mmd_sensitivity", "projection", "mmd_reference")
"""Every table a study may fill."""

Progress = Callable[[float, str], AbstractContextManager[Callable[[float, str], None]]]
Vectors = dict[str, NDArray[np.float32]]

_COLUMNS = [column.name for column in fields(PairDistance)]


@dataclass(frozen=True)
class Settings:
    """What a distance depends on besides the texts and the encoder.

    Attributes
    ----------
    bandwidth : str
        ``median``, a number, or ``file:PATH`` (a results folder or its ``mmd.json``).
    group_by : str
        ``@window`` groups the texts that the encoder cannot tell apart; anything else is a label column that
        :func:`driftlab.domains.texts.load_domains` has read already.
    permutations, seed, block, precision, device
        See :func:`driftlab.domains.mmd.measure_distances`.
    map_cap, perplexity
        See :func:`driftlab.domains.projection.tsne_map`.

    Raises
    ------
    UsageError
        If an option is out of its range or the bandwidth cannot be read: before anything is computed.
    """

    bandwidth: str = "median"
    permutations: int = 1999
    seed: int = 0
    block: int = 1024
    precision: str = "float32"
    device: str = "cpu"
    map_cap: int = 300
    perplexity: float = 30.0
    group_by: str = ""

    def __post_init__(self) -> None:
        check_options(1.0, self.permutations, self.block, self.precision)
        if self.bandwidth.startswith("file:"):
            _stored_gamma(self.bandwidth)
        elif self.bandwidth != "median":
            _given_gamma(self.bandwidth)


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
    gamma, rule = _bandwidth(settings.bandwidth, vectors, settings.seed, encoder.key if encoder else "")
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
    ours = HeatMap(distances.names, 100 * square, "this run", "100 x squared MMD, unbiased")
    summary = {
        "gamma": gamma,
        "bandwidth": rule,
        "estimator": "mmd2_u: unbiased squared MMD, k(x, y) = exp(-gamma |x - y|^2) on unit vectors",
        "encoder": {"name": encoder.name, "key": encoder.key, "window": encoder.window} if encoder else None,
        "settings": asdict(settings),
        "domains": list(ours.domains),
        "unit": ours.unit,
        "values": ours.matrix.tolist(),
        "overlaps": overlaps(domains),
        "sensitivity_kendall_tau": {
            str(factor): _number(kendall(distances.by_factor[1.0], values))
            for factor, values in distances.by_factor.items()
            if factor != 1.0
        },
        "maps": {"tsne": texts.settings, "mds": {"method": "smacof", "on": "sqrt(max(mmd2_u, 0))", "stress": stress}},
    }
    if reference is not None:
        summary["compare"] = compare_heat_maps(ours, reference)
        tables["mmd_reference"] = _reference_table(reference)
    remarks = _remarks(tables, summary, encoder)
    return Study(tables, summary | {"remarks": remarks}, remarks)


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


def _bandwidth(rule: str, vectors: Vectors, seed: int, encoder_key: str) -> tuple[float, dict[str, Any]]:
    """Return gamma and how it came about."""
    if rule == "median":
        rows = min([SAMPLE, *(len(x) for x in vectors.values())])
        return median_gamma(vectors, seed=seed), {"rule": "median", "rows_per_domain": rows, "seed": seed}
    if rule.startswith("file:"):
        gamma, stored = _stored_gamma(rule)
        return gamma, {"rule": rule, "same_encoder": not stored or stored == encoder_key}
    return _given_gamma(rule), {"rule": "given"}


def _given_gamma(rule: str) -> float:
    try:
        gamma = float(rule)
    except ValueError:
        gamma = math.nan
    if not (math.isfinite(gamma) and gamma > 0):
        raise UsageError(f"Bandwidth {rule!r}: expected median, a positive number, or file:PATH.")
    return gamma


def _stored_gamma(rule: str) -> tuple[float, str]:
    """Return the gamma of an earlier run and the key of its encoder."""
    path = Path(rule.removeprefix("file:"))
    file = path / "mmd.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        gamma, encoder = float(content["gamma"]), content.get("encoder") or {}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"Bandwidth file {file}: expected JSON with a number 'gamma', found none.") from None
    if not (math.isfinite(gamma) and gamma > 0):
        raise UsageError(f"Bandwidth file {file}: expected a positive gamma, found {gamma}.")
    return gamma, str(encoder.get("key", ""))


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


def _number(value: float) -> float | None:
    """Return a JSON number, null for NaN."""
    return None if math.isnan(value) else value


# -- remarks ------------------------------------------------------------


def _remarks(tables: Mapping[str, pd.DataFrame], summary: Mapping[str, Any], encoder: TextEncoder | None) -> list[str]:
    """Return one sentence for each thing that a reader of the distances must know."""
    found = []
    if encoder is not None and encoder.key.startswith(CHAR_NGRAMS):
        found.append("Encoder: hashed character n-grams, no model: distances are of spelling, not of meaning.")
    if summary["bandwidth"].get("same_encoder") is False:
        found.append("The bandwidth file was made with another encoder: its gamma belongs to another space.")
    every = tables["mmd_domains"].to_dict("records")
    found += _guess_remarks(every)
    for seen in every:
        found += _domain_remarks(seen, summary["settings"]["group_by"] == BY_WINDOW)
    found += [
        f"{o['left']} and {o['right']} share {o['shared']} texts "
        f"({o['share_left']:.0%} and {o['share_right']:.0%} of them): an overlap shrinks their distance."
        for o in summary["overlaps"]
    ]
    return found + _pair_remarks(tables["mmd"], summary)


def _guess_remarks(every: Sequence[Mapping[Any, Any]]) -> list[str]:
    guessed: dict[str, list[str]] = {}
    for seen in every:
        if seen["column_guessed"]:
            guessed.setdefault(seen["column"], []).append(seen["domain"])
    return [f"Guessed column {column!r} for {', '.join(names)}." for column, names in guessed.items()]


def _domain_remarks(seen: Mapping[Any, Any], grouped: bool) -> list[str]:
    name, n, found = seen["domain"], seen["n"], []
    if seen["truncated"]:
        found.append(
            f"{name}: {seen['truncated']} of {n} texts ({seen['truncated_share']:.0%}) are longer than the encoder's "
            f"{seen['window']:.0f} tokens and were cut."
        )
    if seen["truncated"] and not grouped and seen["distinct_seen"] < n - seen["repeats"]:
        found.append(
            f"{name}: after the cut the encoder sees {seen['distinct_seen']} different texts instead of "
            f"{n - seen['repeats']}: many begin alike. Raise --max-tokens, or give --group-by {BY_WINDOW} for "
            "intervals that know it."
        )
    if seen["empty"]:
        found.append(f"{name}: {seen['empty']} of {seen['rows']} rows are empty and were left out.")
    if seen["unreadable"]:
        found.append(
            f"{name}: {seen['unreadable']} of {seen['rows']} rows hold no usable value and were left out "
            f"(rows {seen['unreadable_rows']}{' …' if seen['unreadable'] > 20 else ''}, from 0)."
        )
    if seen["duplicates"]:
        found.append(f"{name}: {seen['duplicates']} texts repeat an earlier one; intervals treat them as independent.")
    return found


def _pair_remarks(table: pd.DataFrame, summary: Mapping[str, Any]) -> list[str]:
    found = []
    negative = int((table["mmd2_u"] < 0).sum())
    if negative:
        found.append(f"{negative} unbiased values are negative: noise around 0, meaning no difference was found.")
    permutations = summary["settings"]["permutations"]
    if permutations and len(table) / (1 + permutations) > 0.05:
        found.append(
            f"With {permutations} permutations and {len(table)} pairs no corrected p can fall below "
            f"{len(table) / (1 + permutations):.2f}: raise --permutations."
        )
    taus = [tau for tau in summary["sensitivity_kendall_tau"].values() if tau is not None]
    if taus and min(taus) < 0.8:
        found.append(f"The order of the distances depends on the bandwidth (Kendall's tau down to {min(taus):.2f}).")
    if summary["bandwidth"].get("rows_per_domain", SAMPLE) < 30:
        found.append(
            f"The bandwidth rests on {summary['bandwidth']['rows_per_domain']} rows of each domain, "
            "the size of the smallest."
        )
    for pair in table.to_dict("records"):
        if pair["reason"]:
            found.append(f"{pair['left']} and {pair['right']}: {pair['reason']}.")
    if "reason" in summary["maps"]["tsne"]:
        found.append(f"{summary['maps']['tsne']['reason'].capitalize()}.")
    return found
