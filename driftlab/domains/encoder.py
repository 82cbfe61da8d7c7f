"""Texts to unit vectors: a sentence-transformers folder, or character n-grams where there is no model.

A local path never leads to a network call. A name is looked up in the local model cache only; ``hf:NAME`` says in so
many words that it may be downloaded.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from driftlab.domains.encoded import Advance, Encoded, TextEncoder, numbered, unit_rows
from driftlab.domains.sentences import SentenceEncoder
from driftlab.errors import DataError, UsageError

CHAR_NGRAMS = "char-ngrams"
_NGRAM_WIDTH = 4096


class CharNgramEncoder:
    """Hashed character n-grams (3 to 5, inside words), no model: it sees spelling and vocabulary, not meaning.

    The default where no encoder is given, so that distances can be measured offline. It needs no training and no
    corpus statistics, hence a vector depends on its text alone.

    References
    ----------
    Weinberger et al., "Feature hashing for large scale multitask learning", 2009, arXiv 0902.2206.

    Examples
    --------
    >>> CharNgramEncoder().encode(["a cat", "a dog"]).vectors.shape
    (2, 4096)
    """

    def __init__(self) -> None:
        self.name = f"character 3-5-grams hashed to {_NGRAM_WIDTH} dimensions (no model: spelling, not meaning)"
        self.key = f"{CHAR_NGRAMS}-3-5-{_NGRAM_WIDTH}"
        self.window: int | None = None

    def encode(self, texts: Sequence[str], advance: Advance = lambda texts: None) -> Encoded:
        """Encode texts; a text without any word gets the vector of its characters."""
        from sklearn.feature_extraction.text import HashingVectorizer

        hashing = HashingVectorizer(
            analyzer="char_wb", ngram_range=(3, 5), n_features=_NGRAM_WIDTH, norm="l2", dtype=np.float32
        )
        vectors = hashing.transform(texts).toarray().astype(np.float32)
        advance(len(texts))
        return Encoded(unit_rows(vectors), np.zeros(len(texts), dtype=bool), numbered(texts))


def open_encoder(
    name: str = CHAR_NGRAMS,
    *,
    prompt: str = "",
    dtype: str = "float32",
    max_tokens: int | None = None,
    batch: int = 32,
    device: str = "cpu",
) -> TextEncoder:
    """Return the encoder that an ``--encoder`` option names.

    Parameters
    ----------
    name : str
        ``char-ngrams``; a local folder; a name in the local model cache; ``hf:NAME``, which may be downloaded.
    prompt, dtype, max_tokens, batch, device
        See :class:`SentenceEncoder`; refused by ``char-ngrams``, which has none of them.

    Raises
    ------
    UsageError
        If an option does not fit the encoder.
    DataError
        If the folder or name is not there or is no sentence-transformers model.
    """
    if name == CHAR_NGRAMS:
        if prompt or max_tokens is not None or dtype != "float32":
            raise UsageError(
                f"Encoder {CHAR_NGRAMS!r} has no prompt, window or dtype.", "Give --encoder a model folder."
            )
        return CharNgramEncoder()
    folder = _locate(name)
    return SentenceEncoder(
        folder, prompt=prompt, dtype=dtype, max_tokens=max_tokens, batch=batch, device=device, name=_short(name)
    )


def _locate(name: str) -> Path:
    download = name.startswith("hf:")
    bare = name.removeprefix("hf:")
    if not download and Path(bare).expanduser().is_dir():
        return Path(bare).expanduser()
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", bare):
        raise DataError(f"Encoder {name}: expected a folder, found nothing there.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = bare if "/" in bare else f"sentence-transformers/{bare}"
    try:
        return Path(snapshot_download(repository, local_files_only=not download))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        if download:
            first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise DataError(f"Encoder {name}: could not be downloaded: {first}.", "Give a local folder.") from None
        raise DataError(
            f"Encoder {name}: there is no such folder, and no model {repository!r} in the local cache.",
            f"Give a folder with modules.json, or hf:{bare} to download it.",
        ) from None


def _short(name: str) -> str:
    """Return the last two parts of a path: the folder alone is often called ``model``."""
    return "/".join(Path(name).parts[-2:])
