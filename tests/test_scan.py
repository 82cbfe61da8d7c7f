"""The scan: every tensor of every checkpoint has a row, and a reason where it has no numbers."""

import math
import os

import pandas as pd
import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.errors import CheckpointError, UsageError
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import MEASURES, Plan
from driftlab.tables import SPECTRAL, SUMMARY

Q = "model.layers.0.self_attn.q_proj.weight"
EXACT = Plan(method="exact", null="none")
NO_DRIFT = {name: float(m.no_drift) for name, m in MEASURES.items() if m.no_drift not in ("-", "base's")}


def measure(out, *runs, plan=EXACT, base=None, include=None, exclude=None, resume=False, on_unit=lambda n, name: None):
    """Scan and return the outcome with the table, indexed by (label, matrix)."""
    sequence = CheckpointSequence.open([str(run) for run in runs], base)
    config = describe(sequence, plan, include=include, exclude=exclude)
    results = ResultsDir.create(out, command="svd", config=config, tables=TABLES, resume=resume)
    outcome = scan(sequence, plan, results, include=include, exclude=exclude, device="cpu", on_unit=on_unit)
    return outcome, results.table("spectral").set_index(["label", "matrix"], drop=False)


def pair(make, change, base_change=None, **options):
    """Measure one checkpoint against the base after changing tensors of either."""
    tensors = make.tensors()
    base = make.folder("base", tensors=tensors | (base_change or (lambda t: {}))(tensors))
    new = make.folder("new", tensors=make.tensors(3) | change(make.tensors(3)))
    outcome, table = measure(make.root / "out", new, base=base, **options)
    return outcome, table.loc["new"]


# -- rows ---------------------------------------------------------------------------------------------------------


def test_every_tensor_of_every_checkpoint_has_a_row(make, model_names):
    outcome, table = measure(make.root / "out", make.run("r", {"math@10": 10, "math@20": 20}))
    assert list(table.index) == [(label, name) for label in ("math@10", "math@20") for name in model_names]
    assert (outcome.ok, outcome.skipped, outcome.failed) == (8, 4, 0)
    assert outcome.notes == ()
    row = table.loc["math@20", Q]
    found = row[["run", "stage", "step", "order", "layer", "role", "rows", "cols", "numel", "base_dtype", "dtype"]]
    assert list(found) == ["SFT", "math", 20, 2, 0, "self_attn.q_proj", 8, 12, 96, "BF16", "BF16"]
    assert (row["mask_fraction"], row["method"], row["status"], row["reason"]) == (0.1, "exact", "ok", "")


def test_skipped_tensors_have_a_reason_and_their_density(make):
    _, table = measure(make.root / "out", make.run("r", {"math@10": 10}))
    row = table.loc["math@10", "model.embed_tokens.weight"]
    assert row["reason"] == "embedding: left out of the spectral measures by default"
    base, new = make.tensors()["model.embed_tokens.weight"], make.tensors(10)["model.embed_tokens.weight"]
    assert row["update_density"] == (base != new).double().mean().item()
    assert row["update_sparsity"] == 1 - row["update_density"]
    assert math.isnan(row["nss"])


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(("base_dtype", "dtype"), [(BF16, BF16), (F16, F16), (F32, F32), (F32, BF16)], ids=str)
def test_numbers_agree_with_numpy_in_float64(make, base_dtype, dtype):
    import numpy as np

    base = make.folder("base", tensors=make.tensors(0, base_dtype))
    new = make.folder("new", tensors=make.tensors(3, dtype))
    _, table = measure(make.root / "out", new, base=base)
    for name in (Q, "model.layers.1.mlp.down_proj.weight"):
        W0, W1 = make.tensors(0, base_dtype)[name].double().numpy(), make.tensors(3, dtype)[name].double().numpy()
        s0, s1 = np.linalg.svd(W0, compute_uv=False), np.linalg.svd(W1, compute_uv=False)
        row = table.loc["new", name]
        assert row["nss"] == pytest.approx(np.linalg.norm(s1 - s0) / np.linalg.norm(s0), rel=1e-9)
        promised = 1e-12 if F32 in (base_dtype, dtype) else 1e-7  # two 16-bit matrices: rows are summed in float32
        assert row["rel_frobenius"] == pytest.approx(np.linalg.norm(W1 - W0) / np.linalg.norm(W0), rel=promised)
        assert row["nss"] <= row["rel_frobenius"]


