"""A file's header is checked against its bytes before any weight is read, and damage is named."""

import json
import os
import struct

import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints.tensorfile import DTYPES, read_header
from driftlab.errors import CheckpointError


@pytest.fixture
def good(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, file)
    return file


def write(file, header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return file


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_header_gives_types_shapes_and_bytes(good):
    tensors, digest = read_header(good)
    assert {name: (t.dtype, t.shape, t.nbytes, t.numel) for name, t in tensors.items()} == {
        "a": ("F32", (2, 3), 24, 6),
        "b": ("BF16", (4,), 8, 4),
    }
    assert len(digest) == 64


@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values()), key=str), ids=str)
def test_every_type_comes_back_as_the_safetensors_library_wrote_it(tmp_path, dtype):
    values = torch.arange(-3, 12).reshape(3, 5).to(dtype)
    save_file({"x": values, "scalar": values[1, 1].clone(), "empty": values[:0].clone()}, tmp_path / "x.safetensors")
    tensors, _ = read_header(tmp_path / "x.safetensors")
    for name, expected in (("x", values), ("scalar", values[1, 1]), ("empty", values[:0])):
        found = tensors[name].read()
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def test_first_rows_are_the_first_rows(good):
    info = read_header(good)[0]["a"].rows(0, 1)
    assert torch.equal(info.read(), torch.tensor([[0.0, 1.0, 2.0]]))


def test_digest_tells_layouts_apart_and_not_values(tmp_path):
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for file, value in zip(files, (torch.ones(2, 3), torch.zeros(2, 3), torch.ones(3, 2)), strict=True):
        save_file({"a": value}, file)
    one, two, three = (read_header(file)[1] for file in files)
    assert one == two != three


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:-1], ["truncated", "Copy or save it again"]),
        (lambda raw: raw + b"x", ["overlong"]),
        (lambda raw: b"", ["found 0 bytes"]),
        (lambda raw: raw[:5], ["found 5 bytes"]),
        (lambda raw: raw[:40], ["for its header, found 40", "truncated"]),
        (lambda raw: b"\0" * 64, ["header of 0 bytes"]),
        (lambda raw: b"\xff" * 64, ["damaged"]),
        (lambda raw: b"version https://git-lfs.github.com/spec/v1\noid", ["Git LFS pointer", "git lfs pull"]),
        (lambda raw: b"PK\x03\x04\x14\x00\x08\x08" + bytes(50), ["a PyTorch pickle", "safe_serialization"]),
        (lambda raw: b"GGUF\x03\x00\x00\x00" + bytes(50), ["a GGUF file"]),
        (lambda raw: b"<!DOCTYPE html><html>", ["a web page", "fetch the file again"]),
    ],
    ids=["cut", "longer", "empty", "5 bytes", "cut header", "zero header", "garbage", "lfs", "zip", "gguf", "html"],
)
def test_a_damaged_file_is_named_with_what_was_found(good, change, words):
    good.write_bytes(change(good.read_bytes()))
    with pytest.raises(CheckpointError) as caught:
        read_header(good)
    assert str(good) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_truncation_names_expected_and_actual_bytes(good):
    size = good.stat().st_size
    good.write_bytes(good.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=f"expected {size} bytes by its header, found {size - 3}"):
        read_header(good)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"not json", "not valid safetensors JSON"),
        (b'{"a": \xff\xfe}', "not valid safetensors JSON"),
        (b"[1, 2]", "not valid safetensors JSON"),
        (b"[" * 100_000, "not valid safetensors JSON"),
        ({"a": {"dtype": "F32"}}, "not valid safetensors JSON"),
        ({"a": 3}, "not valid safetensors JSON"),
        (b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}', "not valid safetensors JSON"),
        ({"a": entry(shape=(-2,))}, "not valid safetensors JSON"),
        ({"a": entry(shape=(True, 2))}, "not valid safetensors JSON"),
        ({"a": entry(offsets=(8, 0))}, "not valid safetensors JSON"),
        ({"a": entry(dtype="Q4_K")}, "unknown type 'Q4_K'"),
        ({"a": entry(shape=(3,))}, "needs 12 bytes, its header gives it 8"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, "should start at byte"),
        ({"a": entry(offsets=(4, 12))}, "should start at byte"),
    ],
)
def test_a_header_that_does_not_describe_its_bytes_is_refused(tmp_path, header, words):
    file = write(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=words):
        read_header(file)


def test_huge_shapes_do_not_overflow(tmp_path):
    file = write(tmp_path / "x.safetensors", {"a": entry(shape=(2**40, 2**40), offsets=(0, 8))}, bytes(8))
    with pytest.raises(CheckpointError, match=str(4 * 2**80)):
        read_header(file)


def test_a_broken_link_names_its_target(tmp_path):
    link = tmp_path / "model.safetensors"
    link.symlink_to("../blobs/0a1b2c")
    with pytest.raises(CheckpointError, match=r"a link to \.\./blobs/0a1b2c, which does not exist.*Download"):
        read_header(link)


def test_a_link_to_a_blob_without_suffix_is_read(good, tmp_path):
    blob = tmp_path / "0a1b2c"
    good.rename(blob)
    good.symlink_to(blob)
    assert set(read_header(good)[0]) == {"a", "b"}


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(CheckpointError, match="found nothing"):
        read_header(tmp_path / "gone.safetensors")
    with pytest.raises(CheckpointError, match="expected a file, found a folder"):
        read_header(tmp_path)


@pytest.mark.parametrize("shorter", [True, False], ids=["cut", "replaced"])
def test_a_file_that_changes_after_its_header_was_read_is_noticed(good, shorter):
    info = read_header(good)[0]["a"]
    raw = good.read_bytes()
    good.write_bytes(raw[:-9] if shorter else raw)
    os.utime(good, ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while it was measured"):
        info.read()


def test_a_file_that_vanishes_is_an_error_of_ours(good):
    info = read_header(good)[0]["a"]
    good.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        info.read()


def test_a_type_that_torch_lacks_is_listed_and_refused_on_reading(tmp_path):
    file = write(tmp_path / "x.safetensors", {"a": entry(dtype="F4", shape=(16,))}, bytes(8))
    info = read_header(file)[0]["a"]
    assert info.numel == 16
    with pytest.raises(CheckpointError, match="type F4, which torch cannot hold"):
        info.read()
