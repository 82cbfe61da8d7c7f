"""Watching a run: half-written, deleted, late and rewritten checkpoints; each measured once, as ``svd`` would."""

import json
import os
import shutil
import time

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.errors import CheckpointError, ResultsError, UsageError
from driftlab.live.growing import TABLES
from driftlab.live.walks import Walker
from driftlab.results import ResultsDir
from driftlab.scan import TABLES as SCANNED
from driftlab.scan import scan
from driftlab.spectral import Plan
from driftlab.watching.watch import Measured, Remark, Watcher, watch

PLAN = Plan(method="exact")


@pytest.fixture
def watched(make):
    """Return a function that opens a watcher on ``run`` with ``base`` beside it."""
    make.folder("base")
    (make.root / "run").mkdir()

    def open_watcher(runs=None, base="base", resume=False, out="out", **options):
        results = ResultsDir.create(make.root / out, command="watch", config={}, tables=TABLES, resume=resume)
        runs = runs or [str(make.root / "run")]
        given = make.root / base if base else None
        return Watcher(runs, given, PLAN, results, device="cpu", **options)

    return open_watcher


def age(*folders, seconds=1000):
    """Make files look as if they had been written long ago."""
    for folder in folders:
        for file in folder.rglob("*.safetensors"):
            then = time.time() - seconds
            os.utime(file, (then, then))


def labels(events):
    return [event.label for event in events if isinstance(event, Measured)]


def remarks(events):
    return [event.text for event in events if isinstance(event, Remark)]


def poll(watcher, times=2):
    return [event for _ in range(times) for event in watcher.poll()]


def table(make, out="out"):
    return ResultsDir.open(make.root / out).table("spectral")


def test_rows_are_those_of_svd(make, watched):
    made = [make.folder(f"run/checkpoint-{step}", step) for step in (10, 9, 20)]
    age(make.root / "base", *made)
    watcher = watched()
    assert labels(watcher.poll()) == ["train@9", "train@10", "train@20"]
    sequence = CheckpointSequence.open([str(make.root / "run")], make.root / "base")
    results = ResultsDir.create(make.root / "svd", command="svd", config={}, tables=SCANNED)
    scan(sequence, PLAN, results, device="cpu")
    sort = ["order", "matrix"]
    ours = table(make).drop(columns="seconds").sort_values(sort, ignore_index=True)
    theirs = results.table("spectral").drop(columns="seconds").sort_values(sort, ignore_index=True)
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    left, right = (ResultsDir.open(make.root / out).table("spectral_summary") for out in ("out", "svd"))
    pd.testing.assert_frame_equal(left, right, check_exact=True)


def test_fresh_files_are_taken_at_the_second_look(make, watched):
    watcher = watched()
    age(make.root / "base")
    make.folder("run/checkpoint-10", 10)
    assert labels(watcher.poll()) == []
    assert watcher.pending == {("run", "train@10"): "its files are being written, or were until just now"}
    assert watcher.moving
    assert labels(watcher.poll()) == ["train@10"]
    assert (watcher.pending, labels(watcher.poll())) == ({}, [])


def test_each_checkpoint_is_measured_once(make, watched, monkeypatch):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    calls = []
    whole = Walker.rows
    monkeypatch.setattr(Walker, "rows", lambda self, sequence: calls.append(1) or whole(self, sequence))
    poll(watched(), 3)
    poll(watched(resume=True), 3)
    assert calls == [1]


def test_a_half_written_file_waits_until_it_is_whole(make, watched):
    age(make.root / "base")
    folder = make.folder("run/checkpoint-10", 10)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    age(folder)
    watcher = watched()
    events = poll(watcher, 3)
    assert labels(events) == []
    assert len(remarks(events)) == 1
    assert "bytes" in watcher.pending["run", "train@10"]
    file.write_bytes(content)
    assert labels(poll(watcher)) == ["train@10"]


def test_a_growing_file_counts_as_activity(make, watched):
    age(make.root / "base")
    file = make.folder("run/checkpoint-10", 10) / "model.safetensors"
    content = file.read_bytes()
    watcher = watched()
    for size in (len(content) - 300, len(content) - 200):
        file.write_bytes(content[:size])
        poll(watcher, 1)
        assert watcher.moving
    poll(watcher, 1)
    assert not watcher.moving


def test_an_index_is_waited_for_shard_by_shard(make, watched):
    age(make.root / "base")
    folder = make.sharded("run/checkpoint-10", 10)
    last = folder / "model-00003-of-00003.safetensors"
    content = last.read_bytes()
    last.unlink()
    age(folder)
    watcher = watched()
    assert "missing" in remarks(poll(watcher))[0]
    last.write_bytes(content)
    assert labels(poll(watcher)) == ["train@10"]
    assert (table(make)["status"] != "failed").all()


