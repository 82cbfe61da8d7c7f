"""Two models on the same responses: are they comparable, and how do they differ at every token."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from driftlab.devices import exact_math
from driftlab.errors import CheckpointError
from driftlab.responses.answers import Answer
from driftlab.responses.policy import TokenDrift, join, token_drift
from driftlab.training.language import Language, head, response_hidden

_LOGITS = 2**24
"""Logits of one model that are in memory at a time: 64 MB."""


def require_same_vocabulary(new: Language, base: Language) -> None:
    """Refuse two models whose policies are not over the same responses to the same prompts.

    Raises
    ------
    CheckpointError
        If vocabulary, segmentation, chat template, stop tokens or the number of logits differ.
    """
    for what, ours, theirs in (
        ("vocabulary", new.tokenizer.get_vocab(), base.tokenizer.get_vocab()),
        ("tokenizer", _segmentation(new.tokenizer), _segmentation(base.tokenizer)),
        ("chat template", new.tokenizer.chat_template, base.tokenizer.chat_template),
        ("stop tokens", new.stop_ids, base.stop_ids),
        ("number of logits", _width(new), _width(base)),
    ):
        if ours != theirs:
            shown = f", {_size(theirs)} against {_size(ours)}" if _size(theirs) != _size(ours) else ""
            raise CheckpointError(
                f"Checkpoint and base: expected the same {what}, found two different ones{shown}.",
                "Policies can only be compared over one vocabulary.",
            )


def score(
    new: Language, base: Language, answers: Sequence[Answer], *, temperature: float, batch: int
) -> tuple[TokenDrift, NDArray[np.int64]]:
    """Compare two models at every token of the answers.

    Parameters
    ----------
    new, base : Language
        Of one vocabulary.
    answers : sequence of Answer
        With ids; none is empty.
    temperature : float
        That of the sampler.
    batch : int
        Answers a forward pass. Logits are made for response tokens only, and never more than 64 MB of them.

    Returns
    -------
    TokenDrift
        Over all tokens, answer after answer.
    array of shape (len(answers),)
        Tokens of each answer.
    """
    parts = []
    rows = max(1, _LOGITS // _width(base))
    models = (base,) if new is base else (new, base)  # the base beside itself needs one pass
    with exact_math():
        for start in range(0, len(answers), batch):
            part = answers[start : start + batch]
            contexts, responses = [a.context for a in part], [a.ids for a in part]
            states = [response_hidden(one, one.model, contexts, responses) for one in models]
            tokens = torch.tensor([token for ids in responses for token in ids], device=base.device)
            for at in range(0, len(tokens), rows):
                logits = [head(one.model, hidden[at : at + rows]) for one, hidden in zip(models, states, strict=True)]
                parts.append(token_drift(logits[0], logits[-1], tokens[at : at + rows], temperature=temperature))
    return join(parts), np.array([len(answer.ids) for answer in answers], dtype=np.int64)


def _width(language: Language) -> int:
    return int(language.model.get_output_embeddings().weight.shape[0])


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) else len(value) if isinstance(value, dict) else None


def _segmentation(tokenizer: Any) -> Any:
    """Return everything that decides how a text becomes ids; None where the tokenizer does not tell."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str())
    return {key: value for key, value in content.items() if key not in ("padding", "truncation", "version")}
