"""Domains: named sets of texts (or of ready embeddings), with a count of everything that was left out.

A sample is taken at random and never from the head of a file; empty and unreadable texts, repeats inside a domain and
texts that two domains share are counted, because each of them moves a distance and none of them shows in it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.columns import choose_column, text_of
from driftlab.domains.datafiles import Records
from driftlab.domains.encoded import numbered
from driftlab.domains.readers import read
from driftlab.domains.seeding import generator
from driftlab.domains.specs import DomainSpec
from driftlab.errors import DataError, UsageError

BY_WINDOW = "@window"
"""The ``group_by`` that means: texts whose visible parts are the same to the encoder."""


@dataclass(frozen=True)
class Domain:
    """A named set of texts or embeddings, and what happened to the rest of its file.

    Attributes
    ----------
    name, group : str
    texts : tuple of str
        Empty if the file held embeddings.
    vectors : array of shape (n, d) or None
        The embeddings of a ``.npy`` or ``.npz`` file, not normalised.
    rows : int array of shape (n,)
        The row of the file each text came from, from 0.
    clusters : int array of shape (n,) or None
        The group of each row, with ``group_by``.
    facts : dict
        ``path, split, column, column_guessed, columns, rows, empty, unreadable, unreadable_rows, duplicates, n``.
    identities : frozenset of bytes
        Digests of all distinct texts of the file, sampled or not.
    """

    name: str
    group: str
    texts: tuple[str, ...]
    vectors: NDArray[np.float32] | None
    rows: NDArray[np.int64]
    clusters: NDArray[np.int64] | None
    facts: dict[str, Any] = field(repr=False)
    identities: frozenset[bytes] = field(repr=False, default=frozenset())

    def digest(self) -> str:
        """Return a digest of the content that is measured."""
        content = hashlib.sha256()
        if self.vectors is not None:
            content.update(np.ascontiguousarray(self.vectors).tobytes())
        for text in self.texts:
            content.update(text.encode(errors="surrogatepass") + b"\0")
        if self.clusters is not None:
            content.update(self.clusters.tobytes())
        return content.hexdigest()


def load_domains(
    specs: Sequence[DomainSpec],
    *,
    column: str = "",
    roles: Sequence[str] = ("user",),
    limit: int | None = None,
    group_by: str = "",
    seed: int = 0,
) -> list[Domain]:
    """Read all domains.

    Parameters
    ----------
    specs : sequence of DomainSpec
    column : str, optional
        The column of those that name none themselves; guessed by default.
    roles : sequence of str, default ("user",)
        Whose turns of a chat are read.
    limit : int, optional
        At most so many texts of each domain, drawn at random.
    group_by : str, optional
        Column of a label: rows of one domain with the same label belong together (group jackknife). ``@window`` names
        no column: :func:`driftlab.domains.study.measure_domains` then groups the texts its encoder cannot tell apart.
    seed : int, default 0
        Seed of the draw.

    Raises
    ------
    UsageError
        If there are fewer than two domains, two of one name, or a limit below 2.
    DataError
        If a file cannot be read as asked, or holds fewer than two texts.
    """
    names = [spec.name for spec in specs]
    group_by = "" if group_by == BY_WINDOW else group_by
    if len(specs) < 2:
        raise UsageError(f"Expected at least two domains, found {len(specs)}.", "Give NAME=PATH twice or more.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two domains are called {name!r}: names must differ.")
    if limit is not None and limit < 2:
        raise UsageError(f"Limit: expected 2 texts or more, found {limit}.")
    return [_load(replace(spec, column=spec.column or column), roles, limit, group_by, seed) for spec in specs]


def _load(spec: DomainSpec, roles: Sequence[str], limit: int | None, group_by: str, seed: int) -> Domain:
    content = read(spec.path, spec.split)
    if isinstance(content, Records):
        return _of_texts(spec, content, roles, limit, group_by, seed)
    return _of_arrays(spec, content, limit, group_by, seed)


def _of_texts(
    spec: DomainSpec, records: Records, roles: Sequence[str], limit: int | None, group_by: str, seed: int
) -> Domain:
    where = f"Domain {spec.name!r} ({spec.path})"
    column, guessed = choose_column(records, spec.column, where)
    texts = [text_of(cell, roles) for cell in records.column(column)]
    unreadable = [row for row, text in enumerate(texts) if text is None]
    kept = [row for row, text in enumerate(texts) if text and text.strip()]
    if len(kept) < 2:
        shown = f" in column {column!r}" if column else ""
        raise DataError(
            f"{where}: expected at least 2 texts{shown}, found {len(kept)} in {records.size} rows "
            f"({records.size - len(kept) - len(unreadable)} empty, {len(unreadable)} no text).",
            "Name another column: PATH::COLUMN." if not kept else "One text says nothing about spread.",
        )
    labels = _labels(records, group_by, where)
    identities = [_identity(" ".join(str(texts[row]).split())) for row in kept]
    rows = _sample(kept, limit, seed, spec.name)
    return Domain(
        name=spec.name,
        group=spec.group or spec.name,
        texts=tuple(str(texts[row]) for row in rows),
        vectors=None,
        rows=np.array(rows, dtype=np.int64),
        clusters=numbered([labels[row] for row in rows]) if labels else None,
        facts=_facts(spec, records.size, len(kept), unreadable, len(rows), len(set(identities)))
        | {"column": column, "column_guessed": guessed, "columns": list(records.columns)},
        identities=frozenset(identities),
    )


def _of_arrays(
    spec: DomainSpec, arrays: Mapping[str, NDArray[Any]], limit: int | None, group_by: str, seed: int
) -> Domain:
    where = f"Domain {spec.name!r} ({spec.path})"
    key = _array_key(arrays, spec.column, where)
    values = arrays[key]
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise DataError(f"{where}: expected embeddings of shape (n, d), found {values.dtype} {values.shape}.")
    values = values.astype(np.float32)
    # A row without direction cannot be brought to unit length; one with NaN poisons every sum it enters.
    usable = np.isfinite(values).all(1) & (np.abs(values).max(1, initial=0.0) > 0)
    kept = np.flatnonzero(usable).tolist()
    bad = np.flatnonzero(~usable).tolist()
    if len(kept) < 2:
        raise DataError(f"{where}: expected at least 2 usable rows, found {len(kept)} of {len(values)}.")
    labels: list[Any] = []
    if group_by:
        if group_by not in arrays or len(arrays[group_by]) != len(values):
            raise DataError(f"{where}: expected an array {group_by!r} with one label per row, found none.")
        labels = arrays[group_by].tolist()
    identities = [_identity(values[row].tobytes()) for row in kept]
    rows = _sample(kept, limit, seed, spec.name)
    return Domain(
        name=spec.name,
        group=spec.group or spec.name,
        texts=(),
        vectors=values[rows],
        rows=np.array(rows, dtype=np.int64),
        clusters=numbered([labels[row] for row in rows]) if labels else None,
        facts=_facts(spec, len(values), len(kept), bad, len(rows), len(set(identities)))
        | {"column": key, "column_guessed": False, "columns": list(arrays)},
        identities=frozenset(identities),
    )


def _array_key(arrays: Mapping[str, NDArray[Any]], wanted: str, where: str) -> str:
    shown = ", ".join(arrays) or "one unnamed array"
    if wanted:
        if wanted not in arrays:
            raise DataError(f"{where}: expected array {wanted!r}, found {shown}.")
        return wanted
    tables = [key for key, value in arrays.items() if value.ndim == 2]
    if len(arrays) == 1:
        return next(iter(arrays))
    if len(tables) == 1:
        return tables[0]
    raise DataError(f"{where}: cannot tell which array holds the embeddings: found {shown}.", "Name it: PATH::ARRAY.")


def _facts(
    spec: DomainSpec, total: int, kept: int, unreadable: Sequence[int], used: int, distinct: int
) -> dict[str, Any]:
    return {
        "path": str(spec.path),
        "split": spec.split,
        "rows": total,
        "empty": total - kept - len(unreadable),
        "unreadable": len(unreadable),
        "unreadable_rows": list(unreadable[:20]),
        "duplicates": kept - distinct,
        "n": used,
    }


def _labels(records: Records, group_by: str, where: str) -> list[str]:
    if not group_by:
        return []
    if group_by not in records.columns:
        raise DataError(
            f"{where}: expected column {group_by!r} to group by, found {', '.join(records.columns) or 'no columns'}."
        )
    return [json.dumps(label, sort_keys=True, default=str) for label in records.column(group_by)]


def _sample(rows: Sequence[int], limit: int | None, seed: int, name: str) -> list[int]:
    """Draw ``limit`` rows at random, in the order of the file; depends on the seed and the domain's name alone."""
    if limit is None or len(rows) <= limit:
        return list(rows)
    rng = generator("sample", seed, name)
    return [rows[i] for i in sorted(rng.choice(len(rows), limit, replace=False).tolist())]


def _identity(content: str | bytes) -> bytes:
    raw = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=12).digest()


def overlaps(domains: Sequence[Domain]) -> list[dict[str, Any]]:
    """Count the distinct texts that two domains share: between a train and a test set each is a finding.

    Whitespace does not count; whole files are compared, not samples.

    Returns
    -------
    list of dict
        ``left, right, shared, share_left, share_right`` for each pair that shares any; shares are of the distinct
        texts, in [0, 1].
    """
    found = []
    for a, b in combinations(domains, 2):
        shared = len(a.identities & b.identities)
        if shared:
            found.append(
                {
                    "left": a.name,
                    "right": b.name,
                    "shared": shared,
                    "share_left": shared / len(a.identities),
                    "share_right": shared / len(b.identities),
                }
            )
    return found
