"""Histories of groups from what files say: `GroupHistory`, as a recording gives it, so that one
report serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from equipoise.replay.importers.evidence.dumped import topic_names
from equipoise.replay.importers.evidence.files import Evidence
from equipoise.replay.importers.evidence.statements import Said, Statement
from equipoise.replay.importers.evidence.tool_documents import BurrowStatus
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup
from equipoise.replay.incident.broker_story import BrokerStory
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.client_process import Reconciled
from equipoise.replay.incident.client_story import ClientStory
from equipoise.replay.incident.clock_shifts import clock_shifts
from equipoise.replay.incident.coordinator_history import GroupHistory, ObservedState, read_history
from equipoise.replay.incident.coordinator_outages import with_outages
from equipoise.replay.incident.from_tables import with_looks
from equipoise.replay.incident.merged_rebalances import merged_rebalances
from equipoise.replay.incident.named_causes import merged_places, observed
from equipoise.replay.incident.other_causes import with_undecided
from equipoise.replay.wording import span_text

_CLOCK_MS = 2_000
_NEAR_MS = 5_000
_STARTS_WITHIN_MS = 120_000
"""From the first line of a process to its first rebalance."""
_SLOW_MS = 5_000
_MOST_NOTES = 8


def histories_of(evidence: Evidence, recorded: Mapping[str, GroupHistory] | None = None, asked: str | None = None) -> dict[str, GroupHistory]:
    """Group -> its history, of all groups that the files name. `recorded`: histories of recordings
    that were given beside them; what is told is added to those. `asked`: the group that is asked
    for; files that name none are taken to be of it.
    """
    found = dict(recorded or {})
    for group, records in evidence.generations.items():
        if group not in found:
            found[group] = read_history(group, records, evidence.commits.get(group, ()), (), topic_names(records))
    names_of = (set(evidence.groups) | set(evidence.generations)) - {""}
    names_of |= {look.group for look in evidence.looks} - {""}
    for _, document in evidence.documents:
        names_of.add(document.group if isinstance(document, BurrowStatus) else f"connect-{document.connector}")
    nameless = _nameless(evidence, names_of, asked)
    for group in sorted(names_of):
        found[group] = _history(evidence, group, nameless.get(group, []), found.get(group))
        evidence.groups.pop(group, None)  # a log of a gigabyte has millions: what is folded is not needed again
    if nameless.get("") and not (names_of - {""}):
        found[UNNAMED] = _history(evidence, "", [], None)
    return found


UNNAMED = "(a group that no line names)"


def _nameless(evidence: Evidence, groups: set[str], asked: str | None) -> dict[str, list[Statement]]:
    """Statements that name no group: of the group that has their client, of the only one, or of the
    one that is asked for.
    """
    statements = evidence.groups.get("")
    if statements is None or not len(statements):
        return {}
    owners: dict[str, set[str]] = {}
    naming: set[int] = set()
    """Files that name a group."""
    went: dict[str, list[tuple[int, str]]] = {}
    """Client -> when which group lost it."""
    for group in groups:
        for each in evidence.groups[group].in_order() if group in evidence.groups else ():
            naming.add(each.file)
            for client in {each.detail.client, observed(each.detail.member, "", "").client_id, each.detail.instance} - {""}:
                owners.setdefault(client, set()).add(group)
                if each.said in (Said.LEFT, Said.EXPIRED):
                    went.setdefault(client, []).append((each.at_ms, group))
    of_files: dict[int, Counter[str]] = {}
    for each in statements.in_order():
        near = [(abs(at_ms - each.at_ms), group) for at_ms, group in went.get(each.detail.client, ()) if abs(at_ms - each.at_ms) <= _NEAR_MS]
        of_files.setdefault(each.file, Counter()).update({group for _, group in near} if len({group for _, group in near}) == 1 else ())
    found: dict[str, list[Statement]] = {}
    for each in statements.in_order():
        mine = set().union(*(owners.get(key, set()) for key in (each.detail.client, each.detail.instance) if key))
        chosen = mine if len(mine) == 1 else groups if len(groups) == 1 and not each.said.is_of_broker else set()
        likely = of_files[each.file].most_common(2)
        if asked in groups and each.file not in naming and (asked in mine or not any(asked in having for having in owners.values())):
            chosen = {asked}
        if not chosen and likely and (len(likely) == 1 or likely[0][1] > likely[1][1]):
            chosen = {likely[0][0]}
        found.setdefault(next(iter(chosen)) if chosen else "", []).append(each)
    return found


def _history(evidence: Evidence, group: str, nameless: list[Statement], recorded: GroupHistory | None) -> GroupHistory:
    said = evidence.groups.get(group)
    statements = [] if said is None else _in_order(evidence, said, nameless)
    if said is None:
        statements = nameless
    clients = ClientStory(group=group)
    broker = BrokerStory(group=group, starts=[each.starts for each in evidence.files])
    for each in statements:
        if not each.said.is_of_broker and each.detail.member and each.detail.client:
            broker.clients[each.detail.member] = each.detail.client
        if each.said is Said.SETTING and each.detail.state == "max.poll.interval.ms" and each.detail.text.isdecimal():
            broker.poll_ms = int(each.detail.text[:10])
    kinds: Counter[str] = Counter()
    last_ms = 0
    for each in statements:
        kinds[each.detail.kind] += 1
        if each.said.is_of_broker:
            broker.take(each)
            last_ms = max(last_ms, each.at_ms)
        else:
            clients.take(each, evidence.files[each.file].name)
    broker.finish(last_ms)
    clients.finish()
    kind = _kind(broker, clients, kinds)
    told = list(broker.found)
    for step, _ in STEPS:
        told = step(told, Stories(broker, clients, kind))
    return with_looks(_made(evidence, group, kind, told, broker, clients, statements, recorded), evidence, group, has_said=bool(statements))


def _in_order(evidence: Evidence, said: Iterable[Statement] | object, nameless: list[Statement]) -> list[Statement]:
    """All statements, in order of the brokers' clock, as far as files share generations."""
    from equipoise.replay.importers.evidence.statements import Statements

    assert isinstance(said, Statements)
    ends = (Said.ASSIGNED, Said.STABILIZED)
    numbers = [
        (each.file, each.number, each.at_ms, each.said.is_of_broker)
        for each in said.in_order()
        if (each.said in ends or each.said in (Said.JOINED, Said.SYNCED)) and each.number >= 0
    ]
    by_number = {(file, number, is_broker): (file, number, at_ms, is_broker) for file, number, at_ms, is_broker in numbers}
    shifts = clock_shifts(list(by_number.values()))
    for file, shift_ms in shifts.items():
        if abs(shift_ms) >= _CLOCK_MS:
            evidence.files[file].shift_ms = shift_ms
    ordered = list(said.in_order([-each.shift_ms for each in evidence.files]))
    if nameless:
        moved = [attrs.evolve(each, at_ms=each.at_ms - evidence.files[each.file].shift_ms) for each in nameless]
        ordered = sorted([*ordered, *moved], key=lambda each: each.at_ms)
    return ordered


