"""Faults of the simulated cluster, and random plans of them from a seed.

A plan is data (`Fault`s in order of time), so a plan that fails can be printed, shortened and
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import attrs

from equipoise.events.facts import (
    AssignmentObserved,
    Fact,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    MemberJoined,
    MemberLeft,
    ProbingTick,
    TaskReady,
    TasksRevoked,
    Undecodable,
)
from equipoise.replay.simulation.member_process import Exit, ReplayedProcess
from equipoise.replay.simulation.simulated_cluster import SimulatedCluster

FAULTS = (
    "crash",
    "crash_unproven",
    "disk_loss",
    "pause_short",
    "pause_long",
    "cut_short",
    "cut_long",
    "slow",
    "skip_records",
    "stuck",
    "duplicate",
    "leave",
    "leave_cancelled",
    "asked",
    "asked_to_stay",
    "close",
    "close_silently",
    "failover",
    "clock_ahead",
    "clock_back",
    "worker_crash",
    "worker_pause",
    "worker_cut",
    "worker_skips",
    "second_worker",
    "junk",
)
"""crash: kill -9, and the same id comes back with proof that its predecessor is dead;
crash_unproven: without proof. pause and cut: shorter or longer than the lease. asked: an operator
requests its leave; asked_to_stay: and withdraws the request. stuck: its decisions reader makes no
progress while its heartbeats go on. duplicate: a second process with the id. clock_*: a broker
failover whose successor's clock differs. junk: an invalid fact, or one from a stranger.
"""

RESTARTS = {"leave": "restart", "leave_cancelled": "restart_cancelled", "close": "restart_at_once", "asked_to_stay": "restart"}
"""Fault -> what it is in a storm of restarts. restart: the member says that it will be back; its
`size` is the time that it states, in ms, 0: none. restart_at_once: it does not wait to be released.
"""

NOBODYS = frozenset({"failover", "clock_ahead", "clock_back", "worker_crash", "worker_pause", "worker_cut", "worker_skips", "second_worker", "junk"})
"""Faults that hit no member: the broker, a worker, or the log."""

LONGEST_CLOCK_JUMP_MS = 86_400_000


@attrs.frozen
class Fault:
    """A fault at `at_ms`. `member_id`: its victim; "": the broker, a worker or the log. `lasts_ms`:
    length of a pause, a cut, an absence.

    `size`: milliseconds of a clock jump or a delay, records of a skip, number of the junk; else 0.
    """

    at_ms: int
    kind: str
    member_id: str
    lasts_ms: int
    size: int = 0


def random_faults(seed: int, *, members: tuple[str, ...], from_ms: int, until_ms: int, every_ms: int, session_timeout_ms: int) -> list[Fault]:
    """Returns a plan: faults of every kind, `every_ms` apart on average, all over by `until_ms`.

    Clock jumps are at least a session apart, which a lease margin of one max_step_ms tolerates. See
    docs/protocol.md#m4.
    """
    random = Random(seed)
    faults: list[Fault] = []
    next_jump_ms = from_ms
    at_ms = from_ms
    while True:
        at_ms += random.randint(1, 3 * every_ms) if random.random() < 0.6 else random.randint(0, 1_500)  # troubles do not come alone
        kind = FAULTS[random.randrange(len(FAULTS))]
        long = kind in ("pause_long", "cut_long", "slow", "stuck")
        lasts_ms = random.randint(session_timeout_ms, 3 * session_timeout_ms) if long else random.randint(1, session_timeout_ms // 3)
        if kind in ("failover", "clock_ahead", "clock_back"):
            lasts_ms = random.randint(1, 2_000)
        if at_ms + lasts_ms > until_ms:
            return faults
        size = 0
        if kind in ("clock_ahead", "clock_back"):
            if at_ms < next_jump_ms:
                continue
            next_jump_ms = at_ms + lasts_ms + session_timeout_ms + 1
            size = random.choice((10, 1_000, 40_000, LONGEST_CLOCK_JUMP_MS))
            size = size if kind == "clock_ahead" else -size
        elif kind == "slow":
            size = random.choice((50, 500, session_timeout_ms // 2, session_timeout_ms * 5 // 4))
        elif kind in ("skip_records", "worker_skips"):
            size = random.randint(1, 5)
        elif kind == "junk":
            size = random.randrange(1_000)
        member_id = "" if kind in NOBODYS else random.choice(members)
        faults.append(Fault(at_ms, kind, member_id, lasts_ms, size))


def restarting(seed: int, faults: Iterable[Fault]) -> list[Fault]:
    """The plan with most leaves as restarts, some of which are longer than stated."""
    random = Random(f"restarts {seed}")
    return [_as_restart(random, fault) for fault in faults]


def _as_restart(random: Random, fault: Fault) -> Fault:
    if fault.kind not in RESTARTS or random.random() < 0.2:
        return fault
    return attrs.evolve(fault, kind=RESTARTS[fault.kind], size=random.choice((0, 1_000, 5_000, 20_000, 120_000)))


SUPERVISION_MS = 10_000
"""Interval at which the supervisor restarts members without a process."""


def plan(
    cluster: SimulatedCluster, faults: list[Fault], *, members: tuple[str, ...], heal_ms: int, strikes: Mapping[str, Callable[[Fault], None]]
) -> None:
    """Schedules every fault, and a supervisor that starts a process for each member without one.

    At `heal_ms` the network becomes faultless, paused processes resume, and one worker leads.
    `strikes`: what carries out faults of other kinds than FAULTS.
    """
    for fault in faults:
        if fault.kind in strikes:
            cluster.engine.at(fault.at_ms, strikes[fault.kind], fault)
        else:
            cluster.engine.at(fault.at_ms, strike, cluster, fault)
    cluster.engine.at(heal_ms, heal, cluster)
    cluster.engine.after(SUPERVISION_MS, _supervise, cluster, members)


def heal(cluster: SimulatedCluster) -> None:
    """Ends all faults."""
    cluster.network.heal()
    for process in cluster.live_processes():
        process.resume()
    for worker in cluster.live_workers()[:-1]:
        worker.kill()
    for worker in cluster.live_workers():
        worker.resume()
    _ensure_worker(cluster)


def _supervise(cluster: SimulatedCluster, members: tuple[str, ...]) -> None:
    alive = {process.member_id for process in cluster.live_processes()}
    for member_id in members:
        if member_id not in alive:
            cluster.restart(member_id, proven=cluster.last_process(member_id).exit is not Exit.KILLED)
    cluster.engine.after(SUPERVISION_MS, _supervise, cluster, members)


def strike(cluster: SimulatedCluster, fault: Fault) -> None:
    """Applies one fault now. A fault that does not apply (its member is dead, no worker leads) is
    skipped.
    """
    if not fault.member_id:
        _strike_leader(cluster, fault)
        return
    process = cluster.last_process(fault.member_id)
    after = cluster.engine.after
    if not process.alive:
        return
    if fault.kind in ("crash", "crash_unproven", "disk_loss"):
        process.kill()
        if fault.kind == "disk_loss":
            cluster.wipe(fault.member_id)
        after(fault.lasts_ms, _come_back, cluster, fault.member_id, fault.kind == "crash")
    elif fault.kind in ("pause_short", "pause_long"):
        process.pause()
        after(fault.lasts_ms, process.resume)
    elif fault.kind in ("cut_short", "cut_long"):
        cluster.network.cut(process.name, fault.lasts_ms)
    elif fault.kind == "slow":
        cluster.network.slow(process.name, fault.lasts_ms, fault.size)
    elif fault.kind == "skip_records":
        process.skip_records(fault.size)
    elif fault.kind == "stuck":
        process.stick(fault.lasts_ms)
    elif fault.kind == "duplicate":
        cluster.duplicate(fault.member_id)
    elif fault.kind == "leave_cancelled":
        process.leave()
        after(fault.lasts_ms, process.cancel_leave)
    elif fault.kind in ("asked", "asked_to_stay"):
        cluster.append(LeaveRequested(members=(fault.member_id,)))
        if fault.kind == "asked_to_stay":
            after(fault.lasts_ms, cluster.append, LeaveRequested(members=(fault.member_id,), withdrawn=True))
    elif fault.kind in ("restart", "restart_at_once", "restart_cancelled"):
        process.leave_to_restart(fault.size or None, wait_turn=fault.at_ms % 4 > 0)
        if fault.kind == "restart_cancelled":
            after(fault.lasts_ms, process.cancel_leave)
            return
        if fault.kind == "restart_at_once":
            after(fault.lasts_ms % 500, process.close)
        after(fault.lasts_ms, _return_when_gone, cluster, process)
    elif fault.kind in ("leave", "close", "close_silently"):
        {"leave": process.leave, "close": process.close, "close_silently": process.close_silently}[fault.kind]()
        after(fault.lasts_ms, _return_when_gone, cluster, process)


def _strike_leader(cluster: SimulatedCluster, fault: Fault) -> None:
    workers = cluster.live_workers()
    after = cluster.engine.after
    if fault.kind == "junk":
        cluster.append(junk(cluster, fault.size))
    elif fault.kind in ("failover", "clock_ahead", "clock_back"):
        cluster.broker.fail_over(down_ms=fault.lasts_ms, clock_jump_ms=fault.size)
    elif fault.kind == "worker_crash":
        for worker in workers:
            worker.kill()
        after(fault.lasts_ms, _ensure_worker, cluster)
    elif fault.kind == "worker_cut" and workers:
        cluster.network.cut(workers[-1].name, fault.lasts_ms)
    elif fault.kind == "worker_skips" and workers:
        workers[-1].skip_records(fault.size)
    elif fault.kind == "worker_pause" and workers:
        workers[0].pause()
        after(fault.lasts_ms, workers[0].resume)
        cluster.start_worker()
        after(2 * fault.lasts_ms, _retire_oldest, cluster)
    elif fault.kind == "second_worker" and workers:
        cluster.start_worker()
        after(fault.lasts_ms, _retire_oldest, cluster)


def junk(cluster: SimulatedCluster, which: int) -> Fact:
    """Returns a fact that must change nothing: undecodable, stale, from a stranger, or from an
    incarnation that is over or never existed.
    """
    members = sorted({process.member_id for process in cluster.processes}) or ["nobody"]
    who: dict[str, Any] = {"member_id": members[which % len(members)], "incarnation": (0, 1_000_000)[which // 7 % 2]}
    tasks = tuple(sorted(cluster.world.tasks)[: 1 + which % 3])
    facts: tuple[Fact, ...] = (
        Undecodable(code="not_msgpack", kind=6, length_bytes=which, crc32=which),
        attrs.evolve(cluster.config.topology, epoch=0),
        AssignmentObserved(generation=which, members=()),
        LagReported(**{**who, "member_id": "a stranger"}, number=which, assignment_epoch=which),
        LagReported(**who, number=which, assignment_epoch=which, held=tasks, lags=dict.fromkeys(tasks, which), base=which),
        TaskReady(**who, assignment_epoch=which, tasks=tasks),
        TasksRevoked(**who, assignment_epoch=which, tasks=tasks),
        LeaveIntended(**who),
        LeaveCancelled(**who),
        MemberLeft(**who),
        MemberJoined(**who, join_nonce="too little margin", session_timeout_ms=10_000, lease_margin_ms=0),
        ProbingTick(),
    )
    return facts[which % len(facts)]


def _ensure_worker(cluster: SimulatedCluster) -> None:
    if not cluster.live_workers():
        cluster.start_worker()


def _retire_oldest(cluster: SimulatedCluster) -> None:
    """Ends the oldest of several workers."""
    workers = cluster.live_workers()
    if len(workers) > 1:
        workers[0].kill()


def _come_back(cluster: SimulatedCluster, member_id: str, proven: bool) -> None:
    if not cluster.last_process(member_id).alive:
        cluster.restart(member_id, proven=proven)


def _return_when_gone(cluster: SimulatedCluster, process: ReplayedProcess) -> None:
    """Restarts the member once it has left; waits while it drains."""
    if process.alive:
        cluster.engine.after(1_000, _return_when_gone, cluster, process)
    else:
        _come_back(cluster, process.member_id, proven=True)
