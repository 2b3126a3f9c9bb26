"""The consumer: `ConsumerCore` over a `Wire`, in an event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set

from aiokafka.errors import ConsumerStoppedError, IllegalOperation, IllegalStateError, KafkaConnectionError, KafkaError

from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import CLOSE_S, LATEST_S, ConsumedRecord, LeaderEnd, TopicPartition, within
from equipoise.kafka.consumer import group_offsets, leader_questions
from equipoise.kafka.consumer.core import ConsumerCore
from equipoise.kafka.consumer.reading_orders import FetchOptions, FetchOrder, FindPositions, Order
from equipoise.kafka.consumer.requests import END, FIRST, ListOffsetsRequest, SessionFetch, listed
from equipoise.kafka.core_shell import CoreShell
from equipoise.kafka.group_coordinators import GroupCoordinators
from equipoise.kafka.metadata_requests import topic_configs

_LOG = logging.getLogger(__name__)


class WireConsumer(CoreShell):
    """`client.Consumer`. `group`: for `committed` and `commit`, and where to begin without `seek`.
    `most_records`: of `getmany`, if it names no number; None: all.
    """

    def __init__(
        self, wire: Wire, options: FetchOptions, *, group: str | None = None, most_records: int | None = None, request_timeout_s: float = 40.0
    ) -> None:
        super().__init__(wire)
        self.core = ConsumerCore(options)
        self._groups = GroupCoordinators(wire, logs=True)
        self._options, self._group, self._most_records, self._within_s = options, group, most_records, request_timeout_s
        self._finds = 0
        self._broken: BaseException | None = None
        """What has ended it, which is an error of this client."""

    async def start(self, *, within_s: float | None = None) -> None:
        await self._connect(within_s)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        was_closed, self._is_closed = self._is_closed, True
        await self._disconnect(was_closed, within_s)

    # Positions

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.core.assign(partitions)
        self.wire.read_topics({place[0] for place in partitions})
        self._plan()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Raises IllegalStateError, ValueError."""
        self.core.seek(partition, offset)
        self._wake()
        self._plan()

    def pause(self, *partitions: TopicPartition) -> None:
        """Raises IllegalStateError."""
        for place in partitions:
            self.core.pause(place)

    def resume(self, *partitions: TopicPartition) -> None:
        """Raises IllegalStateError."""
        for place in partitions:
            self.core.resume(place)
        self._plan()

    async def position(self, partition: TopicPartition) -> int:
        """Raises IllegalStateError, KafkaTimeoutError after LATEST_S."""
        if (position := self.core.position(partition)) is None:
            async with within(f"the position in {partition.topic}/{partition.partition}"):
                while (position := self.core.position(partition)) is None:
                    if partition not in self.core.places:
                        raise IllegalStateError(f"No current assignment for partition {partition}")
                    await self.fetched()
        return position

    def next_offset(self, partition: TopicPartition) -> int | None:
        return self.core.position(partition)

    def highwater(self, partition: TopicPartition) -> int | None:
        return self.core.end(partition)

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        return self.core.last_stable_offset(partition)

    def fetched_epoch(self, partition: TopicPartition) -> int:
        return self.core.fetched_epoch(partition)

    # Records

    def ready(self) -> Set[TopicPartition]:
        return self.core.ready()

    def take(self, partitions: Sequence[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """Raises ConsumerStoppedError."""
        if self._is_closed:
            raise ConsumerStoppedError
        try:
            return self.core.take(partitions, most)
        finally:
            self._plan()

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """Raises ConsumerStoppedError, KafkaConnectionError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_ms / 1_000
        most = max_records or self._most_records or sys.maxsize
        while True:
            ready = self.core.ready()
            found = self.take([place for place in ready if not partitions or place in partitions], most)
            left_s = until_s - loop.time()
            if found or left_s <= 0:
                return found
            if not await self._woken(left_s) or self._is_closed:
                return {}

    async def fetched(self) -> None:
        """Raises KafkaConnectionError when the consumer fetches nothing any more."""
        while not self._is_closed and not await self._woken(LATEST_S):
            pass
        if self._is_closed:
            raise KafkaConnectionError("the consumer is closed")

    def hold_fetches(self, wait_ms: int) -> None:
        self.core.max_wait_ms = wait_ms

    async def _woken(self, timeout_s: float) -> bool:
        """Returns whether something was found within `timeout_s`. Raises KafkaConnectionError."""
        if self._broken is not None:
            raise KafkaConnectionError("the consumer fetches nothing any more") from self._broken
        changed = await self._change(timeout_s)
        if self._broken is not None:
            raise KafkaConnectionError("the consumer fetches nothing any more") from self._broken
        return changed

    # Requests

    @property
    def _now_ms(self) -> float:
        assert self._loop is not None
        return self._loop.time() * 1_000

    def _heard(self) -> None:
        if not self._is_closed and self._loop is not None:
            self.core.heard(self.wire.leader_of, self._now_ms)
            self._plan()

    def _send_due(self) -> None:
        self._is_planned = False
        if self._is_closed or self._broken is not None:
            return
        try:
            due = self.core.due(self._now_ms)
        except Exception as error:  # noqa: BLE001  # whoever waits would wait for ever
            self._break(error)
            return
        self._send(due)
        if self.core.finds != self._finds:
            self._finds = self.core.finds
            self._wake()

    async def _carry_out(self, order: Order) -> None:
        try:
            try:
                await (self._fetch(order) if isinstance(order, FetchOrder) else self._find_positions(order))
            except KafkaError as error:
                # In aiokafka's words, so that `aiokafka_log` knows them.
                is_fetch = isinstance(order, FetchOrder)
                _LOG.error("Failed fetch messages from %s: %s" if is_fetch else "Failed fetch offsets from %s: %s", order.node, error)
                self.core.failed(order, error, self._now_ms)
        except asyncio.CancelledError:
            if not self._is_closed:  # by the client library, as when a connection is closed
                self.core.failed(order, KafkaConnectionError("the request was cancelled"), self._now_ms)
                self._plan()
            raise
        except Exception as error:  # noqa: BLE001
            self._break(error)
        self._send_due()

    async def _fetch(self, order: FetchOrder) -> None:
        answer = await self.wire.send(order.node, SessionFetch(order, self._options))
        self.core.fetched(order, answer, self._now_ms)

    async def _find_positions(self, order: FindPositions) -> None:
        if order.node is None:
            assert self._group is not None
            found = await self._committed(self._group, order.places)
            self.core.placed(order, {place: found.get(place) for place in order.places}, self._now_ms)
        else:
            time = FIRST if self._options.reset == "earliest" else END
            request = ListOffsetsRequest(dict.fromkeys(order.places, time), read_committed=self._options.read_committed)
            answer = await self.wire.send(order.node, request)
            self.core.placed(order, {place: end.offset for place, code, end in listed(answer) if not code}, self._now_ms)
        self._wake()

    def _break(self, error: BaseException) -> None:
        self._broken = error
        self._wake()

    # Offsets

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in (await self._offsets(dict.fromkeys(partitions, FIRST))).items()}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in (await self._offsets(dict.fromkeys(partitions, END))).items()}

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = await self._offsets(times_ms)
        return {place: None if each.offset < 0 else each.offset for place, each in found.items()}

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        return await topic_configs(self.wire, topics)

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        return await self._offsets(dict.fromkeys(partitions, END))

    async def _offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, LeaderEnd]:
        return await leader_questions.offsets(self.wire, times, self._within_s, read_committed=self._options.read_committed)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        return await leader_questions.epoch_ends(self.wire, epochs, self._within_s)

    async def committed(self, partition: TopicPartition) -> int | None:
        """Raises IllegalOperation without a group."""
        return (await self._committed(self._of_group(), (partition,))).get(partition)

    async def committed_notes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Raises IllegalOperation without a group."""
        group = self._of_group()
        return await group_offsets.until_answered(lambda: group_offsets.committed_notes(self._groups, group, partitions))

    async def _committed(self, group: str, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return await group_offsets.until_answered(lambda: group_offsets.committed(self._groups, group, places))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises IllegalOperation without a group, IllegalStateError."""
        group = self._of_group()
        for place in offsets:
            if place not in self.core.places:
                raise IllegalStateError(f"Partition {place} is not assigned")
        await group_offsets.until_answered(lambda: group_offsets.commit(self._groups, group, offsets))

    def _of_group(self) -> str:
        if self._group is None:
            raise IllegalOperation("Requires group_id")
        return self._group

    # Topics

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.wire.partitions(topic)

    def watch_metadata(self, heard: Callable[[], None]) -> None:
        self.wire.watch(heard)
