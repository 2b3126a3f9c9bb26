"""The state of one group at one offset, as values for tables and documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.events.records import Entry
from equipoise.events.tasks import Lag, TaskId
from equipoise.replay.replayer import Replayer
from equipoise.replay.wording import lag_form, span_text
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.state import GroupState, MemberState, Restart, known_lag


@attrs.frozen(kw_only=True)
class PreparingRow:
    """A task that a member's application is preparing. `thousandths`: progress. `since_ms`: for how
    long, in group time. Both None: it waits for a retry.
    """

    thousandths: int | None
    since_ms: int | None
    has_failed: bool
    """Its last preparation failed."""


@attrs.frozen(kw_only=True)
class CopyRow:
    """A copy of a task on a member that does not run it. `best_lag_records`: the lowest lag since
    the warm-up began.
    """

    member_id: str
    lag: Lag | None
    """As the member last reported it; None: not yet."""
    best_lag_records: int | None = None
    caught_up: bool
    is_learner: bool
    """The copy is there to take the task over."""
    is_ready: bool
    """The member has declared the copy ready."""
    preparing: PreparingRow | None
    """The preparation of the task by the member's application; None: none."""

    def document(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "lag": lag_form(self.lag)}


@attrs.frozen(kw_only=True)
class ParkedRow:
    """Why a task's owner handles nothing more in it (`TaskParked`). `topic` "": it failed at no
    record. `since_ms`: for how long, in group time.
    """

    topic: str
    partition: int
    offset: int
    error: str
    since_ms: int


@attrs.frozen(kw_only=True)
class TaskRow:
    """A task. `state`: owned, revoking (its owner is to give it up) or nobody. `destination`: of
    the movement in flight.
    """

    task: TaskId
    stateful: bool
    end_offset: int
    owner: str | None
    owner_lag: Lag | None
    """As the owner last reported it; None: not yet, no owner, or no state."""
    state: str
    destination: str | None
    movement: str | None
    is_learned: bool
    """A member restores or keeps a copy in order to take the task over."""
    preparing: PreparingRow | None
    """What the owner's application prepares before its first record; None: nothing."""
    parked: ParkedRow | None
    """Why the owner handles nothing more; None: it does."""
    warmups: tuple[CopyRow, ...]
    standbys: tuple[CopyRow, ...]
    token: int
    hold_ms: int
    kept_ms: int | None = None
    """Group time for which a task without an owner is still kept for its former one, on purpose;
    None: it is not.
    """
    kept_for: str | None = None
    """Its former owner."""

    def document(self) -> dict[str, Any]:
        return {
            "task": str(self.task),
            "stateful": self.stateful,
            "end_offset": self.end_offset,
            "owner": self.owner,
            "owner_lag": lag_form(self.owner_lag),
            "state": self.state,
            "destination": self.destination,
            "movement": self.movement,
            "is_learned": self.is_learned,
            "preparing": None if self.preparing is None else attrs.asdict(self.preparing),
            "parked": None if self.parked is None else attrs.asdict(self.parked),
            "warmups": [copy.document() for copy in self.warmups],
            "standbys": [copy.document() for copy in self.standbys],
            "token": self.token,
            "hold_ms": self.hold_ms,
            "kept_ms": self.kept_ms,
            "kept_for": self.kept_for,
        }


