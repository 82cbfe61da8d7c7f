"""Send the numbers of each step to TensorBoard or Weights & Biases, where they are installed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from driftlab.errors import UsageError
from driftlab.training.trainer import Setup

Record = Callable[[dict[str, Any]], None]


@contextmanager
def trackers(names: Sequence[str], out: Path, setup: Setup) -> Iterator[Record]:
    """Give a function that records one step everywhere; only the leading process records."""
    for name in names:
        _check(name)
    with ExitStack() as stack:
        sinks: list[Record] = []

        def record(row: dict[str, Any]) -> None:
            if not sinks and setup.ranks.leads:  # not before the run folder is made
                sinks.extend(_open(name, out, setup, stack) for name in names)
            numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
            for send in sinks:
                send(numbers)

        yield record


def _check(name: str) -> None:
    if name not in ("tensorboard", "wandb"):
        raise UsageError(f"Tracker {name!r}: expected tensorboard or wandb.")
    if find_spec(name) is None:
        raise UsageError(
            f"Tracker {name}: expected the package {name}, found none.", f"pip install 'driftlab[{name}]'."
        )


def _open(name: str, out: Path, setup: Setup, stack: ExitStack) -> Record:
    return _tensorboard(out, stack) if name == "tensorboard" else _wandb(out, setup, stack)


def _tensorboard(out: Path, stack: ExitStack) -> Record:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))
    stack.callback(writer.close)

    def send(numbers: dict[str, float]) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, int(numbers["global_step"]))

    return send


def _wandb(out: Path, setup: Setup, stack: ExitStack) -> Record:
    """Start a run, or go on with the one that a former process of this run folder began.

    ``WANDB_MODE=offline`` keeps everything in ``RUN/wandb`` until ``wandb sync``.
    """
    import wandb

    file = out / "state" / "wandb.txt"
    known = file.read_text(encoding="utf-8").strip() if file.is_file() else None
    try:
        run = wandb.init(
            project="driftlab", name=out.name, dir=str(out), config=setup.config.to_dict(), id=known, resume="allow",
            settings=wandb.Settings(console="off", quiet=True),
        )  # fmt: skip
    except wandb.Error as error:
        reason = str(error).split("\n")[0]
        raise UsageError(
            f"Tracker wandb: expected a run to start, found: {reason}",
            "Log in with `wandb login`, or set WANDB_MODE=offline, and give --resume.",
        ) from error
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run.id, encoding="utf-8")
    stack.push(lambda kind, *_: run.finish(exit_code=int(kind is not None)))
    return lambda numbers: run.log(numbers, step=int(numbers["global_step"]))
