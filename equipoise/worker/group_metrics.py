"""Metrics of the groups that a worker leads, as a page that a scrape can carry.

Totals are those of all groups. Series with a group's name are of at most as many groups as
`metrics_groups` allows: those for which an alert may fire first (`equipoise.worker.group_metrics`).
Settings are counted, not repeated for each group.

The page is made in parts, so that the event loop leads groups between them. It is written here and
not by the client library, which takes ten times as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Multiset
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain, islice
from operator import attrgetter

import attrs

from equipoise.events.facts import GroupConfigured
from equipoise.replay.numbers import WITHOUT_RUNNER
from equipoise.replay.wording import setting_text, setting_values
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.group_readings import GroupCondition, Reading, read

_LOG = logging.getLogger(__name__)
_GROUPS_A_PART = 200
TURN_S = 0.015
"""The page takes the event loop for about so long at once: a busy worker gives a page with shorter
turns too late, and one with longer turns decides too late.
"""
MOST_VALUES = 20
"""Different values of a setting that are counted each; groups with others are counted together."""
MOST_SETTINGS = 100
MOST_PARKED = 10
"""Failed tasks of a group that are named."""
MOST_TOPICS = 10
"""Source topics of a group that are shown although tasks read every partition of them."""
OTHERS = "(others)"
_MOST_VALUE_CHARS = 100
_ALIKE = 8
"""Configurations with which a group's is compared before its settings are listed."""


@attrs.frozen
class _Gauge:
    """A gauge of each named group. `columns`: further labels, as text -> attribute of a `Reading`.
    `total`: the metric of the sums over all groups; "": sums mean nothing.
    """

    name: str
    about: str
    columns: Mapping[str, str]
    total: str = ""


_GAUGES = (
    _Gauge("equipoise_group_halted", "1: the group is halted (docs/operations.md#a-halted-group).", {"": "halted"}),
    _Gauge(
        "equipoise_members",
        "Live members, by state.",
        {'state="STABLE"': "stable", 'state="UNREVOKED"': "unrevoked", 'state="UNRELEASED"': "unreleased"},
        "equipoise_all_members",
    ),
    _Gauge(
        "equipoise_tasks",
        "Tasks, by state: owned, revoking (its owner gives it up), nobody (without an owner).",
        {'state="owned"': "owned", 'state="revoking"': "revoking", 'state="nobody"': "nobody"},
        "equipoise_all_tasks",
    ),
    _Gauge(
        "equipoise_movements",
        "Movements, by state; waiting: without a slot.",
        {'state="waiting"': "waiting_movements", 'state="warming"': "warming_movements", 'state="revoking"': "revoking_movements"},
        "equipoise_all_movements",
    ),
    _Gauge(
        "equipoise_imbalance_tasks",
        "Tasks over the upper share plus tasks under the lower share.",
        {"": "imbalance"},
        "equipoise_all_imbalance_tasks",
    ),
    _Gauge(
        "equipoise_warmup_lag_records", "Records that warm-ups have still to restore, in all.", {"": "warmup_lag"}, "equipoise_all_warmup_lag_records"
    ),
    _Gauge(
        "equipoise_members_refused",
        "Members that may not join, because they run another topology than the group.",
        {"": "refused"},
        "equipoise_all_members_refused",
    ),
    _Gauge(
        "equipoise_members_held_up",
        "Members that something outside holds up, or whose handler does not return.",
        {"": "held_up"},
        "equipoise_all_members_held_up",
    ),
    _Gauge("equipoise_generation", "Number of the last decision round.", {"": "generation"}),
    _Gauge(
        "equipoise_target_moves",
        "Changes of owner from the last evaluation to its target (planned), and the fewest for any balanced target (lower_bound).",
        {'count="planned"': "planned_moves", 'count="lower_bound"': "fewest_moves"},
    ),
    _Gauge("equipoise_cross_rack_partitions", "Source partitions that the target reads from another rack.", {"": "cross_rack"}),
    _Gauge(
        "equipoise_load_spread_ratio",
        "Highest less lowest load per thread of a staying member, in fair shares: at the last evaluation (now), at its target "
        "(target), and the greatest allowed at rest (bound).",
        {'at="now"': "spread_now", 'at="target"': "spread_target", 'at="bound"': "spread_bound"},
    ),
    _Gauge(
        "equipoise_source_lag_records", "Source records still to be processed, as reported.", {"": "source_lag"}, "equipoise_all_source_lag_records"
    ),
    _Gauge(
        "equipoise_lost_tasks",
        "Tasks whose owner left or died and that have no new owner yet, on purpose (waiting) or not (free).",
        {'state="waiting"': "lost_waiting", 'state="free"': "lost_free"},
        "equipoise_all_lost_tasks",
    ),
    _Gauge("equipoise_lost_tasks_wait_seconds", "Group time until the last of the waiting lost tasks gets a new owner.", {"": "lost_wait_s"}),
)
_PARKED = "Tasks whose handler has failed: their members keep them and handle nothing more in them"
_UNAVAILABLE = f"Task-seconds {WITHOUT_RUNNER}, as a timeline of the log shows them, by the broker's clock"


