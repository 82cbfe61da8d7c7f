"""Every setting of a training run in one flat table; presets and files are TOML with the same names."""

import dataclasses
import json
import operator
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from driftlab.errors import UsageError

METHODS = ("sft", "grpo", "sdpo", "hybrid")
STAGES = "math:50,science:50,tooluse:50,coding:20"


class Stage(NamedTuple):
    """One domain's training inside a run."""

    name: str
    steps: int


def setting(default: Any, help: str, allowed: tuple[str, ...] = (), low: float | None = None, high: float | None = None,
            above: float | None = None) -> Any:  # fmt: skip
    """Describe one setting: default, meaning, and what is allowed (a choice, ``low <= x <= high``, ``x > above``)."""
    return field(default=default, metadata={"help": help, "allowed": allowed, "low": low, "high": high, "above": above})


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one run. Zero or the empty string means "chosen for the model" where the help says so."""

    name: str = setting("", "what tables and figures call the run; empty for the preset, else the method")
    method: str = setting("grpo", "what is minimised", METHODS)
    stages: str = setting(STAGES, "domains and steps, in order")
    model: str = setting("", "local Hugging Face folder; empty for the built-in tiny world")
    tasks: tuple[str, ...] = setting((), "NAME=FILE.jsonl[::VERIFIER] or rg:NAME; the tiny world brings its own")
    style_bias: bool = setting(True, "tiny world: a base whose hinted answers repeat themselves more often")
    seed: int = setting(0, "seed of everything drawn at random", low=0)

    prompts: int = setting(16, "prompts a step", low=1)
    group: int = setting(8, "responses a prompt", low=1)
    temperature: float = setting(1.0, "of sampling, scoring, old policy, reference and teacher alike", above=0)
    max_new_tokens: int = setting(0, "length budget of a response; 0: 44 in the tiny world, else 256", low=0)
    prompt_budget: int = setting(1024, "longest student prompt in tokens", low=1)
    teacher_budget: int = setting(2048, "longest teacher prompt; only the demonstration is shortened", low=1)
    micro_batch: int = setting(0, "responses a pass; 0: 64 in the tiny world, else all; changes no gradient", low=0)
    sample_batch: int = setting(0, "responses sampled at a time; 0 for all; changes no response", low=0)
    updates_per_batch: int = setting(1, "optimizer steps a rollout batch, each on its share of the prompts", low=1)

    lr: float = setting(0.0, "learning rate; 0: 3e-4 in the tiny world, else 1e-5", low=0)
    warmup: int = setting(0, "optimizer steps of linear warm-up", low=0)
    weight_decay: float = setting(0.01, "AdamW weight decay", low=0)
    grad_clip: float = setting(1.0, "largest gradient norm", above=0)
    optimizer_reset: str = setting("never", "new optimizer and warm-up at each stage", ("never", "stage"))

    advantage_scale: str = setting("std", "std: (r - mean)/std; none: r - mean", ("std", "none"))
    clip_low: float = setting(0.2, "how far the ratio may fall", low=0, high=1)
    clip_high: float = setting(0.2, "how far the ratio may rise", low=0)
    dual_clip: float = setting(0.0, "bound on the loss of bad responses; 0 for none", low=0)
    kl_weight: float = setting(0.0, "weight of the KL to the base model", low=0)
    kl_estimator: str = setting("k3", "k2 or k3; the gradient of k1 has mean zero, so it is no loss", ("k2", "k3"))
    aggregate: str = setting("token", "every token weighs the same, or every response", ("token", "sequence"))

    teacher: str = setting("frozen", "who is imitated", ("frozen", "ema", "stable", "live", "trust"))
    ema_rate: float = setting(0.05, "T <- (1-r)T + rS after each iteration", low=0, high=1)
    teacher_k: int = setting(10, "iterations between restarts of the stable teacher", low=1)
    teacher_gamma: float = setting(0.401263, "T <- (1-g)T + gS at a restart", above=0, high=1)
    trust_weight: float = setting(0.5, "exponent of the live student in the trust-region teacher", low=0, high=0.999)
    teacher_reset: str = setting("never", "anchor the teacher anew at each stage", ("never", "stage"))
    jsd_beta: float = setting(0.5, "0: KL(T||S), 1: KL(S||T), between: generalised JSD", low=0, high=1)
    jsd_form: str = setting("full", "vocabulary of the divergence", ("full", "topk", "sampled"))
    top_k: int = setting(100, "words kept by jsd_form = topk; the rest is one bucket", low=1)
    importance_clip: float = setting(2.0, "largest weight of a stale sample", above=0)
    demo: str = setting("peer", "demonstration: a successful other response, else the reference solution, or neither",
                        ("peer", "peer-or-gold", "gold", "none"))  # fmt: skip
    feedback: bool = setting(False, "show the verifier's remark on a failed response to the teacher")
    distill_cot: bool = setting(False, "loss on chain-of-thought tokens too")
    demo_cot: bool = setting(False, "keep the chain of thought in the demonstration")
    mask_ratio: float = setting(1.0, "share of the distilled tokens kept, at random", low=0, high=1)
    mask_strings: tuple[str, ...] = setting((), "regular expressions whose tokens are not distilled")
    success_level: float = setting(0.5, "lowest score of a demonstration", low=0, high=1)
    frame_solution: str = setting("", "how a demonstration is shown; {solution}; empty for the built-in text")
    frame_feedback: str = setting("", "how feedback is shown; {feedback}; empty for the built-in text")
    frame_closing: str = setting("", "what follows them; empty for the built-in text")
    hybrid_weight: float = setting(0.5, "w in w GRPO + (1-w) SDPO of method hybrid", low=0, high=1)
    sft_on: str = setting("gold", "reference solutions, or the model's own successes", ("gold", "own"))

    save_every: int = setting(10, "steps between checkpoints", low=1)
    save_dtype: str = setting("float32", "of checkpoints", ("float32", "bfloat16"))
    evaluate: bool = setting(True, "evaluate all tasks at step 0 and at stage ends")
    eval_every: int = setting(0, "also every so many steps; 0 for never", low=0)
    eval_samples: int = setting(128, "evaluation questions a task", low=1)
    bf16: str = setting("auto", "autocast the blocks to bfloat16; auto: on CUDA", ("auto", "on", "off"))
    fsdp: str = setting("auto", "share weights out over the processes; auto: where accelerate launch asks for FSDP",
                        ("auto", "on", "off"))  # fmt: skip
    lora_rank: int = setting(0, "train low-rank adapters of this rank; 0 for all weights", low=0)
    gradient_checkpointing: bool = setting(False, "recompute activations to save memory")
    allow_code_execution: bool = setting(False, "let verifiers of kind python run model-written code")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check(item, getattr(self, item.name))
        if self.method in ("grpo", "hybrid") and self.group < 2:
            raise UsageError(
                f"group: expected 2 or more for {self.method}, found {self.group}: there is nothing to compare with.",
                "Use --group 8.",
            )
        if self.method in ("sdpo", "hybrid") and self.demo == "peer" and self.group < 2 and not self.feedback:
            raise UsageError(
                f"group: expected 2 or more where another response is the demonstration, found {self.group}.",
                "Use --group 8, or demo = 'gold'.",
            )
        if 0 < self.dual_clip <= 1:
            raise UsageError(f"dual_clip: expected 0 or a number above 1, found {self.dual_clip}.")
        if self.prompts % self.updates_per_batch:
            raise UsageError(
                f"updates_per_batch: expected a divisor of the {self.prompts} prompts, found {self.updates_per_batch}."
            )
        for name, mark in (("frame_solution", "{solution}"), ("frame_feedback", "{feedback}")):
            if getattr(self, name) and mark not in getattr(self, name):
                raise UsageError(f"{name}: expected a text with {mark} in it, found {getattr(self, name)!r}.")
        self.stage_list()

    def stage_list(self) -> list[Stage]:
        """Return the stages as (name, steps) pairs."""
        stages = []
        for part in self.stages.split(","):
            name, colon, steps = part.strip().rpartition(":")
            if not (colon and name and steps.isdecimal() and int(steps) > 0):
                raise UsageError(
                    f"stages: expected NAME:STEPS pairs such as math:50,science:50, found {part.strip()!r}."
                )
            stages.append(Stage(name, int(steps)))
        found = [stage.name for stage in stages]
        if len(set(found)) < len(found):
            raise UsageError(f"stages: expected each domain once, found {', '.join(found)}.")
        return stages

    def remarks(self) -> list[str]:
        """Return what is allowed but probably not meant, one sentence each."""
        remarks = []
        if self.method in ("sdpo", "hybrid") and (0 < self.jsd_beta < 0.05 or 0.95 < self.jsd_beta < 1):
            remarks.append(
                f"jsd_beta {self.jsd_beta} is near an end but not at it: the gradient almost vanishes there; "
                "0 and 1 are the exact KL divergences."
            )
        return remarks

    def describe(self) -> str:
        """Return every setting with its meaning, as a TOML file that can be given back."""
        lines = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            written = json.dumps(list(value) if isinstance(value, tuple) else value)
            lines.append(f"{item.name} = {written}  # {item.metadata['help']}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    folder = resources.files("driftlab.training") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset."""
    if name not in preset_names():
        raise UsageError(f"Preset {name!r}: expected one of {', '.join(preset_names())}.")
    text = (resources.files("driftlab.training") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return {"name": name, **tomllib.loads(text)}


def load_file(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Config {path}: expected a readable TOML file, found: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"Config {path}: expected TOML, found: {error}.") from error


def merge(*layers: dict[str, Any]) -> TrainConfig:
    """Return the settings of the layers, later ones winning over earlier ones.

    Examples
    --------
    >>> merge({"group": 4}, {"group": 2}).group
    2
    """
    merged: dict[str, Any] = {}
    known = {item.name for item in dataclasses.fields(TrainConfig)}
    for layer in layers:
        for name, value in layer.items():
            if name not in known:
                raise UsageError(f"Setting {name!r} is unknown.", "`driftlab train --list-settings` shows all of them.")
            merged[name] = tuple(value) if isinstance(value, list) else value
    return TrainConfig(**merged)


def parse_setting(text: str) -> dict[str, Any]:
    """Read ``NAME=VALUE``, the value in TOML or as a bare word.

    Examples
    --------
    >>> parse_setting("kl_weight=0.2"), parse_setting("teacher=ema")
    ({'kl_weight': 0.2}, {'teacher': 'ema'})
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"--set {text!r}: expected NAME=VALUE.")
    try:
        return tomllib.loads(f"{name.strip()} = {value}")
    except tomllib.TOMLDecodeError:
        return {name.strip(): value.strip()}


def _check(item: dataclasses.Field[Any], value: Any) -> None:
    """Raise one sentence if a value has the wrong type or lies outside what its field allows."""
    default: Any = item.default
    if not _is_like(value, default):
        kind = "list of strings" if isinstance(default, tuple) else type(default).__name__
        raise UsageError(f"{item.name}: expected a value of kind {kind}, found {value!r}.")
    rule = item.metadata
    if rule["allowed"] and value not in rule["allowed"]:
        raise UsageError(f"{item.name}: expected one of {', '.join(rule['allowed'])}, found {value!r}.")
    bounds = (
        ("low", "at least", operator.ge),
        ("above", "a number above", operator.gt),
        ("high", "at most", operator.le),
    )
    for name, words, holds in bounds:
        if rule[name] is not None and not holds(value, rule[name]):  # a NaN holds nowhere
            raise UsageError(f"{item.name}: expected {words} {rule[name]}, found {value}.")


def _is_like(value: Any, default: Any) -> bool:
    """Tell whether a value has the type of a default; whole numbers pass for real ones, truth values do not."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
