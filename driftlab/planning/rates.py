"""Seconds for each kind of work of a scan, and what a matrix, an update, a unit and a row take by them."""

from dataclasses import dataclass, fields

from driftlab.planning.costs import Shape, is_tracked, updates
from driftlab.spectral.measures import Plan


@dataclass(frozen=True)
class Rates:
    """Seconds for one unit of each kind of work.

    Attributes
    ----------
    product32, product64 : float
        An operation of a float32 or float64 matrix product.
    eigen : float
        An operation of a float64 eigendecomposition.
    base_entry, update_entry, exact_entry : float
        What a base, a tracked and an exact update cost an entry beyond those: conversions, masks, random numbers.
    base_square, update_square, exact_square : float
        What they cost an entry of a square of the short side: spectra, subspaces.
    base_fixed, update_fixed, exact_fixed : float
        What they cost whatever their size; nearly all of it for a 64 x 64 matrix.
    skim_entry : float
        An entry of a tensor that is compared but not decomposed.
    unit, row : float
        A tensor and each of its checkpoints, measured or not: reading, rows, the part of the table.
    line : float
        One group of one checkpoint in the summary at the end.
    """

    product32: float
    product64: float
    eigen: float
    base_entry: float
    update_entry: float
    update_square: float
    base_square: float = 0.0
    base_fixed: float = 0.0
    update_fixed: float = 0.0
    exact_entry: float = 0.0
    exact_square: float = 0.0
    exact_fixed: float = 0.0
    skim_entry: float = 0.0
    unit: float = 0.0
    row: float = 0.0
    line: float = 0.0

    def faster(self, times: float) -> "Rates":
        """Return the rates of a machine that is ``times`` as fast."""
        return Rates(**{field.name: getattr(self, field.name) / times for field in fields(self)})

    def base(self, shape: Shape) -> float:
        """Return the seconds of a base."""
        return self._decomposition(shape) + _beyond(shape, self.base_entry, self.base_square, self.base_fixed)

    def tracked(self, shape: Shape) -> float:
        """Return the seconds of one tracked update."""
        products = self.product32 * shape.tracked_products
        return products + _beyond(shape, self.update_entry, self.update_square, self.update_fixed)

    def exact(self, shape: Shape) -> float:
        """Return the seconds of one update that is decomposed."""
        return self._decomposition(shape) + _beyond(shape, self.exact_entry, self.exact_square, self.exact_fixed)

    def checkpoint(self, shape: Shape, plan: Plan) -> float:
        """Return the seconds of one checkpoint, its update and its nulls', tracked where its shape allows it."""
        return updates(plan) * (self.tracked(shape) if is_tracked(shape, plan) else self.exact(shape))

    def checkpoint_if_exact(self, shape: Shape, plan: Plan) -> float:
        """Return the seconds of one checkpoint if tracking is tried where its shape allows it, and never holds."""
        tried = self.tracked(shape) if is_tracked(shape, plan) else 0.0
        return updates(plan) * (tried + self.exact(shape))

    def _decomposition(self, shape: Shape) -> float:
        return self.product64 * shape.base_products + self.eigen * shape.eigen


def _beyond(shape: Shape, entry: float, square: float, fixed: float) -> float:
    return entry * shape.entries + square * shape.d**2 + fixed
