"""One sentence for each thing that a reader of similarities must know."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from driftlab.domains.encoded import TextEncoder
from driftlab.domains.encoder import CHAR_NGRAMS
from driftlab.responses.comparisons import resolvable
from driftlab.responses.readers import BY_PROMPT, ResponseSet
from driftlab.responses.sources import ResponseSequence
from driftlab.responses.summaries import ALL

_WHY = {
    "unmatched": "have no counterpart",
    "prompts_differ": "have one id but different prompts",
    "unusable": "have several responses under one id, or no single text",
    "empty_ref": "have an empty reference response",
    "empty_new": "have an empty new response",
    "failed": "have no finite embedding",
}


def remarks_on(
    summary: pd.DataFrame,
    tests: pd.DataFrame,
    sequences: Sequence[ResponseSequence],
    encoder: TextEncoder,
    other_seed: ResponseSet | None = None,
) -> list[str]:
    """Return one sentence for each thing that a reader of the similarities must know."""
    whole = summary[summary["task"] == ALL]
    found = []
    if encoder.key.startswith(CHAR_NGRAMS):
        found.append("Encoder: hashed character n-grams, no model: similarity is of spelling, not of meaning.")
    if other_seed is None:
        found.append("No --seed-run: how similar the base is to itself under another seed is not known.")
    elif not whole["other_seed_n"].gt(0).any():
        found.append(f"{other_seed.source}: no prompt in common with the base, so there is no other-seed baseline.")
    else:
        found.append(
            "The other-seed level is no floor: checkpoints that answer with the random numbers of the base (run "
            "folders), or whose policy became sharper, can lie above it although they moved."
        )
    found += _of_files(sequences)
    found += _of_references(sequences, other_seed is not None)
    for row in whole.to_dict("records"):
        found += _of_label(row, encoder)
    found += _not_compared(sequences, tests)
    if not resolvable(tests):
        found.append("There are more comparisons than the sign flips can resolve after correction: compare fewer runs.")
    return found


def _not_compared(sequences: Sequence[ResponseSequence], tests: pd.DataFrame) -> Iterator[str]:
    compared = {frozenset(pair) for pair in zip(tests["left"], tests["right"], strict=True)}
    pairs = list(combinations(sequences, 2))
    missing = [pair for pair in pairs if frozenset(one.run for one in pair) not in compared]
    strangers = [
        pair for pair in missing if not set.intersection(*({step.label for step in one.steps} for one in pair))
    ]
    for some, why in (
        (strangers, "no label in common: name the files of one step alike"),
        (
            [pair for pair in missing if pair not in strangers],
            "no prompt in common at a label, as runs of different seeds",
        ),
    ):
        if some:
            yield (
                f"{len(some)} of {len(pairs)} pairs of runs are not compared, for they have {why} "
                f"({some[0][0].run} and {some[0][1].run} first)."
            )


def _of_files(sequences: Sequence[ResponseSequence]) -> Iterator[str]:
    seen = set()
    for sequence in sequences:
        for answers in (sequence.reference, *sequence.steps):
            one = answers.responses
            if one.source in seen:
                continue
            seen.add(one.source)
            if one.facts["repeats"]:
                yield f"{one.source}: {one.facts['repeats']} rows repeat another one and were taken once."
            if one.keyed == BY_PROMPT:
                yield f"{one.source}: there are no ids; responses were joined by their exact prompt."


def _of_references(sequences: Sequence[ResponseSequence], with_seed: bool) -> Iterator[str]:
    """Say which runs do not start from the same responses: another base, other questions or other decoding."""
    groups: dict[str, list[str]] = {}
    for sequence in sequences:
        groups.setdefault(sequence.reference.responses.digest(), []).append(sequence.run)
    if len(groups) > 1:
        shown = " | ".join(", ".join(runs) for runs in groups.values())
        seed = "; the other-seed level is right for those only whose base answered --seed-run" if with_seed else ""
        yield (
            f"The references differ ({shown}): each run is compared with its own, so tests between these groups "
            f"compare distances from different bases{seed}."
        )


def _of_label(row: dict[Any, Any], encoder: TextEncoder) -> Iterator[str]:
    where = row["run"] if row["run"] == row["label"] else f"{row['run']} {row['label']}"
    for name, why in _WHY.items():
        if row[name]:
            yield f"{where}: {row[name]} of {row['pairs']} prompts {why} and were left out."
    n = row["n"]
    late = {side: row[f"truncated_{side}"] for side in ("new", "ref")}
    if max(late.values()) > 0.05 * n:
        yield (
            f"{where}: the length budget ended {late['new']} of {n} new and {late['ref']} reference responses; they "
            "are compared as far as they go (complete_median has the others alone)."
        )
    if row["cut"]:
        yield (
            f"{where}: in {row['cut']} of {n} pairs a response is longer than the encoder's {encoder.window} tokens; "
            "its end was not seen."
        )
    if row["indistinct"]:
        yield f"{where}: {row['indistinct']} of {n} pairs differ but look the same to the encoder."
