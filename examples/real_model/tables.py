"""Write the small tables of this folder from the results of run.sh: CSV, a few kilobytes each.

python tables.py real_model tables
"""

import argparse
import json
from pathlib import Path

import pandas as pd

STEPS = ["run", "global_step", "stage", "step", "reward", "frac_reward_zero_std", "completions/mean_length",
         "completions/clipped_ratio", "entropy", "js_distilled", "updates", "tokens", "peak_memory_mb"]  # fmt: skip


def steps(work: Path) -> pd.DataFrame:
    """Return the training log of every run."""
    rows = [
        {"run": log.parent.name, **json.loads(line)}
        for log in sorted(work.glob("runs/*/steps.jsonl"))
        for line in log.read_text(encoding="utf-8").splitlines()
    ]
    return pd.DataFrame(rows)[STEPS]


def weights(work: Path) -> pd.DataFrame:
    """Return what the weight measures say of whole models, null beside value."""
    found = pd.read_parquet(work / "out" / "spectral_summary.parquet")
    columns = ["run", "label", "measure", "n", "mean", "median", "q25", "q75", "error", "null_median", "p_holm",
               "above", "below", "verdict"]  # fmt: skip
    return found.loc[found["group_by"] == "model", columns]


def policy(work: Path) -> pd.DataFrame:
    """Return the policy drift of each task and of all, without the columns that are empty."""
    return pd.read_parquet(work / "out" / "policy.parquet").dropna(axis="columns", how="all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder that run.sh filled")
    parser.add_argument("out", type=Path, help="folder to write")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tables = {"steps": steps, "weights": weights, "policy": policy}
    written = {name: read(options.work) for name, read in tables.items()}
    stored = {name: f"out/{name}" for name in ("mmd", "mmd_domains", "scores", "forgetting", "forgetting_summary")}
    stored |= {name: f"out/{name}" for name in ("similarity_summary", "similarity_tests")}
    stored |= {f"greedy_{name}": f"greedy/{name}" for name in ("similarity_summary", "similarity_tests")}
    written |= {name: pd.read_parquet(options.work / f"{file}.parquet") for name, file in stored.items()}
    for name, table in written.items():
        table.to_csv(options.out / f"{name}.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
