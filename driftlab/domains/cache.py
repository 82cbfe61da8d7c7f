"""Embeddings on disk, found by content: the same texts under the same encoder are encoded once."""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from driftlab.domains.encoded import Advance, Encoded, TextEncoder
from driftlab.files import replacing


def default_cache() -> Path:
    """Return ``$DRIFTLAB_CACHE``, or ``driftlab`` in the user's cache folder."""
    given = os.environ.get("DRIFTLAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "driftlab"


def encode_cached(
    encoder: TextEncoder, texts: Sequence[str], folder: Path | None, advance: Advance = lambda texts: None
) -> Encoded:
    """Encode texts, or read what an earlier call with the same encoder and the same texts has stored.

    Parameters
    ----------
    encoder : TextEncoder
    texts : sequence of str
    folder : Path or None
        The cache; None for none. A file that cannot be read is made again.
    advance : callable, optional
        Called with the number of texts done since the last call.
    """
    if folder is None:
        return encoder.encode(texts, advance)
    file = folder / "embeddings" / f"{_digest(encoder.key, texts)}.npz"
    stored = _read(file, len(texts))
    if stored is not None:
        advance(len(texts))
        return stored
    encoded = encoder.encode(texts, advance)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary, temporary.open("wb") as handle:
        np.savez(handle, vectors=encoded.vectors, truncated=encoded.truncated, seen=encoded.seen)
    return encoded


def _digest(key: str, texts: Sequence[str]) -> str:
    content = hashlib.sha256(key.encode())
    for text in texts:
        raw = text.encode(errors="surrogatepass")
        content.update(len(raw).to_bytes(8, "little") + raw)
    return content.hexdigest()


def _read(file: Path, rows: int) -> Encoded | None:
    try:
        with file.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
            encoded = Encoded(stored["vectors"], stored["truncated"], stored["seen"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return encoded if len(encoded.vectors) == rows else None
