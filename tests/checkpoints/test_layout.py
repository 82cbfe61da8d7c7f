"""RUN arguments become runs: layouts of trainers, order, stages, and what is left beside."""

import json
import os

import pytest

from driftlab.checkpoints.arguments import find_runs
from driftlab.checkpoints.stepname import describe, is_step, is_unfinished
from driftlab.errors import CheckpointError, UsageError


@pytest.fixture
def runs(make, monkeypatch):
    """Return what the arguments mean, told from within the folder: (name, labels) for each run."""
    monkeypatch.chdir(make.root)

    def tell(*arguments):
        return [(run.name, [entry.label for entry in run.checkpoints]) for run in find_runs(list(arguments))]

    return tell


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stage", "step", "label"),
    [
        ("checkpoint-500", "train", 500, "train@500"),
        ("global_step_10", "train", 10, "train@10"),
        ("global_step10_hf", "train", 10, "train@10"),
        ("step_5", "train", 5, "train@5"),
        ("iter_0000010", "train", 10, "train@10"),
        ("epoch_2", "train", 2, "train@2"),
        ("500", "train", 500, "train@500"),
        ("math-step-50", "math", 50, "math@50"),
        ("math_checkpoint-50", "math", 50, "math@50"),
        ("epoch=1-step=500", "epoch=1", 500, "epoch=1@500"),
        ("000010-math@10", "math", 10, "math@10"),
        ("000060-code@10", "code", 10, "code@10"),
        ("final", "", None, "final"),
        ("Qwen3-4B", "", None, "Qwen3-4B"),
    ],
)
def test_a_name_tells_stage_and_step(tmp_path, name, stage, step, label):
    for suffix in ("", ".safetensors"):
        found = describe(tmp_path / (name + suffix))
        assert (found.stage, found.step, found.label) == (stage, step, label)


def test_driftlab_json_goes_before_the_name(make):
    folder = make.folder("checkpoint-500")
    (folder / "driftlab.json").write_text(json.dumps({"stage": "math", "step": 7, "global_step": 57, "label": "m@7"}))
    found = describe(folder)
    assert (found.stage, found.step, found.label, found.position) == ("math", 7, "m@7", 57)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": "x", "global_step": true}'])
def test_a_damaged_driftlab_json_does_not_stop(make, content):
    folder = make.folder("checkpoint-500")
    (folder / "driftlab.json").write_text(content)
    assert describe(folder).label in ("train@500", "train@None")


@pytest.mark.parametrize("inner", ["actor/huggingface", "actor", "hf", "model.safetensors"])
def test_the_step_is_read_above_the_places_trainers_put_the_model(tmp_path, inner):
    assert describe(tmp_path / "global_step_10" / inner).label == "train@10"


def test_a_model_file_stands_for_its_folder(tmp_path):
    assert describe(tmp_path / "base" / "model.safetensors").is_base
    assert describe(tmp_path / "final" / "model.safetensors").label == "final"
    assert describe(tmp_path / "model").label == "model"


@pytest.mark.parametrize("name", ["tmp-checkpoint-500", "checkpoint-500.tmp", ".000010-math@10.77.tmp", "a.incomplete"])
def test_unfinished_names(name):
    assert is_unfinished(name)


@pytest.mark.parametrize("name", ["checkpoint-500", "tmpl", ".cache", "attempt-1", "step_5"])
def test_finished_names(name):
    assert not is_unfinished(name)


@pytest.mark.parametrize("name", ["best", "checkpoint-best", "checkpoint-500-merged", "logs", "model-00001-of-00002"])
def test_names_without_a_step(name):
    assert not is_step(name)


# -- layouts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        "checkpoint-{}",  # HF Trainer, TRL
        "global_step_{}/actor/huggingface",  # verl
        "step_{}",  # prime-rl
        "weights/step_{}",
        "checkpoints/step_{}",
        "global_step{}_hf",  # OpenRLHF
        "iter_{:07d}",
        "{}",
    ],
)
def test_layouts_in_order_of_the_number(make, runs, layout):
    for step in (1000, 500, 20):
        make.folder(f"out/{layout.format(step)}", step)
    assert runs("out") == [("out", ["train@20", "train@500", "train@1000"])]


def test_a_folder_of_step_files(make, runs):
    for step in (10, 9):
        make.folder("out", step, name=f"step_{step}.safetensors")
    assert runs("out") == [("out", ["train@9", "train@10"])]


