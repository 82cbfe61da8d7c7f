"""Damage checkpoints at random and see that each is read right or refused by name.

    python benchmarks/fuzz_checkpoints.py --cases 10000 --seed 0

Every case copies a small valid checkpoint of one format, damages it one to three times, and opens and reads it. What
may happen: the tensors are those that the format's own library reads, or a DriftlabError names the file. What may not:
any other error, more than ten seconds, memory beyond a limit, anything run from a pickle, anything written. A case is
its seed: `--only SEED` repeats one with its folder kept.
"""

import argparse
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.lowrank import LowRank
from driftlab.checkpoints.weights import open_weights
from driftlab.errors import DriftlabError

SECONDS = 10
SHAPES = {
    "model.embed_tokens.weight": (10, 6),
    "model.layers.0.mlp.down_proj.weight": (6, 8),
    "model.layers.0.self_attn.q_proj.weight": (4, 6),
    "model.norm.weight": (6,),
}
ODD_VALUES = (
    None, -1, 0, 3, 1e30, float("nan"), "", "..", "../x", "/etc/passwd", "a\0b", "model.safetensors", [], {}, [[]],
    True, 2**31, 2**63, 2**64, 10**30, "9" * 5000, [2**40, 2**40], "BF16", "F4", "F8_E8M0", "\ud800",
    {"model_type": "gpt2"},
)  # fmt: skip
ODD_NAMES = (
    "model.safetensors", "model-00001-of-00002.safetensors", "model-00000-of-00000.safetensors", ".safetensors",
    "model-00001-of-99999.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "x.ckpt", "a\nb.pt",
    "model_world_size_2_rank_0.pt", "model_world_size_0_rank_0.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt",
    "mp_rank_00_model_states.pt", "__0_0.distcp", "adapter_model.safetensors", "adapter_model.bin", "ü.safetensors",
    "model.safetensors.index.json", "pytorch_model.bin.index.json", "adapter_config.json", ".metadata", "latest",
)  # fmt: skip


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.system, (f"touch '{self.mark}'",))


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Return the small model after some steps."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}


def plain(folder: Path) -> None:
    save_file(tensors(1), folder / "model.safetensors")


def shards(folder: Path, suffix: str = ".safetensors", stem: str = "model", save: Callable = save_file) -> None:
    placed = {}
    for i in range(2):
        name = f"{stem}-{i + 1:05d}-of-00002{suffix}"
        part = dict(list(tensors(1).items())[i::2])
        save(part, folder / name)
        placed |= dict.fromkeys(part, name)
    index = f"{stem}{suffix}.index.json"
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))


def torch_shards(folder: Path) -> None:
    shards(folder, ".bin", "pytorch_model", torch.save)


def torch_file(folder: Path) -> None:
    torch.save(tensors(1), folder / "pytorch_model.bin")


def lightning(folder: Path) -> None:
    content = {"state_dict": tensors(1), "pytorch-lightning_version": "2", "args": argparse.Namespace(lr=1.0)}
    torch.save(content, folder / "last.ckpt")


def ranks(folder: Path) -> None:
    for rank in range(2):
        state = {name: tensor.chunk(2)[rank].clone() for name, tensor in tensors(1).items()}
        torch.save(state, folder / f"model_world_size_2_rank_{rank}.pt")


def distributed(folder: Path) -> None:
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": tensors(1), "optim": {"m": torch.ones(2)}}, checkpoint_id=folder, no_dist=True)


def zero(folder: Path) -> None:
    model = {name: tensor.float() for name, tensor in tensors(1).items()}
    flat = torch.cat([tensor.flatten() for tensor in model.values()])
    for rank in range(2):
        states = {"module": {}, "param_shapes": [{n: t.shape for n, t in model.items()}], "buffer_names": []}
        torch.save(states, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        part = torch.cat([tensor.flatten().chunk(2)[rank] for tensor in model.values()])
        optim = {"zero_stage": 3, "partition_count": 2, "fp32_flat_groups": [part]}
        torch.save({"optimizer_state_dict": optim}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    assert flat.numel() % 2 == 0


def adapter(folder: Path) -> None:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{module}.lora_A.weight": torch.randn(2, 6), f"{module}.lora_B.weight": torch.randn(4, 2)}
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 3}))


