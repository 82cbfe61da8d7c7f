"""Tiny checkpoints to read: a model of six tensors, out != in everywhere, that moves a little with every step."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SHAPES = {
    "model.embed_tokens.weight": (20, 12),
    "model.layers.0.mlp.down_proj.weight": (12, 16),
    "model.layers.0.self_attn.q_proj.weight": (8, 12),
    "model.layers.1.mlp.down_proj.weight": (12, 16),
    "model.layers.1.self_attn.q_proj.weight": (8, 12),
    "model.norm.weight": (12,),
}
CONFIG = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}


class Payload:
    """Unpickling it creates a file: the trap in every pickle the tests leave about."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.system, (f"touch {self.mark}",))


class Make:
    """Writes checkpoints, runs and clutter under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = root / "UNPICKLED"

    def payload(self) -> Payload:
        """Return an object whose unpickling leaves a mark."""
        return Payload(self.mark)

    def tensors(self, step: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
        """Return the model after ``step`` steps; step 0 is the base."""
        found = {}
        for i, (name, shape) in enumerate(SHAPES.items()):
            start = torch.randn(shape, generator=torch.Generator().manual_seed(i))
            move = torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + i))
            found[name] = (start + (0.02 if step else 0.0) * move).to(dtype)
        return found

    def folder(self, path: str, step: int = 0, tensors=None, config=CONFIG, name: str = "model.safetensors") -> Path:
        """Write one checkpoint folder."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(step) if tensors is None else tensors, folder / name)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    def sharded(self, path: str, step: int = 0, count: int = 3, index: bool = True) -> Path:
        """Write one checkpoint folder in shards."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        weight_map = {}
        tensors = list(self.tensors(step).items())
        for i in range(count):
            shard = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
            part = dict(tensors[i::count])
            save_file(part, folder / shard)
            weight_map |= dict.fromkeys(part, shard)
        if index:
            self.index(folder, weight_map)
        return folder

    def index(self, folder: Path, weight_map: object) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def run(self, path: str, labels: dict[str, int], method: str = "SFT", base: bool = True, **record) -> Path:
        """Write a run folder of driftlab's own; ``labels`` are label -> global step."""
        folder = self.root / path
        for label, total in (({"base": 0} if base else {}) | labels).items():
            stage, _, step = label.partition("@")
            place = {"label": label, "stage": stage if step else "", "step": int(step or 0), "global_step": total}
            checkpoint = self.folder(f"{path}/checkpoints/{total:06d}-{label}", total)
            (checkpoint / "driftlab.json").write_text(json.dumps(place))
        (folder / "run.json").write_text(json.dumps({"method": method, **record}))
        return folder

    def clutter(self, folder: Path) -> None:
        """Leave what trainers leave, each pickle with a trap in it."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "pytorch_model.bin"):
            (folder / name).write_bytes(pickle.dumps(Payload(self.mark)))
        (folder / "trainer_state.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")


@pytest.fixture
def make(tmp_path):
    return Make(tmp_path)


@pytest.fixture
def model_names():
    return list(SHAPES)
