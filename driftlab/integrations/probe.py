"""The same prompts asked again and again: how far the policy moved from the start, and whether it repeats itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftlab.devices import exact_math, guest_thread
from driftlab.errors import UsageError
from driftlab.responses.artifacts import read_text
from driftlab.responses.estimates import over_prompts
from driftlab.responses.policy import token_drift


@dataclass(frozen=True)
class Look:
    """What one look at the model brought: logits at the start's responses, and fresh responses."""

    logits: list[Tensor]
    texts: list[str]


class Probe:
    """Prompts with the start's own responses to them and its logits there.

    The divergence is KL(start || now) of a whole response: an expectation over responses of the **start**, which are
    sampled once; at each position it is exact over the vocabulary (the Rao-Blackwellised estimate, arXiv 2504.10637).

    Parameters
    ----------
    model : PreTrainedModel
        At the start.
    tokenizer : PreTrainedTokenizerBase
    prompts : sequence of str
        User texts; rendered in the chat template where there is one.
    tokens : int
        Length budget of a response.
    seed : int
        Of all sampling. The random numbers of training are put back as they were.

    Raises
    ------
    UsageError
        If there is no tokenizer, or the budget is below 1.
    """

    def __init__(self, model: Any, tokenizer: Any, prompts: Sequence[str], tokens: int, seed: int) -> None:
        if tokens < 1:
            raise UsageError(f"probe_tokens: expected at least 1, found {tokens}.")
        if tokenizer is None or not hasattr(tokenizer, "decode"):
            raise UsageError("Probe prompts: expected a trainer with a tokenizer (processing_class), found none.")
        self.tokenizer = tokenizer
        self.tokens = tokens
        self.seed = seed
        self.prompts = list(prompts)
        self.ids = [_render(tokenizer, prompt) for prompt in prompts]
        with _looking(model):
            self.responses = [self._sample(model, ids, i) for i, ids in enumerate(self.ids)]
            self.start = self._logits(model)

    def look(self, model: Any) -> Look:
        """Ask the model as it is now; called between steps, the only part that training waits for."""
        with _looking(model):
            fresh = [self._sample(model, ids, i) for i, ids in enumerate(self.ids)]
            texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in fresh]
            return Look(self._logits(model), texts)

    def numbers(self, look: Look) -> dict[str, float]:
        """Return ``kl`` and ``repeat_rate`` with their standard errors over prompts; NaN for a single prompt's."""
        with guest_thread(), exact_math():
            sums = [
                float(token_drift(now, start, torch.tensor(ids)).kl_base_to_new.sum())
                for now, start, ids in zip(look.logits, self.start, self.responses, strict=True)
            ]
        repeated = [read_text(text).repeated for text in look.texts]
        names = [str(i) for i in range(len(self.prompts))]
        kl, rate = (over_prompts(np.array(values, dtype=float), names) for values in (sums, repeated))
        return {"kl": kl.value, "kl_se": kl.se, "repeat_rate": rate.value, "repeat_rate_se": rate.se}

    def _sample(self, model: Any, ids: list[int], number: int) -> list[int]:
        """Sample one response from the full distribution; it is the same for the same model, whenever it is asked."""
        device = next(model.parameters()).device
        prompt = torch.tensor([ids], device=device)
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            generators = torch.cuda if device.type == "cuda" else torch.default_generator
            generators.manual_seed(1_000_003 * self.seed + number)
            with _plain_generation(model, self.tokenizer, self.tokens):
                out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))
        return [int(token) for token in out[0, len(ids) :]]

    def _logits(self, model: Any) -> list[Tensor]:
        device = next(model.parameters()).device
        found = []
        for ids, response in zip(self.ids, self.responses, strict=True):
            row = torch.tensor([[*ids, *response]], device=device)
            logits = model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False).logits[0]
            found.append(logits[len(ids) - 1 : -1].float().cpu().clone())
        return found


def _render(tokenizer: Any, prompt: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None) is None:
        return [int(token) for token in tokenizer(prompt)["input_ids"]]
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


@contextmanager
def _looking(model: Any) -> Iterator[None]:
    """Look at the model without gradients and dropout, and leave every module in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _plain_generation(model: Any, tokenizer: Any, tokens: int) -> Iterator[None]:
    """Sample at temperature 1 from everything, whatever the model's own generation settings cut off."""
    from transformers import GenerationConfig

    kept = model.generation_config
    stops = getattr(kept, "eos_token_id", None) or tokenizer.eos_token_id
    pad = stops[0] if isinstance(stops, list) else stops
    settings: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        **settings, max_new_tokens=tokens, eos_token_id=stops, pad_token_id=pad, use_cache=True
    )
    try:
        yield
    finally:
        model.generation_config = kept