def _kind(broker: BrokerStory, clients: ClientStory, kinds: Counter[str]) -> GroupKind:
    if kinds["connect"] or clients.is_connect:
        return GroupKind.CONNECT
    if broker.kind is not GroupKind.CLASSIC_CONSUMER:
        return GroupKind.STREAMS if kinds["streams"] else broker.kind
    if clients.slow or kinds["consumer"]:
        return GroupKind.CONSUMER
    is_streams = kinds["streams"] or any("-StreamThread-" in name for name in [*broker.members, *clients.processes])
    return GroupKind.CLASSIC_STREAMS if is_streams else GroupKind.CLASSIC_CONSUMER


# -- the history


def _made(
    evidence: Evidence,
    group: str,
    kind: GroupKind,
    told: list[Rebalance],
    broker: BrokerStory,
    clients: ClientStory,
    statements: Sequence[Statement],
    recorded: GroupHistory | None,
) -> GroupHistory:
    notes = _notes(evidence, clients)
    has_broker = any(each.said.is_of_broker for each in statements)
    missing = _missing(has_broker=has_broker, clients=clients, kind=kind, has_records=recorded is not None)
    language = _language(evidence, statements)
    if recorded is not None:
        return attrs.evolve(
            recorded,
            language=language or recorded.language,
            told=told,
            stops=clients.stops,
            notes=notes,
            missing=missing if not recorded.states else (),
        )
    states: list[ObservedState] = []
    for each in broker.states or _client_states(group, kind, clients):
        if states and states[-1].at_ms >= each.at_ms:
            states.pop()
        states.append(attrs.evolve(each, group=attrs.evolve(each.group, kind=kind)))
    if not states and (told or notes or statements):
        at_ms = told[0].begin_ms if told else statements[0].at_ms if statements else 0
        states.append(ObservedState(at_ms=at_ms, group=ObservedGroup(name=group, kind=kind)))
    return GroupHistory(
        group=group or UNNAMED,
        states=states,
        commits={},
        end_times_ms=[],
        ends=[],
        unread=[],
        has_every_commit=False,
        has_records=False,
        told=told,
        stops=clients.stops,
        notes=notes,
        missing=missing,
        language=language,
    )


