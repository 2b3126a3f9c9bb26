"""Reads the sources of all tasks of a member with one consumer, so that connections and fetches do
not grow with tasks.

The consumer fetches ahead for each partition by itself, and a task takes what is there when it
wants more. So a slow task holds up no other, and its records are fetched no faster than it takes
them. A task that is busy, for example with a commit, gets its next few records set aside: the
consumer would fetch nothing for the others while it has records that nobody takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from equipoise.kafka.client import NO_EPOCH, ConsumedRecord, Consumer, TopicPartition, call_off
from equipoise.member.copies.changelog_ends import ask_ends
from equipoise.member.tasks.held_sources import HeldSources, ReadTo
from equipoise.member.tasks.partitioner_check import PartitionerCheck
from equipoise.member.tasks.source_order import Run, SourceOrder

FETCH_WAIT_MS = 500
"""How long a broker holds a fetch that finds nothing. A task that is placed meanwhile waits for
that.
"""
PACE_S = 0.002
"""Shortest time between two looks at what was fetched: records that come one by one are fetched and
committed together.
"""
FEW_PARTITIONS = 4
"""After a look that found something in fewer, the next one comes after twice that time: a request
for one record costs as much as one for many.
"""
SET_ASIDE = 100
"""Most records to set aside for a task."""
OPENING_FETCH_WAIT_MS = 100
"""The same while a task is warmed up or opens, and so will be placed soon."""
ENDS_EVERY_S = 5.0
"""How often the leaders are asked for the ends of the sources: a parked task fetches nothing, and a
slow one seldom.
"""
DOUBT_S = 1.0
"""For so long no record of a topic is taken after new metadata, while its id is not known. A broker
that does not answer holds up nothing longer.
"""
ASK_AGAIN_S = 0.2
ASK_S = 5.0
GONE_S = 5.0
"""How long a source does not exist before that is a trouble: a broker that starts knows none."""
_Aside = dict[TopicPartition, Sequence[ConsumedRecord]]


class TopicReplacedError(Exception):
    """A source or changelog was deleted and made again."""


class RecordsLostError(Exception):
    """An unclean election has lost records of a source that were taken (KIP-320)."""


class SourceReader:
    """The consumer, shared. Belongs to the application's loop."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._tasks: dict[TopicPartition, TaskSources] = {}
        self._held = HeldSources()
        self._partitioners: dict[tuple[str, ...], PartitionerCheck] = {}
        """Sources of a processor -> what is known of who writes them."""
        self._starting: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """Why it reads nothing any more; None: it does."""
        self._keeping_ends: asyncio.Task[None] | None = None
        self._checks: dict[str, asyncio.Task[None]] = {}
        """Topic -> what asks whether it is still the one that tasks were placed in."""
        self._unchecked: dict[str, float] = {}
        """Topic about which metadata was heard, or that is gone -> until when no record of it is
        taken, unless its id is known before.
        """
        self._gone: dict[str, None] = {}
        """Topics that do not exist, for so long that it is said."""
        self._metadata_updates = 0
        self._asking: dict[str, asyncio.Future[tuple[str, ...] | None]] = {}
        """Topic -> request for its id that is under way."""
        self._unproven: set[TopicPartition] = set()
        """Partitions that are to be asked whether they have lost records."""
        self._proving: asyncio.Task[None] | None = None
        self.counts: Mapping[str, int] = {}
        """Topic -> number of its partitions, by the last metadata. Replaced, never changed."""
        self.ends: Mapping[TopicPartition, int] = {}
        """Partition -> end, by its leader's last answer. Replaced, never changed."""

    @property
    def is_empty(self) -> bool:
        """Returns whether no task reads."""
        return not self._tasks

    @property
    def troubles(self) -> list[str]:
        """Returns what is wrong with the sources from outside. Any thread may call it."""
        gone = [f"source topic {topic} does not exist: create it, and what is in it is read" for topic in self._gone.copy()]
        return [*gone, *self._held.troubles, *(each.trouble for each in self._partitioners.copy().values() if each.trouble)]

    @property
    def partitions(self) -> int:
        """Number of partitions that tasks read, at least 1."""
        return max(1, len(self._tasks))

    def is_free(self, partitions: Sequence[TopicPartition]) -> bool:
        """Returns whether no task reads any of `partitions`: two tasks may have the same source."""
        return self._tasks.keys().isdisjoint(partitions)

    def add(self, partitions: Sequence[TopicPartition]) -> TaskSources:
        """The sources of one more task. They are not read before they are placed."""
        topics = tuple(sorted({place.topic for place in partitions}))
        check = self._partitioners.setdefault(topics, PartitionerCheck(topics)) if len(topics) > 1 else None
        sources = TaskSources(self, partitions, check)
        self._tasks.update(dict.fromkeys(partitions, sources))
        if self._waking is not None:
            self._assign(partitions)
        return sources

    def _assign(self, new: Iterable[TopicPartition]) -> None:
        self.consumer.assign(list(self._tasks))
        for tp in new:
            self.consumer.pause(tp)
            self.consumer.seek(tp, 0)
        self.hold_fetches()

    def hold_fetches(self) -> None:
        """Shorter while a task has not been placed."""
        self.consumer.hold_fetches(FETCH_WAIT_MS if all(each.is_placed for each in self._tasks.values()) else OPENING_FETCH_WAIT_MS)

    def remove(self, sources: TaskSources) -> None:
        """The task has closed."""
        sources.stop_proving()
        for tp in sources.partitions:
            self._tasks.pop(tp, None)
        if self._waking is not None:
            if self._tasks:
                self._assign(())
            else:
                self.consumer.pause(*sources.partitions)  # a consumer has at least one partition

    async def start(self) -> None:
        """Returns when it is connected. Raises KafkaError."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        try:
            await self.consumer.start()
            for tp in list(self._tasks)[:1]:
                await self.consumer.committed(tp)  # finds the group's coordinator, and connects to it
        except Exception as error:
            self.failure = error
            raise
        if self._tasks:
            self._assign(self._tasks)
        self.consumer.watch_metadata(self._heard_metadata)
        self._waking = asyncio.ensure_future(self._wake_tasks())
        self._keeping_ends = asyncio.ensure_future(self._keep_ends())

    async def _wake_tasks(self) -> None:
        try:
            loop, next_s = asyncio.get_running_loop(), 0.0
            while True:
                await self.consumer.fetched()
                await asyncio.sleep(next_s - loop.time())
                ready = self.consumer.ready()
                next_s = loop.time() + (PACE_S if len(ready) >= FEW_PARTITIONS else 2 * PACE_S)
                for tp in list(ready):
                    if tp in self._tasks:
                        self._tasks[tp].set_aside()
                        self._tasks[tp].wake()
        except Exception as error:  # noqa: BLE001  # the tasks raise it
            self.failure = error
            self._wake_all()

    async def _keep_ends(self) -> None:
        while True:
            await asyncio.sleep(ENDS_EVERY_S)
            if self._tasks:
                self.ends = await ask_ends(self.consumer.end_offsets, sorted(self._tasks))
                self._check_topics()  # what is not fetched at the moment is not missed when it is gone
                self._held.look(asyncio.get_running_loop().time(), {tp: self._read_to(tp) for tp in self._tasks})

    def _read_to(self, tp: TopicPartition) -> ReadTo:
        consumer = self.consumer
        return ReadTo(consumer.next_offset(tp), consumer.last_stable_offset(tp), consumer.highwater(tp))

    # The identity of the topics

    async def topic_ids(self, topics: Collection[str], leads: TopicPartition) -> dict[str, str]:
        """Topic -> id, from the leader of the source partition `leads`; without those for which
        brokers have none (before Kafka 2.8). Raises KafkaError.
        """
        for topic in topics:
            if topic not in self._asking:  # many tasks are opened at the same time
                asking = self._asking[topic] = asyncio.ensure_future(self.consumer.topic_ids((topic,), leads))
                asking.add_done_callback(partial(self._answered, topic))
        found = await asyncio.gather(*(asyncio.shield(self._asking[topic]) for topic in topics))
        return {topic: ids[0] for topic, ids in zip(topics, found, strict=True) if ids is not None}

    def _answered(self, topic: str, asking: asyncio.Future[Any]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # looked at, should nobody wait for it any more

    def is_in_doubt(self, partitions: Iterable[TopicPartition]) -> bool:
        """Returns whether records of one of them may be of a topic that was made again."""
        if not self._unchecked:
            return False
        now_s = asyncio.get_running_loop().time()
        return any(now_s < self._unchecked.get(place.topic, 0.0) for place in partitions)

    def _heard_metadata(self) -> None:
        """It is asked for again when a topic that is being read is gone, among others."""
        loop = asyncio.get_running_loop()
        self._metadata_updates += 1
        self.counts = {topic: len(self.consumer.partitions_for_topic(topic) or ()) for topic in self._topics()}
        for topic in self._topics():
            if topic not in self._unchecked:
                self._unchecked[topic] = loop.time() + DOUBT_S
                loop.call_later(DOUBT_S, self._wake_unless_checked, topic)
        self._check_topics()
        self.prove(self._tasks)

    def _topics(self) -> Iterable[str]:
        return dict.fromkeys(place.topic for place in self._tasks)

    def _check_topics(self) -> None:
        for topic in self._topics():
            if topic not in self._checks:
                self._checks[topic] = asyncio.ensure_future(self._check(topic))

    async def _check(self, topic: str) -> None:
        try:
            await self._ask_until_known(topic)
        finally:
            del self._checks[topic]
            self._gone.pop(topic, None)
        if self._unchecked.pop(topic, None) is not None:
            self._wake_all()

    async def _ask_until_known(self, topic: str) -> None:
        """Until an answer is not older than the last metadata, or no task reads the topic."""
        from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

        loop = asyncio.get_running_loop()
        since_s = loop.time()
        while (place := next((each for each in self._tasks if each.topic == topic), None)) is not None:
            updates = self._metadata_updates
            try:
                async with asyncio.timeout(ASK_S):
                    ids = await self.topic_ids([topic], place)
            except (KafkaError, TimeoutError) as error:
                if isinstance(error, UnknownTopicOrPartitionError):
                    self._unchecked[topic] = math.inf  # it is gone: what comes next may be of another one
                    if loop.time() - since_s >= GONE_S:
                        self._gone[topic] = None
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            for sources in dict.fromkeys(self._tasks.values()):
                sources.compare(ids)
            if updates == self._metadata_updates:
                break

    # What they have lost

    def prove(self, partitions: Iterable[TopicPartition]) -> None:
        """Asks the leaders of partitions, soon, whether all is there that was read of them: of one
        that has lost records and is exactly as long again, nothing comes that would say so.
        """
        self._unproven.update(partitions)
        if self._unproven and self._proving is None:
            self._proving = asyncio.ensure_future(self._prove())

    async def _prove(self) -> None:
        from aiokafka.errors import KafkaError

        while self._unproven:
            await asyncio.sleep(ASK_AGAIN_S)  # tasks that open together ask together
            asked, self._unproven = self._unproven, set()
            epochs = {tp: self._tasks[tp].epochs[tp] for tp in sorted(asked) if tp in self._tasks and tp in self._tasks[tp].epochs}
            try:
                async with asyncio.timeout(ASK_S):
                    ends = await self.consumer.epoch_ends(epochs) if epochs else {}
            except (KafkaError, TimeoutError):
                self._unproven |= epochs.keys()
                continue
            for tp, end in (ends or {}).items():
                if tp in self._tasks:
                    self._tasks[tp].look_at_end(tp, epochs[tp], end)
        self._proving = None

    def _wake_unless_checked(self, topic: str) -> None:
        if topic in self._unchecked:
            self._wake_all()

    def _wake_all(self) -> None:
        for sources in self._tasks.values():
            sources.wake()

    async def stop(self) -> None:
        """Disconnects."""
        jobs = [task for task in (self._starting, self._waking, self._keeping_ends, self._proving) if task is not None]
        await call_off(*jobs, *self._checks.values(), *self._asking.values())
        await self.consumer.stop()


class TaskSources:
    """The sources of one task."""

    def __init__(self, reader: SourceReader, partitions: Sequence[TopicPartition], check: PartitionerCheck | None = None) -> None:
        self.partitions = partitions
        self._check = check
        """Of several sources; None: there is one."""
        self.reader = reader
        self.is_placed = False
        self._aside: _Aside = {}
        self._taken_to: dict[TopicPartition, int] = {}
        """Partition -> offset behind the last record that `take` has returned."""
        self._most_aside = 0
        self._topic_ids: Mapping[str, str] = {}
        """Those that it was placed in."""
        self._error: Exception | None = None
        self._replaced: TopicReplacedError | RecordsLostError | None = None
        self.epochs: dict[TopicPartition, int] = {}
        """Partition -> leader epoch in which it had all that was taken, where known."""
        self._later: dict[TopicPartition, tuple[int, int]] = {}
        """Partitions of which records of a later epoch are aside -> that epoch, and the offset
        behind those before. They are taken when the partition is known to have all before.
        """
        self._proving: asyncio.Task[None] | None = None
        self._order: SourceOrder | None = None
        """Of several sources; None: there is one."""
        self._asking_ends: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    async def reset(self, tp: TopicPartition, to: str) -> int:
        """The partition's end, or its beginning if `to` is "earliest". Raises KafkaError."""
        consumer = self.reader.consumer
        return (await (consumer.beginning_offsets if to == "earliest" else consumer.end_offsets)([tp]))[tp]

    def epochs_at(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Leader epochs in which the partitions had all before `offsets`, in topics with these
        ids; without those of which that is not known.
        """
        if topic_ids != self._topic_ids:
            return {}
        return {tp: epoch for tp, epoch in self.epochs.items() if tp in offsets and offsets[tp] <= self._taken_to[tp]}

    def place(
        self,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        epochs: Mapping[TopicPartition, int],
        order: SourceOrder | None = None,
    ) -> None:
        """Reads from these offsets on, in topics with these ids, as far as they are known.
        `epochs`: leader epochs in which the partitions had all before, as far as they are known.
        `order`: of several sources, in which `runs` has them.
        """
        self.stop_proving()
        self._aside, self._error, self._taken_to, self.epochs = {}, None, dict(offsets), dict(epochs)
        self._topic_ids, self._replaced = topic_ids, None
        for tp, offset in offsets.items():
            self.reader.consumer.seek(tp, offset)
        self.reader.consumer.resume(*offsets)
        self.is_placed = True
        self.reader.hold_fetches()
        self.reader.prove(epochs)
        self._order = order
        if order is not None:
            order.begin(self.partitions)
            self._asking_ends = asyncio.ensure_future(self._ask_ends(order))

    async def _ask_ends(self, order: SourceOrder) -> None:
        """Asks leaders: a former fetch may name an end that is out of date."""
        ends: dict[TopicPartition, int] = {}
        while missing := [tp for tp in self.partitions if tp not in ends]:
            ends |= await ask_ends(self.reader.consumer.end_offsets, missing)
            if len(ends) < len(self.partitions):
                await asyncio.sleep(ASK_AGAIN_S)
        order.ends_are(ends)
        self._asking_ends = None
        self.wake()

    def runs(self, most: int) -> Collection[Run]:
        """At most so many records of those that were fetched, to be handled in this order. Raises
        as `take`.
        """
        order = self._order
        if order is None:
            return self.take(most).items()
        self._begin_take()
        self._most_aside = most  # of each source
        if self.reader.is_in_doubt(self.partitions):
            return ()
        self._get_aside(most)
        if self._later:
            return ()
        if self._error is not None:
            raise self._error  # what is aside may wait for the partition that has it
        consumer = self.reader.consumer
        runs = order.take(self._aside, self.partitions, most, consumer.next_offset, consumer.last_stable_offset)
        self._taken_to.update((tp, records[-1].offset + 1) for tp, records in runs)
        return runs

    @property
    def look_again_s(self) -> float | None:
        """Returns when to call `runs` again, though nothing is fetched; None: there is no need."""
        return None if self._order is None else self._order.look_again_s

    def take(self, most: int) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """At most so many records of those that were fetched. Raises TopicReplacedError,
        RecordsLostError, KafkaError.
        """
        self._begin_take()
        self._most_aside = min(most, SET_ASIDE)
        if self.reader.is_in_doubt(self.partitions):
            return {}
        if not self._aside or self._number_aside >= self._most_aside:  # otherwise there were no more a moment ago
            self._get_aside(most)
        if self._later:
            return {}
        if self._error is not None and not self._aside:
            raise self._error
        taken, self._aside = self._aside, {}
        if sum(map(len, taken.values())) > most:  # more was wanted before
            taken, self._aside = _divided(taken, most)
        self._taken_to.update((tp, records[-1].offset + 1) for tp, records in taken.items() if records)
        return taken

    def _begin_take(self) -> None:
        self._woken.clear()
        if self.reader.failure is not None:
            raise self.reader.failure
        if self._replaced is not None:
            raise self._replaced

    def set_aside(self) -> None:
        """Sets the next few records aside for `take`."""
        self._get_aside(self._most_aside)

    def _get_aside(self, most: int) -> None:
        if self._error is not None or self.reader.consumer.ready().isdisjoint(self.partitions):
            return
        if self._order is None:
            self._add_aside(self.partitions, most - self._number_aside)
        else:  # one that is far ahead keeps none of the others out
            for tp in self.partitions:
                self._add_aside((tp,), most - len(self._aside.get(tp, ())))

    def _add_aside(self, partitions: Sequence[TopicPartition], more: int) -> None:
        if more <= 0 or self._error is not None:
            return
        try:
            found = self.reader.consumer.take(partitions, more)
        except Exception as error:  # noqa: BLE001  # `take` raises it
            self._error = error
            return
        for tp, records in found.items():
            if self._check is not None and not self._check.is_settled:
                self._check.look(tp, records, len(self.reader.consumer.partitions_for_topic(tp.topic) or ()))
            self._look_at_epoch(tp)
            self._aside[tp] = [*self._aside[tp], *records] if tp in self._aside else records

    def _look_at_epoch(self, tp: TopicPartition) -> None:
        epoch, known = self.reader.consumer.fetched_epoch(tp), self.epochs.get(tp, NO_EPOCH)
        if epoch <= known:
            return
        if known == NO_EPOCH:
            self.epochs[tp] = epoch
            return
        aside = self._aside.get(tp)
        _, behind = self._later.get(tp, (known, aside[-1].offset + 1 if aside else self._taken_to[tp]))
        self._later[tp] = epoch, behind
        if self._proving is None:
            self._proving = asyncio.ensure_future(self._prove())

    async def _prove(self) -> None:
        """Asks leaders whether the partitions still have all before the records of a later epoch."""
        from aiokafka.errors import KafkaError

        while self._later:
            later = dict(self._later)
            ends: Mapping[TopicPartition, int] = {}
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(ASK_S):
                    answered = await self.reader.consumer.epoch_ends({tp: self.epochs[tp] for tp in later})
                    ends = {tp: behind for tp, (_, behind) in later.items()} if answered is None else answered
            for tp, (epoch, behind) in later.items():
                if tp not in self._later:
                    break  # it is known to have lost some
                end = ends.get(tp, NO_EPOCH)
                if end >= behind:
                    self.epochs[tp] = max(epoch, self.epochs[tp])
                    if self._later[tp][0] == epoch:
                        del self._later[tp]
                elif end != NO_EPOCH:
                    self._lost_from(tp, end)
                    break
            else:
                if self._later.keys() & later.keys():
                    await asyncio.sleep(ASK_AGAIN_S)
        self._proving = None
        self.wake()

    def look_at_end(self, tp: TopicPartition, epoch: int, end: int) -> None:
        """Reads no more if the partition has lost what was taken in `epoch`, which ends there now."""
        if self.epochs.get(tp) == epoch and NO_EPOCH < end < self._taken_to[tp] and self._replaced is None:
            self._lost_from(tp, end)
            self.wake()

    def _lost_from(self, tp: TopicPartition, end: int) -> None:
        self._replaced = RecordsLostError(f"source {tp.topic}/{tp.partition} has lost what was in it from offset {end} on")
        self._aside, self._later = {}, {}

    def stop_proving(self) -> None:
        """The task has closed, or is placed again."""
        for each in (self._proving, self._asking_ends):
            if each is not None:
                each.cancel()
        self._proving, self._asking_ends, self._later = None, None, {}

    def compare(self, topic_ids: Mapping[str, str]) -> None:
        """Reads no more if it was placed in topics with other ids."""
        for topic, topic_id in topic_ids.items():
            if self.is_placed and self._topic_ids.get(topic, topic_id) != topic_id:
                self._replaced = TopicReplacedError(f"source topic {topic} was deleted and made again")
                self._aside = {}
                self.wake()

    @property
    def _number_aside(self) -> int:
        return sum(map(len, self._aside.values()))

    async def wait(self, most_s: float | None) -> None:
        """Returns when more was fetched since `take`, at `wake`, or after `most_s`; None: no limit."""
        if most_s is None:
            await self._woken.wait()
        elif not self._woken.is_set():
            ending = asyncio.get_running_loop().call_later(most_s, self._woken.set)  # a third of the time of asyncio.timeout
            try:
                await self._woken.wait()
            finally:
                ending.cancel()

    def wake(self) -> None:
        """Ends `wait`."""
        self._woken.set()

    def behind(self, tp: TopicPartition, offset: int) -> int | None:
        """Offsets from `offset`, behind the last record that was processed, to the partition's
        end. What has no record, as the markers of transactions, does not count once it was read.
        None: the end is unknown. Any thread may call this.
        """
        read_to, end = self.reader.consumer.next_offset(tp), self.end(tp)
        if end is None:
            return None
        if read_to is not None and tp not in self._aside and self._taken_to.get(tp) == offset:
            offset = max(offset, read_to)
        return max(0, end - offset)

    def end(self, tp: TopicPartition) -> int | None:
        """The partition's end, by the last fetch or a later answer of its leader; None: unknown.
        Any thread may call this.
        """
        fetched, answered = self.reader.consumer.highwater(tp), self.reader.ends.get(tp)
        return answered if fetched is None else max(fetched, answered or 0)


def _divided(aside: _Aside, most: int) -> tuple[_Aside, _Aside]:
    """The first records, so many, and the others."""
    first, others, left = {}, {}, most
    for tp, records in aside.items():
        first[tp], others[tp] = records[:left], records[left:]
        left -= len(first[tp])
    return {tp: records for tp, records in first.items() if records}, {tp: records for tp, records in others.items() if records}
