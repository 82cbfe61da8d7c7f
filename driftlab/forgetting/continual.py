"""The metrics of continual learning after each stage: Current, Last, ACC, BWT, FWT, forgetting, FM, OOD.

Every metric is a mean over tasks of a sum of scores. The sums are kept apart from their evaluation, because a paired
interval, a difference of two methods and a mean over the tasks they share all need them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driftlab.forgetting.history import History
from driftlab.forgetting.intervals import Cell, Estimate, combine


@dataclass(frozen=True)
class Item:
    """What one task contributes to a metric.

    Attributes
    ----------
    task : str
    terms : list of (float, Cell)
        The weighted scores; empty if the task contributes nothing.
    value : float or None
        The number where the terms are only its linearisation.
    reason : str
        Why there is nothing.
    """

    task: str
    terms: list[tuple[float, Cell]]
    value: float | None = None
    reason: str = ""

    def estimate(self) -> Estimate:
        """Return the number with its interval."""
        return combine(self.terms, self.value)


Rule = Callable[[History, int], Iterator[Item]]


def _cell(history: History, stage: int, task: str) -> Cell | str:
    """Return R[stage, task], stages counted from 1 and 0 the base, or why there is none."""
    label = history.base if stage == 0 else history.ends[stage - 1]
    return history.cells.get((label, task)) or history.absent(label, task)


def _sum(history: History, task: str, parts: Sequence[tuple[float, int]]) -> Item:
    """Return a weighted sum of the scores of one task at several stages, or why it cannot be taken."""
    cells = [(weight, _cell(history, stage, task)) for weight, stage in parts]
    reasons = [cell for _, cell in cells if isinstance(cell, str)]
    sign = -1.0 if task in history.lower and sum(weight for weight, _ in parts) == 0 else 1.0
    terms = [(sign * weight, cell) for weight, cell in cells if isinstance(cell, Cell)]
    return Item(task, [], reason=reasons[0]) if reasons else Item(task, terms)


def _learnt(history: History, t: int) -> list[tuple[int, str]]:
    """Return (stage from 1, task) of the tasks trained in the first t stages."""
    return [(i + 1, task) for i, task in history.trained if i < t]


def _base(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, 0)]) for _, task in _learnt(history, t))


def _current(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, j)]) for j, task in _learnt(history, t))


def _last(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, t)]) for _, task in _learnt(history, t))


def _bwt(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, t), (-1, j)]) for j, task in _learnt(history, t) if j < t)


def _fwt(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, j - 1), (-1, 0)]) for j, task in _learnt(history, t) if j > 1)


def _best(history: History, task: str, stages: Sequence[int]) -> int | str:
    """Return the stage with the best score of a task, the earlier of equal ones, or why it is not known."""
    found = {stage: _cell(history, stage, task) for stage in stages}
    for cell in found.values():
        if isinstance(cell, str):
            return cell
    sign = -1.0 if task in history.lower else 1.0
    return max(stages, key=lambda stage: sign * _score(found[stage]))


def _score(cell: Cell | str) -> float:
    assert isinstance(cell, Cell)
    return cell.score


def _chaudhry(history: History, t: int) -> Iterator[Item]:
    for j, task in _learnt(history, t):
        if j < t:
            best = _best(history, task, range(1, t))
            known = isinstance(best, int)
            yield _sum(history, task, [(1, int(best)), (-1, t)]) if known else Item(task, [], reason=str(best))


def _fm(history: History, t: int) -> Iterator[Item]:
    for _, task in _learnt(history, t):
        best = _best(history, task, range(1, t + 1))
        known = isinstance(best, int)
        yield _sum(history, task, [(1, t), (-1, int(best))]) if known else Item(task, [], reason=str(best))


def _ood(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, t)]) for task in history.ood)


def _ood_base(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, 0)]) for task in history.ood)


def _ood_change(history: History, t: int) -> Iterator[Item]:
    return (_sum(history, task, [(1, t), (-1, 0)]) for task in history.ood)


def _ood_retention(history: History, t: int) -> Iterator[Item]:
    for task in history.ood:
        after, before = _cell(history, t, task), _cell(history, 0, task)
        if isinstance(after, str) or isinstance(before, str):
            yield Item(task, [], reason=after if isinstance(after, str) else str(before))
        elif before.score <= 0:
            yield Item(task, [], reason=f"{task}: its base is {before.score:g}")
        elif task in history.lower:
            yield Item(task, [], reason=f"{task}: less is better, so there is no share that is kept")
        else:
            # The ratio's interval comes from its first-order expansion in both scores (delta method).
            ratio = 100 * after.score / before.score
            yield Item(task, [(100 / before.score, after), (-ratio / before.score, before)], ratio)


@dataclass(frozen=True)
class Metric:
    """A metric of continual learning: its rule, unit, meaning, and the first stage that has it."""

    rule: Rule
    unit: str
    meaning: str
    first: int = 1


METRICS = {
    "base": Metric(_base, "%", "the base on the tasks trained so far"),
    "current": Metric(_current, "%", "R[j,j]: each task right after its own stage"),
    "last": Metric(_last, "%", "R[t,j]: each task trained so far, after stage t"),
    "acc": Metric(_last, "%", "ACC of GEM (Lopez-Paz and Ranzato 2017, arXiv 1706.08840): the mean of last"),
    "bwt": Metric(_bwt, "points", "BWT of GEM: R[t,j] - R[j,j] over j < t; negative is forgetting", 2),
    "fwt": Metric(_fwt, "points", "FWT of GEM: R[j-1,j] - b[j] over j > 1, b the base model", 2),
    "forgetting": Metric(
        _chaudhry,
        "points",
        "Chaudhry et al. 2018 (arXiv 1801.10112): best of R[1..t-1,j] - R[t,j] over j < t",
        2,
    ),
    "fm": Metric(
        _fm,
        "points",
        "forgetting measure after Lai et al. 2025 (arXiv 2507.05386), as we read it: R[t,j] - best of R[1..t,j]",
    ),
    "ood_base": Metric(_ood_base, "%", "the base on tasks that no stage trains"),
    "ood": Metric(_ood, "%", "tasks that no stage trains, after stage t"),
    "ood_change": Metric(_ood_change, "points", "the same, less the base"),
    "ood_retention": Metric(_ood_retention, "%", "the same, in per cent of the base"),
}
"""Name to rule. Stages count from 1 to t; every mean is over tasks."""


def items(history: History, metric: str, t: int) -> list[Item]:
    """Return what each task contributes to a metric after stage t; tasks without a best score contribute nothing.

    Parameters
    ----------
    history : History
    metric : str
        A key of :data:`METRICS`.
    t : int
        Stages done, from 1 to the number of ``history.ends``.
    """
    chosen = METRICS[metric]
    if t < chosen.first:
        return []
    return [
        Item(item.task, [], reason=f"{item.task}: its scores are no percents") if item.task in history.raw else item
        for item in chosen.rule(history, t)
    ]