_LANGUAGES = {"librdkafka's log": "librdkafka", "a Java consumer's log": "java", "Kafka Streams' log": "streams", "Kafka Connect's log": "connect"}


def _language(evidence: Evidence, statements: Sequence[Statement]) -> str:
    """The client of most files with a client's statements."""
    files = Counter(each.file for each in statements if not each.said.is_of_broker)
    for file, _ in files.most_common():
        own = [kind for kind, _ in evidence.files[file].kinds.most_common() if kind != "a broker's log"]
        if own:
            return _LANGUAGES.get(own[0], evidence.files[file].dialect)
    return ""


def _client_states(group: str, kind: GroupKind, clients: ClientStory) -> list[ObservedState]:
    """The group as its leader dealt it."""
    found = []
    for each in sorted(clients.dealt, key=lambda each: each.at_ms):
        members = {name: attrs.evolve(observed(name, "", ""), active=frozenset(work)) for name, work in each.work.items()}
        observed_group = ObservedGroup(name=group, kind=kind, epoch=each.number, assignment_epoch=each.number, members=members)
        found.append(ObservedState(at_ms=each.at_ms, group=observed_group))
    return found


# -- what is made of the brokers' rebalances, step by step


@attrs.frozen
class Stories:
    """All that logs say of a group."""

    broker: BrokerStory
    clients: ClientStory
    kind: GroupKind


def _undecided(told: Sequence[Rebalance], stories: Stories) -> list[Rebalance]:
    return with_undecided(told, stories.kind, {process.shown for process in stories.clients.processes.values()})


def _of_connect(told: Sequence[Rebalance], stories: Stories) -> list[Rebalance]:
    """Workers of Kafka Connect: a delay says that work was lost, and its end gives it out."""
    found: list[Rebalance] = []
    waiting = False
    for each in told:
        delay = stories.clients.delays.get(each.number)
        if delay is not None and not waiting and each.cause in (Cause.UNSEEN, Cause.JOINED, Cause.GONE, Cause.ASKED):
            detail = f"work was lost, and waits for up to {span_text(delay.ms)} (scheduled.rebalance.max.delay.ms) whether it is back or not"
            each = attrs.evolve(each, detail=detail, places=merged_places(each.places, (delay.place,)))
            if each.cause in (Cause.UNSEEN, Cause.JOINED):
                each = attrs.evolve(each, cause=Cause.GONE, members=(), joined=())
            waiting = True
        elif delay is None and waiting and each.cause is Cause.UNSEEN:
            each = attrs.evolve(each, cause=Cause.DELAY_OVER)
            waiting = False
        found.append(each)
    return found


def _without_state(told: Sequence[Rebalance], stories: Stories) -> list[Rebalance]:
    """Names processes of Kafka Streams that are back with an empty state directory, in the first
    rebalance after they began.
    """
    found = list(told)
    for empty in stories.clients.without_state:
        process = stories.clients.processes.get(stories.clients.by_file.get(empty.file, ""))
        for index, each in enumerate(found):
            is_soon = empty.at_ms - _CLOCK_MS <= each.end_ms and each.begin_ms <= empty.at_ms + _STARTS_WITHIN_MS
            is_back = process is not None and each.cause in (Cause.BACK, Cause.RESTARTED) and process.shown in each.members
            if process is None or not is_soon or not (is_back or process.shown in each.joined):
                continue
            why = "its state directory was empty, so it restores all of its tasks"
            detail = why if is_back else each.detail or f"{process.shown} joined: {why}"
            found[index] = attrs.evolve(each, detail=detail, lost_state=(process.shown,), places=merged_places(each.places, (empty.place,)))
            break
    return found