def test_a_late_checkpoint_takes_its_place(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10), make.folder("run/checkpoint-1000", 12))
    watcher = watched()
    assert labels(watcher.poll()) == ["train@10", "train@1000"]
    age(make.folder("run/checkpoint-500", 11))
    assert labels(watcher.poll()) == ["train@500"]
    order = table(make)[["label", "order"]].drop_duplicates()
    assert list(map(tuple, order.to_numpy())) == [("train@10", 1), ("train@500", 2), ("train@1000", 3)]
    summary = ResultsDir.open(make.root / "out").table("spectral_summary")
    assert set(summary.loc[summary["label"] == "train@500", "order"]) == {2}


def test_a_deleted_checkpoint_keeps_its_rows_and_its_place(make, watched):
    old = [make.folder(f"run/checkpoint-{step}", step) for step in (10, 20)]
    age(make.root / "base", *old)
    watcher = watched()
    assert labels(watcher.poll()) == ["train@10", "train@20"]
    shutil.rmtree(old[0])
    age(make.folder("run/checkpoint-15", 15))
    assert labels(watcher.poll()) == ["train@15"]
    order = table(make)[["label", "order"]].drop_duplicates()
    assert list(map(tuple, order.to_numpy())) == [("train@10", 1), ("train@15", 2), ("train@20", 3)]
    before = table(make)
    resumed = watched(resume=True)
    assert poll(resumed) == []
    pd.testing.assert_frame_equal(table(make), before)


def test_all_checkpoints_deleted_is_no_end(make, watched):
    folder = make.folder("run/checkpoint-10", 10)
    age(make.root / "base", folder)
    watcher = watched()
    poll(watcher)
    shutil.rmtree(folder)
    assert "waiting" in remarks(poll(watcher))[0]
    age(make.folder("run/checkpoint-20", 20))
    assert labels(poll(watcher)) == ["train@20"]


