"""What an encoder is and what it gives."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Encoded:
    """Embeddings, and what the encoder did not see.

    Attributes
    ----------
    vectors : float32 array of shape (n, d)
        Unit rows.
    truncated : bool array of shape (n,)
        Texts longer than the window of the encoder.
    seen : int array of shape (n,)
        Equal numbers mark texts whose visible parts are the same: the encoder cannot tell them apart.
    """

    vectors: NDArray[np.float32]
    truncated: NDArray[np.bool_]
    seen: NDArray[np.int64]


class TextEncoder(Protocol):
    """Anything that turns texts into unit vectors.

    Attributes
    ----------
    name : str
        For a reader.
    key : str
        Digest of everything that changes a vector: weights, prompt, dtype, window, batch.
    window : int or None
        The number of tokens it sees of a text; None if it sees all.
    """

    name: str
    key: str
    window: int | None

    def encode(self, texts: Sequence[str], advance: Advance = ...) -> Encoded:
        """Encode texts; calls ``advance`` with the number of texts done since the last call."""
        ...


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length 1; a zero row stays zero.

    Parameters
    ----------
    vectors : array of shape (n, d)

    Returns
    -------
    float32 array of shape (n, d)

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0]], dtype=np.float32)).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (wide / np.where(length > 0, length, 1.0)).astype(np.float32)
    return scaled


def numbered(items: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number for each item, equal for equal items, in the order of first appearance.

    Examples
    --------
    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    first: dict[Hashable, int] = {}
    return np.array([first.setdefault(item, len(first)) for item in items], dtype=np.int64)
