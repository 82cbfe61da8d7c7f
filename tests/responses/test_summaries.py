"""The summary against a loop over rows, and every row in exactly one count."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wasserstein_distance

from driftlab.responses.pairing import EMPTY_NEW, EMPTY_REFERENCE, NO_NEW, NO_REFERENCE, PROMPTS_DIFFER
from driftlab.responses.similarity import NOT_FINITE, SCHEMA
from driftlab.responses.summaries import summarise

REASONS = {
    NO_NEW: "unmatched", NO_REFERENCE: "unmatched", PROMPTS_DIFFER: "prompts_differ", EMPTY_NEW: "empty_new",
    EMPTY_REFERENCE: "empty_ref", "no single text (new)": "unusable",
}  # fmt: skip


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame(
        {
            "run": "grpo", "method": "grpo", "seed": 0, "label": "math@50", "stage": "math", "step": 50, "order": 1,
            "reference": "base", "task": ["math", "code"] * (n // 2), "id": [f"p{i}" for i in range(n)],
            "similarity": 1 - rng.exponential(0.05, n), "random": rng.uniform(0.2, 0.7, n),
            "other_seed": np.where(np.arange(n) < 40, 1 - rng.exponential(0.02, n), np.nan),
            "same_text": np.where(np.arange(n) < 10, 1 - 1e-7 * np.arange(n), np.nan),
            "status": "ok", "reason": "", "identical": rng.uniform(size=n) < 0.3, "indistinct": False,
            "cut_ref": np.arange(n) < 3, "cut_new": np.arange(n) < 5,
            "truncated_ref": pd.array([None] * n, dtype="boolean"),
            "truncated_new": pd.array([i % 4 == 0 for i in range(n)], dtype="boolean"),
        }
    )  # fmt: skip
    left_out = [{"reason": reason, "status": "skipped"} for reason in REASONS]
    left_out.append({"reason": NOT_FINITE, "status": "failed"})
    head = frame.iloc[0][["run", "method", "seed", "label", "stage", "step", "order", "reference", "task"]].to_dict()
    more = pd.DataFrame([head | row for row in left_out])
    return pd.concat([frame, more], ignore_index=True).reindex(columns=SCHEMA.names)


def test_the_numbers_against_numpy(pairs):
    row = summarise(pairs).set_index("task").loc["all"]
    ok = pairs[pairs["status"] == "ok"]
    x = ok["similarity"].to_numpy(float)
    assert (row["pairs"], row["n"]) == (67, 60)
    assert row["mean"] == pytest.approx(x.mean())
    for name, q in (("q01", 1), ("q05", 5), ("q25", 25), ("median", 50), ("q75", 75)):
        assert row[name] == pytest.approx(np.percentile(x, q))
    assert row["share_below_90"] == (x < 0.9).mean() > 0
    assert row["mean_low"] < row["mean"] < row["mean_high"]
    assert row["share_below_90_low"] <= row["share_below_90"] <= row["share_below_90_high"]
    assert row["identical_share"] == ok["identical"].mean()
    late = ok["truncated_new"].astype(bool)
    assert row["complete_n"] == (~late).sum() == 45
    assert row["complete_median"] == pytest.approx(np.median(x[~late]))


def test_the_baselines_against_numpy(pairs):
    row = summarise(pairs).set_index("task").loc["all"]
    ok = pairs[pairs["status"] == "ok"].astype({"similarity": float, "other_seed": float, "random": float})
    known = ok[ok["other_seed"].notna()]
    assert row["random_median"] == pytest.approx(ok["random"].median())
    assert row["other_seed_n"] == 40
    assert row["other_seed_mean"] == pytest.approx(known["other_seed"].mean())
    assert row["beyond_seed"] == pytest.approx((known["other_seed"] - known["similarity"]).mean())
    assert row["beyond_seed_low"] < row["beyond_seed"] < row["beyond_seed_high"]
    sorted_gap = np.abs(np.sort(ok["similarity"]) - np.sort(ok["random"])).mean()
    assert row["w1_random"] == pytest.approx(sorted_gap)
    assert row["w1_other_seed"] == pytest.approx(wasserstein_distance(known["similarity"], known["other_seed"]))
    assert row["same_text_min"] == pytest.approx(1 - 9e-7)


def test_every_row_is_in_exactly_one_count(pairs):
    row = summarise(pairs).set_index("task").loc["all"]
    for name in set(REASONS.values()):
        assert row[name] == list(REASONS.values()).count(name)
    assert row["failed"] == 1
    counted = ["unmatched", "prompts_differ", "empty_ref", "empty_new", "failed", "unusable"]
    assert row["pairs"] == row["n"] + row[counted].sum()
    assert (row["truncated_ref"], row["truncated_new"], row["cut"]) == (0, 15, 5)


def test_tasks_add_up_to_all(pairs):
    table = summarise(pairs).set_index("task")
    assert list(table.index) == ["all", "math", "code"]
    for name in ("pairs", "n", "cut", "truncated_new", "other_seed_n"):
        assert table.loc[["math", "code"], name].sum() == table.loc["all", name]


def test_a_group_without_a_pair_has_no_numbers_and_no_warning(pairs):
    row = summarise(pairs[pairs["status"] == "failed"]).iloc[0]
    assert (row["n"], row["pairs"], row["failed"]) == (0, 1, 1)
    assert row[["mean", "median", "q01", "share_below_90", "random_mean", "w1_random"]].isna().all()


def test_the_order_of_rows_does_not_matter(pairs):
    shuffled = pairs.sample(frac=1, random_state=1)
    one, two = (summarise(table).set_index("task") for table in (pairs, shuffled))
    for name in ("n", "mean", "q05", "median", "w1_random", "beyond_seed", "failed"):
        np.testing.assert_allclose(two.loc[one.index, name].astype(float), one[name].astype(float), rtol=1e-12)
