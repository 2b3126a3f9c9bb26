"""Faults of brokers, of the network, and of the log's topics."""

from __future__ import annotations

from random import Random

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.log_topics import MADE_WITH, MUST_BE
from equipoise.testing.simulated.kafka.fetch_sessions import MOST_SESSIONS
from equipoise.testing.simulated.machines import SimulatedProcess
from tests.simulated.deployment import BROKERS, LATEST_S, LOG_PARTITIONS, SESSION_MS, TOPIC, Deployment, Seat, WorkerSeat
from tests.simulated.faults import fault
from tests.simulated.stores import store_faults
from tests.support import cluster_faults

BETWEEN_S = 2.6
"""Shortest time between two failovers: the lease margin allows three of them in a session
(docs/protocol.md#m4).
"""
NOT_COMPACTED = 150
"""Records at the end of a changelog that compaction leaves alone, as those of the active segment.
"""


def _broker(deployment: Deployment, random: Random) -> int | None:
    """A broker that is well while all others are: with three replicas one may be away."""
    if deployment.failover_from_s > deployment.now_s or not all(each.is_well for each in deployment.cluster.brokers):
        return None
    return random.randrange(BROKERS)


def _busy(deployment: Deployment, length_s: float) -> float:
    deployment.failover_from_s = deployment.now_s + length_s + BETWEEN_S
    return length_s + BETWEEN_S


@fault("brokers")
def kill_broker(deployment: Deployment, random: Random) -> float | None:
    number = _broker(deployment, random)
    if number is None:
        return None
    length_s = random.uniform(0.5, 6)
    cluster_faults.kill_broker(deployment.cluster, number)
    deployment.later(length_s, cluster_faults.start_broker, deployment.cluster, number)
    return _busy(deployment, length_s)


@fault("brokers")
def hanging_broker(deployment: Deployment, random: Random) -> float | None:
    """It keeps its connections and answers nothing."""
    number = _broker(deployment, random)
    if number is None:
        return None
    length_s = random.uniform(0.5, 6)
    cluster_faults.pause_broker(deployment.cluster, number)
    deployment.later(length_s, cluster_faults.resume_broker, deployment.cluster, number)
    return _busy(deployment, length_s)


@fault("brokers")
def stale_broker(deployment: Deployment, random: Random) -> float | None:
    """It believes to lead what others lead by now."""
    number = _broker(deployment, random)
    if number is None:
        return None
    length_s = random.uniform(0.5, 6)
    cluster_faults.isolate_broker(deployment.cluster, number)
    deployment.later(length_s, cluster_faults.heal_broker, deployment.cluster, number)
    return _busy(deployment, length_s)


@fault("brokers")
def new_leaders(deployment: Deployment, random: Random) -> float | None:
    """Leaders change, as an operator or a controller has it."""
    if _broker(deployment, random) is None:
        return None
    for each in deployment.cluster.every_partition():
        if random.random() < 0.5 and deployment.cluster.partition(each.place) is each:
            cluster_faults.elect_leader(deployment.cluster, each)
    return _busy(deployment, 0.5)


@fault("brokers")
def broker_clock(deployment: Deployment, random: Random) -> float | None:
    """The clock of a broker jumps by up to an hour, and LogAppendTime with it."""
    number = _broker(deployment, random)
    if number is None:
        return None
    deployment.cluster.brokers[number].clock_ms += int(random.choice((1_000, 60_000, 3_600_000)) * random.uniform(-1, 1))
    return _busy(deployment, 0.0)


@fault("brokers")
def compaction(deployment: Deployment, random: Random) -> float | None:
    """Old records of changelogs and of checkpoints are compacted."""
    for name, count in ((f"{TOPIC}-state", deployment.tasks), (deployment.topics.checkpoints, LOG_PARTITIONS)):
        for partition in range(count):
            found = deployment.cluster.partition(TopicPartition(name, partition))
            if found is not None:
                deployment.remember(found)
                cluster_faults.compact(deployment.cluster, found.place, max(0, found.log.last_stable_offset - NOT_COMPACTED))
    return 0.0


