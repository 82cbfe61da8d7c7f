"""Two sets of responses to pairs: joined by id or exact prompt, never by the order of rows."""

import pandas as pd

from driftlab.errors import DataError
from driftlab.responses.readers import ResponseSet, is_empty

CARRIED = ("response", "reward", "truncated", "tokens")
PROMPTS_DIFFER = "the prompts differ"
NO_REFERENCE, NO_NEW = "no reference response", "no new response"
EMPTY_REFERENCE, EMPTY_NEW = "empty reference response", "empty new response"


def pair(reference: ResponseSet, new: ResponseSet) -> pd.DataFrame:
    """Pair the responses of two models to the same prompts.

    Returns
    -------
    DataFrame
        One row for each key of either side, in the order of the reference: ``key, id, task, prompt``, the columns of
        :data:`CARRIED` with suffixes ``_ref`` and ``_new``, and ``reason``: why there is nothing to compare, or empty.

    Raises
    ------
    DataError
        If one side has no ids, and prompts of the other are not unique.
    """
    left, right = _common_key(reference, new)
    both = left.merge(right, on="key", how="outer", suffixes=("_ref", "_new"), sort=False, indicator=True)
    places = {key: place for place, key in enumerate([*left["key"], *right["key"]][::-1])}  # first appearance, reversed
    both = both.iloc[(-both["key"].map(places)).argsort(kind="stable")].reset_index(drop=True)
    for name in ("id", "task", "prompt"):
        both[name] = both[f"{name}_ref"].where(both["_merge"] != "right_only", both[f"{name}_new"])
    both["reason"] = _reasons(both)
    kept = [f"{name}_{side}" for name in CARRIED for side in ("ref", "new")]
    return both[["key", "id", "task", "prompt", *kept, "reason"]]


def _common_key(reference: ResponseSet, new: ResponseSet) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables under one key: the id where both have ids, else the prompt."""
    if reference.keyed == new.keyed:
        return reference.table, new.table
    tables = []
    for one in (reference, new):
        table = one.table.assign(key=one.table["prompt"].str.strip())
        twice = int(table["key"].duplicated(keep=False).sum())
        if twice:
            other = (new if one is reference else reference).source
            raise DataError(
                f"Responses {one.source}: {other} has no ids, and {twice} of {len(table)} prompts here are not unique, "
                "so they cannot be paired.",
                "Add ids to the other file.",
            )
        tables.append(table)
    return tables[0], tables[1]


def _reasons(both: pd.DataFrame) -> "pd.Series[str]":
    """Say of each row why it is not compared: the first that applies."""
    reason = pd.Series("", index=both.index)
    asked = both[["prompt_ref", "prompt_new"]].fillna("").apply(lambda column: column.str.strip())
    known = (asked != "").all(axis=1)
    checks = (
        (both["_merge"] == "right_only", NO_REFERENCE),
        (both["_merge"] == "left_only", NO_NEW),
        (known & (asked["prompt_ref"] != asked["prompt_new"]), PROMPTS_DIFFER),
        (both["problem_ref"].fillna("") != "", both["problem_ref"].fillna("") + " (reference)"),
        (both["problem_new"].fillna("") != "", both["problem_new"].fillna("") + " (new)"),
        (is_empty(both["response_ref"]), EMPTY_REFERENCE),
        (is_empty(both["response_new"]), EMPTY_NEW),
    )
    for applies, text in checks:
        reason = reason.mask((reason == "") & applies, text)
    return reason


def refuse_none(reference: ResponseSet, new: ResponseSet) -> None:
    """Say why two sets have no pair in common.

    Raises
    ------
    DataError
        If they have none.
    """
    reasons = pair(reference, new)["reason"]
    if (reasons == "").any():
        return
    counts = ", ".join(f"{n} {reason}" for reason, n in reasons.value_counts().items())
    raise DataError(
        f"Responses {new.source} and {reference.source}: expected common prompts with text on both sides, found none "
        f"({counts}).",
        "The same ids ask different questions: use runs with the same evaluation questions (one seed)."
        if (reasons == PROMPTS_DIFFER).any()
        else "Check that both files answer the same prompts.",
    )
