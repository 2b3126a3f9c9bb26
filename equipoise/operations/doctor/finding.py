"""What a check has found."""

from __future__ import annotations

from typing import Any, Literal

import attrs

Status = Literal["fine", "warning", "problem", "unknown"]
CHECKS = ("brokers", "versions", "rights", "topics", "changelogs", "times", "clock", "timeouts", "groups", "disk")
"""In the order of their findings."""


@attrs.frozen
class Finding:
    """`check`: one of CHECKS. `text`: one line. `fix`: what to do; None: nothing. A problem keeps
    the role from its work now or in a failure; a warning does not. unknown: the role may not see
    it, or there is nothing to see.
    """

    check: str
    status: Status
    text: str
    fix: str | None = None

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


def fine(check: str, text: str) -> Finding:
    return Finding(check, "fine", text)


def warning(check: str, text: str, fix: str) -> Finding:
    return Finding(check, "warning", text, fix)


def problem(check: str, text: str, fix: str) -> Finding:
    return Finding(check, "problem", text, fix)


def unknown(check: str, text: str, fix: str | None = None) -> Finding:
    return Finding(check, "unknown", text, fix)
