"""The zip archive of a ``torch.save`` file: where each record lies, checked before anything of it is used."""

import zipfile
from pathlib import Path
from typing import Any

from driftlab.errors import CheckpointError, first_line

_MAX_PICKLE = 256 << 20
_AGAIN = "Copy or save it again."


def read_records(file: Path, size: int) -> tuple[dict[int, int], bytes]:
    """Return the length of every record by where it starts, and the pickle, checked against its checksum.

    Raises
    ------
    CheckpointError
        If the archive is damaged, compressed, a program, or no archive.
    """
    try:
        with file.open("rb") as handle:
            head = handle.read(2)
            if head != b"PK":
                raise _not_a_zip(file, head, size)
            with zipfile.ZipFile(handle) as archive:
                entries = archive.infolist()
                by_name = {entry.filename.partition("/")[2]: entry for entry in entries}
                _check_archive(file, entries, by_name)
                pickle = archive.read(by_name["data.pkl"])
                order = archive.read(by_name["byteorder"]) if "byteorder" in by_name else b"little"
                if order.strip() != b"little":
                    raise CheckpointError(f"{file}: expected little-endian numbers, found {order[:20]!r}.")
            records = {_data_start(handle, entry): entry.file_size for entry in entries}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{file}: expected a whole zip archive of {size} bytes, found a damaged or truncated one "
            f"({first_line(error)}).",
            _AGAIN,
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from None
    if any(start + length > size for start, length in records.items()):
        raise CheckpointError(f"{file}: a record ends behind the {size} bytes of the file; it is truncated.", _AGAIN)
    return records, pickle


def _not_a_zip(file: Path, head: bytes, size: int) -> CheckpointError:
    if not size:
        return CheckpointError(f"{file}: expected a torch file, found 0 bytes.", _AGAIN)
    if head[:1] == b"\x80":
        return CheckpointError(
            f"{file}: expected a torch file, found a bare pickle: torch before 1.6 wrote such, which cannot be read "
            "tensor by tensor.",
            "Load it with torch.load(..., weights_only=True) and save it as safetensors.",
        )
    return CheckpointError(f"{file}: expected a torch file, found something else (it starts with {head!r}).", _AGAIN)


def _check_archive(file: Path, entries: list[zipfile.ZipInfo], by_name: dict[str, zipfile.ZipInfo]) -> None:
    if "constants.pkl" in by_name:
        raise CheckpointError(
            f"{file}: expected tensors, found a TorchScript program, which would have to be run.",
            "Save the model's state_dict.",
        )
    if "data.pkl" not in by_name or by_name["data.pkl"].file_size > _MAX_PICKLE:
        raise CheckpointError(f"{file}: expected a torch file, found a zip archive without data.pkl.", _AGAIN)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(f"{file}: expected uncompressed records, found compressed ones.", "Save it with torch.")
    if len(by_name) != len(entries):
        raise CheckpointError(f"{file}: two records have the same name; the file is damaged.", _AGAIN)


def _data_start(handle: Any, entry: zipfile.ZipInfo) -> int:
    """Return where a record's bytes start: behind its local header and the two fields of variable length."""
    handle.seek(entry.header_offset + 26)
    name, extra = (int.from_bytes(handle.read(2), "little") for _ in range(2))
    return entry.header_offset + 30 + name + extra
