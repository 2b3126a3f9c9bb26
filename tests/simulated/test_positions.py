"""Where tasks continue: whatever brokers forget, and whatever shape a task gets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from equipoise import Processor, Record, TaskContext
from equipoise.events.errors import InputError
from equipoise.kafka import core_shell
from equipoise.kafka.client import NO_EPOCH, TopicPartition
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.member.copies.fencing import SOURCE_TOPICS_KEY
from equipoise.member.tasks.positions import PARTITIONS
from equipoise.testing.group import NAME
from equipoise.testing.simulated.kafka.partition_log import Batch
from tests.simulated import deploys
from tests.simulated.deployment import CONFIG
from tests.support.cluster_faults import delete_topic, lose_tail

GUARANTEES = ("at_least_once", "exactly_once")
SOURCE = TopicPartition("source", 0)


def label(name: str) -> Any:
    """A handler that sends what it gets, under its name, and counts in each of its changelogs."""

    def handle(record: Record, context: TaskContext) -> None:
        for state in context.states.values():
            state.put(record.key, b"%d" % (int(state.get(record.key) or 0) + 1))
        context.send("out", b"%s %d" % (name.encode(), record.offset), key=record.key)

    return handle


def one(says: str = "a", **topics: Any) -> list[Processor]:
    return [Processor(label(says), **{"sources": "source", "outputs": "out", **topics})]


class Deploys(deploys.Deploys):
    """The same, of one partition, with what was sent."""

    def sent(self) -> Counter[bytes]:
        return Counter(each.value for each in self.outputs("out"))

    @property
    def error(self) -> BaseException | None:
        return self._seats["m1"].error


def every(name: str, count: int) -> Counter[bytes]:
    return Counter(b"%s %d" % (name.encode(), offset) for offset in range(count))


@pytest.fixture(params=GUARANTEES)
def guarantee(request: Any) -> Any:
    return request.param


@pytest.mark.parametrize("kills", [True, False])
def test_positions_outlive_the_retention_of_committed_offsets(guarantee: str, kills: bool) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.forget_offsets()
        group.deploy(one(), kills=kills)
        assert group.sent() == every("a", 5)


@pytest.mark.parametrize("state", ["s1", ()])
@pytest.mark.parametrize("kills", [True, False])
def test_latest_is_resolved_once(guarantee: str, state: Any, kills: bool) -> None:
    with Deploys(one(state=state), guarantee=guarantee, auto_offset_reset="latest") as group:
        group.write(2)
        group.join("m1")
        group.advance(20)
        assert not group.sent()
        if kills:
            group.crash("m1")
        else:
            group.leave("m1")
        group.forget_offsets()
        group.write(5)
        group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", 7) - every("a", 2)


def test_plain_consumer_with_the_groups_id_moves_no_position(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.crash("m1")
        group.write(5)
        group._cluster.coordinators.offsets[NAME] = {TopicPartition("source", 0): 10}
        group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", 10)


def test_offsets_of_a_former_build_count_once(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.write(5)
        group._cluster.coordinators.offsets[NAME] = {TopicPartition("source", 0): 3}
        group.join("m1")
        group.advance(20)
        assert group.sent() == every("a", 5) - every("a", 3)


def test_second_processor_of_a_source_reads_all_of_it(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        both = [*one(), *one("b", state="s1", name="second")]
        group.deploy(both)
        assert group.sent() == every("a", 5) + every("b", 5)
        group.write(5)
        group.advance(10)
        group.deploy([both[1], both[0]])  # other numbers
        group.write(5)
        group.advance(20)
        assert group.sent() == every("a", 15) + every("b", 15)


def test_first_and_second_changelog_change_no_position(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        for written, state in ((5, ()), (10, "s1"), (15, ("s1", "s2")), (20, "s2")):
            if written > 5:
                group.forget_offsets()
                group.deploy(one(state=state))
            group.write(5)
            group.advance(20)
            assert group.sent() == every("a", written), state
        group.deploy(one(state=("s1", "s2")))
        assert isinstance(group.error, InputError)
        assert "changelog s1 was written up to offset 15 of source, and its other positions are at 20" in str(group.error)


@pytest.mark.parametrize("lost", ["s1", "s2"])
def test_changelog_that_is_made_again_moves_no_position(guarantee: str, lost: str) -> None:
    """s2 was added when ten records were processed: who begins there again processes ten twice."""
    with Deploys(one(state="s1"), guarantee=guarantee) as group:
        group.join("m1")
        group.write(10)
        group.advance(20)
        group.deploy(one(state=("s1", "s2")))
        group.write(10)
        group.advance(20)
        group.crash("m1")
        group.make_again(lost)
        group.join("m1")
        group.write(5)
        group.advance(30)
        assert group.sent() == every("a", 25)


def test_task_that_loses_all_its_changelogs_is_refused(guarantee: str) -> None:
    for other in ((), "s2"):
        with Deploys(one(state="s1"), guarantee=guarantee) as group:
            group.join("m1")
            group.write(5)
            group.advance(20)
            group.deploy(one(state=other))
            assert isinstance(group.error, InputError)
            assert "its source offsets are in changelog s1, which is no state of it any more" in str(group.error)
            group.deploy(one(state=other, name="again"))
            assert group.sent() == every("a", 5) + every("a", 5)


def test_source_that_is_removed_and_back_keeps_its_position(guarantee: str) -> None:
    for state in ((), "s1"):
        with Deploys(one(state=state, sources=("source", "second")), guarantee=guarantee) as group:
            group.join("m1")
            group.write(4)
            group.write(3, "second")
            group.advance(20)
            group.deploy(one(state=state))
            group.write(2)
            group.advance(10)
            group.forget_offsets()
            group.deploy(one(state=state, sources=("second", "source")))
            group.write(2, "second")
            group.advance(10)
            assert group.sent() == every("a", 6) + every("a", 5)


def test_late_position_of_a_former_owner_does_not_count() -> None:
    with Deploys(one()) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        place = group._cluster.partition(TopicPartition(f"{NAME}-positions", 0))
        assert place is not None
        (late, *_) = [each for each in place.log.records if each.batch.marker is None]
        group.crash("m1")
        group.join("m1")
        group.advance(30)
        group._cluster.append(place, Batch(-1, -1, -1, False, [(late.key, late.value, late.headers, 0)], 100))
        group.crash("m1")
        group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", 5)


@pytest.mark.parametrize(("state", "before", "runs"), [("s1", 3, True), ((), 20, True), ("s1", 20, False), ((), 3, False)])
def test_source_that_is_made_again_is_read_from_its_beginning(guarantee: str, state: Any, before: int, runs: bool) -> None:
    with Deploys(one(state=state), guarantee=guarantee) as group:
        group.join("m1")
        group.write(before)
        group.advance(20)
        if not runs:
            group.crash("m1")
        group.make_again("source")
        group.write(10)
        if not runs:
            group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", before) + every("a", 10)
        group.crash("m1")
        group.write(5)
        group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", before) + every("a", 15)


def test_copy_of_a_changelog_that_is_made_again_right_before_a_hand_over_is_not_used(guarantee: str) -> None:
    with Deploys(one(state="s1"), guarantee=guarantee, group_config=CONFIG) as group:
        group.join("m1", "m2")
        group.write(5)
        group.advance(60)
        (owner,) = set(group.running.values())
        group.make_again("s1", 0)
        changelog = group._cluster.topics["s1"].partitions[0]
        group._cluster.append(changelog, Batch(-1, -1, -1, False, [(b"z", b"0", (), 0)] * 50, 100))  # longer than the former one
        group.leave(owner)
        group.write(1)
        group.advance(30)
        assert group.state("s1") == {b"k": b"6", b"z": b"0"}
        assert group.sent() == every("a", 5) + every("a", 6)


def test_topics_that_a_former_owner_overwrites_late_are_written_again(guarantee: str) -> None:
    with Deploys(one(state="s1"), guarantee=guarantee) as group:

        def written() -> list[Any]:
            return [each for each in group._log("s1", 0).records if each.key == SOURCE_TOPICS_KEY]

        group.join("m1")
        for _ in range(2):
            group.write(2)
            group.advance(20)
            group.crash("m1")
            group.join("m1")
        (first,) = written()
        place = group._cluster.partition(TopicPartition("s1", 0))
        assert place is not None
        group._cluster.append(place, Batch(-1, -1, -1, False, [(first.key, first.value, first.headers, 0)], 100))
        group.advance(20)
        group.crash("m1")
        group.join("m1")
        group.write(1)
        group.advance(20)
        _, late, again = written()
        assert again.value == late.value
        assert again.headers != late.headers


@pytest.mark.parametrize("gone_s", [0.05, 5.0, 40.0])
def test_source_that_was_gone_for_any_time_is_read_from_its_beginning(guarantee: str, gone_s: float) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.make_again("source", gone_s)
        group.write(12)
        group.advance(30)
        assert group.sent() == every("a", 5) + every("a", 12)


def test_source_that_is_gone_holds_up_no_other(guarantee: str) -> None:
    with Deploys([*one(), *one("b", sources="second", name="second")], guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.write(5, "second")
        group.advance(20)
        delete_topic(group._cluster, "second")
        group.advance(20)
        group.write(5)
        group.advance(2)
        assert group.sent() == every("a", 10) + every("b", 5)


def test_brokers_without_topic_ids_are_read_on(guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_ids(*_: object) -> None:
        return None

    monkeypatch.setattr(core_shell, "topic_ids", no_ids)
    with Deploys(one(state="s1"), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.crash("m1")
        group.join("m1")
        group.write(5)
        group.advance(20)
        assert group.sent() == every("a", 10)
        assert group.state("s1") == {b"k": b"10"}


def test_source_that_ends_before_a_position_without_leader_epoch_is_said_once(
    guarantee: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WireConsumer, "fetched_epoch", lambda *_: NO_EPOCH)
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.crash("m1")
        lose_tail(group._cluster, SOURCE, 2)
        group.join("m1")
        group.advance(30)
        said = [each for each in caplog.messages if "source/0 ends at offset 3, and the task is at offset 5" in each]
        assert len(said) == 1
        group.write(3)
        group.advance(30)
        assert group.sent() == every("a", 6)


@pytest.mark.parametrize("state", ["s1", ()])
@pytest.mark.parametrize("regrown", [0, 1, 2, 3])
def test_new_records_of_a_source_that_has_lost_some_are_processed(guarantee: str, state: Any, regrown: int, caplog: pytest.LogCaptureFixture) -> None:
    """`regrown`: before the member hears of anything."""
    with Deploys(one(state=state), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        source = group._cluster.topics["source"].partitions[0]
        fetches, source.fetches = source.fetches, []
        lose_tail(group._cluster, SOURCE, 2)
        for _ in range(regrown):
            group._cluster.append(source, Batch(-1, -1, -1, False, [(b"k", b"v", (), 0)], 10))
        source.fetches = fetches
        group.advance(30)
        group.write(4)
        group.advance(30)
        assert group.sent() == every("a", 7 + regrown) + Counter({b"a 3": 1, b"a 4": 1})
        assert sum("lost records 3 to 4 of source/0" in each for each in caplog.messages) == 1
        assert group.error is None


@pytest.mark.parametrize("state", ["s1", ("s1", "s2"), ()])
@pytest.mark.parametrize(("regrown", "more"), [(0, 0), (1, 4), (2, 0), (3, 0)])
def test_member_that_was_away_processes_new_records_of_a_source_that_has_lost_some(
    guarantee: str, state: Any, regrown: int, more: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`more`: records that come when it is back; none: nothing but the epoch says so."""
    with Deploys(one(state=state), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        group.crash("m1")
        lose_tail(group._cluster, SOURCE, 2)
        group.write(regrown)
        group.join("m1")
        group.advance(30)
        group.write(more)
        group.advance(30)
        assert group.sent() == every("a", max(5, 3 + regrown + more)) + Counter(b"a %d" % each for each in range(3, min(5, 3 + regrown + more)))
        assert sum("lost records 3 to 4 of source/0" in each for each in caplog.messages) == 1
        group.crash("m1")
        group.join("m1")
        group.write(2)
        group.advance(30)
        assert sum(group.sent().values()) == 5 + regrown + more + 2
        stored = regrown + more > 0  # where it reads on, with the first commit
        assert sum("have lost records" in each for each in caplog.messages) == (1 if stored else 2)
        assert group.error is None


def test_running_member_learns_of_lost_records_although_no_others_come(guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.write(5)
        group.advance(20)
        lose_tail(group._cluster, SOURCE, 2)
        group.write(2)
        group.advance(400)
        assert group.sent() == every("a", 5) + Counter({b"a 3": 1, b"a 4": 1})
        assert sum("lost records 3 to 4 of source/0" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("can_ask", [True, False])
@pytest.mark.parametrize("state", ["s1", ()])
def test_elections_that_lose_nothing_move_no_position(guarantee: str, state: Any, can_ask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`can_ask`: no: brokers do not know requests for leader epochs, as some that are not Apache
    Kafka's.
    """
    if not can_ask:

        async def unknown(*_: object) -> None:
            return None

        monkeypatch.setattr(WireConsumer, "epoch_ends", unknown)
    with Deploys(one(state=state), guarantee=guarantee) as group:
        group.join("m1")
        for number in range(6):
            group.write(3)
            lose_tail(group._cluster, SOURCE, 0)
            group.advance(3)
            if number == 3:
                group.crash("m1")
                group.join("m1")
        group.advance(30)
        assert group.sent() == every("a", 18)


@pytest.mark.parametrize("fault", ["made again", "end lost", "beginning lost", "deleted"])
def test_positions_topic_that_loses_records_stops_no_task(guarantee: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """m1 has read the topic long before, and takes the task again."""
    places = [TopicPartition(f"{NAME}-positions", partition) for partition in range(2)]
    topic = places[0].topic
    with Deploys(one(), guarantee=guarantee, partitions=2) as group:

        def write() -> None:
            for partition in range(2):
                group.send(b"v", key=b"k", topic="source", partition=partition)
            group.advance(1.2)

        group.join("m1")
        group.advance(30)
        group.join("m2")
        group.advance(60)
        for _ in range(30):
            write()
        group.leave("m2")
        group.advance(60)
        write()
        group.advance(10)
        cluster = group._cluster
        if fault == "end lost":
            for place in places:
                lose_tail(cluster, place, 20)
        elif fault == "beginning lost":
            for place in places:
                cluster.delete_records(place, group._log(*place).end)
        else:
            delete_topic(cluster, topic)
            group.advance(0.5)
            if fault == "made again":
                cluster.create_topic(topic, PARTITIONS, 1, {"cleanup.policy": "compact"})
        group.advance(5)
        for _ in range(2):
            write()
        group.join("m2")
        group.advance(60)
        for _ in range(3):
            write()
        group.leave("m2")
        group.advance(60)
        for _ in range(5):
            write()
        group.advance(20)
        sent = group.sent()
        assert sent.keys() == every("a", 41).keys()
        assert min(sent.values()) >= 2, "both partitions"
        if guarantee == "exactly_once":
            assert sent == every("a", 41) + every("a", 41)
