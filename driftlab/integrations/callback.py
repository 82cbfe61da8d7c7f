"""A callback for the Trainer of ``transformers`` and the trainers of TRL: drift while a run is under way."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from driftlab.errors import UsageError
from driftlab.integrations.journal import Journal
from driftlab.integrations.measuring import Start
from driftlab.integrations.pace import Pace
from driftlab.integrations.probe import Look, Probe
from driftlab.integrations.selection import choose
from driftlab.integrations.weights import Copied, Site, copy_sites, find_sites
from driftlab.live.alarms import PROBED, WATCHED, check_limits, exceeded, numbers
from driftlab.spectral.measures import Plan

_LOG = logging.getLogger("driftlab")
_LOGGED = ("nss", "nss_null", "rel_frobenius", "max_angle_deg", "mask_overlap", "update_density", "failed")


class DriftCallback(TrainerCallback):
    """Measure chosen matrices of the model against its start every n steps, beside the training loop.

    The loop pays for a copy of the matrices to the CPU (of adapters, their factors) and for probes; the measurement
    runs in a thread on one core. With several processes the first measures, and its decision to stop reaches all.

    Parameters
    ----------
    out : str or Path
        Results folder; the tables ``spectral`` and ``spectral_summary`` grow in it, as ``driftlab svd`` has them.
    every : int, default 50
        Steps between measurements, at least. One that falls due while another runs is skipped, and counted.
    include, largest, every_layer
        Which matrices, see :func:`driftlab.integrations.selection.choose`; by default the largest attention and the
        largest other matrix of the first, the middle and the last layer.
    plan : Plan, optional
        Which measures with which settings; all of them by default.
    max_overhead : float, default 0.02
        Largest share of the step time that measuring may cost; the interval is stretched to keep to it. ``math.inf``
        for no limit. See :class:`driftlab.integrations.pace.Pace` for how it is measured.
    warn, stop : mapping of str to float, optional
        Limits. Names: ``nss``, ``rel_frobenius`` (means over the matrices), ``max_angle_deg`` (their largest),
        ``kl``, ``repeat_rate`` (of the probes). Above one, a warning is logged, or training is told to stop.
    prompts : sequence of str, optional
        Probe prompts, see :class:`driftlab.integrations.probe.Probe`. The start's logits are kept in memory: 4 bytes
        for each of prompts x ``probe_tokens`` x vocabulary entries.
    probe_tokens : int, default 32
        Length budget of probe responses.
    seed : int, default 0
        Of the probes.
    run : str, default "train"
        What the tables call the run.
    force : bool, default False
        Replace earlier results in ``out``. A run that the trainer resumes goes on in its folder by itself.

    Raises
    ------
    UsageError
        If a setting is wrong.

    Examples
    --------
    >>> callback = DriftCallback("drift", every=20, stop={"rel_frobenius": 0.05})
    >>> callback.attach(trainer)                # doctest: +SKIP
    >>> trainer.train()                         # doctest: +SKIP
    """

    def __init__(
        self,
        out: str | Path,
        *,
        every: int = 50,
        include: str | None = None,
        largest: int = 0,
        every_layer: int = 0,
        plan: Plan | None = None,
        max_overhead: float = 0.02,
        warn: Mapping[str, float] | None = None,
        stop: Mapping[str, float] | None = None,
        prompts: Sequence[str] = (),
        probe_tokens: int = 32,
        seed: int = 0,
        run: str = "train",
        force: bool = False,
    ) -> None:
        if every < 1:
            raise UsageError(f"every: expected at least 1 step, found {every}.")
        if not max_overhead > 0:
            raise UsageError(f"max_overhead: expected a share above 0, found {max_overhead}.")
        known = [*WATCHED, *(PROBED if prompts else ())]
        self.warn = check_limits(warn or {}, known, "warn")
        self.stop = check_limits(stop or {}, known, "stop")
        self.rule = {"include": include, "largest": largest, "every_layer": every_layer}
        self.plan = plan or Plan()
        self.prompts, self.probe_tokens, self.seed = list(prompts), probe_tokens, seed
        self.run = run
        self.journal = Journal(Path(out), force=force)
        self.pace = Pace(every, max_overhead)
        self.alarms: list[str] = []
        self.trainer: Any = None
        self._sites: dict[str, Site] = {}
        self._start: Start | None = None
        self._probe: Probe | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._job: Future[Any] | None = None
        self._setup = 0.0
        self._step_began = 0.0
        self._busy_at_start = False
        self._stopping = False
        self._measured_at = -1

    def attach(self, trainer: Any) -> "DriftCallback":
        """Add the callback to a trainer and log through it: the way to reach all of its loggers.

        Given to the trainer's ``callbacks`` instead, it adds its numbers to the trainer's next log entry, which reaches
        the log history and those loggers that come after it only.
        """
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    # -- events of the trainer ------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Copy the start and begin to decompose it."""
        if not state.is_world_process_zero:
            return
        began = time.perf_counter()
        found = find_sites(model)
        names = choose({name: tuple(site.weight.shape) for name, site in found.sites.items()}, **self.rule)  # type: ignore[arg-type]
        self._sites = {name: found.sites[name] for name in names}
        probe = {"prompts": self.prompts, "probe_tokens": self.probe_tokens, "probe_seed": self.seed}
        settings = {**self.rule, "matrices": names, "left_out": found.left_out, **probe}
        starts = self.journal.begin(self._sites, self.plan, settings, state.global_step)
        budget = str(self.pace.budget)  # JSON has no infinity
        self.journal.note(every=self.pace.every, max_overhead=budget, warn=self.warn, stop=self.stop)
        self.pace.begin(state.global_step)
        self._start = Start(starts, self.plan, self.run)
        if self.prompts:
            if state.global_step:
                raise UsageError(
                    f"Probe prompts: expected a run from its start, found one resumed at step {state.global_step}: "
                    "the start's answers are gone.",
                    "Leave out prompts, or begin again.",
                )
            tokenizer = kwargs.get("processing_class")
            self._probe = Probe(model, tokenizer, self.prompts, self.probe_tokens, self.seed)
        self._pool = ThreadPoolExecutor(1, "driftlab")
        self._job = self._pool.submit(self._start.prepare)
        self._setup = time.perf_counter() - began

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock of a step."""
        self._step_began = time.perf_counter()
        self._busy_at_start = self._busy

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Take up what the thread has finished, start the next measurement if it is due, stop if a limit says so."""
        ended = time.perf_counter()
        if self._start is not None:
            self.pace.stepped(ended - self._step_began, self._busy_at_start or self._busy)
            self._collect(state, control)
            if self.pace.due(state.global_step, self._busy):
                self._measure(state.global_step, model)
        if self.stop and self._agreed(args):
            control.should_training_stop = True
        self.pace.hold(time.perf_counter() - ended)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the latest numbers to the trainer's entry where there is no way to make one of our own."""
        if logs is not None and self.trainer is None and self.journal.pending:
            logs |= self.journal.pending
            if state.log_history:
                state.log_history[-1] |= self.journal.pending
            self.journal.pending = {}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure the end, wait for it, and write what measuring cost."""
        if self._start is None or self._pool is None:
            return
        self._wait(state, control)
        if self._measured_at != state.global_step:
            self._measure(state.global_step, model)
            self._wait(state, control)
        self._pool.shutdown()
        self._pool = None
        self.journal.end(self.cost())

    # -- what the events are made of -------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._job is not None and not self._job.done()

    def cost(self) -> dict[str, float | int]:
        """Return what measuring has cost so far: ``overhead`` is its share of the step time."""
        quiet, busy = self.pace.step_seconds
        return {
            "overhead": self.pace.overhead,
            "setup_seconds": self._setup,
            "held_seconds": self.pace.held,
            "slowed_seconds": self.pace.slowed,
            "training_seconds": self.pace.training,
            "step_seconds_without": quiet,
            "step_seconds_beside": busy,
            "skipped": self.pace.skipped,
            "postponed_steps": self.pace.postponed,
        }

    def _measure(self, step: int, model: Any) -> None:
        assert self._pool is not None
        now = copy_sites(self._sites, self._sites)
        look = self._probe.look(model) if self._probe is not None else None
        self._measured_at = step
        self._job = self._pool.submit(self._work, now, look, step, self.journal.next_order())

    def _work(
        self, now: Mapping[str, Copied], look: Look | None, step: int, order: int
    ) -> tuple[int, list[dict[str, Any]], dict[str, float]]:
        """Measure, in the thread."""
        assert self._start is not None
        rows = self._start.rows(now, step, order)
        values = numbers(rows)
        if look is not None and self._probe is not None:
            values |= self._probe.numbers(look)
        self.journal.add(rows, {"step": step, **values})
        return step, rows, values

    def _wait(self, state: TrainerState, control: TrainerControl) -> None:
        if self._job is not None:
            self._job.exception()
        self._collect(state, control)

    def _collect(self, state: TrainerState, control: TrainerControl) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        problem = job.exception()
        if problem is not None:
            # A measurement that fails must not take a training run of days with it.
            _LOG.warning("drift could not be measured: %s: %s", type(problem).__name__, problem)
            self.journal.problems.append(str(problem))
            return
        self.pace.done()
        if job.result() is None:  # the start has been decomposed
            return
        step, rows, values = job.result()
        for row in rows:
            if row["status"] == "failed":
                _LOG.warning("step %d: %s was not measured: %s", step, row["matrix"], row["reason"])
        alarms = exceeded(values, self.stop)
        for text in alarms:
            _LOG.warning("drift limit reached at step %d: %s; training stops", step, text)
        warnings = exceeded(values, self.warn)
        for text in warnings:
            _LOG.warning("drift warning at step %d: %s", step, text)
        self.alarms += [f"step {step}: {text}" for text in [*alarms, *warnings]]
        self._stopping = self._stopping or bool(alarms)
        self._log(step, values, len(alarms) + len(warnings), state, control)

    def _log(
        self, step: int, values: Mapping[str, float], alarms: int, state: TrainerState, control: TrainerControl
    ) -> None:
        names = [*_LOGGED, *(name for name in ("kl", "repeat_rate") if name in values)]
        entry = {f"drift/{name}": values[name] for name in names if not math.isnan(values[name])}
        entry |= {"drift/step": step, "drift/skipped": self.pace.skipped, "drift/alarms": alarms}
        if not math.isnan(self.pace.overhead):
            entry["drift/overhead"] = self.pace.overhead
        if self.trainer is None:
            self.journal.pending = entry
            return
        due = control.should_log
        # Not the trainer's own method: those of TRL empty their running averages with every entry. The base's makes an
        # entry and calls every logger, which marks the trainer's own entry of this step as written: it is still due.
        Trainer.log(self.trainer, entry)
        control.should_log = due

    def _agreed(self, args: TrainingArguments) -> bool:
        """Whether the first process has decided to stop: all must leave the loop after the same step."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self._stopping
        if torch.distributed.get_world_size() == 1:
            return self._stopping
        flag = torch.tensor([float(self._stopping)], device=args.device)
        torch.distributed.broadcast(flag, src=0)
        return bool(flag.item())
