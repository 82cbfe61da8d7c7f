"""Draw the published numbers of arXiv 2607.01763 in the form of its Figures 5 and 6.

``scores.csv`` holds relative changes read off the two figures, within about 2 points. In Figure 5 the points of models
trained on ToolUse and Coding cover each other and were not read; GPQA and MMLU-R lie at one distance from Math, and
which of the two values belongs to which is a guess. ``distances.csv`` holds the values printed in the paper's heat map,
divided by 100: that they are 100 x squared MMD is inferred. All are facts of the paper, not results of driftlab.

    python examples/paper_numbers/draw.py OUT
"""

import argparse
from pathlib import Path

import pandas as pd

from driftlab_cli.main import run

HERE = Path(__file__).parent
SOURCE = (
    "Scores: read off {figure} of arXiv 2607.01763 (2026), about ±2 points, relative to a base set to 100; "
    "not measured here."
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the published numbers of arXiv 2607.01763.")
    parser.add_argument("out", type=Path, help="Folder to write.")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    changes = pd.read_csv(HERE / "scores.csv")
    failed = 0
    for name, part in changes.groupby("figure"):
        scores = out / f"{name}.csv"
        relative(part).to_csv(scores, index=False)
        number = f"Figure {str(name)[-1]}"
        # Relative scores have no scale: "raw" keeps them out of every mean of percents.
        command = ["forgetting", str(scores), "--scale", f"{name}.csv=raw", "-o", str(out / str(name)), "--force", "-q"]
        command += ["--source", SOURCE.format(figure=number)]
        if name == "figure5":
            command += ["--mmd", str(HERE / "distances.csv"), "--train-task", "Math=AIME,Math500"]
        failed |= run(command)
        wanted = "forgetting_curve" if name == "figure5" else "continual"
        failed |= run(["figures", str(out / str(name)), "--only", wanted, "-o", str(out), "--force"])
    return failed


def relative(changes: pd.DataFrame) -> pd.DataFrame:
    """Return scores with every base at 100."""
    now = changes.assign(score=100 + changes["change_percent"])
    base = changes.drop_duplicates(["run", "task"]).assign(label="base", stage="", score=100.0)
    return pd.concat([base, now])[["run", "method", "stage", "label", "task", "score"]]


if __name__ == "__main__":
    raise SystemExit(main())
