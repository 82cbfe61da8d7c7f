"""The loop: for each stage, for each step, sample, mark, learn, log; evaluate and save in between."""

import dataclasses
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from driftlab.devices import resolve_device
from driftlab.errors import UsageError
from driftlab.training.config import Stage, TrainConfig
from driftlab.training.distributed import Ranks, join, shard
from driftlab.training.evaluate import evaluate
from driftlab.training.experience import Frame, Sample, collect, collect_gold, draw_questions, student_prompt
from driftlab.training.language import Language, load_language
from driftlab.training.learner import Learner
from driftlab.training.metrics import summarise
from driftlab.training.runfolder import RunFolder
from driftlab.training.sources import check_stages, open_task
from driftlab.training.tasks import Task
from driftlab.training.teachers import Teacher, make_teacher

OnStep = Callable[[dict[str, Any]], None]


@dataclass
class Setup:
    """Everything a run needs, made and checked before the first step."""

    config: TrainConfig
    language: Language
    tasks: list[Task]
    frame: Frame
    ranks: Ranks
    base: str

    @property
    def device(self) -> torch.device:
        """Where the student lives."""
        return self.language.device


def prepare(config: TrainConfig, device: str = "auto") -> Setup:
    """Load the model and the tasks of a run, and check what can be known before it starts.

    Raises
    ------
    DriftlabError
        One sentence on the first thing that cannot work.
    """
    place = resolve_device(device)
    ranks = join(place, config.fsdp)
    _check_shares(config, ranks)
    if ranks.size > 1 and place.type == "cuda":
        place = torch.device("cuda", ranks.rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    # What is to be shared out need not fit the device whole: it goes there in parts, once its copies are made.
    loads = torch.device("cpu") if ranks.sharded else place
    config, language, tasks = (_local_model if config.model else _tiny_world)(config, loads)
    language.ranks, language.device = ranks, place
    config = _fit_window(config, language)
    check_stages(tasks, [stage.name for stage in config.stage_list()])
    frame = Frame(config.frame_solution, config.frame_feedback, config.frame_closing)
    setup = Setup(config, language, tasks, frame, ranks, config.model or "tiny world")
    _check_prompts(setup)
    return setup


def _check_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Raise one sentence if the prompts cannot be dealt out to the processes as they must be."""
    if ranks.size > config.prompts:
        raise UsageError(f"prompts: expected at least one for each of {ranks.size} processes, found {config.prompts}.")
    if not ranks.sharded:
        return
    if (config.prompts // config.updates_per_batch) % ranks.size:
        raise UsageError(
            f"prompts: expected as many for each of {ranks.size} processes that share the weights, found "
            f"{config.prompts // config.updates_per_batch} an optimizer step.",
            f"Use a multiple of {ranks.size * config.updates_per_batch}, or fsdp = 'off'.",
        )
    if config.lora_rank:
        raise UsageError(
            f"lora_rank: expected 0 where weights are sharded, found {config.lora_rank}.",
            "Start without FSDP, or train all weights.",
        )


def _tiny_world(config: TrainConfig, place: torch.device) -> tuple[TrainConfig, Language, list[Task]]:
    """Load the built-in base and domains, and choose for them what the settings leave open."""
    from driftlab.training.world.base import base_folder
    from driftlab.training.world.corpus import HINT_FRAME

    shown = HINT_FRAME.removeprefix("{prompt}")
    config = dataclasses.replace(
        config, lr=config.lr or 3e-4, max_new_tokens=config.max_new_tokens or 44,
        # Two passes over 128 responses are as quick as one and need less memory.
        micro_batch=config.micro_batch or 64,
        frame_solution=config.frame_solution or shown,
        frame_feedback=config.frame_feedback or shown.replace("solution", "feedback"),
    )  # fmt: skip
    folder = base_folder(style_bias=config.style_bias)
    language = load_language(folder, place, lora_rank=config.lora_rank, bf16=config.bf16 == "on")
    return config, language, all_tasks(config)


def _local_model(config: TrainConfig, place: torch.device) -> tuple[TrainConfig, Language, list[Task]]:
    """Load a model folder and the tasks that go with it, and choose for them what the settings leave open."""
    tasks = all_tasks(config)
    if not tasks:
        raise UsageError("Tasks: expected at least one for --model, found none.", "Use --task NAME=FILE.jsonl.")
    config = dataclasses.replace(
        config, lr=config.lr or 1e-5, max_new_tokens=config.max_new_tokens or 256,
        frame_solution=config.frame_solution or Frame.solution,
        frame_feedback=config.frame_feedback or Frame.feedback,
        frame_closing=config.frame_closing or Frame.closing,
    )  # fmt: skip
    language = load_language(
        config.model,
        place,
        bf16=config.bf16 == "on" or (config.bf16 == "auto" and place.type == "cuda"),
        lora_rank=config.lora_rank,
        checkpointing=config.gradient_checkpointing,
    )
    return config, language, tasks


def all_tasks(config: TrainConfig) -> list[Task]:
    """Return the tasks of a run: those it names, after those of the tiny world where it has no model."""
    from driftlab.training.world.domains import DOMAINS

    named = [open_task(text, allow_code_execution=config.allow_code_execution) for text in config.tasks]
    return named if config.model else [*DOMAINS.values(), *named]


def _fit_window(config: TrainConfig, language: Language) -> TrainConfig:
    """Lower the prompt budgets to what the model's context leaves beside the longest response."""
    window = getattr(language.model.config.get_text_config(), "max_position_embeddings", None)
    if not window:
        return config
    room = window - config.max_new_tokens
    if room < 1:
        raise UsageError(
            f"max_new_tokens: expected less than the model's context of {window}, found {config.max_new_tokens}."
        )
    return dataclasses.replace(
        config, prompt_budget=min(config.prompt_budget, room), teacher_budget=min(config.teacher_budget, room)
    )


def train(
    setup: Setup, out: str | Path, *, resume: bool = False, force: bool = False, on_step: OnStep = lambda row: None
) -> RunFolder:
    """Train through all stages and leave a run folder.

    Parameters
    ----------
    setup : Setup
        From :func:`prepare`.
    out : str or Path
        The run folder.
    resume : bool
        Continue after the last saved state; the result equals that of a run without a stop, bit for bit. Where nothing
        lies yet, start: a script that may be killed at any time gives the same line again.
    force : bool
        Replace a former run.
    on_step : callable
        Gets each step's row of ``steps.jsonl``.

    Raises
    ------
    ResultsError
        If the folder is in use, or was made with other settings.
    NumericalError
        If a gradient is not finite.
    """
    run = RunFolder(out)
    config, ranks = setup.config, setup.ranks
    learner = _learner(setup)
    cursor = 0
    if resume and not run.is_empty:
        run.check_resumable(config)
        state = run.load_state(torch.device("cpu") if ranks.sharded else setup.device)
        if state is not None:
            learner.load(state["learner"])
            cursor = state["global_step"]
        if ranks.leads:
            run.rewind(cursor if state is not None else -1)
    elif ranks.leads:
        run.create(config, setup.base, str(setup.device), force=force)
    ranks.wait()
    if cursor == 0:
        _milestone(setup, run, learner, Stage("base", 0), 0, 0, scores=config.evaluate)
    done = 0
    for stage in config.stage_list():
        for step in range(1, stage.steps + 1):
            done += 1
            if done <= cursor:
                continue
            if step == 1:
                _start_stage(learner, config)
            row = {"global_step": done, "stage": stage.name, "step": step, **_step(setup, learner, stage, done)}
            if ranks.leads:
                run.log("steps", row)
            on_step(row)
            last = step == stage.steps
            scores = config.evaluate and (last or (config.eval_every > 0 and done % config.eval_every == 0))
            if last or step % config.save_every == 0 or scores:
                _milestone(setup, run, learner, stage, step, done, scores=scores)
    return run


def _learner(setup: Setup) -> Learner:
    config, model = setup.config, setup.language.model
    teacher = reference = None
    if config.method in ("sdpo", "hybrid"):
        teacher = make_teacher(
            config.teacher, model, ema_rate=config.ema_rate, k=config.teacher_k,
            gamma=config.teacher_gamma, trust_weight=config.trust_weight,
        )  # fmt: skip
    if config.kl_weight and config.method in ("grpo", "hybrid"):
        reference = Teacher(model)
    if setup.ranks.sharded:  # after the copies: what is sharded cannot be copied
        shard(model, setup.device)
        for copied in (teacher, reference):
            if copied is not None:
                copied.shard(setup.device)
    return Learner(setup.language, config, setup.ranks, teacher, reference)


def _start_stage(learner: Learner, config: TrainConfig) -> None:
    if config.teacher_reset == "stage" and learner.teacher is not None:
        learner.teacher.restart(learner.language.model)
    if config.optimizer_reset == "stage":
        learner.new_optimizer()


def _step(setup: Setup, learner: Learner, stage: Stage, global_step: int) -> dict[str, Any]:
    """Take one step and return its row of the log."""
    config, ranks = setup.config, setup.ranks
    task = next(task for task in setup.tasks if task.name == stage.name)
    rows = range(ranks.rank, config.prompts, ranks.size)
    start = time.perf_counter()
    samples: list[Sample]
    if config.method == "sft" and config.sft_on == "gold":
        samples = collect_gold(setup.language, task, config, global_step, rows)
    else:
        samples = collect(setup.language, task, config, setup.frame, global_step, rows)
    sampled = time.perf_counter()
    learnt = learner.learn(samples)
    end = time.perf_counter()
    everyone = sorted((sample for part in ranks.gather(samples) for sample in part), key=lambda sample: sample.row)
    numbers = summarise(everyone, config.group)
    if config.method == "sft" and config.sft_on == "gold":  # nothing was sampled, so nothing was earned
        numbers |= dict.fromkeys(("reward", "reward_std", "success_rate", "frac_reward_zero_std"))
    return {
        **numbers,
        **learnt,
        "optimizer_steps": learner.optimizer_steps,
        "seconds_rollout": sampled - start,
        "seconds_train": end - sampled,
        "tokens_per_second": numbers["tokens"] / (end - start),
        "peak_memory_mb": _peak_memory(setup.device),
    }


def _milestone(
    setup: Setup, run: RunFolder, learner: Learner, stage: Stage, step: int, global_step: int, *, scores: bool
) -> None:
    """Save a checkpoint, evaluate if asked, and last of all the state: a kill before it repeats this step.

    One process does so; where weights are sharded all of them must help, and one writes.
    """
    leads = setup.ranks.leads
    if leads or setup.ranks.sharded:
        label = "base" if global_step == 0 else f"{stage.name}@{step}"
        name = {"label": label, "stage": stage.name, "step": step, "global_step": global_step}
        run.save_checkpoint(setup.language, setup.config, name, leads=leads)
        result = evaluate(setup.language, setup.tasks, setup.config) if scores else None
        state = {"global_step": global_step, "learner": learner.state()}
        if leads:
            for row in result.scores if result else ():
                run.log("scores", {**name, **row})
            if result:
                run.save_responses(label, result.responses)
            run.save_state(state)
    setup.ranks.wait()


def _check_prompts(setup: Setup) -> None:
    """Render questions of every stage's task, all of them where they are a list, so that a long one fails now."""
    config = setup.config
    stages = {stage.name for stage in config.stage_list()}
    for task in setup.tasks:
        if task.name in stages:
            listed = [*getattr(task, "training", []), *getattr(task, "held_out", [])]
            for question in listed or draw_questions(task, config, 0, config.prompts):
                student_prompt(setup.language, question, config.prompt_budget)


def _peak_memory(device: torch.device) -> float:
    """Return the peak memory of the process (of the device, for CUDA) in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
