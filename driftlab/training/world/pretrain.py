"""How a base model of the tiny world is made: recipe and training loop."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.training.world.corpus import CLEAN, Noise, batch
from driftlab.training.world.vocabulary import WORDS, word_ids

IGNORED = -100


@dataclass(frozen=True)
class Phase:
    """One stretch of pretraining: its noise, its length and its peak learning rate."""

    noise: Noise
    steps: int
    lr: float


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the base weights.

    First clean examples until the facts and procedures are known, then noisy ones: in one go, the noise hides the
    facts and they are never learnt.
    """

    phases: tuple[Phase, ...] = (Phase(CLEAN, 3000, 3e-3), Phase(Noise(), 1500, 1e-3))
    rows: int = 66
    hinted: float = 0.5
    hidden: int = 64
    layers: int = 3
    seed: int = 0
    corpus: int = 2  # raised whenever the same numbers make another corpus: a cached base would be out of date

    def digest(self) -> str:
        """Return a short hash of the recipe: the name of its cache entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def new_model(recipe: Recipe) -> Any:
    """Return an untrained Llama of the recipe's size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = word_ids()
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * 5 // 2,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=ids["<pad>"],
        eos_token_id=ids["<eos>"],
        bos_token_id=None,
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LlamaForCausalLM(config)


def pretrain(
    recipe: Recipe, on_step: Callable[[int, float], None] = lambda step, loss: None, *, start: Any = None
) -> Any:
    """Train a base model through the phases of a recipe; the default takes six to eight CPU minutes on one thread.

    Parameters
    ----------
    recipe : Recipe
        Data, sizes and phases.
    on_step : callable
        Gets the step in its phase and the loss in nats per response token.
    start : model, optional
        The model after all phases but the last; without it training begins with new weights.
    """
    model = (new_model(recipe) if start is None else start).train()
    for index, phase in list(enumerate(recipe.phases))[0 if start is None else -1 :]:
        rng = random.Random(recipe.seed + index)
        optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, weight_decay=0.01, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, phase.lr, total_steps=phase.steps + 1, pct_start=0.1, cycle_momentum=False
        )
        for step in range(1, phase.steps + 1):
            examples = sorted(batch(recipe.rows, phase.noise, recipe.hinted, rng), key=_length)
            tokens = sum(len(response) for _, response in examples)
            optimizer.zero_grad()
            loss = 0.0
            for start in range(0, recipe.rows, recipe.rows // 3):  # alike in length: little padding
                ids, labels = _collate(examples[start : start + recipe.rows // 3])
                logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
                part = nn.functional.cross_entropy(
                    logits, labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
                )
                (part / tokens).backward()  # type: ignore[no-untyped-call]
                loss += part.item() / tokens
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            on_step(step, loss)
    return model.eval()


def _length(example: tuple[list[int], list[int]]) -> int:
    return len(example[0]) + len(example[1])


def _collate(examples: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Right-pad examples; only response tokens are labels. Causal attention never sees the padding behind."""
    width = max(len(prompt) + len(response) for prompt, response in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    labels = torch.full((len(examples), width), IGNORED)
    for row, (prompt, response) in enumerate(examples):
        ids[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        labels[row, len(prompt) : len(prompt) + len(response)] = torch.tensor(response)
    return ids, labels
