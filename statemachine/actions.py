"""Every change of a group's state, each a small function. No other module of the leader writes to
`GroupState` or to what it holds (tests/unit/statemachine/test_actions.py).

A docstring states the change as set algebra: x is the value before, x' the value after. A mapping
is the set of its pairs, so `owner ∪ {task: m}` replaces an entry and `owner \\ {task}` removes one.
What a docstring does not name stays as it is. Functions check nothing and emit nothing: when an
action applies, which decision it causes and which timer to watch is up to `transitions`, `leader`,
`slots`, `due` and `context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs

from equipoise.assignors import Memory, Movement, Revocations
from equipoise.events.facts import (
    AssignmentObserved,
    GroupConfigured,
    LagReported,
    MemberJoined,
    PartitionsObserved,
    RestartIntended,
    TaskParked,
    TopologyDeclared,
)
from equipoise.events.fields import INT64_MAX
from equipoise.events.records import FactRecord
from equipoise.events.tasks import TaskId
from equipoise.statemachine.state import (
    ASKED_MEMORY_MS,
    FURTHEST_MS,
    LATEST_MS,
    MOST_INITIAL_DELAYS,
    REMEMBERED_TOPOLOGIES,
    Backoff,
    Crashes,
    FencedIncarnation,
    GroupState,
    Growth,
    Lent,
    Lost,
    MeasuredLoad,
    MemberState,
    Parked,
    Preparation,
    Refused,
    Restart,
    SlotBackoff,
    Warmup,
    WatchedChange,
    crash_backoff_ms,
    fenced_key,
    known_lag,
    stall_ms,
)

V = TypeVar("V")

NONCE_MEMORY_MS = 3_600_000
"""How long a join nonce is remembered: far longer than any producer retries (Kafka's
delivery.timeout.ms defaults to 120 s).
"""


# Time and numbers


def open_log(state: GroupState, log_id: str, offset: int) -> None:
    """log_id' = log_id of the log; last_offset' = offset."""
    state.log_id = log_id
    state.last_offset = offset


def advance(state: GroupState, record: FactRecord, step_ms: int) -> None:
    """now_ms' = now_ms + step_ms; last_append_ms', last_offset' = the record's; seq' = seq + 1. The
    first record names the group. See docs/protocol.md#l2.
    """
    if not state.group:
        state.group = record.group
    state.now_ms = min(state.now_ms + step_ms, LATEST_MS)
    state.last_append_ms = record.append_ms
    state.last_offset = record.offset
    state.seq += 1


def number_decisions(state: GroupState, count: int) -> int:
    """number' = number + count. Returns the first of the new numbers."""
    first = state.number + 1
    state.number += count
    return first


def begin_generation(state: GroupState) -> None:
    """generation' = generation + 1."""
    state.generation += 1


def begin_epoch(member: MemberState) -> None:
    """issued_epoch' = issued_epoch + 1."""
    member.issued_epoch += 1


# Configuration, topology, partitions


def configure(state: GroupState, fact: GroupConfigured) -> None:
    """config' = what fact configures; config_number' = config_number + 1, from the first fact on
    that names what it was made from; memory' = ∅ when the assignor or its version changes, because
    one assignor's memory means nothing to another. gathering_until_ms', drain_deadline_ms' = what
    they were with the delays of `fact` for those before (docs/protocol.md#d8).
    """
    if fact.made_from is not None or state.config_number:
        state.config_number += 1
    before, state.config = state.config, fact.content
    if before is None or (before.assignor, before.behaviour_version) != (fact.assignor, fact.behaviour_version):
        state.memory = {}
    if before is None:
        return
    if state.gathering_until_ms is not None:
        delays = MOST_INITIAL_DELAYS if state.awaiting_lags else 1
        longer_ms = delays * (fact.knobs.initial_delay_ms - before.knobs.initial_delay_ms)
        state.gathering_until_ms = min(max(0, state.gathering_until_ms + longer_ms), FURTHEST_MS)
    for member in state.members.values():
        if member.drain_deadline_ms is not None:
            member.drain_deadline_ms += fact.knobs.drain_timeout_ms - before.knobs.drain_timeout_ms


def declare_topology(state: GroupState, fact: TopologyDeclared) -> None:
    """topologies' = the epochs that members run, and the last REMEMBERED_TOPOLOGIES, of topologies
    ∪ {fact.epoch: fact}; refused' = {}.
    """
    state.refused = {}
    state.topologies[fact.epoch] = fact
    kept = {member.topology_epoch for member in state.members.values()}.union(sorted(state.topologies)[-REMEMBERED_TOPOLOGIES:])
    state.topologies = {epoch: topology for epoch, topology in state.topologies.items() if epoch in kept}


