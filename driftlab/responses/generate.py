"""Responses of one model to fixed prompts: sampled or greedy, each row's randomness its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftlab.errors import UsageError
from driftlab.training.language import Language
from driftlab.training.rollout import Response, sample, uniforms
from driftlab.training.tasks import Question


@dataclass(frozen=True)
class Asked:
    """One prompt of the fixed file.

    Attributes
    ----------
    id : str
        Stable: responses of two models are joined by it.
    prompt : str
        The user's text, without chat template.
    system, task : str
        Empty for none.
    """

    id: str
    prompt: str
    system: str = ""
    task: str = ""


@dataclass(frozen=True)
class Sampling:
    """How responses are made.

    Attributes
    ----------
    temperature : float
        0 takes the likeliest token; above 0 the full distribution is sampled, without top-k and top-p.
    max_new_tokens : int
        Length budget; a response that it ends is marked ``truncated``.
    seed : int
        With the id of a prompt it fixes every random number of its response.

    Raises
    ------
    UsageError
        If the temperature is negative or the budget below 1.
    """

    temperature: float = 1.0
    max_new_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"Temperature: expected 0 (greedy) or above, found {self.temperature}.")
        if self.max_new_tokens < 1:
            raise UsageError(f"Longest response: expected 1 token or more, found {self.max_new_tokens}.")


def render(language: Language, asked: Asked) -> list[int]:
    """Return the ids of a prompt, in the tokenizer's chat template where it has one."""
    return language.render(Question(asked.id, asked.prompt, "", system=asked.system)).ids


def respond(
    language: Language, prompts: Sequence[Asked], sampling: Sampling, rendered: Sequence[Sequence[int]] | None = None
) -> list[dict[str, Any]]:
    """Answer prompts in one batch.

    A row's random numbers depend on ``(seed, id)`` alone, so it does not matter which prompts share a batch beyond the
    rounding of the batched products.

    Parameters
    ----------
    language : Language
        From :func:`driftlab.training.language.load_language`.
    prompts : sequence of Asked
    sampling : Sampling
    rendered : sequence of sequences of int, optional
        Their ids, from :func:`render`.

    Returns
    -------
    list of dict
        ``id, task, prompt, response, truncated, tokens, prompt_tokens, reason``, one a prompt, in order. A prompt that
        does not fit the model's positions has no response, and a reason.
    """
    ids = rendered if rendered is not None else [render(language, asked) for asked in prompts]
    window = getattr(language.model.config.get_text_config(), "max_position_embeddings", None)
    fits = [window is None or len(row) + sampling.max_new_tokens <= window for row in ids]
    answers = iter(
        _answer(
            language,
            [row for row, fit in zip(ids, fits, strict=True) if fit],
            [asked.id for asked, fit in zip(prompts, fits, strict=True) if fit],
            sampling,
        )
    )
    rows = []
    for asked, tokens, fit in zip(prompts, ids, fits, strict=True):
        row: dict[str, Any] = {"id": asked.id, "task": asked.task, "prompt": asked.prompt}
        answer = next(answers) if fit else None
        row["response"] = language.response_text(answer.ids) if answer else ""
        row["truncated"] = answer.truncated if answer else None
        row["tokens"] = len(answer.ids) if answer else None
        row["prompt_tokens"] = len(tokens)
        row["reason"] = (
            ""
            if fit
            else f"the prompt's {len(tokens)} tokens and {sampling.max_new_tokens} new ones exceed the model's {window}"
        )
        rows.append(row)
    return rows


def _answer(
    language: Language, prompts: Sequence[Sequence[int]], names: Sequence[str], sampling: Sampling
) -> list[Response]:
    if not prompts:
        return []
    if sampling.temperature == 0:
        return _greedy(language, prompts, sampling.max_new_tokens)
    draws = torch.cat([uniforms(1, sampling.max_new_tokens, sampling.seed, "respond", name) for name in names])
    return sample(language, prompts, draws, sampling.temperature)


@torch.inference_mode()
def _greedy(language: Language, prompts: Sequence[Sequence[int]], budget: int) -> list[Response]:
    """Take the likeliest token each time, whatever penalties the folder's own generation settings ask for."""
    from transformers import GenerationConfig

    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), language.eos_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    plain = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=budget,
        eos_token_id=sorted(language.stop_ids),
        pad_token_id=language.eos_id,
        use_cache=True,
    )
    model, kept = language.model, language.model.generation_config
    model.generation_config = plain  # given as an argument, unset entries would be filled from the folder's own
    try:
        with language.precision():
            out = model.generate(input_ids=ids.to(language.device), attention_mask=mask.to(language.device))
    finally:
        model.generation_config = kept
    return [_until_stop(row, language.stop_ids) for row in out[:, width:].tolist()]


def _until_stop(ids: list[int], stops: frozenset[int]) -> Response:
    end = next((place for place, token in enumerate(ids) if token in stops), None)
    return Response(ids, True) if end is None else Response(ids[: end + 1], False)
