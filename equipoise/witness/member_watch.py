"""Watches which members of a consumer group an unmodified Kafka client is, and takes them out of
the group when the client's process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
from aiokafka.errors import KafkaError

from equipoise.events.errors import EquipoiseError
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, GroupMember, MemberKey, normalised, repeated
from equipoise.replay.wording import counted
from equipoise.witness.child import say

FIRST_LOOK_S = 3.0
"""Longest wait for the brokers before the command is started."""
SOON_S, SOON_FOR_S = 0.5, 60.0
"""Interval of looks until a member is seen, for at most so long."""
MORE_WITHIN_S = 5.0
"""The other members of a process with several are looked for so long after one."""
LOOK_S = 5.0
"""Interval of looks after that. A neighbour that matches too is seen within this time."""
REMOVED_WITHIN_S = 20.0
"""A removal that no broker answers is repeated for so long: a coordinator that crashes has a
successor after ten seconds.
"""
Failure = (KafkaError, OSError, EquipoiseError)


class SeenMembers:
    """Which members the command is, from those that match and have joined while it ran. Each has an
    id of its own (`has_own_ids`: an instance id or a client id), or there is only one.

    If one alone has joined with an id, it is the command's, provided that no other process has the
    same key (`is_unique`). A second one, at the same time or later, ends that proof: it may be a
    neighbour, or the successor of the command. Members that no other process can be (`attribute`)
    are the command's, also one after the other.
    """

    def __init__(self, *, is_unique: bool, has_own_ids: bool = False) -> None:
        self._is_unique, self._has_own_ids = is_unique, has_own_ids
        self._before: frozenset[str] | None = None
        self._joined: dict[str, GroupMember] = {}
        self._listed: frozenset[str] = frozenset()
        self._attributed: frozenset[str] = frozenset()

    def note(self, matching: Iterable[GroupMember]) -> None:
        """The members that match, read while the command runs. Those of the first call were there
        before: they are not the command's.
        """
        found = {each.member_id: each for each in matching}
        if self._before is None:
            self._before = frozenset(found)
        self._listed = frozenset(found) - self._before
        self._joined |= {each: member for each, member in found.items() if each in self._listed}

    def attribute(self, hosts: frozenset[str]) -> None:
        """The members of these hosts in the last call of `note` can be no other process."""
        self._attributed |= {each for each in self._listed if self._joined[each].host in hosts}

    @property
    def has_unattributed(self) -> bool:
        return not self._listed <= self._attributed

    @property
    def joined(self) -> list[GroupMember]:
        return list(self._joined.values())

    def proven(self) -> list[GroupMember]:
        """The members of the command, of which no other process can be one."""
        by_id: dict[str, list[GroupMember]] = {}
        for each in self._joined.values():
            by_id.setdefault((each.instance_id or each.client_id) if self._has_own_ids else "", []).append(each)
        return [member for alike in by_id.values() if (member := self._one_of(alike)) is not None]

    def _one_of(self, alike: list[GroupMember]) -> GroupMember | None:
        """Of members with one id that have joined."""
        are_attributed = {each.member_id for each in alike} <= self._attributed
        if len(alike) == 1:
            return alike[0] if self._is_unique or are_attributed else None
        present = [each for each in alike if each.member_id in self._listed]
        return present[0] if are_attributed and len(present) == 1 else None


@attrs.define(eq=False)
class MemberWatch:
    """Of one command. `key`: what its members are found by, an instance id or a client id that no
    other process of this host has, or a pattern of such ids. Without an instance id the host is
    added: an address of this machine. With neither, the command must be the only client of this
    machine that is connected to the group's coordinator.
    """

    connection: Connection
    group: str
    key: MemberKey
    runtime: Runtime = DEPLOYED
    _client: ConsumerGroup = attrs.field(init=False)
    _seen: SeenMembers = attrs.field(init=False)
    _key_at_last_look: MemberKey = attrs.field(init=False)
    _problem: str = attrs.field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        self._client = ConsumerGroup(self.connection, self.group)
        is_unique = self.key.instance_id is not None or self.key.client_id is not None
        self._seen = SeenMembers(is_unique=is_unique, has_own_ids=self.key.is_pattern)
        self._key_at_last_look = self.key

    async def __aenter__(self) -> Self:
        """Notes the members that are there before the command. When no broker answers, the command
        is started all the same, and what the first answer names is not the command's.
        """
        try:
            await repeated(self._look, FIRST_LOOK_S)
        except Failure as error:
            self._fails(error)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.close()

    async def follow(self, pid: int, is_running: Callable[[], bool]) -> None:
        """Looks again and again which members match, and says on standard error which one is the
        command's, when that changes. What is read counts only if the command still runs after that.
        `pid`: of the command. Runs until it is cancelled.
        """
        until_s = self.runtime.monotonic_s() + SOON_FOR_S
        while True:
            await asyncio.sleep(SOON_S if self.runtime.monotonic_s() < until_s else LOOK_S)
            before, count = self._seen.proven(), len(self._seen.joined)
            try:
                await self._look(is_running)
                self._problem = ""
            except Failure as error:
                self._fails(error)
            if len(self._seen.joined) > count:
                until_s = self.runtime.monotonic_s() + (MORE_WITHIN_S if self.key.is_pattern else 0)
            now = self._seen.proven()
            for member in (each for each in now if each not in before):
                say(f"group {self.group}: the member of process {pid} is {member}, which is removed at its end")
            if len(now) < len(before):
                say(f"group {self.group}: the member of process {pid} is not known any more: {self._why_unproven()}")

    async def remove(self, pid: int, *, was_stopped: bool) -> None:
        """Takes the members of the command out of the group, and says on standard error what was
        done. `pid`: of the command, which has ended with every process that it started.
        `was_stopped`: in order. A client that ends in order leaves its group by itself, unless it
        is a static member, which stays on purpose: it is to be back within its session.
        """
        members = self._seen.proven()
        if not members:
            self.say(pid, f"nothing was removed, because {self._why_unproven()}")
        await asyncio.gather(*(self._remove(pid, member, was_stopped=was_stopped) for member in members))

    async def _remove(self, pid: int, member: GroupMember, *, was_stopped: bool) -> None:
        began_s = self.runtime.monotonic_s()
        if was_stopped and member.instance_id is not None:
            self.say(pid, f"static member {member} stays, because the process ended in order")
            return
        try:
            was_member = await repeated(lambda: self._client.remove(member), REMOVED_WITHIN_S)
        except Failure as error:
            self.say(pid, f"{member} could not be removed: {_text(error)}")
            return
        took = f"was removed after {(self.runtime.monotonic_s() - began_s) * 1_000:.0f} ms" if was_member else "was out of it already"
        self.say(pid, f"member {member} {took}")

    def say(self, pid: int, outcome: str) -> None:
        say(f"group {self.group}: process {pid} has ended; {outcome}")

    async def _look(self, is_running: Callable[[], bool] = lambda: True) -> None:
        members, coordinator = await self._client.members(), await self._client.coordinator()
        hosts = own_addresses(coordinator)
        if self.key.instance_id is None:
            self._key_at_last_look = attrs.evolve(self.key, hosts=hosts)
        if is_running():
            self._seen.note(each for each in members if self._key_at_last_look.matches(each))
            if self._seen.has_unattributed and are_only_clients(coordinator):
                self._seen.attribute(hosts)

    def _why_unproven(self) -> str:
        joined = self._seen.joined
        if len(joined) == 1:
            return (
                f"{joined[0]} may be another process of this host: it was not seen that only this command is connected to the coordinator; "
                "give it a group.instance.id (--instance-id), or a client.id of its own (--client-id)"
            )
        if joined:
            them = "; ".join(map(str, joined))
            return (
                f"{counted(len(joined), 'member')} with {self._key_at_last_look} joined while it ran: {them}; "
                "it has joined again, or a neighbour has the same; give each process a group.instance.id, or a client.id of its own on its host"
            )
        if self._problem:
            return f"the members could not be read: {self._problem}"
        return f"no member with {self._key_at_last_look} was seen to join while it ran"

    def _fails(self, error: Exception) -> None:
        if not self._problem:
            say(f"group {self.group}: the members cannot be read, trying again: {_text(error)}")
        self._problem = _text(error)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# Connections of this machine to a broker: by which address, and of which processes. Linux, and
# the network namespace of this process.

Endpoint = tuple[str, int]
"""Address in the form of `normalised`, and port."""
_ESTABLISHED = "01"


def own_addresses(broker: Iterable[Endpoint]) -> frozenset[str]:
    """The addresses of this machine as the broker sees them, unless a NAT is between."""
    found = set()
    for address, port in broker:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):  # no route: no client of this machine uses it
            probe.connect((address, port))  # sends nothing: it only chooses the route
            found.add(normalised(probe.getsockname()[0]))
    return frozenset(found)


def are_only_clients(broker: Iterable[Endpoint]) -> bool:
    """Returns whether processes that this one has started are connected to the broker, and no other
    process of this machine is, but this one. False too if their connections cannot be seen, because
    they run as another user.
    """
    connected = _connected_to(frozenset(broker))  # before the others: a client opens connections, and seldom closes one
    connected -= _sockets_of(os.getpid())
    started = {inode for pid in _started_by(os.getpid()) for inode in _sockets_of(pid)}
    return bool(connected) and connected <= started


def _connected_to(broker: frozenset[Endpoint]) -> set[int]:
    """Inodes of the sockets with an established connection to the broker."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                _, _, remote, state, *others = line.split()
                if state == _ESTABLISHED and _endpoint(remote) in broker:
                    found.add(int(others[5]))
    return found


def _endpoint(text: str) -> Endpoint:
    """``0100007F:1F90``, in words of the machine's byte order, as 127.0.0.1 and 8080."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return normalised(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))), int(port, 16)


def _sockets_of(pid: int) -> set[int]:
    """Inodes of the process's sockets; empty if it is not to be seen."""
    found = set()
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(each)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _started_by(pid: int) -> set[int]:
    """The children of the process, their children, and so on."""
    parents = dict(_parents())
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _parents() -> Iterator[tuple[int, int]]:
    """Process and its parent."""
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            yield int(each.parent.name), int(each.read_text().rpartition(")")[2].split()[1])
