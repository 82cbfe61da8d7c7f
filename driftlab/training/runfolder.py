"""What a run leaves on disk: checkpoints, logs, responses, and the state that a resume needs.

Layout::

    RUN/run.json                        method, settings, seed, stages, base, versions, commit, device, dtype
    RUN/checkpoints/000010-math@10/     Hugging Face folder + driftlab.json
    RUN/steps.jsonl, RUN/scores.jsonl   one object a step; one a (checkpoint, task)
    RUN/responses/LABEL.jsonl           answers to the fixed evaluation questions
    RUN/state/last/state.pt             weights, optimizer, teacher, cursor

Everything is written under a temporary name and renamed.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from driftlab.errors import ResultsError
from driftlab.training.config import TrainConfig
from driftlab.training.language import Language, save_language

_PACKAGES = ("driftlab", "torch", "transformers", "tokenizers", "safetensors", "peft", "reasoning-gym")


class RunFolder:
    """The folder of one run.

    Parameters
    ----------
    path : Path
        Where it is, or will be.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies there yet, so that there is no run to resume and none to replace."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def create(self, config: TrainConfig, base: str, device: str, *, force: bool = False) -> None:
        """Write ``run.json`` into a new folder.

        Raises
        ------
        ResultsError
            If the folder holds something and ``force`` is not set, or if it holds something that is no run.
        """
        if not self.is_empty:
            if not force:
                raise ResultsError(
                    f"Run folder {self.path}: expected a new or empty folder, found files.",
                    "Give --resume to continue the run in it, or --force to start it again.",
                )
            self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        stages = [stage._asdict() for stage in config.stage_list()]
        content = {
            "method": config.name or config.method,
            "config": config.to_dict(),
            "seed": config.seed,
            "stages": stages,
            "base": base,
            "versions": {name: _version(name) for name in _PACKAGES},
            "git_commit": _git_commit(),
            "device": device,
            "dtype": config.save_dtype,
        }
        _write(self.path / "run.json", json.dumps(content, indent=2))

    def check_resumable(self, config: TrainConfig) -> None:
        """Refuse to continue a run that was made with other settings.

        Raises
        ------
        ResultsError
            Naming the settings that differ.
        """
        try:
            found = json.loads((self.path / "run.json").read_text(encoding="utf-8"))["config"]
        except (OSError, ValueError, KeyError, TypeError):
            raise ResultsError(
                f"Run folder {self.path}: expected run.json of a run to resume, found none that can be read.",
                "Choose another --out for a new run.",
            ) from None
        wanted = config.to_dict()
        differ = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        if differ:
            name = differ[0]
            raise ResultsError(
                f"Run folder {self.path}: expected the settings it was started with, found {len(differ)} others "
                f"({name}: {found.get(name)!r} there, {wanted.get(name)!r} now).",
                "Resume with the same settings, or give --force to start again.",
            )

    def save_checkpoint(
        self, language: Language, config: TrainConfig, name: Mapping[str, Any], *, leads: bool = True
    ) -> None:
        """Write one checkpoint; ``name`` holds label, stage, step and global_step.

        Processes that share out the weights all call this; the one that ``leads`` writes.
        """
        dtype = getattr(torch, config.save_dtype)
        folder = self.path / "checkpoints" / f"{name['global_step']:06d}-{name['label']}"
        temporary = folder.with_name(f".{folder.name}.tmp")
        if folder.exists() or not leads:
            if language.ranks.sharded:  # the others wait for this part
                save_language(language.model, language.tokenizer, temporary, dtype, leads=False)
            return
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_language(language.model, language.tokenizer, temporary, dtype)
        _write(temporary / "driftlab.json", json.dumps(dict(name), indent=2))
        os.replace(temporary, folder)

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state of the last checkpoint by this one, at once."""
        file = self.path / "state" / "last" / "state.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state), file.with_suffix(".tmp"))
        os.replace(file.with_suffix(".tmp"), file)

    def load_state(self, device: torch.device) -> dict[str, Any] | None:
        """Return the saved state, None if the run was stopped before its first."""
        file = self.path / "state" / "last" / "state.pt"
        if not file.is_file():
            return None
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        return state

    def rewind(self, global_step: int) -> None:
        """Drop what was logged and saved after a step: the resumed run writes it again."""
        for name in ("steps.jsonl", "scores.jsonl"):
            file = self.path / name
            if file.is_file():
                kept = [line for line in file.read_text(encoding="utf-8").splitlines() if _step_of(line) <= global_step]
                _write(file, "".join(f"{line}\n" for line in kept))
        for folder in (self.path / "checkpoints").glob("*-*"):
            if not folder.name.startswith(".") and int(folder.name.split("-")[0]) > global_step:
                shutil.rmtree(folder)

    def log(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one object to ``steps.jsonl`` or ``scores.jsonl``."""
        with (self.path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def save_responses(self, label: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the responses to the fixed evaluation questions."""
        folder = self.path / "responses"
        folder.mkdir(exist_ok=True)
        _write(folder / f"{label}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def _clear(self) -> None:
        """Remove a former run, and nothing that is not one."""
        if not (self.path / "run.json").is_file():
            raise ResultsError(
                f"Folder {self.path}: expected a run folder with run.json, found other files.",
                "--force replaces runs only: choose another --out.",
            )
        for name in ("checkpoints", "responses", "state"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("run.json", "steps.jsonl", "scores.jsonl"):
            (self.path / name).unlink(missing_ok=True)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["global_step"])
    except (ValueError, KeyError, TypeError):  # the half-written last line of a killed run
        return 1 << 60


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the code in use, None outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
