"""Checkpoints on a web server: the local table to the last bit, no byte more than asked for, every fault a sentence."""

import json
import math
import os

import pandas as pd
import pytest
import torch
from webserver import Server

from driftlab.checkpoints import CheckpointSequence, attempts
from driftlab.checkpoints.reading import Reader, to_read
from driftlab.checkpoints.weights import open_weights
from driftlab.engines import LocalEngine
from driftlab.errors import CheckpointError, ResultsError
from driftlab.planning.forecast import read_rate
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan

pytest.importorskip("aiohttp")
Q = "model.layers.0.self_attn.q_proj.weight"
PLAN = Plan(method="exact", null="sign")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(attempts, "WAITS", (0.0, 0.0, 0.0))


@pytest.fixture
def server(make):
    with Server(make.root) as found:
        yield found


def table(out, runs, base=None, resume=False, **options):
    sequence = CheckpointSequence.open([f"a={run}" for run in runs], base)  # nulls are drawn by the run's name
    results = ResultsDir.create(out, command="svd", config=describe(sequence, PLAN), tables=TABLES, resume=resume)
    scan(sequence, PLAN, results, device="cpu", **options)
    return results.table("spectral").drop(columns="seconds")


def header_bytes(file):
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


# -- the same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1 << 20])
def test_a_run_folder_gives_the_local_table_to_the_last_bit(make, server, prefetch):
    make.run("r", {"math@1": 1, "math@2": 2})
    local = table(make.root / "local", [make.root / "r"])
    remote = table(make.root / "remote", [f"{server.url}/r"], prefetch=prefetch)
    assert set(local["status"]) == {"ok", "skipped"}
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_shards_with_an_index_and_a_glob(make, server):
    base, *rest = [make.sharded(f"out/checkpoint-{step}", step) for step in (0, 500, 1000)]
    local = table(make.root / "local", rest, base)
    remote = table(make.root / "remote", [f"{server.url}/out/checkpoint-[15]*"], f"{server.url}/out/checkpoint-0")
    pd.testing.assert_frame_equal(local, remote, check_exact=True)
    assert list(remote["label"].unique()) == ["train@500", "train@1000"]


def test_workers_open_the_address_in_their_own_process(make, server):
    make.run("r", {"math@1": 1, "math@2": 2})
    local = table(make.root / "local", [make.root / "r"], engine=LocalEngine(1, 1))
    remote = table(make.root / "remote", [f"{server.url}/r/"], engine=LocalEngine(2, 1), prefetch=1 << 20)
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_base_here_and_checkpoints_there_mapped_where_that_goes(make, server):
    base, new = make.folder("base"), make.folder("checkpoint-1", 1)
    local = table(make.root / "local", [new], base)
    remote = table(make.root / "remote", [f"{server.url}/checkpoint-1"], base, io="mmap")
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_an_adapter_over_there(make, server):
    from safetensors.torch import save_file

    base = make.folder("base")
    folder = make.root / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 6}))
    stem = f"base_model.model.{Q.removesuffix('.weight')}"
    factors = {f"{stem}.lora_A.weight": torch.randn(2, 12), f"{stem}.lora_B.weight": torch.randn(8, 2)}
    save_file(factors, folder / "adapter_model.safetensors")
    local = table(make.root / "local", [folder], base)
    remote = table(make.root / "remote", [f"{server.url}/adapter"], base)
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_a_server_that_lists_nothing(make, server):
    server.lists = False
    base, new = make.sharded("base"), make.folder("checkpoint-1", 1)
    local = table(make.root / "local", [new], base)
    remote = table(make.root / "remote", [f"{server.url}/checkpoint-1"], f"{server.url}/base")
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_names_with_signs_that_addresses_quote(make, server):
    make.folder("my runs/000000-base")
    make.folder("my runs/000010-math@10", 1)
    sequence = CheckpointSequence.open([f"{server.url}/my runs"])
    assert [c.label for _, c in sequence.checkpoints] == ["math@10"]
    assert open_weights(sequence.checkpoints[0][1].path).tensors[Q].read().shape == (8, 12)


