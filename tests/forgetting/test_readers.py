"""Score tables of every form come out as one, and what cannot be read says so."""

import json

import pandas as pd
import pytest
from score_support import MATRIX, long_rows, read, run_folder

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.gather import gather
from driftlab.forgetting.history import histories
from driftlab.forgetting.readers import read_pairs, read_scores
from driftlab.forgetting.scores import COLUMNS

CELLS = {(label, task): score for label, row in MATRIX.items() for task, score in row.items()}


def cells(scores):
    return {(row.label, row.task): row.score for row in scores.table.itertuples() if row.status == "ok"}


def write(path, frame, **options):
    frame.to_csv(path, index=False, **options)
    return path


def test_long_and_wide_and_parquet_are_one(tmp_path):
    long = pd.DataFrame(long_rows())
    wide = long.pivot_table(
        index=["run", "method", "seed", "label", "stage"], columns="task", values="score", sort=False
    )
    wide = wide.reset_index()
    parquet = tmp_path / "x.parquet"
    long.to_parquet(parquet)
    files = [write(tmp_path / "l.csv", long), write(tmp_path / "w.csv", wide), parquet]
    files += [write(tmp_path / "t.tsv", long, sep="\t"), write(tmp_path / "b.csv", long, encoding="utf-8-sig")]
    files.append(write(tmp_path / "z.csv.gz", long))
    for file in files:
        found = gather(read_scores([file]))
        assert cells(found) == CELLS, file.name
        assert list(found.table) == list(COLUMNS)
        assert found.plans == {"r": [("A", "A"), ("B", "B"), ("C", "C")]}


def test_a_wide_table_carries_errors_and_counts_beside_its_tasks(tmp_path):
    frame = pd.DataFrame(
        {"method": ["base", "x"], "label": ["base", "m@2"], "T": [30, 40], "T_stderr": [2, 3], "U": [10, 12]}
        | {"T_n": [50, 50], "n": [70, 80], "model_card": ["a", "b"]}
    )
    found = gather(read_scores([write(tmp_path / "w.csv", frame)]))
    table = found.table[found.table["run"] == "x"].set_index(["label", "task"])
    assert table.loc[("m@2", "T"), "stderr"] == 3
    assert table.loc[("m@2", "T"), "n"] == 50
    assert table.loc[("m@2", "U"), "n"] == 80
    assert set(found.table["task"]) == {"T", "U"}
    assert "w.csv: columns without numbers were left out: model_card." in found.remarks


def test_cells_that_are_no_numbers_are_rows_with_a_reason(tmp_path):
    rows = [row | {"score": str(row["score"])} for row in long_rows()]
    rows[5]["score"], rows[6]["score"], rows[7]["score"] = "n/a", "many", "45 %"
    table = read(tmp_path, rows).table
    bad = table[table["status"] == "missing"].set_index("task")["reason"]
    assert bad["B"] == "not evaluated: the table has no score"
    assert bad["C"] == "expected a number, found 'many'"
    assert table.loc[(table["label"] == "A") & (table["task"] == "O"), "score"].item() == 45


def test_a_base_on_its_own_serves_every_run(tmp_path):
    rows = [row for run in ("r", "s") for row in long_rows(run=run, method=run) if row["label"] != "base"]
    rows += [row | {"run": "base", "method": "base"} for row in long_rows() if row["label"] == "base"]
    found = read(tmp_path, rows)
    bases = found.table[found.table["label"] == "base"]
    assert set(bases["run"]) == {"r", "s"}
    assert (bases["order"] == 0).all()
    assert "The base of 2 runs is the one evaluated as 'base'." in found.remarks


def test_two_bases_on_their_own_are_refused(tmp_path):
    rows = [row for row in long_rows() if row["label"] != "base"]
    rows += [row | {"run": name} for name in ("b1", "b2") for row in long_rows() if row["label"] == "base"]
    with pytest.raises(DataError, match="expected one model that all runs started from, found b1, b2"):
        read(tmp_path, rows)


