"""What may go wrong. A fault is a function that does something to a deployment and says how long it
lasts; `fault` adds it to the registry, from any module.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from equipoise.member.options import RestartIntent
from tests.simulated.deployment import EXTRA, MARGIN_MS, SESSION_MS, WORKER_SESSION_S, Deployment, Seat, WorkerSeat

SESSION_S = SESSION_MS / 1_000
LEASE_S = (SESSION_MS - MARGIN_MS) / 1_000
Apply = Callable[[Deployment, Random], float | None]
"""Does it; returns after how many seconds all is as before, or None: it cannot be done now."""


@attrs.frozen
class Fault:
    """`kind`: the name by which `--faults` chooses several."""

    name: str
    kind: str
    apply: Apply


REGISTRY: dict[str, Fault] = {}


def fault(kind: str) -> Callable[[Apply], Apply]:
    """Adds a fault to the registry, under its function's name."""

    def add(apply: Apply) -> Apply:
        REGISTRY[apply.__name__] = Fault(apply.__name__, kind, apply)
        return apply

    return add


def kinds() -> list[str]:
    """All kinds, in order."""
    return sorted({each.kind for each in REGISTRY.values()})


def chosen(names: str) -> list[Fault]:
    """The faults of `names`: kinds or names with commas between, or "all"; in order."""
    wanted = set(kinds()) if names == "all" else set(names.split(",")) - {""}
    unknown = wanted - set(kinds()) - set(REGISTRY)
    if unknown:
        raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join((*kinds(), *sorted(REGISTRY)))}")
    return [each for _, each in sorted(REGISTRY.items()) if each.name in wanted or each.kind in wanted]


def _short_or_long(random: Random, most_short_s: float, session_s: float) -> float:
    """Within a session, or beyond it."""
    return random.uniform(0.1, most_short_s) if random.random() < 0.5 else random.uniform(session_s + 0.5, session_s + 3)


# Members


def _member(deployment: Deployment, random: Random) -> Seat | None:
    """A member that runs, with nothing else under way; two at most are in trouble at once."""
    seats = list(deployment.members.values())
    if sum(seat.busy for seat in seats) >= 2:
        return None
    free = [seat for seat in seats if seat.wanted and not seat.busy and seat.process is not None]
    return random.choice(free) if free else None


def _over(deployment: Deployment, seat: Seat | WorkerSeat, after_s: float) -> float:
    def over() -> None:
        seat.busy = False

    seat.busy = True
    deployment.later(after_s, over)
    return after_s