# -- no byte more -------------------------------------------------------------------------------------------------


def test_headers_and_measured_matrices_are_all_that_is_fetched(make, server):
    base, new = make.sharded("base"), make.folder("checkpoint-1", 1)
    sequence = CheckpointSequence.open([f"{server.url}/checkpoint-1"], f"{server.url}/base")
    files = [*base.glob("*.safetensors"), *new.glob("*.safetensors")]
    assert server.sent(".safetensors") == sum(map(header_bytes, files))
    server.requests.clear()
    tracks = sequence.tracks(include=["q_proj"])
    reader = Reader()
    for info in [info for track in tracks for info in to_read(track)]:
        reader(info)
    assert server.sent() == reader.counts["read_bytes"] == 2 * 2 * 8 * 12 * 2
    assert {path for method, path, _ in server.requests} <= {f"/{f.parent.name}/{f.name}" for f in files}


def test_half_a_stack_is_fetched_where_half_is_asked_for(make, server):
    make.folder("base")
    info = open_weights(CheckpointSequence.open([f"{server.url}/base"], make.root / "base").base.path).tensors[Q]
    far = CheckpointSequence.open([f"{server.url}/base"], make.root / "base").checkpoints[0][1].weights.tensors[Q]
    server.requests.clear()
    assert torch.equal(far.rows(2, 5).read(), info.rows(2, 5).read())
    assert server.sent() == 3 * 12 * 2


def test_large_tensors_come_in_pieces(make, server, monkeypatch):
    from driftlab.checkpoints import transfer

    monkeypatch.setattr(transfer, "_PIECE", 100)
    base = make.folder("base")
    far = open_at(server, "base").tensors[Q]
    server.requests.clear()
    assert torch.equal(far.read(), open_weights(base).tensors[Q].read())
    assert [count for method, _, count in server.requests if method == "GET"] == [100, 92]


def open_at(server, path):
    from driftlab.checkpoints.remote import RemotePath

    return open_weights(RemotePath(f"{server.url}/{path}"))


def test_the_read_rate_is_measured(make, server):
    make.folder("base"), make.folder("checkpoint-1", 1)
    tracks = CheckpointSequence.open([f"{server.url}/checkpoint-1"], f"{server.url}/base").tracks()
    assert 0 < read_rate(tracks) < math.inf


# -- faults -------------------------------------------------------------------------------------------------------


def test_what_fails_twice_and_then_works(make, server):
    base = make.folder("base")
    far = open_at(server, "base").tensors[Q]
    server.failing, server.requests[:] = 2, []
    assert torch.equal(far.read(), open_weights(base).tensors[Q].read())
    assert server.asked("model.safetensors").count("GET") == 3


def test_what_fails_for_ever(make, server):
    make.folder("base")
    far = open_at(server, "base").tensors[Q]
    server.failing = 99
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: cannot be read in 4 attempts \(ClientResponseError: 5"
    ):
        far.read()


def test_a_body_cut_short_is_fetched_again(make, server):
    base = make.folder("base")
    far = open_at(server, "base").tensors[Q]
    server.cut = 3
    assert torch.equal(far.read(), open_weights(base).tensors[Q].read())
    server.cut = 4
    with pytest.raises(CheckpointError, match=r"cannot be read in 4 attempts \(ClientPayloadError"):
        far.read()


def test_a_server_that_sends_half_of_what_is_asked_for(make, server):
    base = make.folder("base")
    far = open_at(server, "base").tensors[Q]
    server.short = True
    assert torch.equal(far.read(), open_weights(base).tensors[Q].read())  # asked again for the rest


def test_a_server_that_likes_to_compress(make, server):
    server.gzips = True
    far, near = open_at(server, "base") if make.folder("base") else None, open_weights(make.root / "base")
    assert far.config == near.config
    assert torch.equal(far.tensors[Q].read(), near.tensors[Q].read())


