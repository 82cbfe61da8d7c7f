"""Fine-tune a small model folder for a few plain AdamW steps and keep the steps as checkpoints.

The text is Python's own help topics (what ``help("for")`` prints), so nothing has to be downloaded. Masters,
gradients and optimizer state are fp32; each checkpoint is a whole Hugging Face folder with bf16 weights, named
as the Hugging Face Trainer names them. The base is not copied.

    python finetune.py smollm2-base smollm2-gentle --lr 1e-5 --save-at 1,4,8,12,16
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def parse() -> argparse.Namespace:
    """Read the command line and turn ``--save-every`` and ``--save-at`` into one set of steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="Hugging Face model folder, from make_folder.py for instance")
    parser.add_argument("out", type=Path, help="the folder to fill with checkpoint-N; must be new or empty")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-5, help="constant learning rate of AdamW")
    parser.add_argument("--save-every", type=int, default=4, metavar="N")
    parser.add_argument("--save-at", metavar="N,N,...", help="save at these steps instead of every N")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--seed", type=int, default=0, help="order of the training text")
    parser.add_argument("--threads", type=int, help="CPU threads of torch")
    options = parser.parse_args()
    if min(options.steps, options.save_every, options.batch, options.length - 1) < 1 or options.lr <= 0:
        parser.error("--steps, --save-every and --batch must be at least 1, --length at least 2, --lr above 0")
    try:
        listed = options.save_at.split(",") if options.save_at else range(0, options.steps + 1, options.save_every)
        options.save_at = sorted({int(step) for step in listed} - {0})
    except ValueError:
        parser.error(f"--save-at: expected steps such as 1,4,8, found {options.save_at!r}")
    if not options.save_at or not 1 <= options.save_at[0] <= options.save_at[-1] <= options.steps:
        parser.error(f"nothing would be saved, or beyond the last step: steps 1 to {options.steps} can be saved")
    if not (options.base / "config.json").is_file():
        parser.error(f"{options.base}: expected a model folder with config.json, found none. Run make_folder.py first")
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty. Choose another folder, or delete it first")
    return options


def batches(tokenizer: PreTrainedTokenizerBase, batch: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    """Tokenise the help topics once and yield (batch, length) token ids for ever, reshuffled each time through."""
    ids = tokenizer("\n\n".join(topics[name] for name in sorted(topics)), verbose=False)["input_ids"]
    rows = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
    if len(rows) < batch:
        sys.exit(f"The text gives {len(rows)} sequences of {length} tokens, fewer than --batch {batch}.")
    order = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(rows), generator=order)[: len(rows) // batch * batch].view(-1, batch):
            yield rows[chosen]


def save(
    model: PreTrainedModel, stored: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, log: list[dict]
) -> None:
    """Write ``model`` as bf16 through its twin ``stored``, under a temporary name until it is whole."""
    stored.load_state_dict(model.state_dict())
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    stored.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    state = {"global_step": log[-1]["step"], "log_history": log}
    (temporary / "trainer_state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    temporary.rename(folder)


def main() -> None:
    options = parse()
    transformers.utils.logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    model = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.float32).train()
    stored = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    data = batches(tokenizer, options.batch, options.length, options.seed)

    options.out.mkdir(parents=True, exist_ok=True)
    record = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    record["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (options.out / "finetune.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    log: list[dict] = []
    for step in range(1, options.steps + 1):
        start = time.monotonic()
        ids = next(data)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log.append({"step": step, "loss": loss.item(), "learning_rate": options.lr})
        took = time.monotonic() - start
        saved = f"checkpoint-{step}" if step in options.save_at else ""
        if saved:
            save(model, stored, tokenizer, options.out / saved, log)
        print(f"step {step}/{options.steps}  loss {loss.item():.3f}  {took:.1f} s  {saved}".rstrip(), file=sys.stderr)
    print(options.out)


if __name__ == "__main__":
    main()
