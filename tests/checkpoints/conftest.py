"""One model in every layout: by the real library where it is small, else by the layout it documents."""

import json
import math
import warnings
from pathlib import Path

import pytest
import torch

from driftlab.checkpoints import CheckpointSequence
from driftlab.checkpoints.weights import open_weights
from driftlab.results import ResultsDir
from driftlab.scan import TABLES, describe, scan
from driftlab.spectral import Plan

CONFIG = {"model_type": "llama", "tie_word_embeddings": True}


class Save:
    """Writes a state dict in the layouts of trainers."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, path: str, config=CONFIG) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    def torch(self, path: str, content, name: str = "pytorch_model.bin") -> Path:
        folder = self.folder(path)
        torch.save(content, folder / name)
        return folder

    def bin_shards(self, path: str, tensors, count: int = 3) -> Path:
        """Shards with an index, as transformers wrote them before safetensors."""
        folder, placed = self.folder(path), {}
        for i in range(count):
            name = f"pytorch_model-{i + 1:05d}-of-{count:05d}.bin"
            part = dict(list(tensors.items())[i::count])
            torch.save(part, folder / name)
            placed |= dict.fromkeys(part, name)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
        return folder

    def fsdp(self, path: str, tensors, mesh=(2,), dim: int = 0, buffers=()) -> Path:
        """verl's ``model_world_size_W_rank_R.pt`` with DTensors; the last axis of the mesh cuts dimension ``dim``."""
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

        folder = self.folder(f"{path}/huggingface").parent
        world, cut = math.prod(mesh), mesh[-1]
        device_mesh = fake_mesh(mesh)
        placements = (*(Replicate() for _ in mesh[:-1]), Shard(dim))
        for rank in range(world):
            state = {}
            for name, tensor in tensors.items():
                axis = min(dim, tensor.ndim - 1)
                if name in buffers:
                    state[name] = tensor
                    continue
                parts = list(tensor.chunk(cut, axis))
                parts += [tensor.narrow(axis, 0, 0)] * (cut - len(parts))
                placed = placements if axis == dim else (*placements[:-1], Shard(axis))
                spec = DTensorSpec(
                    device_mesh, placed, tensor_meta=TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
                )
                state[name] = DTensor(parts[rank % cut].clone(), spec, requires_grad=False)
            torch.save(state, folder / f"model_world_size_{world}_rank_{rank}.pt")
        torch.save({"lr": 1e-3}, folder / f"optim_world_size_{world}_rank_0.pt")
        torch.save({"rng": torch.ones(2)}, folder / f"extra_state_world_size_{world}_rank_0.pt")
        return folder

    def fsdp_plain(self, path: str, tensors, world: int, cut: bool) -> Path:
        """Plain tensors on every rank: rows, or copies."""
        folder = self.folder(f"{path}/huggingface").parent
        for rank in range(world):
            state = {name: (t.chunk(world)[rank].clone() if cut else t.clone()) for name, t in tensors.items()}
            torch.save(state, folder / f"model_world_size_{world}_rank_{rank}.pt")
        return folder

    def dcp(self, path: str, state) -> Path:
        import torch.distributed.checkpoint as dcp

        folder = self.folder(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, checkpoint_id=folder, no_dist=True)
        return folder

    def zero2(self, path: str, tensors, tag: str = "global_step5") -> Path:
        folder = self.folder(path) / tag
        folder.mkdir()
        states = {"module": tensors, "buffer_names": [], "ds_version": "0.16", "ds_config": {"x": 1}, "global_steps": 5}
        torch.save(states, folder / "mp_rank_00_model_states.pt")
        flat = torch.cat([t.float().flatten() for t in tensors.values()])
        optim = {"optimizer_state_dict": {"zero_stage": 2, "single_partition_of_fp32_groups": [flat]}}
        torch.save(optim, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
        (folder.parent / "latest").write_text(f"{tag}\n")
        return folder.parent

    def zero3(self, path: str, tensors, world: int = 3, frozen=(), groups: int = 2) -> Path:
        """Every parameter in equal parts, padded; the parts of a rank one after the other in flat groups."""
        folder = self.folder(path) / "global_step5"
        folder.mkdir()

        def parts(tensor):
            size = math.ceil(tensor.numel() / world)
            padded = torch.nn.functional.pad(tensor.flatten(), (0, size * world - tensor.numel()), value=7.0)
            return padded.chunk(world)

        trained = {name: t for name, t in tensors.items() if name not in frozen}
        names = list(trained)
        shapes = [{n: trained[n].shape for n in names[i::groups]} for i in range(groups)]
        order = [n for group in shapes for n in group]
        for rank in range(world):
            states = {
                "module": {n: torch.empty(0) for n in tensors},
                "param_shapes": shapes,
                "buffer_names": [],
                "shared_params": {},
                "frozen_param_shapes": {n: tensors[n].shape for n in frozen},
                "frozen_param_fragments": {n: parts(tensors[n])[rank].clone() for n in frozen},
                "ds_version": "0.16",
            }
            torch.save(states, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            flat = torch.cat([parts(trained[n])[rank].float() for n in order])
            half = flat.numel() // 2 + 1  # a border inside a parameter
            optim = {
                "zero_stage": 3,
                "partition_count": world,
                "fp32_flat_groups": [flat[:half].clone(), flat[half:].clone()],
                "optimizer_state_dict": {"state": {}},
            }
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": optim}, folder / name)
        return folder.parent

    def mesh(self, shape):
        return fake_mesh(shape)


_meshes = {}


def fake_mesh(shape):
    """A device mesh of that shape without any process."""
    if shape not in _meshes:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(shape))
            try:
                names = ("fsdp",) if len(shape) == 1 else ("ddp", "fsdp")
                _meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
            finally:
                dist.destroy_process_group()
    return _meshes[shape]


@pytest.fixture
def save(tmp_path):
    return Save(tmp_path)


@pytest.fixture
def drift(tmp_path):
    """Return the drift table of checkpoints against a base, without what names the files and the time."""
    count = 0

    def table(base, *checkpoints, plan=None):
        nonlocal count
        count += 1
        sequence = CheckpointSequence.open([str(path) for path in checkpoints], base)
        plan = plan or Plan(method="exact", null="none")
        results = ResultsDir.create(
            tmp_path / f"out{count}", command="svd", config=describe(sequence, plan), tables=TABLES
        )
        scan(sequence, plan, results, device="cpu")
        return results.table("spectral").drop(columns=["seconds", "label", "run", "stage", "step", "dtype"])

    return table


@pytest.fixture
def same():
    """Compare what is read with what was saved, to the bit."""

    def check(path, tensors):
        weights = open_weights(path)
        assert set(weights.tensors) == set(tensors)
        for name, info in weights.tensors.items():
            found = info.read()
            assert found.shape == tensors[name].shape == info.shape, name
            assert torch.equal(found, tensors[name]), name
        return weights

    return check
