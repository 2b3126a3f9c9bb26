"""Histories of groups from what files say: `GroupHistory`, as a recording gives it, so that one
report serves both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.importers.evidence.dumped import topic_names
from equipoise.replay.importers.evidence.evidence_files import Evidence
from equipoise.replay.importers.evidence.statements import Said, Statement
from equipoise.replay.importers.evidence.tool_documents import BurrowStatus
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup
from equipoise.replay.incident.broker_story import BrokerStory
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.client_story import ClientStory, Departure
from equipoise.replay.incident.clock_shifts import clock_shifts
from equipoise.replay.incident.coordinator_history import GroupHistory, ObservedState, read_history
from equipoise.replay.incident.from_tables import with_looks
from equipoise.replay.incident.said_causes import STRENGTH, names, observed
from equipoise.replay.incident.undecided import with_undecided
from equipoise.replay.wording import span_text

_SAME_MS = 600_000
"""A generation's number comes again only later."""
_DEPARTED = {Cause.POLL_TIMEOUT: (15_000, 130_000), Cause.EXPIRED: (120_000, 15_000), Cause.LEFT: (15_000, 15_000), Cause.TWICE: (20_000, 60_000)}
"""What a client says of its departure -> how long before and after it its coordinator says so."""
_CLOCK_MS = 2_000
_NEAR_MS = 5_000
_STARTS_WITHIN_MS = 120_000
"""From the first line of a process to its first rebalance."""
_MOST_NOTES = 8
_MOST_MERGED_PLACES = 6


def histories_of(
    evidence: Evidence, recorded: Mapping[str, GroupHistory] | None = None, asked: str | None = None
) -> dict[str, GroupHistory]:
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
        found[UNNAMED] = _history(evidence, "", nameless[""], None)
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
    broker = BrokerStory(group=group)
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
    told = with_undecided(_merged(broker.found, clients), kind, {process.shown for process in clients.processes.values()})
    return with_looks(_made(evidence, group, kind, told, broker, clients, statements, recorded), evidence, group, has_said=bool(statements))


def _in_order(evidence: Evidence, said: Iterable[Statement] | object, nameless: list[Statement]) -> list[Statement]:
    """All statements, in order of the brokers' clock, as far as files share generations."""
    from equipoise.replay.importers.evidence.statements import Statements

    assert isinstance(said, Statements)
    ends = (Said.ASSIGNED, Said.STABILIZED)
    numbers = [
        (each.file, each.number, each.at_ms, each.said.is_of_broker) for each in said.in_order()
        if (each.said in ends or each.said in (Said.JOINED, Said.SYNCED)) and each.number >= 0
    ]  # fmt: skip
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
    if kinds["connect"] or clients.connect:
        return GroupKind.CONNECT
    if broker.kind is not GroupKind.CLASSIC_CONSUMER:
        return GroupKind.STREAMS if kinds["streams"] else broker.kind
    if clients.slow or kinds["consumer"]:
        return GroupKind.CONSUMER
    is_streams = kinds["streams"] or any("-StreamThread-" in name for name in [*broker.members, *clients.processes])
    return GroupKind.CLASSIC_STREAMS if is_streams else GroupKind.CLASSIC_CONSUMER


# -- what brokers and clients say of the same rebalance

def _merged(told: Sequence[Rebalance], clients: ClientStory) -> list[Rebalance]:
    """Rebalances of the broker's log, with the clients' own words, and those that only they saw."""
    seen = sorted(told, key=lambda each: each.begin_ms)
    rounds = _combined(clients)
    if not seen:
        return rounds
    found = _with_departures(seen, clients.departures)
    numbers: dict[int, list[int]] = {}
    for index, each in enumerate(found):
        numbers.setdefault(each.number, []).append(index)
    from_ms, until_ms = found[0].begin_ms, max(each.end_ms for each in found)
    alone: list[Rebalance] = []
    for each in rounds:
        near = [index for index in numbers.get(each.number, ()) if abs(found[index].end_ms - each.end_ms) <= _SAME_MS]
        if near:
            index = min(near, key=lambda one: abs(found[one].end_ms - each.end_ms))
            found[index] = _both(found[index], each)
        elif not from_ms - _CLOCK_MS <= each.begin_ms <= until_ms + _CLOCK_MS and each.cause is not Cause.TWICE:
            alone.append(each)
    return sorted([*found, *alone], key=lambda each: (each.begin_ms, each.number))


