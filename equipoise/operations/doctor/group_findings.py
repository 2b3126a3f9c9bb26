"""Findings about groups: timeouts of members and workers against what brokers need to fail over,
and a group that the log does not have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.member.tasks.clients import TRANSACTION_TIMEOUT_MS
from equipoise.operations.doctor.finding import Finding, fine, problem, unknown, warning
from equipoise.replay.all_clear import AskedNow, Grounds
from equipoise.replay.trouble import held_up, standing_still
from equipoise.replay.wording import counted, groups_text, names_text
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupState

DEFAULT_BROKER_SESSION_MS = 9_000
ELECTION_MS = 3_000
"""From the end of a dead broker's session until its partitions have leaders again and clients have
found them. Measured: 2 s, of three brokers.
"""


def of_timeouts(state: GroupState | None, broker: Mapping[str, str] | None, brokers: int, worker_session_ms: int | None) -> Iterable[Finding]:
    """`state`: of the group; None: of none. `broker`: settings of one; None: the user may not read
    them. `worker_session_ms`: of a worker; None: the role is another one.
    """
    session_ms = DEFAULT_BROKER_SESSION_MS if broker is None else int(broker.get("broker.session.timeout.ms", DEFAULT_BROKER_SESSION_MS))
    failover_ms = session_ms + ELECTION_MS
    assumed = ", assumed" if broker is None else ""
    source = f"broker.session.timeout.ms={session_ms}{assumed}"
    if state is not None and state.members:
        yield _of_members(state, failover_ms, source, brokers)
    elif state is not None:
        yield unknown("timeouts", f"group {state.group} has no members, whose session timeouts could be compared with {source}")
    if broker is None:
        yield unknown("timeouts", "settings of brokers: this user may not read them (DescribeConfigs on Cluster)", "compare them as an administrator")
        return
    if worker_session_ms is not None:
        least, most = int(broker.get("group.min.session.timeout.ms", 0)), int(broker.get("group.max.session.timeout.ms", 2**31))
        text = f"worker_session_timeout_ms={worker_session_ms}, and brokers allow {least} to {most}"
        allowed = least <= worker_session_ms <= most
        fix = "set worker_session_timeout_ms within these bounds"
        yield fine("timeouts", text) if allowed else problem("timeouts", f"{text}: no worker joins", fix)
    longest_ms = int(broker.get("transaction.max.timeout.ms", TRANSACTION_TIMEOUT_MS))
    if longest_ms < TRANSACTION_TIMEOUT_MS:
        text = f"brokers have transaction.max.timeout.ms={longest_ms}, and members ask for {TRANSACTION_TIMEOUT_MS}: exactly_once cannot begin"
        yield problem("timeouts", text, f"set transaction.max.timeout.ms={TRANSACTION_TIMEOUT_MS} or more on all brokers")


def of_workers(asked: AskedNow, groups: Iterable[GroupLead]) -> Finding:
    """Says whether somebody decides. `groups`: of the log."""
    if asked.workers is None:
        return unknown("groups", f"whether a worker runs is not known: {asked.unknown}", "allow Describe on that group, or ask as a worker")
    if asked.workers:
        return fine("groups", f"{counted(asked.workers, 'worker')} of the log, as their consumer group says, each within its session")
    waiting = [lead.name for lead in groups if lead.machine.state.members]
    if waiting:
        return problem("groups", f"no worker runs: nobody decides in {names_text(waiting)}", "start a worker")
    return warning("groups", "no worker runs: nobody will decide in groups that begin", "start a worker")


def of_group(lead: GroupLead, grounds: Grounds) -> Iterable[Finding]:
    """Yields what stands still in a group, and what is missing to know that nothing does."""
    fix = f"equipoise status --group {lead.name} says more"
    if lead.halted is not None:
        yield problem("groups", f"group {lead.name} is halted: {lead.halted}", "docs/operations.md#a-halted-group")
        return
    of_it = attrs.evolve(grounds, from_whom=attrs.evolve(grounds.from_whom, workers=None, unknown=""))  # that is of the log
    for each in of_it.missing:
        yield problem("groups", f"group {lead.name}: {each.text}", fix)
    for each in standing_still(lead.machine.state):
        yield warning("groups", f"group {lead.name}: {each.text}", fix)


def of_troubles(state: GroupState) -> Iterable[Finding]:
    """Yields a warning for each thing outside that holds up members of the group, as they say."""
    for text, names in held_up(state).items():
        what, _, fix = text.rpartition("; ")
        yield warning("groups", f"group {state.group}: {', '.join(names)}: {what}", fix)


def _of_members(state: GroupState, failover_ms: int, source: str, brokers: int) -> Finding:
    leases = {member_id: each.session_timeout_ms - each.lease_margin_ms for member_id, each in state.members.items()}
    shortest = min(sorted(leases), key=lambda member_id: leases[member_id])
    lasts_ms = leases[shortest]
    text = f"group {state.group}: the shortest lease is {lasts_ms} ms ({shortest}), and brokers fail over within {failover_ms} ms ({source})"
    if lasts_ms > failover_ms:
        return fine("timeouts", text)
    margin_ms = state.members[shortest].lease_margin_ms
    fix = f"set session_timeout_ms of members above {failover_ms + margin_ms}, or broker.session.timeout.ms below {lasts_ms - ELECTION_MS}"
    if brokers == 1:
        return warning("timeouts", f"{text}: every restart of the broker stops the tasks", fix)
    return problem("timeouts", f"{text}: when a broker fails, leases this short expire and their tasks move", fix)


def unknown_group(group: str, known: Sequence[str]) -> Finding:
    """The log has no fact of the group. `known`: the groups that it has."""
    near = difflib.get_close_matches(group, known, n=1)
    fix = f"did you mean --group {near[0]}?" if near else "name one of them, or its topics with --source if it is a new one"
    return problem("topics", f"the log holds no fact of group {group!r}; {groups_text(known)}", fix)
