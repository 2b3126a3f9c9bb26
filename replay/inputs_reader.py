"""Finds the recorded inputs of a group in its log: one that equipoise led, or one imported from
Kafka Streams. In an imported log, the actions that operators wrote down (in the manifest, under
``supplied``) win over what is inferred.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from equipoise.assignors.common.carrier import FAUST
from equipoise.events.decisions import EventRejected, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import (
    AssignmentObserved,
    GroupConfigured,
    GroupRejoined,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    LogOpened,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    PartitionsObserved,
    RestartIntended,
    RoundAsked,
    TaskReady,
    TopologyDeclared,
)
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.replay.recorded_inputs import (
    ConfigurationChanged,
    Curve,
    GroupStart,
    Happening,
    Heard,
    PartitionsPlaced,
    ProcessEnded,
    ProcessStarted,
    RecordedInputs,
    TopologyChanged,
    Window,
)
from equipoise.replay.replayer import ConfigurationAnswers
from equipoise.replay.wording import groups_text
from equipoise.statemachine import rejoining


@attrs.define
class _Incarnation:
    """One incarnation while the log is read."""

    join: MemberJoined
    joined_ms: int
    offset: int
    """Offset of its join."""
    before: _Incarnation | None
    """The incarnation of the same member that its join ended."""
    heard_ms: int
    intended_ms: int | None = None
    asked_ms: int | None = None
    restart: tuple[int | None, int] | None = None
    """The time that it stated, and when it said first that it will be back."""
    removed_ms: int | None = None
    end: ProcessEnded | None = None
    preparing: dict[TaskId, int] = attrs.field(factory=dict)
    """Task -> when its application was first seen to prepare it."""
    prepared_ms: list[int] = attrs.field(factory=list)
    """Milliseconds from there until each task was ready or ran."""

    def prepares(self, event: LagReported | TaskReady, now_ms: int) -> None:
        if isinstance(event, TaskReady):
            done: set[TaskId] = set(event.tasks)
        else:
            done = {*event.ready, *(task for task, lag in event.lags.items() if lag is LagSentinel.ACTIVE)}
            for task in event.preparing:
                self.preparing.setdefault(task, now_ms)
        for task in sorted(done & self.preparing.keys()):
            self.prepared_ms.append(now_ms - self.preparing.pop(task))

    def ends(self, at_ms: int, how: str, *, inferred: bool, removed_ms: int, better: bool = False, back_within_ms: int | None = None) -> None:
        """Notes its end. The first record of it counts, unless a later one has `better` evidence."""
        if self.end is None or better:
            self.removed_ms = removed_ms
            self.end = ProcessEnded(
                at_ms=at_ms,
                member_id=self.join.member_id,
                incarnation=self.join.incarnation,
                how=how,
                inferred=inferred,
                done_ms=None,
                back_within_ms=back_within_ms,
            )


def _median(lengths_ms: list[int]) -> int:
    return int(statistics.median(lengths_ms)) if lengths_ms else 0


_OBSERVED_ENDS = {"left": "closed", "expired": "killed", "replaced": "killed"}


class _Reading:
    """One log being read."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self.manifest: dict[str, Any] = {}
        self.start_ms: int | None = None
        self.config: GroupConfigured | None = None
        self.changed_at: int | None = None
        """Offset of the last configuration that changed another one; None: there was none."""
        self.topology: TopologyDeclared | None = None
        self.carrier: str | None = None
        self.changes: list[Happening] = []
        self.samples: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.lives: list[_Incarnation] = []
        self.live: dict[str, _Incarnation] = {}
        self.known: dict[tuple[str, int], _Incarnation] = {}
        self.now_ms = 0

    def fact(self, record: FactRecord) -> None:
        event = record.event
        if isinstance(event, LogOpened):
            self.manifest = read_manifest(event.manifest)
            return
        if self.group is None:
            self.group = record.group
        elif self.group != record.group:
            raise InputError(f"--group: the log holds several groups, {self.group!r} and {record.group!r} among them; name one")
        self.now_ms = max(self.now_ms, record.append_ms)
        if self.start_ms is None:
            self.start_ms = self.now_ms
        if isinstance(event, GroupConfigured):
            if record.refused:
                pass  # never applied
            elif self.config is None:
                self.config = event.content
            else:
                self.changes.append(ConfigurationChanged(at_ms=self.now_ms, config=event.content))
                self.changed_at = record.offset
        elif isinstance(event, TopologyDeclared):
            self._declared(event)
        elif isinstance(event, GroupRejoined):
            self._rejoined(event, record.offset)
        elif isinstance(event, PartitionsObserved):
            self._partitions(event)
        elif isinstance(event, MemberJoined):
            self._joined(event, record.offset)
        elif isinstance(event, LeaveRequested):
            for asked in (self.live[name] for name in event.members if name in self.live):
                asked.asked_ms = None if event.withdrawn else self.now_ms if asked.asked_ms is None else asked.asked_ms
        elif isinstance(event, AssignmentObserved):
            for ended in event.ended:
                life = self._life(ended.member_id, ended.incarnation)
                if life is not None:
                    life.ends(ended.ended_ms, _OBSERVED_ENDS[ended.how], inferred=ended.inferred, removed_ms=self.now_ms, better=True)
        elif isinstance(event, RoundAsked):
            self.carrier = event.carrier
            present = {each.member_id for each in event.members}
            for name in sorted(self.live.keys() - present):
                if self.live[name].end is None:  # it may have been closed or killed: nobody said
                    self.live[name].ends(self.live[name].heard_ms, "killed", inferred=True, removed_ms=self.now_ms)
        elif isinstance(event, MemberEnded):
            life = self._life(event.member_id, event.incarnation)
            if life is not None and life.restart is not None:
                life.ends(life.restart[1], "restarting", inferred=False, removed_ms=self.now_ms, back_within_ms=life.restart[0])
            elif life is not None:  # a proof that comes after its removal says nothing of when it ended
                life.ends(self.now_ms, "witnessed", inferred=False, removed_ms=self.now_ms)
        elif isinstance(event, Heard):
            life = self._life(event.member_id, event.incarnation)
            if life is not None:
                self._heard(life, event)
                if isinstance(event, LagReported | TaskReady):
                    life.prepares(event, self.now_ms)

    def _declared(self, event: TopologyDeclared) -> None:
        if self.topology is None:
            self.topology = event
        else:
            self.changes.append(TopologyChanged(at_ms=self.now_ms, topology=event))

    def _rejoined(self, event: GroupRejoined, offset: int) -> None:
        """A generation of a classic consumer group, as the joins and ends of its members."""
        for declared in event.topologies:
            self._declared(declared)
        here = {(each.member_id, each.incarnation) for each in event.members}
        absent = {each.member_id: each.back_within_ms for each in event.absent}
        for name, life in sorted(self.live.items()):
            if life.end is None and (name, life.join.incarnation) not in here:
                back_ms = absent.get(name)
                how = "closed" if back_ms is None else "restarting"
                life.ends(self.now_ms, how, inferred=False, removed_ms=self.now_ms, back_within_ms=back_ms)
        for each in event.members:
            if (each.member_id, each.incarnation) in self.known:
                self.known[each.member_id, each.incarnation].heard_ms = self.now_ms
            else:
                self._joined(rejoining.joined(each), offset)

    def _partitions(self, event: PartitionsObserved) -> None:
        for topic, ends in event.end_offsets.items():
            for partition, end in ends.items():
                samples = self.samples.setdefault((topic, partition), [])
                if samples and samples[-1][0] == self.now_ms:
                    samples[-1] = (self.now_ms, end)
                else:
                    samples.append((self.now_ms, end))
        if event.racks or event.weights or event.source_lags:
            self.changes.append(PartitionsPlaced(at_ms=self.now_ms, observed=attrs.evolve(event, end_offsets={})))

    def _joined(self, event: MemberJoined, offset: int) -> None:
        before = self.live.get(event.member_id)
        if before is not None and before.join.incarnation == event.incarnation:
            return  # a repeat, which the machine rejects too
        if before is not None and before.end is None:
            before.ends(before.heard_ms, "killed", inferred=True, removed_ms=self.now_ms)
        else:
            before = None
        self.live[event.member_id] = _Incarnation(join=event, joined_ms=self.now_ms, offset=offset, before=before, heard_ms=self.now_ms)
        self.known[event.member_id, event.incarnation] = self.live[event.member_id]
        self.lives.append(self.live[event.member_id])

    def _life(self, member_id: str, incarnation: int) -> _Incarnation | None:
        return self.known.get((member_id, incarnation))

    def _heard(self, life: _Incarnation, event: Heard) -> None:
        life.heard_ms = self.now_ms
        if isinstance(event, RestartIntended):
            life.restart = (event.back_within_ms, self.now_ms if life.restart is None else life.restart[1])
            return
        if isinstance(event, LeaveIntended) or (isinstance(event, LagReported) and event.leaving):
            life.intended_ms = self.now_ms if life.intended_ms is None else life.intended_ms
        elif isinstance(event, LeaveCancelled | LagReported):
            life.intended_ms = None
            life.restart = None if isinstance(event, LeaveCancelled) else life.restart
        elif isinstance(event, MemberLeft) and life.restart is not None:
            life.ends(life.restart[1], "restarting", inferred=False, removed_ms=self.now_ms, back_within_ms=life.restart[0])
        elif isinstance(event, MemberLeft):
            said_ms = [each for each in (life.intended_ms, life.asked_ms) if each is not None]
            how = "announced" if said_ms else "closed"
            life.ends(min(said_ms, default=self.now_ms), how, inferred=False, removed_ms=self.now_ms)

    def _refused(self, life: _Incarnation) -> None:
        """Removes a process whose join was rejected, as in a group without configuration. It was
        never a member and joins again with another incarnation.
        """
        self.lives.remove(life)
        del self.known[life.join.member_id, life.join.incarnation]
        del self.live[life.join.member_id]
        if life.before is not None:
            life.before.end = None
            self.live[life.join.member_id] = life.before

    def decision(self, record: DecisionRecord) -> None:
        if isinstance(record.decision, EventRejected):
            if record.caused_by == self.changed_at:
                self.changes.pop()
            joined = self.live.get(record.decision.member_id or "")
            if joined is not None and joined.offset == record.caused_by:
                self._refused(joined)
        elif isinstance(record.decision, MemberExpired):
            life = self._life(record.decision.member_id, record.decision.incarnation)
            if life is not None:
                life.ends(life.heard_ms, "killed", inferred=True, removed_ms=self.now_ms)


