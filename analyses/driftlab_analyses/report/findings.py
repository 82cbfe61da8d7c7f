"""What the stored numbers say, in sentences: made from verdicts and intervals, never from a glance at a picture."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from driftlab.results import ResultsDir
from driftlab.separation import RANDOM_LEVEL, WORDED, in_words

_TAGS = {"separated": "separated", "open": "not separated", "alarm": "alarm", "fact": "measured"}
_EACH_RUN = 4  # more runs than these are counted, not listed
KEY_NUMBERS = {
    "nss": "spectral shift of the weights",
    "rel_frobenius": "size of the update",
    "kl_new_to_base": "KL to the base, nats a response",
    "excess_drift": "KL beyond what success required, nats",
    "similarity_mean": "similarity of responses to the base's",
    "artifact_rate": "share of responses with artefacts",
    "current": "score after each stage on its own task, %",
    "last": "score at the end on the trained tasks, %",
    "ood": "score at the end on tasks never trained, %",
}
"""The numbers of a study that are put into sentences; the table has all."""


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
    makers = {
        "study_contrasts": _study, "artifacts": _collapse, "spectral_summary": _weights, "policy": _policy,
        "similarity_tests": _similarity, "forgetting_summary": _forgetting, "mmd": _domains,
    }  # fmt: skip
    return [finding for table, make in makers.items() if results.has(table) for finding in make(results)]


def _study(results: ResultsDir) -> Iterator[Finding]:
    """Say for each number which methods stand apart from the one they are compared with."""
    group = "Methods against each other, over seeds"
    table = results.table("study_contrasts")
    if table.empty or (table["verdict"] == "one seed").all():
        yield Finding(group, "open", "One seed of each method: differences between methods say nothing of other seeds.")
        return
    for number, meaning in KEY_NUMBERS.items():
        rows = table[table["number"] == number]
        apart = rows[rows["verdict"].isin(["above", "below"])]
        rest = [_open_pair(row) for row in _rows(rows) if row.verdict == "not separated"]
        for row in _rows(apart):
            yield Finding(
                group, "separated",
                f"{meaning}: {row.left} {row.verdict} {row.right} by {abs(row.difference):.3g} "
                f"(difference {row.difference:+.3g} [{row.low:+.3g}, {row.high:+.3g}], {row.seeds} seeds, "
                f"p {_p(row.p_holm)})",
            )  # fmt: skip
        if rest:
            yield Finding(group, "open", f"{meaning}: {'; '.join(rest)}")


def _open_pair(row: Any) -> str:
    """Name two methods that are not separated; with the interval where it is the adjustment that decides."""
    alone = row.low > 0 or row.high < 0
    shown = f" ({row.difference:+.3g} [{row.low:+.3g}, {row.high:+.3g}], p {_p(row.p_holm)} adjusted)" if alone else ""
    return f"{row.left} and {row.right}{shown}"


def _weights(results: ResultsDir) -> Iterator[Finding]:
    group = "Weights against their nulls"
    summary = results.table("spectral_summary")
    if summary["run"].nunique() <= _EACH_RUN:
        for text in in_words(summary):
            yield Finding(group, "open" if " not separated " in text else "separated", text)
        return
    model = summary[(summary["group_by"] == "model") & summary["verdict"].ne("no null") & (summary["order"] > 0)]
    last = model[model["order"] == model.groupby("run")["order"].transform("max")]
    for measure in WORDED:
        rows = last[last["measure"] == measure]
        counts = rows["verdict"].value_counts()
        if len(rows):
            null = "the level of a random update" if measure in RANDOM_LEVEL else "its null"
            words = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
            kind = "open" if 2 * counts.get("not separated", 0) > len(rows) else "separated"
            yield Finding(group, kind, f"{measure} against {null} at the last checkpoint of {len(rows)} runs: {words}")


def _collapse(results: ResultsDir) -> Iterator[Finding]:
    """Raise an alarm for every method of which a run collapsed, or say that none did."""
    group = "Collapse"
    table = results.table("artifacts")
    table = table[(table["task"] == "all") & (table["order"] > 0) & table["verdict"].notna()]
    bad = table[table["verdict"].isin(["partial", "collapsed"])]
    for method, rows in bad.groupby("method", sort=False):
        runs = rows["run"].nunique()
        first = rows.sort_values("order", kind="stable").iloc[0]
        yield Finding(
            group, "alarm",
            f"{method}: {runs} of {table.loc[table['method'] == method, 'run'].nunique()} runs, first "
            f"{first['run']} at {first['label']} ({first['verdict']}): {first['evidence']}",
        )  # fmt: skip
    clean = [method for method in dict.fromkeys(table["method"]) if method not in set(bad["method"])]
    if clean:
        yield Finding(group, "fact", f"no checkpoint meets the rule of a collapse: {', '.join(clean)}")


def _policy(results: ResultsDir) -> Iterator[Finding]:
    table = results.table("policy")
    table = table[(table["task"] == "all") & (table["order"] > 0) & (table["status"] == "ok")]
    if results.has("study_contrasts") or table["run"].nunique() > _EACH_RUN:
        return
    for row in _rows(table[table["order"] == table.groupby("run")["order"].transform("max")]):
        kind = "separated" if row.excess_drift_low > 0 else "open"
        beyond = "beyond" if kind == "separated" else "not beyond"
        yield Finding(
            "Policy against what success required", kind,
            f"{row.run} {row.label}: KL(new‖base) {row.kl_new_to_base:.3g} nats a response, {beyond} what its success "
            f"required (excess {row.excess_drift:.3g} [{row.excess_drift_low:.3g}, {row.excess_drift_high:.3g}])",
        )  # fmt: skip


def _similarity(results: ResultsDir) -> Iterator[Finding]:
    """Repeat the words of the similarity command where they are few."""
    words = results.read_json("similarity").get("words", []) if (results.path / "similarity.json").is_file() else []
    if results.has("study_contrasts") or len(words) > _EACH_RUN:
        return
    for text in words:
        yield Finding("Responses", "open" if "not separated" in text else "separated", text)


def _forgetting(results: ResultsDir) -> Iterator[Finding]:
    if results.has("study_contrasts"):
        return
    table = results.table("forgetting_summary")
    pairs = table[(table["level"] == "difference") & table["metric"].isin(["last", "ood"]) & (table["task"] == "")]
    for row in _rows(pairs):
        kind = "separated" if row.verdict == "separated" else "open"
        yield Finding(
            "Scores", kind,
            f"{KEY_NUMBERS[str(row.metric)]}: {row.method} less {row.other} {row.value:+.3g} "
            f"[{row.low:+.3g}, {row.high:+.3g}], {row.verdict}",
        )  # fmt: skip


def _domains(results: ResultsDir) -> Iterator[Finding]:
    group = "Distances between domains"
    pairs = results.table("mmd").sort_values("mmd2_u")
    apart, close = pairs[pairs["p_holm"] < 0.05], pairs[~(pairs["p_holm"] < 0.05)]
    ends = {"farthest": apart.tail(1), "nearest of those told apart": apart.head(1).iloc[: len(apart) - 1]}
    for which, rows in ends.items():
        for row in _rows(rows):
            yield Finding(
                group, "separated",
                f"{row.left} and {row.right} are the {which}: MMD² {row.mmd2_u:.3g} "
                f"[{row.ci_low:.3g}, {row.ci_high:.3g}], noise floor {row.null_q95:.2g}",
            )  # fmt: skip
    if len(close):
        yield Finding(group, "open", f"not told apart by these samples: {_names(close)}")


def _rows(table: pd.DataFrame) -> list[Any]:
    """Return the rows with their columns as attributes."""
    return list(table.itertuples())


def _names(pairs: pd.DataFrame) -> str:
    names = "; ".join(f"{row.left} and {row.right}" for row in _rows(pairs.head(5)))
    return names + (f" and {len(pairs) - 5} more pairs" if len(pairs) > 5 else "")


def _p(value: float) -> str:
    return "< 1e-4" if value < 1e-4 else f"= {value:.2g}"