_UPGRADED = (Cause.LEFT, Cause.EXPIRED, Cause.RESTARTED, Cause.UNSEEN, Cause.GONE, Cause.POLL_TIMEOUT)
"""What a broker takes a poll timeout for, that does not know it."""


def _both(broker: Rebalance, client: Rebalance) -> Rebalance:
    """A rebalance of the broker's log: its reason stands, unless it gives none."""
    places = _places(broker.places, client.places)
    if broker.cause is Cause.UNSEEN and client.cause not in (Cause.UNSEEN, Cause.COORDINATOR):
        return attrs.evolve(broker, cause=client.cause, members=client.members, detail=client.detail, places=places)
    if broker.cause is Cause.ASKED and client.cause in (Cause.PARTITIONS, Cause.SUBSCRIBED, Cause.FOLLOW_UP, Cause.PROBING):
        return attrs.evolve(broker, cause=client.cause, detail=client.detail, places=places)
    return attrs.evolve(broker, places=places)


def _places(*parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place for part in parts for place in part))[:_MOST_MERGED_PLACES]


def _with_departures(told: Sequence[Rebalance], departures: Sequence[Departure]) -> list[Rebalance]:
    """The broker's rebalances; where it saw a member go, what that client said of it."""
    found = list(told)
    by_name: dict[str, list[tuple[int, int]]] = {}
    for index, each in enumerate(found):
        for name in {*each.gone, *(each.members if each.cause in (Cause.STATIC_BACK, Cause.TWICE) else ())}:
            by_name.setdefault(name, []).append((each.begin_ms, index))
    for left in departures:
        before_ms, after_ms = _DEPARTED.get(left.cause, (0, 0))
        seen = by_name.get(left.client) or by_name.get(left.member) or []
        place = bisect_left(seen, (left.at_ms - before_ms, 0))
        near = [index for begin_ms, index in seen[place : place + 5] if begin_ms <= left.at_ms + after_ms]
        if not near and left.cause is Cause.POLL_TIMEOUT:
            near = _unnamed(found, left)
        if not near:
            continue
        index = min(near, key=lambda one: abs(found[one].begin_ms - left.at_ms))
        one = found[index]
        places = _places(one.places, (left.place,))
        was_expired = one.cause is Cause.EXPIRED and left.at_ms > one.begin_ms + _CLOCK_MS  # a process that stood still, and woke up
        if left.cause is Cause.POLL_TIMEOUT and one.cause in _UPGRADED and not was_expired:
            found[index] = attrs.evolve(one, cause=Cause.POLL_TIMEOUT, members=(left.client,), detail=one.detail or left.detail, places=places)
        elif left.cause is Cause.TWICE and one.cause in (Cause.STATIC_BACK, Cause.TWICE):
            found[index] = attrs.evolve(one, cause=Cause.TWICE, detail=left.detail, places=places)
        elif left.cause is one.cause:
            found[index] = attrs.evolve(one, places=places, detail=one.detail or left.detail)
    return found


def _unnamed(told: Sequence[Rebalance], departure: Departure) -> list[int]:
    """The first rebalance after it, by which a member without a client id was lost: ids of KIP-848
    do not say which client it is.
    """
    near = [
        index for index, each in enumerate(told)
        if each.gone and each.cause in (Cause.LEFT, Cause.EXPIRED) and -_CLOCK_MS <= each.begin_ms - departure.at_ms <= 60_000
        and all(len(name) == 22 and "." not in name for name in each.gone)
    ]  # fmt: skip
    return near[:1]


