"""Sampling and scoring against slow oracles: one row, one token at a time, no padding, no cache."""

import copy

import pytest
import torch

from driftlab.errors import CheckpointError, UsageError
from driftlab.training import objectives
from driftlab.training.cache import new_cache
from driftlab.training.language import Language, head, load_language, plain_weights, response_hidden, save_language
from driftlab.training.rollout import sample, uniforms
from driftlab.training.tasks import Question
from driftlab.training.world.domains import DOMAINS
from driftlab.training.world.vocabulary import build_tokenizer, word_ids


def prompts_of_unequal_length(language, count=6):
    import random

    rng = random.Random(0)
    names = ["math", "tooluse", "science", "coding", "logic", "knowledge"]
    return [language.render(DOMAINS[name].sample(1, rng)[0]).ids for name in names[:count]]


def slow_sample(language, prompt, draws, temperature):
    """Sample one response from the whole sequence at every token, in plain Python."""
    ids = []
    for draw in draws.tolist():
        logits = language.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, -1].double()
        chances = (logits / temperature).softmax(-1).tolist()
        total, token = 0.0, 0
        for token, chance in enumerate(chances):  # noqa: B007
            total += chance
            if total > draw:
                break
        ids.append(token)
        if token in language.stop_ids:
            return ids, False
    return ids, True


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampling_equals_the_slow_oracle(language, temperature):
    prompts = prompts_of_unequal_length(language)
    draws = uniforms(len(prompts), 26, 3, "test")
    found = sample(language, prompts, draws, temperature)
    with torch.no_grad():
        expected = [slow_sample(language, p, d, temperature) for p, d in zip(prompts, draws, strict=True)]
    assert [(response.ids, response.truncated) for response in found] == expected
    assert {response.truncated for response in found} == {False}


def test_responses_do_not_depend_on_the_batch(language):
    unequal = prompts_of_unequal_length(language)
    prompts = [prompt for prompt in unequal for _ in range(3)]
    draws = uniforms(len(prompts), 26, 4, "test")
    whole = sample(language, prompts, draws, 1.0)
    assert sample(language, unequal, draws, 1.0, copies=3) == whole
    assert sample(language, unequal, draws, 1.0, copies=3, rows=7) == whole
    assert sample(language, prompts, draws, 1.0, rows=4) == whole
    turned = sample(language, prompts[::-1], draws.flip(0), 1.0)
    assert turned[::-1] == whole
    assert len({len(response.ids) for response in whole}) > 3  # rows really end at different times


def test_length_budget_truncates_and_says_so(language):
    prompts = prompts_of_unequal_length(language)
    found = sample(language, prompts, uniforms(len(prompts), 5, 0, "test"), 1.0)
    assert [(len(response.ids), response.truncated) for response in found] == [(5, True)] * len(prompts)


def test_sampled_frequencies_follow_the_model(language):
    prompt = prompts_of_unequal_length(language, 1)[0]
    with torch.no_grad():
        chances = language.model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    found = sample(language, [prompt] * 4000, uniforms(4000, 1, 0, "test"), 1.0)
    counts = torch.bincount(torch.tensor([response.ids[0] for response in found]), minlength=len(chances))
    # Total variation of 4000 draws from this distribution: below 0.03 with overwhelming probability.
    assert (counts / 4000 - chances).abs().sum() / 2 < 0.03


def test_scoring_equals_one_row_at_a_time(language):
    prompts = prompts_of_unequal_length(language)
    responses = [response.ids for response in sample(language, prompts, uniforms(6, 26, 1, "test"), 1.0)]
    hidden = response_hidden(language, language.model, prompts, responses)
    tokens = torch.tensor([token for ids in responses for token in ids])
    found = objectives.gather(objectives.log_softmax(head(language.model, hidden), 0.8), tokens).tolist()
    expected = []
    with torch.no_grad():
        for prompt, response in zip(prompts, responses, strict=True):
            logits = language.model(input_ids=torch.tensor([prompt + response])).logits[0].double() / 0.8
            table = logits.log_softmax(-1)
            expected += [table[len(prompt) + place - 1, token].item() for place, token in enumerate(response)]
    assert found == pytest.approx(expected, abs=2e-5)


