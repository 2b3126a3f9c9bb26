"""SVG elements that every picture uses."""

from __future__ import annotations

import html
import re

MARK = "<!-- made by equipoise -->"
"""Second line of every picture: a file that has it may be replaced by another picture."""


def markup(text: str) -> str:
    """Returns `text` escaped for XML; control characters become U+FFFD."""
    return html.escape(re.sub(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def label(x: float, y: float, content: str, css: str = "") -> str:
    """Returns a text element. `content` is already markup."""
    styled = f' class="{css}"' if css else ""
    return f'<text x="{short(x)}" y="{short(y)}"{styled}>{content}</text>'


def short(number: float) -> str:
    """Returns `number` to a tenth of a pixel: ``12``, ``12.5``."""
    return f"{number:.1f}".removesuffix(".0")


def cut(text: str, width: float, char_width: float) -> str:
    """Returns the beginning of `text` that fits into `width` pixels when each character takes
    `char_width`; an ellipsis marks what is missing. Returns "" when less than three characters fit.
    """
    most = int(width / char_width)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…" if most > 3 else ""
