"""Changes of a running group that can be predicted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured


@attrs.frozen(kw_only=True)
class Join:
    """`members` more processes start, with nothing on disk, as large as the group's usual one."""

    members: int = attrs.field(validator=fields.integer(1, 10_000))

    def text(self) -> str:
        return f"{self.members} more member{'' if self.members == 1 else 's'}"


@attrs.frozen(kw_only=True)
class Leave:
    """The members announce that they leave, and go when they are released."""

    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))

    def text(self) -> str:
        return f"{', '.join(self.members)} leave{'s' if len(self.members) == 1 else ''}"


@attrs.frozen(kw_only=True)
class Kill:
    """The processes of the members end without a word, and do not come back."""

    members: tuple[str, ...] = attrs.field(validator=fields.tuple_of(fields.text()))

    def text(self) -> str:
        return f"{', '.join(self.members)} {'is' if len(self.members) == 1 else 'are'} killed"


@attrs.frozen(kw_only=True)
class RestartAll:
    """Every member restarts and keeps its disk, each when the one before runs its tasks again."""

    away_ms: int | None = attrs.field(default=None, validator=fields.optional(fields.integer()))
    """From the end of a process to the start of the next one; None: until the next one joins it
    takes as long as in restarts that the log shows.
    """

    def text(self) -> str:
        return "every member restarts, one after the other"


@attrs.frozen(kw_only=True)
class Configure:
    """The group gets this configuration."""

    config: GroupConfigured

    def text(self) -> str:
        return "the settings change"


KINDS = {Join: "join", Leave: "leave", Kill: "kill", RestartAll: "restart", Configure: "configure"}
"""Class of a change -> its name in a document."""
JUDGED_AS = {Join: "join", Leave: "scale_down", Kill: "scale_down", RestartAll: "restart", Configure: "configure"}
"""Class of a change that can be planned -> `equipoise.events.facts.ChangePlanned.kind`."""
PlannedChange = Join | Leave | Kill | RestartAll | Configure


def check_change(change: PlannedChange, members: Collection[str]) -> None:
    """Raises InputError where a group of these members cannot be changed so: by a member that it
    does not have, or until nobody is left.
    """
    if isinstance(change, Leave | Kill):
        for name in change.members:
            if name not in members:
                raise InputError(f"member {name!r}: the group has no such member; it has {', '.join(sorted(members))}")
        if len(set(change.members)) == len(members):
            raise InputError("members: nobody would be left; keep at least one")


def new_name(number: int) -> str:
    """Returns the name of the n-th process, from 1, that joins in a prediction."""
    return f"+{number}"


def members_after(change: PlannedChange, members: Collection[str]) -> set[str]:
    """Returns the members of the group after the change."""
    if isinstance(change, Join):
        before = sum(each.startswith("+") for each in members)
        return {*members, *(new_name(before + number) for number in range(1, change.members + 1))}
    return set(members).difference(change.members if isinstance(change, Leave | Kill) else ())


def document_of(change: PlannedChange) -> Mapping[str, Any]:
    """Returns the change, JSON-ready."""
    kind = KINDS[type(change)]
    if isinstance(change, Configure):
        return {"kind": kind, "knobs": attrs.asdict(change.config.knobs), "assignor": change.config.assignor}
    return {"kind": kind, **{name: list(value) if isinstance(value, tuple) else value for name, value in attrs.asdict(change).items()}}