def _combined(clients: ClientStory) -> list[Rebalance]:
    """One rebalance for the rounds of all clients that led to the same generation."""
    clusters: list[list[Rebalance]] = []
    in_cluster: list[set[str]] = []
    by_number: dict[int, int] = {}
    for process, each in sorted(clients.found, key=lambda one: (one[1].end_ms, one[1].begin_ms)):
        index = by_number.get(each.number)
        if clients.slow and clusters and each.begin_ms <= max(one.end_ms for one in clusters[-1]) + _CLOCK_MS:
            index = len(clusters) - 1  # epochs of KIP-848 are those of members: one step behind at some of them
        fits = index is not None and (each.number > 0 or bool(clients.slow)) and not each.gone and not clusters[index][0].gone
        fits = fits and index is not None and each.end_ms - clusters[index][0].end_ms <= _SAME_MS
        if index is not None and fits and process.name not in in_cluster[index]:
            clusters[index].append(each)
            in_cluster[index].add(process.name)
            if process.instance and any(
                other.instance == process.instance and other.name in in_cluster[index] for other in clients.processes.values() if other is not process
            ):
                clusters[index][-1] = attrs.evolve(each, cause=Cause.TWICE, members=(process.instance,), detail="they are in one generation")
        else:
            by_number[each.number] = len(clusters)
            clusters.append([each])
            in_cluster.append({process.name})
    members_of = {number: frozenset(dealt) for _, number, dealt, _ in clients.dealt}
    places_of = {number: place for _, number, _, place in clients.dealt}
    departed: dict[int, list[Departure]] = {}
    for left in clients.departures:
        departed.setdefault(left.number, []).append(left)
    taken: set[str] = set()
    made: list[Rebalance] = []
    for cluster in clusters:
        one = _one_of(cluster)
        if one.cause in (Cause.UNSEEN, Cause.COORDINATOR):
            cause = next(
                (
                    each for each in departed.get(one.number - 1, ())
                    if each.place not in taken and abs(each.at_ms - one.begin_ms) <= _SAME_MS
                    and (each.cause is not Cause.LEFT or each.at_ms <= one.end_ms + _CLOCK_MS)  # others say it when they are back
                ), None,
            )  # fmt: skip
            if cause is not None:
                taken.add(cause.place)
                one = attrs.evolve(
                    one, cause=cause.cause, members=(cause.client,), gone=(cause.client,), detail=cause.detail,
                    places=_places((cause.place,), one.places),
                    begin_ms=min(one.begin_ms, cause.at_ms),
                )  # fmt: skip
            elif one.number - 1 in members_of and one.number in members_of:
                one = _by_dealt(one, members_of[one.number - 1], members_of[one.number], places_of[one.number])
        made.append(one)
    # a client that was out is in again: what put it out is told by the others already
    told = [one for one, cluster in zip(made, clusters, strict=True) if not (cluster[0].gone and set(cluster[0].places) & taken)]
    back = [
        attrs.evolve(one, cause=Cause.BACK, begin_ms=one.end_ms, detail="")
        if one.cause in (Cause.POLL_TIMEOUT, Cause.EXPIRED) and not one.gone and any(place in taken for place in one.places) else one
        for one in told
    ]  # fmt: skip
    return sorted(back, key=lambda each: (each.begin_ms, each.number))


def _by_dealt(one: Rebalance, before: frozenset[str], after: frozenset[str], place: str) -> Rebalance:
    """Returns who is in the leader's assignment, and was not in the one before, or the other way
    round.
    """
    gone, joined = ([observed(name, "", "") for name in sorted(each)] for each in (before - after, after - before))
    places = _places(one.places, (place,))
    if gone and not joined:
        return attrs.evolve(one, cause=Cause.GONE, members=names(gone), gone=names(gone), places=places)
    if joined and not gone:
        return attrs.evolve(one, cause=Cause.JOINED, members=names(joined), joined=names(joined), places=places)
    if gone and joined:
        same = set(names(gone)) & set(names(joined))
        cause = Cause.RESTARTED if same else Cause.GONE
        return attrs.evolve(one, cause=cause, members=tuple(sorted(same)) or names(gone), gone=names(gone), joined=names(joined), places=places)
    return one


