"""What a run would show its student and its teacher: for reading before anything is trained."""

from typing import Any

from driftlab.training.experience import collect, collect_gold
from driftlab.training.trainer import Setup


def preview(setup: Setup) -> tuple[list[dict[str, Any]], str]:
    """Sample one group of each stage and show a student prompt, a teacher prompt, and the masked response.

    Returns
    -------
    rows : list of dict
        One a stage.
    text : str
        The same for a person. Tokens outside the loss stand in ``⟦ ⟧``.
    """
    config, language = setup.config, setup.language
    rows = []
    for stage in config.stage_list():
        task = next(task for task in setup.tasks if task.name == stage.name)
        if config.method == "sft" and config.sft_on == "gold":
            samples = collect_gold(language, task, config, 1, [0])
        else:
            samples = collect(language, task, config, setup.frame, 1, [0])
        chosen = next((sample for sample in samples if sample.shown), samples[0])
        mask = chosen.distil if config.method == "sdpo" else chosen.learn
        rows.append(
            {
                "stage": stage.name,
                "student": chosen.prompt.text,
                "teacher": chosen.context.text if chosen.shown else None,
                "response": _marked(language.decode, chosen.response.ids, mask.tolist()),
                "score": chosen.verdict.score,
            }
        )
    return rows, "\n\n".join(_block(row) for row in rows)


def _marked(decode: Any, ids: list[int], mask: list[bool]) -> str:
    """Return the response with runs of masked tokens in brackets."""
    parts: list[str] = []
    start = 0
    while start < len(ids):
        end = start
        while end < len(ids) and mask[end] == mask[start]:
            end += 1
        text = decode(ids[start:end])
        parts.append(text if mask[start] else f"⟦{text}⟧")
        start = end
    return " ".join(parts)


def _block(row: dict[str, Any]) -> str:
    teacher = row["teacher"] or "(nothing to show: no other successful response in this group)"
    return (
        f"== {row['stage']}\n-- student prompt\n{row['student']}\n-- teacher prompt\n{teacher}\n"
        f"-- response, ⟦outside the loss⟧, score {row['score']}\n{row['response']}"
    )