def shared_and_apart(language):
    """Return hidden states and gradients of responses to shared prompts, the prompts read once and read each time."""
    prompts = [prompt for prompt in prompts_of_unequal_length(language) for _ in range(3)]
    draws = uniforms(len(prompts), 26, 2, "test")
    responses = [response.ids for response in sample(language, prompts, draws, 1.0)]
    responses[4] = responses[4][:1]  # nothing follows its prompt but what the prompt predicts
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0)).tolist()
    prompts, responses = [prompts[row] for row in order], [responses[row] for row in order]
    found = []
    for shared in (True, False):
        language.shares = shared
        language.model.zero_grad()
        hidden = response_hidden(language, language.model, prompts, responses)
        assert len(hidden) == sum(map(len, responses))
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        found.append((hidden.detach(), torch.cat([p.grad.flatten() for p in language.model.parameters()])))
    return found


def test_prompts_read_once_give_the_same_states_and_gradients(language):
    assert language.shares
    (shared, gradient), (apart, expected) = shared_and_apart(language)
    torch.testing.assert_close(shared, apart, atol=1e-4, rtol=1e-4)
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


def test_only_first_tokens_need_no_second_pass(language):
    prompts = [prompt for prompt in prompts_of_unequal_length(language, 2) for _ in range(2)]
    hidden = response_hidden(language, language.model, prompts, [[5]] * 4)
    assert torch.equal(hidden[0], hidden[1])
    alone = response_hidden(language, language.model, prompts[2:3], [[5]])
    torch.testing.assert_close(hidden[2:3], alone, atol=1e-5, rtol=1e-5)


def sliding(vocabulary):
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(
        MistralConfig(
            vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, sliding_window=4, eos_token_id=1,
        )
    )  # fmt: skip


def biased_by_distance(vocabulary):
    """ALiBi on columns: padding between a prompt and its response would count as distance."""
    from transformers import MptConfig, MptForCausalLM

    return MptForCausalLM(MptConfig(d_model=16, n_heads=2, n_layers=1, max_seq_len=64, vocab_size=vocabulary))


@pytest.mark.parametrize("make", [sliding, biased_by_distance])
def test_prompts_are_read_each_time_where_that_differs(language, make):
    torch.manual_seed(0)
    other = Language(make(len(word_ids())), build_tokenizer(), language.device)
    assert not other.shares
    prompts = [[2, 3, 4, 5, 6, 7, 8, 9]] * 2 + [[2, 3]]
    responses = [response.ids for response in sample(other, prompts, uniforms(3, 20, 0, "test"), 1.0)]
    hidden = response_hidden(other, other.model, prompts, responses)
    each = [response_hidden(other, other.model, [p], [r]) for p, r in zip(prompts, responses, strict=True)]
    torch.testing.assert_close(hidden, torch.cat(each), atol=1e-5, rtol=1e-4)


def test_cache_written_in_place_samples_the_same(language, monkeypatch):
    """Three kinds of memory: concatenated, written in place from the first token, grown again and again."""
    prompts = prompts_of_unequal_length(language)
    draws = uniforms(18, 26, 6, "test")
    whole = sample(language, prompts, draws, 1.0, copies=3)
    monkeypatch.setattr("driftlab.training.cache._SMALL", 0)
    assert sample(language, prompts, draws, 1.0, copies=3) == whole
    monkeypatch.setattr("driftlab.training.cache._ROOM", 3)
    assert sample(language, prompts, draws, 1.0, copies=3) == whole
    monkeypatch.setattr("driftlab.training.rollout.growing_cache", new_cache)
    assert sample(language, prompts, draws, 1.0, copies=3) == whole


def test_padding_that_equals_the_end_token_changes_nothing(language):
    """Many models pad with their end token: nothing here may look at the value of a padding token."""
    prompts = prompts_of_unequal_length(language)
    draws = uniforms(6, 26, 5, "test")
    before = sample(language, prompts, draws, 1.0)
    language.tokenizer = copy.deepcopy(language.tokenizer)
    language.tokenizer.pad_token = language.tokenizer.eos_token
    language.model.config.pad_token_id = language.eos_id
    assert sample(language, prompts, draws, 1.0) == before


def test_all_stop_ids_of_the_generation_config_count(language):
    model = copy.deepcopy(language.model)
    model.generation_config.eos_token_id = [word_ids()["}"], word_ids()["<eos>"]]
    other = Language(model, language.tokenizer, language.device)
    assert other.stop_ids == {word_ids()["}"], word_ids()["<eos>"]}
    found = sample(other, prompts_of_unequal_length(other, 1), uniforms(1, 40, 0, "test"), 1.0)[0]
    assert found.ids[-1] == word_ids()["}"]
    assert not found.truncated


