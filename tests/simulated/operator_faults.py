"""Faults of operators, upgrades and hostile senders (`tests.faults`), on the deployed hosts."""

from __future__ import annotations

from random import Random
from weakref import WeakKeyDictionary

import attrs
from aiokafka.errors import NotLeaderForPartitionError

from equipoise.events.facts import AssignmentObserved, DealRequested, Fact, GroupConfigured, LeaveRequested
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import group_key, pack_fact, partition_of
from equipoise.testing.simulated.kafka.cluster_state import BrokerPartition
from equipoise.testing.simulated.kafka.partition_log import Batch
from tests import faults
from tests.simulated.deployment import CONFIG, GROUP, LOG_PARTITIONS, MARGIN_MS, MEMBERS, PREFIXES, SESSION_MS, Deployment, Seat
from tests.simulated.faults import SESSION_S, _member, _over, fault
from tests.simulated.upgrade_faults import restart_all

LEAST_STEP_MS = 100
AGAIN_S = 0.5
_IN_FORCE: WeakKeyDictionary[Deployment, GroupConfigured] = WeakKeyDictionary()
"""The configuration that an operator last wrote."""
_WAITING: WeakKeyDictionary[Deployment, list[bytes]] = WeakKeyDictionary()
"""Records that wait for the log, in order."""


def write(deployment: Deployment, *values: bytes) -> None:
    """Appends records of the group to the facts, in order, as soon as the log is opened and has a
    leader, and again when the leader fails before they are acknowledged. A log that begins with
    anything but LogOpened is none, and its topics have to be deleted.
    """
    waiting = _WAITING.setdefault(deployment, [])
    was_waiting = bool(waiting)
    waiting += values
    if not was_waiting:
        _write_waiting(deployment)


def _write_waiting(deployment: Deployment) -> None:
    partition = _open_partition(deployment)
    if partition is None:
        deployment.later(AGAIN_S, _write_waiting, deployment)
        return
    now_ms, waiting, offset = deployment.cluster.now_ms(), _WAITING[deployment], 0
    values = list(waiting)
    for value in values:
        offset = deployment.cluster.append(partition, Batch(-1, -1, -1, False, [(group_key(GROUP), value, (), now_ms)], len(value)))

    def answered(answer: object) -> None:
        if answer is NotLeaderForPartitionError:
            deployment.later(AGAIN_S, _write_waiting, deployment)
            return
        del waiting[: len(values)]
        if waiting:
            _write_waiting(deployment)

    deployment.cluster.acknowledge(partition, offset, offset + 1, answered)


def _open_partition(deployment: Deployment) -> BrokerPartition | None:
    opened = deployment.cluster.partition(TopicPartition(deployment.topics.facts, 0))
    partition = deployment.cluster.partition(TopicPartition(deployment.topics.facts, partition_of(GROUP, LOG_PARTITIONS)))
    return None if opened is None or not opened.log.end or partition is None or partition.leader < 0 else partition


def _say(deployment: Deployment, *events: Fact) -> None:
    write(deployment, *map(pack_fact, events))


def _configure(deployment: Deployment, config: GroupConfigured) -> None:
    _IN_FORCE[deployment] = config
    _say(deployment, config)


def _with_settings_of(config: GroupConfigured, other: GroupConfigured, *names: str) -> GroupConfigured:
    return attrs.evolve(config, knobs=attrs.evolve(config.knobs, **{name: getattr(other.knobs, name) for name in names}))


@fault("operators")
def setting(deployment: Deployment, random: Random) -> float | None:
    """One setting is raised or lowered, and set back."""
    which, length_s = random.randrange(len(faults.SETTINGS)), random.uniform(0.5, 6)
    _configure(deployment, faults.with_setting(_IN_FORCE.get(deployment, CONFIG), which, least_step_ms=LEAST_STEP_MS, most_step_ms=MARGIN_MS))

    def back() -> None:
        _configure(deployment, _with_settings_of(_IN_FORCE[deployment], CONFIG, faults.SETTINGS[which][0]))

    deployment.later(length_s, back)
    return length_s


@fault("operators")
def assignor(deployment: Deployment, random: Random) -> float | None:
    """Another assignor leads, and then the first one."""
    length_s = random.uniform(0.5, 6)
    _configure(deployment, faults.with_assignor(_IN_FORCE.get(deployment, CONFIG), random.randrange(len(faults.ASSIGNORS))))

    def back() -> None:
        config = attrs.evolve(_with_settings_of(_IN_FORCE[deployment], CONFIG, "options"), assignor=CONFIG.assignor)
        _configure(deployment, attrs.evolve(config, behaviour_version=CONFIG.behaviour_version, solver=CONFIG.solver))

    deployment.later(length_s, back)
    return length_s


@fault("operators")
def led_by(deployment: Deployment, random: Random) -> float | None:
    """All members leave, something else leads, then equipoise again, and the members return."""
    seats = [deployment.members[name] for name in MEMBERS]
    if any(seat.busy or seat.member is None or seat.member._host is None for seat in seats):
        return None
    away_s = random.uniform(3, 8)
    for seat in seats:
        seat.wanted = False
        if seat.member is not None and seat.member._host is not None:
            seat.member._host.close()
        _over(deployment, seat, away_s + 3)
    config = _IN_FORCE.get(deployment, CONFIG)
    deployment.later(away_s / 2, _configure, deployment, attrs.evolve(config, led_by="external"))

    def back() -> None:
        _say(deployment, AssignmentObserved(generation=2**40 + int(deployment.now_s * 1_000), members=()))
        hand_over()

    def hand_over() -> None:
        partition = _open_partition(deployment)
        if partition is not None:
            _configure(deployment, attrs.evolve(_IN_FORCE[deployment], led_by="equipoise"))
        deployment.later(AGAIN_S, look, 2**62 if partition is None else partition.log.end)

    def look(end: int) -> None:
        """The members return when it is in the log: a group with members keeps its leader."""
        partition = _open_partition(deployment)
        if partition is None or partition.log.committed < end:
            hand_over()
            return
        for seat in seats:
            seat.wanted = True
            deployment.start_member(seat)

    deployment.later(away_s, back)
    return away_s + 3


