"""Train a tiny model twice and keep the steps: two run folders to try driftlab on, in well under a minute.

A Llama of 140 thousand parameters learns a toy language of sums and sentences letter by letter. From that base
two plain supervised runs (SFT) start: ``gentle`` practises sums at a small learning rate, ``hard`` sums and then
sentences at a larger one. Weights are trained in fp32 and stored in bf16. Same seed, same bytes.

    python examples/tiny_sequence.py runs
"""

import argparse
import json
import os
import platform
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

ALPHABET = "0123456789+-=;. abcdefghijklmnopqrstuvwxyz"
LENGTH, BATCH = 48, 32
RUNS = {"gentle": (3e-4, ("math",)), "hard": (1e-3, ("math", "words"))}  # learning rate, stages
Step = dict[str, float | str]


def sentence(stage: str, rng: random.Random) -> str:
    """Return one sentence. The base reads mostly one-digit sums and short sentences, the stages longer ones."""
    short = stage == "base" and rng.random() < 0.8
    if stage == "math" or (stage == "base" and rng.random() < 0.5):
        a, b = (rng.randint(0, 9 if short else 99) for _ in range(2))
        return rng.choice((f"{a}+{b}={a + b};", f"{a}-{b}={a - b};"))
    who, whom = rng.choice(("ann", "ben", "cleo", "dan")), rng.choice(("eve", "flo", "gus", "hal"))
    what = f"{who} {rng.choice(('sees', 'meets', 'calls'))} {whom}"
    return f"{what}." if short else f"at {rng.choice(('home', 'work', 'noon'))} {what} and {whom} thanks {who}."


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rng: random.Random, lr: float, stages: list[dict]
) -> Iterator[Step]:
    """Take AdamW steps through the stages and yield a record after each one."""
    optimizer, total = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0), 0
    for stage in stages:
        for step in range(1, stage["steps"] + 1):
            rows = ["".join(sentence(stage["name"], rng) for _ in range(LENGTH))[:LENGTH] for _ in range(BATCH)]
            ids = torch.tensor(tokenizer(rows)["input_ids"])
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += 1
            record: Step = {"step": total, "stage": stage["name"], "stage_step": step, "loss": loss.item()}
            yield record | {"grad_norm": norm.item(), "lr": lr}


def copy_of(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy whose weights are rounded to ``dtype``; the rotary frequencies stay as they are."""
    copy = AutoModelForCausalLM.from_config(model.config, dtype=dtype)
    copy.load_state_dict(model.state_dict())
    return copy


def make_base(seed: int, steps: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a briefly pretrained model in bf16, as published weights are, and its tokenizer of single letters."""
    letters = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(ALPHABET)}, merges=[]))
    letters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token=";", pad_token=";")
    sizes = {"vocab_size": len(ALPHABET), "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads, **ends, tie_word_embeddings=True))
    for done in train(model, tokenizer, random.Random(seed), 3e-3, [{"name": "base", "steps": steps}]):
        if done["step"] % 50 == 0:
            print(f"base: step {done['step']}/{steps}, loss {done['loss']:.2f}", file=sys.stderr)
    return copy_of(model, torch.bfloat16), tokenizer


def write_json(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, run: Path, done: Step | None = None) -> None:
    """Write one checkpoint folder, the base if nothing is ``done``, under a temporary name until it is whole."""
    stage, step, total = (done["stage"], done["stage_step"], done["step"]) if done else ("", 0, 0)
    label = f"{stage}@{step}" if done else "base"
    folder = run / "checkpoints" / f"{total:06d}-{label}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    copy_of(model, torch.bfloat16).save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    write_json(temporary / "driftlab.json", {"label": label, "stage": stage, "step": step, "global_step": total})
    temporary.rename(folder)


def make_run(base: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, run: Path, options: argparse.Namespace) -> str:
    """Train one run, fill its folder, and return a line about it."""
    lr, names = RUNS[run.name]
    ends = [options.steps * i // len(names) for i in range(len(names) + 1)]
    stages = [{"name": name, "steps": ends[i + 1] - ends[i]} for i, name in enumerate(names)]
    config = {"lr": lr, "batch": BATCH, "length": LENGTH, "optimizer": "adamw", "weight_decay": 0.0}
    config |= {"max_grad_norm": 1.0, "save_every": options.save_every, "pretrain_steps": options.pretrain}
    versions = {package.__name__: str(package.__version__) for package in (torch, transformers)}
    record = {"method": f"SFT {lr:.0e}".replace("e-0", "e-"), "config": config, "seed": options.seed, "stages": stages}
    record |= {"base": "checkpoints/000000-base", "versions": versions | {"python": platform.python_version()}}
    save(base, tokenizer, run)
    write_json(run / "run.json", record | {"git_commit": None, "device": "cpu", "dtype": "bfloat16"})
    model, last = copy_of(base, torch.float32), {stage["name"]: stage["steps"] for stage in stages}
    with (run / "steps.jsonl").open("w", encoding="utf-8") as log:
        for done in train(model, tokenizer, random.Random(options.seed + 1), lr, stages):
            log.write(json.dumps(done) + "\n")
            if done["stage_step"] % options.save_every == 0 or done["stage_step"] == last[done["stage"]]:
                save(model, tokenizer, run, done)
    return f"{record['method']}, {len(list((run / 'checkpoints').iterdir()))} checkpoints, loss {done['loss']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to fill with gentle/ and hard/; earlier ones are replaced")
    parser.add_argument("--steps", type=int, default=48, help="training steps of each run")
    parser.add_argument("--save-every", type=int, default=6, metavar="N")
    parser.add_argument("--pretrain", type=int, default=150, help="training steps of the base")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 2 or options.save_every < 1 or options.pretrain < 1:
        parser.error("--steps must be at least 2, --save-every and --pretrain at least 1")
    for target in (options.out / name for name in RUNS):
        if target.exists() and not (target / "run.json").is_file():
            parser.error(f"{target} is there and is not a run folder: choose another folder")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    base, tokenizer = make_base(options.seed, options.pretrain)
    for target in (options.out / name for name in RUNS):
        temporary = options.out / f".{os.getpid()}.tmp" / target.name
        line = make_run(base, tokenizer, temporary, options)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        temporary.parent.rmdir()
        print(f"{target}: {line}")


if __name__ == "__main__":
    main()
