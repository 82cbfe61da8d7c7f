"""What a distance depends on besides the texts and the encoder; checked before anything is computed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.bandwidth import SAMPLE, median_gamma
from driftlab.domains.mmd import check_options
from driftlab.errors import UsageError


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


def choose_bandwidth(
    rule: str, vectors: Mapping[str, NDArray[np.float32]], seed: int, encoder_key: str
) -> tuple[float, dict[str, Any]]:
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
