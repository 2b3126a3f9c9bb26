"""Adds to a group's history what tables and documents say: what `kafka-consumer-groups --describe`
printed, the status of Kafka Connect's connectors, and Burrow's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import attrs

from equipoise.replay.importers.evidence.files import Evidence
from equipoise.replay.importers.evidence.tables import Look
from equipoise.replay.importers.evidence.tool_documents import BurrowStatus, ConnectorStatus
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_history import GroupHistory, ObservedState
from equipoise.replay.incident.named_causes import observed
from equipoise.replay.incident.rebalances import name_of, names_of
from equipoise.replay.wording import counted, span_text

_FEW_LOOKS, _MOST_PROGRESS = 3, 6
"""Of more looks, the last is told."""


def with_looks(history: GroupHistory, evidence: Evidence, group: str, *, has_said: bool) -> GroupHistory:
    """Returns the history with what tables and documents say of the group."""
    looks = [look for look in evidence.looks if look.group == group or (not look.group and len(evidence.looks) == 1)]
    if all(look.at_ms is not None for look in looks):
        looks.sort(key=lambda look: look.at_ms or 0)
    documents = [(evidence.files[file].name, each) for file, each in evidence.documents]
    burrow = [(name, each) for name, each in documents if isinstance(each, BurrowStatus) and each.group == group]
    connect = [(name, each) for name, each in documents if isinstance(each, ConnectorStatus) and f"connect-{each.connector}" == group]
    notes = list(history.notes)
    for look in looks if len(looks) <= _FEW_LOOKS else looks[-1:]:
        notes += look_notes(look)
    notes += _progress_notes(looks)[-_MOST_PROGRESS:]
    for name, each in burrow:
        notes += _burrow_notes(name, each)
    for name, status in connect:
        notes += _connect_notes(name, status)
    if not looks and not burrow and not connect:
        return history
    states = history.states
    if not history.has_records and looks and not any(state.group.members for state in states):
        group_then = group_of(looks[-1])
        states = [ObservedState(at_ms=looks[-1].at_ms or (states[-1].at_ms if states else 0), group=group_then)]
    elif not states:
        states = [ObservedState(at_ms=0, group=ObservedGroup(name=group, kind=GroupKind.CLASSIC_CONSUMER))]
    missing = list(history.missing)
    changes = [] if has_said or history.has_records else changes_between(looks)
    if not history.told and not history.has_records and not has_said:
        missing = [
            "what happened before, when, and why: server.log of the coordinating broker, and the logs of the members",
            *(["whether work goes on: the same command once more, a minute later"] if looks and len(looks) < 2 else []),
        ]
    return attrs.evolve(history, states=states, notes=notes, missing=missing, told=history.told or changes)


def changes_between(looks: Sequence[Look]) -> list[Rebalance]:
    """Returns who came and went between two looks that show the same partitions. Tables that were
    printed during a rebalance do not have all members.
    """
    looks = [look for look in looks if look.state in ("", "stable", "empty")]
    found: list[Rebalance] = []
    lost: set[str] = set()
    for number, (before, after) in enumerate(pairwise(looks), start=1):
        if {row.work for row in before.partitions} != {row.work for row in after.partitions}:
            continue
        if (before.members and not before.partitions) != (after.members and not after.partitions):
            continue
        then, now = group_of(before).members, group_of(after).members
        gone = names_of(member for name, member in then.items() if name not in now)
        joined = names_of(member for name, member in now.items() if name not in then)
        back = tuple(name for name in joined if name in lost or name in gone)
        gone = tuple(name for name in gone if name not in joined)
        lost |= set(gone)
        if not gone and not joined:
            continue
        cause = Cause.GONE if gone else Cause.BACK if back else Cause.JOINED
        found.append(
            Rebalance(
                number=max(after.epoch, number),
                begin_ms=after.at_ms or 0,
                end_ms=after.at_ms or 0,
                cause=cause,
                members=gone or back or joined,
                joined=joined,
                gone=gone,
                places=(f"{before.file}:{before.line}", f"{after.file}:{after.line}"),
                may_be=(Cause.LEFT, Cause.EXPIRED, Cause.POLL_TIMEOUT) if gone else (),
                untold=_GONE_BETWEEN if gone else "",
            )
        )
        lost -= set(joined)
    return found


_GONE_BETWEEN = (
    "tables cannot tell whether a member left, was not heard of for its session timeout, or did not poll, nor when it was:"
    " server.log of the coordinating broker can"
)


def group_of(look: Look) -> ObservedGroup:
    """The group as a table shows it."""
    members: dict[str, ClusterMember] = {}
    for row in look.members:
        members[row.member] = ClusterMember(
            member_id=row.member, instance_id=row.instance or None, client_id=row.client, host=row.host, active=frozenset(row.work or ())
        )
    for part in look.partitions:
        if part.member:
            known = members.get(part.member) or ClusterMember(member_id=part.member, client_id=part.client, host=part.host)
            members[part.member] = attrs.evolve(known, active=known.active | {part.work})
    kind = GroupKind.CLASSIC_STREAMS if any("-StreamThread-" in name for name in members) else GroupKind.CLASSIC_CONSUMER
    return ObservedGroup(name=look.group, kind=kind, epoch=max(0, look.epoch), protocol=look.assignor, members=members)


def look_notes(look: Look) -> list[str]:
    """Returns what one look at a group shows."""
    here = f"{look.file}:{look.line}"
    found: list[str] = []
    if look.state and look.state not in ("stable", "empty"):
        found.append(f"the group is {look.state} ({here}): a rebalance goes on, and nobody reads unless its assignor is cooperative")
    if look.state == "empty":
        found.append(f"the group has no active member ({here}): nobody reads")
    group = group_of(look)
    lags = {row.work: row.lag for row in look.partitions if row.lag is not None}
    if look.partitions:
        unowned = [row for row in look.partitions if not row.member]
        if unowned and group.members:
            behind = sum(row.lag or 0 for row in unowned)
            named = ", ".join(f"{row.work} ({look.file}:{row.line})" for row in unowned[:3])
            found.append(
                f"{counted(len(unowned), 'partition')} without a member, {counted(behind, 'record')} behind: "
                f"{named}{' and more' if len(unowned) > 3 else ''}"
            )
        if lags:
            worst = max(look.partitions, key=lambda row: row.lag or 0)
            found.append(
                f"{counted(len(look.partitions), 'partition')}, {counted(sum(lags.values()), 'record')} behind; "
                f"most at {worst.work}: {worst.lag or 0:,}"
                f"{f', of {_name(worst.member, worst.client)}' if worst.member else ''} ({look.file}:{worst.line})"
            )
    sizes = {name: len(member.active) for name, member in group.members.items()}
    counted_rows = {row.member: row.count for row in look.members if row.member}
    sizes |= {name: count for name, count in counted_rows.items() if not sizes.get(name)}
    if sizes:
        each_has = f"{min(sizes.values())} to {max(sizes.values())}" if len(set(sizes.values())) > 1 else str(max(sizes.values()))
        epoch = f"; epoch {look.epoch}" if look.epoch >= 0 else ""
        found.append(f"{counted(len(sizes), 'member')}, partitions at each: {each_has}{epoch} ({here})")
    if len(sizes) > 1:
        most, least = max(sizes.values()), min(sizes.values())
        idle = sorted(_name(name, group.members[name].client_id) for name, size in sizes.items() if not size)
        if idle:
            found.append(f"{counted(len(idle), 'member')} with nothing to read: {', '.join(idle[:5])} ({here})")
        if most - least > 1:
            found.append(
                f"uneven: {counted(most, 'partition')} at one member and {least} at another ({here});"
                " `equipoise lead --set assignor=lag_aware` would even them out"
            )
    pending = [row for row in look.members if row.target is not None and row.work is not None and set(row.work) != set(row.target)]
    if pending:
        found.append(
            f"{counted(len(pending), 'member')} not yet at the target: "
            + ", ".join(f"{_name(row.member, row.client)} ({look.file}:{row.line})" for row in pending[:3])
        )
    instances = Counter(row.instance for row in look.members if row.instance)
    found += [f"instance id {name} stands at {count} members ({here})" for name, count in instances.items() if count > 1]
    return found


def _name(member: str, client: str) -> str:

    return name_of(ClusterMember(member_id=member, client_id=client)) if client else name_of(observed(member, "", ""))


def _progress_notes(looks: Sequence[Look]) -> list[str]:
    """Returns, of two looks: partitions whose commits stand still while records come."""
    found: list[str] = []
    for before, after in pairwise(looks):
        then = {row.work: row for row in before.partitions}
        still = [
            row
            for row in after.partitions
            if (old := then.get(row.work)) is not None
            and row.committed is not None
            and old.committed == row.committed
            and (row.end or 0) > (old.end or 0)
            and (row.end or 0) > row.committed
        ]
        if still:
            owners = sorted({_name(row.member, row.client) for row in still if row.member})
            whose = f", of {', '.join(owners[:3])}" if owners else ", which nobody has"
            named = ", ".join(row.work for row in still[:5])
            found.append(
                f"no progress between two looks at {counted(len(still), 'partition')} ({named}){whose}, while records came"
                f" ({before.file}:{then[still[0].work].line}, {after.file}:{still[0].line})"
            )
        moved = [
            row for row in after.partitions if (old := then.get(row.work)) is not None and old.member and row.member and old.member != row.member
        ]
        if moved:
            found.append(f"{counted(len(moved), 'partition')} moved to another member between two looks ({after.file}:{moved[0].line})")
    return found


def _burrow_notes(name: str, status: BurrowStatus) -> list[str]:
    behind = f", {counted(status.total_lag, 'record')} behind" if status.total_lag >= 0 else ""
    found = [f"Burrow: {status.status}{behind} ({name})"]
    for word, meaning in (
        ("STALL", "commits come, and always the same offset"),
        ("STOP", "no commit comes"),
        ("REWIND", "offsets went back"),
        ("WARN", "it falls behind"),
    ):
        rows = [row for row in status.partitions if row.status == word]
        if rows:
            who = sorted({row.client or row.owner for row in rows} - {""})
            span = max((row.last_ms - row.first_ms for row in rows), default=0)
            lasted = f" for {span_text(span)}" if span > 0 and word == "STALL" else ""
            found.append(
                f"{word} at {', '.join(f'{row.topic}-{row.partition}' for row in rows[:5])}: {meaning}{lasted};"
                f" {max(row.lag for row in rows):,} behind at most"
                f"{f'; of {chr(44).join(who[:3])}' if who else ''} ({name})"
            )
    return found


def _connect_notes(name: str, status: ConnectorStatus) -> list[str]:
    found = (
        []
        if status.state in ("RUNNING", "")
        else [f"connector {status.connector} is {status.state} at {status.worker}{_trace(status.trace)} ({name})"]
    )
    states = Counter(state for _, state, _, _ in status.tasks)
    for state in sorted(states.keys() - {"RUNNING"}):
        rows = [each for each in status.tasks if each[1] == state]
        traces = Counter(trace for _, _, _, trace in rows if trace)
        why = _trace(traces.most_common(1)[0][0]) if traces else ""
        numbers = ", ".join(f"{status.connector}-{number} at {worker}" for number, _, worker, _ in rows[:5])
        waits = _STATES_OF_TASKS.get(state, "")
        found.append(f"{counted(len(rows), 'task')} {state}: {numbers}{why}{waits} ({name})")
    if not status.tasks:
        found.append(f"connector {status.connector} has no task ({name})")
    return found or [f"connector {status.connector} and its {counted(len(status.tasks), 'task')} run ({name})"]


_STATES_OF_TASKS = {
    "UNASSIGNED": "; it waits for a rebalance, or for scheduled.rebalance.max.delay.ms after a worker was lost",
    "FAILED": "; it stays so until it is restarted: POST /connectors/NAME/restart?includeTasks=true&onlyFailed=true",
}


def _trace(text: str) -> str:
    return f": {text}" if text else ""
