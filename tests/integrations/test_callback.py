"""The callback in a real Trainer: right numbers, an unchanged training, limits that stop it."""

import json
import logging
import math
import threading

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.errors import ResultsError, UsageError
from driftlab.integrations import DriftCallback
from driftlab.integrations.measuring import Start
from driftlab.live.growing import TABLES
from driftlab.results import ResultsDir
from driftlab.scan import scan
from driftlab.spectral import Plan

PROMPTS = ["1 + 2 =", "3 + 4 ="]


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def saved(folder, tensors):
    folder.mkdir()
    kept = {name: value.contiguous() for name, value in tensors.items() if name != "lm_head.weight"}
    save_file(kept, folder / "model.safetensors")
    return folder


def by_svd(tmp_path, before, after, names, label):
    """Measure two states of a model as ``driftlab svd`` does."""
    base, new = saved(tmp_path / "before", before), saved(tmp_path / label, after)
    sequence = CheckpointSequence.open([f"train={new}"], base)
    results = ResultsDir.create(tmp_path / "svd", command="svd", config={}, tables=TABLES)
    scan(sequence, Plan(), results, include=[f"^{name}$" for name in names], device="cpu")
    frame = results.table("spectral").query("status == 'ok'")
    return frame.set_index("matrix")


def drift_entries(trainer):
    return [entry for entry in trainer.state.log_history if "drift/nss" in entry]


def losses(trainer):
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_those_of_svd(trainer, tiny, tmp_path, unlimited, dtype):
    model = tiny(dtype)
    before = weights(model)
    runner = trainer(model)
    DriftCallback(tmp_path / "drift", **unlimited).attach(runner)
    runner.train()
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    last = table[table["step"] == 12].set_index("matrix")
    expected = by_svd(tmp_path, before, weights(model), last.index, "checkpoint-12")
    assert list(last.index) == list(expected.index)
    assert len(last) == 2 * 3
    same = [name for name in table.columns if name not in ("matrix", "order", "seconds")]
    # Whole numbers are read as floats where skipped vectors lack them.
    pd.testing.assert_frame_equal(last[same], expected[same], check_exact=True, check_dtype=False)
    assert (last["nss"] > 0).all()


def test_the_first_measurement_is_of_the_weights_at_that_step(trainer, tiny, tmp_path, unlimited):
    """The copy is taken between steps: later steps must not leak into a measurement that is still running."""
    started, go = threading.Event(), threading.Event()

    class Late(Start):
        def rows(self, *arguments):
            started.set()
            assert go.wait(60)
            return super().rows(*arguments)

    model = tiny()
    before = weights(model)
    runner = trainer(model, max_steps=6)
    callback = DriftCallback(tmp_path / "drift", **unlimited | {"every": 2}).attach(runner)
    at_two = {}

    begin = callback.on_train_begin

    def late_start(*arguments, **options):
        begin(*arguments, **options)
        callback._start.__class__ = Late

    def step_end(args, state, control, model=None, **options):
        if state.global_step == 2:
            callback._wait(state, control)  # the start has been decomposed
            at_two.update(weights(model))
        DriftCallback.on_step_end(callback, args, state, control, model=model, **options)
        if state.global_step == 2:
            assert started.wait(60)
        if state.global_step == 6:
            go.set()

    callback.on_train_begin, callback.on_step_end = late_start, step_end
    runner.train()
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    assert sorted(set(table["step"])) == [2, 6]
    assert callback.pace.skipped == 2  # due at 4 and at 6 while the first was still running
    first = table[table["step"] == 2].set_index("matrix")
    expected = by_svd(tmp_path, before, at_two, first.index, "checkpoint-2")
    pd.testing.assert_series_equal(first["rel_frobenius"], expected["rel_frobenius"], check_exact=True)
    pd.testing.assert_series_equal(first["nss"], expected["nss"], check_exact=True)