@fault("members")
def kill_member(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None:
        return None
    down_s = _short_or_long(random, 2, SESSION_S)
    deployment.kill_member(seat)
    deployment.later(down_s, deployment.start_member, seat)
    return _over(deployment, seat, down_s + 0.5)


@fault("members")
def pause_member(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None or seat.process is None:
        return None
    length_s = _short_or_long(random, LEASE_S, SESSION_S)
    seat.process.pause()
    deployment.later(length_s, seat.process.resume)
    return _over(deployment, seat, length_s + 0.5)


@fault("members")
def slow_member(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None or seat.process is None:
        return None
    length_s = random.uniform(1, 5)
    seat.process.slow_down(random.choice((10, 50, 200)))
    deployment.later(length_s, seat.process.slow_down, 1.0)
    return _over(deployment, seat, length_s)


@fault("members")
def leave_and_return(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None or seat.member is None or seat.member._host is None:
        return None
    seat.wanted = False
    away_s = random.uniform(3, 12)
    seat.member._host.leave(RestartIntent(back_within_ms=10_000) if int(away_s * 1_000) % 2 else None)  # some come back later than they said

    def back() -> None:
        seat.wanted = True
        if seat.member is not None and seat.member._host is not None:  # it has not gone: it stays
            seat.member._host.cancel_leave()
        deployment.start_member(seat)

    deployment.later(away_s, back)
    return _over(deployment, seat, away_s + 0.5)


@fault("members")
def join_and_leave(deployment: Deployment, random: Random) -> float | None:
    seats = [deployment.members[name] for name in EXTRA if not deployment.members[name].wanted and deployment.members[name].process is None]
    if not seats:
        return None
    seat = random.choice(seats)
    seat.wanted = True
    deployment.start_member(seat)
    stay_s = random.uniform(3, 10)

    def leave() -> None:
        seat.wanted = False
        if seat.member is not None and seat.member._host is not None:
            seat.member._host.leave()
        else:
            deployment.kill_member(seat)

    deployment.later(stay_s, leave)
    return _over(deployment, seat, stay_s + 3)


@fault("members")
def close_member(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None or seat.member is None or seat.member._host is None:
        return None
    seat.member._host.close()
    return _over(deployment, seat, 2.0)


# Disks and clocks


@fault("disks")
def wipe_disk(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None:
        return None
    deployment.kill_member(seat)
    seat.machine.wipe(seat.folder)
    down_s = random.uniform(0.1, 2)
    deployment.later(down_s, deployment.start_member, seat)
    return _over(deployment, seat, down_s + SESSION_S)


@fault("disks")
def machine_fails(deployment: Deployment, random: Random) -> float | None:
    seat = _member(deployment, random)
    if seat is None:
        return None
    deployment.kill_member(seat, failed=True)
    down_s = random.uniform(0.5, 3)
    deployment.later(down_s, deployment.start_member, seat)
    return _over(deployment, seat, down_s + SESSION_S)


@fault("disks")
def copied_disk(deployment: Deployment, random: Random) -> float | None:
    """A second process with the member's id, on a copy of its disk; the first may live on."""
    seat = _member(deployment, random)
    return None if seat is None else _twin(deployment, random, seat, copies=True)


@fault("disks")
def empty_disk_twin(deployment: Deployment, random: Random) -> float | None:
    """A second process with the member's id, on an empty disk."""
    seat = _member(deployment, random)
    return None if seat is None else _twin(deployment, random, seat, copies=False)


def _twin(deployment: Deployment, random: Random, seat: Seat, *, copies: bool) -> float:
    first, folder = seat.process, seat.folder
    seat.disk = 1 - seat.disk
    if copies:
        seat.machine.copy(folder, seat.folder)
    else:
        seat.machine.wipe(seat.folder)
    seat.process = seat.member = None
    deployment.start_member(seat)
    if first is not None:
        if random.random() < 0.3:
            first.pause()
            deployment.later(random.uniform(0.5, LEASE_S), first.resume)
        deployment.later(3 * SESSION_S, first.kill)
    return _over(deployment, seat, 3 * SESSION_S + 0.5)


@fault("disks")
def clock_set(deployment: Deployment, random: Random) -> float | None:
    """The time of day of a machine is set, by up to an hour, mostly back."""
    seat = _member(deployment, random)
    if seat is None:
        return None
    seat.machine.wall_offset_us += int(random.uniform(-3_600, 60) * 1_000_000)
    return 0.0


# Workers


def _worker(deployment: Deployment, random: Random) -> WorkerSeat | None:
    free = [seat for seat in deployment.workers.values() if not seat.busy and seat.process is not None]
    return random.choice(free) if free else None


@fault("workers")
def kill_worker(deployment: Deployment, random: Random) -> float | None:
    seat = _worker(deployment, random)
    if seat is None:
        return None
    down_s = _short_or_long(random, 1, WORKER_SESSION_S)
    deployment.kill_worker(seat)
    deployment.later(down_s, deployment.start_worker, seat)
    return _over(deployment, seat, down_s + 0.5)


@fault("workers")
def pause_worker(deployment: Deployment, random: Random) -> float | None:
    seat = _worker(deployment, random)
    if seat is None or seat.process is None:
        return None
    length_s = _short_or_long(random, 2, WORKER_SESSION_S)
    seat.process.pause()
    deployment.later(length_s, seat.process.resume)
    return _over(deployment, seat, length_s)


@fault("workers")
def slow_worker(deployment: Deployment, random: Random) -> float | None:
    seat = _worker(deployment, random)
    if seat is None or seat.process is None:
        return None
    length_s = random.uniform(1, 5)
    seat.process.slow_down(random.choice((10, 50, 200)))
    deployment.later(length_s, seat.process.slow_down, 1.0)
    return _over(deployment, seat, length_s)
