"""``driftlab ls`` tells before the fact what ``driftlab svd`` would do."""

import json

import pytest
import torch

from driftlab_cli.main import run


@pytest.fixture
def ls(capsys):
    def call(*arguments):
        code = run(["ls", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_checkpoints_in_order_and_what_is_left_out(make, ls):
    code, out, err = ls(make.run("r", {"math@10": 10, "math@9": 9}))
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == ["run", "order", "label", "tensors", "MiB", "dtypes", "state", "path"]
    assert [line.split()[:6] for line in lines[:3]] == [
        ["-", "0", "base", "6", "0", "BF16"],
        ["SFT", "1", "math@9", "6", "0", "BF16"],
        ["SFT", "2", "math@10", "6", "0", "BF16"],
    ]
    assert lines[3:] == [
        "",
        "4 matrices are measured in each checkpoint; left out:",
        "      1  embedding: left out of the spectral measures by default",
        "      1  1-dimensional: spectral measures take matrices",
    ]


def test_tensors_and_files_and_single_checkpoints(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20})
    tensors = make.tensors(20)
    tensors["model.embed_tokens.weight"] = torch.ones(24, 12, dtype=torch.bfloat16)
    make.folder("r/checkpoints/000020-math@20", tensors=tensors)
    make.clutter(source / "checkpoints/000010-math@10")
    (source / "checkpoints/.000030-math@30.77.tmp").mkdir()
    code, out, _ = ls(source, "--tensors", "--exclude", r"layers\.1")
    assert code == 0
    assert "  tensor model.embed_tokens.weight in 1 checkpoint(s): shape 20x12 in the base, 24x12 here: the 20" in out
    assert "  file optimizer.pt in 1 folder(s): training state" in out
    assert "  file .000030-math@30.77.tmp in 1 folder(s): half-written" in out
    assert "      2  left out by --include/--exclude" in out
    assert out.splitlines()[-6:] == [
        "  model.embed_tokens.weight",
        "* model.layers.0.mlp.down_proj.weight",
        "* model.layers.0.self_attn.q_proj.weight",
        "  model.layers.1.mlp.down_proj.weight",
        "  model.layers.1.self_attn.q_proj.weight",
        "  model.norm.weight",
    ]
    assert not make.mark.exists()


def test_nothing_left_out(make, ls):
    tensors = {"model.layers.0.w": torch.ones(3, 2)}
    base, new = make.folder("base", tensors=tensors), make.folder("new", tensors=tensors)
    assert ls(new, "--base", base)[1].endswith("1 matrices are measured in each checkpoint; left out:\n      0\n")


def test_an_unreadable_checkpoint_is_listed_and_the_exit_code_is_3(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20})
    file = source / "checkpoints/000020-math@20/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    code, out, err = ls(source)
    assert code == 3
    line = next(line for line in out.splitlines() if "math@20" in line)
    assert line.split()[:7] == ["SFT", "2", "math@20", "-", "-", "unreadable", str(file.parent)]
    assert err.startswith(f"warning: {file}: expected ")
    assert "truncated" in err


def test_notes_are_said(make, ls):
    for step in (5, 10):
        make.folder(f"out/checkpoint-{step}", step)
    code, _, err = ls(make.root / "out")
    assert (code, err) == (
        0,
        "warning: no base was given: drift is counted from the first checkpoint, train@5\n",
    )


def test_json_has_it_all(make, ls):
    source = make.run("r", {"math@10": 10})
    make.clutter(source / "checkpoints/000010-math@10")
    code, out, _ = ls(source, "--json")
    content = json.loads(out)
    assert code == 0
    assert [row["label"] for row in content["rows"]] == ["base", "math@10"]
    assert content["measured"] == 4
    assert sum(content["left_out"].values()) == 2
    assert {"run": "SFT", "file": "optimizer.pt", "reason": "training state"} in content["files_left_out"]
    assert len(content["tensors"]) == 6
    assert content["not_compared"] == content["notes"] == []


def test_two_runs_in_the_same_words_as_svd(make, ls):
    one, two = make.run("one", {"math@10": 10}, method="A"), make.run("two", {"math@10": 10}, method="B")
    out = ls(one, two, "--every", 2)[1]
    assert [line.split()[:3] for line in out.splitlines()[1:5]] == [
        ["-", "0", "base"],
        ["A", "1", "math@10"],
        ["B", "0", "base"],
        ["B", "1", "math@10"],
    ]


# -- integrity ------------------------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong_in_a_sound_run(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20})
    for what in ("files", "values"):
        code, out, err = ls(source, "--check", what)
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == "check: 0 wrong, 0 worth a look"


def test_check_of_values_names_what_is_wrong_and_what_is_odd(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20, "math@30": 30, "math@40": 40})
    tensors = make.tensors(20)
    tensors["model.norm.weight"][1] = float("nan")
    tensors["model.layers.0.self_attn.q_proj.weight"][:2, 3] = float("inf")
    tensors["model.layers.1.mlp.down_proj.weight"][:] = 0
    make.folder("r/checkpoints/000020-math@20", tensors=tensors)
    make.folder("r/checkpoints/000040-math@40", tensors=make.tensors(30))
    code, out, _ = ls(source, "--check", "values", "--json")
    found = json.loads(out)["findings"]
    assert code == 3
    assert [(f["label"], f["tensor"], f["kind"], f["wrong"]) for f in found] == [
        ("math@20", "model.layers.0.self_attn.q_proj.weight", "not finite", True),
        ("math@20", "model.layers.1.mlp.down_proj.weight", "zero", False),
        ("math@20", "model.norm.weight", "not finite", True),
        ("math@40", "", "same as before", False),
    ]
    assert found[0]["text"] == "2 of 96 values are NaN or infinite"
    assert found[-1]["text"].startswith("every value is that of math@30")
    code, out, _ = ls(source, "--check", "values")
    assert code == 3
    assert "check: 2 wrong, 2 worth a look" in out
    assert "  wrong  SFT math@20 model.norm.weight: not finite: 1 of 12 values are NaN or infinite" in out
    assert ls(source, "--check", "files")[0] == 0


def test_check_of_files_names_damage_and_missing_tensors(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20, "math@30": 30})
    file = source / "checkpoints/000020-math@20/model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    tensors = make.tensors(30)
    del tensors["model.norm.weight"]
    make.folder("r/checkpoints/000030-math@30", tensors=tensors)
    code, out, _ = ls(source, "--check", "files", "--json")
    found = json.loads(out)["findings"]
    assert code == 3
    assert [(f["label"], f["kind"], f["wrong"]) for f in found] == [
        ("math@20", "unreadable", True),
        ("math@30", "missing", False),
    ]
    assert "the file is truncated" in found[0]["text"]


def test_check_calls_another_model_by_name(make, ls):
    source = make.run("r", {"math@10": 10, "math@20": 20})
    make.folder("r/checkpoints/000020-math@20", tensors={"other.weight": torch.ones(3, 2)})
    code, out, _ = ls(source, "--check", "files")
    assert code == 3
    assert "wrong  SFT math@20: other model:" in out


def test_check_of_what_is_not_known(make, ls):
    code, _, err = ls(make.run("r", {"math@10": 10}), "--check", "all")
    assert code == 2
    assert "--check 'all': expected files or values" in err
