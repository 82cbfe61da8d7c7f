"""What the stored numbers say, in sentences: made from verdicts and intervals, never from a glance at a picture."""

from collections.abc import Iterator
from dataclasses import dataclass

from driftlab.results import ResultsDir
from driftlab.separation import in_words

_TAGS = {"separated": "separated", "open": "not separated", "alarm": "alarm", "fact": "measured"}


@dataclass(frozen=True)
class Finding:
    """One sentence, the room it comes from, and its kind: separated, open, alarm or fact."""

    group: str
    kind: str
    text: str

    @property
    def tag(self) -> str:
        """The word that stands before it."""
        return _TAGS[self.kind]


def findings(results: ResultsDir) -> list[Finding]:
    """Return everything the page says in words about a results folder."""
    found: list[Finding] = []
    if results.has("spectral_summary"):
        found += _weights(results)
    if results.has("mmd"):
        found += _domains(results)
    return found


def _weights(results: ResultsDir) -> Iterator[Finding]:
    for text in in_words(results.table("spectral_summary")):
        yield Finding("Weights against their nulls", "open" if " not separated " in text else "separated", text)


def _domains(results: ResultsDir) -> Iterator[Finding]:
    pairs = results.table("mmd").sort_values("mmd2_u")
    apart = pairs[pairs["p_holm"] < 0.05]
    close = pairs[~(pairs["p_holm"] < 0.05)]
    group = "Distances between domains"
    for row in [*apart.tail(1).itertuples(), *apart.head(1).itertuples()][: len(apart)]:
        which = "farthest" if row.mmd2_u == apart["mmd2_u"].max() else "nearest of those told apart"
        yield Finding(
            group, "separated",
            f"{row.left} and {row.right} are the {which}: MMD² {row.mmd2_u:.4g} "
            f"[{row.ci_low:.4g}, {row.ci_high:.4g}], noise floor {row.null_q95:.2g}",
        )  # fmt: skip
    if len(close):
        names = "; ".join(f"{row.left} and {row.right}" for row in close.head(5).itertuples())
        more = f" and {len(close) - 5} more pairs" if len(close) > 5 else ""
        yield Finding(group, "open", f"not told apart by these samples: {names}{more}")