def test_training_is_the_same_with_and_without(trainer, tmp_path, unlimited):
    plain = trainer(folder="plain")
    plain.train()
    watched = trainer(folder="watched")
    DriftCallback(tmp_path / "drift", prompts=PROMPTS, probe_tokens=6, **unlimited | {"every": 1}).attach(watched)
    watched.train()
    left, right = weights(plain.model), weights(watched.model)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert losses(plain) == losses(watched)
    assert len(losses(plain)) == 6
    assert len(drift_entries(watched)) >= 1
    assert watched.model.training == plain.model.training


def test_log_entries_hold_the_stored_numbers(trainer, tmp_path, unlimited):
    runner = trainer()
    DriftCallback(tmp_path / "drift", **unlimited).attach(runner)
    runner.train()
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    entries = drift_entries(runner)
    assert [entry["drift/step"] for entry in entries] == sorted(set(table["step"]))
    for entry in entries:
        rows = table[table["step"] == entry["drift/step"]]
        assert entry["drift/nss"] == pytest.approx(rows["nss"].mean(), rel=1e-12)
        assert entry["drift/rel_frobenius"] == pytest.approx(rows["rel_frobenius"].mean(), rel=1e-12)
        assert entry["drift/max_angle_deg"] == rows[["max_angle_left_deg", "max_angle_right_deg"]].max().max()
        assert entry["drift/failed"] == 0


def test_without_attach_the_numbers_ride_on_the_next_entry(trainer, tmp_path, unlimited):
    callback = DriftCallback(tmp_path / "drift", **unlimited | {"every": 1})
    runner = trainer(callbacks=[callback], logging_steps=1, max_steps=30)
    runner.train()
    entries = drift_entries(runner)
    assert entries
    assert all("loss" in entry or "train_runtime" in entry for entry in entries)


@pytest.mark.parametrize("name", ["nss", "rel_frobenius", "max_angle_deg", "kl"])
def test_a_limit_stops_training(trainer, tmp_path, unlimited, caplog, name):
    probes = {"prompts": PROMPTS, "probe_tokens": 4} if name == "kl" else {}
    runner = trainer(max_steps=2000, learning_rate=1e-2)
    callback = DriftCallback(tmp_path / "drift", stop={name: 1e-6}, **probes, **unlimited | {"every": 1})
    callback.attach(runner)
    with caplog.at_level(logging.WARNING, "driftlab"):
        runner.train()
    assert runner.state.global_step < 2000
    assert callback.alarms[0].split(":")[1].startswith(f" {name} ")
    assert "training stops" in caplog.text
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    assert table["step"].max() == runner.state.global_step


def test_a_limit_not_reached_does_not_stop_it(trainer, tmp_path, unlimited):
    runner = trainer()
    callback = DriftCallback(tmp_path / "drift", stop={"nss": 10.0}, **unlimited).attach(runner)
    runner.train()
    assert (runner.state.global_step, callback.alarms) == (12, [])


def test_a_warning_does_not_stop_it(trainer, tmp_path, unlimited, caplog):
    runner = trainer()
    callback = DriftCallback(tmp_path / "drift", warn={"rel_frobenius": 1e-9}, **unlimited).attach(runner)
    with caplog.at_level(logging.WARNING, "driftlab"):
        runner.train()
    assert runner.state.global_step == 12
    assert "drift warning at step" in caplog.text
    assert all("rel_frobenius" in alarm for alarm in callback.alarms)
    assert drift_entries(runner)[-1]["drift/alarms"] == 1


def test_what_it_cost_is_in_the_manifest(trainer, tmp_path, unlimited):
    runner = trainer()
    callback = DriftCallback(tmp_path / "drift", **unlimited).attach(runner)
    runner.train()
    entry = json.loads((tmp_path / "drift" / "manifest.json").read_text())["commands"]["callback"]
    cost = entry["cost"]
    assert cost["overhead"] == pytest.approx((cost["held_seconds"] + cost["slowed_seconds"]) / cost["training_seconds"])
    assert cost["overhead"] > 0
    assert cost["skipped"] == callback.pace.skipped
    assert entry["rows"]["failed"] == 0
    assert entry["end"] is not None


