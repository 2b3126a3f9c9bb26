"""The requests of members of classic consumer groups, as aiokafka builds them: brokers answer with
aiokafka's responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiokafka import errors

from equipoise.testing.simulated.kafka.classic_groups import CoordinatedGroup, GroupSession
from equipoise.testing.simulated.kafka.cluster_state import Reply
from equipoise.testing.simulated.kafka.coordinators import GROUP

if TYPE_CHECKING:
    from equipoise.testing.simulated.kafka.cluster import Cluster
    from equipoise.testing.simulated.kafka.cluster_state import SimulatedBroker

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS = 11, 12, 13, 14, 15
_MEMBER_ID_REQUIRED = 79


def _code(error: Any) -> int:
    return int(getattr(error, "errno", 0))


def _coordinated(cluster: Cluster, name: str, broker: SimulatedBroker, refused: Callable[[Any], None]) -> CoordinatedGroup | None:
    """Returns the group, if this broker coordinates it; else it replies."""
    return cluster.groups.group(name) if cluster.coordinators.may_write(GROUP, name, broker, refused) else None


def join_group(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    made = request.RESPONSE_TYPE

    def answer(found: Any) -> None:
        reply(made(0, 0, *found) if isinstance(found, tuple) else made(0, _code(found), -1, "", "", request.member_id, []))

    group = _coordinated(cluster, request.group, broker, answer)
    if group is None:
        return
    if not request.member_id:
        reply(made(0, _MEMBER_ID_REQUIRED, -1, "", "", group.new_id(), []))
    elif request.member_id not in group.given_ids and request.member_id not in group.members:
        answer(errors.UnknownMemberIdError)
    else:
        times_us = request.session_timeout * 1_000, request.rebalance_timeout * 1_000
        group.join(GroupSession(request.member_id, *times_us, dict(request.group_protocols), joins=answer))


def sync_group(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        reply(request.RESPONSE_TYPE(0, _code(found), found if isinstance(found, bytes) else b""))

    group = _coordinated(cluster, request.group, broker, answer)
    if group is not None:
        problem = group.problem(request.member_id, request.generation_id)
        if problem is None:
            group.sync(group.members[request.member_id], dict(request.group_assignment), answer)
        else:
            answer(problem)


def heartbeat(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        reply(request.RESPONSE_TYPE(0, _code(found)))

    group = _coordinated(cluster, request.group, broker, answer)
    if group is not None:
        problem = group.problem(request.member_id, request.generation_id)
        if request.member_id in group.members:
            group.heard(group.members[request.member_id])
        answer(problem)


def leave_group(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        reply(request.RESPONSE_TYPE(0, _code(found), []))

    group = _coordinated(cluster, request.group, broker, answer)
    if group is not None:
        left = [(*each, 0 if group.remove(each[0]) else errors.UnknownMemberIdError.errno) for each in request.members]
        reply(request.RESPONSE_TYPE(0, 0, left))


def describe_groups(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def described(name: str) -> tuple[Any, ...]:
        group = cluster.groups.group(name)
        members = [(each.id, None, "", "", each.protocols.get(group.protocol, b""), each.assignment) for each in group.members.values()]
        return 0, name, group.state, "consumer", group.protocol, members, 0

    reply(request.RESPONSE_TYPE(0, [described(name) for name in request.groups]))
