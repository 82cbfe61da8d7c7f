"""One sentence for each thing that a reader of the distances must know."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from driftlab.domains.bandwidth import SAMPLE
from driftlab.domains.encoded import TextEncoder
from driftlab.domains.encoder import CHAR_NGRAMS
from driftlab.domains.texts import BY_WINDOW


def remarks_on(
    tables: Mapping[str, pd.DataFrame], summary: Mapping[str, Any], encoder: TextEncoder | None
) -> list[str]:
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
    if not grouped and (seen["distinct_seen"] or n) < n - seen["repeats"]:
        found.append(
            f"{name}: the encoder sees {seen['distinct_seen']:.0f} different texts instead of {n - seen['repeats']} "
            f"(cut where they begin alike, or made of unknown tokens). Give --group-by {BY_WINDOW} for intervals and "
            "p-values that know it."
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
