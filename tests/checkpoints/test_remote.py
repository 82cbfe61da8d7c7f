"""Addresses: what they answer, what is refused by name, and a store in memory that gives the local table."""

import json
import pickle
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
import torch

from driftlab.checkpoints import CheckpointSequence, attempts
from driftlab.checkpoints.arguments import find_runs
from driftlab.checkpoints.checks import check
from driftlab.checkpoints.remote import RemotePath, forget, located
from driftlab.checkpoints.signature import current, rough, signature
from driftlab.checkpoints.weights import open_weights
from driftlab.errors import CheckpointError, DataError, UsageError
from driftlab.naming import is_remote
from driftlab.responses.trails import open_trails
from driftlab.results import ResultsDir
from driftlab.runlog import read_runs
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.implementations.memory")
Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(attempts, "WAITS", (0.0, 0.0))


@pytest.fixture
def store():
    """Put local folders into fsspec's store in memory."""
    fs = fsspec.filesystem("memory")
    fs.store.clear(), fs.pseudo_dirs.clear()

    def put(folder: Path, path: str) -> str:
        for file in folder.rglob("*"):
            if file.is_file():
                fs.pipe_file(f"/{path}/{file.relative_to(folder)}", file.read_bytes())
        return f"memory://{path}"

    put.fs = fs
    yield put
    fs.store.clear(), fs.pseudo_dirs.clear()
    forget()


def table(out, runs, base=None):
    sequence = CheckpointSequence.open([f"a={run}" for run in runs], base)
    plan = Plan(method="exact")
    results = ResultsDir.create(out, command="svd", config=describe(sequence, plan), tables=TABLES)
    scan(sequence, plan, results, device="cpu")
    return results.table("spectral").drop(columns="seconds")


# -- what is an address -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/run/", RemotePath("s3://bucket/run")),
        ("S3:/bucket/run", RemotePath("s3://bucket/run")),  # a path keeps one slash
        ("hf://org/name@step1", RemotePath("hf://org/name@step1")),
        ("memory://a//", RemotePath("memory://a")),
        ("file:///data/run", Path("/data/run")),
        ("runs/a:b", Path("runs/a:b")),
        ("hf:org/name", Path("hf:org/name")),
        ("c:/data", Path("c:/data")),
    ],
)
def test_addresses_and_paths(text, expected):
    assert located(text) == expected
    assert located(Path(text)) == located(str(Path(text)))


def test_a_path_that_is_there_is_no_address(make, monkeypatch):
    monkeypatch.chdir(make.root)
    make.folder("s3:/bucket/checkpoint-1")
    assert not is_remote("s3://bucket/checkpoint-1")
    (run,) = find_runs(["s3:/bucket/checkpoint-1"])
    assert run.checkpoints[0].label == "train@1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://host/m.safetensors?sig=SECRET", "a query or a fragment"),
        ("https://host/m#SECRET", "or a fragment"),
        ("https://me:SECRET@host/m", "found one with a password"),
        ("s3://KEY:SECRET@bucket/m", "found one with a password"),
        ("simplecache::s3://b/run", "found a chain of file systems"),
    ],
)
def test_addresses_that_are_refused(text, message):
    with pytest.raises(UsageError, match=message) as problem:
        located(text)
    assert "SECRET" not in str(problem.value)


def test_names_above_and_below():
    path = RemotePath("s3://bucket/run") / "checkpoint-5" / "model.safetensors"
    assert (path.url, path.name) == ("s3://bucket/run/checkpoint-5/model.safetensors", "model.safetensors")
    assert (path.stem, path.suffix, path.parent.name) == ("model", ".safetensors", "checkpoint-5")
    assert [place.url for place in path.parent.parents] == ["s3://bucket/run", "s3://bucket"]
    assert RemotePath("s3://bucket").parent == RemotePath("s3://bucket")
    assert (path / ".." / "x").url == "s3://bucket/run/checkpoint-5/x"
    assert (RemotePath("s3://bucket/run") / "../../../../etc").url == "s3://bucket/etc"
    assert pickle.loads(pickle.dumps(path)) == path.resolve() == path


# -- clients that are not there -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/run", r"expected a client for s3:// addresses, found none .* pip install s3fs"),
        ("gs://bucket/run", r"expected a client for gs:// addresses, found none .* pip install gcsfs"),
        ("nosuch://bucket/run", r"nosuch:// cannot be opened \(Protocol not known: nosuch\)"),
    ],
)
def test_a_client_that_is_not_installed(url, message, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] in ("s3fs", "gcsfs"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CheckpointError, match=message):
        find_runs([url])