def test_a_server_without_ranges(make, server):
    server.ranges = False
    make.folder("base")
    with pytest.raises(CheckpointError, match=r"expected a server that sends ranges of bytes, found one"):
        open_at(server, "base")


def test_missing_refused_and_unreachable(make, server):
    make.folder("base")
    with pytest.raises(CheckpointError, match=r"/nothing: expected a run folder or checkpoint, found nothing"):
        CheckpointSequence.open([f"{server.url}/nothing"], make.root / "base")
    server.refuses = ("/checkpoint-1", "/checkpoint-1/", ".json", ".safetensors")
    make.folder("checkpoint-1", 1)
    with pytest.raises(CheckpointError, match=r"checkpoint-1: access was refused \(403\)"):
        CheckpointSequence.open([f"{server.url}/checkpoint-1"], make.root / "base")
    with pytest.raises(CheckpointError, match=r"cannot be read in 4 attempts \(ClientConnectorError"):
        CheckpointSequence.open(["http://127.0.0.1:9/x"], make.root / "base")


def test_a_shard_that_is_missing(make, server):
    folder = make.sharded("base")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the index names 3 shards, model-00002-of-00003.safetensors is missing"):
        open_at(server, "base")


def test_one_bad_checkpoint_does_not_stop_the_others(make, server):
    make.run("r", {"math@1": 1, "math@2": 2})
    server.refuses = ("000001-math@1/model.safetensors",)
    found = table(make.root / "out", [f"{server.url}/r"])
    rows = found[found["matrix"] == Q].set_index("label")
    assert rows.loc["math@2", "status"] == "ok"
    assert rows.loc["math@1", "status"] == "failed"
    assert "access was refused (403)" in rows.loc["math@1", "reason"]


def test_settings_that_cannot_be_fetched_are_not_taken_for_none(make, server):
    folder = make.folder("base")
    (folder / "config.json").unlink()
    assert open_at(server, "base").config == {}
    (folder / "config.json").write_text("{}")
    server.lists, server.failing = True, 99
    with pytest.raises(CheckpointError, match=r"cannot be read in 4 attempts"):
        open_at(server, "base")


@pytest.mark.parametrize("length", [0, 1, 2, 7, 1 << 20, 99_999_999, 100_000_001, (1 << 63) - 1, (1 << 64) - 1])
def test_forged_header_lengths_fetch_no_more_than_the_file(make, server, length):
    file = make.folder("base") / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=r"model.safetensors: "):
        open_at(server, "base")
    assert server.sent(".safetensors") <= size


@pytest.mark.parametrize("length", [0, 3, 8, 40, -1])
def test_truncated_files(make, server, length):
    file = make.folder("base") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model.safetensors: "):
        open_at(server, "base")


# -- files that change --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", ["ETag", "Last-Modified"])
def test_a_file_that_changes_under_way_is_noticed(make, server, tells):
    server.tells = tells
    folder = make.folder("base")
    far = open_at(server, "base").tensors[Q]
    assert far.read().shape == (8, 12)
    make.folder("base", 1)
    os.utime(folder / "model.safetensors", (1, 1))
    with pytest.raises(CheckpointError, match="the file changed while it was measured"):
        far.read()


def test_a_server_that_tells_neither_tag_nor_time_is_named(make, server):
    server.tells = ""
    make.folder("base")
    (note,) = open_at(server, "base").notes
    assert "neither a digest nor a time" in note


def test_resume_goes_on_with_the_same_files_and_refuses_others(make, server):
    make.run("r", {"math@1": 1, "math@2": 2})
    first = table(make.root / "out", [f"{server.url}/r"])
    server.requests.clear()
    again = table(make.root / "out", [f"{server.url}/r"], resume=True)
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    file = make.root / "r/checkpoints/000001-math@1/model.safetensors"
    before = file.stat()
    make.folder("r/checkpoints/000001-math@1", 7)
    assert file.stat().st_size == before.st_size
    with pytest.raises(ResultsError, match="checkpoints"):
        table(make.root / "out", [f"{server.url}/r"], resume=True)