def test_steps_are_ordered_as_numbers_within_their_stage(tmp_path):
    labels = ["base", "math@500", "math@1000", "code@20", "math@60"]
    rows = [{"run": "r", "label": label, "task": "T", "score": 50 + i} for i, label in enumerate(labels)]
    found = read(tmp_path, rows)
    assert found.table["label"].tolist() == ["base", "math@60", "math@500", "math@1000", "code@20"]
    assert found.plans == {"r": [("math", "math@1000"), ("code", "code@20")]}


def test_a_run_that_stops_early_has_no_end_of_its_stage(tmp_path):
    rows = [
        {"run": run, "label": label, "task": "m", "score": 50}
        for run, labels in {"r": ["base", "m@10", "m@20"], "s": ["base", "m@10"]}.items()
        for label in labels
    ]
    runs = {one.run: one for one in histories(read(tmp_path, rows))}
    assert runs["r"].ends == ["m@20"]
    assert runs["s"].ends == []


def test_repeated_and_contradicting_rows(tmp_path):
    rows = long_rows()
    found = read(tmp_path, [*rows, rows[4], rows[5] | {"score": 99.0}])
    table = found.table.set_index(["label", "task"])
    assert len(table) == len(rows)
    assert table.loc[("A", "A"), "score"] == 80
    assert table.loc[("A", "B"), "status"] == "failed"
    assert table.loc[("A", "B"), "reason"] == "given more than once with different scores"
    assert "1 rows repeat an earlier score and were left out." in found.remarks
    assert any("2 rows contradict each other, r A B for instance" in remark for remark in found.remarks)


def test_two_metrics_of_a_task_are_told_and_one_is_taken(tmp_path):
    rows = [row | {"metric": metric, "score": row["score"] + add} for row in long_rows() for metric, add in
            (("acc", 0), ("acc_norm", 3))]  # fmt: skip
    found = read(tmp_path, rows)
    assert cells(found) == CELLS
    assert "A has several metrics: acc was taken, acc_norm left out; --metric A=NAME takes another." in found.remarks
    other = read(tmp_path, rows, metrics=["acc_norm", "O=acc"])
    assert cells(other)["C", "A"] == MATRIX["C"]["A"] + 3
    assert cells(other)["C", "O"] == MATRIX["C"]["O"]
    with pytest.raises(UsageError, match="--metric f1: expected one of acc, acc_norm"):
        read(tmp_path, rows, metrics=["f1"])


def test_different_settings_of_an_evaluation_are_told(tmp_path):
    rows = [row | {"n": 100 if row["label"] == "base" else 200, "temperature": 0.7} for row in long_rows()]
    remarks = read(tmp_path, rows).remarks
    assert sum("evaluated with different settings (number of questions 100, 200) in r" in one for one in remarks) == 4
    assert not any("temperature" in one for one in remarks)


def test_a_run_without_a_base_is_told(tmp_path):
    found = read(tmp_path, [row for row in long_rows() if row["label"] != "base"])
    assert "r: its base was not evaluated, so nothing of it can be called gained or forgotten." in found.remarks
    assert found.table["order"].min() == 1


def test_runs_are_read_with_rewards_plans_and_settings(tmp_path):
    folder = run_folder(tmp_path / "a", {"base": {"A": [0, 1, 1, 0]}, "A@2": {"A": [1, 1, None, 1]}})
    with (folder / "responses" / "A@2.jsonl").open("a") as file:
        file.write('{"id": "A/9", "ta')
    found = gather(read_scores([folder]))
    assert found.plans["m"] == [("A", "A@2"), ("B", "B@2"), ("C", "C@2")]
    assert found.table["score"].tolist() == [50, 100]
    assert found.table["ema_rate"].tolist() == [0.05, 0.05]
    assert sorted(found.rewards["m", "A@2", "A"].values()) == [100, 100, 100]
    assert "m A@2: 1 responses could not be read and are in no pair." in found.remarks


def test_the_same_id_with_another_prompt_is_another_question(tmp_path):
    runs = [
        run_folder(tmp_path / name, {"base": {"A": [0, 1]}}, prompt=prompt, name=name)
        for name, prompt in (("x", "q"), ("y", "other"))
    ]
    found = gather(read_scores(runs)).rewards
    assert not found["x", "base", "A"].keys() & found["y", "base", "A"].keys()


def harness(path, scores, **content):
    results = {task: {"alias": task, "acc,none": value, "acc_stderr,none": 0.01} for task, value in scores.items()}
    path.write_text(json.dumps({"results": results} | content))
    return path


