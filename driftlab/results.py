"""The results folder: tables as Parquet, a manifest that says where they came from, parts that survive a kill.

Layout::

    OUT/manifest.json              versions, host, and per command: argv, config, inputs, start, end
    OUT/NAME.parquet               one finished table
    OUT/NAME/part-*.parquet        the same table while it grows, one part a unit of work

Every file is written under a temporary name, flushed, and renamed: a killed run leaves whole files only.
"""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from driftlab.errors import ResultsError, UsageError
from driftlab.files import write_parquet, write_text
from driftlab.naming import is_remote

SCHEMA_VERSION = 1
_PACKAGES = ("driftlab", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "transformers", "pyarrow")


class ResultsDir:
    """A results folder, opened for reading or being filled by one command.

    Use :meth:`create` to write and :meth:`open` to read.

    Parameters
    ----------
    path : Path
        The folder.
    command : str, optional
        The command that writes; empty for reading.
    """

    def __init__(self, path: Path, command: str = "") -> None:
        self.path = path
        self.command = command

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        command: str,
        config: Mapping[str, Any],
        argv: Sequence[str] = (),
        tables: Sequence[str] = (),
        resume: bool = False,
        force: bool = False,
    ) -> "ResultsDir":
        """Open ``path`` for writing the tables of one command.

        Parameters
        ----------
        path : str or Path
            The folder; made if it is missing.
        command : str
            Its section in the manifest, ``svd`` for instance.
        config : mapping
            Every setting that changes a number, JSON-serialisable. A resumed run must have the same.
        argv : sequence of str, optional
            The command line, for the record.
        tables : sequence of str, optional
            The tables this command owns. ``force`` deletes these, their parts, and nothing else.
        resume : bool, default False
            Keep what is there and continue. Another command may add its tables to the same folder this way.
        force : bool, default False
            Drop this command's earlier tables and start again.

        Raises
        ------
        UsageError
            If both flags are given, or the path is an address.
        ResultsError
            If the folder is not empty and neither flag is given, if it cannot be made, if the settings of the run to
            resume differ, or if there are tables but no record of the run that made them.
        """
        folder = Path(path)
        if is_remote(path):
            raise UsageError(
                f"Output {path}: expected a folder on this machine, found an address.",
                "Write results here, and copy the folder when the command is done.",
            )
        if resume and force:
            raise UsageError("--resume and --force: expected one of them, found both.")
        if folder.exists() and not folder.is_dir():
            raise ResultsError(f"Output {folder}: expected a folder, found a file.", "Choose another --out.")
        occupied = folder.is_dir() and any(folder.iterdir())
        if occupied and not (resume or force):
            raise ResultsError(
                f"Output folder {folder}: expected an empty or new folder, found "
                f"{sum(1 for _ in folder.iterdir())} entries.",
                "Give --resume to continue the run in it, or --force to start it again.",
            )
        _make_folder(folder)
        results = cls(folder, command)
        manifest = results.manifest() if (folder / "manifest.json").exists() else _new_manifest()
        before = manifest["commands"].get(command)
        if before is not None and resume:
            _same_config(before["config"], _plain(config), folder)
            before["resumed"] = [*before.get("resumed", []), _now()]
        else:
            orphans = [name for name in tables if results.has(name)]
            if orphans and not force:
                raise ResultsError(
                    f"Cannot resume {folder}: it has the table {orphans[0]}, but no record of a {command} run.",
                    "Give --force to replace the table, or another --out.",
                )
            for name in tables:
                results.drop_parts(name)
                (folder / f"{name}.parquet").unlink(missing_ok=True)
            manifest["commands"][command] = {
                "argv": list(argv),
                "config": _plain(config),
                "versions": _versions(),
                "start": _now(),
                "end": None,
            }
        results._write_manifest(manifest)
        return results

    @classmethod
    def open(cls, path: str | Path) -> "ResultsDir":
        """Open a folder that a command has filled.

        Raises
        ------
        ResultsError
            If it is not a results folder, or of another schema version.
        """
        folder = Path(path)
        if not (folder / "manifest.json").is_file():
            raise ResultsError(
                f"{folder}: expected a results folder with manifest.json, found none.",
                "Give the folder that a driftlab command wrote with -o.",
            )
        results = cls(folder)
        results.manifest()
        return results

    def manifest(self) -> dict[str, Any]:
        """Return the manifest as a dictionary."""
        file = self.path / "manifest.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            content["commands"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ResultsError(
                f"{file}: expected a driftlab manifest, found something else.", "Choose another folder."
            ) from None
        if content.get("schema_version") != SCHEMA_VERSION:
            raise ResultsError(
                f"{file}: expected schema version {SCHEMA_VERSION}, found {content.get('schema_version')!r}.",
                "Measure again with this version, or use the driftlab that wrote it.",
            )
        return dict(content)

    def update(self, **entries: Any) -> None:
        """Add entries to this command's section of the manifest."""
        manifest = self.manifest()
        manifest["commands"][self.command].update(_plain(entries))
        self._write_manifest(manifest)

    def finish(self, **entries: Any) -> None:
        """Record the end of the command, with further entries."""
        self.update(end=_now(), **entries)

    # -- tables ------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the finished table ``name`` is there."""
        return (self.path / f"{name}.parquet").is_file()

    def table(self, name: str) -> pd.DataFrame:
        """Read the finished table ``name``.

        Raises
        ------
        ResultsError
            If it is missing or unreadable.
        """
        file = self.path / f"{name}.parquet"
        if not file.is_file():
            raise ResultsError(
                f"{self.path}: table {name!r} is not there.", "Run the command that makes it, or --resume it."
            )
        try:
            frame: pd.DataFrame = pq.read_table(file).to_pandas()
            return frame
        except (OSError, pa.ArrowException) as error:
            raise ResultsError(f"{file}: expected a Parquet table, {error}.") from None

    def write_table(self, name: str, table: pa.Table | pd.DataFrame) -> Path:
        """Write a whole table under its final name."""
        return write_parquet(self.path / f"{name}.parquet", table)

    def write_json(self, name: str, content: Any) -> Path:
        """Write ``content`` as ``NAME.json``."""
        return write_text(self.path / f"{name}.json", json.dumps(_plain(content), indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read ``NAME.json``.

        Raises
        ------
        ResultsError
            If it is missing or unreadable.
        """
        file = self.path / f"{name}.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise ResultsError(
                f"{file}: expected a JSON object, found none.", "Run the command that makes it."
            ) from None

    def write_csv(self, name: str) -> Path:
        """Export the finished table ``name`` as CSV beside it."""
        return write_text(self.path / f"{name}.csv", self.table(name).to_csv(index=False, lineterminator="\n"))

    # -- parts ------------------------------------------------------------

    def has_part(self, name: str, unit: str) -> bool:
        """Whether the part of one unit of work is already there."""
        return self._part(name, unit).is_file()

    def write_part(self, name: str, unit: str, table: pa.Table) -> Path:
        """Write the rows of one unit of work."""
        return write_parquet(self._part(name, unit), table)

    def merge_parts(self, name: str, units: Iterable[str], schema: pa.Schema) -> pa.Table:
        """Join the parts of ``units``, in that order, into one table.

        Raises
        ------
        ResultsError
            If a part is missing or unreadable.
        """
        parts = [schema.empty_table()]
        for unit in units:
            try:
                parts.append(pq.read_table(self._part(name, unit), schema=schema))
            except (OSError, pa.ArrowException):
                raise ResultsError(
                    f"{self._part(name, unit)}: expected the rows of {unit}, found no readable Parquet file.",
                    "Delete it if it is there, then give --resume: only this part is made again.",
                ) from None
        return pa.concat_tables(parts)

    def drop_parts(self, name: str) -> None:
        """Delete the parts of a table, and their folder unless it holds something else."""
        folder = self.path / name
        for pattern in ("part-*.parquet", ".part-*.tmp"):
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()

    def _part(self, name: str, unit: str) -> Path:
        digest = hashlib.sha256(unit.encode()).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9.-]+", "_", unit)[-80:]
        return self.path / name / f"part-{readable}-{digest}.parquet"

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_text(self.path / "manifest.json", json.dumps(manifest, indent=2) + "\n")


def _new_manifest() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "host": {"system": platform.platform(), "python": sys.version.split()[0], "cpus": os.cpu_count()},
        "commands": {},
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(
            f"Output folder {folder}: cannot be made ({error.strerror}).", "Choose another --out."
        ) from None


def _same_config(before: Any, now: Any, folder: Path) -> None:
    different = _difference(before, now, "")
    if different is not None:
        where, old, new = different
        raise ResultsError(
            f"Cannot resume {folder}: it was made with {where} = {_short(old)}, this run has {_short(new)}.",
            "Use the same settings, another --out, or --force to start again.",
        )


def _difference(before: Any, now: Any, where: str) -> tuple[str, Any, Any] | None:
    """Return the first place where two settings differ, and what stands there."""
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(f"{where}.{key}".lstrip("."), before.get(key), now.get(key)) for key in sorted({*before, *now})]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(before, now, strict=True))]
    else:
        return None if before == now else (where, before, now)
    return next((found for name, old, new in pairs if (found := _difference(old, new, name))), None)


def _short(value: Any) -> str:
    text = f"{len(value)} entries" if isinstance(value, list) and len(value) > 3 else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON would read it back, so that stored and given settings compare equal."""
    return json.loads(json.dumps(value, default=str))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