def test_identical_tensors_read_no_drift_exactly(make):
    same = make.tensors()
    _, found = pair(make, lambda t: {Q: same[Q], "model.norm.weight": same["model.norm.weight"]})
    assert found.loc[Q, "method"] == "identical"
    assert {name: found.loc[Q, name] for name in NO_DRIFT} == NO_DRIFT
    assert found.loc[Q, "effective_rank_new"] == found.loc[Q, "effective_rank_base"]
    assert found.loc["model.norm.weight", "update_density"] == 0
    assert (found.drop([Q]).query("status == 'ok'")["method"] != "identical").all()


def test_an_untrained_copy_is_said_loudly(make):
    outcome, table = measure(make.root / "out", make.folder("copy"), base=make.folder("base"))
    run = make.root.name
    assert outcome.notes == (f"{run} copy equals the base in every compared matrix: is it the trained model?",)
    assert (table.query("status == 'ok'")["method"] == "identical").all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", ["base", "checkpoint"])
@pytest.mark.parametrize("name", [Q, "model.embed_tokens.weight", "model.norm.weight"])
def test_values_that_are_no_numbers_fail_their_row_and_no_other(make, value, side, name):
    def spoil(tensors):
        broken = tensors[name].clone()
        broken.view(-1)[5] = value
        return {name: broken}

    outcome, found = pair(make, spoil if side == "checkpoint" else lambda t: {}, spoil if side == "base" else None)
    assert outcome.failed == 1
    assert found.loc[name, "status"] == "failed"
    what = "1 NaN" if math.isnan(value) else "1 infinite"
    assert found.loc[name, "reason"] == f"{side}: expected finite values, found {what}."
    assert math.isnan(found.loc[name, "update_density"])
    assert (found.drop([name])["status"] != "failed").all()


def test_a_zero_base_has_a_row_with_a_reason(make):
    outcome, found = pair(make, lambda t: {}, lambda t: {Q: torch.zeros_like(t[Q])})
    assert found.loc[Q, "status"] == "ok"
    assert "the base is zero" in found.loc[Q, "reason"]
    assert math.isnan(found.loc[Q, "nss"])
    assert outcome.failed == 0


def test_a_zero_checkpoint(make):
    _, found = pair(make, lambda t: {Q: torch.zeros_like(t[Q])})
    assert found.loc[Q, "nss"] == pytest.approx(1, rel=1e-12)
    assert found.loc[Q, "rel_frobenius"] == pytest.approx(1, rel=1e-7)


def test_rank_one_on_both_sides(make):
    u, v = torch.arange(1.0, 9.0), torch.arange(1.0, 13.0)
    one = torch.outer(u, v)
    outcome, found = pair(make, lambda t: {Q: 2 * one}, lambda t: {Q: one})
    assert outcome.failed == 0
    assert found.loc[Q, "nss"] == pytest.approx(1, rel=1e-9)
    assert found.loc[Q, "effective_rank_base"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1), (2, 3), (1500, 8), (8, 1500)])
def test_odd_shapes(make, shape):
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    outcome, found = pair(make, lambda t: {Q: 1.25 * start}, lambda t: {Q: start})
    assert outcome.failed == 0
    assert found.loc[Q, "nss"] == pytest.approx(0.25, rel=1e-6)
    assert (found.loc[Q, "rows"], found.loc[Q, "cols"]) == shape


@pytest.mark.parametrize("shape", [(20000, 8), (8, 20000)])
def test_thin_matrices_allocate_no_square(make, shape):
    """20000 x 20000 in float64 would be 3.2 GB."""
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    outcome, found = pair(make, lambda t: {Q: 1.25 * start}, lambda t: {Q: start}, include=["q_proj"])
    assert outcome.failed == 0
    assert found.loc[Q, "nss"] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales(make, scale):
    start = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)) * scale
    _, found = pair(make, lambda t: {Q: 1.25 * start}, lambda t: {Q: start})
    assert found.loc[Q, "nss"] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.bool], ids=str)