def test_a_checkpoint_that_vanishes_unmeasured_is_said(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-5", 5))
    folder = make.folder("run/checkpoint-10", 10)
    watcher = watched()
    poll(watcher, 1)
    shutil.rmtree(folder)
    assert remarks(poll(watcher, 1)) == ["run train@10 has vanished before it was measured"]
    assert watcher.pending == {}


@pytest.mark.parametrize("how", ["vanishes", "changes"])
def test_a_checkpoint_that_moves_under_the_measurement_is_not_counted(make, watched, monkeypatch, how):
    folder = make.folder("run/checkpoint-10", 10)
    age(make.root / "base", folder)
    whole = Walker.rows

    def disturbed(self, sequence):
        rows = whole(self, sequence)
        if how == "vanishes":
            shutil.rmtree(folder)
        else:
            make.folder("run/checkpoint-10", 11)
        return rows

    watcher = watched()
    monkeypatch.setattr(Walker, "rows", disturbed)
    assert remarks(watcher.poll()) == ["run train@10 changed or vanished while it was measured: not counted"]
    assert not ResultsDir.open(make.root / "out").has("spectral")
    monkeypatch.setattr(Walker, "rows", whole)
    if how == "changes":
        assert labels(poll(watcher)) == ["train@10"]


def test_a_rewritten_checkpoint_is_said_and_not_measured_again(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    watcher = watched()
    poll(watcher)
    before = table(make)
    make.folder("run/checkpoint-10", 11)
    events = poll(watcher, 3)
    assert labels(events) == []
    assert remarks(events) == [
        "run train@10 has been written again since it was measured; its rows are those of before"
    ]
    pd.testing.assert_frame_equal(table(make), before)


def test_a_base_that_goes_away_stops_it(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    watcher = watched()
    poll(watcher)
    shutil.rmtree(make.root / "base")
    age(make.folder("run/checkpoint-20", 20))
    with pytest.raises(CheckpointError, match=r"base has changed or vanished.*--resume"):
        poll(watcher)
    assert set(table(make)["label"]) == {"train@10"}


def test_another_base_is_refused_on_resume(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    poll(watched())
    tensors = make.tensors()
    tensors.pop("model.norm.weight")
    age(make.folder("other", tensors=tensors))
    with pytest.raises(ResultsError, match=r"expected the base it was begun with"):
        poll(watched(base="other", resume=True))


def test_own_runs_bring_their_base(make, watched):
    run = make.run("own", {"math@10": 10, "code@5": 15}, stages=[{"name": "math"}, {"name": "code"}])
    age(run)
    watcher = watched([str(run)], base=None)
    assert labels(poll(watcher)) == ["math@10", "code@5"]
    assert list(dict.fromkeys(table(make)["stage"])) == ["math", "code"]


def test_no_base_is_asked_for(make, watched):
    age(make.folder("run/checkpoint-10", 10))
    with pytest.raises(UsageError, match=r"expected the base.*--base PATH"):
        poll(watched(base=None))


def test_a_run_that_is_not_there_yet(make, watched):
    age(make.root / "base")
    watcher = watched([str(make.root / "later")])
    assert remarks(poll(watcher)) == [
        f"waiting: {make.root}/later: expected a run folder or checkpoint, found nothing. Check the path."
    ]
    age(make.folder("later/checkpoint-10", 10))
    assert labels(poll(watcher)) == ["train@10"]


def test_a_checkpoint_of_another_model_fails_by_itself(make, watched):
    other = {f"encoder.{i}.weight": tensor for i, tensor in enumerate(make.tensors().values())}
    age(make.root / "base", make.folder("run/checkpoint-10", 10), make.folder("run/checkpoint-20", tensors=other))
    events = poll(watched())
    assert labels(events) == ["train@10", "train@20"]
    measured = {event.label: event.values for event in events if isinstance(event, Measured)}
    assert measured["train@10"]["failed"] == 0
    assert measured["train@20"]["matrices"] == 0
    assert measured["train@20"]["failed"] == 6
    assert "tensor names agree" in remarks(events)[0]


def adapter(make, path, step):
    """Write a LoRA checkpoint of rank 2 with alpha 6."""
    folder = make.root / path
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(step)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {"A": torch.randn(2, 12, generator=generator), "B": 0.1 * torch.randn(8, 2, generator=generator)}
    save_file({f"{name}.lora_{side}.weight": t for side, t in factors.items()}, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder, 3.0 * factors["B"] @ factors["A"]


def test_adapters_are_put_on_the_base_and_watched_like_weights(make, watched):
    folder, update = adapter(make, "run/checkpoint-10", 10)
    age(make.root / "base", folder)
    watcher = watched()
    (event,) = poll(watcher)
    base = make.tensors()["model.layers.0.self_attn.q_proj.weight"].float()
    row = table(make).query("matrix == 'model.layers.0.self_attn.q_proj.weight'").iloc[0]
    assert row["rel_frobenius"] == pytest.approx(float(update.norm() / base.norm()), rel=1e-5)
    assert event.values["failed"] == 0
    adapter(make, "run/checkpoint-10", 11)
    assert "has been written again" in remarks(poll(watcher))[0]


def test_a_half_written_adapter_waits(make, watched):
    folder, _ = adapter(make, "run/checkpoint-10", 10)
    file = folder / "adapter_model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-40])
    age(make.root / "base", folder)
    watcher = watched()
    assert labels(poll(watcher)) == []
    file.write_bytes(content)
    assert labels(poll(watcher)) == ["train@10"]


def test_alarms_name_number_and_limit(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    (event,) = poll(watched(limits={"rel_frobenius": 0.01, "max_angle_deg": 90.0}))
    assert event.alarms == [f"rel_frobenius {event.values['rel_frobenius']:.4g} is above 0.01"]
    mean = table(make).query("status == 'ok'")["rel_frobenius"].mean()
    assert event.values["rel_frobenius"] == pytest.approx(mean, rel=1e-12)


def test_a_kill_between_record_and_rows_measures_again(make, watched, monkeypatch):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("driftlab.watching.watch.add_rows", killed)
        watcher = watched()
        with pytest.raises(KeyboardInterrupt):
            poll(watcher)
    assert labels(poll(watched(resume=True))) == ["train@10"]
    assert table(make)["matrix"].is_unique


def test_a_kill_between_the_tables_is_mended(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    poll(watched())
    results = ResultsDir.open(make.root / "out")
    expected = results.table("spectral_summary")
    (make.root / "out" / "spectral_summary.parquet").unlink()
    watched(resume=True)
    pd.testing.assert_frame_equal(results.table("spectral_summary"), expected)


def test_decompositions_that_do_not_fit_are_made_again(make):
    age(make.folder("base"), make.folder("run/checkpoint-10", 10))
    sequence = CheckpointSequence.open([str(make.root / "run")], make.root / "base")
    kept, none = Walker(PLAN, None, None, "cpu"), Walker(PLAN, None, None, "cpu", keep=100)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in w.rows(sequence)] for w in (kept, none)]
    assert len(kept.kept) == 4
    assert len(none.kept) == 0
    assert json.dumps(rows[0]) == json.dumps(rows[1])


# -- the loop ----------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while one sleeps."""

    def __init__(self, at=None):
        self.now, self.at = 0.0, at or {}

    def sleep(self, seconds):
        self.now += seconds
        for when in [when for when in self.at if when <= self.now]:
            self.at.pop(when)()


def test_it_ends_when_nothing_came_for_long_enough(make, watched):
    age(make.root / "base", make.folder("run/checkpoint-10", 10))
    clock = Clock({25: lambda: age(make.folder("run/checkpoint-20", 20))})
    events = list(watch(watched(), poll=10, until_idle=60, sleep=clock.sleep, clock=lambda: clock.now))
    assert labels(events) == ["train@10", "train@20"]
    assert clock.now == 30 + 60


@pytest.mark.parametrize("times", [{"poll": 0}, {"until_idle": -1.0}])
def test_times_must_be_above_zero(watched, times):
    with pytest.raises(UsageError, match="above 0"):
        next(watch(watched(), **times))
