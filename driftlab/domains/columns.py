"""From a cell to a text: which column holds the texts, and what a chat contributes."""

import json
import math
from collections.abc import Sequence
from typing import Any

from driftlab.domains.datafiles import Records
from driftlab.errors import DataError

GUESSES = (
    "prompt",
    "question",
    "problem",
    "instruction",
    "query",
    "input",
    "text",
    "messages",
    "conversations",
    "conversation",
    "content",
)
"""Column names that usually hold what a model is asked, in this order of preference."""

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


def choose_column(records: Records, wanted: str, where: str) -> tuple[str, bool]:
    """Return the column to read and whether it was guessed.

    Raises
    ------
    DataError
        If the wanted column is not there, or none can be guessed.
    """
    shown = ", ".join(records.columns) or "no named columns"
    if wanted:
        if wanted not in records.columns:
            raise DataError(f"{where}: expected column {wanted!r}, found {shown}.")
        return wanted, False
    if not records.columns:
        return "", False
    by_name = {name.lower(): name for name in reversed(records.columns)}
    for guess in GUESSES:
        if guess in by_name:
            return by_name[guess], True
    if len(records.columns) == 1:
        return records.columns[0], True
    raise DataError(f"{where}: cannot tell which column holds the texts: found {shown}.", "Name it: PATH::COLUMN.")


def text_of(cell: Any, roles: Sequence[str] = ("user",)) -> str | None:
    """Return the text of one cell; ``""`` for an empty one, None for one that holds no text.

    Parameters
    ----------
    cell : object
        A string, a number, a chat (a list of turns ``{role, content}`` or ``{from, value}``), or a string of JSON
        that is a chat.
    roles : sequence of str, default ("user",)
        Whose turns of a chat count; they are joined by blank lines. ``human`` reads as ``user``.

    Examples
    --------
    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    'Why?'
    >>> text_of('[{"from": "human", "value": "Why?"}]')
    'Why?'
    >>> text_of({"a": 1}) is None
    True
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, str):
        chat = _chat_in_string(cell)
        return cell if chat is None else _join_turns(chat, roles)
    if isinstance(cell, bool | int | float):
        return str(cell)
    if _is_chat(cell):
        return _join_turns(cell, roles)
    if isinstance(cell, dict):
        if _is_chat([cell]):
            return _join_turns([cell], roles)
        inner = next((cell[key] for key in ("messages", "conversations") if key in cell), None)
        return text_of(inner, roles) if inner is not None else None
    return None


def _chat_in_string(cell: str) -> list[dict[str, Any]] | None:
    if cell.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        parsed = json.loads(cell)
    except ValueError:
        return None
    parsed = parsed if isinstance(parsed, list) else [parsed]
    return parsed if _is_chat(parsed) else None


def _is_chat(cell: Any) -> bool:
    return (
        isinstance(cell, list)
        and len(cell) > 0
        and all(
            isinstance(turn, dict) and (turn.keys() >= {"role", "content"} or turn.keys() >= {"from", "value"})
            for turn in cell
        )
    )


def _join_turns(chat: list[dict[str, Any]], roles: Sequence[str]) -> str:
    turns = []
    for turn in chat:
        role = str(turn.get("role") or turn.get("from")).lower()
        if _ROLES.get(role, role) in roles:
            turns.append(_content(turn["content"] if "content" in turn else turn["value"]))
    return "\n\n".join(turn for turn in turns if turn)


def _content(content: Any) -> str:
    """Return the text of one turn, whose content may be a list of typed parts."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