# The network of one process


def _reachable(deployment: Deployment, random: Random) -> tuple[Seat | WorkerSeat, SimulatedProcess] | None:
    seats = deployment.seats()
    if sum(seat.busy for seat in seats) >= 2:
        return None
    free = [(seat, seat.process) for seat in seats if not seat.busy and seat.process is not None]
    return random.choice(free) if free else None


def _until(deployment: Deployment, seat: Seat | WorkerSeat, length_s: float) -> float:
    def over() -> None:
        seat.busy = False

    seat.busy = True
    deployment.later(length_s + 0.5, over)
    return length_s + 0.5


@fault("network")
def cut_off(deployment: Deployment, random: Random) -> float | None:
    """No message passes between a process and the brokers, or some of them."""
    found = _reachable(deployment, random)
    if found is None:
        return None
    seat, process = found
    brokers = range(BROKERS) if random.random() < 0.5 else random.sample(range(BROKERS), random.randrange(1, BROKERS))
    cut = {(process.name, number) for number in brokers}
    length_s = random.uniform(0.2, 1.5 * SESSION_MS / 1_000)

    def heal() -> None:
        deployment.cluster.network.cut -= cut
        process.is_cut_off = False

    deployment.cluster.network.cut |= cut
    process.is_cut_off = len(cut) == BROKERS
    deployment.later(length_s, heal)
    return _until(deployment, seat, length_s)


@fault("network")
def slow_network(deployment: Deployment, random: Random) -> float | None:
    """Messages of a process take long."""
    found = _reachable(deployment, random)
    if found is None:
        return None
    seat, process = found
    deployment.network.slow_us[process.name] = int(random.choice((20, 100, 400)) * 1_000 * random.uniform(0.5, 1.5))
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, deployment.network.slow_us.pop, process.name, None)
    return _until(deployment, seat, length_s)


@fault("network")
def small_fetches(deployment: Deployment, random: Random) -> float | None:
    """Brokers answer each fetch with one record of a partition."""
    if deployment.cluster.most_fetch_bytes is not None:
        return None
    deployment.cluster.most_fetch_bytes = 1
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, setattr, deployment.cluster, "most_fetch_bytes", None)
    return length_s


@fault("network")
def half_answers(deployment: Deployment, random: Random) -> float | None:
    """A broker's connections break while it answers: what it was asked for is done, and nobody
    hears of it.
    """
    broker = random.choice(deployment.cluster.brokers)
    for connection in list(broker.connections.values()):
        connection.broken()
    return 0.0


@fault("network")
def forgotten_sessions(deployment: Deployment, random: Random) -> float | None:
    """Brokers keep few fetch sessions, or none, and drop those that they have."""
    least = random.randrange(3)
    brokers = deployment.cluster.brokers
    if any(each.fetch_sessions.most < MOST_SESSIONS for each in brokers):
        return None
    for each in brokers:
        each.fetch_sessions.clear()
        each.fetch_sessions.most = least

    def over() -> None:
        for each in brokers:
            each.fetch_sessions.most = MOST_SESSIONS

    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, over)
    return length_s


@fault("network")
def late_produce(deployment: Deployment, random: Random) -> float | None:
    """Some of what a process produces arrives late; the process may have sent it again by then."""
    length_s = _odd_produce(deployment, random, deployment.network.late)
    if length_s is not None:
        deployment.network.late_until_s = max(deployment.network.late_until_s, deployment.now_s + length_s + LATEST_S)
    return length_s


@fault("network")
def lost_acknowledgements(deployment: Deployment, random: Random) -> float | None:
    """Some of the brokers' answers to what a process produces are lost."""
    return _odd_produce(deployment, random, deployment.network.unheard)


