"""What a command line names becomes sequences with the right reference, in the right order."""

import json

import pytest

from driftlab.errors import DataError, UsageError
from driftlab.responses.sources import open_sequences, read_reference


def write(file, answers):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "".join(json.dumps({"id": k, "prompt": f"ask {k}", "response": v}) + "\n" for k, v in answers.items())
    )
    return str(file)


def run_folder(folder, labels=("base", "science@5", "math@50"), method="grpo", seed=0):
    for label in labels:
        write(folder / "responses" / f"{label}.jsonl", {"a": f"{label} {seed}"})
    (folder / "run.json").write_text(json.dumps({"method": method, "seed": seed, "config": {}}))
    order = ("base", "math@50", "science@5")
    (folder / "scores.jsonl").write_text("".join(json.dumps({"label": label}) + "\n" for label in order))
    return str(folder)


def text(answers):
    return answers.responses.table["response"][0]


def test_a_run_folder_has_its_own_base_and_its_order_of_training(tmp_path):
    (found,) = open_sequences([run_folder(tmp_path / "r", seed=3)])
    assert (found.run, found.method, found.seed) == ("grpo", "grpo", 3)
    assert text(found.reference) == "base 3"
    assert [(s.label, s.stage, s.step, s.order) for s in found.steps] == [
        ("math@50", "math", 50, 1),
        ("science@5", "science", 5, 2),
    ]
    assert [(a.label, b.label) for a, b in found.compared(True)] == [("base", "math@50"), ("math@50", "science@5")]


def test_globs_and_names_of_runs(tmp_path):
    for seed in (0, 1):
        run_folder(tmp_path / f"seed{seed}", seed=seed)
    assert [one.run for one in open_sequences([f"{tmp_path}/seed*"])] == ["grpo (seed0)", "grpo (seed1)"]
    assert open_sequences([f"mine={tmp_path}/seed1"])[0].run == "mine"


def test_the_first_file_is_the_reference_and_files_of_a_name_its_steps(tmp_path):
    for name in ("b", "g@1", "g@2", "s"):
        write(tmp_path / f"{name}.jsonl", {"a": name})
    found = open_sequences(
        [f"{tmp_path}/b.jsonl", f"grpo={tmp_path}/g@1.jsonl", f"grpo={tmp_path}/g@2.jsonl", f"{tmp_path}/s.jsonl"]
    )
    assert [(one.run, text(one.reference), [step.label for step in one.steps]) for one in found] == [
        ("grpo", "b", ["g@1", "g@2"]),
        ("s", "b", ["s"]),
    ]


def test_a_folder_of_verl_dumps_is_ordered_by_number(tmp_path):
    for step in (0, 5, 100, 20):
        (tmp_path / "val").mkdir(exist_ok=True)
        row = {"input": "q", "output": f"at {step}", "gts": "7", "score": 1.0, "step": step}
        (tmp_path / "val" / f"{step}.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = open_sequences([f"sdpo={tmp_path}/val"])
    assert text(found.reference) == "at 0"
    assert [(step.label, step.step) for step in found.steps] == [("5", 5), ("20", 20), ("100", 100)]
    base = write(tmp_path / "b.jsonl", {"a": "x"})
    assert [s.label for s in open_sequences([f"{tmp_path}/val"], base)[0].steps] == ["0", "5", "20", "100"]


def test_a_folder_of_lm_eval_samples_takes_the_newest_of_each_task(tmp_path):
    def samples(folder, task, date, answer):
        row = {"doc_id": 0, "arguments": [["q", {}]], "resps": [[answer]], "metrics": []}
        file = tmp_path / folder / "org__model" / f"samples_{task}_{date}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row) + "\n")

    samples("base", "gsm8k", "2025-01-01T00-00-00.0", "old")
    samples("base", "gsm8k", "2025-02-01T00-00-00.0", "new")
    samples("base", "mbpp", "2025-01-01T00-00-00.0", "code")
    samples("tuned", "gsm8k", "2025-01-01T00-00-00.0", "tuned")
    (found,) = open_sequences([f"{tmp_path}/base", f"{tmp_path}/tuned"])
    table = found.reference.responses.table
    assert dict(zip(table["key"], table["response"], strict=True)) == {"gsm8k/0": "new", "mbpp/0": "code"}
    other = tmp_path / "base" / "org__other"
    other.mkdir()
    (other / "samples_gsm8k.jsonl").write_text('{"doc_id": 0, "resps": [["x"]]}\n')
    with pytest.raises(DataError, match="expected the samples of one model, found org__model, org__other"):
        open_sequences([f"{tmp_path}/base", f"{tmp_path}/tuned"])


def test_a_base_for_everything_and_the_base_of_a_run_folder(tmp_path):
    folder = run_folder(tmp_path / "r")
    given = write(tmp_path / "b.jsonl", {"a": "given"})
    assert text(open_sequences([folder], given)[0].reference) == "given"
    assert read_reference(folder).table["response"][0] == "base 0"


def test_what_gives_nothing_to_compare_is_refused(tmp_path):
    file = write(tmp_path / "b.jsonl", {"a": "x"})
    with pytest.raises(UsageError, match=r"found only the reference.*BASE TUNED"):
        open_sequences([file])
    with pytest.raises(DataError, match=r"expected responses/base.jsonl, found math@50.*--base FILE"):
        open_sequences([run_folder(tmp_path / "r", labels=("math@50",))])
    with pytest.raises(DataError, match="expected a data file or folder, found nothing there"):
        open_sequences([file, str(tmp_path / "missing.jsonl")])
    with pytest.raises(UsageError, match="expected files of different names as its steps"):
        open_sequences([file, f"x={file}", f"x={file}"])
