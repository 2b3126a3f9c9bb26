"""Tells what an incident would have cost under other settings: the group simulated as it was,
beside what was measured, and then otherwise. Of consumers, of Kafka Streams as the broker leads it
(KIP-1071), and of Kafka Connect; of Kafka Streams of the classic protocol in
streams_counterfactuals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

import attrs

from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup, kind_is_classic
from equipoise.replay.incident.causes import Cause
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.rebalances import expired_from_ms, last_heard_before_ms, name_of
from equipoise.replay.incident.values import Incident
from equipoise.replay.simulation.kafka.connect import ConnectSettings
from equipoise.replay.simulation.kafka.consumers import COOPERATIVE, ConsumerEvent, ConsumerSettings
from equipoise.replay.simulation.kafka.unread_partitions import connect_unavailable_ms, unavailable_ms
from equipoise.replay.timelines.history_costs import ROLLING_MS

SEEDS = range(5)
_DEFAULT_SESSION_MS = 45_000
SHORT_SESSION_MS = 10_000
_HEARTBEAT_MS = ConsumerSettings(session_timeout_ms=1).heartbeat_interval_ms
_BROKER_HEARTBEAT_MS = 5_000
"""``group.consumer.heartbeat.interval.ms`` and that of ``group.streams``, Kafka's default."""
_DEFAULT_DELAY_MS = 300_000
"""``scheduled.rebalance.max.delay.ms`` of Kafka Connect."""
_TASK_BEGIN_MS = 1_000
"""From being given a task of Kafka Connect to its consumer's request to join."""
_AFTER_MS = 30_000
_HOLD_MS = 15_000
_STATIC_SLACK_MS = 10_000
GAIN = 0.1
"""Of what the group as it was cost, at least; less is not told from chance."""
_MOST_PARTITIONS = 5_000


@attrs.frozen(kw_only=True)
class Otherwise:
    """`change`: what would have been set, or who would have led. `unavailable_ms`: the mean over
    SEEDS.
    """

    change: str
    unavailable_ms: int


@attrs.frozen(kw_only=True)
class Counterfactual:
    """`measured_ms`: what the incident, and the return of its members, cost. `as_it_was_ms`: the
    same in the simulation. `otherwise`: what costs less, the best first.
    """

    measured_ms: int
    as_it_was_ms: int
    otherwise: tuple[Otherwise, ...]

    @property
    def error(self) -> float:
        """Returns, of the simulation, as a part of what was measured; what it says of other
        settings is not more exact.
        """
        return (self.as_it_was_ms - self.measured_ms) / max(1, self.measured_ms)


@attrs.frozen(kw_only=True)
class _Case:
    """`first`: the group when its incident began. `busy`: partitions that count."""

    history: GroupHistory
    incident: Incident
    first: ObservedGroup
    busy: Set[str]
    events: Sequence[ConsumerEvent]


Run = Callable[[int, int], Mapping[str, int]]
"""Seed and end (ms) -> how long each piece of work stood still, ms."""


@attrs.frozen(kw_only=True)
class IncidentSimulation:
    """A group of an incident. `weights`: work -> how many partitions stand still with it. `was`: as
    it was, as far as is known. `changes`: what else to try. `lasts_ms`: nothing goes on longer
    after the last event.
    """

    weights: Mapping[str, int]
    was: Run
    changes: list[tuple[str, Run]]
    lasts_ms: int


def counterfactual(history: GroupHistory, incident: Incident, all_incidents: Sequence[Incident]) -> Counterfactual | None:
    """Simulates an incident. None where that says nothing: nothing stood still, the group is of a
    kind that is not simulated here, or no member came or went.
    """
    first = history.state_at(incident.begin_ms)
    if first is None or not incident.chain or not incident.unavailable_ms:
        return None
    events = events_of(history, incident)
    busy = {gap.partition for gap in incident.gaps} | {key for key, commits in history.commits.items() if len(commits) > 1}
    simulated = SIMULATED.get(first.kind)
    case = _Case(history=history, incident=incident, first=first, busy=busy, events=events)
    simulation = simulated(case) if simulated is not None and events else None
    if simulation is None or not 0 < len(simulation.weights) <= _MOST_PARTITIONS:
        return None
    until_ms = events[-1].at_ms + simulation.lasts_ms
    returns = [each for each in all_incidents if incident.end_ms <= each.begin_ms <= events[-1].at_ms and each.cause is Cause.BACK]

    held_ms = _held_ms(first, incident, simulation.weights)

    def mean(run: Run) -> int:
        return held_ms + round(sum(cost * simulation.weights[work] for seed in SEEDS for work, cost in run(seed, until_ms).items()) / len(SEEDS))

    as_it_was = mean(simulation.was)
    tried = [Otherwise(change=change, unavailable_ms=mean(run)) for change, run in simulation.changes]
    better = [each for each in tried if each.unavailable_ms <= (1 - GAIN) * as_it_was]
    return Counterfactual(
        measured_ms=sum(each.unavailable_ms for each in (incident, *returns)),
        as_it_was_ms=as_it_was,
        otherwise=tuple(sorted(better, key=lambda each: each.unavailable_ms)),
    )


