"""Several sources to one table: one metric a task, no score twice, one order of checkpoints, a base for every run."""

from collections.abc import Mapping, Sequence

import pandas as pd

from driftlab.errors import DataError, UsageError
from driftlab.forgetting.scales import Scale, to_percent
from driftlab.forgetting.scores import BASE, EVALUATION, Scores, is_base, normal

_KEY = ["run", "label", "task"]


def gather(
    sources: Sequence[Scores],
    *,
    scale: Scale | None = None,
    lower: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Scores:
    """Bring what was read into one table.

    Parameters
    ----------
    sources : sequence of Scores
        As the readers give them.
    scale : Scale, optional
        See :func:`driftlab.forgetting.scales.to_percent`.
    lower : sequence of str
        Tasks where less is better.
    metrics : sequence of str
        ``TASK=METRIC`` or ``METRIC``: which to take where a task has several.

    Raises
    ------
    DataError
        If there is no score, or the scale cannot be told.
    UsageError
        If an option names a task or metric that is not there.
    """
    remarks = [remark for one in sources for remark in one.remarks]
    table = pd.concat([one.table for one in sources], ignore_index=True)
    if table.empty:
        raise DataError("Scores: expected at least one score, found none.", "; ".join(remarks))
    if "global_step" not in table:
        table["global_step"] = None
    table["better"] = table["better"].replace("", "higher")
    _known("--lower-is-better", lower, table["task"])
    table.loc[table["task"].isin(list(lower)), "better"] = "lower"
    table = _one_metric(table, metrics, remarks)
    table = _once(table, remarks)
    table = to_percent(table, scale or Scale())
    table = _share_base(table, remarks)
    plans = {run: plan for one in sources for run, plan in one.plans.items()}
    table, found = _ordered(table, plans, remarks)
    _compare_settings(table, remarks)
    return Scores(normal(table), _rewards(sources, table), plans | found, remarks)


def _known(option: str, names: Sequence[str], column: "pd.Series[str]") -> None:
    for name in names:
        if name not in set(column):
            raise UsageError(f"{option} {name}: expected one of {', '.join(sorted(set(column)))}.")


def _one_metric(table: pd.DataFrame, metrics: Sequence[str], remarks: list[str]) -> pd.DataFrame:
    """Keep one metric of each task: what the user names, else the first that most rows have."""
    wanted = {task: metric for task, equals, metric in (option.rpartition("=") for option in metrics)}
    _known("--metric", list(wanted.values()), table["metric"])
    _known("--metric", [task for task in wanted if task], table["task"])
    kept = []
    for task, rows in table.groupby("task", sort=False):
        counts = rows["metric"].value_counts(sort=False)
        choice = wanted.get(str(task), wanted.get(""))
        if choice not in counts:
            choice = str(counts.idxmax())
        others = [metric or "(unnamed)" for metric in counts.index if metric != choice]
        if others and str(task) not in wanted and "" not in wanted:
            remarks.append(
                f"{task} has several metrics: {choice or '(unnamed)'} was taken, {', '.join(others)} left out; "
                f"--metric {task}=NAME takes another."
            )
        kept.append(rows[rows["metric"] == choice])
    return pd.concat(kept).sort_index()


def _once(table: pd.DataFrame, remarks: list[str]) -> pd.DataFrame:
    """Drop repeated rows; two different scores for one thing are both marked as failed."""
    twice = table.duplicated(_KEY, keep=False)
    if not twice.any():
        return table
    spread = table[twice].groupby(_KEY)["score"].transform(lambda found: found.nunique(dropna=False))
    clash = spread[spread > 1].index
    repeated = table.duplicated(_KEY) & ~table.index.isin(clash)
    if repeated.any():
        remarks.append(f"{int(repeated.sum())} rows repeat an earlier score and were left out.")
    if len(clash):
        first = table.loc[clash[0]]
        remarks.append(
            f"{len(clash)} rows contradict each other, {first['run']} {first['label']} {first['task']} for instance; "
            "none of them is used."
        )
        table.loc[clash, ["score", "stderr", "n"]] = None
        table.loc[clash, "status"] = "failed"
        table.loc[clash, "reason"] = "given more than once with different scores"
    return table[~table.duplicated(_KEY)]


def _share_base(table: pd.DataFrame, remarks: list[str]) -> pd.DataFrame:
    """Give a base that was evaluated on its own to every run that lacks one."""
    base = is_base(table)
    only = base.groupby(table["run"]).transform("all")
    shared = table[only & base]
    runs = table.loc[~only, "run"].drop_duplicates()
    if shared.empty or runs.empty:
        return table
    owners = list(dict.fromkeys(shared["run"]))
    if len(owners) > 1:
        raise DataError(
            f"Base: expected one model that all runs started from, found {', '.join(owners)}.",
            "Give each run its own base rows, or leave the others out.",
        )
    parts = [table[~only]]
    for run in runs:
        rows = table[table["run"] == run]
        own = set(rows.loc[is_base(rows), "task"])
        first = rows.iloc[0]
        parts.append(shared[~shared["task"].isin(own)].assign(run=run, method=first["method"], seed=first["seed"]))
    remarks.append(f"The base of {len(runs)} runs is the one evaluated as {owners[0]!r}.")
    return pd.concat(parts, ignore_index=True)


def _ordered(
    table: pd.DataFrame, plans: Mapping[str, list[tuple[str, str]]], remarks: list[str]
) -> tuple[pd.DataFrame, dict[str, list[tuple[str, str]]]]:
    """Give the checkpoints of each run their numbers, 0 for the base, and say where the stages of tables end."""
    parts, found = [], {}
    ends: dict[tuple[str, str], float] = {}
    for (source, stage), rows in table.groupby(["source", "stage"]):
        ends[str(source), str(stage)] = rows["step"].max()
    for run, rows in table.groupby("run", sort=False):
        labels = rows.groupby("label", sort=False)[["order", "global_step", "step", "stage", "source"]].first()
        stages = list(dict.fromkeys(stage for stage in labels["stage"] if stage))
        labels["place"] = labels["stage"].map({stage: i for i, stage in enumerate(stages)}).fillna(len(stages))
        keys = next(
            ([key] for key in ("order", "global_step") if pd.to_numeric(labels[key]).notna().all()), ["place", "step"]
        )
        labels["not_base"] = labels.index.str.lower() != BASE
        labels = labels.sort_values(["not_base", *keys], kind="stable")
        first = int(labels["not_base"].iloc[0])
        parts.append(rows.assign(order=rows["label"].map({name: first + i for i, name in enumerate(labels.index)})))
        if run not in plans:
            found[str(run)] = [(stage, _end(labels[labels["stage"] == stage], ends)) for stage in stages]
        if first:
            remarks.append(f"{run}: its base was not evaluated, so nothing of it can be called gained or forgotten.")
    ordered = [part.sort_values("order", kind="stable") for part in parts]
    return pd.concat(ordered, ignore_index=True), found


def _end(labels: pd.DataFrame, ends: Mapping[tuple[str, str], float]) -> str:
    """Return the label of the end of a stage: the last one, unless another run of the table went further in it."""
    last = labels.iloc[-1]
    furthest = ends.get((last["source"], last["stage"]))
    if furthest is not None and pd.notna(furthest) and pd.notna(last["step"]) and last["step"] < furthest:
        return f"{last['stage']}@{furthest:g}"
    return str(labels.index[-1])


def _compare_settings(table: pd.DataFrame, remarks: list[str]) -> None:
    """Say which tasks were evaluated in different ways within a run."""
    for column in ("n", *EVALUATION):
        differ: dict[str, set[str]] = {}
        for (run, task), rows in table.groupby(["run", "task"], sort=False):
            if len(set(rows[column].dropna())) > 1:
                differ.setdefault(str(task), set()).add(str(run))
        for task, runs in differ.items():
            values = table.loc[(table["task"] == task) & table["run"].isin(runs), column].dropna()
            what = "number of questions" if column == "n" else column
            shown = ", ".join(f"{value:g}" for value in sorted(set(values)))
            remarks.append(
                f"{task}: evaluated with different settings ({what} {shown}) "
                f"in {', '.join(sorted(runs))}: part of the change may come from that."
            )


def _rewards(sources: Sequence[Scores], table: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return the rewards in the unit that the scores now have."""
    unit = {
        task: 100.0 if scale == "percent" else 1.0 for task, scale in zip(table["task"], table["scale"], strict=True)
    }
    return {
        key: {question: unit.get(key[2], 1.0) * reward for question, reward in values.items()}
        for one in sources
        for key, values in one.rewards.items()
    }