def test_our_own_run_folder(make, runs):
    make.run("r", {"math@10": 10, "math@100": 100, "code@10": 110}, method="SDPO")
    (run,) = find_runs(["r"])
    assert (run.name, [c.label for c in run.checkpoints]) == ("SDPO", ["math@10", "math@100", "code@10"])
    assert run.base.path.name == "000000-base"
    assert runs("r") == runs("r/checkpoints") == runs("r/")


def test_the_current_folder(make, runs, monkeypatch):
    make.run("r", {"math@10": 10}, method=None)
    monkeypatch.chdir(make.root / "r")
    assert runs(".") == [("r", ["math@10"])]


def test_prime_rl_keeps_training_states_and_weights_apart(make, runs):
    for step in (5, 10):
        make.folder(f"out/weights/step_{step}", step)
        make.clutter(make.root / f"out/checkpoints/step_{step}")
    assert runs("out") == [("out", ["train@5", "train@10"])]
    assert not make.mark.exists()


def test_deepspeed_states_inside_a_step_do_not_make_it_a_run(make, runs):
    for step in (5, 10):
        folder = make.folder(f"out/checkpoint-{step}", step)
        make.clutter(folder / f"global_step{step}")
    expected = [("out", ["train@5", "train@10"])]
    assert runs("out") == runs("out/checkpoint-5", "out/checkpoint-10") == expected


def test_deepspeed_states_beside_a_model(make, runs):
    make.clutter(make.folder("out") / "global_step5")
    assert runs("out") == [(make.root.name, ["out"])]


def test_a_step_without_readable_weights_stays_a_step(make, runs):
    make.folder("out/checkpoint-5")
    make.clutter(make.root / "out/checkpoint-10/global_step10")
    (make.root / "out/checkpoint-15").mkdir()
    assert runs("out") == [("out", ["train@5", "train@10", "train@15"])]


def test_a_link_to_a_lost_step_stays_a_step(make, runs):
    make.folder("out/checkpoint-5")
    (make.root / "out/checkpoint-10").symlink_to(make.root / "gone")
    assert runs("out") == [("out", ["train@5", "train@10"])]


def test_run_folders_called_by_date_are_not_steps(make, runs):
    for day in ("20240601-a", "20240602-b"):
        make.folder(f"runs/{day}/checkpoint-5")
    with pytest.raises(CheckpointError, match=r"folders that hold them \(20240601-a, 20240602-b\)"):
        runs("runs")
    assert runs("runs/20240601-a") == [("20240601-a", ["train@5"])]


def test_what_lies_beside_the_steps_is_listed(make):
    out = make.root / "out"
    make.folder("out/checkpoint-5")
    make.folder("out/checkpoint-best")
    make.folder("out/tmp-checkpoint-10")
    make.folder("out")
    (out / "logs").mkdir()
    (out / ".git").mkdir()
    (run,) = find_runs([str(out)])
    assert run.ignored == (
        ("tmp-checkpoint-10", "half-written: never renamed to its final name"),
        ("checkpoint-best", "not a step; give it by name to add it"),
        ("(weights beside the checkpoints)", "not a step; give it by name to add it"),
    )


def test_training_arguments_beside_the_steps_are_no_weights(make):
    make.folder("out/checkpoint-5")
    make.clutter(make.root / "out")
    (make.root / "out" / "pytorch_model.bin").unlink()
    (run,) = find_runs([str(make.root / "out")])
    assert run.ignored == ()


# -- order and stages ---------------------------------------------------------------------------------------------


def test_stages_that_nothing_puts_in_order_are_refused(make, runs):
    for stage in ("math", "code"):
        make.folder(f"out/{stage}-step-10")
    for argument in ("out", "out/*-step-*"):
        with pytest.raises(CheckpointError, match=r"in an order that their names tell, found code, math\. Give them"):
            runs(argument)


def test_run_json_puts_stages_in_order(make, runs):
    for stage in ("math", "code"):
        for step in (10, 5):
            make.folder(f"out/{stage}-step-{step}")
    (make.root / "out/run.json").write_text(json.dumps({"stages": [{"name": "math"}, {"name": "code"}]}))
    assert runs("out") == [("out", ["math@5", "math@10", "code@5", "code@10"])]


def test_counted_stages_are_in_order(make, runs):
    for stage in ("stage10-code", "stage9-math"):
        make.folder(f"out/{stage}-step-10")
    assert runs("out") == [("out", ["stage9-math@10", "stage10-code@10"])]


