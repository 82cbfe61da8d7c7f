"""Which device a name means, and that no arithmetic setting of the process leaks in or is changed."""

import pytest
import torch

from driftlab.devices import exact_math, resolve_device
from driftlab.errors import UsageError
from driftlab.units import _own_device

MATMUL = torch.backends.cuda.matmul
MKLDNN = torch.backends.mkldnn.matmul


@pytest.fixture
def machine(monkeypatch):
    """Pretend to have so many CUDA devices, and perhaps MPS."""

    def pretend(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "name", "device"),
    [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cpu", "cpu"), (2, "cuda", "cuda"), (2, "cuda:1", "cuda:1")],
)
def test_names_that_are_there(machine, cuda, name, device):
    machine(cuda)
    assert resolve_device(name) == torch.device(device)


def test_mps_is_taken_where_it_is_there_but_never_by_auto(machine):
    machine(mps=True)
    assert resolve_device("mps") == torch.device("mps")
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:", "cuda:-1", "cpu ", ""])
def test_unknown_name(machine, name):
    machine()
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"Device {name!r} is unknown: expected auto, cpu, cuda, cuda:0 or mps."
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["cuda:0,cuda:1", "cuda,cpu", "0,1"])
def test_several_devices_are_not_one(machine, name):
    machine(cuda=2)
    with pytest.raises(UsageError, match=r"expected one device, found several. Give cuda; svd --workers N"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("gpus", "name", "expected"),
    [
        (2, "cuda", ["cuda:0", "cuda:1", "cuda:0"]),  # more workers than GPUs: each has its share of workers
        (1, "cuda", ["cuda:0", "cuda:0", "cuda:0"]),
        (2, "cuda:1", ["cuda:1", "cuda:1", "cuda:1"]),
        (2, "cpu", ["cpu", "cpu", "cpu"]),
    ],
)
def test_workers_take_the_gpus_one_by_one(machine, gpus, name, expected):
    machine(cuda=gpus)
    assert [str(_own_device(name, worker)) for worker in range(3)] == expected


@pytest.mark.parametrize("name", ["meta", "xpu", "hpu:0"])
def test_device_torch_knows_and_we_do_not(machine, name):
    machine()
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"Device {name!r} is not supported: expected auto, cpu, cuda, cuda:0 or mps."


@pytest.mark.parametrize(("cuda", "name"), [(0, "cuda"), (0, "cuda:0"), (1, "cuda:1"), (2, "cuda:7")])
def test_cuda_device_that_is_not_there(machine, cuda, name):
    machine(cuda)
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert str(caught.value) == (
        f"Device {name!r} is not there: this machine shows {cuda} CUDA devices. Use --device cpu."
    )


def test_mps_that_is_not_there(machine):
    machine()
    with pytest.raises(UsageError, match=r"Device 'mps' is not available on this machine\. Use --device cpu\."):
        resolve_device("mps")


# --- exact_math -------------------------------------------------------------------------------------------------


def switches():
    """Everything exact_math may touch; the older switches cannot be read where only the newer were used."""
    try:
        older = (torch.get_float32_matmul_precision(), MATMUL.allow_tf32)
    except RuntimeError:
        older = None
    return (
        older,
        torch.backends.fp32_precision,
        MATMUL.fp32_precision,
        MKLDNN.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.rnn.fp32_precision,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_default_dtype(),
    )


SETTINGS = {
    "as torch starts": lambda: None,
    "older: high": lambda: torch.set_float32_matmul_precision("high"),
    "older: medium": lambda: torch.set_float32_matmul_precision("medium"),
    "older: allow_tf32": lambda: setattr(MATMUL, "allow_tf32", True),
    "newer: everywhere": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "newer: matmul": lambda: setattr(MATMUL, "fp32_precision", "tf32"),
    "newer: mkldnn": lambda: setattr(MKLDNN, "fp32_precision", "bf16"),
    "newer: convolution": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}


@pytest.fixture
def restored():
    """Put the switches back: newer ones last, since setting an older one sets them too."""
    scopes = (torch.backends, MATMUL, MKLDNN, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [scope.fp32_precision for scope in scopes]
    yield
    for scope in scopes[1:]:
        scope.fp32_precision = "none"
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for scope, value in zip(scopes, before, strict=True):
        scope.fp32_precision = value


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("setting", SETTINGS)
def test_tf32_is_off_inside_and_as_before_outside(setting):
    SETTINGS[setting]()
    before = switches()
    with exact_math():
        assert MATMUL.fp32_precision == "ieee"
        assert MKLDNN.fp32_precision == "ieee"
    assert switches() == before
    with pytest.raises(ZeroDivisionError), exact_math():
        1 / 0  # noqa: B018
    assert switches() == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_older_switch_can_be_read_inside_where_it_is_in_use(precision):
    torch.set_float32_matmul_precision(precision)
    with exact_math():  # torch's own profiler reads it
        assert torch.get_float32_matmul_precision() == "highest"
        assert MATMUL.allow_tf32 is False
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.usefixtures("restored")
def test_nests():
    torch.set_float32_matmul_precision("high")
    with exact_math():
        with exact_math():
            pass
        assert MATMUL.fp32_precision == "ieee"
    assert torch.get_float32_matmul_precision() == "high"


def test_autocast_and_gradients_are_off_inside_and_back_outside():
    a = torch.eye(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with exact_math():
            product = a @ a
        assert product.dtype == torch.float32
        assert not product.requires_grad
        assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).requires_grad
