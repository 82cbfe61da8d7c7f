"""What the callback costs a training run, as it measures it itself: a share of the step time of the same run.

python benchmarks/callback.py smollm2-base --steps 150 --max-overhead 0.02
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from driftlab.integrations import DriftCallback
from driftlab.results import ResultsDir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a causal language model")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=1, help="rows a step")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--max-overhead", type=float, default=0.02)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (options.steps * options.rows, options.tokens), generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.rows,
            learning_rate=1e-5,
            logging_steps=options.steps,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        rows = [{"input_ids": row, "labels": row} for row in ids]
        trainer = Trainer(model, arguments, train_dataset=rows)
        out = Path(folder) / "drift"
        callback = DriftCallback(out, every=options.every, max_overhead=options.max_overhead).attach(trainer)
        trainer.train()
        table = ResultsDir.open(out).table("spectral")
    each = table.groupby("step")["seconds"].sum()
    found = {
        **callback.cost(),
        "measured_steps": sorted(map(int, set(table["step"]))),
        "matrices": int(table["matrix"].nunique()),
        "median_seconds_of_a_measurement": float(each.median()),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