def test_named_folders_that_nothing_puts_in_order_are_refused(make, runs):
    for name in ("base", "sft", "dpo"):
        make.folder(f"out/{name}")
    with pytest.raises(CheckpointError, match="found dpo, sft"):
        runs("out")
    assert runs("out/base", "out/sft", "out/dpo") == [("out", ["sft", "dpo"])]


def test_numbered_names_are_in_order(make, runs):
    for name in ("base", "phase10", "phase9"):
        make.folder(f"out/{name}")
    (run,) = find_runs(["out"])
    assert [entry.label for entry in run.checkpoints] == ["phase9", "phase10"]
    assert run.base.path.name == "base"


def test_folders_of_stages_are_refused_with_the_way_out(make, runs):
    for stage in ("math", "code"):
        make.folder(f"out/{stage}/checkpoint-5")
    with pytest.raises(CheckpointError, match=r"Give them in order under one name: out=out/code out=\.\.\."):
        runs("out")


def test_stages_under_one_name(make, runs):
    for stage in ("math", "code"):
        for step in (1000, 500):
            make.folder(f"out/{stage}/checkpoint-{step}")
    expected = [("grpo", ["math@500", "math@1000", "code@500", "code@1000"])]
    assert runs("grpo=out/math", "grpo=out/code") == expected
    assert runs("grpo=out/math/checkpoint-*", "grpo=out/code/checkpoint-*") == expected


def test_steps_repeated_across_stages_of_a_plain_list(make, runs):
    paths = [f"out/{stage}/checkpoint-{step}" for stage in ("math", "code") for step in (10, 5)]
    for path in paths:
        make.folder(path)
    assert runs(*paths) == [("run", ["math@5", "math@10", "code@5", "code@10"])]


def test_a_glob_across_stages_does_not_guess_their_order(make, runs):
    for stage in ("math", "code"):
        make.folder(f"out/{stage}/checkpoint-10")
    with pytest.raises(CheckpointError, match="found code, math"):
        runs("out/*/checkpoint-*/model.safetensors")


def test_a_list_that_the_shell_sorted_by_letter(make, runs):
    for step in (1000, 500):
        make.folder(f"out/checkpoint-{step}")
        make.folder(f"verl/global_step_{step}/actor/huggingface")
    expected = ["train@500", "train@1000"]
    assert runs("out/checkpoint-1000", "out/checkpoint-500") == [("out", expected)]
    found = runs("verl/global_step_1000/actor/huggingface", "verl/global_step_500/actor/huggingface")
    assert found == runs("verl/global_step_*/actor/huggingface") == [("verl", expected)]


def test_names_without_steps_keep_the_order_given(make, runs):
    for name in ("c", "a", "b"):
        make.folder(name)
    assert runs("c", "a", "b") == [(make.root.name, ["c", "a", "b"])]


def test_two_stages_with_a_run_json_each_follow_one_another(make, runs):
    make.run("one", {"math@10": 10})
    make.run("two", {"code@10": 10})
    (run,) = find_runs(["r=one", "r=two"])
    assert [entry.label for entry in run.checkpoints] == ["math@10", "code@10"]
    assert run.base.path.parent.parent.name == "one"


def test_one_label_in_two_places_is_told_apart(make, runs):
    for folder in ("x", "y"):
        make.folder(f"{folder}/final")
    assert runs("x/final", "y/final") == [("run", ["x/final", "y/final"])]


def test_two_forms_of_one_step_are_told_apart(make, runs):
    for name in ("step_5", "step-5"):
        make.folder(f"out/{name}")
    assert runs("out") == [("out", ["out/train@5 #1", "out/train@5 #2"])]


# -- arguments ----------------------------------------------------------------------------------------------------


def test_bare_checkpoints_form_one_run_and_run_folders_their_own(make, runs):
    make.run("r", {"math@10": 10}, method="SFT")
    for name in ("base", "sft"):
        make.folder(f"m/{name}")
    found = find_runs(["m/base", "r", "m/sft"])
    assert [(run.name, [c.label for c in run.checkpoints]) for run in found] == [("m", ["sft"]), ("SFT", ["math@10"])]
    assert found[0].base.path.name == "base"


def test_a_glob_lists_what_it_matches_and_does_not_take(make):
    make.folder("out/checkpoint-5")
    make.folder("out/checkpoint-10.tmp")
    make.clutter(make.root / "out")
    (make.root / "out/logs").mkdir()
    (run,) = find_runs([str(make.root / "out/*")])
    assert [entry.label for entry in run.checkpoints] == ["train@5"]
    assert ("checkpoint-10.tmp", "half-written: never renamed to its final name") in run.ignored
    assert ("logs", "no checkpoint in it") in run.ignored
    assert ("optimizer.pt", "not a weight file") in run.ignored
    assert not make.mark.exists()


