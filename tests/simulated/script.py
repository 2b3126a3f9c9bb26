"""A random sequence of operations on Kafka, and what a client sees of it. It runs on the simulated
Kafka and on a real one; the answers must be the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any, Protocol

from aiokafka.errors import KafkaError

from equipoise.kafka.client import Clients, Consumer, NewTopic, Producer, TopicPartition, acknowledged

LIMIT_BYTES = 2_000
SETTLE_S = 0.05
MOST_S = 30.0
TIMEOUT_MS = 20_000


class World(Protocol):
    """A cluster, and what its operator does. Each method returns when all brokers know."""

    clients: Clients

    async def create(self, topic: NewTopic) -> None: ...
    async def delete(self, topic: str) -> None: ...
    async def delete_records(self, place: TopicPartition, before: int) -> None: ...


class Script:
    """Plays one seed. `prefix`: of all names."""

    def __init__(self, world: World, seed: int, prefix: str) -> None:
        self._world = world
        self._random = Random(seed)
        self._prefix = prefix
        self._topics = {
            f"{prefix}.plain": {"max.message.bytes": str(LIMIT_BYTES)},
            f"{prefix}.dated": {"message.timestamp.type": "LogAppendTime"},
        }
        self._places = [TopicPartition(topic, index) for topic in self._topics for index in range(2)]
        self._writers: dict[str, Producer] = {}
        self._open: dict[str, Producer] = {}
        """Transactional id -> producer with an open transaction."""
        self._fenced: list[tuple[str, Producer]] = []
        self._ids: tuple[str, ...] | None = None
        self.seen: list[str] = []
        """One line for each operation with its answer."""

    async def play(self, steps: int) -> list[str]:
        for topic, configs in self._topics.items():
            await self._world.create(_new_topic(topic, configs))
        clients = self._world.clients
        self._every, self._committed = (
            clients.consumer(group=f"{self._prefix}.group", fetch_max_wait_ms=50),
            clients.consumer(read_committed=True, fetch_max_wait_ms=50),
        )
        self._keeper, self._admin = clients.consumer(fetch_max_wait_ms=50), clients.admin()
        readers = [self._every, self._committed, self._keeper, self._admin]
        for client in readers:
            await client.start()
        for each in (self._every, self._committed, self._keeper):
            each.assign(self._places)
            each.pause(*self._places)
        for place in self._places:
            self._keeper.seek(place, 0)
        try:
            operations = [
                (self._send, 8),
                (self._send_many, 3),
                (self._send_batches, 3),
                (self._transact, 6),
                (self._end, 5),
                (self._fence, 3),
                (self._write_fenced, 3),
                (self._ends, 3),
                (self._read, 6),
                (self._keep_reading, 4),
                (self._assign_others, 2),
                (self._commit, 2),
                (self._delete_records, 1),
                (self._again, 1),
                (self._describe, 1),
            ]
            for _ in range(steps):
                (operation,) = self._random.choices([each for each, _ in operations], [weight for _, weight in operations])
                await operation()
            for place in self._places:
                await self._read_all(place)
        finally:
            for client in [*readers, *self._writers.values(), *self._open.values(), *(each for _, each in self._fenced)]:
                await client.stop(within_s=1.0)
        return self.seen

    async def _note(self, what: str, answer: Awaitable[Any]) -> Any:
        """Notes the answer, or the error's class; None: there was an error."""
        result: Any = None
        try:
            async with asyncio.timeout(MOST_S):
                result = await answer
            text = repr(result)
        except TimeoutError:
            text = "no answer"
        except (KafkaError, AssertionError) as error:
            text = error.__class__.__name__
        self.seen.append(f"{what}: {text}")
        return result

    def _place(self) -> TopicPartition:
        return self._random.choice(self._places)

    def _value(self) -> bytes:
        size = self._random.choice([0, 1, 10, 100, 700, LIMIT_BYTES + 100, 2**20]) if self._random.random() < 0.3 else 5
        return b"%d " % len(self.seen) + b"x" * size

    def _key(self) -> bytes | None:
        return self._random.choice([None, b"", b"a", b"b"])

    # Producers without transactions

    async def _writer(self) -> Producer:
        name = self._random.choice(["p", "q"])
        if name not in self._writers:
            self._writers[name] = self._world.clients.producer(request_timeout_ms=TIMEOUT_MS)
            await self._writers[name].start()
        return self._writers[name]

    async def _send(self) -> None:
        writer, place, value = await self._writer(), self._place(), self._value()
        headers = self._random.choice([None, [("h", b"1")]])
        sent = await self._note(f"send {len(value)} bytes to {place[1]}", self._offset(writer, place, self._key(), value, headers))
        if sent is None and self._random.random() < 0.4:  # an idempotent producer that has lost a batch sends no more to that partition
            await writer.stop(within_s=1.0)
            self._writers = {name: each for name, each in self._writers.items() if each is not writer}

    async def _offset(self, writer: Producer, place: TopicPartition, key: bytes | None, value: bytes, headers: Any = None) -> int:
        return (await writer.send_and_wait(place[0], value, key=key, partition=place[1], headers=headers)).offset

    async def _send_many(self) -> None:
        """The records of one turn of the loop, in batches that the client chooses."""
        writer = await self._writer()
        topic = self._places[-1][0]  # it has no limit that the batches' sizes could exceed
        places = [TopicPartition(topic, self._random.randrange(2)) for _ in range(self._random.randrange(1, 60))]

        async def send() -> list[Any]:
            futures = [await writer.send(place[0], self._value()[:500], partition=place[1]) for place in places]
            answers = await asyncio.gather(*futures, return_exceptions=True)
            return [each.__class__.__name__ if isinstance(each, BaseException) else each.offset for each in answers]

        await self._note("send many", send())

    async def _send_batches(self) -> None:
        writer, place = await self._writer(), self._place()
        values = [self._value()]
        if place[0] == self._places[-1][0]:  # it has no limit that the batches' sizes could exceed
            values += [self._value() for _ in range(self._random.randrange(60))]
        await self._note("send batches", self._span(writer, place, values))

    async def _span(self, writer: Producer, place: TopicPartition, values: Sequence[bytes]) -> list[tuple[int, int]]:
        """First and last offset of each stretch of records that follow each other. The client
        chooses how many batches there are.
        """
        await writer.partitions_for(place[0])
        batches = writer.send_batches(place, [(None, value, [], None) for value in values])
        await acknowledged(batches)
        spans: list[tuple[int, int]] = []
        for batch in batches:
            first = batch.appended.result().offset
            if spans and spans[-1][1] == first - 1:
                first = spans.pop()[0]
            spans.append((first, batch.appended.result().offset + batch.records - 1))
        return spans

    # Transactions

    async def _transact(self) -> None:
        transactional_id = self._random.choice(["s", "t"])
        producer = self._open.get(transactional_id) or await self._begun(transactional_id)
        if self._random.random() < 0.3:
            offsets = {self._place(): self._random.randrange(50)}
            sending = self._in_time(producer.send_offsets_to_transaction(offsets, f"{self._prefix}.group"))
            await self._note(f"send offsets in {transactional_id}", sending)
        else:
            place, value = self._place(), b"%d" % len(self.seen)
            by_batch = self._random.random() < 0.5
            sending = self._span(producer, place, [value, value]) if by_batch else self._offset(producer, place, None, value)
            await self._note(f"send in {transactional_id}", sending)

    async def _in_time(self, answer: Awaitable[Any]) -> Any:
        return await answer

    async def _begun(self, transactional_id: str) -> Producer:
        producer = self._world.clients.producer(transactional_id=f"{self._prefix}.{transactional_id}", request_timeout_ms=TIMEOUT_MS)
        await self._note(f"start {transactional_id}", producer.start())
        await self._note(f"begin {transactional_id}", producer.begin_transaction())
        self._open[transactional_id] = producer
        return producer

    async def _end(self) -> None:
        if not self._open:
            return
        transactional_id = self._random.choice(sorted(self._open))
        producer = self._open.pop(transactional_id)
        if self._random.random() < 0.3:
            await self._note(f"abort {transactional_id}", producer.abort_transaction())  # type: ignore[attr-defined]  # not of the interface
        else:
            await self._note(f"commit {transactional_id}", producer.commit_transaction())
        await self._settled()
        if self._random.random() < 0.5:
            await self._note(f"begin {transactional_id} again", producer.begin_transaction())
            self._open[transactional_id] = producer
        else:
            await producer.stop(within_s=1.0)

    async def _fence(self) -> None:
        """Another producer with the transactional id of an open transaction."""
        if self._open:
            transactional_id = self._random.choice(sorted(self._open))
            self._fenced.append((transactional_id, self._open.pop(transactional_id)))
            await self._begun(transactional_id)
            await self._settled()

    async def _write_fenced(self) -> None:
        if not self._fenced:
            return
        transactional_id, producer = self._fenced.pop(self._random.randrange(len(self._fenced)))
        if self._random.random() < 0.5:
            place = self._place()
            await self._note(f"fenced send in {transactional_id}", self._offset(producer, place, None, b"%d" % len(self.seen)))
        await self._note(f"fenced commit {transactional_id}", producer.commit_transaction())
        await producer.abandon()

    async def _settled(self) -> None:
        """Returns when the markers of ended transactions are written."""
        last, same = None, 0
        while same < 3:
            await asyncio.sleep(SETTLE_S)
            ends = await self._committed.end_offsets(self._places), await self._every.end_offsets(self._places)
            last, same = ends, same + 1 if ends == last else 0

    # Reading

    def _reader(self) -> tuple[str, Consumer]:
        return self._random.choice([("committed", self._committed), ("every", self._every)])

    async def _ends(self) -> None:
        name, reader = self._reader()
        for how in (reader.beginning_offsets, reader.end_offsets):
            await self._note(f"{how.__name__} {name}", self._sorted(how(self._places)))

    async def _sorted(self, answer: Awaitable[dict[TopicPartition, Any]]) -> list[Any]:
        found = await answer
        return [found.get(place) for place in self._places]

    async def _read(self) -> None:
        """From some offset to the end, or to the first error."""
        name, reader = self._reader()
        place = self._place()
        first, end = (await reader.beginning_offsets([place]))[place], (await reader.end_offsets([place]))[place]
        start = max(0, self._random.randrange(first - 3, end + 4))
        await self._note(f"read {name} {place[1]} from {start}", self._records(reader, place, start, end))

    async def _read_all(self, place: TopicPartition) -> None:
        for name, reader in (("committed", self._committed), ("every", self._every)):
            first, end = (await reader.beginning_offsets([place]))[place], (await reader.end_offsets([place]))[place]
            await self._note(f"read all {name} {place[1]}", self._records(reader, place, first, end))

    async def _records(self, reader: Consumer, place: TopicPartition, start: int, end: int) -> list[Any]:
        most = self._random.choice([None, 1, 3])
        reader.seek(place, start)
        reader.resume(place)
        found: list[Any] = []
        try:
            if start > end:
                await reader.getmany(place, timeout_ms=1_000)
            while await reader.position(place) < end:
                batch = (await reader.getmany(place, timeout_ms=1_000, max_records=most)).get(place, ())
                found += [(each.offset, each.key, (each.value or b"")[:20], tuple(each.headers), each.timestamp_type) for each in batch]
        finally:
            reader.pause(place)
        if start < end:  # else there need not have been a fetch
            found += [reader.highwater(place), reader.last_stable_offset(place)]
        return [*found, await reader.position(place)]

    async def _keep_reading(self) -> None:
        """Goes on where it was, whatever has happened to the topic."""
        place = self._place()
        end = (await self._every.end_offsets([place]))[place]

        async def read() -> list[Any]:
            offsets: list[int] = []
            self._keeper.resume(place)
            try:
                while (position := await self._keeper.position(place)) < end or position > end:
                    batch = await self._keeper.getmany(place, timeout_ms=1_000)
                    offsets += [each.offset for each in batch.get(place, ())]
            except KafkaError:
                self._keeper.seek(place, 0)
                raise
            finally:
                self._keeper.pause(place)
            return offsets

        await self._note(f"keep reading {place[1]}", read())

    async def _assign_others(self) -> None:
        """Those that stay keep their positions."""
        gone = self._place()
        self._keeper.assign([place for place in self._places if place != gone])
        self._keeper.assign(self._places)
        self._keeper.pause(gone)
        self._keeper.seek(gone, 0)
        await self._note(f"assigned without {gone[1]}", asyncio.gather(*map(self._keeper.position, self._places)))

    # Groups and topics

    async def _commit(self) -> None:
        place = self._place()
        if self._random.random() < 0.5:
            offsets = {place: self._random.randrange(50)}
            if self._random.random() < 0.5:
                await self._note("commit offset", self._every.commit(offsets))
            else:
                await self._note("commit offset with a producer", (await self._writer()).commit_offsets(offsets, f"{self._prefix}.group"))
        await self._note("committed", self._every.committed(place))
        await self._note("all committed", self._sorted(self._admin.committed_offsets(f"{self._prefix}.group", self._places)))

    async def _delete_records(self) -> None:
        place = self._place()
        end = (await self._every.end_offsets([place]))[place]
        before = self._random.randrange(end + 1)
        await self._note(f"delete before {before}", self._world.delete_records(place, before))

    async def _again(self) -> None:
        """A topic is deleted and created again, while no transaction is open."""
        while self._open:
            await self._end()
            for transactional_id, producer in list(self._open.items()):
                await self._note(f"end {transactional_id}", producer.commit_transaction())
                await producer.stop(within_s=1.0)
                del self._open[transactional_id]
        topic = self._random.choice(sorted(self._topics))
        await self._world.delete(topic)
        writer = await self._writer() if self._random.random() < 0.5 else None
        late = None if writer is None else asyncio.ensure_future(self._offset(writer, TopicPartition(topic, 1), None, b"late"))
        await asyncio.sleep(0.3)
        await self._note("ids", self._same_ids())
        await self._world.create(_new_topic(topic, self._topics[topic]))
        if late is not None:
            await self._note("late send", late)
        await self._note("ids", self._same_ids())

    async def _same_ids(self) -> list[bool] | None:
        """Which topics have the id that they had before; None: not asked before."""
        ids = await self._every.topic_ids(list(self._topics), self._places[0])
        before, self._ids = self._ids, ids
        assert ids is not None
        return None if before is None else [one == other for one, other in zip(ids, before, strict=True)]

    async def _describe(self) -> None:
        async def topics(names: Sequence[str]) -> list[Any]:
            found = sorted(await self._admin.describe_topics(names), key=lambda each: str(each["topic"]))
            return [(each["error_code"], len(each["partitions"])) for each in found]

        async def configs() -> list[dict[str, str]]:
            found = await self._admin.topic_configs(list(self._topics))
            keys = ("cleanup.policy", "max.message.bytes", "message.timestamp.type", "min.insync.replicas", "unclean.leader.election.enable")
            return [{key: found[topic][key] for key in keys} for topic in self._topics]

        await self._note("topics", topics([*self._topics, f"{self._prefix}.none"]))
        await self._note("configs", configs())
        await self._note("partitions", self._writer_partitions())

    async def _writer_partitions(self) -> list[int]:
        return sorted(await (await self._writer()).partitions_for(self._places[0][0]))


def _new_topic(name: str, configs: dict[str, str]) -> NewTopic:
    return NewTopic(name=name, num_partitions=2, replication_factor=1, topic_configs=configs)
