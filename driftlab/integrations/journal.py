"""What the callback leaves in its results folder: tables that grow, the start of the run, and what it all cost."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from driftlab.errors import ResultsError
from driftlab.files import replacing
from driftlab.integrations.weights import Copied, Site, copy_starts
from driftlab.live.growing import TABLES, add_rows, rewrite, stored
from driftlab.results import ResultsDir
from driftlab.spectral.measures import Plan

COMMAND = "callback"
START = "start.safetensors"


class Journal:
    """The results folder of one watched run.

    Parameters
    ----------
    path : Path
        The folder.
    force : bool
        Replace earlier results.

    Attributes
    ----------
    pending : dict
        Numbers that wait for the trainer's next log entry.
    problems : list of str
        Measurements that came to nothing.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        self.force = force
        self.pending: dict[str, Any] = {}
        self.problems: list[str] = []
        self._results: ResultsDir | None = None
        self._order = 0
        self._probes: list[dict[str, Any]] = []

    @property
    def results(self) -> ResultsDir:
        """The folder; there after :meth:`begin`."""
        assert self._results is not None
        return self._results

    def begin(self, sites: Mapping[str, Site], plan: Plan, settings: dict[str, Any], step: int) -> dict[str, Copied]:
        """Open the folder and return the start: copied now, or, for a run resumed at a step above 0, as stored.

        Rows of steps after the one resumed from are dropped: those steps are trained again.

        Raises
        ------
        ResultsError
            If the folder is occupied, or a resumed run does not find the start it left there.
        """
        if not step and not self.force and self.path.is_dir() and any(self.path.iterdir()):
            raise ResultsError(
                f"{self.path}: expected an empty or new folder for a run that starts, found a filled one.",
                "Give another folder, or force=True to replace what an earlier run left.",
            )
        config = {**asdict(plan), **settings}
        self._results = ResultsDir.create(
            self.path, command=COMMAND, config=config, tables=TABLES, resume=step > 0, force=self.force and not step
        )
        file = self.path / START
        if not step:
            starts = copy_starts(sites, sites)
            _save(starts, file)
            return starts
        starts = _load(file, sites, step)
        frame = stored(self.results)
        kept = frame[frame["step"] <= step]
        rewrite(self.results, kept)
        self._order = int(kept["order"].max()) if len(kept) else 0
        return starts

    def note(self, **entries: Any) -> None:
        """Record what changes no number."""
        self.results.update(**entries)

    def next_order(self) -> int:
        """Return the place of the next checkpoint in its run."""
        self._order += 1
        return self._order

    def add(self, rows: list[dict[str, Any]], values: dict[str, Any]) -> None:
        """Add one measurement to the tables, and the numbers of its probes to ``probe.json``."""
        add_rows(self.results, rows)
        if "kl" in values:
            self._probes.append(values)
            self.results.write_json("probe", {"probes": self._probes})

    def end(self, cost: Mapping[str, float | int]) -> None:
        """Record the end of the run."""
        counts = stored(self.results)["status"].value_counts()
        rows = {name: int(counts.get(name, 0)) for name in ("ok", "skipped", "failed")}
        known = {name: None if value != value else value for name, value in cost.items()}
        self.results.finish(rows=rows, notes=[], cost=known, problems=self.problems)


def _save(starts: Mapping[str, Copied], file: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, start in starts.items():
        for part, tensor in (("whole", start.whole), ("B", start.B), ("A", start.A)):
            if tensor is not None:
                tensors[f"{part}:{name}"] = tensor.contiguous()
    with replacing(file) as temporary:
        save_file(tensors, temporary)


def _load(file: Path, sites: Mapping[str, Site], step: int) -> dict[str, Copied]:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError):
        tensors = {}
    missing = [name for name in sites if f"whole:{name}" not in tensors]
    if missing:
        raise ResultsError(
            f"{file}: expected the start of the run resumed at step {step}, found no {missing[0]} in it.",
            "Give the folder this run began in, or measure its checkpoints with `driftlab svd`.",
        )
    parts = ("whole", "B", "A")
    return {name: Copied(*(tensors.get(f"{part}:{name}") for part in parts)) for name in sites}
