"""How responses are sampled: one loop over tokens with the key-value cache on, every random number given."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftlab.errors import UsageError
from driftlab.training.cache import cache_argument, growing_cache
from driftlab.training.language import Language, backbone, head, read


@dataclass(frozen=True)
class Response:
    """Sampled ids up to and including the first stop token, and whether the length budget ended them instead."""

    ids: list[int]
    truncated: bool


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a seed for one purpose at one moment.

    No generator lives longer than what it is made for, so there is no state to save: a resumed run, another number of
    processes and a run with evaluations in between all draw the same numbers.

    Examples
    --------
    >>> derived_seed(0, "rollout", 3) == derived_seed(0, "rollout", 3) != derived_seed(0, "rollout", 4)
    True
    """
    text = repr((seed, *purpose)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def python_rng(seed: int, *purpose: str | int) -> random.Random:
    """Return a Python generator for one purpose."""
    return random.Random(derived_seed(seed, *purpose))


def uniforms(rows: int, width: int, seed: int, *purpose: str | int) -> Tensor:
    """Return the (rows, width) random numbers in [0, 1) that decide ``rows`` responses, the same on every device."""
    generator = torch.Generator().manual_seed(derived_seed(seed, *purpose))
    return torch.rand(rows, width, generator=generator)


def sample(
    language: Language,
    prompts: Sequence[Sequence[int]],
    draws: Tensor,
    temperature: float,
    *,
    copies: int = 1,
    rows: int = 0,
) -> list[Response]:
    """Sample ``copies`` responses to each prompt from the full distribution at ``temperature``.

    Parameters
    ----------
    language : Language
        The model that answers.
    prompts : sequence of sequences of int
        Rendered prompts.
    draws : Tensor of shape (len(prompts) * copies, max_new_tokens)
        Uniform numbers. Token t of response i depends on ``draws[i, t]`` and on its prompt alone, so the responses do
        not depend on which of them share a batch.
    temperature : float
        Above 0; the same in sampling and in every scoring pass. There is no top-k and no top-p.
    copies : int
        Responses to each prompt; they stand together in the result. A prompt is read once for all of them.
    rows : int
        At most so many responses at a time, but no fewer than ``copies``; 0 for all at once.

    Raises
    ------
    UsageError
        If the temperature is not above 0.
    """
    if not temperature > 0:
        raise UsageError(f"Temperature: expected a number above 0, found {temperature}.", "Use --temperature 1.")
    step = max(rows // copies, 1) if rows else len(prompts)
    responses: list[Response] = []
    # What inference mode makes may not be written to outside it, and sharded weights are put together in place.
    with torch.no_grad() if language.ranks.sharded else torch.inference_mode():
        for start in range(0, len(prompts), step):
            part = draws[start * copies : (start + step) * copies]
            responses += _sample(language, prompts[start : start + step], part, temperature, copies)
    return responses


def _sample(
    language: Language, prompts: Sequence[Sequence[int]], draws: Tensor, temperature: float, copies: int
) -> list[Response]:
    model, device = language.model, language.device
    ids, mask = (x.to(device) for x in _left_pad(prompts))
    draws = draws.to(device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    width = mask.shape[1]
    mask = torch.cat([mask, mask.new_ones(len(mask), draws.shape[1])], 1)
    stops = torch.tensor(sorted(language.stop_ids), device=device)
    argument, cache = cache_argument(backbone(model)), growing_cache(model)
    out: list[list[int]] = [[] for _ in range(len(draws))]
    finished = [False] * len(draws)
    alive = torch.arange(len(draws), device=device)  # which response each row of the batch belongs to
    open_rows = torch.ones(len(draws), dtype=torch.bool, device=device)
    for step in range(draws.shape[1]):
        with language.precision():
            hidden = read(
                model, input_ids=ids, attention_mask=mask[:, : width + step], position_ids=positions, use_cache=True,
                **{argument: cache},
            )[:, -1]  # fmt: skip
        if step == 0 and copies > 1:  # the prompt has been read once: from here on every response has its own row
            cache.batch_repeat_interleave(copies)
            hidden, positions, mask = (x.repeat_interleave(copies, 0) for x in (hidden, positions, mask))
        tokens = _inverse_cdf(head(model, hidden) / temperature, draws[alive, step])
        stopped = torch.isin(tokens, stops)
        for place, token, stop in zip(alive.tolist(), tokens.tolist(), stopped.tolist(), strict=True):
            if not finished[place]:
                out[place].append(token)
                finished[place] = stop
        open_rows = open_rows & ~stopped
        left = int(open_rows.sum())
        if not language.ranks.most(left):
            break
        ids, positions = tokens[:, None], positions[:, -1:] + 1
        if 0 < left <= 0.8 * len(alive):  # enough answers are complete to be worth the copy
            keep = open_rows.nonzero()[:, 0]
            cache.batch_select_indices(keep)
            ids, positions, mask, alive = ids[keep], positions[keep], mask[keep], alive[keep]
            open_rows = open_rows[keep]
    return [Response(tokens, not done) for tokens, done in zip(out, finished, strict=True)]


def _inverse_cdf(logits: Tensor, draw: Tensor) -> Tensor:
    """Return for each row the first token whose cumulative probability exceeds its uniform number."""
    cumulative = logits.softmax(-1).cumsum(-1)
    # The sum may miss 1 by rounding: scale the draw instead of falling off the end.
    tokens = torch.searchsorted(cumulative, draw[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return tokens.clamp(max=logits.shape[-1] - 1)


def _left_pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask of rows that end together."""
    width = max(len(row) for row in rows)
    return (
        torch.tensor([[0] * (width - len(row)) + list(row) for row in rows]),
        torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    )
