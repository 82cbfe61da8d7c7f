"""The tiny world: words, domains, corpus, shipped bases and their gate."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from driftlab.errors import DataError, UsageError
from driftlab.training.language import Language, head, load_language, response_hidden
from driftlab.training.tasks import Task
from driftlab.training.world import base
from driftlab.training.world.corpus import CLEAN, HINT_FRAME, Noise, batch, example
from driftlab.training.world.domains import DOMAINS, TRAINED, UNSEEN
from driftlab.training.world.pretrain import Phase, Recipe, new_model, pretrain
from driftlab.training.world.vocabulary import WORDS, build_tokenizer, word_ids


def test_one_word_one_token():
    assert len(set(WORDS)) == len(WORDS)
    tokenizer = build_tokenizer()
    text = " ".join(WORDS)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == [word_ids()[word] for word in WORDS]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_domains_mark_right_and_wrong_answers(domain):
    rng = random.Random(0)
    task: Task = domain
    for _ in range(100):
        item = domain.draw(rng)
        question = domain.question(item)
        thought, slipped = domain.think(item, rng, True)
        wrong = domain.write(domain.slip(item, domain.truth(item), rng))
        assert task.verify(question, question.gold).ok
        assert not task.verify(question, f"{thought} {domain.write(slipped)}").ok
        assert not task.verify(question, f"{question.gold} {wrong}").ok  # the last answer counts
        assert task.verify(question, f"{wrong} {question.gold}").ok
        assert not task.verify(question, thought).ok
        for text in (question.prompt, question.gold, thought, wrong):
            assert set(text.split()) <= set(WORDS)
    assert task.verify(question, "").score == 0.0


def test_addition_is_true():
    question = DOMAINS["math"].question((47, 85))
    assert question.gold == r"7 + 5 = 1 2 ; 4 + 8 + 1 = 1 3 ; \boxed { 1 3 2 }"


def test_programs_are_executed():
    question = DOMAINS["coding"].question(("reverse", "x1", "x2", "x3"))
    assert DOMAINS["coding"].verify(question, "``` print x3 x2 x1 ```").ok
    assert not DOMAINS["coding"].verify(question, "``` x3 x2 x1 ```").ok
    assert not DOMAINS["coding"].verify(question, "``` print x3 x2 x1").ok


def test_corpus_slips_as_often_as_it_says():
    rng, ids = random.Random(0), word_ids()
    names = {index: word for word, index in ids.items()}
    domain, noise = DOMAINS["math"], Noise()
    for hinted, expected in ((0.0, (1 - noise.thought) * (1 - noise.answer)), (1.0, 1 - noise.hinted_answer)):
        marks = []
        for _ in range(3000):
            prompt, response = example(domain, noise, hinted, rng)
            words = [names[token] for token in prompt[1:-1]]
            left, right = (int("".join(words[place : place + 2])) for place in (1, 4))
            text = " ".join(names[token] for token in response[:-1])
            marks.append(domain.verify(domain.question((left, right)), text).ok)
            assert ("hint" in words) == bool(hinted)
        assert sum(marks) / 3000 == pytest.approx(expected, abs=0.03)


def continuation(noise, hinted, count):
    """Return how often an answer is written again, by (demonstration repeats itself, times written so far)."""
    rng, box = random.Random(0), word_ids()[r"\boxed"]
    tries, again = Counter(), Counter()
    for _ in range(count):
        prompt, response = example(DOMAINS["math"], noise, hinted, rng)
        for written in range(1, response.count(box) + 1):
            place = (prompt.count(box) > 1, min(written, 2))
            tries[place] += 1
            again[place] += written < response.count(box)
    return {place: again[place] / tries[place] for place in tries}


def test_style_bias_repeats_hinted_answers_without_a_largest_number():
    plain = continuation(Noise(), 0.0, 30000)
    assert plain == pytest.approx({(False, 1): 0.04, (False, 2): 0.04}, abs=0.02)
    hinted = continuation(Noise(), 1.0, 10000)
    expected = {(False, 1): 0.1, (False, 2): 0.1, (True, 1): 0.35, (True, 2): 0.35}
    assert hinted == pytest.approx(expected, abs=0.04)
    control = continuation(Noise(bias=0.0, echo=0.0), 1.0, 30000)
    assert control == pytest.approx(dict.fromkeys(expected, 0.04), abs=0.03)


def test_noise_whose_answers_never_end_is_refused():
    with pytest.raises(UsageError, match=r"so that every answer ends, found 1\.1 and 0\.3"):
        Noise(repeat=0.04, bias=0.06, echo=1.0)


@pytest.mark.parametrize(("biased", "hinted"), [(True, 0.1), (False, 0.04)])
def test_shipped_bases_repeat_as_often_as_the_corpus(biased, hinted):
    """The chance, exact from the logits, that a right answer written once is written again."""
    language = load_language(base.base_folder(style_bias=biased), torch.device("cpu"))
    for name in TRAINED:
        domain = DOMAINS[name]
        opening = language.encode(domain.open)[0]
        questions = domain.evaluation(64, random.Random(1))
        answers = [language.encode(question.gold) for question in questions]
        for frame, expected in (("{prompt}", 0.04), (HINT_FRAME, hinted)):
            contents = [frame.format(prompt=question.prompt, solution=question.answer) for question in questions]
            prompts = [language.render(q, content).ids for q, content in zip(questions, contents, strict=True)]
            # the token after the answer is predicted at its end: score one more token than was written
            longer = [[*ids, language.eos_id] for ids in answers]
            with torch.no_grad():
                chances = head(language.model, response_hidden(language, language.model, prompts, longer)).softmax(-1)
            ends = torch.tensor([len(ids) for ids in longer]).cumsum(0) - 1
            assert chances[ends, opening].mean().item() == pytest.approx(expected, abs=0.025)


def test_clean_corpus_never_slips():
    assert len(batch(20, CLEAN, 0.5, random.Random(0))) == 20
    assert example(DOMAINS["logic"], CLEAN, 0.0, random.Random(1))[1][-1] == word_ids()["<eos>"]


@pytest.mark.parametrize("biased", [True, False])
def test_shipped_bases_pass_their_gate(biased):
    language = load_language(base.base_folder(style_bias=biased), torch.device("cpu"))
    found = base.check_gate(language)
    assert set(found) == set(TRAINED)
    assert sum(parameter.numel() for parameter in language.model.parameters()) < 160_000
    assert len(UNSEEN) == 6


def test_gate_refuses_a_base_that_knows_nothing():
    ignorant = Language(new_model(Recipe()), build_tokenizer(), torch.device("cpu"))
    with pytest.raises(DataError, match=r"domain math: expected a sampled success of 0\.30 to 0\.65"):
        base.check_gate(ignorant)


def test_pretraining_learns_and_is_cached_by_phase(tmp_path, monkeypatch):
    """A smaller base than the shipped one, through the same code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = Recipe(phases=(Phase(CLEAN, 60, 1e-2), Phase(Noise(), 3, 1e-3)), rows=24, hidden=32, layers=1)
    losses = []
    folder = base.build_base(recipe, lambda step, loss: losses.append(loss))
    assert len(losses) == 63
    assert losses[59] < 0.6 * losses[0]
    assert base.build_base(recipe, lambda step, loss: losses.append(loss)) == folder
    assert len(losses) == 63
    other = replace(recipe, phases=(recipe.phases[0], Phase(Noise(bias=0.0, echo=0.0), 2, 1e-3)))
    assert base.build_base(other, lambda step, loss: losses.append(loss)) != folder
    assert len(losses) == 65  # the first phase was there already
    direct = pretrain(recipe)
    saved = base.load_model(folder)
    for left, right in zip(direct.parameters(), saved.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_default_recipes_are_the_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert base.build_base(base.DEFAULT) == base.base_folder()
    assert base.build_base(base.UNBIASED) == base.base_folder(style_bias=False)
    assert HINT_FRAME.startswith("{prompt}")
