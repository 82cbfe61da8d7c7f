"""A heat map from elsewhere, to compare ours with: by rank, since kernels and encoders differ."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.comparisons import rank_agreement
from driftlab.errors import DataError


@dataclass(frozen=True)
class HeatMap:
    """Distances between named domains.

    Attributes
    ----------
    domains : tuple of str
    matrix : array of shape (domains, domains)
        Symmetric.
    source, unit : str
    """

    domains: tuple[str, ...]
    matrix: NDArray[np.float64]
    source: str
    unit: str

    def pairs(self) -> dict[frozenset[str], float]:
        """Return the upper triangle by the two names, in lower case."""
        names = [name.casefold() for name in self.domains]
        return {
            frozenset((names[i], names[j])): float(self.matrix[i, j])
            for i in range(len(names))
            for j in range(i + 1, len(names))
        }


def read_heat_map(path: str | Path, names: Sequence[str] = ()) -> HeatMap:
    """Read ``{"domains": [...], "values": [[...]]}`` from a file, or the ``mmd.json`` of a results folder.

    Parameters
    ----------
    path : str or Path
    names : sequence of str, optional
        The domains it will be compared with: two of them at least must be in it.

    Raises
    ------
    DataError
        If it is not there, has another form, is not symmetric, or shares no pair with ``names``.
    """
    file = Path(path)
    file = file / "mmd.json" if file.is_dir() else file
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known = tuple(str(name) for name in content["domains"])
        values = np.array(content["values"], dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"Heat map {file}: expected JSON with 'domains' and 'values', found none.") from None
    if values.shape != (len(known), len(known)):
        raise DataError(f"Heat map {file}: {len(known)} domains need as many rows and columns, found {values.shape}.")
    if not np.allclose(values, values.T, equal_nan=False):
        raise DataError(f"Heat map {file}: expected a symmetric matrix of numbers, found another.")
    if names and len({name.casefold() for name in names} & {name.casefold() for name in known}) < 2:
        raise DataError(
            f"Heat map {file} shares no pair of domains with this run: it has {', '.join(known)}; "
            f"this run has {', '.join(names)}.",
            "Give the domains the same names.",
        )
    return HeatMap(known, values, str(content.get("source", file)), str(content.get("unit", "")))


def compare_heat_maps(ours: HeatMap, other: HeatMap) -> dict[str, Any]:
    """Return the rank agreement of two heat maps over the pairs they share; names are matched without case."""
    agreement = rank_agreement(ours.pairs(), other.pairs())
    return {"source": other.source, "unit": other.unit, **{k: _number(v) for k, v in agreement.items()}}


def _number(value: float) -> float | None:
    """Return a JSON number, null for NaN."""
    return None if math.isnan(value) else value
