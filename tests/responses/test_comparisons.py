"""Runs are compared on the prompts both answered, paired."""

import numpy as np
import pandas as pd
import pytest

from driftlab.responses.comparisons import OTHER_SEED, compare_runs, in_words, resolvable
from driftlab.responses.similarity import SCHEMA


def run(name, values, label="math@50", order=1, ids=None, other=None, asked=""):
    ids = ids or [f"p{i}" for i in range(len(values))]
    frame = pd.DataFrame({"run": name, "label": label, "order": order, "task": "math", "id": ids,
                          "prompt_digest": asked, "similarity": values, "other_seed": other,
                          "status": "ok"})  # fmt: skip
    return frame.reindex(columns=SCHEMA.names)


def test_a_small_difference_is_found_because_it_is_paired():
    hard = np.random.default_rng(0).uniform(0.3, 1.0, 80)  # prompts differ far more than runs
    noise = np.random.default_rng(1).normal(0, 0.005, 80)
    row = compare_runs(pd.concat([run("a", hard), run("b", hard - 0.01 + noise)])).set_index("task").loc["all"]
    assert row["difference"] == pytest.approx(0.01 - noise.mean())
    assert row["low"] < row["difference"] < row["high"]
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * noise.std() / np.sqrt(80), rel=0.15)
    assert row["verdict"] == "separated"
    assert row["p_holm"] == row["p_value"] == 1e-4
    assert row["w1"] == pytest.approx(np.abs(np.sort(hard) - np.sort(hard - 0.01 + noise)).mean())


def test_no_difference_is_not_separated():
    x = np.random.default_rng(2).uniform(0.5, 1, (2, 60))
    table = compare_runs(pd.concat([run("a", x[0]), run("b", x[1])]))
    assert table["verdict"].unique().tolist() == ["not separated"]
    assert table.loc[0, "w1"] < 2 * table.loc[0, "w1_null_q95"]
    assert next(iter(in_words(table))).startswith("math@50: a and b are not separated (mean 0.")


def test_only_common_prompts_count():
    a, b = run("a", [0.9, 0.8, 0.1], ids=["x", "y", "only a"]), run("b", [0.5, 0.7], ids=["y", "x"])
    b.loc[len(b)] = {**b.loc[0], "id": "only a", "status": "failed"}
    row = compare_runs(pd.concat([a, b])).iloc[0]
    assert row["n"] == 2
    assert (row["mean_left"], row["mean_right"]) == pytest.approx((0.85, 0.6))


def test_labels_meet_their_like_and_single_files_meet_whatever_their_names():
    two = [run("a", [0.9, 0.8], "math@50", 1), run("a", [0.7, 0.6], "code@20", 2), run("b", [0.5, 0.4], "code@20", 2)]
    assert compare_runs(pd.concat(two)).query("task == 'all'")["label"].tolist() == ["code@20"]
    files = compare_runs(pd.concat([run("a", [0.9, 0.8], "a"), run("b", [0.5, 0.4], "b")]))
    assert files["label"].unique().tolist() == ["a | b"]


def test_the_base_under_another_seed_is_one_of_the_compared():
    table = compare_runs(run("a", [0.5] * 30, other=[0.9] * 20 + [np.nan] * 10))
    row = table[table["right"] == OTHER_SEED].iloc[0]
    assert (row["n"], row["difference"], row["verdict"]) == (20, pytest.approx(-0.4), "separated")
    assert "a is less similar to the base than the base under another seed" in next(iter(in_words(table)))


def test_corrected_for_the_comparisons_of_a_group():
    rng = np.random.default_rng(3)
    table = compare_runs(pd.concat([run(name, rng.uniform(size=30)) for name in "abcd"]))
    whole = table[table["task"] == "all"]
    assert len(whole) == 6
    assert whole["p_holm"].min() == pytest.approx(min(1, 6 * whole["p_value"].min()))
    assert resolvable(table)
    assert not resolvable(pd.DataFrame({"task": ["all"] * 600}))


def test_one_run_alone_and_one_prompt_alone():
    assert compare_runs(run("a", [0.5, 0.6])).empty
    assert not list(in_words(compare_runs(run("a", [0.5]))))
    table = compare_runs(pd.concat([run("a", [0.5]), run("b", [0.6])]))
    assert table["verdict"].unique().tolist() == ["too few prompts"]


def test_one_id_with_another_prompt_is_another_question():
    a, b = run("a", [0.9, 0.8, 0.7], asked=["x", "y", "z"]), run("b", [0.5, 0.6, 0.4], asked=["x", "other", "z"])
    row = compare_runs(pd.concat([a, b])).iloc[0]
    assert (row["n"], row["mean_left"]) == (2, pytest.approx(0.8))
    assert compare_runs(pd.concat([a, run("b", [0.5, 0.6, 0.4], asked=["p", "q", "r"])])).empty


def test_only_the_pairs_that_are_asked_for():
    runs = pd.concat([run(name, [0.9, 0.8, 0.7]) for name in "abc"])
    some = compare_runs(runs, only=[("a", "c"), ("a", "no such run")])
    assert set(zip(some["left"], some["right"], strict=True)) == {("a", "c")}
    assert len(compare_runs(runs)) == 3 * len(some)
