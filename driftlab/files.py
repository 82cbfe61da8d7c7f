"""Files that are whole or not there: written under a temporary name, flushed, renamed."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def write_text(file: Path, text: str) -> Path:
    """Write a text file in UTF-8 and return its path."""
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def write_parquet(file: Path, table: pa.Table | pd.DataFrame) -> Path:
    """Write a table, make its folder if there is none, and return the file's path."""
    arrow = pa.Table.from_pandas(table, preserve_index=False) if isinstance(table, pd.DataFrame) else table
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        pq.write_table(arrow, temporary, compression="zstd")
    return file


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a temporary name to write to; at the end it takes the place of ``file``, unless the writing failed."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")  # process ids repeat on a shared disk
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