@pytest.mark.parametrize("side", ["base", "new", "both"])
def test_packed_types_are_skipped_with_their_name(make, dtype, side):
    def packed(tensors):
        return {Q: torch.ones(8, 12).to(dtype)}

    keep = lambda t: {}  # noqa: E731
    outcome, found = pair(make, keep if side == "base" else packed, keep if side == "new" else packed)
    assert found.loc[Q, "status"] == "skipped"
    assert "stored as " in found.loc[Q, "reason"]
    assert math.isnan(found.loc[Q, "update_density"])
    assert outcome.failed == 0


def test_a_resized_vocabulary_counts_its_common_rows(make):
    name = "model.embed_tokens.weight"
    _, found = pair(make, lambda t: {name: torch.cat([make.tensors()[name], torch.ones(4, 12, dtype=torch.bfloat16)])})
    assert found.loc[name, "reason"] == "shape 20x12 in the base, 24x12 here: the 20 common rows were compared"
    assert found.loc[name, "update_density"] == 0
    assert found.loc[name, "numel"] == 240


def test_added_tensors_have_a_row(make):
    base = make.folder("base")
    new = make.folder("new", tensors=make.tensors(3) | {"model.layers.0.gate.weight": torch.ones(3, 2)})
    _, table = measure(make.root / "out", new, base=base)
    row = table.loc["new", "model.layers.0.gate.weight"]
    assert (row["status"], row["reason"], row["rows"], row["cols"]) == ("skipped", "not in the base", 3, 2)
    assert row["base_dtype"] is None or pd.isna(row["base_dtype"])


def test_excluded_tensors_have_a_row(make):
    outcome, table = measure(make.root / "out", make.run("r", {"math@10": 10}), exclude=["layers.1"])
    assert (outcome.ok, outcome.skipped) == (2, 4)
    left = table[table["reason"] == "left out by --include/--exclude"]
    assert set(left["layer"]) == {1}


def test_an_embedding_asked_for_is_measured(make):
    _, table = measure(make.root / "out", make.run("r", {"math@10": 10}), include=["embed"])
    assert table.loc["math@10", "model.embed_tokens.weight"]["nss"] > 0


def test_one_damaged_checkpoint_among_good_ones(make):
    run = make.run("r", {"math@10": 10, "math@20": 20, "math@30": 30})
    file = run / "checkpoints/000020-math@20/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    outcome, table = measure(make.root / "out", run)
    assert (outcome.ok, outcome.failed) == (8, 6)
    assert set(table.loc["math@20", "status"]) == {"failed"}
    assert table.loc["math@20", "reason"].str.contains("truncated").all()
    assert any("SFT math@20: no matrix was measured" in note and "truncated" in note for note in outcome.notes)


def test_a_file_that_changes_during_the_scan_fails_its_rows(make):
    run = make.run("r", {"math@10": 10, "math@20": 20})
    file = run / "checkpoints/000020-math@20/model.safetensors"

    def touch(nbytes, name):
        os.utime(file, ns=(1, 1))

    _, table = measure(make.root / "out", run, on_unit=touch)
    assert (table.loc["math@20"].iloc[2:]["status"] == "failed").all()
    assert table.loc["math@20"].iloc[-1]["reason"].startswith(str(file))
    assert (table.loc["math@10"]["status"] != "failed").all()


def test_nothing_to_measure_is_refused(make):
    tensors = {f"model.layers.{i}.w": torch.ones(3, 2).to(torch.float8_e4m3fn) for i in range(3)}
    with pytest.raises(CheckpointError, match="No matrix to measure among 3 tensors; 3 of them: stored as F8_E4M3"):
        measure(make.root / "out", make.folder("new", tensors=tensors), base=make.folder("base", tensors=tensors))