class GroupMetrics:
    """The metrics of one worker's groups. `groups`: returns those that it leads, each with whether
    its state is that of now. `most`: returns how many of them may be named. `unavailable_s`:
    task-seconds of each group without a running owner; they only rise. `unavailable_in_all_s`:
    returns those of all groups that were ever led here.
    """

    def __init__(
        self,
        groups: Callable[[], Iterable[tuple[GroupLead, bool]]],
        most: Callable[[], int],
        unavailable_s: Mapping[str, float],
        unavailable_in_all_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._groups = groups
        self._most = most
        self._unavailable_s = unavailable_s
        self._unavailable_in_all_s = unavailable_in_all_s
        self._monotonic_s = monotonic_s
        self._chosen = NamedGroups()
        self._settings = _Settings()
        self._former: dict[str, tuple[int | None, float]] = {}
        """Group -> its generation and unavailable task-seconds on the last page."""
        self._unreadable: set[str] = set()
        """Groups whose state cannot be read, which were logged."""
        self._under_way: asyncio.Task[bytes] | None = None

    def text(self) -> bytes:
        """The page, made at once."""
        making = self._make()
        while True:
            try:
                next(making)
            except StopIteration as made:
                return bytes(made.value)

    async def page(self) -> bytes:
        """The page, made in parts. Whoever asks meanwhile gets the same one."""
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._make_in_parts())
        return await asyncio.shield(self._under_way)

    async def _make_in_parts(self) -> bytes:
        making, turn_s = self._make(), self._monotonic_s()
        try:
            while True:
                try:
                    next(making)
                except StopIteration as made:
                    return bytes(made.value)
                if self._monotonic_s() - turn_s >= TURN_S:
                    await asyncio.sleep(0)
                    turn_s = self._monotonic_s()
        finally:
            self._under_way = None

    def _make(self) -> Generator[None, None, bytes]:
        readings: dict[str, Reading] = {}
        settings = self._settings
        for number, (lead, is_known) in enumerate(self._groups(), 1):
            readings[lead.name] = self._read(lead, is_known)
            if lead.machine.state.config is not None:
                settings.note(lead.name, lead.machine.state.config)
            if not number % _GROUPS_A_PART:
                yield
        settings.keep(readings)
        self._unreadable &= readings.keys()
        yield
        now_s, former = self._monotonic_s(), self._former
        unavailable_s = self._unavailable_s.get
        counts = {name: unavailable_s(name, 0.0) for name in readings}
        self._former = now = {name: (reading.generation, counts[name]) for name, reading in readings.items()}
        yield
        conditions = {name: reading.condition for name, reading in readings.items()}
        for name in [name for name, then in former.items() if name in now and now[name] != then]:
            if conditions[name] is GroupCondition.AT_REST:
                conditions[name] = GroupCondition.BUSY
        yield
        named = self._chosen.choose(conditions, self._most(), now_s, {name: count for name, (_, count) in former.items()})
        yield
        shown = [(escaped(name), reading) for name, reading in readings.items() if name in named]
        text: list[str] = []
        for gauge in _GAUGES:
            yield
            text += _of_named(gauge, shown)
            if gauge.total:
                yield
                text += _of_all(gauge, readings.values())
        yield
        text += _declared("equipoise_unread_partitions", "Partitions of source topics that no task reads.")
        text += [
            f'equipoise_unread_partitions{{group="{name}",topic="{escaped(topic)}"}} {(reading.unread or {}).get(topic, 0)}'
            for name, reading in shown
            for topic in dict.fromkeys((*reading.source_topics[:MOST_TOPICS], *(reading.unread or ())))
        ]
        text += _declared("equipoise_parked_tasks", f"{_PARKED}, each with its record; topic empty: it failed at none. 0: none has failed.")
        text += [f"equipoise_parked_tasks{{{labels}}} {count}" for name, reading in shown for labels, count in _parked(name, reading)]
        text += _declared("equipoise_all_parked_tasks", f"{_PARKED}, of all groups.")
        text.append(f"equipoise_all_parked_tasks {sum(len(reading.parked or ()) for reading in readings.values())}")
        text += _declared("equipoise_all_unread_partitions", "Partitions of source topics that no task reads, of all groups.")
        text.append(f"equipoise_all_unread_partitions {sum(sum(reading.unread.values()) for reading in readings.values() if reading.unread)}")
        text += _declared("equipoise_unavailable_task_seconds_total", f"{_UNAVAILABLE}.", "counter")
        text += [
            f'equipoise_unavailable_task_seconds_total{{group="{escaped(name)}"}} {self._chosen.shown(name, counts[name])}'
            for name in readings
            if name in named
        ]
        text += _declared("equipoise_all_unavailable_task_seconds_total", f"{_UNAVAILABLE}, of all groups.", "counter")
        text.append(f"equipoise_all_unavailable_task_seconds_total {self._unavailable_in_all_s()}")
        text += _declared("equipoise_groups", "Groups led here, by condition; named: whether other metrics have series of them.")
        there, of_named = Multiset(conditions.values()), Multiset(conditions[name] for name in named)
        for condition in GroupCondition:
            text.append(f'equipoise_groups{{condition="{condition}",named="true"}} {of_named[condition]}')
            text.append(f'equipoise_groups{{condition="{condition}",named="false"}} {there[condition] - of_named[condition]}')
        text += settings.lines()
        return ("\n".join(text) + "\n").encode()

    def _read(self, lead: GroupLead, is_known: bool) -> Reading:
        try:
            return read(lead, is_known=is_known)
        except Exception:  # noqa: BLE001 a defect may have halted it half-way through a step
            if lead.name not in self._unreadable:
                self._unreadable.add(lead.name)
                _LOG.exception("group %s: its state cannot be read for the metrics", lead.name)
            return Reading(halted=int(lead.halted is not None), is_known=is_known, is_read=False)


