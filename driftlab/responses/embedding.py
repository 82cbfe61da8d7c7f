"""The distinct texts of a set of responses to unit vectors; one bad text costs itself only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.cache import encode_cached
from driftlab.domains.encoded import TextEncoder
from driftlab.errors import NumericalError
from driftlab.responses.readers import ResponseSet, is_empty

Advance = Callable[[float, str], None]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Embedded:
    """Vectors of texts, found by the text.

    Attributes
    ----------
    place : dict of str to int
        Text to row.
    vectors : float32 array of shape (n, d)
        Unit rows; NaN where the encoder gave none.
    cut : bool array of shape (n,)
        Texts longer than the encoder's window.
    """

    place: dict[str, int]
    vectors: Vectors
    cut: NDArray[np.bool_]

    def rows(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, shape (len(texts), d)."""
        found: Vectors = self.vectors[[self.place[text] for text in texts]]
        return found

    def cut_of(self, texts: Sequence[str]) -> list[bool]:
        """Say of each text whether the encoder saw its beginning only."""
        return [bool(self.cut[self.place[text]]) for text in texts]


def embed(
    responses: ResponseSet,
    encoder: TextEncoder,
    cache: Path | None = None,
    advance: Advance = lambda amount, what: None,
) -> Embedded:
    """Encode every distinct response that is not empty.

    Raises
    ------
    NumericalError
        If the encoder gives no finite vector at all.
    """
    table = responses.table[(responses.table["problem"] == "") & ~is_empty(responses.table["response"])]
    texts = list(dict.fromkeys(table["response"]))
    return embed_texts(texts, encoder, cache, advance)


def embed_texts(
    texts: Sequence[str],
    encoder: TextEncoder,
    cache: Path | None = None,
    advance: Advance = lambda amount, what: None,
) -> Embedded:
    """Encode distinct texts; those whose vector is not finite get NaN.

    Raises
    ------
    NumericalError
        If that is all of them.
    """
    if not texts:
        return Embedded({}, np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=bool))
    parts = _encode(list(texts), encoder, cache, lambda done: advance(done, ""))
    width = next((vectors.shape[1] for vectors, _ in parts if vectors.shape[1]), 0)
    filled = [v if v.shape[1] else np.full((len(v), width), np.nan, np.float32) for v, _ in parts]
    vectors = np.concatenate(filled) if width else np.zeros((len(texts), 0), np.float32)
    if not width or not np.isfinite(vectors).all(axis=1).any():
        raise NumericalError(
            f"Encoder {encoder.name}: none of the vectors of {len(texts)} responses is finite.", "Use --dtype float32."
        )
    return Embedded({text: i for i, text in enumerate(texts)}, vectors, np.concatenate([cut for _, cut in parts]))


def _encode(
    texts: list[str], encoder: TextEncoder, cache: Path | None, advance: Callable[[int], None]
) -> list[tuple[Vectors, NDArray[np.bool_]]]:
    """Encode, and where the encoder refuses a batch for one bad text, halve until that text stands alone."""
    try:
        encoded = encode_cached(encoder, texts, cache, advance)
        return [(encoded.vectors, encoded.truncated)]
    except NumericalError:
        if len(texts) == 1:
            return [(np.zeros((1, 0), dtype=np.float32), np.zeros(1, dtype=bool))]
        half = len(texts) // 2
        return _encode(texts[:half], encoder, cache, advance) + _encode(texts[half:], encoder, cache, advance)