@attrs.frozen(kw_only=True)
class GroupMemberRow:
    """A live incarnation. `silent_ms`: group time since its last valid fact. Its session ends at
    `session_timeout_ms`.
    """

    member_id: str
    incarnation: int
    phase: str
    capacity: int
    rack: str | None
    active: tuple[TaskId, ...]
    standby: tuple[TaskId, ...]
    warmup: tuple[TaskId, ...]
    revoking: tuple[TaskId, ...]
    assignment_epoch: int
    applied_epoch: int
    silent_ms: int
    session_timeout_ms: int
    leaving: bool
    released: bool
    restore_records_per_s: int | None
    """As it last measured, or as was known of other members when it joined; None: unknown."""
    readiness: str = "word_or_lag"
    """What makes its copies ready (`equipoise.events.facts.READINESS`)."""
    ready_lag_records: int | None = None
    """Its own limit for ready copies; None: the group's."""
    acceptable_lag_records: int = 0
    """Lag up to which its copies count as caught up now."""
    drain: Drain | None = None
    """How long it still needs while it is leaving and runs tasks; None: it is not."""
    crashes: int = 0
    """Recent crashes."""
    restart: str | None = None
    """turn: it wants to restart when it is its turn. stops: it is about to stop. away: it is
    expected back. None: it does not restart.
    """
    back_ms: int | None = None
    """Time until the leader stops waiting for a member that is away."""
    crash_backoff_ms: int | None = None
    """Time until its copies are preferred again; None: they are."""

    def document(self) -> dict[str, Any]:
        document = attrs.asdict(self, recurse=False)
        for name in ("active", "standby", "warmup", "revoking"):
            document[name] = [str(task) for task in getattr(self, name)]
        drain = document.pop("drain")
        document["drain"] = None if drain is None else attrs.asdict(drain)
        return document


@attrs.frozen(kw_only=True)
class GroupView:
    """The state of a group after the fact at `offset`. Times are group time in milliseconds, except
    `append_ms`.
    """

    group: str
    log_id: str
    offset: int
    append_ms: int
    phase: str
    led_by: str
    assignor: str
    generation: int
    decisions: int
    now_ms: int
    next_deadline_ms: int | None
    next_probing_ms: int | None
    """When the balance is evaluated again although nothing happens; None: it need not be."""
    probed_ms: int | None
    """Group time at which the interval until `next_probing_ms` began: the balance was evaluated
    then, whether or not anything changed; None: unknown.
    """
    verdict: str | None
    available_movements: int
    planned_movements: int
    imbalance_before: int
    imbalance_after: int
    waiting_movements: int
    members: tuple[GroupMemberRow, ...]
    tasks: tuple[TaskRow, ...]
    first_divergence: int | None
    """Offset of the first fact whose stored decisions differ from this state; None: none. See
    `verify`.
    """

    def document(self) -> dict[str, Any]:
        document = attrs.asdict(self, recurse=False)
        document["members"] = [member.document() for member in self.members]
        document["tasks"] = [task.document() for task in self.tasks]
        document["log_differs_at"] = document.pop("first_divergence")
        return document


def show(entries: Iterable[Entry], *, group: str | None = None, at_offset: int | None = None, load: AssignorLoader = registry.load) -> GroupView:
    """Folds `entries` up to and including the fact at `at_offset` (None: all) and returns the
    state.

    Raises InputError when no group was named and the log holds several, when the group is not in
    the log, or when the log ends before `at_offset`; LogError when an entry cannot be read;
    GroupHalted when the group halts.
    """
    replayer = Replayer(group, load=load)
    for _ in replayer.follow(entries, until_offset=at_offset):
        pass
    return view(replayer)


def view(replayer: Replayer) -> GroupView:
    """Returns the state that `replayer` has reached."""
    return view_of(replayer.machine, first_divergence=replayer.first_divergence)


def _probed_ms(state: GroupState) -> int | None:
    """Returns when the balance was evaluated last because of a change or of the interval: then the
    interval began again. None: the next evaluation is due at once, or there is none.
    """
    due_ms = state.probing_deadline_ms
    began_ms = None if due_ms is None else due_ms - state.settings.probing_interval_ms
    return began_ms if began_ms is not None and 0 <= began_ms <= state.now_ms < began_ms + state.settings.probing_interval_ms else None