class RecordedInputsReader:
    """Reads recorded inputs record by record, in stored order, for callers that read the log for
    other reasons as well.
    """

    def __init__(self, *, group: str | None = None, announce_closes: bool | None = True) -> None:
        self._group = group
        self._announce_closes = announce_closes
        self._reading = _Reading(group)
        self._others: set[str] = set()
        self._answers = ConfigurationAnswers()

    def take(self, record: Entry) -> None:
        """Takes the next record. Raises InputError when no group was named and the log holds
        several, UnknownKindError for a record of a newer build in the group.
        """
        if self._group is None or record.group in ("", self._group):
            self._known(self._answers.take(record))
        elif not isinstance(record, DecisionRecord):
            self._others.add(record.group)

    def _known(self, records: Iterable[Entry]) -> None:
        for record in records:
            if isinstance(record, UnreadRecord):
                raise record.error()
            if isinstance(record, BaseState):
                raise InputError(
                    f"the log begins at a base (offset {record.begins_offset}), and this needs it from its first record; read the archive"
                )
            if isinstance(record, DecisionRecord):
                self._reading.decision(record)
            else:
                self._reading.fact(record)

    def inputs(self) -> RecordedInputs:
        """Returns the inputs read so far. Raises InputError as `read_recorded_inputs` does."""
        self._known(self._answers.rest())
        reading, group, announce_closes = self._reading, self._group, self._announce_closes
        if reading.config is None or reading.topology is None or reading.start_ms is None or reading.group is None:
            if reading.group is None or (group is not None and reading.start_ms is None):
                named = "any group; import or simulate one" if group is None else f"group {group!r}; {groups_text(self._others)}"
                raise InputError(f"{'' if group is None else '--group: '}the log holds no fact of {named}")
            missing = "GroupConfigured" if reading.config is None else "TopologyDeclared"
            raise InputError(f"the log has no {missing} fact of group {reading.group!r}; import or record it again")
        if reading.carrier == FAUST.name:
            others = "equipoise verify, explain and timeline read it"
            raise InputError(f"group {reading.group!r} is an application of Faust, whose rebalances are not simulated; {others}")
        imported = reading.config.led_by == "external"
        actions = reading.manifest.get("supplied", {}).get("actions", {})
        supplied = [each for each in actions.get("values", []) if each.get("instance")]
        people = _processes(reading.lives, supplied, imported=imported)
        windows = _windows(reading.manifest)
        start = GroupStart(
            at_ms=reading.start_ms,
            group=reading.group,
            config=reading.config,
            topology=reading.topology,
            curves={key: Curve(tuple(samples)) for key, samples in sorted(reading.samples.items())},
        )
        return RecordedInputs(
            start=start,
            happenings=tuple(sorted([*reading.changes, *people], key=_order)),
            windows=windows,
            end_ms=max([reading.now_ms, *(window.end_ms for window in windows)]),
            imported=imported,
            settings=reading.manifest.get("supplied", {}).get("settings", {}).get("values", {}),
            first_leader=reading.manifest.get("observed", {}).get("first_leader", {}).get("process_id", ""),
            carrier=reading.carrier,
            announce_closes=None,
        ).with_closes(announce_closes)