def test_fsspec_is_not_installed(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CheckpointError, match=r"found none. pip install 'driftlab\[remote\]'"):
        find_runs(["memory://run"])


# -- a store in memory --------------------------------------------------------------------------------------------


def test_a_run_folder_in_a_store_gives_the_local_table(make, store):
    folder = make.run("r", {"math@1": 1, "math@2": 2})
    local, remote = table(make.root / "local", [folder]), table(make.root / "remote", [store(folder, "deep/r")])
    pd.testing.assert_frame_equal(local, remote, check_exact=True)


def test_trainers_folders_globs_and_what_is_left_out(make, store):
    for step in (500, 1000):
        folder = make.folder(f"out/global_step_{step}/actor/huggingface", step)
    make.clutter(folder)
    make.folder("out/tmp-checkpoint-7")
    make.folder("out/best")
    base = store(make.folder("base"), "base")
    url = store(make.root / "out", "bucket/out")
    (run,) = find_runs([url])
    assert [c.label for c in run.checkpoints] == ["train@500", "train@1000"]
    assert dict(run.ignored).keys() == {"tmp-checkpoint-7", "best"}
    (globbed,) = find_runs([f"{url}/global_step_[15]*"])
    assert [c.label for c in globbed.checkpoints] == ["train@500", "train@1000"]
    sequence = CheckpointSequence.open([url], base)
    assert [c.error for _, c in sequence.checkpoints] == ["", ""]
    assert "training state" in dict(sequence.checkpoints[1][1].weights.ignored).values()
    assert not make.mark.exists()


def test_one_file_stages_and_duplicates(make, store):
    base, new = make.folder("base"), make.folder("a/checkpoint-1", 1)
    file = f"{store(new, 'a/checkpoint-1')}/model.safetensors"
    (run,) = find_runs([f"math={file}", f"math={file}"])
    assert [c.label for c in run.checkpoints] == ["train@1"]
    assert run.ignored == (("(1 checkpoints)", "given twice"),)
    assert CheckpointSequence.open([file], base).checkpoints[0][1].error == ""


def test_a_base_that_run_json_names_is_looked_for_beside_the_run_only(make, store):
    make.folder("base")
    run = make.run("r", {"math@1": 1}, base=False)
    for named, where in (("../base", "memory://x/base"), (str(make.root / "base"), None), ("http://host/base", None)):
        (run / "run.json").write_text(json.dumps({"method": "grpo", "base": named}))
        store(make.root / "base", "x/base")
        (found,) = find_runs([store(run, "x/r")])
        assert (found.base and str(found.base.path), found.base_named) == (where, "" if where else named)


def test_an_address_in_a_local_run_json_is_not_followed(make, store):
    url = store(make.folder("base"), "base")
    run = make.run("r", {"math@1": 1}, base=False)
    (run / "run.json").write_text(json.dumps({"method": "grpo", "base": url}))
    with pytest.raises(UsageError, match=f"names the base '{url}', which is not on this machine"):
        CheckpointSequence.open([str(run)])


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["pytorch_model.bin"], "torch weights"),
        (["policy.pt"], "torch weights"),
        (["model_world_size_1_rank_0.pt"], "verl FSDP shards"),
        (["__0_0.distcp", ".metadata"], "torch distributed checkpoints"),
        (["mp_rank_00_model_states.pt"], "DeepSpeed ZeRO shards"),
        (["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], "DeepSpeed ZeRO"),
    ],
)
def test_other_formats_are_refused_by_name_and_not_opened(make, store, names, what):
    folder = make.root / "x"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(pickle.dumps(make.payload()))
    with pytest.raises(CheckpointError, match=f"memory://x.*expected safetensors, found {what}.*Copy the checkpoint"):
        open_weights(RemotePath(store(folder, "x")))
    assert not make.mark.exists()


def test_empty_missing_and_foreign_folders(make, store):
    (make.root / "x").mkdir()
    (make.root / "x" / "notes.txt").write_text("hello")
    store(make.root / "x", "x")
    with pytest.raises(CheckpointError, match=r"memory://x: expected a checkpoint or folders of .* found notes.txt"):
        find_runs(["memory://x"])
    with pytest.raises(CheckpointError, match=r"memory://y: expected a run folder or checkpoint, found nothing"):
        find_runs(["memory://y"])
    with pytest.raises(CheckpointError, match=r"Glob 'memory://y/\*': expected checkpoints, found nothing"):
        find_runs(["memory://y/*"])
    with pytest.raises(CheckpointError, match=r"notes.txt: expected a checkpoint folder or weight file, found a .txt"):
        open_weights(RemotePath("memory://x/notes.txt"))
    with pytest.raises(CheckpointError, match=r"expected a checkpoint folder or weight file, found nothing"):
        open_weights(RemotePath("memory://x/gone"))