def test_a_failing_measurement_does_not_take_the_training_with_it(trainer, tmp_path, unlimited, monkeypatch, caplog):
    def broken(self, *arguments):
        raise RuntimeError("no luck")

    monkeypatch.setattr(Start, "rows", broken)
    runner = trainer()
    DriftCallback(tmp_path / "drift", stop={"nss": 0.0}, **unlimited).attach(runner)
    runner.train()
    assert runner.state.global_step == 12
    assert "drift could not be measured: RuntimeError: no luck" in caplog.text
    manifest = json.loads((tmp_path / "drift" / "manifest.json").read_text())
    assert set(manifest["commands"]["callback"]["problems"]) == {"no luck"}


def test_weights_that_became_nan_have_a_row_that_says_so(trainer, tiny, tmp_path, unlimited, caplog):
    model = tiny()
    runner = trainer(model, max_steps=4)
    callback = DriftCallback(tmp_path / "drift", **unlimited | {"every": 100}).attach(runner)
    end = callback.on_train_end

    def spoil(args, state, control, model=None, **options):
        with torch.no_grad():
            next(iter(callback._sites.values())).weight[0, 0] = math.nan
        end(args, state, control, model=model, **options)

    callback.on_train_end = spoil
    runner.train()
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    assert list(table["status"]).count("failed") == 1
    assert "found 1 NaN" in table.query("status == 'failed'")["reason"].iloc[0]
    assert "was not measured" in caplog.text


def test_a_resumed_run_goes_on_in_its_folder(trainer, tmp_path, unlimited):
    first = trainer(max_steps=8, save_strategy="steps", save_steps=4)
    DriftCallback(tmp_path / "drift", **unlimited).attach(first)
    first.train()
    again = trainer(max_steps=12)
    DriftCallback(tmp_path / "drift", **unlimited).attach(again)
    again.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-4"))
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    whole = trainer(max_steps=12, folder="whole")
    DriftCallback(tmp_path / "whole-drift", **unlimited).attach(whole)
    whole.train()
    expected = ResultsDir.open(tmp_path / "whole-drift").table("spectral")
    last, expected = (frame[frame["step"] == 12].set_index("matrix") for frame in (table, expected))
    assert list(last.index) == list(expected.index)
    assert last["rel_frobenius"].to_numpy() == pytest.approx(expected["rel_frobenius"].to_numpy(), rel=0.2)
    steps = table[["step", "order"]].drop_duplicates()
    assert steps["step"].is_monotonic_increasing
    assert list(steps["order"]) == list(range(1, len(steps) + 1))


def test_a_resumed_run_without_its_start_is_refused(trainer, tmp_path, unlimited):
    first = trainer(max_steps=4, save_strategy="steps", save_steps=4)
    first.train()
    again = trainer(max_steps=8)
    DriftCallback(tmp_path / "drift", **unlimited).attach(again)
    with pytest.raises(ResultsError, match=r"expected the start of the run resumed at step 4"):
        again.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-4"))


def test_a_filled_folder_is_refused_and_force_replaces_it(trainer, tmp_path, unlimited):
    (tmp_path / "drift").mkdir()
    (tmp_path / "drift" / "notes.txt").write_text("mine")
    runner = trainer(max_steps=1)
    DriftCallback(tmp_path / "drift", **unlimited).attach(runner)
    with pytest.raises(ResultsError, match=r"force=True"):
        runner.train()
    forced = trainer(max_steps=1)
    DriftCallback(tmp_path / "drift", force=True, **unlimited).attach(forced)
    forced.train()
    assert (tmp_path / "drift" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "at least 1 step"),
        ({"max_overhead": 0}, "share above 0"),
        ({"stop": {"size": 1.0}}, "found 'size'"),
        ({"stop": {"kl": 1.0}}, "found 'kl'"),
        ({"warn": {"nss": -1.0}}, "at least 0"),
    ],
)
def test_wrong_settings(tmp_path, options, words):
    with pytest.raises(UsageError, match=words):
        DriftCallback(tmp_path / "drift", **options)
