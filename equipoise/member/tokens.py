"""The fencing token as a record carries it (PROTOCOL M6): header ``equipoise``, text ``<group>/<task>/<token>``."""

from __future__ import annotations

from collections.abc import Iterable

from events.tasks import TaskId

HEADER = "equipoise"


def token_header(group: str, task: TaskId, token: int) -> tuple[str, bytes]:
    """The header that says under which grant a record was written."""
    return HEADER, f"{group}/{task}/{token}".encode()


def read_token(headers: Iterable[tuple[str, bytes]]) -> tuple[str, str, int] | None:
    """Group, task and token; None when no header says them."""
    for name, value in headers:
        if name == HEADER:
            try:
                group, task, token = value.decode().rsplit("/", 2)
                return group, task, int(token)
            except ValueError:  # UnicodeDecodeError is one
                return None
    return None


def token_of(headers: Iterable[tuple[str, bytes]]) -> int:
    """The token alone, fast; 0: none."""
    for name, value in headers:
        if name == HEADER:
            number = value[value.rfind(b"/") + 1 :]
            return int(number) if number.isdigit() else 0
    return 0
