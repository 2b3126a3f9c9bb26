"""The changes of groups in their log, each with what was expected of it, what it was, and its
verdict: for `equipoise timeline --changes`, the console, and `equipoise incident`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import ChangeJudged, Decision, EventRejected
from equipoise.events.facts import ChangePlanned, GroupConfigured
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.replay.wording import METRIC_TEXTS, costs_text, interval_text, metric_text, setting_text, setting_values, spent_text
from equipoise.statemachine.state import GroupState
from equipoise.statemachine.watched_change import judgement, verdict_on

UNDER_WAY, NOT_PLANNED = "under way", "not planned"
VERDICTS = {
    "at_rest": "as expected",
    "late": "not over in time",
    "too_much": "too much",
    "replaced": "followed by another",
    "refused": "refused",
    UNDER_WAY: UNDER_WAY,
    NOT_PLANNED: NOT_PLANNED,
}
LIMIT = "limit"
_MOST_CHARS = 1_000


@attrs.frozen(kw_only=True)
class KnownChange:
    """A change in a log. `planned` None: its settings were changed without a plan; `offset` is then
    that of the new settings. `judged` None: it is under way, or was not planned.
    """

    group: str
    offset: int
    append_ms: int
    planned: ChangePlanned | None
    configured: GroupConfigured | None = None
    before: GroupConfigured | None = None
    judged: ChangeJudged | None = None
    judged_ms: int | None = None

    @property
    def change_id(self) -> str | None:
        """Returns its name in the log; None: it was not planned."""
        return None if self.planned is None else self.planned.change_id

    @property
    def kind(self) -> str:
        """Returns its kind, as `equipoise.events.facts.CHANGE_KINDS` has them."""
        return "configure" if self.planned is None else self.planned.kind

    @property
    def verdict(self) -> str:
        """Returns ``under way``, ``not planned``, or the outcome of the verdict."""
        if self.judged is not None:
            return self.judged.outcome
        return NOT_PLANNED if self.planned is None else UNDER_WAY

    @property
    def is_bad(self) -> bool:
        """Returns whether it cost too much, was not over in time, or moved less than it should."""
        judged = self.judged
        return judged is not None and (judged.outcome in ("too_much", "late") or bool(judged.above) or "moves" in judged.below)

    def as_json(self) -> dict[str, Any]:
        """Returns the change, JSON-ready."""
        planned, judged = self.planned, self.judged
        return {
            "group": self.group,
            "offset": self.offset,
            "planned_ms": self.append_ms,
            "change_id": self.change_id,
            "kind": self.kind,
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
    if before is None:
        return "the group is configured"
    old, new = setting_values(before), setting_values(after)
    found = [f"{name} {_setting(old.get(name))} -> {_setting(value)}" for name, value in new.items() if old.get(name) != value]
    return ", ".join(found)[:_MOST_CHARS] or "the settings are the same"


def _setting(value: Any) -> str:
    return "-" if value is None else str(setting_text(value))


def expected_text(change: KnownChange) -> str:
    """Returns the intervals of 95 % and the limit; "": nothing was expected."""
    if change.planned is None:
        return ""
    shown = [costs_text(change.planned.expected)] * bool(change.planned.expected)
    most_ms = change.planned.most_unavailable_task_ms
    return ", ".join(shown + ([] if most_ms is None else [f"at most {metric_text('unavailable_task_ms', most_ms)}"]))


def cost_text(change: KnownChange) -> str:
    """Returns what it cost; "": that is not known."""
    return "" if change.judged is None else spent_text(change.judged)


def verdict_text(change: KnownChange) -> str:
    """Returns the verdict: ``too much: moves above; undone``."""
    judged = change.judged
    if judged is None:
        return change.verdict
    outside = [f"{METRIC_TEXTS.get(name, LIMIT)} {'above' if name in judged.above else 'below'}" for name in (*judged.above, *judged.below)]
    said = VERDICTS[judged.outcome] if judged.outcome != "at_rest" or not outside else "over"
    return f"{said}{': ' * bool(outside)}{', '.join(outside)}{'; undone' if judged.undone else ''}"


def compared(change: KnownChange, so_far: Mapping[str, int] | None = None) -> list[dict[str, str]]:
    """Returns, for each metric and for the limit, the texts of what was ``expected`` and of what it
    ``was``, and its ``side``: ``inside``, ``above``, ``below``; "" where one of them is not known.
    `so_far`: the costs of a change that is under way.
    """
    planned, judged = change.planned, change.judged
    costs = so_far if judged is None else {name: getattr(judged, name) for name in METRIC_TEXTS} if spent_text(judged) else None
    if planned is None:
        return []
    spans: list[tuple[str, str, float, float]] = [(each.metric, METRIC_TEXTS[each.metric], each.low_95, each.high_95) for each in planned.expected]
    if planned.most_unavailable_task_ms is not None:
        spans.append(("unavailable_task_ms", LIMIT, -1, planned.most_unavailable_task_ms))
    spans += [(name, text, -1, math.inf) for name, text in METRIC_TEXTS.items() if name not in {each.metric for each in planned.expected}]
    return [_compared(*span, None if costs is None else costs[span[0]], is_over=judged is not None) for span in spans]


def _compared(metric: str, name: str, low: float, high: float, was: int | None, *, is_over: bool) -> dict[str, str]:
    most = f"at most {metric_text(metric, high)}" if high < math.inf else ""
    expected = most if low < 0 else interval_text(metric, low, high).removeprefix("rest after ")
    side = "" if was is None or not expected else "above" if was > high else "below" if was < low else "inside"
    return {
        "name": name,
        "expected": expected,
        "was": "" if was is None else metric_text(metric, was),
        "side": side if is_over or side == "above" else "",
    }


class ChangeReader:
    """Reads the changes of one group, fact by fact. `most`: keeps so many, the last; None: all."""

    def __init__(self, group: str, most: int | None = None) -> None:
        self._group, self._most = group, most
        self._found: dict[int, KnownChange] = {}
        """Offset -> change."""
        self._settings: GroupConfigured | None = None
        self._last: int | None = None
        """Offset of the last planned change."""

    def begin(self, state: GroupState) -> None:
        """Begins in the midst of a log, with its settings and the change that is under way."""
        self._settings, change = state.config, state.change
        if change is None:
            return
        last_ms = state.last_append_ms or 0
        judged = None
        if change.undoes:
            costs = None if change.counts is None else change.counts.costs(state.now_ms)
            judged = judgement(change.planned, verdict_on(change.planned, "too_much", costs))
        self._last = change.offset
        self._keep(
            KnownChange(
                group=self._group,
                offset=change.offset,
                append_ms=last_ms - (state.now_ms - change.planned_ms),
                planned=change.planned,
                configured=state.config if change.configured else None,
                before=change.former if change.configured else None,
                judged=judged,
                judged_ms=None if judged is None else last_ms,
            )
        )

    def take(self, record: FactRecord, decisions: Iterable[Decision]) -> bool:
        """Takes the next fact of the group, with what was decided on it. Returns whether a change
        is new, or other than before. The first settings of a group are no change.
        """
        event = record.event
        is_rejected = False
        judged = None
        for each in decisions:
            is_rejected = is_rejected or isinstance(each, EventRejected)
            judged = each if isinstance(each, ChangeJudged) else judged
        is_new = False
        if not is_rejected and isinstance(event, ChangePlanned):
            self._judge(judged, record.append_ms)  # of the change that this one replaces
            self._keep(KnownChange(group=self._group, offset=record.offset, append_ms=record.append_ms, planned=event))
            self._last, is_new = record.offset, True
        elif not is_rejected and isinstance(event, GroupConfigured):
            is_new = self._configure(record, event)
        return (self._judge(judged, record.append_ms) if not isinstance(event, ChangePlanned) else False) or is_new

    def __len__(self) -> int:
        return len(self._found)

    def changes(self) -> list[KnownChange]:
        """Returns the changes, in the order of the log."""
        return [self._found[offset] for offset in sorted(self._found)]

    def recall(self, earlier: Sequence[KnownChange]) -> None:
        """Takes changes of before; of one that is here already, its times and its verdict."""
        for each in earlier:
            here = self._found.get(each.offset)
            if here is not None and each.judged is None:
                each = attrs.evolve(here, append_ms=each.append_ms)
            self._found[each.offset] = each
        self._bound()

    def _configure(self, record: FactRecord, event: GroupConfigured) -> bool:
        event = event.content
        before, self._settings = self._settings, event
        planned = None if self._last is None else self._found.get(self._last)
        if planned is not None and _awaits_settings(planned):
            self._keep(attrs.evolve(planned, configured=event, before=before))
            return True
        if before in (None, event) or (planned is not None and _brings_back(planned, event)):
            return False
        self._keep(
            KnownChange(
                group=self._group,
                offset=record.offset,
                append_ms=record.append_ms,
                planned=None,
                configured=event,
                before=before,
            )
        )
        return True

    def _judge(self, judged: ChangeJudged | None, at_ms: int) -> bool:
        last = None if self._last is None else self._found.get(self._last)
        if judged is None or last is None or last.change_id != judged.change_id:
            return False
        self._keep(attrs.evolve(last, judged=judged, judged_ms=at_ms))
        return True

    def _keep(self, change: KnownChange) -> None:
        self._found[change.offset] = change
        self._bound()

    def _bound(self) -> None:
        if self._most is not None:
            for offset in sorted(self._found)[: -self._most]:
                del self._found[offset]


def known_changes(entries: Iterable[Entry], group: str | None = None) -> list[KnownChange]:
    """Returns the changes of a log in stored order. `group` None: of all groups."""
    readers: dict[str, ChangeReader] = {}
    for record, decisions in _facts(entry for entry in entries if group is None or entry.group == group):
        reader = readers.get(record.group)
        if reader is None:
            reader = readers[record.group] = ChangeReader(record.group)
        reader.take(record, decisions)
    return sorted((each for reader in readers.values() for each in reader.changes()), key=lambda each: (each.offset, each.group))


def _facts(entries: Iterable[Entry]) -> Iterator[tuple[FactRecord, list[Decision]]]:
    """Yields facts, each with its decisions: of a group they follow it."""
    held: dict[str, tuple[FactRecord, list[Decision]]] = {}
    for entry in entries:
        if isinstance(entry, DecisionRecord):
            found = held.get(entry.group)
            if found is not None and entry.caused_by == found[0].offset:
                found[1].append(entry.decision)
        elif isinstance(entry, FactRecord):
            if entry.group in held:
                yield held[entry.group]
            held[entry.group] = entry, []
    yield from (held[name] for name in sorted(held))


def _awaits_settings(change: KnownChange) -> bool:
    return change.planned is not None and change.planned.kind == "configure" and change.configured is None and change.judged is None


def _brings_back(change: KnownChange, event: GroupConfigured) -> bool:
    return change.judged is not None and change.judged.undone and change.before == event
