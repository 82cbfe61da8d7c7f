"""One GRPO step here and in TRL: same model, prompts, lengths, batch and optimizer, side by side in one run.

    python benchmarks/train.py [--steps 10] [--turns 2]

Each trainer runs in its own process with one thread, in turns. CPU seconds a step, tokens a second, peak memory and
their ratios are printed, of every turn and of the best runs; nothing is asserted. Needs ``trl`` (extra ``[dev]``).
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median

PROMPTS, GROUP, LENGTH, LR, WARM = 16, 8, 44, 3e-4, 2


def questions(count):
    from driftlab.training.world.domains import DOMAINS

    return DOMAINS["math"].sample(count, random.Random(0))


def ours(steps):
    """Time the steps of this trainer."""
    from driftlab.training.config import merge
    from driftlab.training.trainer import prepare, train

    settings = {
        "method": "grpo", "stages": f"math:{steps}", "prompts": PROMPTS, "group": GROUP, "max_new_tokens": LENGTH,
        "lr": LR, "evaluate": False, "save_every": 10**6,
    }  # fmt: skip
    times, tokens, clock = [], [], time.process_time()

    def on_step(row):
        nonlocal clock
        now = time.process_time()
        times.append(now - clock)
        tokens.append(row["tokens"])
        clock = now

    setup = prepare(merge(settings), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        clock = time.process_time()
        train(setup, f"{folder}/run", on_step=on_step)
    return times, tokens


def theirs(steps):
    """Time the steps of TRL's GRPOTrainer."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from driftlab.training.world.base import base_folder
    from driftlab.training.world.domains import DOMAINS

    asked = questions(PROMPTS * steps)
    by_prompt = {question.prompt: question for question in asked}
    times, tokens = [], []

    def reward(prompts, completions, completion_ids, **_):
        tokens.append(sum(map(len, completion_ids)))
        return [
            DOMAINS["math"].verify(by_prompt[prompt[0]["content"]], completion[0]["content"]).score
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.last = time.process_time()

        def on_step_end(self, *_, **__):  # from step end to step end, as ours: whatever happens between belongs to it
            now = time.process_time()
            times.append(now - self.last)
            self.last = now

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_steps=steps,
            max_completion_length=LENGTH, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.01,
            max_grad_norm=1.0, temperature=1.0, top_k=0, beta=0.0, loss_type="bnpo", use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to="none", save_strategy="no", disable_tqdm=True,
            logging_strategy="no", optim="adamw_torch_fused", seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(base_folder(), dtype="float32"),
            processing_class=AutoTokenizer.from_pretrained(base_folder()),
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": question.prompt}]} for question in asked]
            ),
            callbacks=[Clock()],
        )
        trainer.train()
    return times, tokens


def measure(which, steps):
    """Run one trainer in this process and print what was measured."""
    import torch

    torch.set_num_threads(1)
    times, tokens = {"ours": ours, "theirs": theirs}[which](steps)
    numbers = {
        "cpu_seconds": median(times[WARM:]),
        "tokens": sum(tokens[WARM:]) / len(tokens[WARM:]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }
    print("RESULT " + json.dumps(numbers))


def rate_of(run):
    """Return tokens a CPU second."""
    return run["tokens"] / run["cpu_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=["ours", "theirs"])
    options = parser.parse_args()
    if options.only:
        return measure(options.only, options.steps)
    found = {"ours": [], "theirs": []}
    for which in ("ours", "theirs") * options.turns:
        done = subprocess.run(
            [sys.executable, __file__, "--only", which, "--steps", str(options.steps)],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            sys.exit(f"{which} failed:\n{done.stderr[-2000:]}")
        found[which].append(json.loads(lines[0].removeprefix("RESULT ")))
    for turn, (one, other) in enumerate(zip(found["ours"], found["theirs"], strict=True), start=1):
        print(f"turn {turn}: {rate_of(one) / rate_of(other):.2f}x")
    best = {which: min(runs, key=lambda run: run["cpu_seconds"]) for which, runs in found.items()}
    print("trainer      CPU s/step  tokens/step  tokens/CPU s  peak MB")
    for name, which in (("driftlab", "ours"), ("TRL GRPO", "theirs")):
        run = best[which]
        print(
            f"{name:11}  {run['cpu_seconds']:10.3f}  {run['tokens']:11.0f}  {rate_of(run):12.0f}  {run['peak_mb']:7.0f}"
        )
    print(f"ratio: {rate_of(best['ours']) / rate_of(best['theirs']):.2f}x the tokens a CPU second")
    return None


if __name__ == "__main__":
    main()
