"""What a witness is told by the process it watches: what that process's end proves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from equipoise.events.facts import MemberEnded
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import group_key, pack_fact


class Proof(Protocol):
    """What the end of a process proves."""

    def message(self, pid: int) -> bytes:
        """One line for `equipoise.witness.child`, which has no other part of equipoise. `pid`: of
        the watched process.
        """
        ...


class Witness(Protocol):
    """Proves the end of this process (docs/protocol.md#m11)."""

    def watch(self, proof: Proof) -> None:
        """From now on, the end of this process proves this."""
        ...

    def look(self) -> None:
        """Starts the witness again if it has ended."""
        ...

    def dismiss(self) -> None:
        """There is nothing left to prove."""
        ...


@attrs.frozen(kw_only=True)
class MemberProof:
    """The end of incarnations of one member. `topic`, `partition`: of the group's facts. `lock`:
    path of the lock that the process holds, with its device and inode; None: it has none.
    `within_s`: after that time the leader knows by itself. `leader`: host and port of the broker
    that leads the partition, and `topic_id`: in hexadecimal; None and "": unknown.
    """

    connection: Connection
    topic: str
    partition: int
    group: str
    member_id: str
    incarnations: Sequence[int]
    lock: tuple[str, Sequence[int]] | None
    within_s: float
    leader: tuple[str, int] | None = None
    topic_id: str = ""

    def facts(self, seen: str) -> list[str]:
        """The records to append, in hexadecimal. `seen`: how the end was seen."""
        return [pack_fact(MemberEnded(member_id=self.member_id, incarnation=each, proof=seen)).hex() for each in self.incarnations]

    def message(self, pid: int) -> bytes:
        facts = self.facts(f"process {pid} has ended")
        append = {"topic": self.topic, "partition": self.partition, "key": group_key(self.group).hex(), "facts": facts}
        who = f"group {self.group}: member {self.member_id}, process {pid}"
        return _line(who, self.connection, self.within_s, lock=self.lock, append=append, prepared=self._prepared(facts))

    def _prepared(self, facts: Sequence[str]) -> dict[str, Any] | None:
        """The same append as bytes; None: it takes Kafka's client."""
        if self.leader is None or not self.topic_id or self.connection.security_protocol != "PLAINTEXT":
            return None
        from equipoise.kafka.prepared_append import prepared_append, request_timeout_ms

        place, values = TopicPartition(self.topic, self.partition), list(map(bytes.fromhex, facts))
        made = prepared_append(self.leader, place, self.topic_id, group_key(self.group), values, timeout_ms=request_timeout_ms(self.within_s))
        return {name: value.hex() if isinstance(value, bytes) else value for name, value in attrs.asdict(made).items()}


@attrs.frozen(kw_only=True)
class ConsumerProof:
    """The end of a member of a consumer group, which is taken out of it. `member_id`: given by the
    group's coordinator.
    """

    connection: Connection
    group: str
    member_id: str
    within_s: float

    def message(self, pid: int) -> bytes:
        who = f"group {self.group}: process {pid}"
        return _line(who, self.connection, self.within_s, leave={"group": self.group, "member_id": self.member_id})


def _line(who: str, connection: Connection, within_s: float, **what: Any) -> bytes:
    fields = {name: getattr(connection, name) for name in attrs.fields_dict(Connection)}
    return json.dumps({"who": who, "connection": fields, "within_s": within_s, **what}).encode() + b"\n"
