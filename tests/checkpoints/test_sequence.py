"""A base and its runs: which base, which checkpoints, one track a tensor, and a reason where none is compared."""

import json
import shutil

import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.errors import CheckpointError, UsageError


def sequence(*runs, **options):
    return CheckpointSequence.open([str(run) for run in runs], **options)


def reasons(found, **options):
    """Return (status, reason) of every member, by tensor and label."""
    return {
        (track.name, member.checkpoint.label): (member.status, member.reason)
        for track in found.tracks(**options)
        for member in track.members
    }


# -- the base -----------------------------------------------------------------------------------------------------


def test_a_run_folder_brings_its_base(make):
    found = sequence(make.run("r", {"math@10": 10, "math@20": 20}))
    assert found.base.path.name == "000000-base"
    assert [(run, c.label, c.order) for run, c in found.checkpoints] == [("SFT", "math@10", 1), ("SFT", "math@20", 2)]
    assert found.notes == []


def test_base_as_option(make):
    base = make.folder("base")
    for step in (5, 10):
        make.folder(f"out/checkpoint-{step}", step)
    found = sequence(make.root / "out", base=base)
    assert [c.order for _, c in found.checkpoints] == [1, 2]


def test_without_a_base_the_first_checkpoint_is_one_and_that_is_said(make):
    for step in (5, 10):
        make.folder(f"out/checkpoint-{step}", step)
    found = sequence(make.root / "out")
    assert found.base.path.name == "checkpoint-5"
    assert found.notes == ["no base was given: drift is counted from the first checkpoint, train@5"]


def test_a_base_that_is_named_but_absent_is_not_replaced_by_a_guess(make):
    run = make.run("r", {"math@10": 10, "math@20": 20}, base=False)
    (run / "run.json").write_text(json.dumps({"method": "SFT", "base": "Qwen/Qwen3-4B"}))
    with pytest.raises(UsageError, match=r"names the base 'Qwen/Qwen3-4B', which is not on this machine.*--base PATH"):
        sequence(run)


def test_several_runs_need_a_base(make):
    for name in ("a", "b"):
        make.folder(f"{name}/checkpoint-5", 5)
    with pytest.raises(UsageError, match=r"No base is known for a, b\. .*--base PATH"):
        sequence(make.root / "a", make.root / "b")


def test_a_base_alone_leaves_nothing_to_compare(make):
    with pytest.raises(UsageError, match="nothing to compare with this base"):
        sequence(make.run("r", {}))
    base = make.folder("base")
    with pytest.raises(UsageError, match="nothing to compare with this base"):
        sequence(base, base=base)


def test_another_base_of_a_run_becomes_its_row_base(make):
    one, two = make.run("one", {"math@10": 10}, method="A"), make.run("two", {"math@10": 10}, method="B")
    found = sequence(one, two)
    assert [(run, c.label, c.order) for run, c in found.checkpoints] == [
        ("A", "math@10", 1),
        ("B", "base", 0),
        ("B", "math@10", 1),
    ]


def test_a_broken_base_stops_everything(make):
    run = make.run("r", {"math@10": 10})
    file = run / "checkpoints/000000-base/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        sequence(run)


# -- checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "labels"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5])])
def test_every_keeps_the_last(make, every, labels):
    found = sequence(make.run("r", {f"math@{i}": i for i in range(1, 6)}), every=every)
    assert [(c.step, c.order) for _, c in found.checkpoints] == [(i, i) for i in labels]


def test_every_is_at_least_one(make):
    with pytest.raises(UsageError, match="--every: expected a number of at least 1, found 0"):
        sequence(make.root, every=0)


def test_a_broken_checkpoint_does_not_stop_the_others(make):
    run = make.run("r", {"math@10": 10, "math@20": 20})
    file = run / "checkpoints/000020-math@20/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    found = sequence(run)
    assert [bool(c.error) for _, c in found.checkpoints] == [False, True]
    states = reasons(found)
    assert all(
        status == "failed" and "truncated" in why for (_, label), (status, why) in states.items() if "20" in label
    )
    assert all(status == "ok" for (_, label), (status, _) in states.items() if "10" in label)


