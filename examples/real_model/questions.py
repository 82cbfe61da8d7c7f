"""Write the questions that the measurements ask, from the tasks of a finished run.

    python questions.py runs/grpo-no-kl questions

``questions/TASK.jsonl`` holds 256 training questions of a task, for the distances between domains;
``questions/asked.jsonl`` the first 16 evaluation questions of each task, for greedy answers.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from driftlab.training.rollout import python_rng
from driftlab.training.sources import open_task

TRAINING, ASKED = 256, 16


def write(file: Path, rows: Iterable[Mapping[str, str]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder of driftlab train")
    parser.add_argument("out", type=Path, help="folder to write")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = json.loads((options.run / "run.json").read_text(encoding="utf-8"))["config"]
    for task in map(open_task, config["tasks"]):
        questions = task.sample(TRAINING, python_rng(config["seed"], "distances", task.name))
        write(options.out / f"{task.name}.jsonl", [{"id": q.id, "prompt": q.prompt} for q in questions])

    asked = defaultdict(list)
    for line in (options.run / "responses" / "base.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        asked[row["task"]].append({name: row[name] for name in ("id", "task", "prompt")})
    write(options.out / "asked.jsonl", [row for rows in asked.values() for row in rows[:ASKED]])


if __name__ == "__main__":
    main()