def quantised(folder: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    packed = tensors(1) | {name: tensors(1)[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(2, 2)}
    save_file(packed, folder / "model.safetensors")
    told = {"model_type": "llama", "quantization_config": {"quant_method": "fp8", "weight_block_size": [3, 4]}}
    (folder / "config.json").write_text(json.dumps(told))


FORMATS = (
    plain, plain, plain, shards, shards,
    torch_file, torch_shards, lightning, ranks, distributed, zero, adapter, quantised,
)  # fmt: skip


# -- damage ---------------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size
    )


def flip(folder: Path, rng: random.Random) -> None:
    """Change bytes, most often near the start or the end, where headers are."""
    path = rng.choice(files(folder))
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 4, 40))):
        span = rng.choice((16, 400, len(raw)))
        at = rng.randrange(min(span, len(raw)))
        raw[at if rng.random() < 0.7 else -1 - at] = rng.randrange(256)
    path.write_bytes(raw)


def cut(folder: Path, rng: random.Random) -> None:
    path = rng.choice(files(folder))
    raw = path.read_bytes()
    path.write_bytes(raw[: rng.randrange(len(raw) + 1)])


def grow(folder: Path, rng: random.Random) -> None:
    path = rng.choice(files(folder))
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice((1, 8, 1000))))


def length(folder: Path, rng: random.Random) -> None:
    """Change the eight bytes that give the length of a safetensors header."""
    path = rng.choice(files(folder))
    raw = path.read_bytes()
    number = rng.choice((0, 1, 2, 7, len(raw), 2**31, 2**63 - 1, 2**64 - 1, rng.randrange(2 * len(raw) + 1)))
    path.write_bytes(struct.pack("<Q", number) + raw[8:])


def odd_json(node: object, rng: random.Random, depth: int = 0) -> object:
    """Replace, drop, double or add one thing somewhere in a JSON value."""
    if not isinstance(node, (dict, list)) or not node or (depth and rng.random() < 0.2):
        return rng.choice(ODD_VALUES)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = rng.choice(keys)
    what = rng.random()
    if what < 0.7:
        node[key] = odd_json(node[key], rng, depth + 1)
    elif what < 0.8:
        del node[key]
    elif isinstance(node, list):
        node.append(rng.choice([*ODD_VALUES, node[key]]))
    else:
        node[rng.choice(("x", "", "__metadata__", "lm_head.weight", "weight_map", "a\0b", f"{key}x"))] = node[key]
    return node


def json_file(folder: Path, rng: random.Random) -> None:
    found = [path for path in files(folder) if path.suffix == ".json"]
    if not found:
        return flip(folder, rng)
    path = rng.choice(found)
    try:
        path.write_text(json.dumps(odd_json(json.loads(path.read_text()), rng)))
    except (ValueError, RecursionError):
        path.write_text("[" * 10_000)
    return None


def header(folder: Path, rng: random.Random) -> None:
    """Change the JSON header of a safetensors file, its bytes left as they are."""
    found = [path for path in files(folder) if path.suffix == ".safetensors"]
    if not found:
        return flip(folder, rng)
    path = rng.choice(found)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    try:
        content = json.loads(raw[8 : 8 + size])
        text = json.dumps(odd_json(content, rng), ensure_ascii=rng.random() < 0.9).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return cut(folder, rng)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])
    return None


def rename(folder: Path, rng: random.Random) -> None:
    path = rng.choice(files(folder))
    target = folder / rng.choice(ODD_NAMES)
    if not target.is_dir():
        path.replace(target)


def swap(folder: Path, rng: random.Random) -> None:
    left, right = rng.choice(files(folder)), rng.choice(files(folder))
    one, two = left.read_bytes(), right.read_bytes()
    left.write_bytes(two)
    right.write_bytes(one)


def link(folder: Path, rng: random.Random) -> None:
    path = rng.choice(files(folder))
    path.unlink()
    target = rng.choice(("gone", path.name, ".", "/dev/zero", "/dev/null", "/etc/passwd", "../base/model.safetensors"))
    path.symlink_to(target)


def not_a_file(folder: Path, rng: random.Random) -> None:
    path = rng.choice(files(folder))
    path.unlink()
    if rng.random() < 0.5:
        os.mkfifo(path)
    else:
        path.mkdir()


def add(folder: Path, rng: random.Random) -> None:
    raw = rng.choice((b"", b"\x80\x04junk", b"PK\x03\x04", b"version https://git-lfs", b"<html>", b"{}", b"GGUF"))
    path = folder / rng.choice(ODD_NAMES)
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        path.write_bytes(raw)


