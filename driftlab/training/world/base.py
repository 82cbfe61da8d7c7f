"""Base models of the tiny world: shipped with the package, rebuilt by a command, cached by recipe, gated.

``python -m driftlab.training.world.base FOLDER [--unbiased]`` rebuilds what is shipped: six to eight CPU minutes.
"""

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from driftlab.errors import DataError
from driftlab.training.language import Language, load_language, save_language
from driftlab.training.rollout import python_rng, sample, uniforms
from driftlab.training.world.corpus import HINT_FRAME, Noise
from driftlab.training.world.domains import DOMAINS, TRAINED, Domain
from driftlab.training.world.pretrain import Recipe, pretrain
from driftlab.training.world.vocabulary import build_tokenizer

DEFAULT = Recipe()
# The control of the collapse study: the same world without the style bias of hinted answers.
UNBIASED = replace(DEFAULT, phases=(DEFAULT.phases[0], replace(DEFAULT.phases[1], noise=Noise(bias=0.0, echo=0.0))))
_SHIPPED = {DEFAULT.digest(): True, UNBIASED.digest(): False}


@dataclass(frozen=True)
class Readiness:
    """How often a base answers rightly, sampled at temperature 1, without and with a demonstration of the answer."""

    plain: float
    hinted: float

    @property
    def ok(self) -> bool:
        """Whether there is something to sharpen and the model can teach it to itself."""
        return 0.3 <= self.plain <= 0.65 and self.hinted >= max(0.8, self.plain + 0.25)


def base_folder(*, style_bias: bool = True) -> Path:
    """Return the folder of a shipped base model: an ordinary Hugging Face folder, weights in float16."""
    return Path(__file__).parent / "weights" / ("biased" if style_bias else "unbiased")


def build_base(recipe: Recipe, on_step: Callable[[int, float], None] = lambda step, loss: None) -> Path:
    """Return the folder of a recipe's base model: shipped, or in the user's cache, or trained now.

    The model after each phase is cached too, so recipes that begin alike share the beginning.
    """
    if recipe.digest() in _SHIPPED:
        return base_folder(style_bias=_SHIPPED[recipe.digest()])
    model = None
    for count in range(1, len(recipe.phases) + 1):
        part = replace(recipe, phases=recipe.phases[:count])
        folder = _cache() / part.digest()
        if folder.is_dir():
            model = None
        else:
            start = model or (load_model(_cache() / replace(recipe, phases=recipe.phases[: count - 1]).digest())
                              if count > 1 else None)  # fmt: skip
            model = pretrain(part, on_step, start=start)
            save_base(model, folder)
    return folder


def load_model(folder: Path) -> Any:
    """Return the model of a base folder in float32."""
    return load_language(folder, torch.device("cpu")).model


def save_base(model: Any, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a base model and its tokenizer as a Hugging Face folder, at once."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_language(model, build_tokenizer(), temporary, dtype)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def readiness(language: Language, domain: Domain, count: int = 128, seed: int = 0) -> Readiness:
    """Measure how ready a base is to learn one domain by itself."""
    questions = domain.evaluation(count, python_rng(seed, "gate", domain.name))
    rates = []
    for hinted in (False, True):
        prompts = [
            language.render(question, HINT_FRAME.format(prompt=question.prompt, solution=question.answer))
            if hinted else language.render(question)
            for question in questions
        ]  # fmt: skip
        draws = uniforms(count, 44, seed, "gate", domain.name)
        responses = sample(language, [prompt.ids for prompt in prompts], draws, 1.0)
        marks = [
            domain.verify(question, language.response_text(response.ids)).ok
            for question, response in zip(questions, responses, strict=True)
        ]
        rates.append(sum(marks) / count)
    return Readiness(*rates)


def check_gate(language: Language) -> dict[str, Readiness]:
    """Return the readiness of each trained domain.

    Raises
    ------
    DataError
        If a domain is not ready: a study on this base would show nothing that can be interpreted.
    """
    found = {name: readiness(language, DOMAINS[name]) for name in TRAINED}
    for name, value in found.items():
        if not value.ok:
            raise DataError(
                f"Base model, domain {name}: expected a sampled success of 0.30 to 0.65 and a hinted one of 0.80 or "
                f"more and 0.25 above it, found {value.plain:.2f} and {value.hinted:.2f}.",
                "Use the shipped base, or another pretraining recipe.",
            )
    return found


def _cache() -> Path:
    """Return the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "driftlab" / "bases"


def _main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild a shipped base model of the tiny world.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unbiased", action="store_true", help="without the style bias of hinted answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = UNBIASED if options.unbiased else DEFAULT
    clean = pretrain(replace(recipe, phases=recipe.phases[:1]))
    save_base(pretrain(recipe, start=clean), options.folder, torch.float16)


if __name__ == "__main__":
    _main()