def _slow_named(told: Sequence[Rebalance], stories: Stories) -> list[Rebalance]:
    """Names the members of KIP-848 that took long to give up what they had."""
    return [_slow(each, [one for one in stories.clients.slow if one.took_ms >= _SLOW_MS]) for each in told]


def _slow(each: Rebalance, slow: Sequence[Reconciled]) -> Rebalance:
    near = [one for one in slow if each.begin_ms - _CLOCK_MS <= one.begin_ms <= each.end_ms + _CLOCK_MS + one.took_ms]
    if not near or each.cause in (Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TOO_SLOW):
        return each
    one = max(near, key=lambda one: one.took_ms)
    detail = f"{one.who} took {span_text(one.took_ms)} to give up and take over its work"
    return attrs.evolve(each, end_ms=max(each.end_ms, one.begin_ms + one.took_ms), detail=detail, places=merged_places(each.places, (one.place,)))


def _first(told: Sequence[Rebalance], stories: Stories) -> list[Rebalance]:
    """The first member of a group whose broker says nothing began it."""
    begins = bool(told) and not stories.broker.found and told[0].cause is Cause.JOINED and 0 <= told[0].number <= 1
    return [attrs.evolve(told[0], cause=Cause.FIRST), *told[1:]] if begins else list(told)


STEPS: tuple[tuple[Callable[[Sequence[Rebalance], Stories], list[Rebalance]], str], ...] = (
    (lambda told, stories: merged_rebalances(told, stories.clients), "the brokers' rebalances are the frame, into which what clients say is put"),
    (
        lambda told, stories: with_outages(told, stories.clients.outages),
        "it moves beginnings and adds rebalances, and the next step goes by their order",
    ),
    (_undecided, "a detail says that a departure is explained, and the steps below add some that explain none"),
    (_of_connect, "of Kafka Connect's workers alone"),
    (_slow_named, "of members of KIP-848 alone"),
    (_without_state, "of Kafka Streams alone; none of these three sees what another one does"),
    (_first, "the steps above know the first member as one that joined"),
)
"""Each step, and why it comes where it does. What needs the whole list comes later: a recording's
own rebalances (`rebalances.with_told`), tables (`from_tables.with_looks`), and loops
(`rebalance_loops.with_loops`).
"""


def _notes(evidence: Evidence, clients: ClientStory) -> list[str]:
    found = [
        f"clock of {file.name}: {span_text(abs(file.shift_ms))} {'ahead of' if file.shift_ms > 0 else 'behind'} the broker's; its times are moved"
        for file in evidence.files
        if file.shift_ms
    ]
    found += [f"{name} = {each.value} ({each.place})" for name, each in sorted(clients.settings.items()) if name in _TOLD_SETTINGS]
    found += [f"{each.what}: {each.value} ({each.place})" for each in clients.restored[-3:]]
    found += [f"{each.what} went to {each.value} ({each.place})" for each in clients.failed[:3]]
    return found[:_MOST_NOTES]


_TOLD_SETTINGS = (
    "session.timeout.ms",
    "max.poll.interval.ms",
    "rebalance.timeout.ms",
    "group.instance.id",
    "partition.assignment.strategy",
    "group.protocol",
    "scheduled.rebalance.max.delay.ms",
)


def _missing(*, has_broker: bool, clients: ClientStory, kind: GroupKind, has_records: bool) -> list[str]:
    """Returns what these files cannot tell, and which would."""
    found = []
    if not has_broker and not has_records:
        where = [address for address in clients.coordinators if ":" in address]
        named = f" ({', '.join(where[:3])})" if where else ""
        found.append(f"who else began rebalances, and why members were removed: server.log of the broker that coordinates the group{named}")
    if has_broker and not clients.processes:
        found.append("why a member left, and what its application did meanwhile: the log of that member")
    if not has_records:
        found.append(
            "which partitions stood still, and how far they fell behind: a recording (`equipoise record`), or kafka-consumer-groups --describe, twice"
        )
    if kind is GroupKind.CONNECT:
        found.append("which connectors failed, and why: GET /connectors?expand=status of any worker")
    return found
