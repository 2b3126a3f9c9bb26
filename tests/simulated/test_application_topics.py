"""A member finds its tasks by its topics, makes those that are missing, and refuses wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

import pytest

from equipoise import ErrorPolicy, Member, Processor, Record, TaskContext
from equipoise.events.errors import InputError
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.kafka.client import Admin
from equipoise.kafka.started_clients import NotNowError
from equipoise.member import topics as application_topics
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop

COMPACTED = {"cleanup.policy": "compact"}


def simulate(test: Callable[[Cluster, SimulatedConnection], Coroutine[Any, Any, None]], *, brokers: int = 3) -> None:
    scheduler = Scheduler(1)
    cluster = Cluster(scheduler, Random(1), brokers=brokers)
    task = VirtualLoop(scheduler, "test").create_task(test(cluster, SimulatedConnection(bootstrap="b:9", made=SimulatedClients(cluster, "member"))))
    try:
        scheduler.run(600 * S_US, task.done)
        assert task.done(), "it hangs"
        task.result()
    finally:
        scheduler.dispose()


def handle(record: Record, context: TaskContext) -> None: ...


def test_member_declares_a_task_for_each_partition_of_its_sources() -> None:
    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        for topic, partitions in (("orders", 4), ("customers", 4), ("clicks", 2)):
            cluster.create_topic(topic, partitions)
        cluster.create_topic("orders-state", 5, 1, COMPACTED)
        processors = [Processor(handle, sources=["orders", "customers"], state="orders-state"), Processor(handle, sources="clicks")]
        member = Member("g", processors=processors, member_id="m1", connection=connection, topology_epoch=3)
        assert await member._find_topology() == TopologyDeclared(
            epoch=3,
            subtopologies=(
                Subtopology(subtopology=0, partitions=4, stateful=True, source_topics=("orders", "customers"), changelog_topics=("orders-state",)),
                Subtopology(subtopology=1, partitions=2, stateful=False, source_topics=("clicks",)),
            ),
        )
        prepares = Member("g", handle, sources="clicks", member_id="m1", connection=connection, prepare=print)
        assert (await prepares._find_topology()).subtopologies[0].stateful

    simulate(test)


def test_member_makes_missing_topics_like_its_sources() -> None:
    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        cluster.create_topic("orders", 4)
        given: Any = {"sources": "orders", "state": "state", "outputs": "out", "member_id": "m1", "connection": connection}
        member = Member("g", handle, create_topics=True, on_error=ErrorPolicy.dead_letter("dead"), **given)
        assert (await member._find_topology()).subtopologies[0].partitions == 4
        made = {name: (len(topic.partitions), topic.configs["cleanup.policy"]) for name, topic in cluster.topics.items()}
        assert made == {"orders": (4, "delete"), "state": (4, "compact"), "out": (4, "delete"), "dead": (6, "delete"), "g-positions": (6, "compact")}
        assert cluster.topics["state"].configs["min.insync.replicas"] == "2"
        other = Member("g", handle, sources="new", member_id="m1", connection=connection, create_topics=True, partitions=9)
        assert (await other._find_topology()).subtopologies[0].partitions == 9

    simulate(test)


def between(*pairs: str) -> list[Processor]:
    """Processors, from ``sources > outputs`` or ``sources > outputs / state``; topics by commas."""
    made = []
    for number, pair in enumerate(pairs):
        sources, _, rest = pair.partition(" > ")
        outputs, _, state = rest.partition(" / ")
        named = str(number) if number else ""
        made.append(Processor(handle, sources=sources.split(","), outputs=outputs.split(",") if outputs else (), state=state or (), name=named))
    return made


@pytest.mark.parametrize(
    ("processors", "there", "tasks"),
    [
        (between("in > mid", "mid > out / state"), {"in": 6}, [6, 6]),
        (between("mid > out / state", "in > mid"), {"in": 6}, [6, 6]),
        (between("in > a", "a > b", "b > out / state"), {"in": 3}, [3, 3, 3]),
        (between("in > a", "a > b", "b > out / state"), {"in": 3, "b": 5}, [3, 3, 5]),
        (between("in > mid", "mid > out / state"), {}, [2, 2]),
        (between("in > mid", "mid,table > out / state"), {"in": 6, "table": 4}, [6, 4]),
        (between("in > mid", "mid,table > out / state"), {"in": 6}, [6, 6]),
        (between("x > mid", "y > mid", "mid > out / state"), {"x": 3, "y": 5}, [3, 5, 5]),
        (between("in,back > mid", "mid > back / state"), {"in": 4}, [4, 4]),
        (between("a > b", "b > a / state"), {}, [2, 2]),
        (between("a,b > out", "b,c > out / state"), {"c": 7}, [7, 7]),
        (between("in > in / state"), {}, [2]),
    ],
)
def test_topics_between_processors_are_made_along_the_chain(
    processors: list[Processor], there: dict[str, int], tasks: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        for topic, partitions in there.items():
            cluster.create_topic(topic, partitions)
        member = Member("g", processors=processors, member_id="m1", connection=connection, create_topics=True, partitions=2)
        assert [part.partitions for part in (await member._find_topology()).subtopologies] == tasks
        sources, outputs = ({topic for each in processors for topic in getattr(each, name)} for name in ("sources", "outputs"))
        for topic in sources & outputs - there.keys():
            assert cluster.topics[topic].configs["retention.ms"] == "-1", "brokers would delete records of old events unread"
        aging = ", ".join(sorted(outputs - sources - there.keys()))
        assert [each.split(" with ")[0] for each in caplog.messages if "retention" in each] == ([f"made {aging}"] if aging else [])

    simulate(test)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sources": "nothing"}, "topic nothing does not exist; create it, or give Member create_topics=True"),
        ({"sources": "orders", "outputs": "nothing"}, "topic nothing does not exist"),
        ({"sources": "orders", "on_error": ErrorPolicy.dead_letter("nothing")}, "topic nothing does not exist"),
        ({"sources": ["orders", "few"]}, "sources: orders 4 and few 2 partitions; a task reads the same partition of each"),
        ({"sources": "orders", "state": "few"}, "topic few has 2 partitions, and sub-topology 0 has 4 tasks; give it as many partitions"),
        (
            {"sources": "orders", "state": "deleted"},
            (
                "topic deleted has cleanup.policy=delete, and state in it would be lost after its retention: kafka-configs.sh --bootstrap-server "
                "b:9 --alter --entity-type topics --entity-name deleted --add-config cleanup.policy=compact"
            ),
        ),
    ],
)
def test_wrong_topics_are_refused_with_the_fix(options: dict[str, Any], says: str) -> None:
    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        for topic, partitions in (("orders", 4), ("few", 2), ("deleted", 4)):
            cluster.create_topic(topic, partitions)
        with pytest.raises(InputError) as raised:
            await Member("g", handle, member_id="m1", connection=connection, **options)._find_topology()
        assert str(raised.value).startswith(says)

    simulate(test)


def test_topics_that_were_made_and_are_not_known_yet_are_no_error_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that are busy tell of new topics late: the start is tried again."""
    usual = application_topics.partition_counts
    late: set[str] = set()

    async def counts(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
        return {topic: 0 if topic in late else count for topic, count in (await usual(admin, topics)).items()}

    async def test(cluster: Cluster, connection: SimulatedConnection) -> None:
        member = Member("g", handle, sources="orders", member_id="m1", connection=connection, create_topics=True)
        for topic in ("orders", "g-positions"):
            late.add(topic)
            with pytest.raises(NotNowError, match=f"topic {topic} was made and is not known to b:9 yet"):
                await member._find_topology()
            late.clear()
        await member._find_topology()

    monkeypatch.setattr(application_topics, "partition_counts", counts)
    simulate(test)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give it a handler with its sources, or processors"),
        ({"handler": handle, "sources": "in", "processors": [Processor(handle, sources="in")]}, "a handler with its sources, or processors"),
        ({"handler": handle}, "Processor.sources: name the topics it reads"),
        ({"handler": handle, "sources": "in", "no_such": 1}, "no such option 'no_such'; there are: adopts, advertised"),
        ({"handler": handle, "sources": "in", "guarante": "exactly_once"}, "no such option 'guarante'; did you mean 'guarantee'?"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Member("g", **arguments)


def test_member_id_is_by_default_of_the_host_and_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host-7")
    monkeypatch.setenv("EQUIPOISE_BOOTSTRAP", "elsewhere:1")
    member = Member("g", handle, sources="in", instance="2")
    assert (member.member_id, Member("g", handle, sources="in").member_id) == ("host-7-2", "host-7")
    assert member._connection.bootstrap == "elsewhere:1"
