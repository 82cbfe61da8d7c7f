"""Site only: pages outside docs/ are not part of it, so links to them become their path in the repository."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]*)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with links that leave docs/ written out."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)
