"""The worked exchange of docs/protocol.md equals the bytes that a worker and a member write into
Kafka.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgpack

from equipoise.events.codec import kind_of
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, TasksRevoked
from equipoise.events.tasks import TaskId
from equipoise.log.kafka.envelope import group_key, pack_decision, pack_fact, read_fact
from equipoise.statemachine.member import MemberSession, MemberSettings, Reception
from equipoise.statemachine.partition import PartitionLead
from tests.groups import configured, joined, topology
from tests.made import hold

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
GROUP = "orders"


class Exchange:
    """A log of one group and one member; notes every record as JSON."""

    def __init__(self) -> None:
        self.lead = PartitionLead()
        self.lines: list[str] = []
        settings = MemberSettings(member_id="m1", incarnation=1, topology_epoch=1, join_nonce="5f1c", stateful_subtopologies=frozenset({0}))
        self.member = MemberSession(settings)

    def fact(self, fact: Fact, now_ms: int) -> None:
        """Appends a fact; the worker answers, and the member reads the answer."""
        key = b"" if isinstance(fact, LogOpened) else group_key(GROUP)
        value = pack_fact(fact)
        offset = self.lead.position
        self._line(f"fact {offset}", value)
        for decision in self.lead.fold(read_fact(key, value, offset, now_ms), now_ms):
            self._line(f"  decision {decision.number}", pack_decision(decision))
            if self.member.joined:
                assert self.member.receive(decision, now_ms) is Reception.APPLIED

    def member_says(self, now_ms: int) -> None:
        for task in self.member.grants:
            self.member.copy_progress(task, 0, now_ms)
        self.member.fetch_completed(sent_ms=now_ms, reached_end=True, now_ms=now_ms)
        for task in sorted(self.member.closing):
            self.member.task_closed(task, now_ms)
        for fact in self.member.poll(now_ms):
            self.fact(fact, now_ms)
            self.member.heartbeat_acknowledged(sent_ms=now_ms, now_ms=now_ms, report_number=getattr(fact, "number", None))

    def _line(self, label: str, value: bytes) -> None:
        said = msgpack.unpackb(value, strict_map_key=False)
        if said[:1] == [kind_of(GroupConfigured)]:
            said[2][4] = "knobs"  # every setting of the group, in declared order
        self.lines.append(f"{label:<14}{json.dumps(said, separators=(',', ':'))}")


def exchange() -> list[str]:
    played = Exchange()
    played.fact(LogOpened(log_id="5b0e", partitions=1), 0)
    played.fact(configured(initial_delay_ms=0, acceptable_recovery_lag=100), 0)
    played.fact(topology(stateful=2), 0)
    played.member.reader_placed(log_id="5b0e", last_number=0, sent_ms=0, answered_ms=0)
    played.fact(played.member.join(0), 0)
    played.member_says(3_000)
    played.fact(joined("m2", topology_epoch=1, session_timeout_ms=30_000, lease_margin_ms=3_000, readiness="lag"), 3_100)
    played.member_says(6_000)
    assert sorted(map(str, played.member.grants)) == ["0_0", "0_1"]
    return played.lines


def test_worked_exchange_equals_the_written_records(rewrite: bool) -> None:
    hold(PAGE, {"exchange": "```\n" + "\n".join(exchange()) + "\n```"}, rewrite)


def test_task_set_is_written_as_the_page_states() -> None:
    tasks = tuple(TaskId(0, partition) for partition in (0, 1, 2, 7))
    said = msgpack.unpackb(pack_fact(TasksRevoked(member_id="m1", incarnation=1, assignment_epoch=2, tasks=tasks)))
    assert said == [8, 1, ["m1", 1, 2, [[0, [1, 1, 1, 5]]]]]
