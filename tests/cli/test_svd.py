"""``driftlab svd``, as a user runs it."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
import torch

from driftlab.spectral import MEASURES, PRESETS
from driftlab_cli.main import run

EXACT = ("--method", "exact", "--null", "none")


@pytest.fixture
def svd(make, capsys):
    """Run the command into ``out`` and return exit code, stdout, stderr."""

    def call(*arguments, out="out"):
        code = run(["svd", *map(str, arguments), "-o", str(make.root / out)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def source(make):
    return make.run("r", {"math@10": 10, "math@20": 20})


def spectral(make, out="out"):
    return pd.read_parquet(make.root / out / "spectral.parquet").drop(columns="seconds")


def table_of(out):
    """The lines of the table on stdout, without the sentences under it."""
    return out.split("\n\n")[0].splitlines()


def manifest(make, out="out"):
    return json.loads((make.root / out / "manifest.json").read_text())["commands"]["svd"]


def cut(source, label):
    (file,) = source.glob(f"checkpoints/*-{label}/model.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    return file


# -- the main job -------------------------------------------------------------------------------------------------


def test_one_line_a_checkpoint_on_stdout_and_the_rest_on_stderr(make, svd, source):
    code, out, err = svd(source, *EXACT)
    assert code == 0
    head, *lines = table_of(out)
    assert head.split()[:4] == ["run", "label", "matrices", "nss"]
    assert [line.split()[:3] for line in lines] == [["SFT", "math@10", "4"], ["SFT", "math@20", "4"]]
    assert err == f"8 rows ok, 4 skipped, 0 failed; tables in {make.root / 'out'}\n"
    mean = spectral(make).query("label == 'math@20'")["nss"].mean()
    assert lines[1].split()[3] == f"{mean:.4g}"
    (words,) = out.split("\n\n")[1].splitlines()
    assert words.startswith("SFT math@20: mask_update_iou is not separated from the level of a random update (median ")


def test_json_on_stdout_parses(make, svd, source):
    code, out, _ = svd(source, "--json", "-q", *EXACT)
    content = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert [row["label"] for row in content["rows"]] == ["math@10", "math@20"]
    assert content["status"] == {"ok": 8, "skipped": 4, "failed": 0}
    assert content["rows"][0]["nss"] == spectral(make).query("label == 'math@10'")["nss"].mean()


def test_quiet_leaves_the_result(svd, source):
    code, out, err = svd(source, "-q", *EXACT)
    assert (code, err) == (0, "")
    assert len(table_of(out)) == 3


def test_the_manifest_traces_every_number(make, svd, source):
    svd(source, "--seed", 7, *EXACT)
    found = manifest(make)
    assert found["config"]["seed"] == 7
    assert found["config"]["base"]["path"].endswith("000000-base")
    assert [len(c["header"]) for c in found["config"]["checkpoints"]] == [64, 64]
    assert found["rows"] == {"ok": 8, "skipped": 4, "failed": 0}
    assert found["device"] in ("cpu", "cuda")
    assert found["end"] >= found["start"]


def test_csv_holds_what_parquet_holds(make, svd, source):
    assert svd(source, "--csv", *EXACT)[0] == 0
    for name in ("spectral", "spectral_summary"):
        csv, parquet = (make.root / "out" / f"{name}.{suffix}" for suffix in ("csv", "parquet"))
        expected = pd.read_parquet(parquet)
        found = pd.read_csv(csv, keep_default_na=True)
        assert list(found.columns) == list(expected.columns)
        assert found["measure" if "measure" in found else "nss"].equals(
            expected["measure" if "measure" in found else "nss"]
        )


def test_the_default_method_measures_the_same_things(make, svd, source):
    assert svd(source)[0] == 0
    auto = spectral(make)
    assert svd(source, *EXACT, out="exact")[0] == 0
    exact = spectral(make, "exact")
    for name in ("update_density", "mask_update_iou", "rel_frobenius"):
        pd.testing.assert_series_equal(auto[name], exact[name], rtol=1e-6)
    assert (auto["nss"] / exact["nss"]).dropna().between(1 - 1e-3, 1 + 1e-3).all()


def test_two_methods_on_one_base_give_one_table(make, svd):
    one, two = make.run("one", {"math@10": 10}, method="GRPO"), make.run("two", {"math@10": 11}, method="SDPO")
    code, out, _ = svd(one, two, *EXACT)
    assert code == 0
    assert [line.split()[:2] for line in table_of(out)[1:]] == [
        ["GRPO", "math@10"],
        ["SDPO", "base"],
        ["SDPO", "math@10"],
    ]


def test_presets_ranks_and_measures_are_stored(make, svd, source):
    preset = "2606.07082"
    arguments = ("--preset", preset, "--mask-rank", 3, "--measure", "nss", "--measure", "mask_overlap")
    assert svd(source, *arguments, *EXACT)[0] == 0
    config = manifest(make)["config"]
    assert config["mask_fraction"] == PRESETS[preset]["mask_fraction"]
    assert (config["angle_rank"], config["mask_rank"], config["measures"]) == (512, 3, ["nss", "mask_overlap"])
    table = spectral(make).query("status == 'ok'")
    assert (table["mask_fraction"] == 0.5).all()
    assert (table["mask_rank"] == 3).all()
    assert table["nss"].notna().all()
    assert table["max_angle_left_deg"].isna().all()


def test_only_one_measure_still_counts_matrices(svd, source):
    out = svd(source, "--measure", "max_angle_left_deg", *EXACT)[1]
    assert [line.split()[2] for line in table_of(out)[1:]] == ["4", "4"]


def test_list_measures_needs_no_run(capsys):
    assert run(["svd", "--list-measures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(MEASURES)


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_one_damaged_checkpoint_is_exit_code_3(make, svd, source):
    file = cut(source, "math@10")
    code, out, err = svd(source, *EXACT)
    assert code == 3
    assert [line.split()[:4] for line in table_of(out)] == [
        ["run", "label", "matrices", "failed"],
        ["SFT", "math@10", "0", "6"],
        ["SFT", "math@20", "4", "0"],
    ]
    assert err.startswith(f"warning: {file}: expected ")
    assert "4 rows ok, 2 skipped, 6 failed" in err
    assert set(spectral(make).query("label == 'math@20'")["status"]) == {"ok", "skipped"}


def test_nan_in_one_matrix_is_exit_code_3(make, svd, source):
    tensors = make.tensors(10)
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    make.folder("r/checkpoints/000010-math@10", tensors=tensors)
    assert svd(source, *EXACT)[0] == 3
    (failed,) = spectral(make).query("status == 'failed'")["reason"]
    assert failed == "checkpoint: expected finite values, found 1 NaN."


def test_a_damaged_base_is_exit_code_1_and_out_stays_untouched(make, svd, source):
    cut(source, "base")
    code, out, err = svd(source)
    assert (code, out) == (1, "")
    assert "truncated" in err
    assert not (make.root / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--measure", "nope"], "Measure 'nope' is unknown. `driftlab svd --list-measures` shows them all."),
        (["--preset", "nope"], "Preset 'nope' is unknown: expected one of 2607.01763, 2606.07082."),
        (["--device", "tpu"], "Device 'tpu'"),
        (["--method", "fast"], "The method: expected"),
        (["--null", "maybe"], "The null: expected"),
        (["--mask-fraction", "1.5"], "The mask fraction: expected a number between 0 and 1, found 1.5."),
        (["--rank", "0"], "The rank: expected at least 1, found 0."),
        (["--include", "["], "--include '[': not a regular expression"),
        (["--include", "no_such"], "leave none of 6 tensors"),
        (["--resume", "--force"], "--resume and --force: expected one of them, found both."),
    ],
)
def test_wrong_options_are_exit_code_2_and_out_stays_untouched(make, svd, source, arguments, words):
    code, out, err = svd(source, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (make.root / "out").exists()


def test_nothing_to_measure_leaves_out_untouched(make, svd):
    tensors = {"model.layers.0.w": torch.ones(3, 2).to(torch.float8_e5m2)}
    base, new = (make.folder(name, tensors=tensors) for name in ("base", "new"))
    code, _, err = svd(new, "--base", base)
    assert code == 1
    assert "No matrix to measure among 1 tensors" in err
    assert not (make.root / "out").exists()


def test_a_folder_full_of_traps_is_measured_and_nothing_unpickled(make, svd, source):
    for folder in [source, *(source / "checkpoints").iterdir()]:
        make.clutter(folder)
    assert svd(source, *EXACT)[0] == 0
    assert not make.mark.exists()


def test_the_trap_works(make):
    import pickle

    make.clutter(make.root / "x")
    pickle.loads((make.root / "x" / "optimizer.pt").read_bytes())
    assert make.mark.exists()


# -- out, resume, force -------------------------------------------------------------------------------------------


def test_an_occupied_out_is_refused(make, svd, source):
    assert svd(source, *EXACT)[0] == 0
    before = (make.root / "out/spectral.parquet").read_bytes()
    code, out, err = svd(source, *EXACT)
    assert (code, out) == (1, "")
    assert "Give --resume to continue the run in it, or --force to start it again." in err
    assert (make.root / "out/spectral.parquet").read_bytes() == before


def test_force_starts_again_and_spares_foreign_files(make, svd, source):
    (make.root / "out/spectral").mkdir(parents=True)
    for name in ("notes.txt", "spectral/notes.txt"):
        (make.root / "out" / name).write_text("mine")
    assert svd(source, "--force", *EXACT)[0] == 0
    assert svd(source, "--force", "--seed", 1, *EXACT)[0] == 0
    assert manifest(make)["config"]["seed"] == 1
    for name in ("notes.txt", "spectral/notes.txt"):
        assert (make.root / "out" / name).read_text() == "mine"


def test_resume_of_a_finished_run_prints_the_same(make, svd, source):
    code, out, _ = svd(source, *EXACT)
    before = (make.root / "out/spectral.parquet").read_bytes()
    assert svd(source, "--resume", *EXACT)[:2] == (code, out)
    assert (make.root / "out/spectral.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "5"], "seed = 0, this run has 5."),
        (["--rank", "2"], "angle_rank = null, this run has 2."),
        (["--every", "2"], "checkpoints = "),
        (["--exclude", "norm"], 'exclude = null, this run has ["norm"].'),
        (["--null", "permute"], 'null = "none", this run has "permute".'),
    ],
)
def test_resume_with_other_settings_is_refused_by_name(svd, source, arguments, words):
    svd(source, *EXACT)
    code, _, err = svd(source, *EXACT, "--resume", *arguments)
    assert code == 1
    assert words in err


def test_resume_after_the_weights_were_replaced_is_refused(make, svd, source):
    svd(source, *EXACT)
    make.folder("r/checkpoints/000010-math@10", step=11)
    code, _, err = svd(source, "--resume", *EXACT)
    assert code == 1
    assert "checkpoints[0].written_ns" in err


KILL = """
import os, signal, sys
import driftlab.files as files
count, whole = int(sys.argv.pop(1)), files.pq.write_table
def dying(table, target, **options):
    global count
    whole(table, target, **options)
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # after the bytes, before the rename
files.pq.write_table = dying
from driftlab_cli.main import main
main()
"""


@pytest.mark.parametrize("write", [4, 8], ids=["a part", "the summary"])
def test_kill_9_and_resume_give_the_table_of_an_undisturbed_run(make, svd, source, write):
    assert svd(source, out="whole")[0] == 0
    command = [sys.executable, "-c", KILL, str(write), "svd", str(source), "-o", str(make.root / "out")]
    killed = subprocess.run(command, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert killed.returncode == -9
    assert not (make.root / "out/spectral_summary.parquet").exists()
    assert svd(source, "--resume")[0] == 0
    pd.testing.assert_frame_equal(spectral(make), spectral(make, "whole"), check_exact=True)
    summary = [pd.read_parquet(make.root / out / "spectral_summary.parquet") for out in ("out", "whole")]
    pd.testing.assert_frame_equal(*summary, check_exact=True)
    assert not (make.root / "out/spectral").exists()


# -- workers and planning -----------------------------------------------------------------------------------------


def test_a_dry_run_says_what_it_would_take_and_touches_nothing(make, svd, source):
    code, out, err = svd(source, "--dry-run", "--workers", 2, "--json", "--device", "cpu")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["workers"] for row in rows] == [1, 2]
    assert [row["units"] for row in rows] == [6, 6]
    assert rows[0]["gigabytes"] * 1e9 == pytest.approx(sum(t.numel() * 2 * 3 for t in make.tensors().values()))
    assert rows[0]["seconds_if_exact"] >= rows[0]["seconds"] >= rows[1]["seconds"] > 0
    assert not (make.root / "out").exists()


def test_two_workers_give_the_table_of_one_and_say_so_in_the_manifest(make, svd, source):
    assert svd(source, "--threads", 1, "--device", "cpu", out="one")[0] == 0
    assert svd(source, "--workers", 2, "--threads", 1, "--device", "cpu", out="two")[0] == 0
    pd.testing.assert_frame_equal(spectral(make, "two"), spectral(make, "one"), check_exact=True)
    assert {key: manifest(make, "two")[key] for key in ("engine", "workers", "threads")} == {
        "engine": "local",
        "workers": 2,
        "threads": 1,
    }


def test_an_unknown_engine_is_wrong_usage_before_out_is_touched(make, svd, source):
    code, _, err = svd(source, "--engine", "dask")
    assert (code, err) == (2, "error: Engine 'dask' is unknown: expected one of local, ray.\n")
    assert not (make.root / "out").exists()