def _held_ms(first: ObservedGroup, incident: Incident, weights: Mapping[str, int]) -> int:
    """Returns how long members that did not poll held what they had before they were out, which no
    setting of the group makes shorter; summed over partitions.
    """
    found = 0
    for each in incident.chain:
        if each.cause is Cause.POLL_TIMEOUT and each.stopped_ms > 0:
            owned = [work for member in first.members.values() if name_of(member) in each.members for work in member.active]
            found += (each.stopped_ms + each.took_ms) * sum(weights.get(work, 0) for work in owned)
    return found


def _of_consumers(case: _Case) -> IncidentSimulation:
    """Consumers, or tasks of KIP-1071."""
    first, names = case.first, process_names(case.first)
    weights = {work: len(case.busy & set(first.partitions_of(work))) for work in first.owners}
    owners = {work: names[who[0]] for work, who in first.owners.items() if weights[work]}
    idle = sorted(set(names.values()) - set(owners.values()))
    was = settings_of(first, case.incident)
    if first.kind is GroupKind.STREAMS:
        begin_ms, restore_ms = case.history.times_to_begin_ms
        restores = {work: restore_ms[subtopology] for work in owners if (subtopology := work.rpartition("_")[0]) in restore_ms}
        was = attrs.evolve(was, begin_ms=begin_ms, restore_ms=restores)

    def run(settings: ConsumerSettings) -> Run:
        return lambda seed, until_ms: unavailable_ms(owners, case.events, settings, seed=seed, until_ms=until_ms, idle=idle)

    return IncidentSimulation(
        weights={work: weights[work] for work in owners},
        was=run(was),
        changes=[(change, run(settings)) for change, settings in _changes(first.kind, was, case.events)],
        lasts_ms=was.session_timeout_ms + max(was.restore_ms.values(), default=0) + _AFTER_MS,
    )


def _of_connect(case: _Case) -> IncidentSimulation | None:
    """The workers, and the consumers of the sinks that they run."""
    first, names = case.first, process_names(case.first)
    workers = {work: names[who[0]] for work, who in first.owners.items()}
    readers = {key: task for member in first.members.values() for task, keys in member.inputs.items() for key in keys if key in case.busy}
    now = [sink.state_at(case.incident.begin_ms) for sink in case.history.sinks.values()]
    sinks = [settings_of(group, case.incident) for group in now if group is not None and group.members]
    if not sinks:
        return None
    delays_ms = [
        member.rejoin_ms - state.at_ms for state in case.history.states for member in state.group.members.values() if member.rejoin_ms >= state.at_ms
    ]
    delay_ms = max(delays_ms, default=_DEFAULT_DELAY_MS)
    was = ConnectSettings(
        workers=attrs.evolve(settings_of(first, case.incident), assignor=COOPERATIVE, is_static=False, begin_ms=_TASK_BEGIN_MS, hold_ms=delay_ms),
        sinks=max(sinks, key=lambda settings: settings.session_timeout_ms),
    )

    def run(settings: ConnectSettings) -> Run:
        return lambda seed, until_ms: connect_unavailable_ms(workers, readers, case.events, settings, seed=seed, until_ms=until_ms)

    return IncidentSimulation(
        weights=dict.fromkeys(readers, 1),
        was=run(was),
        changes=[(change, run(settings)) for change, settings in _connect_changes(was, case.events)],
        lasts_ms=max(was.workers.session_timeout_ms, was.sinks.session_timeout_ms) + delay_ms + _AFTER_MS,
    )


SIMULATED: Mapping[GroupKind, Callable[[_Case], IncidentSimulation | None]] = {
    GroupKind.CLASSIC_CONSUMER: _of_consumers,
    GroupKind.CONSUMER: _of_consumers,
    GroupKind.STREAMS: _of_consumers,
    GroupKind.CONNECT: _of_connect,
}


