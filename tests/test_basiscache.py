"""The cache of decompositions: the same bits, never a wrong entry, never more than its size."""

import os
import threading
import time

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from driftlab.basiscache import BasisCache
from driftlab.checkpoints import CheckpointSequence
from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan
from driftlab.spectral.decomposition import decompose

CPU = torch.device("cpu")
PARTS = ("U", "sigma", "V", "sigma_error")


def matrix(seed=0, shape=(24, 40), dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fill(cache, seed=0):
    W = matrix(seed)
    key = cache.key(W, CPU)
    cache.put(key, decompose(W.double()))
    return key


def entries(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (1, 5), (7, 7)])
def test_an_entry_comes_back_with_its_bits_and_its_layout(tmp_path, shape):
    cache, svd = BasisCache(tmp_path), decompose(matrix(shape=shape).double())
    key = cache.key(matrix(shape=shape), CPU)
    assert cache.get(key, CPU) is None
    cache.put(key, svd)
    found = BasisCache(tmp_path).get(key, CPU)
    assert found.route == svd.route
    for name in PARTS:
        assert torch.equal(getattr(found, name), getattr(svd, name)), name
        if min(shape) > 1:
            assert getattr(found, name).stride() == getattr(svd, name).stride(), name


def test_a_key_tells_apart_whatever_changes_the_decomposition(tmp_path, monkeypatch):
    cache, W = BasisCache(tmp_path), matrix(dtype=torch.float32)
    flipped = W.clone()
    flipped.view(torch.int32)[0, 0] ^= 1  # the last bit of one entry
    keys = [cache.key(x, CPU) for x in (W, flipped, W.reshape(40, 24), W.double(), matrix())]
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.append(cache.key(W, CPU))
    monkeypatch.undo()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys.append(cache.key(W, CPU))
    torch.set_num_threads(threads)
    assert len(set(keys)) == 7
    assert cache.key(W.clone(), CPU) == keys[0]


def damage_cut(file):
    file.write_bytes(file.read_bytes()[:-9])


def damage_bit(file):
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)


def damage_empty(file):
    file.write_bytes(b"")


def damage_foreign(file):
    save_file({"U": torch.zeros(2, 2)}, file)


def damage_without_digest(file):
    save_file(load_file(file), file)


@pytest.mark.parametrize("damage", [damage_cut, damage_bit, damage_empty, damage_foreign, damage_without_digest])
def test_a_damaged_entry_is_no_entry_and_is_removed(tmp_path, damage):
    key = fill(BasisCache(tmp_path))
    damage(tmp_path / f"{key}.safetensors")
    cache = BasisCache(tmp_path)
    assert cache.get(key, CPU) is None
    assert cache.counts == {"damaged": 1}
    assert entries(tmp_path) == []


def aged(folder, key, days):
    then = time.time() - 86_400 * days
    os.utime(folder / f"{key}.safetensors", (then, then))


def test_what_was_used_longest_ago_makes_room(tmp_path):
    first = BasisCache(tmp_path)
    old, older, oldest = (fill(first, seed) for seed in (1, 2, 3))
    size = (tmp_path / f"{old}.safetensors").stat().st_size
    for key, days in ((old, 1), (older, 2), (oldest, 3)):
        aged(tmp_path, key, days)
    cache = BasisCache(tmp_path, limit=3 * size + 10)
    assert cache.get(oldest, CPU) is not None  # used now: no longer the oldest
    new = fill(cache, 4)
    assert entries(tmp_path) == sorted(f"{key}.safetensors" for key in (old, oldest, new))
    assert cache.counts == {"hits": 1, "evicted": 1, "stored": 1}


def test_a_run_does_not_throw_out_what_it_has_stored_itself(tmp_path):
    key = fill(BasisCache(tmp_path / "one"))
    size = (tmp_path / "one" / f"{key}.safetensors").stat().st_size
    cache = BasisCache(tmp_path / "two", limit=2 * size)
    kept = [fill(cache, seed) for seed in range(5)][:2]
    assert entries(tmp_path / "two") == sorted(f"{key}.safetensors" for key in kept)
    assert cache.counts == {"stored": 2, "full": 3}