def forget_removed_tasks(state: GroupState) -> None:
    """previous_owners', lost', lent', loads', behind', parked', backoffs' = their entries for tasks
    of the topology.
    """
    tasks = state.tasks()
    state.previous_owners = {task: name for task, name in state.previous_owners.items() if task in tasks}
    state.lost = {task: lost for task, lost in state.lost.items() if task in tasks}
    state.lent = {task: lent for task, lent in state.lent.items() if task in tasks}
    state.loads = {task: load for task, load in state.loads.items() if task in tasks}
    state.behind = {task: records for task, records in state.behind.items() if task in tasks}
    state.parked = {task: parked for task, parked in state.parked.items() if task in tasks}
    state.backoffs = {key: backoff for key, backoff in state.backoffs.items() if key[0] in tasks}


def observe_partitions(state: GroupState, fact: PartitionsObserved) -> bool:
    """end_offsets', source_lags', racks', weights' = each ∪ those of the fact; growth' ∪= the speed
    from the last observation to this one; behind' = behind \\ {tasks of observed source lags},
    because what members reported of these is older.

    Returns whether a rack or a weight changed.
    """
    for topic, ends in fact.end_offsets.items():
        known = state.end_offsets.setdefault(topic, {})
        _note_growth(state.growth.setdefault(topic, {}), known, ends, state.now_ms)
        known.update(ends)
    _merge(state.source_lags, fact.source_lags)
    topology = state.topology
    for part in () if topology is None else topology.subtopologies:
        for topic in part.source_topics:
            for partition in fact.source_lags.get(topic, ()):
                state.behind.pop(TaskId(part.subtopology, partition), None)
    racks_changed = _merge(state.racks, fact.racks)
    changed = _merge(state.weights, fact.weights) or racks_changed
    state.problem_cache.stale_topics.update(fact.end_offsets, fact.source_lags)
    if changed:
        state.problem_cache.forget_all()
    return changed


def _merge(known: dict[str, dict[int, V]], observed: Mapping[str, Mapping[int, V]]) -> bool:
    """known' = known ∪ observed. Returns whether a value changed."""
    changed = False
    for topic, of_topic in observed.items():
        before = known.setdefault(topic, {})
        changed |= any(before.get(partition) != value for partition, value in of_topic.items())
        before.update(of_topic)
    return changed