def test_a_device_that_is_unknown(make):
    sequence = CheckpointSequence.open([str(make.run("r", {"math@10": 10}))])
    results = ResultsDir.create(make.root / "out", command="svd", config={})
    with pytest.raises(UsageError, match="Device 'tpu'"):
        scan(sequence, EXACT, results, device="tpu")


# -- several runs -------------------------------------------------------------------------------------------------


def test_two_runs_on_one_base_make_one_table(make):
    one = make.run("one", {"math@10": 10}, method="GRPO")
    two = make.run("two", {"math@20": 20}, method="SDPO")
    outcome, table = measure(make.root / "out", one, two)
    assert list(dict.fromkeys(zip(table["run"], table["label"], strict=True))) == [
        ("GRPO", "math@10"),
        ("SDPO", "base"),
        ("SDPO", "math@20"),
    ]
    assert (table.loc["base"].query("status == 'ok'")["method"] == "identical").all()
    assert outcome.notes == ()


def test_a_run_from_another_base_is_said_loudly(make):
    one = make.run("one", {"math@10": 10}, method="GRPO")
    two = make.run("two", {"math@20": 20}, method="SDPO")
    make.folder("two/checkpoints/000000-base", step=7)
    outcome, table = measure(make.root / "out", one, two)
    assert "the base of run SDPO is not the base of this sequence: its row 'base' shows the difference" in outcome.notes
    assert (table.loc["base"].query("status == 'ok'")["nss"] > 0).all()


def test_the_same_base_in_another_type_is_the_same_base(make):
    one = make.run("one", {"math@10": 10}, method="GRPO")
    two = make.run("two", {"math@20": 20}, method="SDPO")
    wide = {name: tensor.float() for name, tensor in make.tensors().items()}
    make.folder("two/checkpoints/000000-base", tensors=wide)
    outcome, _ = measure(make.root / "out", one, two)
    assert not any("is not the base" in note for note in outcome.notes)
    assert "base stored as BF16, checkpoints as F32: part of the drift is that rounding" in outcome.notes


def test_float32_files_are_said_to_mean_less_sparsity(make):
    base, new = (make.folder(name, tensors=make.tensors(i, torch.float32)) for i, name in enumerate(("base", "new")))
    outcome, _ = measure(make.root / "out", new, base=base)
    assert outcome.notes == (
        "float32 files: update_density is what would change after rounding to bf16, not what was stored",
    )


def test_the_order_of_runs_does_not_change_a_number(make):
    one = make.run("one", {"math@10": 10}, method="GRPO")
    two = make.run("two", {"math@20": 20}, method="SDPO")
    base = one / "checkpoints/000000-base"
    plan = Plan(seed=3)
    _, first = measure(make.root / "a", one, two, base=base, plan=plan)
    _, second = measure(make.root / "b", two, one, base=base, plan=plan)
    pd.testing.assert_frame_equal(
        first.sort_index().drop(columns="seconds"), second.sort_index().drop(columns="seconds"), check_exact=True
    )


# -- resume -------------------------------------------------------------------------------------------------------


def columns(table):
    return table.reset_index(drop=True).drop(columns="seconds")


def test_a_scan_that_dies_anywhere_resumes_to_the_same_table(make, model_names):
    run = make.run("r", {"math@10": 10, "math@20": 20})
    _, undisturbed = measure(make.root / "whole", run)
    for survive in range(len(model_names)):
        seen = []

        def die(nbytes, name, seen=seen, survive=survive):
            seen.append(name)
            if len(seen) == survive + 2:  # the first call reports what was resumed
                raise KeyboardInterrupt

        out = make.root / f"killed-{survive}"
        with pytest.raises(KeyboardInterrupt):
            measure(out, run, on_unit=die)
        again = []
        _, resumed = measure(
            out, run, resume=True, on_unit=lambda nbytes, name, again=again: again.append((nbytes, name))
        )
        assert [name for _, name in again] == ["resumed", *model_names[survive + 1 :]]
        assert sum(nbytes for nbytes, _ in again) == sum(t.numel() * 2 * 3 for t in make.tensors().values())
        pd.testing.assert_frame_equal(columns(resumed), columns(undisturbed), check_exact=True)


