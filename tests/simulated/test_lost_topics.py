"""What a member does when one of its topics has lost records, was made again or deleted: the table
in docs/logs.md#lost-topics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from equipoise import ErrorPolicy, Processor, Record, TaskContext
from equipoise.kafka.client import TopicPartition
from equipoise.member.tasks.positions import PARTITIONS
from equipoise.replay.trouble import wrong
from equipoise.testing.group import NAME
from tests.simulated.deploys import _ends_of_commits
from tests.simulated.test_positions import GUARANTEES, SOURCE, Deploys, every, one
from tests.support.cluster_faults import delete_topic, lose_tail

POSITIONS = TopicPartition(f"{NAME}-positions", 0)
LOST = "has lost records: source/0 is read on at offset 10, which"


@pytest.fixture(params=GUARANTEES)
def guarantee(request: Any) -> Any:
    return request.param


def write_slowly(group: Deploys, count: int) -> None:
    """Each record is in a transaction of its own."""
    for _ in range(count):
        group.write(1)
        group.advance(1.2)


@pytest.mark.parametrize("processors", [one(), [*one(), *one("b", name="second")]])
def test_member_continues_behind_its_own_commits_that_positions_have_lost(
    guarantee: str, processors: list[Processor], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else knows of them: the group's offsets are gone, too."""
    with Deploys(processors, guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        lose_tail(group._cluster, POSITIONS, 8)
        group.forget_offsets()
        write_slowly(group, 3)
        group.advance(20)
        expected = every("a", 13) + (every("b", 13) if len(processors) > 1 else Counter())
        assert group.sent().keys() == expected.keys()
        if guarantee == "exactly_once":
            assert group.sent() == expected
            assert sum(f"{LOST} this member knows" in each for each in caplog.messages) == len(processors)
        assert group.error is None


@pytest.mark.parametrize("member", ["m1", "m2"])
def test_next_owner_continues_behind_commits_that_positions_have_lost(guarantee: str, member: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has read none of them: the group's offsets were committed in the same transactions."""
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        group.crash("m1")
        lose_tail(group._cluster, POSITIONS, 8)
        group.join(member)
        write_slowly(group, 3)
        group.advance(60)
        assert group.sent().keys() == every("a", 13).keys()
        if guarantee == "exactly_once":
            assert group.sent() == every("a", 13)
            assert sum(f"{LOST} the group's committed offset knows" in each for each in caplog.messages) == 1
        group.crash(member)
        group.join("m1")
        write_slowly(group, 2)
        group.advance(60)
        assert group.sent().keys() == every("a", 15).keys()
        if guarantee == "exactly_once":
            assert group.sent() == every("a", 15)


def test_plain_consumer_with_the_groups_id_moves_no_lost_position(guarantee: str) -> None:
    """As long as anything is left there."""
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        group.crash("m1")
        group.write(5)
        lose_tail(group._cluster, POSITIONS, 8)
        group._cluster.coordinators.offsets[NAME] = {SOURCE: 14}
        group.join("m1")
        group.advance(30)
        assert group.sent().keys() == every("a", 15).keys()


@pytest.mark.parametrize("fault", ["made again", "end lost"])
def test_task_is_back_within_seconds_of_lost_positions(guarantee: str, fault: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        if fault == "end lost":
            lose_tail(group._cluster, POSITIONS, 8)
        else:
            delete_topic(group._cluster, POSITIONS.topic)
            group.advance(0.5)
            group._cluster.create_topic(POSITIONS.topic, PARTITIONS, 1, {"cleanup.policy": "compact"})
        group.write(3)
        group.advance(10)
        assert group.sent().keys() == every("a", 13).keys()


def test_position_that_is_lost_before_its_owner_reads_it_is_written_again(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 5)
        group.crash("m1")
        log = group._log(*POSITIONS)
        before = log.end
        group.join("m1")
        while log.end == before:
            group.advance(0.001)
        lose_tail(group._cluster, POSITIONS, 2)
        group.write(3)
        group.advance(30)
        assert group.sent() == every("a", 8)


def forward(record: Record, context: TaskContext) -> None:
    if record.value.startswith(b"bad"):
        raise ValueError("bad")
    context.send("second", record.value, key=record.key)


def count(record: Record, context: TaskContext) -> None:
    context.state.put(record.key, b"%d" % (int(context.state.get(record.key) or 0) + 1))
    context.send("out", record.value, key=record.key)


class Chain(Deploys):
    """A processor without state before one with state. Each fifth record is a dead letter."""

    def __init__(self, guarantee: str) -> None:
        last = Processor(count, sources="second", state="s1", outputs="out", name="last")
        processors = [Processor(forward, sources="source", outputs=("second", "dead"), name="first"), last]
        super().__init__(processors, guarantee=guarantee, on_error=ErrorPolicy.dead_letter("dead"))
        self._processors = processors
        self._cluster.create_topic("dead", 1, 1, {"cleanup.policy": "delete"})
        self.sent_values: list[bytes] = []

    def write_some(self, records: int) -> None:
        for _ in range(records):
            number = len(self.sent_values)
            self.sent_values.append(b"%s%d" % (b"bad" if number % 5 == 4 else b"good", number))
            self.send(self.sent_values[-1], key=b"k%d" % (number % 2), topic="source", partition=0)
            self.advance(0.7)

    def lose(self, topic: str, fault: str) -> None:
        """All but the deletion."""
        cluster, places = self._cluster, [each.place for each in self._cluster.topics[topic].partitions]
        for place in places:
            log = self._log(*place)
            if fault == "beginning lost":
                cluster.delete_records(place, log.end)
            elif fault == "end lost":  # of the positions in the middle of a transaction
                lose_tail(cluster, place, 3 if topic == POSITIONS.topic else log.end - _ends_of_commits(log)[-3:][0])
        if fault == "made again":
            delete_topic(cluster, topic)
            self.advance(0.5)
            self.create(topic, len(places))

    def troubles(self) -> list[str]:
        """What `equipoise status` says, the worst first."""
        return [text for _, lead in self._worker.groups() for text in wrong(lead.machine.state)]

    def create(self, topic: str, partitions: int = 1) -> None:
        policy = "compact" if topic in ("s1", POSITIONS.topic) else "delete"
        self._cluster.create_topic(topic, partitions, 1, {"cleanup.policy": policy})


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("fault", ["made again", "end lost", "beginning lost", "deleted"])
@pytest.mark.parametrize("topic", ["source", "second", "s1", POSITIONS.topic, "out", "dead"])
def test_topic_of_a_member_that_is_lost_keeps_its_promise(
    guarantee: str, topic: str, fault: str, runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`runs`: the member, while that happens."""
    with Chain(guarantee) as group:
        group.join("m1")
        group.advance(15)
        group.write_some(10)
        group.advance(3)
        old = set(group.sent_values)
        if not runs:
            group.crash("m1")
        if fault == "deleted":
            delete_topic(group._cluster, topic)
            if runs:
                group.write_some(0 if topic == "source" else 5)
                group.advance(60)
            else:
                group.join("m1")
                group.advance(10)
            if topic not in group._cluster.topics:
                says = f"topic {topic} does not exist"
                assert any(says in each for each in (*caplog.messages, str(group.error)))
                if runs:
                    assert says in group.troubles()[0]
                group.create(topic, PARTITIONS if topic == POSITIONS.topic else 1)
            if group._seats["m1"].process is not None:
                group.crash("m1")
        else:
            group.lose(topic, fault)
        if group._seats["m1"].process is None:
            group.join("m1")
        group.advance(15)
        group.write_some(5)
        group.advance(50)

        results = {each: Counter(record.value for record in group.outputs(each)) for each in ("out", "dead")}
        good = [each for each in group.sent_values if each.startswith(b"good")]
        expected = {"out": set(good), "dead": {*group.sent_values} - {*good}}
        for place, found in results.items():
            lost = old if place == topic else set()
            assert found.keys() >= expected[place] - lost
            if guarantee == "exactly_once":  # without the state all of it is counted again
                again = old if topic == "s1" else set()
                assert [each for each, times in found.items() if times > (2 if each in again else 1)] == []
        if guarantee == "exactly_once" or topic == "s1":
            numbers = [int(each.removeprefix(b"good")) for each in good]
            assert group.state("s1") == {b"k%d" % parity: b"%d" % sum(number % 2 == parity for number in numbers) for parity in (0, 1)}
        assert group.error is None
