"""What a study does: methods, seeds, shared settings, what is measured; read from TOML, completed by its controls."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from driftlab.errors import UsageError
from driftlab.training.config import TrainConfig, load_preset, merge

_KEYS = {"about", "seeds", "reference", "train", "runs", "measure"}


@dataclass(frozen=True)
class Measure:
    """How the runs of a study are measured.

    Attributes
    ----------
    every : int
        Take every n-th checkpoint for the weights.
    method, null : str
        As ``driftlab svd`` has them.
    encoder : str
        As ``driftlab mmd`` and ``driftlab similarity`` have it.
    permutations, domain_texts : int
        Of the distances between domains: relabellings, and prompts of each domain.
    policy_prompts, policy_copies, policy_every : int
        Prompts of each task and responses to each that the policy drift is taken on, at every n-th checkpoint.
    """

    every: int = 1
    method: str = "auto"
    null: str = "sign"
    encoder: str = "char-ngrams"
    permutations: int = 1999
    domain_texts: int = 200
    policy_prompts: int = 8
    policy_copies: int = 4
    policy_every: int = 1


@dataclass(frozen=True)
class Method:
    """One way to train: its settings but the seed, and whose control it is, if it is one."""

    name: str
    settings: dict[str, Any]
    control_of: str = ""

    def config(self, seed: int) -> TrainConfig:
        """Return the settings of one of its runs."""
        return merge(self.settings, {"name": self.name, "seed": seed})


@dataclass(frozen=True)
class StudyPlan:
    """A study, completed and checked.

    Attributes
    ----------
    about : str
        One sentence a reader gets to see.
    seeds : tuple of int
    methods : tuple of Method
        In the order of figures; each control follows its subject.
    reference : str
        The method that others are compared with.
    measure : Measure
    """

    about: str
    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    reference: str
    measure: Measure = field(default_factory=Measure)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the comparisons it makes: every method with the reference, every control with its subject."""
        subjects = [(m.name, self.reference) for m in self.methods if not m.control_of and m.name != self.reference]
        return [*subjects, *((m.name, m.control_of) for m in self.methods if m.control_of)]

    def describe(self) -> str:
        """Return it as a table of lines: every run's settings that are not the defaults."""
        default = TrainConfig().to_dict()
        lines = [self.about, f"seeds {', '.join(map(str, self.seeds))}; compared with {self.reference}"]
        for method in self.methods:
            config = method.config(self.seeds[0]).to_dict()
            own = {k: v for k, v in config.items() if v != default[k] and k not in ("name", "seed")}
            subject = f" (control of {method.control_of})" if method.control_of else ""
            lines.append(f"{method.name}{subject}: " + ", ".join(f"{name} {value}" for name, value in own.items()))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, for the manifest."""
        return dataclasses.asdict(self)


def profile_names() -> list[str]:
    """Return the names of the studies that come with the package."""
    folder = resources.files("driftlab.study") / "profiles"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_profile(name: str) -> dict[str, Any]:
    """Return the table of a study that comes with the package."""
    if name not in profile_names():
        raise UsageError(f"Profile {name!r}: expected one of {', '.join(profile_names())}.")
    text = (resources.files("driftlab.study") / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def make_plan(
    table: dict[str, Any], *, seeds: list[int] | None = None, train: dict[str, Any] | None = None
) -> StudyPlan:
    """Check a study's table and complete it.

    Two controls always run, because they decide how a result reads: the world without style bias for every method
    whose teacher follows the student, and no KL term for every GRPO that has one. They are added where the table
    does not name them.

    Parameters
    ----------
    table : dict
        ``about``, ``seeds``, ``reference``, ``[train]`` (settings every run shares), ``[runs.NAME]`` (``preset`` and
        settings of one method, ``control_of``), ``[measure]``.
    seeds : list of int, optional
        Instead of the table's.
    train : dict, optional
        Settings that win over those of ``[train]``.

    Raises
    ------
    UsageError
        If a key, setting, preset or reference is unknown, or there is no run or no seed.
    """
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(f"Study: expected the keys {', '.join(sorted(_KEYS))}, found {unknown[0]!r}.")
    shared = {**_table(table, "train"), **(train or {})}
    methods = [_method(name, settings, shared) for name, settings in _table(table, "runs").items()]
    if not methods:
        raise UsageError("Study: expected at least one table [runs.NAME], found none.")
    names = [method.name for method in methods]
    lost = next((m for m in methods if m.control_of and m.control_of not in names), None)
    if lost is not None:
        raise UsageError(
            f"Study: control_of of {lost.name}: expected one of {', '.join(names)}, found {lost.control_of!r}."
        )
    reference = str(table.get("reference") or names[0])
    if reference not in names:
        raise UsageError(f"Study: reference: expected one of {', '.join(names)}, found {reference!r}.")
    chosen = seeds if seeds is not None else table.get("seeds", [0])
    if not (isinstance(chosen, list) and chosen and all(type(s) is int and s >= 0 for s in chosen)):
        raise UsageError(f"Study: seeds: expected a list of whole numbers from 0, found {chosen!r}.")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"Study: seeds: expected each once, found {chosen}.")
    completed = [one for method in methods for one in (method, *_controls(method, methods))]
    return StudyPlan(str(table.get("about", "")), tuple(chosen), tuple(completed), reference, _measure(table))


def parse_seeds(text: str) -> list[int] | None:
    """Read seeds separated by commas; None for an empty text.

    Examples
    --------
    >>> parse_seeds("0,3"), parse_seeds("")
    ([0, 3], None)
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--seeds {text!r}: expected whole numbers separated by commas.")
    return [int(part) for part in parts] or None


def _method(name: str, settings: Any, shared: dict[str, Any]) -> Method:
    if not isinstance(settings, dict):
        raise UsageError(f"Study: runs.{name}: expected a table of settings, found {settings!r}.")
    own = {key: value for key, value in settings.items() if key not in ("preset", "control_of")}
    preset = load_preset(str(settings["preset"])) if "preset" in settings else {}
    method = Method(name, {**preset, **shared, **own, "name": name}, str(settings.get("control_of", "")))
    method.config(0)  # says now what is wrong with it
    return method


def _controls(method: Method, methods: list[Method]) -> list[Method]:
    """Return the controls of a method that the study does not name itself."""
    if method.control_of:
        return []
    config = method.config(0)
    named = [other.config(0) for other in methods if other.control_of == method.name]
    found = []
    follows = config.method in ("sdpo", "hybrid") and config.teacher == "ema"
    if not config.model and config.style_bias and follows and all(other.style_bias for other in named):
        found.append(_control(method, "unbiased", style_bias=False))
    if config.method == "grpo" and config.kl_weight and all(other.kl_weight for other in named):
        found.append(_control(method, "no-kl", kl_weight=0.0))
    return found


def _control(method: Method, suffix: str, **change: Any) -> Method:
    name = f"{method.name}-{suffix}"
    return Method(name, {**method.settings, **change, "name": name}, method.name)


def _measure(table: dict[str, Any]) -> Measure:
    given = _table(table, "measure")
    known = {item.name: item.default for item in dataclasses.fields(Measure)}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"Study: measure: expected one of {', '.join(known)}, found {name!r}.")
        if type(value) is not type(known[name]):
            raise UsageError(f"Study: measure.{name}: expected a value like {known[name]!r}, found {value!r}.")
    return Measure(**given)


def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"Study: {name}: expected a table, found {found!r}.")
    return found