def view_of(machine: GroupMachine, *, first_divergence: int | None = None) -> GroupView:
    """Returns the state of a machine, live or replayed."""
    state = machine.state
    config = state.config
    draining = drains(state)
    verdict, available, planned, before, after = state.verdict or (None, 0, 0, 0, 0)
    return GroupView(
        group=state.group,
        log_id=state.log_id,
        offset=state.last_offset,
        append_ms=state.last_append_ms or 0,
        phase=state.phase.value,
        led_by="nobody yet" if config is None else config.led_by,
        assignor="" if config is None else f"{config.assignor} {config.behaviour_version}",
        generation=state.generation,
        decisions=state.number,
        now_ms=state.now_ms,
        next_deadline_ms=machine.next_deadline_ms,
        next_probing_ms=state.probing_deadline_ms,
        probed_ms=_probed_ms(state),
        verdict=verdict,
        available_movements=available,
        planned_movements=planned,
        imbalance_before=before,
        imbalance_after=after,
        waiting_movements=state.waiting,
        members=tuple(_member_row(state, state.members[member_id], draining.get(member_id)) for member_id in sorted(state.members)),
        tasks=tuple(task_rows(state)),
        first_divergence=first_divergence,
    )


def _member_row(state: GroupState, member: MemberState, drain: Drain | None) -> GroupMemberRow:
    crashes = state.recent_crashes(member.member_id)
    return GroupMemberRow(
        member_id=member.member_id,
        incarnation=member.incarnation,
        phase=state.member_phase(member).value,
        capacity=member.capacity,
        rack=member.rack,
        active=tuple(sorted(member.active)),
        standby=tuple(sorted(member.standby)),
        warmup=tuple(sorted(member.warmup)),
        revoking=tuple(sorted(member.revoking)),
        assignment_epoch=member.issued_epoch,
        applied_epoch=member.applied_epoch,
        silent_ms=state.now_ms - member.last_heard_ms,
        session_timeout_ms=member.session_timeout_ms,
        leaving=member.leaving,
        released=member.released,
        restore_records_per_s=member.restore_records_per_s or None,
        readiness=member.readiness,
        ready_lag_records=member.ready_lag_records,
        acceptable_lag_records=state.acceptable_lag(member),
        drain=drain,
        restart=_restart(state.restarts.get(member.member_id)),
        back_ms=None if not state.is_away(member.member_id) else _left_ms(state, member.member_id),
        crashes=0 if crashes is None else crashes.times,
        crash_backoff_ms=None if crashes is None or crashes.until_ms is None else crashes.until_ms - state.now_ms,
    )


def _restart(restart: Restart | None) -> str | None:
    if restart is None:
        return None
    if restart.left_ms is not None:
        return "away"
    return "stops" if restart.begun else "turn"


def _left_ms(state: GroupState, member_id: str) -> int:
    until_ms = state.restarts[member_id].until_ms
    return 0 if until_ms is None else max(0, until_ms - state.now_ms)


def task_rows(state: GroupState, only: TaskId | None = None) -> Iterable[TaskRow]:
    """Yields the tasks of the latest topology in rising order; with `only`, that task."""
    standbys: dict[TaskId, list[str]] = {}
    warmups: dict[TaskId, list[str]] = {}
    for member_id in sorted(state.members):
        member = state.members[member_id]
        for task in member.standby:
            standbys.setdefault(task, []).append(member_id)
        for task in member.warmup:
            warmups.setdefault(task, []).append(member_id)
    acceptable = {member.member_id: state.acceptable_lag(member) for member in state.members.values()}
    for task, part in state.tasks().items():
        if only is not None and task != only:
            continue
        owner = state.owner.get(task)
        holder = None if owner is None else state.members[owner]
        lost = state.lost.get(task) if holder is None else None
        kept_ms = None if lost is None or lost.until_ms is None else max(0, lost.until_ms - state.now_ms)
        movement = state.in_flight.get(task)
        learners = state.learners(task)
        yield TaskRow(
            task=task,
            stateful=part.stateful,
            end_offset=state.end_offset(task, part),
            owner=owner,
            owner_lag=None if holder is None or not part.stateful else holder.lags.get(task),
            state="nobody" if holder is None else "revoking" if task in holder.revoking else "owned",
            destination=None if movement is None else movement.destination,
            movement=None if movement is None else movement.state.value,
            is_learned=bool(learners),
            preparing=None if holder is None else preparing_row(state, holder, task),
            parked=_parked_row(state, task, owner),
            warmups=tuple(_copy_row(state, name, task, acceptable[name], name in learners) for name in warmups.get(task, ())),
            standbys=tuple(_copy_row(state, name, task, acceptable[name], name in learners) for name in standbys.get(task, ())),
            token=state.tokens.get(task, 0),
            hold_ms=state.holds.get(task, 0),
            kept_ms=kept_ms,
            kept_for=None if kept_ms is None else state.previous_owners.get(task),
        )


