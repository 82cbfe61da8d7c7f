"""Reading ahead: the order and the bytes asked for, within the budget."""

import os
import threading

import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.mapping import map_tensor
from driftlab.checkpoints.reading import Reader, prefetched, to_read
from driftlab.checkpoints.tensorfile import DTYPES, read_header
from driftlab.errors import CheckpointError, UsageError


@pytest.fixture
def tracks(make):
    paths = [make.folder("base"), *(make.folder(f"checkpoint-{i}", i) for i in (1, 2))]
    return CheckpointSequence.open([str(path) for path in paths[1:]], paths[0]).tracks()


class Watched(Reader):
    """Remembers what was begun, and which tensors are read but not yet given out."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.held, self.most, self.begun, self.lock = {}, 0, [], threading.Lock()

    def __call__(self, info):
        with self.lock:
            self.begun.append(info)
            self.held[id(info)] = info.nbytes
            self.most = max(self.most, sum(self.held.values()))
        return super().__call__(info)


@pytest.mark.parametrize("mode", ["read", "mmap"])
@pytest.mark.parametrize("ahead", [0, 100, 10**9])
def test_every_tensor_comes_in_order_with_its_bits(tracks, mode, ahead):
    reader = Reader(mode, ahead)
    seen = 0
    for track, read in prefetched(tracks, reader):
        for info, found in zip(to_read(track), read, strict=True):
            assert torch.equal(found, info.read())
            seen += info.nbytes
    assert reader.counts["read_bytes"] == seen == sum(track.nbytes for track in tracks)
    assert reader.counts["read_seconds"] > 0


def infos(tracks):
    return [info for track in tracks for info in to_read(track)]


def given_out(tracks, reader):
    """Give out one tensor after the other; return, for each, how many reads had been begun when it came."""
    begun = []
    for track, read in prefetched(tracks, reader):
        for info, _ in zip(to_read(track), read, strict=True):
            reader.held.pop(id(info))
            begun.append(len(reader.begun))
    return begun


def test_without_a_budget_only_the_next_tensor_is_read_ahead(tracks):
    reader = Watched("read", 0)
    begun = given_out(tracks, reader)
    assert all(count <= i + 2 for i, count in enumerate(begun))
    assert reader.begun == infos(tracks)


def begun_by_the_first(tracks, ahead):
    """Return how many reads are under way when the first tensor is given out."""
    reader = Watched("read", ahead)
    stream = prefetched(tracks, reader)
    _, read = next(stream)
    next(read)
    stream.close()  # waits for what is under way
    return len(reader.begun)


def test_a_budget_reads_further_ahead_and_no_further(tracks):
    sizes = [info.nbytes for info in infos(tracks)]
    assert begun_by_the_first(tracks, 0) == 2
    for beyond in (1, 2, 3, len(sizes) - 2):
        budget = sum(sizes[2 : 2 + beyond])
        assert begun_by_the_first(tracks, budget) == 2 + beyond
        assert begun_by_the_first(tracks, budget - 1) == 2 + beyond - 1
    reader = Watched("read", 2 * max(sizes))
    given_out(tracks, reader)
    assert reader.most <= 4 * max(sizes)  # the one given out, the next, the budget


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "I8"])
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (7,), (64, 64)])
def test_a_map_holds_what_a_read_holds_wherever_it_lies(tmp_path, dtype, shape):
    values = (torch.arange(64 * 64) % 100).to(DTYPES[dtype])
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "x": values[: torch.Size(shape).numel()].reshape(shape)}
    save_file(tensors, tmp_path / "model.safetensors")
    info = read_header(tmp_path / "model.safetensors")[0]["x"]
    found = map_tensor(info)
    assert found.dtype == DTYPES[dtype]
    assert torch.equal(found, tensors["x"])


def test_writing_to_a_map_leaves_the_file(tmp_path):
    save_file({"x": torch.ones(4)}, tmp_path / "model.safetensors")
    info = read_header(tmp_path / "model.safetensors")[0]["x"]
    map_tensor(info).zero_()
    assert torch.equal(map_tensor(info), torch.ones(4))


def test_a_file_changed_since_its_header_was_read_is_said_by_both_ways(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(4)}, file)
    info = read_header(file)[0]["x"]
    os.utime(file, ns=(1, 1))
    found = [Reader(mode)(info) for mode in ("read", "mmap")]
    assert all(isinstance(error, CheckpointError) for error in found)
    assert str(found[0]) == str(found[1])
    file.unlink()
    assert isinstance(Reader("mmap")(info), CheckpointError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("direct",), "--io 'direct' is unknown: expected one of read, mmap."),
        (("read", -1), "--prefetch: expected a size of at least 0, found -1."),
    ],
)
def test_settings_that_cannot_be_right(arguments, message):
    with pytest.raises(UsageError) as caught:
        Reader(*arguments)
    assert caught.value.message == message
