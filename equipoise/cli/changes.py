"""`equipoise timeline LOG --changes`: what was changed, what that was expected to cost, and did."""

from __future__ import annotations

from equipoise.cli.params import groups_of, read
from equipoise.cli.screen import Part, Screen, Table
from equipoise.events.errors import InputError
from equipoise.log import Log
from equipoise.replay.known_changes import KnownChange, cost_text, expected_text, known_changes, verdict_text
from equipoise.replay.wording import day_text


def answer_changes(screen: Screen, log: Log, group: str | None) -> None:
    """Answers with the changes in the log. `group` None: of all groups. Raises InputError for a
    group that the log does not have.
    """
    found = known_changes(read(screen, log, "reading", group), group)
    if group is not None and not found and group not in groups_of(log):
        raise InputError(f"--group: the log has no group {group!r}")
    parts: list[Part] = [changes_table(found)] if found else ["no change is in the log"]
    screen.answer({"changes": [each.as_json() for each in found]}, *parts)


def changes_table(found: list[KnownChange]) -> Table:
    """One row for each change, in the order of the log."""
    rows = [
        (each.group, day_text(each.append_ms), each.change_id or "", each.what(), expected_text(each), cost_text(each), verdict_text(each))
        for each in found
    ]
    return Table(columns=("group", "at", "change", "what", "expected, 95 %", "was", "verdict"), rows=rows)
