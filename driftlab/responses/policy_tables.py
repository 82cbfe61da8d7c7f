"""Rows of the tables ``policy``, ``artifacts`` and ``ngrams``: what one checkpoint's responses say, task by task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from driftlab.responses import artifacts, razor
from driftlab.responses.answers import Answer
from driftlab.responses.artifacts import MARKERS, Text, degenerate, flood_limits, read_text
from driftlab.responses.estimates import over_prompts
from driftlab.responses.ngrams import amplified
from driftlab.responses.policy import TokenDrift, sequence_estimates
from driftlab.responses.verdict import ALL, conclude

_KEYS = [
    *((name, pa.string()) for name in ("run", "method")),
    ("seed", pa.int64()),
    *((name, pa.string()) for name in ("label", "stage")),
    ("order", pa.int64()),
    ("global_step", pa.int64()),
    ("task", pa.string()),
]
_STATUS = [("status", pa.string()), ("reason", pa.string())]
DIRECTIONS = ("kl_new_to_base", "kl_base_to_new")
PER_TOKEN = ("token_kl_new_to_base", "token_kl_base_to_new", "js", "entropy_new", "entropy_base")
ESTIMATOR = "rao-blackwell"
OFF_POLICY = "token_kl_base_to_new, entropy_base"
"""Columns that average one model's quantity over prefixes that the other sampled."""


