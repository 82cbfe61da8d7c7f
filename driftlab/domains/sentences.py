"""A sentence-transformers model from a local folder, loaded quietly and asked what it did not see."""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftlab.domains.encoded import Advance, Encoded, numbered, unit_rows
from driftlab.errors import DataError, NumericalError, UsageError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DTYPES = ("float32", "float16", "bfloat16")
_CHUNK = 16


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
        return np.array(truncated, dtype=bool), numbered(visible)


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
