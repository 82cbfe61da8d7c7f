"""LoRA: only factors are copied, and the numbers are those of the merged weights."""

import math

import pytest
import torch
from torch import nn

from driftlab.errors import UsageError
from driftlab.integrations import DriftCallback
from driftlab.integrations.measuring import Start
from driftlab.integrations.weights import copy_sites, copy_starts, find_sites
from driftlab.live.growing import TABLES
from driftlab.results import ResultsDir
from driftlab.spectral import Plan
from driftlab.spectral.basis import Basis
from driftlab.spectral.drift import measure

pytestmark = [
    # peft asks transformers by a name that it has deprecated,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    # and sets this for the layer that needs it.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
]
peft = pytest.importorskip("peft")
PLAN = Plan(method="exact", null="none", mask_rank=4)


class Net(nn.Module):
    """Two layers, out != in, one of them a Conv1D whose weight is stored transposed."""

    def __init__(self):
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.first = nn.Linear(24, 40, bias=False)
        self.second = Conv1D(20, 40)
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        return self.head(self.second(self.first(x)))


def adapted(start="standard", **options):
    torch.manual_seed(0)
    names = {"target_modules": ["first", "second"], "r": 3, "lora_alpha": 12, "fan_in_fan_out": False}
    config = peft.LoraConfig(**names | options, init_lora_weights=start == "standard")
    return peft.get_peft_model(Net(), config)


def move(model, scale=0.05):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight += scale * torch.randn(weight.shape, generator=generator)


def merged(model):
    """Return the whole weights of the adapted layers under their plain names, by peft's own arithmetic."""
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "lora_A", None):
            delta = sum(
                module.get_delta_weight(adapter) for adapter in module.active_adapters if adapter in module.lora_A
            )
            found[name.removeprefix("base_model.model.") + ".weight"] = (module.base_layer.weight + delta).detach()
    return found


@pytest.mark.parametrize("start", ["standard", "not zero"])
@pytest.mark.parametrize(
    "options", [{}, {"use_rslora": True}, {"rank_pattern": {"first": 2}, "alpha_pattern": {"first": 7}}]
)
def test_numbers_are_those_of_the_merged_weights(start, options):
    model = adapted(start, **options)
    before = {name: weight.clone() for name, weight in merged(model).items()}
    found = find_sites(model)
    assert sorted(found.sites) == ["first.weight", "second.weight"]
    begun = Start(copy_starts(found.sites, found.sites), PLAN, "train")
    move(model)
    rows = {row["matrix"]: row for row in begun.rows(copy_sites(found.sites, found.sites), 1, 1)}
    after = merged(model)
    assert before["second.weight"].shape == (40, 20)
    for name, row in rows.items():
        expected = measure(Basis(before[name], PLAN), after[name])
        assert row["status"] == "ok"
        for measure_name in ("nss", "rel_frobenius", "rel_spectral", "max_angle_left_deg", "mask_overlap"):
            # peft adds in float32, the factors are multiplied in float64
            assert row[measure_name] == pytest.approx(expected.values[measure_name], rel=1e-4, abs=1e-7), measure_name
        assert row["rel_frobenius"] > 1e-3


def test_factors_only_are_copied():
    found = find_sites(adapted())
    copies = copy_sites(found.sites, found.sites)
    assert all(copied.whole is None for copied in copies.values())
    assert {name: tuple(copied.B.shape) for name, copied in copies.items()} == {
        "first.weight": (40, 3),
        "second.weight": (40, 3),
    }


def test_an_untouched_adapter_reads_no_drift_exactly():
    for start in ("standard", "not zero"):
        found = find_sites(adapted(start))
        begun = Start(copy_starts(found.sites, found.sites), PLAN, "train")
        for row in begun.rows(copy_sites(found.sites, found.sites), 0, 1):
            assert row["rel_frobenius"] == pytest.approx(0, abs=1e-15)
            assert row["nss"] == pytest.approx(0, abs=1e-15)


def test_two_active_adapters_add_up():
    model = adapted("not zero")
    model.add_adapter("more", peft.LoraConfig(target_modules=["first"], r=2, lora_alpha=3, init_lora_weights=False))
    found = find_sites(model)
    begun = Start(copy_starts(found.sites, ["first.weight"]), PLAN, "train")
    before = merged(model)["first.weight"].clone()
    model.base_model.set_adapter(["default", "more"])
    (row,) = begun.rows(copy_sites(found.sites, ["first.weight"]), 1, 1)
    expected = measure(Basis(before, PLAN), merged(model)["first.weight"]).values
    assert row["rel_frobenius"] == pytest.approx(expected["rel_frobenius"], rel=1e-4)


def test_modules_saved_whole_have_plain_names():
    model = adapted(modules_to_save=["head"])
    assert sorted(find_sites(model).sites) == ["first.weight", "head.weight", "second.weight"]


def test_what_is_no_low_rank_sum_is_refused_by_name():
    with pytest.raises(UsageError, match="a DoRA adapter"):
        find_sites(adapted(use_dora=True, target_modules=["first"]))
    model = adapted()
    model.merge_adapter()
    with pytest.raises(UsageError, match="adapter is merged"):
        find_sites(model)


def test_frozen_and_sharded_models_are_refused():
    frozen = Net().requires_grad_(False)
    with pytest.raises(UsageError, match="no parameter with a gradient"):
        find_sites(frozen)
    sharded = Net()
    sharded.first.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(UsageError, match=r"found a shard.*driftlab watch"):
        find_sites(sharded)


def test_in_a_trainer(trainer, tiny, tmp_path, unlimited):
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules="all-linear")
    runner = trainer(peft.get_peft_model(tiny(), config))
    DriftCallback(tmp_path / "drift", **unlimited).attach(runner)
    runner.train()
    table = ResultsDir.open(tmp_path / "drift").table(TABLES[0])
    last = table[table["step"] == 12].set_index("matrix")
    assert (last["status"] == "ok").all()
    whole = merged(runner.model)
    for name in last.index:
        module = runner.model.get_submodule(f"base_model.model.{name.removesuffix('.weight')}")
        expected = (whole[name] - module.base_layer.weight).norm() / module.base_layer.weight.norm()
        assert last.loc[name, "rel_frobenius"] == pytest.approx(float(expected), rel=1e-4)
    assert not math.isnan(last["nss_null"].mean())