def preparing_row(state: GroupState, member: MemberState, task: TaskId) -> PreparingRow | None:
    """Returns what the member's application prepares of the task; None: nothing."""
    now, has_failed = member.preparing.get(task), task in member.failed
    if now is not None:
        return PreparingRow(thousandths=now.thousandths, since_ms=state.now_ms - now.since_ms, has_failed=has_failed)
    return PreparingRow(thousandths=None, since_ms=None, has_failed=True) if has_failed else None


def _parked_row(state: GroupState, task: TaskId, owner: str | None) -> ParkedRow | None:
    parked = state.parked.get(task)
    if parked is None or parked.member_id != owner:
        return None
    return ParkedRow(
        topic=parked.topic, partition=parked.partition, offset=parked.offset, error=parked.error, since_ms=state.now_ms - parked.since_ms
    )


def _copy_row(state: GroupState, member_id: str, task: TaskId, acceptable: int, is_learner: bool) -> CopyRow:
    member = state.members[member_id]
    lag = member.lags.get(task)
    warmup = member.warmup.get(task)
    return CopyRow(
        member_id=member.member_id,
        lag=lag,
        best_lag_records=None if warmup is None else warmup.best_lag,
        caught_up=member.is_caught_up(task, acceptable),
        is_learner=is_learner,
        is_ready=task in member.ready,
        preparing=preparing_row(state, member, task),
    )


# ----------------------------------------------------------------------------------------- drains


@attrs.frozen(kw_only=True)
class Drain:
    """How long a leaving member still needs, as the group is now.

    `expected_ms`: time until all its tasks are restored elsewhere, at measured speeds; None:
    unknown. `left_ms`: time until its drain timeout (`drain_timeout_ms`), when the rest of its
    tasks move whether restored or not.
    """

    expected_ms: int | None
    left_ms: int

    def text(self) -> str:
        """``about 40.0 s to go, 10 min 00 s at most``."""
        if self.expected_ms == 0:
            return f"at once: no task waits for a restore, {span_text(self.left_ms)} at most"
        about = "time to go not known" if self.expected_ms is None else f"about {span_text(self.expected_ms)} to go"
        late = self.expected_ms is not None and self.expected_ms > self.left_ms
        return f"{about}, {span_text(self.left_ms)} at most{': the rest will stand still while it is restored' if late else ''}"


def drains(state: GroupState) -> dict[str, Drain]:
    """The drain of each member that is leaving and still runs tasks, by member id.

    A destination restores all its copies at once, so they share its restore speed.
    """
    leaving = {name: member for name, member in state.members.items() if member.leaving and member.drain_deadline_ms is not None}
    going: dict[str, dict[str, list[TaskId]]] = {}
    work: dict[str, int] = {}
    for name, member in sorted(leaving.items()):
        for task in sorted({*member.active, *member.revoking}):
            movement = state.in_flight.get(task)
            destination = state.queued.get(task) if movement is None else movement.destination
            if destination is not None and task not in member.revoking:
                going.setdefault(name, {}).setdefault(destination, []).append(task)
                work[destination] = work.get(destination, 0) + _missing(state, destination, task)
    rates = RestoreRates({name: member.restore_records_per_s for name, member in state.members.items()})
    found: dict[str, Drain] = {}
    for name, member in leaving.items():
        if member.active or member.revoking:
            expected_ms = rates.longest_ms({destination: work[destination] for destination in going.get(name, ())})
            found[name] = Drain(expected_ms=expected_ms, left_ms=max(0, (member.drain_deadline_ms or 0) - state.now_ms))
    return found


def _missing(state: GroupState, name: str, task: TaskId) -> int:
    member = state.members[name]
    lag = known_lag(member.lags.get(task))
    records = state.records(task) if lag is None else lag
    return 0 if member.is_caught_up(task, state.acceptable_lag(member)) else records
