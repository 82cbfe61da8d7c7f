"""One measurement of a live model: copies of its matrices against their start, as rows of the table ``spectral``."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from driftlab.checkpoints.names import place
from driftlab.devices import full_float32_products, guest_thread
from driftlab.errors import DriftlabError
from driftlab.integrations.weights import Copied
from driftlab.rows import columns
from driftlab.spectral.basis import Basis
from driftlab.spectral.drift import Drift, measure, measure_adapter
from driftlab.spectral.measures import Plan

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}


class Start:
    """The matrices as they were before the first step, each decomposed once, when it is first needed.

    Parameters
    ----------
    copies : mapping of str to Copied
        From :func:`driftlab.integrations.weights.copy_starts`.
    plan : Plan
        Which measures.
    run : str
        What the tables call the run.
    """

    def __init__(self, copies: Mapping[str, Copied], plan: Plan, run: str) -> None:
        self.copies = dict(copies)
        self.plan = plan
        self.run = run
        self._bases: dict[str, Basis | str] = {}

    def prepare(self) -> None:
        """Decompose every matrix now."""
        with guest_thread(), _one_core():
            for name in self.copies:
                self._basis(name)

    def rows(self, now: Mapping[str, Copied], step: int, order: int) -> list[dict[str, Any]]:
        """Measure copies against the start, one row a matrix; what cannot be measured has a row that says why.

        Runs beside a training loop: on one core, without touching settings of the process.
        """
        with guest_thread(), _one_core():
            return [self._row(name, copied, step, order) for name, copied in now.items()]

    def _row(self, name: str, copied: Copied, step: int, order: int) -> dict[str, Any]:
        started = time.perf_counter()
        where, weight = place(name), self.copies[name].whole
        assert weight is not None
        stored = copied.whole if copied.whole is not None else weight
        row: dict[str, Any] = {
            "run": self.run,
            "label": f"train@{step}",
            "stage": "train",
            "step": step,
            "order": order,
            "matrix": name,
            "layer": where.layer,
            "role": where.role,
            "expert": where.expert,
            "rows": weight.shape[0],
            "cols": weight.shape[1],
            "numel": weight.numel(),
            "base_dtype": _DTYPES.get(weight.dtype),
            "dtype": _DTYPES.get(stored.dtype),
        }
        basis = self._basis(name)
        try:
            if isinstance(basis, str):
                row |= {"status": "failed", "reason": basis}
            else:
                row |= columns(self._drift(basis, name, copied, f"{name}\0{self.run}\0train@{step}"), self.plan)
        except DriftlabError as error:
            row |= {"status": "failed", "reason": str(error)}
        except (MemoryError, torch.OutOfMemoryError):
            row |= {"status": "failed", "reason": "out of memory: choose fewer or smaller matrices"}
        return row | {"seconds": time.perf_counter() - started}

    def _drift(self, basis: Basis, name: str, copied: Copied, key: str) -> Drift:
        if copied.whole is not None:
            return measure(basis, copied.whole, key)
        assert copied.B is not None
        assert copied.A is not None
        B, A = copied.B, copied.A
        start = self.copies[name]
        if _adds(start):  # the adapter did not start at zero: what it added then is part of the base
            assert start.B is not None
            assert start.A is not None
            B, A = torch.cat([B, -start.B], dim=1), torch.cat([A, start.A], dim=0)
        return measure_adapter(basis, B, A, 1.0, key)

    def _basis(self, name: str) -> Basis | str:
        if name not in self._bases:
            try:
                self._bases[name] = Basis(_whole(self.copies[name]), _careful(self.plan)).warm()
            except DriftlabError as error:
                self._bases[name] = str(error)
            except (MemoryError, torch.OutOfMemoryError):
                self._bases[name] = "out of memory: choose fewer or smaller matrices"
        return self._bases[name]


def _careful(plan: Plan) -> Plan:
    """Decompose in float64 where the process cuts products of float32 short: that is not ours to change here."""
    return plan if full_float32_products() else replace(plan, method="exact")


def _adds(start: Copied) -> bool:
    return start.B is not None and start.A is not None and bool(start.B.any()) and bool(start.A.any())


def _whole(start: Copied) -> Tensor:
    assert start.whole is not None
    if not _adds(start):
        return start.whole
    assert start.B is not None
    assert start.A is not None
    return start.whole.double() + start.B @ start.A


class _one_core:  # noqa: N801
    """Leave the other cores to training: torch keeps the number of threads for each thread."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