def test_a_finished_scan_resumed_does_nothing(make):
    run = make.run("r", {"math@10": 10})
    first, _ = measure(make.root / "out", run)
    before = {file.name: file.read_bytes() for file in (make.root / "out").glob("*.parquet")}
    seen = []
    second, _ = measure(make.root / "out", run, resume=True, on_unit=lambda nbytes, name: seen.append(name))
    assert seen == []
    assert second == first
    assert {file.name: file.read_bytes() for file in (make.root / "out").glob("*.parquet")} == before
    assert sorted(file.name for file in (make.root / "out").iterdir()) == [
        "manifest.json",
        "spectral.parquet",
        "spectral_summary.parquet",
    ]


def test_the_manifest_notices_weights_replaced_under_the_same_headers(make):
    run = make.run("r", {"math@10": 10})
    sequence = CheckpointSequence.open([str(run)])
    make.folder("r/checkpoints/000010-math@10", step=11)
    again = CheckpointSequence.open([str(run)])
    before, after = describe(sequence, EXACT)["checkpoints"][0], describe(again, EXACT)["checkpoints"][0]
    assert before["header"] == after["header"]
    assert before["written_ns"] != after["written_ns"]


def test_columns_and_types_are_the_schemas(make):
    import pyarrow.parquet as pq

    measure(make.root / "out", make.run("r", {"math@10": 10}, base=True))
    assert pq.read_schema(make.root / "out/spectral.parquet").remove_metadata() == SPECTRAL
    assert pq.read_schema(make.root / "out/spectral_summary.parquet").remove_metadata() == SUMMARY


def test_tracked_values_and_nulls_resume_to_the_same_bits(make):
    """Matrices large enough to be tracked, several checkpoints under way at once, one part lost."""
    names = [f"model.layers.{i}.up_proj.weight" for i in range(2)]

    def tensors(step):
        draws = (torch.randn(136, 200, generator=torch.Generator().manual_seed(10 * step + i)) for i in range(2))
        return dict(zip(names, draws, strict=True))

    base = tensors(0)
    paths = [make.folder("base", tensors={name: t.bfloat16() for name, t in base.items()})]
    for step in (1, 2, 3):
        moved = {name: (base[name] + 1e-3 * t).bfloat16() for name, t in tensors(step).items()}
        paths.append(make.folder(f"checkpoint-{step}", tensors=moved))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        plan = Plan(seed=5)
        _, whole = measure(make.root / "whole", *paths[1:], base=paths[0], plan=plan)
        sequence = CheckpointSequence.open([str(path) for path in paths[1:]], paths[0])
        config = describe(sequence, plan, include=None, exclude=None)
        results = ResultsDir.create(make.root / "out", command="svd", config=config, tables=TABLES)
        with pytest.raises(KeyboardInterrupt):
            scan(sequence, plan, results, device="cpu", on_unit=interrupt_after(names[0]))
        _, resumed = measure(make.root / "out", *paths[1:], base=paths[0], plan=plan, resume=True)
    finally:
        torch.set_num_threads(threads)
    assert whole["nss_null"].notna().all()
    pd.testing.assert_frame_equal(columns(resumed), columns(whole), check_exact=True)


def interrupt_after(matrix):
    def on_unit(nbytes, name):
        if name == matrix:
            raise KeyboardInterrupt

    return on_unit


def test_bases_decomposed_in_groups_give_the_same_table(make, monkeypatch):
    run = make.run("r", {"math@10": 10, "math@20": 20})
    _, alone = measure(make.root / "alone", run)
    taken = []

    def by_shape(tracks, device):
        taken.extend(tracks)
        shapes = {track.base.shape: [] for track in tracks}
        for track in tracks:
            shapes[track.base.shape].append(track)
        return list(shapes.values())

    monkeypatch.setattr("driftlab.scan.groups", by_shape)
    _, grouped = measure(make.root / "grouped", run)
    assert len(taken) == 6
    for name in MEASURES:
        assert grouped[name].tolist() == pytest.approx(alone[name].tolist(), rel=1e-9, abs=1e-9, nan_ok=True), name
