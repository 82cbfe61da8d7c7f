"""Texts to unit vectors: a sentence-transformers folder, or character n-grams where there is no model.

A local path never leads to a network call. A name is looked up in the local model cache only; ``hf:NAME`` says in so
many words that it may be downloaded.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from driftlab.errors import DataError, NumericalError, UsageError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CHAR_NGRAMS = "char-ngrams"
DTYPES = ("float32", "float16", "bfloat16")
_NGRAM_WIDTH = 4096
_CHUNK = 16
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
        return Encoded(unit_rows(vectors), np.zeros(len(texts), dtype=bool), _numbered(texts))


class SentenceEncoder:
    """A sentence-transformers model from a local folder.

    Parameters
    ----------
    folder : Path
        With ``modules.json``: without it the library would guess a pooling rule.
    prompt : str, default ""
        Put before every text. Explicit: a prompt stored in the model is not used.
    dtype : {"float32", "float16", "bfloat16"}, default "float32"
    max_tokens : int, optional
        The window; the model's own by default.
    batch : int, default 32
        Fixed, because padding changes the last digits.
    device : str, default "cpu"
    name : str, optional
        For a reader; the folder by default.

    Raises
    ------
    DataError
        If the folder is no sentence-transformers folder or cannot be loaded.
    UsageError
        If an option is out of its range.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prompt: str = "",
        dtype: str = "float32",
        max_tokens: int | None = None,
        batch: int = 32,
        device: str = "cpu",
        name: str = "",
    ) -> None:
        _check_folder(folder)
        if dtype not in DTYPES:
            raise UsageError(f"Encoder dtype: expected {', '.join(DTYPES)}, found {dtype!r}.")
        if batch < 1:
            raise UsageError(f"Encoder batch: expected 1 or more, found {batch}.")
        self._model = _load(folder, dtype, device)
        self._prompt, self._dtype, self._batch = prompt, dtype, batch
        self.window = _set_window(self._model, max_tokens, folder)
        self.name = name or folder.name
        settings = (_folder_digest(folder), prompt, dtype, self.window, batch, str(device).split(":")[0])
        self.key = hashlib.sha256(repr(settings).encode()).hexdigest()

    def encode(self, texts: Sequence[str], advance: Advance = lambda texts: None) -> Encoded:
        """Encode texts in fixed batches.

        Raises
        ------
        NumericalError
            If a vector is not finite.
        """
        truncated, seen = self._windows(texts)
        parts = []
        for start in range(0, len(texts), _CHUNK * self._batch):
            some = list(texts[start : start + _CHUNK * self._batch])
            parts.append(
                np.asarray(
                    self._model.encode(some, prompt=self._prompt, batch_size=self._batch, show_progress_bar=False),
                    dtype=np.float32,
                )
            )
            advance(len(some))
        vectors = np.concatenate(parts)
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            raise NumericalError(
                f"Encoder {self.name} in {self._dtype}: the vector of text {bad[0]} is not finite ({len(bad)} such).",
                "Use --dtype float32.",
            )
        return Encoded(unit_rows(vectors), truncated, seen)

    def _windows(self, texts: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Say which texts are longer than the window, and which of them show the encoder the same tokens."""
        truncated, visible = [], []
        for start in range(0, len(texts), 1024):
            some = [self._prompt + text for text in texts[start : start + 1024]]
            for ids in self._model.tokenizer(some, truncation=False, padding=False, verbose=False)["input_ids"]:
                over = self.window is not None and len(ids) > self.window
                truncated.append(over)
                # The last place of a cut text belongs to the closing token.
                visible.append(tuple(ids[: self.window - 1]) if over and self.window else tuple(ids))
        return np.array(truncated, dtype=bool), _numbered(visible)


def _numbered(items: Sequence[Hashable]) -> NDArray[np.int64]:
    first: dict[Hashable, int] = {}
    return np.array([first.setdefault(item, len(first)) for item in items], dtype=np.int64)


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


def _check_folder(folder: Path) -> None:
    if (folder / "modules.json").is_file():
        return
    found = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
    raise DataError(
        f"Encoder folder {folder}: expected a sentence-transformers folder with modules.json, found {found}.",
        "A bare transformer has no pooling rule: wrap it in SentenceTransformer and save that.",
    )


def _load(folder: Path, dtype: str, device: str) -> "SentenceTransformer":
    import torch
    from sentence_transformers import SentenceTransformer

    try:
        with _quiet():
            model = SentenceTransformer(
                str(folder), device=device, local_files_only=True, model_kwargs={"torch_dtype": getattr(torch, dtype)}
            )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"Encoder folder {folder}: could not be loaded: {first}.") from None
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the model loader's progress bars and remarks off the terminal, and put its settings back."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _set_window(model: "SentenceTransformer", max_tokens: int | None, folder: Path) -> int | None:
    own: Any = model.max_seq_length
    if max_tokens is None:
        return None if own is None else int(own)
    if max_tokens < 3:
        raise UsageError(f"Encoder window: expected 3 tokens or more, found {max_tokens}.")
    config = getattr(model[0], "auto_model", None)
    most = getattr(getattr(config, "config", None), "max_position_embeddings", None)
    if most is not None and max_tokens > most:
        raise UsageError(f"Encoder {folder.name}: it has positions for {most} tokens, asked for {max_tokens}.")
    model.max_seq_length = max_tokens
    return max_tokens


def _folder_digest(folder: Path) -> str:
    """Digest the content of a model folder: names say nothing about weights."""
    content = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix in (".md", ".onnx") or file.name.startswith("."):
            continue
        with file.open("rb") as handle:
            content.update(f"{file.relative_to(folder)}:{hashlib.file_digest(handle, 'sha256').hexdigest()}".encode())
    return content.hexdigest()


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