def settings_of(group: ObservedGroup, incident: Incident) -> ConsumerSettings:
    """The settings of a group, as far as its records have them."""
    session_ms = session_ms_of(group, incident)
    is_broker_led = not kind_is_classic(group.kind)
    heartbeat_ms = _BROKER_HEARTBEAT_MS if is_broker_led else _HEARTBEAT_MS
    return ConsumerSettings(
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(heartbeat_ms, session_ms // 3),
        assignor=group.protocol,
        is_static=all(member.instance_id is not None for member in group.members.values()),
        is_broker_led=is_broker_led,
        num_standbys=max(Counter(task for member in group.members.values() for task in member.standby).values(), default=0),
    )


def session_ms_of(group: ObservedGroup, incident: Incident) -> int:
    """The session timeout, ms. One of KIP-848 or KIP-1071 is in no record, so it is taken from the
    incident: how long the member was missed.
    """
    known = max((member.session_timeout_ms for member in group.members.values()), default=-1)
    missed = max((each.stopped_ms for each in incident.chain if each.cause in (Cause.EXPIRED, Cause.RESTARTED)), default=-1)
    return known if known > 0 else missed if missed > 0 else _DEFAULT_SESSION_MS


def events_of(history: GroupHistory, incident: Incident) -> list[ConsumerEvent]:
    """Returns who stopped and who began, in the incident, and in the five minutes after it those
    who are back. A classic generation is stored when it is complete, so who is new in it began half
    a heartbeat before. One that was killed and is back in the same generation had waited for its
    own expiry: it is dated by when the others stopped for it.
    """
    found: list[ConsumerEvent] = []
    stopped: set[str] = set()
    names: dict[str, str] = {}
    causes = {each.begin_ms: each.cause for each in incident.chain}
    until_ms = max(incident.chain[-1].end_ms, incident.end_ms)
    before: ObservedGroup | None = None
    for state in history.states:
        now = state.group
        if before is not None and incident.chain[0].begin_ms <= state.at_ms <= until_ms + ROLLING_MS:
            names = names or process_names(before)
            gone = [member for key, member in before.members.items() if key not in now.members] if state.at_ms <= until_ms else []
            for member in gone:
                silent_ms = last_heard_before_ms(history, before, member, state.at_ms) or 0
                cause = causes.get(state.at_ms, incident.cause)
                expired = cause is not Cause.POLL_TIMEOUT and (cause is Cause.EXPIRED or silent_ms >= expired_from_ms(history, before, member))
                at_ms = state.at_ms if cause is Cause.POLL_TIMEOUT else state.at_ms - silent_ms
                found.append(ConsumerEvent(at_ms, "kill" if expired else "leave", names[member.member_id]))
                stopped.add(names[member.member_id])
            for key in sorted(now.members.keys() - before.members.keys()):
                names[key] = name = _name_of_new(now.members[key], before, names)
                if state.at_ms <= until_ms or name in stopped:
                    at_ms = state.at_ms if not kind_is_classic(now.kind) else state.at_ms - _HEARTBEAT_MS // 2
                    if any(names[member.member_id] == name for member in gone):
                        at_ms = _others_stopped_ms(incident, before, name, names) or at_ms
                    found.append(ConsumerEvent(at_ms, "start", name))
                    stopped.discard(name)
        before = now
    return sorted(found)


def _name_of_new(member: ClusterMember, before: ObservedGroup, names: Mapping[str, str]) -> str:
    """Its process' name; the id where several have that name. One that takes the place of another,
    which was killed and is still known, has the name of that one.
    """
    name = name_of(member)
    return name if sum(names.get(key, key) == name for key in before.members) <= 1 else member.member_id


def _others_stopped_ms(incident: Incident, before: ObservedGroup, name: str, names: Mapping[str, str]) -> int | None:
    """Returns when work of other processes first stood still, ms; None: it did not."""
    owners = {work: names[who[0]] for work, who in before.owners.items()}
    return min((gap.from_ms for gap in incident.gaps if owners.get(gap.partition, name) != name), default=None)


def process_names(group: ObservedGroup) -> dict[str, str]:
    """Member id -> a name that the process keeps when it is started again, where it has one that
    nobody shares; else the member id.
    """
    names = {key: name_of(member) for key, member in group.members.items()}
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 else key for key, name in names.items()}