def test_none_of_several_checkpoints_can_be_compared(make):
    run = make.run("r", {"math@10": 10, "math@20": 20})
    for file in run.glob("checkpoints/*math*/model.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"None of 2 checkpoints can be compared; the first: .*found 0 bytes"):
        sequence(run)


def test_one_checkpoint_that_cannot_be_compared(make):
    base, other = make.folder("base"), make.folder("other", tensors={"blocks.0.w": torch.ones(3, 2)})
    with pytest.raises(CheckpointError, match=r"^\S+other: only 0 of 1 tensor names agree"):
        sequence(other, base=base)


def test_notes_of_checkpoints_are_gathered(make):
    run = make.run("r", {f"math@{i}": i for i in range(1, 6)})
    for i in range(1, 6):
        (run / f"checkpoints/{i:06d}-math@{i}/adapter_model.bin").write_bytes(b"")
    assert sequence(run).notes == [
        "math@1, math@2, math@3, ...: an adapter lies beside the full weights and was not applied"
    ]


# -- tracks -------------------------------------------------------------------------------------------------------


def test_what_is_measured_by_default(make, model_names):
    found = sequence(make.run("r", {"math@10": 10})).tracks()
    assert [track.name for track in found] == model_names
    assert {track.name: track.left_out for track in found if track.left_out} == {
        "model.embed_tokens.weight": "embedding: left out of the spectral measures by default",
        "model.norm.weight": "1-dimensional: spectral measures take matrices",
    }
    assert found[0].nbytes == 2 * 20 * 12 * 2


@pytest.mark.parametrize(
    ("tensor", "dtype", "words"),
    [
        (torch.ones(3, 2, 4), torch.bfloat16, "3-dimensional"),
        (torch.ones(()), torch.bfloat16, "0-dimensional"),
        (torch.ones(0, 4), torch.bfloat16, "empty tensor"),
        (torch.ones(3, 2), torch.int32, "stored as I32: not a floating-point weight"),
        (torch.ones(3, 2), torch.float8_e4m3fn, "stored as F8_E4M3: its values are no weights without their scales"),
    ],
)
def test_tensors_the_measures_do_not_apply_to(make, tensor, dtype, words):
    extra = {"model.layers.0.extra": tensor.to(dtype)}
    base, new = (make.folder(name, tensors=make.tensors(i) | extra) for i, name in enumerate(("base", "new")))
    for include in (None, ["extra", "q_proj"]):
        track = next(t for t in sequence(new, base=base).tracks(include) if t.name == "model.layers.0.extra")
        assert words in track.left_out


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "scales", "qzeros", "g_idx"])
def test_scales_of_quantised_tensors_are_not_weights(make, suffix):
    extra = {f"model.layers.0.q_proj.{suffix}": torch.ones(3, 2)}
    base, new = (make.folder(name, tensors=make.tensors(i) | extra) for i, name in enumerate(("base", "new")))
    track = next(t for t in sequence(new, base=base).tracks() if suffix in t.name)
    assert track.left_out == "scales of a quantised tensor, not weights"


def test_a_checkpoint_in_fp8_is_refused_tensor_by_tensor(make):
    tensors = make.tensors(3)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    found = sequence(make.folder("new", tensors=tensors), base=make.folder("base"))
    status, why = reasons(found)[name, "new"]
    assert status == "skipped"
    assert "F8_E4M3" in why
    assert "dequantise" in why


def test_added_missing_and_reshaped_tensors(make):
    tensors = make.tensors(3)
    q, down = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
    del tensors[down]
    tensors[q] = tensors[q].T.contiguous()
    tensors["model.layers.2.extra.weight"] = torch.ones(3, 2)
    found = reasons(sequence(make.folder("new", tensors=tensors), base=make.folder("base")))
    assert found[q, "new"] == ("skipped", "shape 8x12 in the base, 12x8 here")
    assert found[down, "new"] == ("skipped", "not stored in this checkpoint")
    assert found["model.layers.2.extra.weight", "new"] == ("skipped", "not in the base")


@pytest.mark.parametrize(("rows", "common"), [(24, 20), (16, 16)])
def test_a_resized_vocabulary_is_compared_as_far_as_both_go(make, rows, common):
    tensors = make.tensors(3) | {"model.embed_tokens.weight": torch.ones(rows, 12, dtype=torch.bfloat16)}
    found = sequence(make.folder("new", tensors=tensors), base=make.folder("base"))
    track = next(t for t in found.tracks() if "embed" in t.name)
    (member,) = track.members
    assert member.status == "ok"
    assert member.tensor.shape == (common, 12)
    assert member.reason == f"shape 20x12 in the base, {rows}x12 here: the {common} common rows were compared"