@fault("operators")
def led_by_beside_members(deployment: Deployment, random: Random) -> float | None:
    """Somebody hands the group to another leader while it has members, which changes nothing."""
    seats = deployment.seats()
    if any(seat.busy for seat in seats) or not all(seat.running for seat in _members(deployment)):
        return None
    _say(deployment, faults.with_other_leader(_IN_FORCE.get(deployment, CONFIG)))
    return 0.0


def _members(deployment: Deployment) -> list[Seat]:
    return [seat for seat in deployment.members.values() if seat.wanted]


@fault("operators")
def deal(deployment: Deployment, random: Random) -> float | None:
    """An operator asks for a new deal."""
    _say(deployment, DealRequested())
    return 0.0


@fault("operators")
def asked(deployment: Deployment, random: Random) -> float | None:
    """An operator asks a member to leave; some time later it is wanted again, gone or not."""
    seat = _member(deployment, random)
    if seat is None:
        return None
    seat.wanted = False
    _say(deployment, LeaveRequested(members=(seat.member_id,)))
    away_s = random.uniform(0.5, 12)

    def back() -> None:
        seat.wanted = True
        _say(deployment, LeaveRequested(members=(seat.member_id,), withdrawn=True))
        deployment.start_member(seat)

    deployment.later(away_s, back)
    return _over(deployment, seat, away_s + 2)


@fault("operators")
def other_prefix(deployment: Deployment, random: Random) -> float | None:
    """All members stop; workers and members start again with another prefix: another log, or one of
    the former ones (docs/logs.md).
    """
    if any(seat.busy for seat in deployment.seats()):
        return None
    prefix = _another_prefix(deployment, random)
    away_s = random.uniform(2, 5)
    members = _members(deployment)
    for member in members:
        member.wanted = False
        if member.member is not None and member.member._host is not None:
            member.member._host.close()

    def begin() -> None:
        for member in deployment.members.values():
            deployment.kill_member(member)
        deployment.join_log(prefix)
        for worker in deployment.workers.values():
            deployment.kill_worker(worker)
            worker.prefix = prefix
            deployment.start_worker(worker)
        _configure(deployment, CONFIG)
        for member in members:
            member.wanted = True
            deployment.start_member(member)

    deployment.later(away_s, begin)
    lasts_s = away_s + SESSION_S + 2
    for seat in deployment.seats():
        _over(deployment, seat, lasts_s)
    return lasts_s


@fault("operators")
def two_logs(deployment: Deployment, random: Random) -> float | None:
    """Members get another prefix one after the other: until the last one has it, the workers of
    both logs grant every task.
    """
    if any(seat.busy for seat in deployment.seats()):
        return None
    lasts_s = restart_all(deployment, random, 2 * SESSION_S)  # each waits for one session (docs/protocol.md#l9)
    assert lasts_s is not None, "no fault is under way"
    prefix = _another_prefix(deployment, random)
    former = [worker for worker in deployment.workers.values() if worker.wanted]
    deployment.join_log(prefix, overlap=True)
    for worker in deployment.workers.values():
        if worker not in former:
            worker.wanted, worker.prefix = True, prefix
            deployment.start_worker(worker)
    _configure(deployment, CONFIG)

    def end() -> None:
        deployment.watch.begins_log()
        for worker in former:
            worker.wanted = False
            deployment.kill_worker(worker)

    deployment.later(lasts_s, end)
    for worker in deployment.workers.values():
        _over(deployment, worker, lasts_s)
    return lasts_s + SESSION_S


def _another_prefix(deployment: Deployment, random: Random) -> str:
    return random.choice([prefix for prefix in PREFIXES if prefix != deployment.prefix])


@fault("operators")
def redeployed(deployment: Deployment, random: Random) -> float | None:
    """A member is started again with another session and margin."""
    seat = _member(deployment, random)
    if seat is None:
        return None
    deployment.kill_member(seat)
    seat.session_ms, seat.margin_ms = faults.redeployed_settings(random.randrange(9), SESSION_MS, least_margin_ms=MARGIN_MS)
    down_s = random.uniform(0.1, 2)
    deployment.later(down_s, deployment.start_member, seat)
    return _over(deployment, seat, down_s + 0.5)


@fault("operators")
def hostile(deployment: Deployment, random: Random) -> float | None:
    """Records that are no sound facts."""
    write(deployment, random.choice(faults.HOSTILE))
    return 0.0


@fault("operators")
def giant(deployment: Deployment, random: Random) -> float | None:
    """A fact that is very long, or has fields at their limits. In a log that knows no topology yet,
    the one among them would be the group's.
    """
    in_log = any(seat.running for seat in _members(deployment)) and not deployment.watch.logs_overlap
    if not in_log or _open_partition(deployment) is None:
        return None
    _say(deployment, faults.giant(random.randrange(10_000)))
    return 0.0


@fault("operators")
def stranger(deployment: Deployment, random: Random) -> float | None:
    """A member with an id of 200 characters joins and never says anything more."""
    which = 1_000_000 + int(deployment.now_s * 1_000)
    _say(deployment, faults.stranger(which, f"stranger {which}"))
    return 2 * SESSION_S