def test_a_glob_of_runs(make, runs):
    make.run("runs/a", {"math@10": 10}, method="SFT")
    make.run("runs/b", {"math@10": 10}, method="GRPO")
    (make.root / "runs/notes.txt").write_text("")
    assert [name for name, _ in runs("runs/*")] == ["SFT", "GRPO"]


def test_a_checkpoint_given_twice_counts_once(make):
    make.folder("out/checkpoint-5")
    make.folder("out/checkpoint-10")
    out = make.root / "out"
    (out / "checkpoint-last").symlink_to(out / "checkpoint-10")
    (run,) = find_runs([str(out / "checkpoint-*"), str(out / "checkpoint-5")])
    assert [entry.label for entry in run.checkpoints] == ["train@5", "train@10"]
    assert run.ignored == (("(2 checkpoints)", "given twice"),)


def test_runs_of_one_name_are_told_apart(make, runs):
    for folder in ("x/seed0", "x/seed1", "y/seed1"):
        make.run(folder, {"math@10": 10}, method="SFT")
    names = [name for name, _ in runs("x/seed0", "x/seed1", "y/seed1", "y/seed1")]
    assert names == ["SFT (seed0)", "x/SFT (seed1)", "y/SFT (seed1) #1", "y/SFT (seed1) #2"]
    for folder in ("x", "y"):
        make.folder(f"{folder}/out/checkpoint-5")
    assert [name for name, _ in runs("x/out", "y/out")] == ["x/out", "y/out"]


def test_a_path_with_an_equals_sign(make, runs):
    make.folder("epoch=1-step=500")
    make.folder("epoch=1-step=1000")
    assert runs("epoch=*-step=*") == [(make.root.name, ["epoch=1@500", "epoch=1@1000"])]
    assert runs("epoch=1-step=500") == [(make.root.name, ["epoch=1@500"])]


def test_a_named_single_checkpoint(make, runs):
    make.folder("final")
    assert runs("mine=final") == [("mine", ["final"])]


@pytest.mark.parametrize(
    ("argument", "kind", "words"),
    [
        ("gone", CheckpointError, "gone: expected a run folder or checkpoint, found nothing. Check the path."),
        ("a=gone", CheckpointError, "gone: expected a run folder or checkpoint, found nothing. Check the path."),
        ("gone/*", CheckpointError, "Glob 'gone/*': expected checkpoints, found nothing. Check the pattern."),
        ("notes/*", CheckpointError, "Glob 'notes/*': expected checkpoints, found a.txt. Check the pattern."),
        ("a=", UsageError, "Run 'a=': expected NAME=PATH, found no path."),
        ("notes", CheckpointError, "notes: expected a checkpoint or folders of checkpoints, found a.txt. Check the"),
        ("empty", CheckpointError, "empty: expected a checkpoint or folders of checkpoints, found an empty folder."),
    ],
)
def test_arguments_that_mean_nothing(make, runs, argument, kind, words):
    os.makedirs("notes")
    os.makedirs("empty")
    (make.root / "notes/a.txt").write_text("")
    with pytest.raises(kind) as caught:
        runs(argument)
    assert words in str(caught.value)


def test_a_folder_that_cannot_be_listed(make, runs, monkeypatch):
    make.folder("out/checkpoint-5")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    with pytest.raises(
        CheckpointError, match=r"^out: cannot be listed \(Permission denied\)\. Check its permissions\."
    ):
        runs("out")


def test_no_argument():
    with pytest.raises(UsageError, match=r"No run was given\. Give run folders"):
        find_runs([])


def test_the_base_that_run_json_names(make, runs):
    make.folder("models/base")
    make.run("r", {"math@10": 10}, base=False)
    for base in (str(make.root / "models/base"), "../models/base"):
        (make.root / "r/run.json").write_text(json.dumps({"base": base}))
        (run,) = find_runs(["r"])
        assert (run.base.label, run.base.is_base, run.base.path.resolve()) == ("base", True, make.root / "models/base")
    (make.root / "r/run.json").write_text(json.dumps({"base": "Qwen/Qwen3-4B"}))
    (run,) = find_runs(["r"])
    assert (run.base, run.base_named) == (None, "Qwen/Qwen3-4B")