def trap(folder: Path, rng: random.Random) -> None:
    """Put a pickle that runs a command in the place of a file, bare or in a torch file."""
    path = rng.choice(files(folder))
    bait = Trap(folder.parent / "UNPICKLED")
    if rng.random() < 0.5:
        path.write_bytes(pickle.dumps(bait))
    else:
        with path.open("wb") as handle:
            torch.save({"model": tensors(2), "x": bait}, handle)


DAMAGE = (
    flip, flip, cut, grow, length, json_file, json_file, header, header, header,
    rename, swap, link, not_a_file, add, trap,
)  # fmt: skip


# -- one case -------------------------------------------------------------------------------------------------------


def make(root: Path, seed: int) -> Path:
    """Write the damaged checkpoint of a case and a sound base beside it."""
    rng = random.Random(seed)
    base, folder = root / "base", root / f"case-{seed}"
    base.mkdir()
    save_file(tensors(0), base / "model.safetensors")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    rng.choice(FORMATS)(folder)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if files(folder):
            rng.choice(DAMAGE)(folder, rng)
    return folder


def check(root: Path, folder: Path) -> str:
    """Open and read a case; return what came of it, or raise an AssertionError that says what was wrong."""
    before = listing(root)
    signal.alarm(SECONDS)
    try:
        what = outcome(root, folder)
    finally:
        signal.alarm(0)
    assert not (root / "UNPICKLED").exists(), "a pickle was run"
    assert listing(root) == before, "something was written"
    return what


def outcome(root: Path, folder: Path) -> str:
    try:
        sequence = CheckpointSequence.open([str(folder)], root / "base")
        for _ in sequence.tracks():
            pass
        weights = open_weights(folder, sequence.base.weights)
        read = {
            name: info.update() if isinstance(info, LowRank) else info.read() for name, info in weights.tensors.items()
        }
    except DriftlabError as error:
        text = str(error)
        assert str(folder) in text or folder.name in text, f"the message does not name the file: {text}"
        assert len(text) < 1000, f"a message of {len(text)} characters: {text[:300]}"
        return "refused"
    for name, info in weights.tensors.items():
        if not isinstance(info, LowRank):
            assert tuple(read[name].shape) == info.shape, f"{name}: announced {info.shape}, read {read[name].shape}"
    return f"read, {compare(folder, read)}"


def compare(folder: Path, read: dict) -> str:
    """Compare with what the format's own library reads of a single file, where it is one."""
    for name, load in (("model.safetensors", load_file), ("pytorch_model.bin", torch_load)):
        file = folder / name
        if file.is_file():
            try:
                expected = load(file)
            except Exception:  # the library's own answer to damage
                return "the library does not"
            if any(name.endswith(("_scale_inv", "_scale")) for name in expected):
                return "quantised"
            for key, tensor in expected.items() if isinstance(expected, dict) else ():
                if isinstance(tensor, torch.Tensor) and key in read:
                    same = torch.equal(read[key].view(torch.uint8), tensor.contiguous().view(torch.uint8))
                    assert same, f"{key}: not what the library reads"
            return "as the library does"
    return "not compared"


def torch_load(file: Path) -> object:
    return torch.load(file, weights_only=True, map_location="cpu")


def listing(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for path in root.rglob("*"))


def too_long(signum: int, frame: object) -> None:
    raise AssertionError(f"more than {SECONDS} seconds")


def run(seed: int, keep: Path | None = None) -> tuple[str, str]:
    """Run one case; return what came of it, and the traceback where that must not be."""
    root = keep or Path(tempfile.mkdtemp(prefix="fuzz-"))
    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        return check(root, make(root, seed)), ""
    except Exception as error:  # everything but a DriftlabError is a finding
        return f"FAILED {type(error).__name__}", traceback.format_exc(limit=-6)
    finally:
        signal.signal(signal.SIGALRM, previous)
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first case; the others follow by number")
    parser.add_argument("--only", type=int, help="repeat one case and keep its folder")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of address space beyond that at the start")
    options = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + int(options.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if options.only is not None:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        print(folder, *run(options.only, folder), sep="\n")
        return
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.cases):
        what, why = run(seed)
        counts[what] += 1
        if why:
            print(f"case {seed}: {why}", flush=True)
    print(*(f"{count:7d}  {what}" for what, count in counts.most_common()), sep="\n")
    sys.exit(any(what.startswith("FAILED") for what in counts))


if __name__ == "__main__":
    main()
