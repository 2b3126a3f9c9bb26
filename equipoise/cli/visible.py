"""Text that others have written, made safe to show: ids, names and errors come out of logs, and
anybody who may write facts chooses them.

All that commands print for people goes through `visible`: what a terminal would obey (escape
sequences, line ends, direction marks) or not show (zero-width characters) is shown as its escape,
as ``\\x1b`` or ``\\u202e``.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from equipoise.events.fields import is_hidden

MOST_WORD_CHARS = 80
"""Of a word in a table; logs may hold ids of 1,000 characters."""
_LONG_WORD = re.compile(rf"\S{{{MOST_WORD_CHARS + 1},}}")


def visible(text: str) -> str:
    """`text` on one line, with every character of it to be seen."""
    if text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if is_hidden(char) else char for char in text)


def shortened(text: str) -> str:
    """`text`, words of over MOST_WORD_CHARS characters with their middle left out. Where all of it
    is needed, ``--json`` has it.
    """
    kept = MOST_WORD_CHARS - len(_LEFT_OUT)
    return _LONG_WORD.sub(lambda word: word[0][: kept - kept // 2] + _LEFT_OUT + word[0][-(kept // 2) :], text)


_LEFT_OUT = "..."


def visible_json(document: str) -> str:
    """The same JSON document, on one line, with ``\\uXXXX`` for what a terminal would obey or not
    show.
    """
    if document.isprintable():
        return document
    return "".join(json.dumps(char)[1:-1] if is_hidden(char) and ord(char) > 0x1F else char for char in document)


class VisibleFormatter(logging.Formatter):
    """Log lines, one for each message whatever is in it; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