def test_listings_are_made_anew_for_every_look(make, store):
    make.run("r", {"math@1": 1})
    assert len(find_runs([store(make.root / "r", "r")])[0].checkpoints) == 1
    make.run("r", {"math@1": 1, "math@2": 2})
    assert len(find_runs([store(make.root / "r", "r")])[0].checkpoints) == 2


class Remembering(fsspec.implementations.memory.MemoryFileSystem):
    """A store whose client keeps listings and infos, as those of S3 and GCS do, until it is told to forget them."""

    protocol = "remembering"
    kept: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("remembering://", "memory://"))

    def invalidate_cache(self, path=None):
        for key in [key for key in self.kept if path is None or key[1].startswith(path) or path.startswith(key[1])]:
            del self.kept[key]

    def ls(self, path, detail=True, **kwargs):
        key = ("ls", path)
        if key not in self.kept:
            self.kept[key] = super().ls(path, detail, **kwargs)
        return self.kept[key]

    def info(self, path, **kwargs):
        key = ("info", path)
        if key not in self.kept:
            self.kept[key] = super().info(path, **kwargs)
        return self.kept[key]


def test_what_a_client_remembers_is_not_believed(make, store):
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    make.run("r", {"math@1": 1})
    store(make.root / "r", "r")
    url = "remembering://r"
    info = open_weights(find_runs([url])[0].checkpoints[0].path).tensors[Q]
    make.run("r", {"math@1": 1, "math@2": 2})
    make.folder("r/checkpoints/000001-math@1", 7)
    store(make.root / "r", "r")
    assert {c.label for c in find_runs([url])[0].checkpoints} == {"math@1", "math@2"}
    with pytest.raises(CheckpointError, match="the file changed while it was measured"):
        info.read()


def test_a_file_whose_size_is_not_told(make, store, monkeypatch):
    from driftlab.checkpoints import remote
    from driftlab.checkpoints.transfer import Entry

    monkeypatch.setattr(remote, "look", lambda url: Entry(False))
    with pytest.raises(CheckpointError, match=r"memory://m.safetensors: expected a file of known size, found one"):
        open_weights(RemotePath("memory://m.safetensors"))


# -- files that change --------------------------------------------------------------------------------------------


def test_a_file_that_changes_or_vanishes_is_noticed(make, store):
    url = RemotePath(store(make.folder("base"), "base"))
    info = open_weights(url).tensors[Q]
    before = signature(open_weights(url))
    assert current(url) == before
    store(make.folder("base", 1), "base")
    with pytest.raises(CheckpointError, match="the file changed while it was measured"):
        info.read()
    assert current(url) != before
    store.fs.rm("/base/model.safetensors")
    with pytest.raises(CheckpointError, match=r"memory://base/model.safetensors: expected a file, found nothing"):
        info.read()


def test_files_that_make_no_model_yet_have_a_signature(make, store):
    folder = make.sharded("base")
    (folder / "model-00002-of-00003.safetensors").unlink()
    url = RemotePath(store(folder, "base"))
    first = rough(url)
    assert {name for name, _, _ in first} == {child.name for child in folder.iterdir()}
    store(make.sharded("base", 1), "base")
    forget()
    assert rough(url) != first


def test_values_are_checked_over_there(make, store):
    tensors = make.tensors(1)
    tensors[Q][0, 0] = torch.nan
    url = store(make.folder("checkpoint-1", tensors=tensors), "checkpoint-1")
    findings = list(check(CheckpointSequence.open([url], make.folder("base")), values=True))
    assert [(finding.kind, finding.tensor) for finding in findings] == [("not finite", Q)]


# -- where an address will not do ---------------------------------------------------------------------------------


def test_results_and_runs_that_are_run_stay_here(make, store):
    base, new = make.folder("base"), store(make.folder("checkpoint-1", 1), "checkpoint-1")
    with pytest.raises(UsageError, match=r"Output s3:/b/out: expected a folder on this machine, found an address"):
        ResultsDir.create(Path("s3://b/out"), command="svd", config={})
    with pytest.raises(UsageError, match=r"memory://checkpoint-1: expected a model on this machine, which can be run"):
        open_trails([new], base)
    with pytest.raises(DataError, match=r"s3://b/run: expected a run folder on this machine, found an address"):
        read_runs(["s3://b/run"])
