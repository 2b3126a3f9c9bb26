"""Rejections: why a fact is answered by EventRejected. The log has a code; its text is rendered
here.

A rejection changes nothing except the lease of a member's current incarnation, which is renewed
before the content is judged (docs/protocol.md#m4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.events.decisions import Decision, EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import Fact, GroupConfigured, MemberJoined, Subtopology, TopologyDeclared
from equipoise.statemachine.topologies import TOPOLOGY_DIFFERS, topics_text

ASSIGNOR_UNAVAILABLE = "assignor_unavailable"
"""The one code that depends on the leader's build. Once published, it is an input of every later
fold: see `refused_fact`.
"""

REJECTIONS: dict[str, str] = {
    "undecodable": "the bytes are not a valid event",
    "not_configured": "the group has no configuration yet; send GroupConfigured first",
    "not_external": "the group is led by equipoise, which takes no AssignmentObserved; configure led_by=external while it is empty",
    "round_repeated": "a round with this id was asked before",
    "external": "the group has another leader; only AssignmentObserved changes what its members have",
    "configuration_changed": "it was made from settings that are not in force any more; read those in force and make the change again",
    "leader_change": "led_by can only change while the group is empty; it has {0} members",
    "step_exceeds_margin": "max_step_ms {0} is over {1}, the smallest lease_margin_ms of members and of fenced incarnations that may still run",
    ASSIGNOR_UNAVAILABLE: "the worker that leads the group has no such assignor, behaviour version or solver; install it on every worker first",
    "knobs_refused": "its assignor cannot take these settings; `equipoise configure` with the same ones names the one",
    "topology_not_newer": "topology epoch {0} is not above the newest one, {1}",
    "subtopologies_differ": "sub-topology {1} exists on one side only: topology epoch {0} of the group has {2} tasks of it, the member {3}"
    "; raise topology_epoch with each change, or deploy the same build everywhere",
    "sources_differ": "sub-topology {1} has other source topics in topology epoch {0} of the group than at the member"
    "; raise topology_epoch with each change, or deploy the same build everywhere",
    "changelogs_differ": "sub-topology {1} has other state topics in topology epoch {0} of the group than at the member"
    "; raise topology_epoch with each change, or deploy the same build everywhere",
    "statefulness_differs": "sub-topology {1} has state, or copies that are prepared, on one side only: in topology epoch {0} of the group "
    "or at the member; raise topology_epoch with each change, or deploy the same build everywhere",
    "tasks_missing": "sub-topology {1} has {2} tasks in topology epoch {0} of the group, and the member found partitions for {3}: "
    "a source topic was made again with fewer; give it as many, or raise topology_epoch",
    "join_repeated": "this join was seen before",
    "incarnation_repeated": "incarnation {0} is the one that is already a member",
    "incarnation_too_low": "incarnation {0} is not above {1}, the newest of this member that is live or fenced; join with a higher one, or end",
    "margin_too_small": "lease_margin_ms {0} is below the group's max_step_ms {1}: one broker failover could cost it its lease",
    "margin_too_large": "lease_margin_ms {0} leaves nothing of session_timeout_ms {1}",
    "unknown_member": "no such member; join first",
    "stale_incarnation": "incarnation {0} is not the current one, {1}",
    "not_waited_for": "incarnation {0} is neither a member nor waited for",
    "epoch_from_future": "assignment_epoch {0} was never issued to this member; the last one is {1}",
    "epoch_went_back": "assignment_epoch {0} after {1}",
    "epoch_too_low": "assignment_epoch {0} is older than {1}, which revokes the task",
    "report_repeated": "report {0} is not above the last one, {1}",
    "report_base_unknown": "report builds on {0}, the last one is {1}; send a full report",
    "held_not_granted": "it holds task {0}_{1}, which it was never granted",
    "not_revoking": "task {0}_{1} is not being revoked from it",
    "not_a_copy": "task {0}_{1} is neither standby nor warm-up of it",
    "not_granted": "task {0}_{1} was not granted to it with token {2}",
    "already_released": "the member was released already; join again",
    "unknown_members": "{0} of the named members are not in the group; no member was asked",
    "members_changed": "{0} of the named members are other incarnations than those that were chosen; no member was asked; choose again",
    "too_few_stay": "only {0} of {1} members would stay: others have gone since these were chosen; no member was asked; choose again",
    "nobody_asked": "none of these members is asked to leave, or all of them are released already",
    "deals_nothing": "its assignor does not deal partitions by lag, so it has no new deal; lag_aware does",
    "not_dealt_yet": "nothing is dealt yet: the group has no members, or its first round is still to come and deals everything",
    "not_watched": "no change with this id is watched; it was judged, or another one came: plan it again",
    "being_undone": "the change before is being undone; plan this one again when the settings of before are in force",
    "handing_over": "tasks still being handed over: {0}; ask again when that is done",
    "silence_outdated": "it was measured after offset {0}, and the group's last fact is {1}",
    "generation_not_newer": "generation {0} is not above the last observed one, {1}",
    "task_owned_twice": "task {0}_{1} is in the active lists of two members",
    "observed_unknown_task": "task {0}_{1} is not in the topology",
}
"""Code -> template; {n} is EventRejected.numbers[n]."""


class Rejected(Exception):
    """Raised by a transition before it changes anything; the machine turns it into an
    EventRejected.
    """

    def __init__(self, code: str, *numbers: int) -> None:
        super().__init__(code)
        self.code = code
        self.numbers = numbers


_EXPECTED = frozenset({"not_configured", "join_repeated", "report_base_unknown", "report_repeated"})
"""A member joins before it knows that its group has no configuration, or sends again what brokers
had already, or says what changed since a report that was lost with one.
"""


def is_expected(decision: EventRejected, fact: Fact, topologies: Mapping[int, TopologyDeclared]) -> bool:
    """Returns whether members that are in order cause this rejection, so that nobody need look at
    it. `topologies`: those that the group knows: each process declares its own when it starts.
    """
    if decision.code == "topology_not_newer" and isinstance(fact, TopologyDeclared):
        return topologies.get(fact.epoch) == fact
    return decision.code in _EXPECTED


def rejection_text(decision: EventRejected, fact: Fact | None = None) -> str:
    """One line for people; an unknown code is shown as it is. `fact`: the rejected fact, by which a
    refused configuration is explained.
    """
    if isinstance(fact, GroupConfigured) and decision.code in _EXPLAINED:
        explained = _EXPLAINED[decision.code](fact)
        if explained is not None:
            return explained
    if isinstance(fact, MemberJoined) and fact.subtopologies is not None and decision.code in TOPOLOGY_DIFFERS:
        return refused_topology_text(decision.code, decision.numbers, fact.subtopologies)
    template = REJECTIONS.get(decision.code)
    return f"{decision.code} {decision.numbers}" if template is None else template.format(*decision.numbers)


def refused_topology_text(code: str, numbers: tuple[int, ...], own: Iterable[Subtopology]) -> str:
    """One line about a join that is refused with a code of TOPOLOGY_DIFFERS, with what the member
    has. `own`: its topology.
    """
    part = next((part for part in own if part.subtopology == numbers[1]), None)
    has = "" if part is None or code == "subtopologies_differ" else f" ({topics_text(code, part)} there)"
    return REJECTIONS[code].format(*numbers).replace("at the member", f"at the member{has}")


def refused_fact(decision: Decision, caused_by: int) -> int | None:
    """Offset of the configuration that this decision refuses because the leader's build lacks what
    it asks for; None: it is no such refusal.
    """
    return caused_by if isinstance(decision, EventRejected) and decision.code == ASSIGNOR_UNAVAILABLE else None


def _what_is_lacking(config: GroupConfigured) -> str | None:
    """Returns what this installation lacks for a configuration; None: nothing, so only the build
    that refused it can say more.
    """
    from equipoise.assignors import registry  # a member needs no assignor, unless it is refused

    try:
        assignor = registry.load(config.assignor, config.behaviour_version)
    except InputError as error:
        return str(error)
    return registry.solver_problem(config.solver, assignor)


def _what_is_refused(config: GroupConfigured) -> str | None:
    """Returns why the assignor refuses the settings; None: this installation lacks the assignor and
    cannot tell.
    """
    from equipoise.assignors import check_settings, registry

    try:
        assignor = registry.load(config.assignor, config.behaviour_version)
    except InputError:
        return None
    try:
        check_settings(assignor, config.knobs)
    except InputError as error:
        return str(error)
    return None


_EXPLAINED = {"knobs_refused": _what_is_refused, ASSIGNOR_UNAVAILABLE: _what_is_lacking}


def refusal_text(config: GroupConfigured) -> str:
    """Returns why a worker refuses this configuration, as far as this installation can tell."""
    asks = f"assignor {config.assignor!r} version {config.behaviour_version}, solver {config.solver!r}"
    return _what_is_lacking(config) or _what_is_refused(config) or f"{asks}: {REJECTIONS[ASSIGNOR_UNAVAILABLE]}"