def test_template_is_rendered_once_and_with_its_generation_prompt(language):
    question = Question("q", "add 1 2 + 3 4 ?", "4 6")
    prompt = language.render(question)
    assert prompt.text == "<user> add 1 2 + 3 4 ? <assistant>"
    assert prompt.ids.count(word_ids()["<user>"]) == 1
    assert language.decode(prompt.ids) == prompt.text


def test_one_opening_token_only(language):
    """A template that writes the opening token, and a tokenizer that would add another."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = build_tokenizer()
    tokenizer.bos_token = "<unk>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", word_ids()["<unk>"])]
    )
    tokenizer.chat_template = "<unk> " + tokenizer.chat_template
    language.tokenizer = tokenizer
    assert tokenizer("add")["input_ids"][0] == word_ids()["<unk>"]
    assert language.render(Question("q", "add 1 + 2 ?", "3")).ids.count(word_ids()["<unk>"]) == 1


def test_plain_text_without_a_template(language):
    language.tokenizer = copy.deepcopy(language.tokenizer)
    language.tokenizer.chat_template = None
    assert language.render(Question("q", "add 1 + 2 ?", "3", system="sum")).text == "sum\n\nadd 1 + 2 ?"


def test_saved_model_reloads_to_equal_logits_and_ties_are_saved_once(language, tmp_path):
    from safetensors import safe_open

    save_language(language.model, language.tokenizer, tmp_path, torch.float32)
    again = load_language(tmp_path, torch.device("cpu"))
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(again.model(input_ids=ids).logits, language.model(input_ids=ids).logits)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    assert again.tokenizer.chat_template == language.tokenizer.chat_template


def test_lora_is_saved_merged_under_plain_names(tmp_path):
    pytest.importorskip("peft")
    from driftlab.training.world.base import base_folder

    adapted = load_language(base_folder(), torch.device("cpu"), lora_rank=3)
    generator = torch.Generator().manual_seed(0)
    trained = [parameter for parameter in adapted.model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    assert all(".lora_" in name for name, parameter in adapted.model.named_parameters() if parameter.requires_grad)
    assert sum(parameter.numel() for parameter in trained) < 40_000
    save_language(adapted.model, adapted.tokenizer, tmp_path, torch.float32)
    plain = load_language(tmp_path, torch.device("cpu"))
    base = load_language(base_folder(), torch.device("cpu"))
    assert set(plain_weights(plain.model)) == set(plain_weights(base.model))
    ids = torch.arange(12)[None]
    with torch.no_grad():
        merged, live = plain.model(input_ids=ids).logits, adapted.model(input_ids=ids).logits
        torch.testing.assert_close(merged, live, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(live, base.model(input_ids=ids).logits, atol=0.1)


def test_dropout_is_off_and_weights_are_float32(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=170, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=1, bos_token_id=1)
    language = Language(GPT2LMHeadModel(config).bfloat16(), build_tokenizer(), torch.device("cpu"))
    assert {parameter.dtype for parameter in language.model.parameters()} == {torch.float32}
    language.model.train()
    ids = torch.arange(9)[None]
    assert torch.equal(language.model(input_ids=ids).logits, language.model(input_ids=ids).logits)


def test_no_end_token_is_refused(language):
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    model = copy.deepcopy(language.model)
    model.generation_config.eos_token_id = None
    with pytest.raises(UsageError, match="end-of-sequence token, found none"):
        Language(model, tokenizer, torch.device("cpu"))


def test_logits_that_are_more_than_the_output_layer_are_refused():
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=170, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logit_scale=0.1, eos_token_id=1, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    with pytest.raises(UsageError, match="soft cap or a scale"):
        Language(CohereForCausalLM(config), build_tokenizer(), torch.device("cpu"))


def test_missing_folder_and_temperature_zero(language, tmp_path):
    with pytest.raises(CheckpointError, match="expected a local folder"):
        load_language(tmp_path / "nowhere", torch.device("cpu"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="expected a causal language model"):
        load_language(tmp_path, torch.device("cpu"))
    with pytest.raises(UsageError, match="above 0, found 0"):
        sample(language, [[2]], uniforms(1, 3, 0), 0.0)