class _Settings:
    """Counts the groups that have each value of each setting, and the changes of settings that a
    page has seen.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[GroupConfigured, tuple[tuple[str, str], ...]]] = {}
        self._alike: list[tuple[GroupConfigured, tuple[tuple[str, str], ...]]] = []
        self._groups: dict[str, Multiset[str]] = {}
        """Setting -> value -> groups."""
        self._changes = Multiset(dict.fromkeys((*setting_values(GroupConfigured()), "options"), 0))

    def note(self, group: str, config: GroupConfigured) -> None:
        """Counts a group, unless its configuration is the same as last time."""
        known = self._of.get(group)
        if known is not None and known[0] is config:
            return
        values = self._values(config)
        if known is None or known[1] != values:
            if known is not None:
                changed = {name for name, _ in set(known[1]) ^ set(values)}
                self._changes.update({name.partition(".")[0] for name in changed})
                self._count(known[1], -1)
            self._count(values, 1)
        self._of[group] = config, values

    def keep(self, groups: Mapping[str, object]) -> None:
        """Forgets all but these groups."""
        if self._of.keys() - groups.keys():
            for group in self._of.keys() - groups.keys():
                self._count(self._of.pop(group)[1], -1)

    def lines(self) -> Generator[str, None, None]:
        """Yields the lines of the metrics page."""
        about = f"Groups in which a setting has this value; {OTHERS}: one that is not among the most frequent."
        yield from _declared("equipoise_setting_groups", about)
        for name in sorted(self._groups, key=lambda name: (name.startswith("options."), name))[:MOST_SETTINGS]:
            ordered = sorted(self._groups[name].items(), key=lambda pair: (-pair[1], pair[0]))
            counts, others = dict(ordered[:MOST_VALUES]), sum(count for _, count in ordered[MOST_VALUES:])
            if others:
                counts[OTHERS] = counts.get(OTHERS, 0) + others
            for value, count in counts.items():
                yield f'equipoise_setting_groups{{setting="{escaped(name)}",value="{escaped(value)}"}} {count}'
        yield from _declared("equipoise_setting_changes_total", "Groups whose setting changed from one scrape to the next.", "counter")
        for name, count in self._changes.items():
            yield f'equipoise_setting_changes_total{{setting="{name}"}} {count}'

    def _values(self, config: GroupConfigured) -> tuple[tuple[str, str], ...]:
        for alike, values in self._alike:
            if alike == config:
                return values
        values = tuple((name, setting_text(value)[:_MOST_VALUE_CHARS]) for name, value in setting_values(config).items())
        self._alike = [(config, values), *self._alike[: _ALIKE - 1]]
        return values

    def _count(self, values: Iterable[tuple[str, str]], groups: int) -> None:
        for name, value in values:
            counts = self._groups.setdefault(name, Multiset())
            counts[value] += groups
            if not counts[value]:
                del counts[value]
                if not counts:
                    del self._groups[name]


def escaped(label: str) -> str:
    """A value of a label, as Prometheus reads it."""
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _declared(name: str, about: str, kind: str = "gauge") -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _parked(name: str, reading: Reading) -> Generator[tuple[str, int], None, None]:
    """Yields labels and value for each failed task of a group, the first MOST_PARKED by themselves."""
    parked = reading.parked or {}
    for task, each in islice(parked.items(), MOST_PARKED):
        yield f'group="{name}",task="{task}",topic="{escaped(each.topic)}",partition="{each.partition}",offset="{each.offset}"', 1
    if len(parked) > MOST_PARKED or not parked:
        others = OTHERS if parked else ""
        yield f'group="{name}",task="{others}",topic="",partition="",offset=""', max(0, len(parked) - MOST_PARKED)


def _of_named(gauge: _Gauge, shown: Iterable[tuple[str, Reading]]) -> Generator[str, None, None]:
    yield from _declared(gauge.name, gauge.about)
    for labels, attribute in gauge.columns.items():
        end = f",{labels}}}" if labels else "}"
        value_of = attrgetter(attribute)
        for name, reading in shown:
            value = value_of(reading)
            if value is not None:
                yield f'{gauge.name}{{group="{name}"{end} {value}'


def _of_all(gauge: _Gauge, readings: Iterable[Reading]) -> Generator[str, None, None]:
    yield from _declared(gauge.total, f"{gauge.about.rstrip('.')}; of all groups.")
    for labels, attribute in gauge.columns.items():
        end = f"{{{labels}}}" if labels else ""
        yield f"{gauge.total}{end} {sum(filter(None, map(attrgetter(attribute), readings)))}"


# Chooses the groups that the metrics name, where a worker leads more than they may name.

KEPT_S = 15 * 60.0
"""A group that was not at rest is named for so long before others at rest: as long as the longest
time for which an alert on a group that moves is pending.
"""
HELD_S = 120.0
"""The counter of a group that is named again shows for so long what it was before: two scrapes, at
the longest usual interval. Prometheus sees no rise in a series that begins with it.
"""
_RANKS = {condition: rank for rank, condition in enumerate(GroupCondition)}


class NamedGroups:
    """The choice of one worker. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._named: frozenset[str] = frozenset()
        self._kept_until_s: dict[str, float] = {}
        """Groups that were not at rest lately."""
        self._held: dict[str, tuple[float, float]] = {}
        """Group -> what its counter shows, and until when."""

    def choose(self, conditions: Mapping[str, GroupCondition], most: int, now_s: float, former: Mapping[str, float]) -> frozenset[str]:
        """Returns the groups to name, at most `most`: the most urgent first, then those that were
        so lately, then those named the last time, then by name. `former`: what the counter of each
        group was then; groups that were not there are absent.
        """
        kept = {group: until_s for group, until_s in self._kept_until_s.items() if until_s > now_s and group in conditions}
        kept.update((group, now_s + KEPT_S) for group, condition in conditions.items() if condition is not GroupCondition.AT_REST)
        self._kept_until_s = kept
        named = frozenset(conditions)
        if len(named) > most:
            by_rank: list[list[str]] = [[] for _ in range(2 * len(_RANKS) + 2)]
            for group in sorted(conditions):
                rank = _RANKS[conditions[group]] if group in kept else len(_RANKS)
                by_rank[2 * rank + (group not in self._named)].append(group)
            named = frozenset(islice(chain.from_iterable(by_rank), most))
        for group in named - self._named:
            if group in former:
                self._held[group] = former[group], now_s + HELD_S
        self._held = {group: held for group, held in self._held.items() if held[1] > now_s and group in named}
        self._named = named
        return named

    def shown(self, group: str, count: float) -> float:
        """Returns what the group's counter shows now. `count`: its value."""
        held = self._held.get(group)
        return count if held is None else held[0]
