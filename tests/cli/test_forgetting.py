"""``driftlab forgetting`` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from score_support import MATRIX, long_rows, run_folder

from driftlab.results import ResultsDir
from driftlab_cli.main import run

PAIRS = "left,right,mmd2\nA,B,0.1\nA,C,0.2\nA,O,0.3\nB,C,0.15\nB,O,0.25\nC,O,0.4\n"


@pytest.fixture
def scores(tmp_path):
    file = tmp_path / "scores.csv"
    pd.DataFrame([*long_rows(n=60), *long_rows(run="s", method="s", n=60)]).to_csv(file, index=False)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    return str(file)


def tables(folder):
    return {p.name: p.read_bytes() for p in Path(folder).glob("*.parquet")}


def test_a_run_prints_and_fills_the_folder(scores, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["forgetting", scores, "--mmd", str(tmp_path / "pairs.csv"), "-o", str(out), "--csv"]) == 0
    stdout, stderr = capsys.readouterr()
    assert "Each run after its last stage" in stdout
    assert "One method less another" in stdout
    results = ResultsDir.open(out)
    names = ("scores", "forgetting", "forgetting_summary", "curve")
    assert all(results.has(name) and (out / f"{name}.csv").exists() for name in names)
    assert len(results.table("forgetting")) == 2 * 12
    assert len(results.read_json("curve")["fits"]) == 6
    assert results.manifest()["commands"]["forgetting"]["end"]
    assert "Tables in" in stderr


def test_json_is_json_and_quiet_is_quiet(scores, tmp_path, capsys):
    assert run(["forgetting", scores, "-o", str(tmp_path / "o"), "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    last = {row["metric"]: row["value"] for row in found["rows"] if row["run"] == "r"}
    assert last["bwt"] == -20
    assert found["curve"] is None
    assert {row["verdict"] for row in found["differences"]} == {"one seed"}
    assert err == ""


def test_the_same_command_gives_the_same_bytes_and_resume_the_same_report(scores, tmp_path, capsys):
    command = ["forgetting", scores, "--mmd", str(tmp_path / "pairs.csv"), "--draws", "50"]
    reports = []
    for extra in (["-o", str(tmp_path / "a")], ["-o", str(tmp_path / "b")], ["-o", str(tmp_path / "a"), "--resume"]):
        assert run([*command, *extra]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] == reports[2]
    assert tables(tmp_path / "a") == tables(tmp_path / "b")
    assert run([*command, "-o", str(tmp_path / "a")]) == 1
    assert run([*command, "-o", str(tmp_path / "a"), "--resume", "--seed", "1"]) == 1
    assert "Cannot resume" in capsys.readouterr().err


def test_runs_are_measured_with_their_questions(tmp_path, capsys):
    answers = {"base": {"A": [0, 1] * 10}, "A@2": {"A": [1, 1, 1, 0] * 5}}
    folder = run_folder(tmp_path / "run", answers, stages=("A",))
    assert run(["forgetting", str(folder), "-o", str(tmp_path / "o")]) == 0
    row = ResultsDir.open(tmp_path / "o").table("forgetting").iloc[0]
    assert (row["lost_share"], row["gained_share"], row["n_paired"]) == (0.25, 0.5, 20)
    assert row["points"] == 25


def test_options_reach_the_numbers(scores, tmp_path):
    command = ["forgetting", scores, "-o", str(tmp_path / "o"), "-q", "--source", "a paper"]
    assert run([*command, "--train-task", "A=A,O", "--lower-is-better", "C"]) == 0
    results = ResultsDir.open(tmp_path / "o")
    table = results.table("forgetting").set_index(["run", "label", "task"])
    assert table.loc[("r", "A", "O"), "kind"] == "in-domain"
    assert table.loc[("r", "C", "C"), "forgetting"] == pytest.approx(137.5)
    assert results.manifest()["commands"]["forgetting"]["source"] == "a paper"


def test_without_distances_an_old_curve_does_not_stay(scores, tmp_path):
    command = ["forgetting", scores, "-o", str(tmp_path / "o"), "-q"]
    assert run([*command, "--mmd", str(tmp_path / "pairs.csv")]) == 0
    assert run([*command, "--force"]) == 0
    assert not list((tmp_path / "o").glob("curve*"))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["{tmp}/none.csv"], 1, "none.csv: expected a score table, found nothing there."),
        (["--train-task", "D=A"], 2, "--train-task D=…: expected a stage, one of A, B, C."),
        (["--train-task", "A=X"], 2, "--train-task A=X: expected a task, one of A, B, C, O."),
        (["--train-task", "A"], 2, "--train-task 'A': expected NAME=VALUE."),
        (["--train-task", "A=A", "--train-task", "A=B"], 2, "--train-task A: expected it once, found it twice."),
        (["--scale", "half"], 2, "--scale 'half': expected auto, fraction, percent"),
        (["--lower-is-better", "X"], 2, "--lower-is-better X: expected one of A, B, C, O."),
        (["--mmd", "{tmp}/none"], 1, "expected a results folder of driftlab mmd or a table of pairs, found neither."),
        (["--mmd", "{tmp}/pairs.csv", "--domain", "A=X"], 2, "--domain A=X: expected a domain, one of A, B, C, O."),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_folder(scores, tmp_path, capsys, change, code, message):
    extra = [part.replace("{tmp}", str(tmp_path)) for part in change]
    assert run(["forgetting", scores, *extra, "-o", str(tmp_path / "out")]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_what_could_not_be_measured_is_told(tmp_path, capsys):
    file = tmp_path / "s.csv"
    pd.DataFrame(long_rows(MATRIX | {"base": MATRIX["base"] | {"O": 0.0}})).to_csv(file, index=False)
    assert run(["forgetting", str(file), "-o", str(tmp_path / "o")]) == 0
    err = capsys.readouterr().err
    assert "warning: 3 changes have no per cent: the score before is 0: no per cent of it." in err
    assert "1 of 11 metrics have no value; forgetting_summary says why" in err


def test_help_loads_none_of_the_heavy_libraries():
    probe = (
        "import sys; from driftlab_cli.main import run; run(['forgetting', '--help']); "
        "heavy = {'torch', 'pandas', 'sklearn', 'numpy', 'scipy', 'pyarrow'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "driftlab forgetting runs/grpo runs/sdpo -o out" in " ".join(done.stdout.split())