def test_what_a_killed_run_left_is_removed_after_a_day(tmp_path):
    for name, days in ((".a.safetensors.1.tmp", 2), (".b.safetensors.2.tmp", 0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 86_400 * days,) * 2)
    fill(BasisCache(tmp_path))
    assert ".a.safetensors.1.tmp" not in entries(tmp_path)
    assert ".b.safetensors.2.tmp" in entries(tmp_path)


def test_concurrent_runs_read_whole_entries_or_none(tmp_path):
    svds = [decompose(matrix(seed).double()) for seed in range(4)]
    size = 8 * sum(getattr(svds[0], name).numel() for name in PARTS)
    wrong, start = [], threading.Barrier(4)

    def work(offset):
        cache = BasisCache(tmp_path, limit=int(2.5 * size))
        start.wait()
        for i in range(40):
            cache.since = time.time() + 60  # as if every turn were a later run: all entries may go
            seed = (i + offset) % 4
            key = cache.key(matrix(seed), CPU)
            found = cache.get(key, CPU)
            if found is None:
                cache.put(key, svds[seed])
            elif not all(torch.equal(getattr(found, name), getattr(svds[seed], name)) for name in PARTS):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_disk_that_cannot_be_written_costs_the_cache_and_nothing_else(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("driftlab.basiscache.save_file", full)
    cache = BasisCache(tmp_path)
    fill(cache)
    assert cache.counts == {"unwritable": 1}
    assert entries(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="expected a folder that can be made"):
        BasisCache(tmp_path / "file")


# -- in a scan ----------------------------------------------------------------------------------------------------


def measure(out, paths, **options):
    sequence = CheckpointSequence.open([str(path) for path in paths[1:]], paths[0])
    results = ResultsDir.create(out, command="svd", config=describe(sequence, Plan()), tables=TABLES)
    scan(sequence, Plan(), results, device="cpu", **options)
    counts = results.manifest()["commands"]["svd"]["counts"]
    return results.table("spectral").drop(columns="seconds"), {k: v for k, v in counts.items() if "cache" in k}


def test_a_later_checkpoint_needs_no_new_decomposition_and_gets_the_same_bits(make, monkeypatch):
    tensors = [{"model.layers.0.up_proj.weight": matrix(i, (136, 200))} for i in range(2)]
    tensors.append({name: t + 1e-2 * matrix(7, (136, 200)) for name, t in tensors[0].items()})
    base, _, last = paths = [make.folder(f"checkpoint-{i}", tensors=t) for i, t in enumerate(tensors)]
    cache = make.root / "cache"
    plain, counts = measure(make.root / "plain", [base, last])
    assert counts == {}
    _, counts = measure(make.root / "first", paths[:2], basis_cache=cache)
    assert counts == {"cache_misses": 1, "cache_stored": 1}

    def never(W):
        raise AssertionError("decomposed again")

    monkeypatch.setattr("driftlab.spectral.basis.decompose", never)
    cached, counts = measure(make.root / "second", [base, last], basis_cache=cache)
    assert counts == {"cache_hits": 1}
    assert (plain["method"] == "tracked").all()
    pd.testing.assert_frame_equal(cached, plain, check_exact=True)


def test_a_base_of_no_numbers_is_not_kept(make):
    broken = {"model.layers.0.up_proj.weight": torch.full((8, 12), float("nan"))}
    paths = [
        make.folder("base", tensors=broken),
        make.folder("checkpoint-1", tensors={n: t * 0 + 1 for n, t in broken.items()}),
    ]
    table, counts = measure(make.root / "out", paths, basis_cache=make.root / "cache")
    assert table["status"].tolist() == ["failed"]
    assert counts == {"cache_misses": 1}
    assert entries(make.root / "cache") == []