@fault("network")
def kill_in_commit(deployment: Deployment, random: Random) -> float | None:
    """A member that has much to do is killed, and what it has produced last arrives when the next
    owner of its tasks has restored. That one is slow, reads one record at a time, and is killed
    too, soon after it has begun.
    """
    cluster = deployment.cluster
    seats = [seat for seat in deployment.members.values() if seat.wanted and not seat.busy and seat.process is not None]
    if len(seats) < len(deployment.members) - 2 or cluster.most_fetch_bytes is not None:
        return None
    seat = random.choice(seats)
    assert seat.process is not None, "it was looked at"
    name = seat.process.name
    paused_s, down_s, slow_us = random.uniform(0.2, 0.8), random.uniform(0.3, 2), random.choice((0, 50_000, 150_000))
    others = [other.process.name for other in seats if other is not seat and other.process is not None]
    seat.process.pause()  # so that orders wait for it
    deployment.later(paused_s, seat.process.resume)
    deployment.network.kept[name] = []
    deployment.network.slow_us.update(dict.fromkeys(others, slow_us))

    def kill() -> None:
        tasks = deployment.watch.processed_by(name)
        deployment.kill_member(seat)
        cluster.most_fetch_bytes = 1
        deployment.later(down_s + 5, setattr, cluster, "most_fetch_bytes", None)
        deployment.later(0.01, look, tasks, deployment.now_s + down_s + 4)

    def look(tasks: frozenset[TaskId], until_s: float) -> None:
        """Kills the first that processes one of `tasks`, after about a commit."""
        for other in deployment.members.values():
            process = other.process
            if process is None or process.name == name or (other.busy and other is not seat):
                continue
            if tasks & deployment.watch.processed_by(process.name):
                deployment.network.deliver(name)
                delay_s = random.uniform(1, 8) * (slow_us / 1_000_000 + 0.003)
                deployment.later(delay_s, kill_next, other)
                deployment.later(delay_s + 0.5, deployment.start_member, other)
                return
        if deployment.now_s < until_s:
            deployment.later(0.01, look, tasks, until_s)
        else:
            heal()

    def kill_next(other: Seat) -> None:
        deployment.kill_member(other)
        deployment.later(0.3, compare, other)
        heal()

    def compare(other: Seat) -> None:
        """When its last transaction is over: a marker counts when all replicas have it."""
        for problem in store_faults(deployment, other.name):
            deployment.problem(problem)

    def heal() -> None:
        deployment.network.deliver(name)
        for each in others:
            deployment.network.slow_us.pop(each, None)

    deployment.later(paused_s + random.uniform(0.05, 0.3), kill)
    deployment.later(paused_s + down_s + 0.3, deployment.start_member, seat)
    return _until(deployment, seat, paused_s + down_s + 5)


def _odd_produce(deployment: Deployment, random: Random, where: set[str]) -> float | None:
    found = _reachable(deployment, random)
    if found is None:
        return None
    seat, process = found
    where.add(process.name)
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, where.discard, process.name)
    return _until(deployment, seat, length_s)


# The log


@fault("log")
def log_created_again(deployment: Deployment, random: Random) -> float | None:
    """An operator deletes the log's topics and creates them again, while no process hangs and
    nothing is late or sent again: what is sent and not yet there would be in the new topics before
    LogOpened.
    """
    seats = deployment.seats()
    is_away = max(deployment.failover_from_s, deployment.network.late_until_s) > deployment.now_s
    is_sent_again = deployment.cluster.passing.share > 0
    if is_away or is_sent_again or deployment.new_logs or any(seat.busy for seat in seats):
        return None
    deployment.new_logs += 1
    names = {what: deployment.topics.name_of(what) for what in MUST_BE}
    for name in names.values():
        if name in deployment.cluster.topics:
            cluster_faults.delete_topic(deployment.cluster, name)

    def create() -> None:
        for what, name in names.items():
            configs = {**MADE_WITH[what], **MUST_BE[what], "min.insync.replicas": "2"}
            deployment.cluster.create_topic(name, LOG_PARTITIONS, BROKERS, configs)

    gone_s = random.uniform(2, 5)
    deployment.later(gone_s, create)
    for seat in seats:
        _until(deployment, seat, gone_s + 0.5)
    return _busy(deployment, gone_s + SESSION_MS / 1_000)
