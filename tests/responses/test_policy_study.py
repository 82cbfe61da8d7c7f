"""From run folders to tables: exact zeros, directions, resume, refusals."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from driftlab.errors import CheckpointError, DataError, UsageError
from driftlab.responses.answers import encode_stored, make_exam, read_answers, take
from driftlab.responses.policy_study import TABLES, Plan, describe, measure_policies
from driftlab.responses.policy_walks import LiveWalk
from driftlab.responses.scoring import require_same_vocabulary, score
from driftlab.responses.trails import open_trails, text_trails
from driftlab.results import ResultsDir
from driftlab.runlog import read_run
from driftlab.training.config import merge
from driftlab.training.language import load_language, response_hidden

CPU = torch.device("cpu")
PLAN = Plan(prompts=3, copies=2, tasks=("math", "science"))


def study(out, runs, plan=PLAN, *, resume=False, every=1):
    trails = open_trails([str(run) for run in runs], every=every) if plan.logits else text_trails(list(map(str, runs)))
    results = ResultsDir.create(out, command="policy", config=describe(trails, plan), tables=TABLES, resume=resume)
    return results, measure_policies(trails, plan, results)


@pytest.fixture(scope="module")
def studied(small_run, tmp_path_factory):
    return study(tmp_path_factory.mktemp("study") / "out", [small_run])


@pytest.fixture(scope="module")
def base(small_run):
    return load_language(small_run / "checkpoints/000000-base", CPU)


@pytest.fixture(scope="module")
def last(small_run):
    return load_language(small_run / "checkpoints/000004-science@2", CPU)


def test_one_row_a_checkpoint_and_task_and_one_of_all(studied):
    results, outcome = studied
    assert (outcome.ok, outcome.failed, outcome.notes) == (3, 0, [])
    drift = results.table("policy")
    assert list(drift["label"].unique()) == ["base", "math@2", "science@2"]
    assert list(drift["order"].unique()) == [0, 1, 2]
    assert drift.groupby("label", sort=False)["task"].agg(list).tolist() == [["math", "science", "all"]] * 3
    assert set(drift["n"]) == {6, 12}
    assert list(results.table("artifacts")[["label", "task"]].itertuples(index=False)) == list(
        drift[["label", "task"]].itertuples(index=False)
    )
    assert len(results.table("steps")) == 4


def test_the_base_has_not_moved_and_the_others_have(studied):
    drift = studied[0].table("policy").query("task == 'all'").set_index("label")
    zero = ["kl_new_to_base", "kl_base_to_new", "kl_new_to_base_k1", "kl_new_to_base_k3", "js", "excess_drift"]
    assert (drift.loc["base", zero] == 0).all()
    assert (drift.loc["science@2", ["kl_new_to_base", "kl_base_to_new", "js", "kl_new_to_base_k3"]] > 0).all()
    assert drift.loc["base", "entropy_new"] == drift.loc["base", "entropy_base_own"]
    assert (drift["estimator"] == "rao-blackwell").all()
    assert (drift["off_policy"] == "token_kl_base_to_new, entropy_base").all()


def test_all_tasks_are_the_mean_of_the_tasks(studied):
    rows = studied[0].table("policy").query("label == 'science@2'").set_index("task")
    for name in ("kl_new_to_base", "kl_base_to_new", "success", "kl_bernoulli"):
        each = rows.loc[["math", "science"], name]
        assert rows.loc["all", name] == pytest.approx(each.mean()), name


def test_the_numbers_are_those_of_a_plain_forward_pass(small_run, base, last):
    """A float64 loop over single responses without padding, chunks or hidden states."""
    exam = make_exam(merge(read_run(small_run).config), prompts=3, copies=2, only=["math"])
    answers = take(last, exam, batch=4)
    drift, lengths = score(last, base, answers, temperature=1.0, batch=4)
    expected = []
    for answer in answers:
        ids = torch.tensor([[*answer.context, *answer.ids]])
        with torch.no_grad():
            p, q = (
                one.model(input_ids=ids).logits[0, len(answer.context) - 1 : -1].double().log_softmax(-1)
                for one in (last, base)
            )
        expected.append((p.exp() * (p - q)).sum(-1).numpy())
    assert lengths.tolist() == [len(answer.ids) for answer in answers]
    np.testing.assert_allclose(drift.kl_new_to_base, np.concatenate(expected), rtol=2e-4, atol=1e-7)


def test_the_base_costs_one_pass_over_its_own_answers(small_run, base, monkeypatch):
    exam = make_exam(merge(read_run(small_run).config), prompts=3, copies=2, only=["math"])
    answers = take(base, exam, batch=100)
    passes = []

    def counted(language, model, contexts, responses):
        passes.append(len(contexts))
        return response_hidden(language, model, contexts, responses)

    monkeypatch.setattr("driftlab.responses.scoring.response_hidden", counted)
    drift, _ = score(base, base, answers, temperature=1.0, batch=100)
    assert passes == [6]
    assert not drift.kl_new_to_base.any()
    assert drift.entropy_new.all()
    (trail,) = open_trails([str(small_run)])
    LiveWalk(trail, Plan(prompts=3, copies=2, tasks=("math",)), CPU).rows(trail.stops[0])
    assert passes == [6, 6]


def test_batches_change_nothing(small_run, base, last):
    exam = make_exam(merge(read_run(small_run).config), prompts=3, copies=2, only=["science"])
    assert take(last, exam, batch=2) == take(last, exam, batch=100)
    answers = take(last, exam, batch=100)
    one, many = (score(last, base, answers, temperature=1.0, batch=batch)[0] for batch in (1, 100))
    np.testing.assert_allclose(one.kl_new_to_base, many.kl_new_to_base, rtol=1e-4, atol=1e-7)


def test_every_model_answers_the_run_s_own_questions_with_the_same_random_numbers(small_run, base):
    exam = make_exam(merge(read_run(small_run).config), prompts=6, copies=2)
    stored, _ = read_answers(small_run / "responses/base.jsonl")
    asked = {f"{task.name}/{i}": q.prompt for task, questions in exam.tasks for i, q in enumerate(questions)}
    rows = [json.loads(line) for line in (small_run / "responses/base.jsonl").read_text().splitlines()]
    assert {row["id"]: row["prompt"] for row in rows} == asked
    assert {answer.prompt for answer in stored} == set(asked)
    assert take(base, exam, 64) == take(base, exam, 64)


def test_resume_gives_the_same_tables(small_run, studied, tmp_path):
    out = tmp_path / "out"

    class KilledError(Exception):
        pass

    def kill(amount, what):
        if what.endswith("math@2"):
            raise KilledError

    trails = open_trails([str(small_run)])
    results = ResultsDir.create(out, command="policy", config=describe(trails, PLAN), tables=TABLES)
    with pytest.raises(KilledError):
        measure_policies(trails, PLAN, results, on_unit=kill)
    assert not results.has("policy")
    resumed, outcome = study(out, [small_run], resume=True)
    assert outcome.ok == 3
    for name in (*TABLES, "steps"):
        pd.testing.assert_frame_equal(resumed.table(name), studied[0].table(name))


def test_two_runs_and_every_second_checkpoint(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "again")
    results, _ = study(tmp_path / "out", [small_run, tmp_path / "again"], every=2)
    drift = results.table("policy").query("task == 'all'")
    assert list(drift["run"].unique()) == ["sdpo (small)", "sdpo (again)"]
    assert list(drift["label"]) == ["base", "science@2"] * 2
    halves = [drift[drift["run"] == run].drop(columns="run").reset_index(drop=True) for run in drift["run"].unique()]
    pd.testing.assert_frame_equal(*halves)


def test_steps_of_other_runs_stay(small_run, studied, tmp_path):
    other = ResultsDir.create(tmp_path / "out", command="forgetting", config={})
    other.write_table("steps", pd.DataFrame({"run": ["old", "sdpo"], "global_step": [7, 99]}))
    results, _ = study(tmp_path / "out", [small_run], resume=True)
    assert list(results.table("steps")["global_step"]) == [7, 1, 2, 3, 4]


def test_stored_responses_are_encoded_again_and_counted(small_run, base, tmp_path):
    exam = make_exam(merge(read_run(small_run).config), prompts=6, copies=1)
    stored, _ = read_answers(small_run / "responses/base.jsonl")
    kept, lost = encode_stored(base, exam, stored)
    assert (len(kept), lost) == (len(stored), 0)
    assert all((answer.ids[-1] == base.eos_id) != answer.truncated for answer in kept)
    odd = [*stored[:-1], type(stored[0])(**{**vars(stored[0]), "text": "a word that is  unknown"})]
    kept, lost = encode_stored(base, exam, odd)
    assert (len(kept), lost) == (len(stored) - 1, 1)
    results, _ = study(tmp_path / "out", [small_run], Plan(source="stored"))
    drift = results.table("policy").query("task == 'all'")
    assert (drift["source"] == "stored").all()
    assert set(drift["n"]) == {60}
    assert drift["excess_drift_prompt"].isna().all()


def test_a_task_the_base_did_not_answer_lacks_one_direction(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    file = run / "responses/base.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"task": "logic"' not in line))
    results, _ = study(tmp_path / "out", [run], Plan(source="stored", tasks=("math", "logic")))
    rows = results.table("policy").query("label == 'science@2'").set_index("task")
    assert rows.loc["logic", "kl_new_to_base"] >= 0
    assert rows.loc["logic", ["kl_base_to_new", "excess_drift", "success_base"]].isna().all()
    assert rows.loc["logic", "reason"].startswith("no responses of the base")
    assert rows.loc["math", "kl_base_to_new"] > 0
    assert rows.loc["all", "reason"] == "excess_drift: 1 of 2 tasks have no excess drift"


def test_artefacts_alone_need_no_weights(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "texts")
    shutil.rmtree(tmp_path / "texts/checkpoints")
    file = tmp_path / "texts/responses/math@2.jsonl"
    file.write_text(file.read_text() + '{"id": "math/9"\n')
    results, _ = study(tmp_path / "out", [tmp_path / "texts"], Plan(logits=False))
    found = results.table("artifacts")
    assert not results.has("policy")
    assert list(found.query("task == 'all'")["label"]) == ["base", "math@2", "science@2"]
    assert list(found.query("task == 'all'")["global_step"]) == [0, 2, 4]
    assert list(found.query("task == 'all'")["unreadable"]) == [0, 1, 0]
    assert set(found["status"]) == {"ok"}


def test_a_damaged_checkpoint_has_a_row_and_the_others_are_measured(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    weights = run / "checkpoints/000002-math@2/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    results, outcome = study(tmp_path / "out", [run])
    assert (outcome.ok, outcome.failed) == (2, 1)
    rows = results.table("policy").query("status == 'failed'")
    assert list(rows["label"]) == ["math@2"]
    assert "bytes" in rows["reason"].iloc[0]


def test_another_tokenizer_is_refused(small_run, tmp_path, base):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    file = run / "checkpoints/000004-science@2/tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["red"], vocabulary["blue"] = vocabulary["blue"], vocabulary["red"]
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="expected the same vocabulary, found two different ones"):
        require_same_vocabulary(load_language(file.parent, CPU), base)
    results, outcome = study(tmp_path / "out", [run])
    assert outcome.failed == 1
    assert "same vocabulary" in results.table("policy").query("status == 'failed'")["reason"].iloc[0]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("chat template", lambda one: setattr(one.tokenizer, "chat_template", "{{ messages }}")),
        ("stop tokens", lambda one: setattr(one, "stop_ids", frozenset({1, 2}))),
        ("number of logits", lambda one: one.model.resize_token_embeddings(200)),
    ],
)
def test_what_else_must_agree(small_run, base, what, change):
    other = load_language(small_run / "checkpoints/000004-science@2", CPU)
    change(other)
    with pytest.raises(CheckpointError, match=f"expected the same {what}, found two different ones"):
        require_same_vocabulary(other, base)


def test_bad_plans_are_named(small_run, tmp_path):
    with pytest.raises(UsageError, match="--responses 'greedy': expected generate or stored"):
        Plan(source="greedy")
    with pytest.raises(UsageError, match="copies: expected at least 1, found 0"):
        Plan(copies=0)
    with pytest.raises(UsageError, match="--task maths: expected one of math, science"):
        study(tmp_path / "out", [small_run], Plan(tasks=("maths",)))
    with pytest.raises(UsageError, match="No run was given"):
        open_trails([])


def test_foreign_checkpoints_need_questions_and_are_measured_with_them(small_run, tmp_path):
    for step, name in ((0, "000000-base"), (10, "000002-math@2")):
        target = tmp_path / "hf" / f"checkpoint-{step}"
        shutil.copytree(small_run / "checkpoints" / name, target)
        (target / "driftlab.json").unlink()
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(f'{{"prompt": "sum {i} + 1 ?", "answer": "{i + 1}"}}\n' for i in range(10)))
    with pytest.raises(UsageError, match="expected questions to ask, found none"):
        study(tmp_path / "a", [tmp_path / "hf"])
    plan = Plan(prompts=2, copies=2, questions=(f"sums={questions}::numeric",), max_new_tokens=12)
    results, outcome = study(tmp_path / "b", [tmp_path / "hf"], plan)
    assert (outcome.ok, outcome.failed) == (2, 0)
    assert set(results.table("policy")["task"]) == {"sums", "all"}
    assert not results.has("steps")


def test_nothing_that_can_be_measured_is_an_error(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/responses")
    with pytest.raises(DataError, match="None of 3 checkpoints could be measured"):
        study(tmp_path / "out", [tmp_path / "run"], Plan(source="stored"))
    (tmp_path / "x.jsonl").write_text("[1, 2]\n")
    with pytest.raises(DataError, match="expected JSON Lines with id, task and response"):
        read_answers(tmp_path / "x.jsonl")


def test_hidden_states_of_padded_rows_are_those_of_single_ones(last):
    """The scoring pass pads on the right: short rows must not see long ones."""
    contexts, responses = [[3, 8, 9, 4], [3, 10, 4]], [[11, 12, 1], [13, 14, 15, 16, 17, 1]]
    with torch.no_grad():
        both = response_hidden(last, last.model, contexts, responses)
        each = [response_hidden(last, last.model, [c], [r]) for c, r in zip(contexts, responses, strict=True)]
    torch.testing.assert_close(both, torch.cat(each), rtol=1e-4, atol=1e-5)
