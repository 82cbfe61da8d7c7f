"""Responses of the shipped tiny base: greedy against a loop without cache and padding, sampled without a batch."""

import json
from pathlib import Path

import pytest
import torch

from driftlab.errors import CheckpointError, DataError, UsageError
from driftlab.responses.generate import Asked, Sampling, render, respond
from driftlab.responses.respond import answer_all, describe, name_models, read_prompts
from driftlab.results import ResultsDir
from driftlab.training.language import load_language
from driftlab.training.world.base import base_folder

torch.set_num_threads(1)
TEXTS = ("add 9 6 + 2 7 ?", "reverse", "add 1 7 + 4 4 ?", "add 5 1 + 4 6 ?", "logic ?")
PROMPTS = [Asked(f"p{i}", text, task="math" if "add" in text else "") for i, text in enumerate(TEXTS)]
GREEDY, SAMPLED = Sampling(temperature=0, max_new_tokens=12), Sampling(1.0, 12, 5)


@pytest.fixture(scope="module")
def language():
    return load_language(base_folder(), torch.device("cpu"))


@torch.no_grad()
def naive(language, asked, budget):
    """The likeliest token each time: one prompt, no padding, no cache."""
    ids = render(language, asked)
    new = []
    while len(new) < budget and not (new and new[-1] in language.stop_ids):
        new.append(int(language.model(input_ids=torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


def test_greedy_is_the_naive_loop_for_every_row_of_a_padded_batch(language):
    rows = respond(language, PROMPTS, GREEDY)
    for asked, row in zip(PROMPTS, rows, strict=True):
        expected = naive(language, asked, 12)
        assert row["response"] == language.response_text(expected)
        assert row["tokens"] == len(expected)
        assert row["truncated"] == (expected[-1] not in language.stop_ids)
    assert [row["id"] for row in rows] == ["p0", "p1", "p2", "p3", "p4"]
    assert rows[0]["task"] == "math"


def test_settings_of_the_folder_do_not_enter(language):
    before = respond(language, PROMPTS, GREEDY)
    kept = language.model.generation_config
    language.model.generation_config = type(kept)(repetition_penalty=5.0, max_length=3, do_sample=True, top_k=1)
    try:
        assert respond(language, PROMPTS, GREEDY) == before
        assert language.model.generation_config.repetition_penalty == 5.0
    finally:
        language.model.generation_config = kept


def test_a_row_depends_on_seed_and_id_and_not_on_its_batch(language):
    together = respond(language, PROMPTS, SAMPLED)
    alone = [respond(language, [asked], SAMPLED)[0] for asked in reversed(PROMPTS)][::-1]
    assert alone == together
    renamed = respond(language, [Asked(f"other {a.id}", a.prompt, task=a.task) for a in PROMPTS], SAMPLED)
    reseeded = respond(language, PROMPTS, Sampling(1.0, 12, 6))
    for other in (renamed, reseeded):
        assert [row["response"] for row in other] != [row["response"] for row in together]


def test_a_prompt_beyond_the_window_has_a_reason_and_the_others_answers(language):
    window = language.model.config.max_position_embeddings
    rows = respond(language, [Asked("long", "add 1 " * window), PROMPTS[0]], GREEDY)
    assert (rows[0]["response"], rows[0]["tokens"], rows[0]["truncated"]) == ("", None, None)
    assert f"exceed the model's {window}" in rows[0]["reason"]
    assert rows[1] == respond(language, [PROMPTS[0]], GREEDY)[0]
    assert respond(language, [Asked("long", "add 1 " * window)], GREEDY)[0]["response"] == ""


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": float("nan")}, {"max_new_tokens": 0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(UsageError, match="expected"):
        Sampling(**bad)


def store(tmp_path, resume=False, force=False):
    return ResultsDir.create(
        tmp_path / "out", command="respond", config={}, tables=("responses",), resume=resume, force=force
    )


def test_a_folder_of_answers_survives_a_kill(tmp_path, monkeypatch):
    models = [("base", base_folder()), ("again", base_folder())]
    done = []
    whole = answer_all(models, PROMPTS, SAMPLED, store(tmp_path), batch=2, advance=lambda n, name: done.append(n))
    assert sum(done) == 10
    assert whole["model"].tolist() == ["base"] * 5 + ["again"] * 5
    assert whole["id"].tolist() == [asked.id for asked in PROMPTS] * 2
    assert whole["response"][:5].tolist() == whole["response"][5:].tolist()
    files = {name: (tmp_path / "out" / "responses" / f"{name}.jsonl").read_text() for name, _ in models}
    row = json.loads(files["base"].splitlines()[0])
    assert row == {
        "id": "p0", "task": "math", "prompt": TEXTS[0], "response": whole["response"][0], "reason": "",
        "truncated": bool(whole["truncated"][0]), "tokens": whole["tokens"][0], "prompt_tokens": 9,
    }  # fmt: skip
    next((tmp_path / "out" / "responses").glob("part-again*")).unlink()
    loaded = []
    monkeypatch.setattr(
        "driftlab.responses.respond.load_language",
        lambda *a, **k: loaded.append(a[0]) or load_language(*a, **k),
    )
    again = answer_all(models, PROMPTS, SAMPLED, store(tmp_path, resume=True), batch=2)
    assert again.equals(whole)
    assert len(loaded) == 1  # the model whose batch was missing
    assert (tmp_path / "out" / "responses" / "again.jsonl").read_text() == files["again"]
    answer_all(models[:1], PROMPTS, SAMPLED, store(tmp_path, force=True), batch=2)
    assert not (tmp_path / "out" / "responses" / "again.jsonl").exists()


def test_models_that_are_none_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a local folder with config\.json"):
        answer_all([("x", tmp_path / "none")], PROMPTS, GREEDY, store(tmp_path))
    with pytest.raises(UsageError, match="Two models are called 'm'"):
        name_models(["a/m", "b/m"])


def test_what_a_resume_compares(tmp_path):
    one = describe([("base", base_folder())], PROMPTS, GREEDY)
    assert one != describe([("base", base_folder())], PROMPTS[:4], GREEDY)
    assert one != describe([("base", base_folder())], PROMPTS, SAMPLED)
    assert one == json.loads(json.dumps(describe([("base", Path(base_folder()))], PROMPTS, GREEDY)))


def test_prompts_are_read_with_system_and_task(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"id": 1, "prompt": "Why?", "system": "Be brief.", "task": "t"},
        {"id": 2, "prompt": "How?", "system": None},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_prompts(file) == [Asked("1", "Why?", "Be brief.", "t"), Asked("2", "How?")]
    assert len(read_prompts(file, 1)) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "x"}, {"prompt": "y"}], "expected columns id and prompt, found prompt"),
        ([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}], "expected an id once, found 'a' 2 times"),
        ([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": " "}], "row 1 has no prompt"),
    ],
)
def test_prompts_that_cannot_be_used_are_named(tmp_path, rows, message):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=message):
        read_prompts(tmp_path / "p.jsonl")