def _one_of(cluster: Sequence[Rebalance]) -> Rebalance:
    best = min(cluster, key=lambda each: (STRENGTH.index(each.cause) if each.cause in STRENGTH else 99, each.begin_ms))
    if len(cluster) == 1:
        return best
    same = [each for each in cluster if each.cause is best.cause]
    return attrs.evolve(
        best, begin_ms=min(each.begin_ms for each in cluster), end_ms=max(each.end_ms for each in cluster),
        members=tuple(sorted({name for each in same for name in each.members})), joined=tuple(
            sorted({name for each in cluster for name in each.joined})
        ),
        gone=tuple(sorted({name for each in cluster for name in each.gone})), places=_places(*(each.places for each in [best, *cluster])),
    )  # fmt: skip


# -- the history

def _made(
    evidence: Evidence, group: str, kind: GroupKind, told: list[Rebalance], broker: BrokerStory, clients: ClientStory,
    statements: Sequence[Statement], recorded: GroupHistory | None,
) -> GroupHistory:  # fmt: skip
    told = _of_connect(told, clients) if clients.connect else told
    told = [_slow_named(each, clients) for each in told] if clients.slow else told
    told = _without_state(told, clients) if clients.without_state else told
    if told and told[0].cause is Cause.JOINED and told[0].number <= 1 and told[0].number >= 0 and not broker.found:
        told[0] = attrs.evolve(told[0], cause=Cause.FIRST)
    notes = _notes(evidence, clients)
    has_broker = any(each.said.is_of_broker for each in statements)
    missing = _missing(has_broker=has_broker, clients=clients, kind=kind, has_records=recorded is not None)
    language = _language(evidence, statements)
    if recorded is not None:
        return attrs.evolve(
            recorded, language=language or recorded.language, told=told, stops=clients.stops, notes=notes,
            missing=missing if not recorded.states else (),
        )  # fmt: skip
    states: list[ObservedState] = []
    for at_ms, each in broker.groups or _client_groups(group, kind, clients):
        if states and states[-1].at_ms >= at_ms:
            states.pop()
        states.append(ObservedState(at_ms=at_ms, group=attrs.evolve(each, kind=kind)))
    if not states and (told or notes or statements):
        at_ms = told[0].begin_ms if told else statements[0].at_ms if statements else 0
        states.append(ObservedState(at_ms=at_ms, group=ObservedGroup(name=group, kind=kind)))
    return GroupHistory(
        group=group or UNNAMED, states=states, commits={}, end_times_ms=[], ends=[], unread=[], has_every_commit=False, has_records=False,
        told=told, stops=clients.stops, notes=notes, missing=missing, language=language,
    )  # fmt: skip


_LANGUAGES = {"librdkafka's log": "librdkafka", "a Java consumer's log": "java", "Kafka Streams' log": "streams", "Kafka Connect's log": "connect"}


def _language(evidence: Evidence, statements: Sequence[Statement]) -> str:
    """The client of most files with a client's statements."""
    files = Counter(each.file for each in statements if not each.said.is_of_broker)
    for file, _ in files.most_common():
        own = [kind for kind, _ in evidence.files[file].kinds.most_common() if kind != "a broker's log"]
        if own:
            return _LANGUAGES.get(own[0], evidence.files[file].dialect)
    return ""


def _client_groups(group: str, kind: GroupKind, clients: ClientStory) -> list[tuple[int, ObservedGroup]]:
    """The group as its leader dealt it."""
    found = []
    for at_ms, number, dealt, _ in sorted(clients.dealt, key=lambda each: each[0]):
        members = {name: attrs.evolve(observed(name, "", ""), active=frozenset(work)) for name, work in dealt.items()}
        found.append((at_ms, ObservedGroup(name=group, kind=kind, epoch=number, assignment_epoch=number, members=members)))
    return found