def _numbers(names: Sequence[str], suffixes: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    return [(f"{name}{suffix}", pa.float64()) for name in names for suffix in suffixes]


POLICY = pa.schema(
    [
        *_KEYS,
        *((name, pa.int64()) for name in ("n", "prompts", "tokens", "unknown", "mismatches")),
        *_numbers(DIRECTIONS, ("", "_se", "_k1", "_k1_se", "_k3", "_k3_se")),
        *_numbers((*PER_TOKEN, "entropy_base_own"), ("", "_se")),
        *_numbers(("success", "success_base"), ("", "_se")),
        *_numbers(("kl_bernoulli",), ("",)),
        *_numbers(("excess_drift",), ("", "_se", "_low", "_high")),
        *_numbers(("kl_bernoulli_prompt", "excess_drift_prompt"), ("",)),
        ("source", pa.string()),
        ("estimator", pa.string()),
        ("off_policy", pa.string()),
        *_STATUS,
    ]
)
"""One row a (run, checkpoint, task), and one of all tasks."""

_MEANS = ("repeat_rate", "distinct_1", "distinct_2", "longest_run", "loop_cover", "mean_words")
_RATES = ("artifact_rate", "broken_rate", "loop_rate", "empty_rate", "truncated")
ARTIFACTS = pa.schema(
    [
        *_KEYS,
        *((name, pa.int64()) for name in ("n", "prompts", "unreadable")),
        *_numbers(_RATES, ("", "_low", "_high")),
        *_numbers(_MEANS, ("", "_se")),
        *_numbers([f"{name}_rate" for name in MARKERS], ("", "_low", "_high")),
        *_numbers([f"{name}_count" for name in MARKERS], ("", "_se")),
        *_numbers(("js_distilled", "js_response", "no_target_share"), ("",)),
        *((name, pa.string()) for name in ("js_reading", "verdict", "evidence", "first_label")),
        ("first_step", pa.int64()),
        ("source", pa.string()),
        *_STATUS,
    ]
)
"""One row a (run, checkpoint, task), and one of all tasks with the verdict of the checkpoint."""

NGRAMS = pa.schema(
    [
        *_KEYS,
        *((name, pa.int64()) for name in ("size", "rank")),
        ("ngram", pa.string()),
        *((name, pa.int64()) for name in ("count", "count_base")),
        *_numbers(("share", "share_base", "log_odds", "log_odds_se", "z"), ("",)),
    ]
)
"""The most amplified phrases of each checkpoint, all tasks together and each task for itself."""


@dataclass(frozen=True)
class Scored:
    """Responses of one policy with the drift at each of their tokens; ``sampler_is_new`` says whose they are."""

    answers: list[Answer]
    drift: TokenDrift
    lengths: NDArray[np.int64]
    sampler_is_new: bool

    def frame(self, success_level: float) -> pd.DataFrame:
        """Return one row a response: sums over its tokens, sequence estimates and success."""
        d = self.drift
        starts = np.concatenate([[0], self.lengths.cumsum()[:-1]])
        names = {"token_kl_new_to_base": d.kl_new_to_base, "token_kl_base_to_new": d.kl_base_to_new, "js": d.js}
        names |= {"entropy_new": d.entropy_new, "entropy_base": d.entropy_base}
        sums = {name: np.add.reduceat(values, starts) for name, values in names.items()}
        ours, theirs, exact = (
            (d.log_new, d.log_base, d.kl_new_to_base)
            if self.sampler_is_new
            else (d.log_base, d.log_new, d.kl_base_to_new)
        )
        return pd.DataFrame(
            {
                "task": [answer.task for answer in self.answers],
                "prompt": [answer.prompt for answer in self.answers],
                "tokens": self.lengths,
                "success": successes(self.answers, success_level),
                **sums,
                **sequence_estimates(ours, theirs, exact, self.lengths),
            }
        )


def successes(answers: Sequence[Answer], level: float) -> NDArray[np.float64]:
    """Return 1 for a reward of at least ``level``, 0 for less, NaN where the verifier failed."""
    return np.array([np.nan if a.reward is None else float(a.reward >= level) for a in answers])


def policy_rows(on_new: Scored, on_base: Scored, level: float) -> list[dict[str, Any]]:
    """Return the numbers of each task and of all; a task the base did not answer lacks one direction, with a reason."""
    new = on_new.frame(level)
    base = on_base.frame(level)
    tasks = list(dict.fromkeys(new["task"]))
    rows, parts = [], []
    for task in tasks:
        ours = new[new["task"] == task]
        theirs = base[base["task"] == task]
        part = _excess(ours, theirs)
        parts.append(part)
        rows.append({"task": task, **_policy_row(ours, theirs, part)})
    whole = razor.combine(parts)
    return [*rows, {"task": ALL, **_policy_row(new, base, whole)}]


def _policy_row(new: pd.DataFrame, base: pd.DataFrame, excess: razor.Excess) -> dict[str, Any]:
    row: dict[str, Any] = {"n": len(new), "prompts": new["prompt"].nunique(), "tokens": int(new["tokens"].sum())}
    row["unknown"] = int(new["success"].isna().sum())
    for direction, frame in zip(DIRECTIONS, (new, base), strict=True):
        for name, suffix in (("rb", ""), ("k1", "_k1"), ("k3", "_k3")):
            row |= _estimate(f"{direction}{suffix}", frame, name)
    for name in PER_TOKEN:
        row |= _estimate(name, new, name, per_token=True)
    own = _estimate("entropy_base", base, "entropy_base", per_token=True)
    row |= {name.replace("entropy_base", "entropy_base_own"): value for name, value in own.items()}
    row |= _estimate("success", new, "success")
    theirs = _estimate("success", base, "success")
    row |= {name.replace("success", "success_base"): value for name, value in theirs.items()}
    row |= {"kl_bernoulli": excess.kl_bernoulli, "excess_drift": excess.excess, "excess_drift_se": excess.se}
    row |= {"excess_drift_low": excess.low, "excess_drift_high": excess.high}
    row |= {"kl_bernoulli_prompt": excess.kl_bernoulli_prompt, "excess_drift_prompt": excess.excess_prompt}
    missing = "" if len(base) else "no responses of the base: kl_base_to_new and excess_drift need them"
    reason = missing or (f"excess_drift: {excess.reason}" if excess.reason else "")
    return row | {"estimator": ESTIMATOR, "off_policy": OFF_POLICY, "status": "ok", "reason": reason}


def _estimate(name: str, frame: pd.DataFrame, column: str, *, per_token: bool = False) -> dict[str, float]:
    if frame.empty:
        return {name: float("nan"), f"{name}_se": float("nan")}
    counts = frame["tokens"] if per_token else None
    found = over_prompts(frame[column], frame["prompt"], counts, frame["task"])
    return {name: found.value, f"{name}_se": found.se}


def _excess(new: pd.DataFrame, base: pd.DataFrame) -> razor.Excess:
    if base.empty:
        empty: list[float] = []
        return razor.excess_drift(empty, empty, empty)
    ours = new.groupby("prompt", sort=True)[["rb", "success"]].mean()
    theirs = base.groupby("prompt", sort=True)["success"].mean().reindex(ours.index)
    copies = min(int(frame.groupby("prompt").size().min()) for frame in (new, base))
    return razor.excess_drift(ours["rb"], ours["success"], theirs, copies)


def artifact_rows(new: Sequence[Answer], base: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the artefacts of each task and of all together, judged against the base."""
    usual = _texts(base)
    limits = {task: flood_limits(texts) for task, (texts, _) in usual.items()}
    judged = conclude(_artifacts(_texts(new), limits), _artifacts(usual, limits))
    rows: list[dict[str, Any]] = judged.to_dict("records")  # type: ignore[assignment]
    return [row | {"status": "ok", "reason": ""} for row in rows]


def _texts(answers: Sequence[Answer]) -> dict[str, tuple[list[Text], list[str]]]:
    found: dict[str, tuple[list[Text], list[str]]] = {}
    for answer in answers:
        texts, prompts = found.setdefault(answer.task, ([], []))
        texts.append(read_text(answer.text, answer.truncated))
        prompts.append(answer.prompt)
    return found


def _artifacts(found: dict[str, tuple[list[Text], list[str]]], limits: dict[str, dict[str, float]]) -> pd.DataFrame:
    rows = []
    everything: tuple[list[Text], list[str], list[NDArray[np.bool_]]] = ([], [], [])
    for task, (texts, prompts) in found.items():
        bad = degenerate(texts, limits.get(task, flood_limits([])))
        rows.append({"task": task, **artifacts.summarise(texts, prompts, bad)})
        everything[0].extend(texts)
        everything[1].extend(prompts)
        everything[2].append(bad)
    rows.append({"task": ALL, **artifacts.summarise(everything[0], everything[1], np.concatenate(everything[2]))})
    return pd.DataFrame(rows)


def ngram_rows(new: Sequence[Answer], base: Sequence[Answer], top: int) -> list[dict[str, Any]]:
    """Return the most amplified n-grams of all responses and of each task that both answered."""
    rows = []
    both = [task for task in dict.fromkeys(a.task for a in new) if any(a.task == task for a in base)]
    for task in [ALL, *both]:
        ours, theirs = ([a.text for a in answers if task in (ALL, a.task)] for answers in (new, base))
        rows += [{"task": task, **row} for row in amplified(ours, theirs, top)]
    return rows


def to_table(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make an Arrow table of rows; columns a row lacks are null, NaN stays NaN in pandas."""
    columns = {name: [_clean(row.get(name)) for row in rows] for name in schema.names}
    return pa.table(columns, schema=schema)


def _clean(value: Any) -> Any:
    if value is None or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value