def test_results_of_the_harness(tmp_path):
    base = harness(tmp_path / "b.json", {"arc": 0.5, "wer": 0.3}, **{"n-samples": {"arc": {"effective": 40}}})
    after = harness(
        tmp_path / "a.json",
        {"arc": 0.6, "wer": 0.2},
        higher_is_better={"wer": {"acc": False}},
        **{"n-shot": {"arc": 5}},
    )
    content = json.loads(base.read_text())
    content["higher_is_better"] = {"wer": {"acc": False}}
    content["results"]["arc"]["acc_norm,none"] = 0.55
    content["results"]["arc"]["acc_norm_stderr,none"] = "N/A"
    base.write_text(json.dumps(content))
    found = gather(read_scores([f"base={base}", f"sdpo/arc@50={after}"]))
    table = found.table.set_index(["label", "task"])
    assert table.loc[("base", "arc"), ["score", "stderr", "n"]].tolist() == [50, 1, 40]
    assert table.loc[("arc@50", "arc"), ["run", "stage", "step", "shots"]].tolist() == ["sdpo", "arc", 50, 5]
    assert table.loc[("arc@50", "wer"), ["score", "scale", "better"]].tolist() == [0.2, "raw", "lower"]
    assert any(
        remark.startswith("arc has several metrics: acc was taken, acc_norm left out") for remark in found.remarks
    )


def test_a_group_of_the_harness_stands_for_its_subtasks(tmp_path):
    tasks = {"mmlu": 0.5, "stem": 0.4, "physics": 0.3, "law": 0.6, "gsm": 0.2}
    groups = {"mmlu": ["stem", "law"], "stem": ["physics"]}
    file = harness(tmp_path / "b.json", tasks, group_subtasks=groups)
    (found,) = read_scores([f"base={file}"])
    assert list(found.table["task"]) == ["mmlu", "gsm"]
    assert found.remarks == ["b.json: 3 subtasks were left out, their groups stand for them."]


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("{tmp}/none.csv", DataError, "none.csv: expected a score table, found nothing there."),
        ("{tmp}/none", DataError, "expected a run folder with run.json"),
        ("{tmp}/empty.csv", DataError, "empty.csv: expected a table, found none that can be read"),
        ("{tmp}/bare.csv", DataError, "bare.csv: expected a column run or method, found task, score."),
        ("{tmp}/where.csv", DataError, "where.csv: expected a column label"),
        ("{tmp}/words.csv", DataError, "expected columns task and score, or one column of numbers a task, found note."),
        ("{tmp}/twice.csv", DataError, "twice.csv: expected each column once, found score more than once."),
        ("{tmp}/x.json", UsageError, "expected [RUN/]LABEL=FILE"),
        ("after={tmp}/x.json", UsageError, "expected RUN/LABEL=FILE, found no run."),
        ("base={tmp}/x.json", DataError, "x.json: expected a results file of lm-evaluation-harness"),
        ("base={tmp}/bad.json", DataError, "bad.json: expected JSON, found none that can be read"),
        ("base={tmp}/nothing.json", DataError, "nothing.json: expected a score under 'results', found none."),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, argument, error, message):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bare.csv").write_text("task,score\na,1\n")
    (tmp_path / "where.csv").write_text("run,task,score\nr,a,1\n")
    (tmp_path / "words.csv").write_text("run,label,note\nr,base,good\n")
    (tmp_path / "twice.csv").write_text("run,label,task,score,accuracy\nr,base,a,1,2\n")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "nothing.json").write_text('{"results": {"a": {"alias": "a"}}}')
    with pytest.raises(error) as caught:
        read_scores([argument.replace("{tmp}", str(tmp_path))])
    assert message in str(caught.value)


def test_nothing_given():
    with pytest.raises(UsageError, match="No scores were given"):
        read_scores([])


def test_pairs_from_a_table_and_from_nothing(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text("left,right,mmd2\na,b,0.1\n")
    assert read_pairs(file)["mmd2"].tolist() == ["0.1"]
    with pytest.raises(DataError, match="expected a results folder of driftlab mmd or a table of pairs"):
        read_pairs(tmp_path / "d.txt")
