"""`equipoise witness --ended`: takes a member whose process has ended out of its consumer group."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import InputError
from equipoise.kafka.connection import MISSING, Connection
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.kafka.consumer_groups import GroupMember, MemberKey

T = TypeVar("T")
EXIT_REFUSED = 1
ANSWERED_WITHIN_S = 5.0
COLUMNS = ("member_id", "instance_id", "client_id", "host", "protocol")


def remove_ended(
    screen: Screen,
    settings: Connection,
    group: str,
    *,
    instance_id: str | None,
    client_id: str | None,
    host: str | None,
    member_id: str | None,
    yes: bool,
) -> int:
    """Takes the one member that matches out of its group, and returns the exit code. Raises
    click.UsageError where it is named in two ways or by half, and InputError where brokers do not
    answer.
    """
    if sum(each is not None for each in (instance_id, client_id, member_id)) > 1:
        raise click.UsageError("--instance-id, --client-id and --member-id: name one of them")
    if (client_id is None) != (host is None):
        raise click.UsageError("--client-id and --host: name both, because other hosts may use the same client id")
    try:
        from equipoise.kafka.consumer_groups import MemberKey, normalised
    except ImportError:
        raise InputError(MISSING) from None
    hosts = None if host is None else frozenset({normalised(host)})
    key = MemberKey(member_id=member_id, instance_id=instance_id, client_id=client_id, hosts=hosts)
    return _Removal(screen, settings, group).run(key, yes=yes)


class _Removal:
    """One run on a group."""

    def __init__(self, screen: Screen, connection: Connection, group: str) -> None:
        self._screen, self._connection, self._group = screen, connection, group

    def run(self, key: MemberKey, *, yes: bool) -> int:
        members = asyncio.run(self._members())
        matching = [each for each in members if key.matches(each)]
        problem = _why_refused(key, members, matching)
        if problem is not None:
            return self._refuse(problem, matching or members)
        (member,) = matching
        if not yes and not self._is_confirmed(member):
            return self._refuse("nothing shows that its process has ended; if you know that it has, add --yes", matching)
        if asyncio.run(self._remove(member)):
            return self._answer("removed", None, matching, f"{self._group}: removed {member}")
        return self._answer("left already", None, matching, f"{self._group}: {member} has left already, or joined again under another id")

    def _is_confirmed(self, member: GroupMember) -> bool:
        if self._screen.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        self._screen.line(f"{self._group}: {member}")
        return click.confirm("Has the process of this member ended?")

    def _refuse(self, problem: str, members: list[GroupMember]) -> int:
        self._answer("refused", problem, members, f"{self._group}: nothing was removed: {problem}", *([_table(members)] if members else []))
        return EXIT_REFUSED

    def _answer(self, outcome: str, reason: str | None, members: list[GroupMember], *parts: str | Table) -> int:
        rows = [{name: getattr(each, name) for name in COLUMNS} for each in members]
        self._screen.answer({"group": self._group, "outcome": outcome, "reason": reason, "members": rows}, *parts)
        return 0

    async def _members(self) -> list[GroupMember]:
        from equipoise.kafka.consumer_groups import ConsumerGroup

        async with ConsumerGroup(self._connection, self._group) as group:
            return await self._answered(group.members)

    async def _remove(self, member: GroupMember) -> bool:
        from equipoise.kafka.consumer_groups import ConsumerGroup

        async with ConsumerGroup(self._connection, self._group) as group:
            return await self._answered(lambda: group.remove(member))

    async def _answered(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises InputError when the brokers do not answer, or refuse."""
        from equipoise.kafka.consumer_groups import repeated
        from equipoise.kafka.started_clients import reaching

        with reaching(self._connection):
            return await repeated(attempt, ANSWERED_WITHIN_S)


def _why_refused(key: MemberKey, members: list[GroupMember], matching: list[GroupMember]) -> str | None:
    """None: exactly one member matches."""
    if not members:
        return "there is no such consumer group, or it has no member (members of a group that equipoise leads are in none: `equipoise status`)"
    if key.is_empty:
        return "say which member: --instance-id, --client-id with --host, or --member-id"
    if not matching:
        return f"no member has {key}; these are in the group"
    if len(matching) > 1:
        return f"{counted(len(matching), 'member')} have {key}, and one may be alive; name one by --member-id"
    return None


def _table(members: list[GroupMember]) -> Table:
    columns = tuple(name.replace("_", " ") for name in COLUMNS)
    return Table(columns=columns, rows=[[getattr(each, name) for name in COLUMNS] for each in members])
