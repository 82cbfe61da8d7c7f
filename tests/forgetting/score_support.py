"""Small score tables and run folders to test with."""

import json
from pathlib import Path

import pandas as pd

from driftlab.forgetting.gather import gather
from driftlab.forgetting.history import History, histories
from driftlab.forgetting.readers import read_scores
from driftlab.forgetting.scores import Scores

STAGES = ("A", "B", "C")
# Rows: base, after A, after B, after C. Columns: A, B, C trained in this order, O never.
MATRIX = {
    "base": {"A": 20.0, "B": 30.0, "C": 40.0, "O": 50.0},
    "A": {"A": 80.0, "B": 36.0, "C": 44.0, "O": 45.0},
    "B": {"A": 90.0, "B": 70.0, "C": 38.0, "O": 60.0},
    "C": {"A": 50.0, "B": 60.0, "C": 95.0, "O": 40.0},
}


def long_rows(matrix=MATRIX, run="r", method="m", seed=0, **more):
    return [
        {"run": run, "method": method, "seed": seed, "label": label, "task": task, "score": score, **more}
        | {"stage": "" if label == "base" else label}
        for label, row in matrix.items()
        for task, score in row.items()
        if score is not None
    ]


def read(tmp_path: Path, rows, name="scores.csv", **options) -> Scores:
    file = tmp_path / name
    pd.DataFrame(rows).to_csv(file, index=False)
    return gather(read_scores([file]), **options)


def history(tmp_path: Path, rows, **options) -> History:
    (found,) = histories(read(tmp_path, rows), options.get("own"))
    return found


def run_folder(
    folder: Path, rewards: dict[str, dict[str, list]], *, method="m", seed=0, prompt="q", stages=STAGES, name=""
) -> Path:
    """Write a run whose questions were answered right (1) or wrong (0): label -> task -> rewards."""
    (folder / "responses").mkdir(parents=True)
    config = {"stages": ",".join(f"{stage}:2" for stage in stages), "ema_rate": 0.05, "teacher": "ema"}
    meta = {"method": name or method, "seed": seed, "config": config}
    (folder / "run.json").write_text(json.dumps(meta | {"stages": [{"name": s, "steps": 2} for s in stages]}))
    scores = []
    for place, (label, tasks) in enumerate(rewards.items()):
        lines = []
        for task, values in tasks.items():
            known = [value for value in values if value is not None]
            scores.append(
                {
                    "label": label,
                    "stage": "base" if label == "base" else label.split("@")[0],
                    "step": 0 if label == "base" else 2,
                    "global_step": 2 * place,
                    "task": task,
                    "score": sum(known) / len(known),
                    "n": len(known),
                    "seed": seed,
                    "temperature": 1.0,
                }
            )
            lines += [
                {"id": f"{task}/{i}", "task": task, "prompt": f"{prompt} {i}", "reward": value}
                for i, value in enumerate(values)
            ]
        (folder / "responses" / f"{label}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "scores.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
    return folder
