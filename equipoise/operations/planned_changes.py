"""Planned changes: the record that is written before a change is made, and the changes of a log,
each with its verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.events.decisions import ChangeJudged, EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned, GroupConfigured
from equipoise.events.records import DecisionRecord, Entry, FactRecord

if TYPE_CHECKING:
    from equipoise.replay.prediction.predict import Prediction

UNDER_WAY, NOT_PLANNED = "under way", "not planned"
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

    def planned(self, kind: str, what: str, offset: int, predicted: Prediction | None) -> ChangePlanned:
        """Returns the fact for a change of a group whose last fact has this offset. Raises
        InputError when it is to be undone, and nothing says what is too much.
        """
        expected = () if predicted is None else predicted.expected
        if self.or_undo and not expected and self.at_most_task_s is None:
            raise InputError("--or-undo: nothing could be predicted; say what is too much with --at-most TASK_SECONDS")
        return ChangePlanned(
            change_id=f"{kind}-{offset + 1}",
            kind=kind,
            what=what,
            why=self.why,
            expected=expected,
            most_unavailable_task_ms=None if self.at_most_task_s is None else round(self.at_most_task_s * 1_000),
            or_undo=self.or_undo,
            **({"quiet_ms": TURN_QUIET_MS} if kind == "restart" else {}),
        )


@attrs.frozen(kw_only=True)
class KnownChange:
    """A change in a log. `planned` None: its settings were changed without a plan; `offset` is then
    that of the new settings. `judged` None: it is under way, or was not planned.
    """

    group: str
    offset: int
    append_ms: int
    planned: ChangePlanned | None
    configured: GroupConfigured | None
    before: GroupConfigured | None
    judged: ChangeJudged | None
    judged_ms: int | None

    @property
    def change_id(self) -> str | None:
        """Returns its name in the log; None: it was not planned."""
        return None if self.planned is None else self.planned.change_id

    @property
    def verdict(self) -> str:
        """Returns ``under way``, ``not planned``, or the outcome of the verdict."""
        if self.judged is not None:
            return self.judged.outcome
        return NOT_PLANNED if self.planned is None else UNDER_WAY

    def as_json(self) -> dict[str, Any]:
        """Returns the change, JSON-ready."""
        planned, judged = self.planned, self.judged
        return {
            "group": self.group,
            "offset": self.offset,
            "planned_ms": self.append_ms,
            "change_id": self.change_id,
            "kind": "configure" if planned is None else planned.kind,
            "what": self.what(),
            "why": "" if planned is None else planned.why,
            "or_undo": planned is not None and planned.or_undo,
            "most_unavailable_task_ms": None if planned is None else planned.most_unavailable_task_ms,
            "expected": [] if planned is None else [attrs.asdict(each) for each in planned.expected],
            "verdict": self.verdict,
            "judged_ms": self.judged_ms,
            "judged": None if judged is None else {name: value for name, value in attrs.asdict(judged).items() if name != "change_id"},
        }

    def what(self) -> str:
        """Returns what was changed, in words."""
        if self.planned is not None:
            return self.planned.what
        assert self.configured is not None, "a change is planned or configured"
        return settings_text(self.before, self.configured)


def settings_text(before: GroupConfigured | None, after: GroupConfigured) -> str:
    """Returns the settings that differ: ``max_warmups 2 -> 4, num_standbys 0 -> 1``."""
    from equipoise.replay.wording import setting_text, setting_values

    if before is None:
        return "the group is configured"
    old, new = setting_values(before), setting_values(after)
    found = [f"{name} {_text(old.get(name), setting_text)} -> {_text(value, setting_text)}" for name, value in new.items() if old.get(name) != value]
    return ", ".join(found)[:1_000] or "the settings are the same"


def _text(value: Any, setting_text: Any) -> str:
    return "-" if value is None else str(setting_text(value))


def known_changes(entries: Iterable[Entry], group: str | None = None) -> list[KnownChange]:
    """Returns the changes of a log in stored order; the first settings of a group are none. `group`
    None: of all groups.
    """
    found: dict[tuple[str, int], KnownChange] = {}
    settings: dict[str, GroupConfigured] = {}
    last: dict[str, tuple[str, int]] = {}
    """Group -> its last planned change."""
    ids: dict[tuple[str, str], tuple[str, int]] = {}
    now_ms: dict[str, int] = {}
    for entry in _accepted(entries):
        if group is not None and entry.group != group:
            continue
        if isinstance(entry, DecisionRecord):
            judged = entry.decision
            if isinstance(judged, ChangeJudged) and (entry.group, judged.change_id) in ids:
                key = ids[entry.group, judged.change_id]
                found[key] = attrs.evolve(found[key], judged=judged, judged_ms=now_ms[entry.group])
            continue
        now_ms[entry.group] = entry.append_ms
        key = entry.group, entry.offset
        none: Mapping[str, Any] = {"configured": None, "before": None, "judged": None, "judged_ms": None}
        if isinstance(entry.event, ChangePlanned):
            found[key] = KnownChange(group=entry.group, offset=entry.offset, append_ms=entry.append_ms, planned=entry.event, **none)
            last[entry.group] = ids[entry.group, entry.event.change_id] = key
        elif isinstance(entry.event, GroupConfigured):
            before, settings[entry.group] = settings.get(entry.group), entry.event
            planned = found[last[entry.group]] if entry.group in last else None
            if planned is not None and _awaits_settings(planned):
                found[last[entry.group]] = attrs.evolve(planned, configured=entry.event, before=before)
            elif before not in (None, entry.event) and not (planned is not None and _brings_back(planned, entry.event)):
                changed = {**none, "configured": entry.event, "before": before}
                found[key] = KnownChange(group=entry.group, offset=entry.offset, append_ms=entry.append_ms, planned=None, **changed)
    return [found[key] for key in sorted(found, key=lambda each: (each[1], each[0]))]


def _awaits_settings(change: KnownChange) -> bool:
    return change.planned is not None and change.planned.kind == "configure" and change.configured is None and change.judged is None


def _brings_back(change: KnownChange, event: GroupConfigured) -> bool:
    return change.judged is not None and change.judged.undone and change.before == event


def _accepted(entries: Iterable[Entry]) -> Iterator[FactRecord | DecisionRecord]:
    """Yields facts of interest that were not rejected, and decisions. A fact is held until its own
    decisions have been read.
    """
    held: dict[str, FactRecord] = {}
    for entry in entries:
        if isinstance(entry, DecisionRecord):
            fact = held.get(entry.group)
            if fact is not None and entry.caused_by == fact.offset and isinstance(entry.decision, EventRejected):
                del held[entry.group]
                continue
            if isinstance(entry.decision, ChangeJudged):
                if fact is not None:
                    yield held.pop(entry.group)
                yield entry
        elif isinstance(entry, FactRecord):
            if entry.group in held:
                yield held.pop(entry.group)
            held[entry.group] = entry
    yield from (held[name] for name in sorted(held))