def test_a_resized_vocabulary_asked_for_by_name_is_not_cut(make):
    tensors = make.tensors(3) | {"model.embed_tokens.weight": torch.ones(24, 12, dtype=torch.bfloat16)}
    found = reasons(sequence(make.folder("new", tensors=tensors), base=make.folder("base")), include=["embed"])
    assert found["model.embed_tokens.weight", "new"] == ("skipped", "shape 20x12 in the base, 24x12 here")


HEAD = "lm_head.weight"


@pytest.mark.parametrize(
    ("tied", "added"), [(True, ": tied to the embedding"), (False, ""), (None, ": perhaps tied to the embedding")]
)
def test_an_output_head_on_one_side_only(make, tied, added):
    config = {} if tied is None else {"tie_word_embeddings": tied}
    head = {HEAD: torch.ones(20, 12, dtype=torch.bfloat16)}
    with_head = make.folder("with", tensors=make.tensors(3) | head, config=config)
    without = make.folder("without", 4, config=config)
    assert reasons(sequence(with_head, base=without))[HEAD, "with"] == ("skipped", "not in the base" + added)
    missing = reasons(sequence(without, base=with_head))[HEAD, "without"]
    assert missing == ("skipped", "not stored in this checkpoint" + added)


def test_a_tied_head_stored_on_both_sides_counts_once(make):
    head = {HEAD: torch.ones(20, 12, dtype=torch.bfloat16)}
    tied, loose = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
    base = make.folder("base", tensors=make.tensors() | head, config=tied)
    once = make.folder("once", tensors=make.tensors(3) | head, config=tied)
    own = make.folder("own", tensors=make.tensors(3) | head, config=loose)
    assert reasons(sequence(once, base=base))[HEAD, "once"] == ("skipped", "tied to the embedding: counted there")
    assert reasons(sequence(own, base=base))[HEAD, "own"] == ("ok", "")
    assert reasons(sequence(once, base=base), include=["lm_head"])[HEAD, "once"] == ("ok", "")


def test_wrapped_and_prefixed_names_are_paired(make, model_names):
    renamed = {
        f"_orig_mod.{name.replace('model.', 'model.language_model.', 1)}": t for name, t in make.tensors(3).items()
    }
    found = sequence(make.folder("new", tensors=renamed), base=make.folder("base")).tracks()
    assert [track.name for track in found] == model_names
    assert all(member.status == "ok" for track in found for member in track.members)


# -- include, exclude ---------------------------------------------------------------------------------------------


def test_include_and_exclude(make):
    found = sequence(make.run("r", {"math@10": 10}))
    kept = [t.name for t in found.tracks(["layers", "embed"], [r"layers\.1"]) if not t.excluded and not t.left_out]
    assert kept == [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ]


def test_an_expression_that_is_none(make):
    found = sequence(make.run("r", {"math@10": 10}))
    with pytest.raises(UsageError, match=r"--include '\[': not a regular expression"):
        found.tracks(["["])
    with pytest.raises(UsageError, match=r"--exclude '\(': not a regular expression"):
        found.tracks(None, ["("])


def test_nothing_left_shows_what_names_look_like(make):
    found = sequence(make.run("r", {"math@10": 10}))
    with pytest.raises(UsageError, match=r"leave none of 6 tensors; names look like 'model\.embed_tokens\.weight'"):
        found.tracks(["no_such_name"])


def test_only_headers_are_read(make):
    """Every byte after the headers is gone, and nothing notices until a tensor is asked for."""
    run = make.run("r", {"math@10": 10})
    for file in run.rglob("model.safetensors"):
        raw = file.read_bytes()
        head = 8 + int.from_bytes(raw[:8], "little")
        with file.open("r+b") as handle:
            handle.truncate(head)
            handle.truncate(len(raw))
    found = sequence(run)
    track = found.tracks()[1]
    assert torch.count_nonzero(track.base.read()) == 0
    shutil.rmtree(run)
    with pytest.raises(CheckpointError, match="cannot be read"):
        track.base.read()
