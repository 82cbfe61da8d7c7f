"""How similar the responses of two models to the same prompts are: one row a prompt, with its baselines.

The measure is the cosine of the embeddings of two responses (response drift, arXiv 2607.01763). A cosine says nothing
by itself: beside it stand what the same model gives under another seed, what two unrelated responses give, and what
the encoder gives for the same text twice.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from driftlab.domains.encoded import TextEncoder
from driftlab.responses.cosines import cosine, partners
from driftlab.responses.embedding import Advance, Embedded, embed, embed_texts
from driftlab.responses.pairing import pair, refuse_none
from driftlab.responses.readers import ResponseSet
from driftlab.responses.sources import Answers, ResponseSequence
from driftlab.results import ResultsDir

TABLES = ("similarity_tests", "similarity_summary", "similarity")
"""Every table the command fills; ``similarity`` last to be written, it says that all are there."""

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "method")),
        ("seed", pa.int64()),
        *((name, pa.string()) for name in ("label", "stage")),
        *((name, pa.int64()) for name in ("step", "order")),
        *((name, pa.string()) for name in ("reference", "task", "id", "prompt_digest")),
        *((name, pa.float64()) for name in ("similarity", "random", "other_seed", "same_text")),
        *((name, pa.string()) for name in ("status", "reason")),
        *((name, pa.bool_()) for name in ("identical", "indistinct", "cut_ref", "cut_new")),
        *((f"{name}_{side}", pa.int64()) for name in ("length", "tokens") for side in ("ref", "new")),
        *((f"truncated_{side}", pa.bool_()) for side in ("ref", "new")),
        *((f"reward_{side}", pa.float64()) for side in ("ref", "new")),
    ]
)
"""One row for each (run, label, prompt). ``random``, ``other_seed`` and ``same_text`` are baselines of the row."""

NOT_FINITE = "the embedding is zero or not finite"
INDISTINCT = 1e-6
_SAME_TEXTS = 64


@dataclass(frozen=True)
class _Reference:
    embedded: Embedded
    same_text: dict[str, float]


def describe(
    sequences: Sequence[ResponseSequence], encoder: TextEncoder, seed: int, previous: bool, other: ResponseSet | None
) -> dict[str, Any]:
    """Return everything that changes a number, for the manifest: a resumed run must have the same."""
    return {
        "runs": [
            {
                "name": one.run,
                "reference": one.reference.responses.digest(),
                "steps": {step.label: step.responses.digest() for step in one.steps},
            }
            for one in sequences
        ],
        "encoder": encoder.key,
        "seed": seed,
        "against": "previous" if previous else "base",
        "seed_run": other.digest() if other else None,
    }


def measure_sequences(
    sequences: Sequence[ResponseSequence],
    encoder: TextEncoder,
    results: ResultsDir,
    *,
    seed: int = 0,
    previous: bool = False,
    other_seed: ResponseSet | None = None,
    cache: Path | None = None,
    advance: Advance = lambda amount, what: None,
) -> pd.DataFrame:
    """Fill the parts of the table ``similarity``, one a (run, label), and return all of them.

    Parameters
    ----------
    sequences : sequence of ResponseSequence
    encoder : TextEncoder
        From :func:`driftlab.domains.encoder.open_encoder`.
    results : ResultsDir
        Parts that are there already are not made again.
    seed : int, default 0
        Of the random partners.
    previous : bool, default False
        Compare each label with the one before it instead of the base.
    other_seed : ResponseSet, optional
        Responses of the base under another seed to the same prompts.
    cache : Path, optional
        Where embeddings are kept; None for nowhere.
    advance : callable, optional
        Called with the number of labels done since the last call.

    Returns
    -------
    DataFrame of schema :data:`SCHEMA`

    Raises
    ------
    DataError
        If nothing at all could be compared; one label that shares no prompt with its reference has rows that say so.
    NumericalError
        If the encoder gives no finite vector at all.
    """
    made = _references(encoder, cache)
    units = []
    for sequence in sequences:
        noise: dict[str, float] | None = None
        for reference, new in sequence.compared(previous):
            unit = f"{sequence.run} {new.order} {new.label}"
            units.append(unit)
            if not results.has_part("similarity", unit):
                if noise is None:
                    noise = seed_noise(sequence.reference.responses, other_seed, encoder, cache)
                rows = compare(reference.responses, new.responses, encoder, made, seed, noise, cache)
                results.write_part("similarity", unit, _table(rows, sequence, reference, new))
            advance(1, unit)
    merged: pd.DataFrame = results.merge_parts("similarity", units, SCHEMA).to_pandas()
    if not (merged["status"] == "ok").any():
        reference, new = sequences[0].compared(previous)[0]
        refuse_none(reference.responses, new.responses)
    return merged


def compare(
    reference: ResponseSet,
    new: ResponseSet,
    encoder: TextEncoder,
    references: "Callable[[ResponseSet], _Reference] | None" = None,
    seed: int = 0,
    noise: dict[str, float] | None = None,
    cache: Path | None = None,
) -> pd.DataFrame:
    """Return one row for each prompt of either set: its similarity, or why there is none.

    ``random`` pairs the reference response with the new response to another prompt of the same task, drawn by
    ``seed``; ``same_text`` encodes up to 64 reference responses a second time in other company.
    """
    pairs = pair(reference, new)
    base = (references or _references(encoder, cache))(reference)
    embedded = embed(new, encoder, cache)
    ok = np.flatnonzero(pairs["reason"] == "")
    left, right = (pairs[f"response_{side}"].iloc[ok].tolist() for side in ("ref", "new"))
    x, y = base.embedded.rows(left), embedded.rows(right)
    values = cosine(x, y) if len(ok) else np.zeros(0)
    equal = np.array([a == b for a, b in zip(left, right, strict=True)], dtype=bool)
    random = np.full(len(ok), np.nan)
    usable = np.isfinite(values)
    for task, rows in pairs.iloc[ok].assign(at=range(len(ok)))[usable].sort_values("key").groupby("task"):
        at = rows["at"].to_numpy()
        if len(at) > 1:
            random[at] = cosine(x[at], y[at[partners(len(at), seed, str(task))]])
    found = pd.DataFrame(index=pairs.index)
    found["task"], found["id"], found["reason"] = pairs["task"], pairs["key"], pairs["reason"]
    found["prompt_digest"] = [_digest(prompt) for prompt in pairs["prompt"]]
    found["status"] = np.where(pairs["reason"] == "", "ok", "skipped")
    columns = {
        "similarity": values,
        "random": random,
        "other_seed": [(noise or {}).get(key, np.nan) for key in pairs["key"].iloc[ok]],
        "same_text": [base.same_text.get(text, np.nan) for text in left],
        "identical": equal,
        "indistinct": (values > 1 - INDISTINCT) & ~equal,
        "cut_ref": base.embedded.cut_of(left),
        "cut_new": embedded.cut_of(right),
    }
    for name, column in columns.items():
        found[name] = pd.Series(column, index=pairs.index[ok], dtype=object).reindex(pairs.index)
    failed = pairs.index[ok][~usable]
    found.loc[failed, ["status", "reason"]] = ["failed", NOT_FINITE]
    for side in ("ref", "new"):
        found[f"length_{side}"] = pairs[f"response_{side}"].str.len()
        for name in ("tokens", "truncated", "reward"):
            found[f"{name}_{side}"] = pairs[f"{name}_{side}"]
    return found


def _digest(prompt: str) -> str:
    """Return what tells two prompts under one id apart; empty where the prompt is not known."""
    text = prompt.strip() if isinstance(prompt, str) else ""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest() if text else ""


def seed_noise(
    reference: ResponseSet, other: ResponseSet | None, encoder: TextEncoder, cache: Path | None = None
) -> dict[str, float]:
    """Return for each prompt how similar the base is to itself under another seed; empty without common prompts."""
    if other is None:
        return {}
    pairs = pair(reference, other)
    pairs = pairs[pairs["reason"] == ""]
    if pairs.empty:  # the remarks say that there is no such baseline
        return {}
    x = embed(reference, encoder, cache).rows(pairs["response_ref"].tolist())
    y = embed(other, encoder, cache).rows(pairs["response_new"].tolist())
    return dict(zip(pairs["key"], cosine(x, y).tolist(), strict=True))


def _references(encoder: TextEncoder, cache: Path | None) -> Callable[[ResponseSet], _Reference]:
    """Return a function that embeds a reference and remembers the last: runs mostly share theirs."""
    last: dict[str, _Reference] = {}

    def made(reference: ResponseSet) -> _Reference:
        digest = reference.digest()
        if digest not in last:
            embedded = embed(reference, encoder, cache)
            texts = list(embedded.place)[:_SAME_TEXTS][::-1]
            again = embed_texts(texts, encoder) if texts else embedded
            same = dict(zip(texts, cosine(embedded.rows(texts), again.rows(texts)).tolist(), strict=True))
            last.clear()
            last[digest] = _Reference(embedded, same)
        return last[digest]

    return made


def _table(rows: pd.DataFrame, sequence: ResponseSequence, reference: Answers, new: Answers) -> pa.Table:
    head = {
        "run": sequence.run,
        "method": sequence.method,
        "seed": sequence.seed,
        "label": new.label,
        "stage": new.stage,
        "step": new.step,
        "order": new.order,
        "reference": reference.label,
    }
    frame = rows.assign(**head).reindex(columns=SCHEMA.names)
    return pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
