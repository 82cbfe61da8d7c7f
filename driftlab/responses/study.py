"""From all pairs to stored tables: summary, tests, and what a reader must know."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from driftlab.domains.encoded import TextEncoder
from driftlab.responses.comparisons import compare_runs, in_words
from driftlab.responses.readers import ResponseSet
from driftlab.responses.remarks import remarks_on
from driftlab.responses.similarity import SCHEMA
from driftlab.responses.sources import ResponseSequence
from driftlab.responses.summaries import summarise
from driftlab.results import ResultsDir


def finish(
    pairs: pd.DataFrame,
    sequences: Sequence[ResponseSequence],
    encoder: TextEncoder,
    results: ResultsDir,
    *,
    seed: int = 0,
    previous: bool = False,
    other_seed: ResponseSet | None = None,
    only: Sequence[tuple[str, str]] | None = None,
) -> None:
    """Write ``similarity_summary``, ``similarity_tests``, ``similarity.json`` and, last, ``similarity``."""
    summary, tests = summarise(pairs, seed), compare_runs(pairs, seed, only)
    words = list(in_words(tests))
    results.write_table("similarity_summary", summary)
    results.write_table("similarity_tests", tests)
    results.write_json(
        "similarity",
        {
            "encoder": {"name": encoder.name, "key": encoder.key, "window": encoder.window},
            "against": "previous" if previous else "base",
            "seed": seed,
            "words": words,
            "remarks": remarks_on(summary, tests, sequences, encoder, other_seed),
        },
    )
    results.write_table("similarity", pa.Table.from_pandas(pairs, schema=SCHEMA, preserve_index=False))
    results.drop_parts("similarity")


def inputs(sequences: Sequence[ResponseSequence]) -> list[dict[str, Any]]:
    """Return what was read, for the manifest: source and counts of every set of responses."""
    return [
        {"run": one.run, "label": step.label, "source": step.responses.source, **step.responses.facts}
        for one in sequences
        for step in (one.reference, *one.steps)
    ]