def _of_connect(told: list[Rebalance], clients: ClientStory) -> list[Rebalance]:
    """Workers of Kafka Connect: a delay says that work was lost, and its end gives it out."""
    delays = {number: (delay_ms, place) for _, _, _, delay_ms, number, place in clients.connect if delay_ms > 0}
    found: list[Rebalance] = []
    waiting = False
    for each in told:
        delay = delays.get(each.number)
        if delay is not None and not waiting and each.cause in (Cause.UNSEEN, Cause.JOINED, Cause.GONE, Cause.ASKED):
            detail = f"work was lost, and waits for up to {span_text(delay[0])} (scheduled.rebalance.max.delay.ms) whether it is back or not"
            each = attrs.evolve(each, detail=detail, places=_places(each.places, (delay[1],)))
            if each.cause in (Cause.UNSEEN, Cause.JOINED):
                each = attrs.evolve(each, cause=Cause.GONE, members=(), joined=())
            waiting = True
        elif delay is None and waiting and each.cause is Cause.UNSEEN:
            each = attrs.evolve(each, cause=Cause.DELAY_OVER)
            waiting = False
        found.append(each)
    return found


def _without_state(told: Sequence[Rebalance], clients: ClientStory) -> list[Rebalance]:
    """Names processes of Kafka Streams that are back with an empty state directory, in the first
    rebalance after they began.
    """
    found = list(told)
    for at_ms, file, place in clients.without_state:
        process = clients.processes.get(clients.by_file.get(file, ""))
        for index, each in enumerate(found):
            is_soon = at_ms - _CLOCK_MS <= each.end_ms and each.begin_ms <= at_ms + _STARTS_WITHIN_MS
            if process is None or each.cause not in (Cause.BACK, Cause.RESTARTED) or not is_soon or process.shown not in each.members:
                continue
            detail = "its state directory was empty, so it restores all of its tasks"
            found[index] = attrs.evolve(each, detail=detail, lost_state=(process.shown,), places=_places(each.places, (place,)))
            break
    return found


def _slow_named(each: Rebalance, clients: ClientStory) -> Rebalance:
    """Names the member of KIP-848 that took long to give up what it had."""
    slow = [one for one in clients.slow if one[1] >= 5_000 and each.begin_ms - _CLOCK_MS <= one[0] <= each.end_ms + _CLOCK_MS + one[1]]
    if not slow or each.cause in (Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TOO_SLOW):
        return each
    begin_ms, took_ms, name, place = max(slow, key=lambda one: one[1])
    detail = f"{name} took {span_text(took_ms)} to give up and take over its work"
    return attrs.evolve(each, end_ms=max(each.end_ms, begin_ms + took_ms), detail=detail, places=_places(each.places, (place,)))


def _notes(evidence: Evidence, clients: ClientStory) -> list[str]:
    found = [
        f"clock of {file.name}: {span_text(abs(file.shift_ms))} {'ahead of' if file.shift_ms > 0 else 'behind'} the broker's; its times are moved"
        for file in evidence.files if file.shift_ms
    ]  # fmt: skip
    found += [f"{name} = {value} ({place})" for name, (value, place) in sorted(clients.settings.items()) if name in _TOLD_SETTINGS]
    restored = [(took, who, place) for _, who, took, place in clients.states if took.startswith("its tasks took")]
    found += [f"{who}: {took} ({place})" for took, who, place in restored[-3:]]
    failed = [(at_ms, who, what, place) for at_ms, who, what, place in clients.states if what in ("ERROR", "PENDING_ERROR", "FAILED")]
    found += [f"{who} went to {what} ({place})" for _, who, what, place in failed[:3]]
    return found[:_MOST_NOTES]


_TOLD_SETTINGS = ("session.timeout.ms", "max.poll.interval.ms", "rebalance.timeout.ms", "group.instance.id", "partition.assignment.strategy",
                  "group.protocol",                   "scheduled.rebalance.max.delay.ms")  # fmt: skip


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