def _changes(kind: GroupKind, was: ConsumerSettings, events: Sequence[ConsumerEvent]) -> list[tuple[str, ConsumerSettings]]:
    found: list[tuple[str, ConsumerSettings]] = []
    back_ms = _back_after_ms(events)
    session_name = _SESSION_NAMES[kind]
    if _are_killed(events) and was.session_timeout_ms > SHORT_SESSION_MS:
        found.append((f"{session_name}={SHORT_SESSION_MS}", _with_short_session(was)))
    if kind is GroupKind.STREAMS:  # Kafka Streams refuses group.instance.id with it
        found.append((f"streams.num.standby.replicas={was.num_standbys + 1}", attrs.evolve(was, num_standbys=was.num_standbys + 1)))
        return found
    if back_ms and not was.is_static:
        session_ms = max(was.session_timeout_ms, -(-(max(back_ms) + _STATIC_SLACK_MS) // 1000) * 1000)
        longer = f" and {session_name}={session_ms}" if session_ms > was.session_timeout_ms else ""
        found.append((f"group.instance.id{longer}", attrs.evolve(was, is_static=True, session_timeout_ms=session_ms)))
    if was.is_broker_led:
        return found
    if was.assignor != COOPERATIVE:
        found.append(("partition.assignment.strategy=cooperative-sticky", attrs.evolve(was, assignor=COOPERATIVE)))
    hold_s = _HOLD_MS // 1000
    if back_ms:
        sticky = COOPERATIVE if was.assignor == COOPERATIVE else "sticky"
        found.append((f"equipoise lead --hold {hold_s}", attrs.evolve(was, hold_ms=_HOLD_MS, assignor=sticky)))
    elif was.assignor not in (COOPERATIVE, "sticky"):
        found.append(("equipoise lead", attrs.evolve(was, assignor="sticky")))
    by_broker = attrs.evolve(was, is_broker_led=True, heartbeat_interval_ms=_BROKER_HEARTBEAT_MS, session_timeout_ms=_DEFAULT_SESSION_MS)
    found.append(("group.protocol=consumer", by_broker))
    return found


_SESSION_NAMES = {
    GroupKind.CLASSIC_CONSUMER: "session.timeout.ms",
    GroupKind.CONSUMER: "group.consumer.session.timeout.ms",
    GroupKind.STREAMS: "group.streams.session.timeout.ms",
}


def _connect_changes(was: ConnectSettings, events: Sequence[ConsumerEvent]) -> list[tuple[str, ConnectSettings]]:
    found: list[tuple[str, ConnectSettings]] = []
    workers, sinks, back_ms = was.workers, was.sinks, _back_after_ms(events)
    if _are_killed(events) and workers.session_timeout_ms > SHORT_SESSION_MS:
        found.append((f"session.timeout.ms={SHORT_SESSION_MS}", attrs.evolve(was, workers=_with_short_session(workers))))
    if _are_killed(events) and sinks.session_timeout_ms > SHORT_SESSION_MS:
        found.append((f"consumer.session.timeout.ms={SHORT_SESSION_MS}", attrs.evolve(was, sinks=_with_short_session(sinks))))
    for delay_ms in (0, *(-(-(each + _STATIC_SLACK_MS) // 1000) * 1000 for each in back_ms[:1])):
        if delay_ms < workers.hold_ms:
            change = attrs.evolve(was, workers=attrs.evolve(workers, hold_ms=delay_ms))
            found.append((f"scheduled.rebalance.max.delay.ms={delay_ms}", change))
    if sinks.assignor != COOPERATIVE:
        change = attrs.evolve(was, sinks=attrs.evolve(sinks, assignor=COOPERATIVE))
        found.append(("consumer.partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor", change))
    return found


def _are_killed(events: Sequence[ConsumerEvent]) -> bool:
    return any(event.kind == "kill" for event in events)


def _back_after_ms(events: Sequence[ConsumerEvent]) -> list[int]:
    """Returns how long each process that stopped and is back was away, the longest first."""
    starts = [event for event in events if event.kind == "start"]
    returns = [
        next((start.at_ms - stop.at_ms for start in starts if start.name == stop.name and start.at_ms >= stop.at_ms), None)
        for stop in events
        if stop.kind != "start"
    ]
    return sorted((each for each in returns if each is not None), reverse=True)


def _with_short_session(was: ConsumerSettings) -> ConsumerSettings:
    return attrs.evolve(was, session_timeout_ms=SHORT_SESSION_MS, heartbeat_interval_ms=min(was.heartbeat_interval_ms, 3_000))