def _note_growth(growth: dict[int, Growth], known: Mapping[int, int], ends: Mapping[int, int], now_ms: int) -> None:
    """Records/s of each partition since its last observation, rounded up. Two observations at one
    time count as one; a partition that shrank was created again.
    """
    for partition, end in ends.items():
        before = growth.get(partition)
        if before is None or end < known[partition]:
            growth[partition] = Growth(now_ms)
        elif now_ms > before.observed_ms:
            records_per_s = -(-(end - known[partition]) * 1_000 // (now_ms - before.observed_ms))
            growth[partition] = Growth(now_ms, min(records_per_s, INT64_MAX))


# Members


def join(state: GroupState, fact: MemberJoined, *, restore_records_per_s: int, measured_records_per_s: int) -> MemberState:
    """members' = members ∪ {member_id: a member that owns nothing}; nonces' = nonces not yet
    forgotten ∪ {join_nonce}; asked' = asked \\ {requests whose time has passed}.
    """
    member = MemberState(
        member_id=fact.member_id,
        incarnation=fact.incarnation,
        capacity=fact.capacity,
        rack=fact.rack,
        tags=dict(fact.tags),
        session_timeout_ms=fact.session_timeout_ms,
        lease_margin_ms=fact.lease_margin_ms,
        topology_epoch=fact.topology_epoch,
        last_heard_ms=state.now_ms,
        lags=dict(fact.lags),
        eager=fact.eager,
        readiness=fact.readiness,
        ready_lag_records=fact.ready_lag_records,
        advertised=fact.advertised,
        tells_topology=fact.subtopologies is not None,
        restore_records_per_s=restore_records_per_s,
        measured_records_per_s=measured_records_per_s,
    )
    state.members[fact.member_id] = member
    state.refused.pop(fact.member_id, None)
    remember_nonce(state, fact.join_nonce)
    state.asked = {name: until_ms for name, until_ms in state.asked.items() if until_ms is None or until_ms > state.now_ms}
    return member


def refuse(state: GroupState, member_id: str, code: str, numbers: tuple[int, ...]) -> None:
    """refused' = refused not yet forgotten ∪ {member_id: the given}."""
    state.refused = {**state.recently_refused(), member_id: Refused(state.now_ms, code, numbers)}


def remember_nonce(state: GroupState, nonce: str) -> None:
    """nonces' = nonces not yet forgotten ∪ {nonce}."""
    if state.now_ms >= state.nonces_kept_ms:
        state.nonces = {known: until_ms for known, until_ms in state.nonces.items() if until_ms > state.now_ms}
        state.nonces_kept_ms = min(state.nonces.values(), default=state.now_ms)
    state.nonces[nonce] = state.later_ms(NONCE_MEMORY_MS)


def remove(state: GroupState, member: MemberState) -> None:
    """members', restarts' = each \\ {member}; backoffs' = backoffs \\ {those of the member}; its
    crash back-off ends; a request to leave is kept for ASKED_MEMORY_MS.
    """
    name = member.member_id
    del state.members[name]
    state.backoffs = {key: backoff for key, backoff in state.backoffs.items() if key[1] != name}
    state.restarts.pop(name, None)
    if name in state.crashes:
        state.crashes[name].until_ms = None
    if state.is_asked(name):
        state.asked[name] = state.later_ms(ASKED_MEMORY_MS)


def hear(state: GroupState, member_id: str, incarnation: int) -> MemberState | None:
    """last_heard_ms' = now_ms, of the member or fenced incarnation of that name: a member's lease
    is renewed (docs/protocol.md#m4), and a fenced incarnation is waited for again (#m5).

    Returns the member; None: the incarnation is not the current one.
    """
    member = state.members.get(member_id)
    if member is not None and member.incarnation == incarnation:
        member.last_heard_ms = state.now_ms
        return member
    fenced = state.fenced.get(fenced_key(member_id, incarnation))
    if fenced is not None:
        fenced.last_heard_ms = state.now_ms
    return None


def note_silence(state: GroupState, member: MemberState, silent_ms: int) -> None:
    """last_heard_ms' = now_ms - silent_ms, at most one session back, if that is earlier
    (docs/protocol.md#l11).
    """
    member.last_heard_ms = min(member.last_heard_ms, state.now_ms - min(silent_ms, member.session_timeout_ms))


def _note_change(member: MemberState) -> None:
    """The problem has another `MemberSpec` of the member than before."""
    member.version += 1


def report(state: GroupState, member: MemberState, fact: LagReported) -> None:
    """report_number', applied_epoch', held', ready', failed' = the fact's; lags' = the fact's, or
    lags ∪ the fact's \\ forgotten when it is a delta; preparing' = the fact's, each since it began;
    a measured restore speed replaces the member's. Costs time in the size of the report.
    """
    if fact.base is None or fact.lags or fact.forgotten or fact.load is not None or member.ready.symmetric_difference(fact.ready):
        _note_change(member)
    member.report_number = fact.number
    member.applied_epoch = fact.assignment_epoch
    if fact.load is not None and fact.load.restored_records_per_s >= 1:
        member.restore_records_per_s = member.measured_records_per_s = min(int(fact.load.restored_records_per_s), INT64_MAX)
    if fact.base is None:
        member.lags = dict(fact.lags)  # a copy: the next delta changes it in place, at the cost of the delta alone
    else:
        member.lags.update(fact.lags)
        for task in fact.forgotten:
            member.lags.pop(task, None)
    member.ready = frozenset(fact.ready)
    member.held = fact.held
    before = member.preparing
    member.preparing = {
        task: Preparation(thousandths, before[task].since_ms if task in before else state.now_ms) for task, thousandths in fact.preparing.items()
    }
    member.failed = frozenset(fact.failed)


def record_loads(state: GroupState, loads: Mapping[TaskId, MeasuredLoad], behind: Mapping[TaskId, int]) -> None:
    """loads' = loads ∪ the given; behind' = behind ∪ the given, of tasks of the topology."""
    state.problem_cache.stale_tasks.update(loads, behind)
    state.loads.update(loads)
    state.behind.update((task, records) for task, records in behind.items() if state.has_task(task))


def park(state: GroupState, fact: TaskParked) -> None:
    """parked' = parked ∪ {task: the fact's}; without the task if the fact has no error."""
    if not fact.error:
        state.parked.pop(fact.task, None)
        return
    state.parked[fact.task] = Parked(fact.member_id, state.now_ms, fact.topic, fact.partition, fact.offset, fact.error)


def note_troubles(member: MemberState, troubles: tuple[str, ...]) -> None:
    """troubles' = troubles."""
    member.troubles = troubles


def declare_ready(member: MemberState, tasks: Iterable[TaskId]) -> None:
    """ready' = ready ∪ tasks."""
    _note_change(member)
    member.ready |= frozenset(tasks)


def stop_holding(member: MemberState, tasks: Iterable[TaskId]) -> None:
    """held' = held \\ tasks."""
    given_up = frozenset(tasks)
    member.held = tuple(task for task in member.held if task not in given_up)


# Leaving


def intend_leave(member: MemberState, intends: bool) -> None:
    """intends' = intends."""
    member.intends = intends


def request_leave(state: GroupState, member: MemberState) -> None:
    """asked' = asked ∪ {member: None}."""
    state.asked[member.member_id] = None


def withdraw_request(state: GroupState, member_id: str) -> None:
    """asked' = asked \\ {member_id}."""
    state.asked.pop(member_id, None)


def begin_drain(state: GroupState, member: MemberState) -> None:
    """leaving' = true; drain_deadline_ms' = now_ms + drain_timeout_ms. See docs/protocol.md#m7."""
    member.leaving = True
    member.drain_deadline_ms = state.later_ms(state.settings.drain_timeout_ms)


def expire_drain(member: MemberState) -> None:
    """drain_expired' = true; drain_deadline_ms' = None."""
    member.drain_deadline_ms = None
    member.drain_expired = True


def end_drain(member: MemberState) -> None:
    """leaving', drain_expired' = false; drain_deadline_ms' = None."""
    member.leaving = False
    member.drain_deadline_ms = None
    member.drain_expired = False


def release_member(member: MemberState, *, keeps_copies: bool = False) -> None:
    """released' = true; standby', warmup' = ∅ unless it keeps its copies."""
    _note_change(member)
    member.released = True
    if not keeps_copies:
        member.standby.clear()
        member.warmup.clear()


def readmit(member: MemberState) -> None:
    """released' = false."""
    member.released = False


# Restarts


def intend_restart(state: GroupState, member: MemberState, fact: RestartIntended) -> None:
    """restarts' = restarts ∪ {member: as the fact says, since now}."""
    within_ms = fact.back_within_ms
    state.restarts[member.member_id] = Restart(state.now_ms, within_ms, stated=within_ms is not None, wait_turn=fact.wait_turn)


def begin_restart(restart: Restart, *, within_ms: int, drains: bool) -> None:
    """begun' = true; within_ms', drains' = the given."""
    restart.begun, restart.within_ms, restart.drains = True, within_ms, drains


def go_away(state: GroupState, member: MemberState) -> None:
    """restarts[member].left_ms' = now_ms; released' = true; held', ready', preparing', failed' = ∅."""
    _note_change(member)
    state.restarts[member.member_id].left_ms = state.now_ms
    member.released, member.held, member.ready = True, (), frozenset()
    member.preparing, member.failed = {}, frozenset()


def end_restart(state: GroupState, member_id: str) -> Restart:
    """restarts' = restarts \\ {member}. Returns it."""
    return state.restarts.pop(member_id)


def learn_restart_time(state: GroupState, member_id: str, away_ms: int) -> None:
    """restart_times_ms' = those of members ∪ {member: away_ms}."""
    state.restart_times_ms = {name: known_ms for name, known_ms in state.restart_times_ms.items() if name in state.members}
    state.restart_times_ms[member_id] = away_ms


def lend(state: GroupState, task: TaskId, home: str, borrower: str) -> None:
    """lent' = lent ∪ {task: from home to borrower}."""
    state.lent[task] = Lent(home, borrower, task in state.members[borrower].standby)


def end_loan(state: GroupState, task: TaskId) -> Lent:
    """lent' = lent \\ {task}. Returns it."""
    return state.lent.pop(task)


def let_go(state: GroupState, member: MemberState, task: TaskId) -> None:
    """active' = active \\ {task}; owner' = owner \\ {task}; previous_owners' = previous_owners ∪
    {task: member}. Of a member that is away, and so runs nothing.
    """
    _note_change(member)
    del member.active[task]
    del state.owner[task]
    state.previous_owners[task] = member.member_id


def keep_for(state: GroupState, member: MemberState, task: TaskId) -> None:
    """active' = active ∪ {task: issued_epoch}; owner' = owner ∪ {task: member}; lost' = lost \\
    {task}; previous_owners' = previous_owners \\ {task}. Of a member that is away: the task waits
    for it.
    """
    _note_change(member)
    member.active[task] = member.issued_epoch
    state.owner[task] = member.member_id
    state.lost.pop(task, None)
    state.previous_owners.pop(task, None)


# Crashes


def record_crash(state: GroupState, member_id: str) -> None:
    """crashes' = recent crashes ∪ {member_id: one more, now}. See docs/protocol.md#d10."""
    _forget_old_crashes(state)
    crashes = state.crashes.setdefault(member_id, Crashes(times=0, first_ms=state.now_ms, changed_ms=state.now_ms))
    crashes.times, crashes.changed_ms = crashes.times + 1, state.now_ms


def begin_crash_backoff(state: GroupState, member_id: str) -> bool:
    """crashes' = recent crashes; that of a member that crashed repeatedly is in back-off from now.
    Returns whether the member is in back-off.
    """
    _forget_old_crashes(state)
    crashes = state.crashes.get(member_id)
    if crashes is None:
        return False
    crashes.changed_ms = state.now_ms
    backoff_ms = crash_backoff_ms(crashes.times)
    if backoff_ms:
        crashes.until_ms = state.later_ms(backoff_ms)
    return bool(backoff_ms)


def end_crash_backoff(state: GroupState, member_id: str) -> None:
    """crashes[member_id].until_ms' = None."""
    state.crashes[member_id].until_ms = None


def forget_crashes(state: GroupState, member_id: str) -> None:
    """crashes' = crashes \\ {member_id}."""
    state.crashes.pop(member_id, None)


def _forget_old_crashes(state: GroupState) -> None:
    state.crashes = {name: crashes for name, crashes in state.crashes.items() if state.recent_crashes(name) is not None}


# Ownership


def grant(state: GroupState, member: MemberState, task: TaskId) -> None:
    """active' = active ∪ {task: issued_epoch + 1}; revoking', standby', warmup' = each \\ {task};
    owner' = owner ∪ {task: member}; tokens[task]' = tokens[task] + 1; lost' = lost \\ {task};
    parked' = parked \\ {task}; previous_owners' = previous_owners \\ {task: member}; lent' = lent
    \\ {task} unless the member is the borrower.
    """
    name = member.member_id
    _note_change(member)
    member.revoking.pop(task, None)
    member.active[task] = member.issued_epoch + 1
    member.standby.discard(task)
    member.warmup.pop(task, None)
    state.owner[task] = name
    state.tokens[task] = state.tokens.get(task, 0) + 1
    state.lost.pop(task, None)
    state.parked.pop(task, None)
    if task in state.lent and state.lent[task].borrower != name:
        del state.lent[task]
    if state.previous_owners.get(task) == name:
        del state.previous_owners[task]


def adopt(state: GroupState, member: MemberState, task: TaskId) -> None:
    """As `grant`, of a task that the member has already: active' = active ∪ {task: issued_epoch}."""
    grant(state, member, task)
    member.active[task] = member.issued_epoch


def resubscribe(state: GroupState, member: MemberState, *, topology_epoch: int, capacity: int, rack: str | None) -> bool:
    """topology_epoch', capacity', rack' = the given; applied_epoch' = issued_epoch; last_heard_ms'
    = now_ms. Returns whether one of the first three changed.
    """
    before = member.topology_epoch, member.capacity, member.rack
    _note_change(member)
    member.topology_epoch, member.capacity, member.rack = topology_epoch, capacity, rack
    member.applied_epoch, member.last_heard_ms = member.issued_epoch, state.now_ms
    return before != (topology_epoch, capacity, rack)


def take_back(state: GroupState, member: MemberState, task: TaskId) -> None:
    """Undoes a grant of this step, which no member has seen: active' = active \\ {task}; owner' =
    owner \\ {task}.
    """
    _note_change(member)
    del member.active[task]
    del state.owner[task]


def revoke(state: GroupState, member: MemberState, task: TaskId) -> None:
    """active' = active \\ {task}; revoking' = revoking ∪ {task: (issued_epoch + 1, now_ms)}."""
    del member.active[task]
    member.revoking[task] = (member.issued_epoch + 1, state.now_ms)


def release(state: GroupState, member: MemberState, task: TaskId) -> None:
    """revoking' = revoking \\ {task}; owner' = owner \\ {task}."""
    _note_change(member)
    del member.revoking[task]
    del state.owner[task]


def disown(state: GroupState, task: TaskId) -> None:
    """owner' = owner \\ {task}; for tasks of a member that is being removed."""
    del state.owner[task]


def set_previous_owner(state: GroupState, task: TaskId, member: MemberState | None) -> None:
    """previous_owners' = previous_owners ∪ {task: member}, or previous_owners \\ {task} when it is
    None.
    """
    if member is None:
        state.previous_owners.pop(task, None)
    else:
        state.previous_owners[task] = member.member_id


def lose(state: GroupState, member: MemberState, task: TaskId) -> None:
    """previous_owners' = previous_owners ∪ {task: member}; lost' = lost ∪ {task: since now_ms}."""
    state.previous_owners[task] = member.member_id
    state.lost[task] = Lost(since_ms=state.now_ms)


def fence(state: GroupState, member: MemberState, hold_ms: int) -> str | None:
    """T = tasks that the member knows to own. holds[t]' = max(holds[t], hold_ms) for t ∈ T; fenced'
    = fenced ∪ {the incarnation: T} unless T = ∅. See docs/protocol.md#m5.

    Returns the key of the fenced incarnation; None: it had no task.
    """
    tasks = {task for task in (*member.active, *member.revoking) if not member.is_untold(task)}
    if not tasks:
        return None
    for task in tasks:
        state.holds[task] = max(hold_ms, state.holds.get(task, 0))
    key = fenced_key(member.member_id, member.incarnation)
    state.fenced[key] = FencedIncarnation(
        member_id=member.member_id,
        incarnation=member.incarnation,
        session_timeout_ms=member.session_timeout_ms,
        lease_margin_ms=member.lease_margin_ms,
        last_heard_ms=member.last_heard_ms,
        tasks=tasks,
    )
    return key


def unfence(state: GroupState, key: str) -> list[TaskId]:
    """fenced' = fenced \\ {key}; holds' = holds \\ T, where T are the tasks of that incarnation
    that no other fenced incarnation had. Returns T in rising order.
    """
    tasks = state.fenced.pop(key).tasks
    cleared = sorted(task for task in tasks if not any(task in fenced.tasks for fenced in state.fenced.values()))
    for task in cleared:
        del state.holds[task]
    return cleared


def clear_hold(state: GroupState, task: TaskId) -> None:
    """holds' = holds \\ {task}; fenced[k].tasks' = fenced[k].tasks \\ {task} for every k; fenced' =
    fenced without those that have no task left.
    """
    del state.holds[task]
    for key in [key for key, fenced in state.fenced.items() if task in fenced.tasks]:
        state.fenced[key].tasks.discard(task)
        if not state.fenced[key].tasks:
            del state.fenced[key]


def watch_change(state: GroupState, change: WatchedChange | None) -> None:
    """The leader watches this planned change: change' = `change` (docs/protocol.md#d14)."""
    state.change = change


def observe_assignment(state: GroupState, fact: AssignmentObserved) -> None:
    """What another leader assigned becomes current: active', standby', owner' = the fact's; lost' =
    lost \\ owner'. See docs/protocol.md#d7.
    """
    for observed in fact.members:
        member = state.members[observed.member_id]
        member.last_heard_ms = state.now_ms
        _note_change(member)
        member.active = dict.fromkeys(observed.active, 0)
        member.standby = set(observed.standby) - set(observed.active)
    state.owner = {task: observed.member_id for observed in fact.members for task in observed.active}
    state.lost = {task: lost for task, lost in state.lost.items() if task not in state.owner}


def observe_generation(state: GroupState, generation: int) -> None:
    """generation' = the generation of another leader."""
    state.generation = generation


def take_part(state: GroupState, member: MemberState) -> None:
    """last_heard_ms' = now_ms; topology_epoch' = the newest epoch, because the leader that asks for
    a round can give each of its members any task. See docs/protocol.md#d12.
    """
    member.last_heard_ms = state.now_ms
    topology = state.topology
    if topology is not None:
        member.topology_epoch = topology.epoch
    _note_change(member)


def observe_owners(state: GroupState, owner: Mapping[TaskId, str]) -> None:
    """owner' = owner; active' of every member accordingly; lost' = lost \\ owner'. See
    docs/protocol.md#d12.
    """
    active: dict[str, dict[TaskId, int]] = {name: {} for name in state.members}
    for task in sorted(owner):
        active[owner[task]][task] = 0
    for name, member in state.members.items():
        if member.active.keys() != active[name].keys():
            _note_change(member)
        member.active = active[name]
    state.owner = dict(owner)
    state.lost = {task: lost for task, lost in state.lost.items() if task not in owner}
    state.previous_owners = {task: name for task, name in state.previous_owners.items() if owner.get(task) != name}


# Movements


def begin_movement(state: GroupState, movement: Movement) -> None:
    """in_flight' = in_flight ∪ {task: movement}; incoming' = incoming ∪ {task}, of its destination."""
    state.in_flight[movement.task] = movement
    state.members[movement.destination].incoming.add(movement.task)


def end_movement(state: GroupState, task: TaskId) -> Movement:
    """in_flight' = in_flight \\ {task}; incoming' = incoming \\ {task}, of its destination. Returns
    the movement.
    """
    movement = state.in_flight.pop(task)
    state.members[movement.destination].incoming.discard(task)
    return movement


def forget_source(state: GroupState, task: TaskId) -> None:
    """in_flight[task].source' = None."""
    state.in_flight[task] = attrs.evolve(state.in_flight[task], source=None)


def clear_movements(state: GroupState) -> dict[TaskId, Movement]:
    """in_flight', queued' = ∅; waiting' = 0; incoming' = ∅ of every member. Returns in_flight."""
    before, state.in_flight = state.in_flight, {}
    state.waiting = 0
    state.queued = {}
    for movement in before.values():
        state.members[movement.destination].incoming.clear()
    return before


def count_waiting(state: GroupState) -> None:
    """waiting' = waiting + 1."""
    state.waiting += 1


def queue(state: GroupState, movement: Movement) -> None:
    """queued' = queued ∪ {task: destination}."""
    state.queued[movement.task] = movement.destination


def take_queued(state: GroupState, task: TaskId) -> str:
    """queued' = queued \\ {task}. Returns its destination."""
    return state.queued.pop(task)


def add_eager_regrant(member: MemberState, task: TaskId, *, had_it: bool) -> None:
    """eager_regrants' = eager_regrants ∪ {task: had_it}."""
    member.eager_regrants[task] = had_it


def drop_eager_regrant(member: MemberState, task: TaskId) -> bool:
    """eager_regrants' = eager_regrants \\ {task}. Returns whether the member had the task."""
    return member.eager_regrants.pop(task)


def clear_eager_regrants(member: MemberState) -> None:
    """eager_regrants' = ∅."""
    member.eager_regrants.clear()


# Copies


def set_standbys(member: MemberState, standby: set[TaskId]) -> None:
    """standby' = standby."""
    _note_change(member)
    member.standby = standby


def begin_warmup(state: GroupState, member: MemberState, task: TaskId, *, caught_up: bool) -> None:
    """warmup' = warmup ∪ {task: progress from the member's lag now}."""
    lag = known_lag(member.lags.get(task))
    _note_change(member)
    member.warmup[task] = Warmup(best_lag=lag, improved_ms=state.now_ms, caught_up=caught_up, looked_lag=lag, looked_ms=state.now_ms)


def end_warmup(member: MemberState, task: TaskId) -> bool:
    """warmup' = warmup \\ {task}. Returns whether it was there."""
    _note_change(member)
    return member.warmup.pop(task, None) is not None


def record_progress(state: GroupState, member: MemberState, task: TaskId, *, caught_up: bool) -> None:
    """warmup[task]' from the lag and the preparation that the member reported. When the copy
    catches up, its back-offs are forgotten: backoffs' = backoffs \\ {(task, member)}; slot_backoff'
    = None. When it falls behind again, its time to stall starts again.
    """
    warmup = member.warmup[task]
    lag = known_lag(member.lags.get(task))
    before, warmup.caught_up = warmup.caught_up, caught_up
    if caught_up and not before:
        state.backoffs.pop((task, member.member_id), None)
        member.slot_backoff = None
    elif before and not caught_up:
        warmup.improved_ms = warmup.looked_ms = state.now_ms
        warmup.looked_lag = lag
    prepared = member.preparing[task].thousandths if task in member.preparing else -1
    if prepared > warmup.best_prepared:
        warmup.best_prepared = prepared
        warmup.improved_ms = state.now_ms
    if lag is None:
        return
    if warmup.looked_lag is None:
        warmup.looked_lag, warmup.looked_ms = lag, state.now_ms
    if warmup.best_lag is None or lag < warmup.best_lag:
        warmup.best_lag = lag
        warmup.improved_ms = state.now_ms


def look_again(state: GroupState, member: MemberState, task: TaskId) -> None:
    """warmup[task].looked_lag', looked_ms' = its lag, now_ms: its speed is measured from here."""
    warmup = member.warmup[task]
    warmup.looked_lag, warmup.looked_ms = known_lag(member.lags.get(task)), state.now_ms


def restart_stall(state: GroupState, member: MemberState, task: TaskId) -> None:
    """warmup[task].improved_ms' = now_ms."""
    member.warmup[task].improved_ms = state.now_ms


def measure_speed(member: MemberState, records_per_s: int) -> None:
    """measured_records_per_s' = records_per_s."""
    member.measured_records_per_s = records_per_s


def begin_backoff(state: GroupState, member: MemberState, task: TaskId) -> None:
    """backoffs' = backoffs ∪ {(task, member): one more stall, twice as long as the last}."""
    before = state.backoffs.get((task, member.member_id))
    times = 1 if before is None else before.times + 1
    state.backoffs[task, member.member_id] = Backoff(until_ms=state.later_ms(stall_ms(state.settings, times)), times=times)


def begin_slot_backoff(state: GroupState, member: MemberState, exempt: set[TaskId], *, least_ms: int) -> None:
    """slot_backoff' = one more, for at least `least_ms`, but not for the tasks `exempt`."""
    times = 1 if member.slot_backoff is None else member.slot_backoff.times + 1
    length_ms = max(stall_ms(state.settings, times), least_ms)
    member.slot_backoff = SlotBackoff(until_ms=state.later_ms(length_ms), times=times, exempt=exempt)


def exempt_from(backoff: SlotBackoff, tasks: set[TaskId]) -> None:
    """exempt' = exempt ∪ tasks."""
    backoff.exempt |= tasks


def cut_slot_backoff(state: GroupState, backoff: SlotBackoff) -> None:
    """until_ms' = now_ms, so that the next record ends the back-off."""
    backoff.until_ms = state.now_ms


def end_backoff(backoff: Backoff | SlotBackoff) -> None:
    """over' = true."""
    backoff.over = True


# Rounds and their timers


def begin_gathering(state: GroupState) -> None:
    """gathering_until_ms' = now_ms + initial_delay_ms; behind', source_lags' = ∅, which are of the
    group's life before. See docs/protocol.md#d2.
    """
    state.gathering_until_ms = state.later_ms(state.settings.initial_delay_ms)
    state.behind, state.source_lags = {}, {}
    state.problem_cache.forget_all()


def await_lags(state: GroupState) -> None:
    """awaiting_lags' = true; gathering_until_ms' = gathering_until_ms + (MOST_INITIAL_DELAYS - 1) *
    initial_delay_ms.
    """
    assert state.gathering_until_ms is not None, "the group is gathering"
    state.awaiting_lags = True
    longer_ms = (MOST_INITIAL_DELAYS - 1) * state.settings.initial_delay_ms
    state.gathering_until_ms = min(state.gathering_until_ms + longer_ms, FURTHEST_MS)


def end_gathering(state: GroupState) -> None:
    """gathering_until_ms' = None; awaiting_lags' = false."""
    state.gathering_until_ms = None
    state.awaiting_lags = False


def set_probing(state: GroupState, at_ms: int | None) -> None:
    """probing_deadline_ms' = at_ms."""
    state.probing_deadline_ms = at_ms


def schedule(state: GroupState, at_ms: int | None) -> None:
    """scheduled_ms' = at_ms."""
    state.scheduled_ms = at_ms


def postpone_lost(lost: Lost, until_ms: int | None) -> None:
    """until_ms' = until_ms."""
    lost.until_ms = until_ms


def remember_plan(state: GroupState, revocations: Revocations, memory: Memory) -> None:
    """revocations', memory' = those of the assignor's plan."""
    state.revocations = revocations
    state.memory = memory


def set_verdict(state: GroupState, verdict: tuple[str, int, int, int, int]) -> None:
    """verdict' = verdict."""
    state.verdict = verdict


def rest(state: GroupState) -> None:
    """The group is empty: gathering_until_ms', probing_deadline_ms', scheduled_ms' = None;
    awaiting_lags' = false; lost', queued', memory' = ∅; waiting' = 0; revocations' = none.

    Lost tasks are not kept, because the next member joins an empty group, which has a delay of its
    own (docs/protocol.md#d2).
    """
    end_gathering(state)
    set_probing(state, None)
    schedule(state, None)
    remember_plan(state, Revocations(), {})
    state.lost = {}
    state.waiting = 0
    state.queued = {}
