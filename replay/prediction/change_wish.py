"""Planned changes: the record that is written before a change is made
(`equipoise.replay.known_changes` reads them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned

if TYPE_CHECKING:
    from equipoise.replay.prediction.predict import Prediction

TURN_QUIET_MS = 120_000
"""Of a rolling restart: one member after the other, with so long between two at most."""


@attrs.frozen(kw_only=True)
class ChangeWish:
    """The user's wishes for a change. `at_most_task_s`: task-seconds without an owner that are too
    much; None: no such limit.
    """

    why: str = ""
    or_undo: bool = False
    at_most_task_s: float | None = None

    def planned(self, kind: str, what: str, offset: int, predicted: Prediction | None, made_from: int | None = None, name: str = "") -> ChangePlanned:
        """Returns the fact for a change of a group whose last fact has this offset. `made_from`:
        number of its configuration; None: whichever is in force. `name`: what it is called; "": as
        its kind. Raises InputError when it is to be undone, and nothing says what is too much.
        """
        expected = () if predicted is None else predicted.expected
        if self.or_undo and not expected and self.at_most_task_s is None:
            raise InputError("--or-undo: nothing could be predicted; say what is too much with --at-most TASK_SECONDS")
        planned = ChangePlanned(
            change_id=f"{name or kind}-{offset + 1}",
            kind=kind,
            what=what,
            why=self.why,
            expected=expected,
            most_unavailable_task_ms=None if self.at_most_task_s is None else round(self.at_most_task_s * 1_000),
            or_undo=self.or_undo,
            made_from=made_from,
        )
        return attrs.evolve(planned, quiet_ms=TURN_QUIET_MS) if kind == "restart" else planned
