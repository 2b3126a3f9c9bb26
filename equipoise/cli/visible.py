"""Makes text from logs safe to print. Ids, names and errors come out of logs, so any writer of
facts chooses them.

Everything that commands print for people goes through `visible`. It replaces characters that a
terminal obeys (escape sequences, line ends, direction marks) or does not show (zero-width
characters) by their escapes, as ``\\x1b`` or ``\\u202e``.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from equipoise.events.fields import is_hidden

MOST_WORD_CHARS = 80
"""Longest word in a table; logs may hold ids of 1,000 characters."""
_LONG_WORD = re.compile(rf"\S{{{MOST_WORD_CHARS + 1},}}")


def visible(text: str) -> str:
    """`text` on one line, with every character visible."""
    if text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if is_hidden(char) else char for char in text)


def shortened(text: str) -> str:
    """`text` with the middle cut out of words longer than MOST_WORD_CHARS characters."""
    kept = MOST_WORD_CHARS - len(_LEFT_OUT)
    return _LONG_WORD.sub(lambda word: word[0][: kept - kept // 2] + _LEFT_OUT + word[0][-(kept // 2) :], text)


_LEFT_OUT = "..."


def visible_json(document: str) -> str:
    """The same JSON document, with ``\\uXXXX`` for characters that a terminal obeys or hides."""
    if document.isprintable():
        return document
    return "".join(json.dumps(char)[1:-1] if is_hidden(char) and ord(char) > 0x1F else char for char in document)


class VisibleFormatter(logging.Formatter):
    """Formats each log message as one line; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