def read_recorded_inputs(records: Iterable[Entry], *, group: str | None = None, announce_closes: bool | None = True) -> RecordedInputs:
    """Reads the recorded inputs of one group. `group`: None means the only group of the log.

    The log shows when a process closed in an orderly way. Whether it announced the close depends on
    the leader: a member of equipoise asks to leave and is drained first (LeaveIntended), a member
    of Kafka Streams cannot. `announce_closes` True: it announces; False: it stops at once; None: as
    recorded.

    Raises InputError when the log has no configuration or no topology, when it holds several groups
    and none was named, when the group is not in it or is one of Faust, or when its manifest is not
    a JSON object; UnknownKindError for a record of a newer build.
    """
    reader = RecordedInputsReader(group=group, announce_closes=announce_closes)
    for record in records:
        reader.take(record)
    return reader.inputs()


def _order(happening: Happening) -> tuple[int, int, str, int]:
    if isinstance(happening, ProcessEnded):
        return happening.at_ms, 1, happening.member_id, happening.incarnation
    if isinstance(happening, ProcessStarted):
        return happening.at_ms, 2, happening.member_id, happening.incarnation
    return happening.at_ms, 0, type(happening).__name__, 0


def read_manifest(text: str) -> dict[str, Any]:
    """Returns `LogOpened.manifest` as a dict; empty for a live log. Raises InputError when it is
    not a JSON object.
    """
    if not text:
        return {}
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise InputError(f"LogOpened.manifest: not JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise InputError("LogOpened.manifest: not a JSON object")
    return manifest


def marked_windows(manifest: str) -> tuple[Window, ...]:
    """Returns the windows that the manifest of a log (`LogOpened.manifest`) marks; none for a live
    log. Raises InputError when it is not a JSON object.
    """
    return _windows(read_manifest(manifest))


def _windows(manifest: Mapping[str, Any]) -> tuple[Window, ...]:
    supplied = manifest.get("supplied", {})
    measured = {each["action"]: each for each in supplied.get("measured", {}).get("values", [])}
    return tuple(
        Window(label=each["label"], start_ms=each["start_ms"], end_ms=each["end_ms"], measured=measured.get(each["label"]))
        for each in supplied.get("actions", {}).get("windows", [])
    )


def _processes(lives: list[_Incarnation], supplied: list[dict[str, Any]], *, imported: bool) -> list[Happening]:
    """Starts and ends of all processes. Records of operators win over inferred times."""
    by_member: dict[str, list[_Incarnation]] = {}
    for life in lives:
        by_member.setdefault(life.join.member_id, []).append(life)
    found: list[Happening] = []
    of_group = [length_ms for life in lives for length_ms in life.prepared_ms]
    for member_id, theirs in sorted(by_member.items()):
        records = [each for each in supplied if each["instance"] == member_id]
        starts = [_recorded_start(records, life, theirs[index - 1] if index else None) for index, life in enumerate(theirs)]
        gone_ms: int | None = None
        for index, life in enumerate(theirs):
            start = starts[index]
            begin_ms = life.joined_ms if start is None else start["at_ms"]
            next_begin_ms = None
            if index + 1 < len(theirs):
                following = starts[index + 1]
                next_begin_ms = theirs[index + 1].joined_ms if following is None else following["at_ms"]
            found.append(
                ProcessStarted(
                    at_ms=begin_ms,
                    member_id=member_id,
                    incarnation=life.join.incarnation,
                    identity=life.join.join_nonce.split("@")[0] if imported else member_id,
                    capacity=life.join.capacity,
                    rack=life.join.rack,
                    tags=life.join.tags,
                    eager=life.join.eager,
                    ready_lag_records=life.join.ready_lag_records,
                    prepare_ms=None if life.join.readiness != "word_and_lag" else _median(life.prepared_ms or of_group),
                    session_timeout_ms=life.join.session_timeout_ms,
                    lease_margin_ms=life.join.lease_margin_ms,
                    state_kept=_state_kept(life, theirs[index - 1] if index else None, start, imported=imported),
                    lags=life.join.lags,
                    joined_ms=life.joined_ms,
                    supplied=start is not None,
                    pause_ms=None if start is None or gone_ms is None else max(0, begin_ms - gone_ms),
                )
            )
            end = _recorded_end(records, life, begin_ms, next_begin_ms) or life.end
            gone_ms = None
            if end is not None:
                found.append(end)
                gone_ms = end.done_ms
    return found


def _recorded_start(records: list[dict[str, Any]], life: _Incarnation, before: _Incarnation | None) -> dict[str, Any] | None:
    """The last recorded start between the join of its predecessor and its own."""
    after_ms = -1 if before is None else before.joined_ms
    starts = [each for each in records if each["action"] == "start" and after_ms < each["at_ms"] <= life.joined_ms]
    return starts[-1] if starts else None


def _recorded_end(records: list[dict[str, Any]], life: _Incarnation, begin_ms: int, next_begin_ms: int | None) -> ProcessEnded | None:
    """The first recorded kill or close between its start and its removal, or the start of its
    successor.
    """
    limits = [each for each in (life.removed_ms, next_begin_ms) if each is not None]
    for each in records:
        if each["action"] in ("kill", "close_begin") and begin_ms < each["at_ms"] and all(each["at_ms"] <= limit for limit in limits):
            killed = each["action"] == "kill"
            closes = [done["at_ms"] for done in records if done["action"] == "close_end" and done["at_ms"] >= each["at_ms"]]
            at_ms = each.get("sent_ms", each["at_ms"]) if killed else each["at_ms"]
            return ProcessEnded(
                at_ms=at_ms,
                member_id=life.join.member_id,
                incarnation=life.join.incarnation,
                how="killed" if killed else "silent" if each.get("leave_group") is False else "closed",
                inferred=False,
                done_ms=each["at_ms"] if killed else closes[0] if closes else None,
            )
    return None


def _state_kept(life: _Incarnation, before: _Incarnation | None, start: dict[str, Any] | None, *, imported: bool) -> bool:
    """As recorded; else, for an imported group, by the process id, which is stored in the state
    directory; else by the copies it joined with.
    """
    if start is not None and start.get("state_dir") in ("kept", "empty"):
        return bool(start["state_dir"] == "kept")
    if imported and before is not None:
        return before.join.join_nonce.split("@")[0] == life.join.join_nonce.split("@")[0]
    return bool(life.join.lags)


def sum_windows(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums the totals of several windows by name. Totals named ``longest_...`` give their maximum.
    Totals named ``tasks_...`` are left out: they would count a task twice.
    """
    names = [name for name in (windows[0] if windows else ()) if all(name in totals for totals in windows) and not name.startswith("tasks_")]
    return {name: (max if name.startswith("longest_") else sum)(totals[name] for totals in windows) for name in names}
