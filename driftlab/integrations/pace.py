"""What measuring costs training, as a ratio within one run, and when the next measurement can be afforded."""

import math


class Pace:
    """Counts steps and seconds, and spaces measurements so that they stay within a share of the training time.

    The cost has two parts: the seconds the loop was held up (copies, probes, log entries), and the seconds that steps
    took longer while a measurement ran in the background than steps without one. The first two steps are warm-up.

    Parameters
    ----------
    every : int
        Steps between two measurements, at least.
    budget : float
        Largest share of the step time; the interval is stretched to keep to it. Infinite for no limit.
    """

    def __init__(self, every: int, budget: float) -> None:
        self.every = every
        self.budget = budget
        self.skipped = 0
        self.postponed = 0
        self.held = 0.0
        self._quiet = [0, 0.0]
        self._busy = [0, 0.0]
        self._seen = 0
        self._next = every
        self._spent_before = 0.0
        self._expected = 0.0

    def begin(self, step: int) -> None:
        """Count the interval from the step at which the run starts or goes on."""
        self._next = step + self.every

    def stepped(self, seconds: float, busy: bool) -> None:
        """Record a step, and whether a measurement ran beside it."""
        self._seen += 1
        if self._seen > 2:
            count = self._busy if busy else self._quiet
            count[0] += 1
            count[1] += seconds

    def hold(self, seconds: float) -> None:
        """Record seconds that the loop was held up."""
        self.held += seconds

    @property
    def slowed(self) -> float:
        """Seconds that steps beside a measurement took longer than the others; 0 where either kind is missing."""
        if not self._busy[0] or not self._quiet[0]:
            return 0.0
        return max(0.0, self._busy[1] - self._busy[0] * self._quiet[1] / self._quiet[0])

    @property
    def spent(self) -> float:
        """Seconds that measuring has cost so far."""
        return self.held + self.slowed

    @property
    def training(self) -> float:
        """Seconds that the steps would have taken without it."""
        return self._quiet[1] + self._busy[1] - self.slowed

    @property
    def overhead(self) -> float:
        """Cost as a share of the step time; NaN before the third step."""
        return self.spent / self.training if self.training > 0 else math.nan

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Mean seconds of a step without, and with a measurement beside it; NaN where there was none."""
        quiet, busy = (seconds / count if count else math.nan for count, seconds in (self._quiet, self._busy))
        return quiet, busy

    def due(self, step: int, busy: bool) -> bool:
        """Whether to measure after this step. One that falls due while another runs is skipped, and counted."""
        if step < self._next:
            return False
        if busy:
            self.skipped += 1
            self._next = step + self.every
            return False
        if not self._affordable():
            self.postponed += 1
            return False
        self._spent_before = self.spent
        self._next = step + self.every
        return True

    def done(self) -> None:
        """Record that a measurement has ended: the next is expected to cost as much."""
        self._expected = max(self.spent - self._spent_before, 0.0)

    def _affordable(self) -> bool:
        if math.isinf(self.budget):
            return True
        known = self._quiet[0] >= min(5, self.every) or not self._busy[0]  # else nothing tells what it costs
        return known and self.spent + self._expected <= self.budget * self.training
