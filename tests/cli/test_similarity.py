"""``driftlab similarity`` and ``driftlab respond`` as a user runs them."""

import json

import pandas as pd
import pytest

from driftlab.results import ResultsDir
from driftlab.training.world.base import base_folder
from driftlab_cli.main import run

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))


def write(file, change, n=30, prompt="ask"):
    rows = [
        {
            "id": f"t/{i}",
            "task": "t",
            "prompt": f"{prompt} {i}",
            "response": f"{WORDS[i % 10]} {WORDS[i // 10]} {change(i)}",
        }
        for i in range(n)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def files(tmp_path):
    return [
        write(tmp_path / "base.jsonl", lambda i: "old"),
        f"near={write(tmp_path / 'n.jsonl', lambda i: 'old' if i % 2 else 'older')}",
        f"far={write(tmp_path / 'f.jsonl', lambda i: f'quite another answer {i}')}",
    ]


def tables(folder):
    return {p.name: p.read_bytes() for p in folder.glob("*.parquet")}


def test_files_are_compared_and_said_in_words(files, tmp_path, capsys):
    seed = write(tmp_path / "s.jsonl", lambda i: "olden")
    assert run(["similarity", *files, "--seed-run", seed, "-o", str(tmp_path / "out"), "--csv"]) == 0
    out, err = capsys.readouterr()
    assert "near | far" not in out
    assert "n | f: near moved less far from its reference than far" in out
    assert "similarity is of spelling, not of meaning" in err
    results = ResultsDir.open(tmp_path / "out")
    summary = results.table("similarity_summary").set_index(["run", "task"])
    assert summary.loc[("near", "all"), "identical_share"] == 0.5
    assert summary.loc[("far", "all"), "other_seed_n"] == 30
    assert len(pd.read_csv(tmp_path / "out" / "similarity.csv")) == 60
    section = results.manifest()["commands"]["similarity"]
    assert section["end"]
    assert [one["rows"] for one in section["inputs"]] == [30, 30, 30, 30]
    assert not (tmp_path / "out" / "similarity").exists()


def test_a_run_folder_json_and_figures(tmp_path, capsys):
    folder = tmp_path / "r"
    for label, word in (("base", "old"), ("math@50", "newer"), ("code@20", "newest thing")):
        write(folder / "responses" / f"{label}.jsonl", lambda i, word=word: word)
    (folder / "run.json").write_text(json.dumps({"method": "grpo", "seed": 0, "config": {}}))
    scores = [json.dumps({"label": label}) + "\n" for label in ("base", "math@50", "code@20")]
    (folder / "scores.jsonl").write_text("".join(scores))
    assert run(["similarity", str(folder), "-o", str(tmp_path / "o"), "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert [row["label"] for row in found["rows"]] == ["math@50", "code@20"]
    assert found["rows"][0]["mean"] > found["rows"][1]["mean"]
    assert run(["figures", str(tmp_path / "o"), "-o", str(tmp_path / "figs")]) == 0
    assert (tmp_path / "figs" / "response_drift.png").is_file()
    previous = ["similarity", str(folder), "-o", str(tmp_path / "p"), "--against", "previous", "--json", "-q"]
    assert run(previous) == 0
    assert ResultsDir.open(tmp_path / "p").table("similarity")["reference"].unique().tolist() == ["base", "math@50"]


def test_resume_says_the_same_and_other_settings_are_refused(files, tmp_path, capsys):
    line = ["similarity", *files, "-o", str(tmp_path / "o")]
    assert run(line) == 0
    first, before = capsys.readouterr(), tables(tmp_path / "o")
    assert run([*line, "--resume"]) == 0
    assert capsys.readouterr() == first
    assert run([*line, "--resume", "--seed", "1"]) == 1
    assert "made with seed = 0, this run has 1" in capsys.readouterr().err
    assert run(line) == 1
    assert "--resume" in capsys.readouterr().err
    assert run([*line, "--force"]) == 0
    assert tables(tmp_path / "o") == before


def test_a_killed_run_is_continued_to_the_same_tables(files, tmp_path, monkeypatch):
    assert run(["similarity", *files, "-o", str(tmp_path / "whole")]) == 0
    from driftlab.responses import similarity as room

    compare, calls = room.compare, []

    def killed(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return compare(*args, **kwargs)

    monkeypatch.setattr(room, "compare", killed)
    line = ["similarity", *files, "-o", str(tmp_path / "o")]
    assert run(line) == 130
    assert len(list((tmp_path / "o" / "similarity").glob("part-*"))) == 1
    assert run([*line, "--resume"]) == 0
    assert len(calls) == 3
    assert tables(tmp_path / "o") == tables(tmp_path / "whole")


def test_what_is_left_out_is_said(files, tmp_path, capsys):
    with open(files[1].partition("=")[2], "a") as file:
        file.write(json.dumps({"id": "t/0", "prompt": "ask 0", "response": "twice"}) + "\n")
        file.write(json.dumps({"id": "extra", "prompt": "x", "response": "y"}) + "\n")
    write(tmp_path / "f.jsonl", lambda i: "far", n=20)
    assert run(["similarity", *files, "-o", str(tmp_path / "o")]) == 0
    err = capsys.readouterr().err
    assert "near n: 1 of 31 prompts have no counterpart and were left out." in err
    assert "near n: 1 of 31 prompts have several responses under one id, or no single text and were left out." in err
    assert "far f: 10 of 30 prompts have no counterpart and were left out." in err
    table = ResultsDir.open(tmp_path / "o").table("similarity")
    assert table["status"].value_counts().to_dict() == {"ok": 49, "skipped": 12}


def test_steps_named_differently_in_each_run_are_not_compared_and_it_is_said_why(files, tmp_path, capsys):
    later = [write(tmp_path / name, lambda i: "old and late") for name in ("n2.jsonl", "f2.jsonl")]
    assert run(["similarity", *files, f"near={later[0]}", f"far={later[1]}", "-o", str(tmp_path / "o")]) == 0
    said = "1 of 1 pairs of runs are not compared, for they have no label in common: name the files of one step alike"
    assert said in capsys.readouterr().err
    assert ResultsDir.open(tmp_path / "o").table("similarity_tests").empty


def test_a_seed_run_with_other_questions_is_said_and_the_rest_measured(files, tmp_path, capsys):
    other = write(tmp_path / "s.jsonl", lambda i: "olden", prompt="another")
    assert run(["similarity", *files, "--seed-run", other, "-o", str(tmp_path / "o")]) == 0
    assert "no prompt in common with the base, so there is no other-seed baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--against", "nothing"], 2, "--against: expected base or previous, found 'nothing'"),
        (["--seed-run", "missing.jsonl"], 1, "missing.jsonl: expected a data file or folder, found nothing there"),
        (["--encoder", "./no/such/folder"], 1, "expected a folder, found nothing there"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_folder(files, tmp_path, capsys, arguments, code, message):
    assert run(["similarity", *files, *arguments, "-o", str(tmp_path / "o")]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_respond_then_compare(tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"id": i, "prompt": f"add 9 6 + 2 {i} ?"}) + "\n" for i in range(6)))
    line = ["respond", f"base={base_folder()}", "--prompts", str(prompts), "--max-new-tokens", "16", "--batch", "4"]
    for seed in ("0", "1"):
        assert run([*line, "--seed", seed, "-o", str(tmp_path / seed), "--device", "cpu"]) == 0
    assert "truncated" in capsys.readouterr().out
    assert run([*line, "--seed", "1", "-o", str(tmp_path / "0"), "--device", "cpu", "--resume"]) == 1
    assert "made with sampling.seed = 0, this run has 1" in capsys.readouterr().err
    files = [str(tmp_path / seed / "responses" / "base.jsonl") for seed in ("0", "1")]
    assert run(["similarity", files[0], f"again={files[1]}", "-o", str(tmp_path / "o")]) == 0
    table = ResultsDir.open(tmp_path / "o").table("similarity")
    assert (table["status"] == "ok").all()
    assert table["tokens_new"].between(1, 16).all()


def test_one_file_of_other_prompts_does_not_stop_the_others(files, tmp_path, capsys):
    other = write(tmp_path / "other.jsonl", lambda i: "old", prompt="another")
    assert run(["similarity", *files, other, "-o", str(tmp_path / "o")]) == 3
    out, err = capsys.readouterr()
    assert "other: 30 of 30 prompts have one id but different prompts and were left out." in err
    summary = ResultsDir.open(tmp_path / "o").table("similarity_summary").query("task == 'all'").set_index("run")
    assert summary["n"].to_dict() == {"near": 30, "far": 30, "other": 0}
    assert "n | f: near moved less far" in out
    assert run(["similarity", files[0], other, "-o", str(tmp_path / "p")]) == 1
    assert "The same ids ask different questions" in capsys.readouterr().err


def test_runs_from_different_bases_are_said(tmp_path, capsys):
    for name, word in (("a", "old"), ("b", "old"), ("c", "other")):
        for label in ("base", "math@5"):
            write(tmp_path / name / "responses" / f"{label}.jsonl", lambda i, w=word, x=label: f"{w} {x}")
        (tmp_path / name / "run.json").write_text(json.dumps({"method": name, "seed": 0, "config": {}}))
    runs = [str(tmp_path / name) for name in "abc"]
    seed = ["--seed-run", write(tmp_path / "s.jsonl", lambda i: "olden")]
    assert run(["similarity", *runs, *seed, "-o", str(tmp_path / "o")]) == 0
    err = capsys.readouterr().err
    assert "The references differ (a, b | c)" in err
    assert "right for those only whose base answered --seed-run" in err
    assert run(["similarity", *runs[:2], "-o", str(tmp_path / "p")]) == 0
    assert "The references differ" not in capsys.readouterr().err


def test_runs_of_different_seeds_keep_their_numbers_and_are_not_compared(tmp_path, capsys):
    for seed in (0, 1):
        folder = tmp_path / f"s{seed}"
        for label, word in (("base", "old"), ("math@5", "new")):
            write(folder / "responses" / f"{label}.jsonl", lambda i, w=word: w, prompt=f"ask {seed}")
        (folder / "run.json").write_text(json.dumps({"method": "grpo", "seed": seed, "config": {}}))
    assert run(["similarity", f"{tmp_path}/s*", "-o", str(tmp_path / "o")]) == 0
    assert (
        "1 of 1 pairs of runs are not compared, for they have no prompt in common at a label" in capsys.readouterr().err
    )
    results = ResultsDir.open(tmp_path / "o")
    assert results.table("similarity_tests").empty
    assert results.table("similarity_summary").query("task == 'all'")["n"].tolist() == [30, 30]
