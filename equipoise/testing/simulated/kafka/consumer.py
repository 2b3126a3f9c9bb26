"""The simulated consumer. It behaves as aiokafka's, where hosts can see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import attrs
from aiokafka import errors

from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.cluster_state import Fetched, FetchLimits
from equipoise.testing.simulated.kafka.connected import ConnectedClient
from equipoise.testing.simulated.kafka.coordinators import GROUP
from equipoise.testing.simulated.kafka.partition_log import StoredRecord
from equipoise.testing.simulated.kafka.simulated_kafka import Cluster

PREFETCH_S = 0.1
"""How long records that nobody takes keep the consumer from fetching from the same broker."""


@attrs.define(eq=False)
class _Assigned:
    """`found`: fetched records that were not returned yet; None: none. `next_offset`: where to read
    on behind them.
    """

    position: int | None = None
    is_paused: bool = False
    is_resetting: bool = False
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    leader_epoch: int = NO_EPOCH
    found: Sequence[StoredRecord] | None = None
    taken: int = 0
    next_offset: int = 0
    error: Exception | None = None
    fetched_us: int = 0

    @property
    def is_ready(self) -> bool:
        return self.found is not None or self.error is not None

    def forget(self) -> None:
        self.found = self.error = None


class SimulatedConsumer(ConnectedClient):
    """Implements `equipoise.kafka.client.Consumer`. With a `rack` it reads what another
    replica than the leader knows by then; the leader stands in for that replica.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: str,
        *,
        group: str | None = None,
        read_committed: bool = False,
        auto_offset_reset: str = "none",
        request_timeout_ms: int = 40_000,
        rack: str | None = None,
        max_poll_records: int | None = None,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 2**20,
        fetch_max_bytes: int = 50 * 2**20,
        connections_max_idle_ms: int = 540_000,
        as_rows: bool = False,
    ) -> None:
        super().__init__(cluster, process, request_timeout_ms=request_timeout_ms)
        self._group = group
        self._committed_only = read_committed
        self._is_near = rack is not None
        cluster.has_near_readers = cluster.has_near_readers or self._is_near
        self._reset = auto_offset_reset
        self._max_poll_records = max_poll_records
        self._as_rows = as_rows
        self._wait_us = fetch_max_wait_ms * 1_000
        self._limits = FetchLimits(max_partition_fetch_bytes, fetch_max_bytes)
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._fetching: dict[int, None] = {}
        """Brokers with a fetch under way."""
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._is_planned = False
        self._heard: Callable[[], None] | None = None

    def _close(self) -> None:
        super()._close()
        self._wake_waiters()

    # Positions

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._assigned = {TopicPartition(*place): self._assigned.get(TopicPartition(*place)) or _Assigned() for place in partitions}
        self._track(place[0] for place in partitions)
        self._plan()

    def _state(self, partition: TopicPartition) -> _Assigned:
        state = self._assigned.get(partition)
        if state is None:
            raise errors.IllegalStateError(f"No current assignment for partition {partition}")
        return state

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Raises as aiokafka's does."""
        if offset < 0:
            raise ValueError("Offset must be a positive integer")
        state = self._state(partition)
        state.position, state.is_resetting, state.leader_epoch = offset, False, NO_EPOCH
        state.forget()
        self._wake_waiters()
        self._plan()

    def pause(self, *partitions: TopicPartition) -> None:
        for place in partitions:
            self._state(place).is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for place in partitions:
            self._state(place).is_paused = False
        self._plan()

    async def position(self, partition: TopicPartition) -> int:
        while True:
            state = self._state(partition)
            if state.position is not None:
                return state.position
            await self._woken(None)

    def next_offset(self, partition: TopicPartition) -> int | None:
        state = self._assigned.get(partition)
        return None if state is None else state.position

    def highwater(self, partition: TopicPartition) -> int | None:
        state = self._assigned.get(partition)
        return None if state is None else state.high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        return self._state(partition).last_stable_offset

    # Records

    def take(self, partitions: Sequence[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[StoredRecord]]:
        """Raises as aiokafka's does."""
        if self._is_closed:
            raise errors.ConsumerStoppedError
        return self._take(partitions, most)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, Sequence[StoredRecord]]:
        """Raises as aiokafka's does."""
        if self._is_closed:
            raise errors.ConsumerStoppedError
        end_us = self._cluster.scheduler.now_us + timeout_ms * 1_000
        most = max_records or self._max_poll_records
        while True:
            taken = self._take(partitions, most)
            left_us = end_us - self._cluster.scheduler.now_us
            if taken or left_us <= 0:
                return taken
            if not await self._woken(left_us / 1_000_000) or self._is_closed:
                return {}

    def _take(self, partitions: Sequence[TopicPartition], most: int | None) -> dict[TopicPartition, Sequence[StoredRecord]]:
        taken: dict[TopicPartition, Sequence[Any]] = {}
        ready = sorted((state.fetched_us, place) for place, state in self._assigned.items() if state.is_ready)
        for _, place in ready:
            state = self._assigned[place]
            if partitions and place not in partitions:
                continue
            if state.is_paused:
                state.forget()
                continue
            if state.error is not None:
                if taken:
                    return taken
                error, state.error = state.error, None
                self._plan()
                raise error
            assert state.found is not None
            records = state.found[state.taken :] if most is None else state.found[state.taken : state.taken + most]
            state.taken += len(records)
            if records and state.taken < len(state.found):
                state.position = records[-1].offset + 1
            elif records and most == len(records):
                state.position = records[-1].offset + 1  # it is seen at the next call that there are no more
            else:
                state.position = state.next_offset
                state.found = None
                self._plan()
            if records:
                taken[place] = [(each.key, each.value, each.headers, each.offset) for each in records] if self._as_rows else records
                if most is not None:
                    most -= len(records)
                    if not most:
                        break
        return taken

    def watch_metadata(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    def hold_fetches(self, wait_ms: int) -> None:
        self._wait_us = wait_ms * 1_000

    async def fetched(self) -> None:
        """Raises as aiokafka's does."""
        if not self._is_closed:
            await self._woken(None)
        if self._is_closed:
            raise errors.KafkaConnectionError

    def ready(self) -> Set[TopicPartition]:
        return dict.fromkeys(place for place, state in self._assigned.items() if state.is_ready).keys()

    async def _woken(self, timeout_s: float | None) -> bool:
        """Returns whether something was fetched within `timeout_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
            return waiter.done()
        finally:
            del self._waiters[waiter]

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Fetching ahead

    def _plan(self) -> None:
        """Fetches what is assigned, soon."""
        if not self._is_planned and not self._is_closed:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._fetch)

    def _plan_later(self, wait_s: float) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().call_later(wait_s, self._plan)

    def _metadata_updated(self) -> None:
        if self._heard is not None:
            self._heard()
        if self._assigned:
            self._plan()

    def _fetch(self) -> None:
        self._is_planned = False
        if self._is_closed:
            return
        wanted: dict[int, list[tuple[TopicPartition, int]]] = {}
        held: dict[int, float] = {}
        has_unknown = False
        now_us = self._cluster.scheduler.now_us
        for place, state in self._assigned.items():
            leader = self._leader(place)
            if leader is None or leader < 0:
                has_unknown = has_unknown or not state.is_paused
            elif state.is_ready:
                left_s = PREFETCH_S - (now_us - state.fetched_us) / 1_000_000
                if left_s > 0:
                    held[leader] = max(left_s, held.get(leader, 0.0))
            elif state.position is None:
                if not state.is_resetting:
                    state.is_resetting = True
                    self._spawn(self._find_position(place, state))
            elif not state.is_paused and leader not in self._fetching:
                wanted.setdefault(leader, []).append((place, state.position))
        for broker, places in wanted.items():
            if broker in held:
                self._plan_later(held[broker])
                continue
            if len(places) > 1:
                self._cluster.random.shuffle(places)
                places.sort(key=lambda each: self._assigned[each[0]].fetched_us)
            self._fetching[broker] = None
            handler = partial(self._cluster.fetch, places, self._committed_only, self._limits, self._wait_us, self._is_near)
            self._call(broker, "Fetch", handler, partial(self._fetched, broker, [(*each, self._assigned[each[0]]) for each in places]))
        if has_unknown:
            self._spawn(self._find_leaders())

    async def _find_leaders(self) -> None:
        """One of them has no leader that is known."""
        if self._updating is None or self._updating.done():
            await asyncio.sleep(self._backoff_s)
            await self._refresh()

    def _fetched(
        self, broker: int, places: Sequence[tuple[TopicPartition, int, _Assigned]], answer: Mapping[TopicPartition, Fetched] | BaseException
    ) -> None:
        if self._is_closed or isinstance(answer, asyncio.CancelledError):
            return
        if isinstance(answer, BaseException):
            self._refresh()
            self._spawn(self._fetch_failed(broker))
            return
        self._fetching.pop(broker, None)
        has_new = False
        for place, offset, state in places:
            if self._assigned.get(place) is not state or state.position != offset or state.is_ready:
                continue
            fetched = answer[place]
            if fetched.error is None:
                state.high_watermark, state.last_stable_offset = fetched.high_watermark, fetched.last_stable_offset
                if fetched.next_offset > offset:
                    state.found, state.taken, state.next_offset = fetched.records, 0, fetched.next_offset
                    state.leader_epoch = fetched.leader_epoch
                    state.fetched_us = self._cluster.scheduler.now_us
                    has_new = True
            elif fetched.error is errors.OffsetOutOfRangeError:
                if self._reset == "none":
                    state.error = errors.OffsetOutOfRangeError({place: offset})
                    state.fetched_us = self._cluster.scheduler.now_us
                    has_new = True
                else:
                    state.position = None
            else:
                self._refresh()
        if has_new:
            self._wake_waiters()
        self._plan()

    async def _fetch_failed(self, broker: int) -> None:
        await asyncio.sleep(self._backoff_s)
        self._fetching.pop(broker, None)
        self._plan()

    async def _find_position(self, place: TopicPartition, state: _Assigned) -> None:
        """Where the group has committed, else where `auto_offset_reset` says."""
        position = None if self._group is None or state.high_watermark is not None else await self.committed(place)
        if position is None and self._reset == "none":
            if state.position is None:
                state.error, state.fetched_us = errors.NoOffsetForPartitionError(place), self._cluster.scheduler.now_us
        elif position is None:
            position = (await self._list([place], first=self._reset == "earliest"))[place].offset
        if state.is_resetting:
            state.is_resetting, state.position = False, position
            self._wake_waiters()
            self._plan()

    # Offsets

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in (await self._list(partitions, first=True)).items()}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: each.offset for place, each in (await self.leader_ends(partitions)).items()}

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        return await self._list(partitions, first=False)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        found: dict[TopicPartition, int] = await self._ask_leaders(
            list(epochs), "OffsetForLeaderEpoch", lambda places: partial(self._cluster.epoch_ends, {each: epochs[each] for each in places})
        )
        return found

    def fetched_epoch(self, partition: TopicPartition) -> int:
        return self._state(partition).leader_epoch

    async def _list(self, partitions: Sequence[TopicPartition], *, first: bool) -> dict[TopicPartition, LeaderEnd]:
        found: dict[TopicPartition, LeaderEnd] = await self._ask_leaders(
            partitions, "ListOffsets", lambda places: partial(self._cluster.list_offsets, places, first, self._committed_only)
        )
        return found

    async def _ask_leaders(
        self, partitions: Sequence[TopicPartition], name: str, handler: Callable[[Sequence[TopicPartition]], Handler]
    ) -> dict[TopicPartition, Any]:
        """Repeats retriable errors for the request timeout, then raises KafkaTimeoutError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await self._ask_leaders_once(partitions, name, handler)
                    except errors.KafkaError as error:
                        if not error.retriable:
                            raise
                        if error.invalid_metadata:
                            self._refresh()
                        await asyncio.sleep(self._backoff_s)
        except TimeoutError:
            raise errors.KafkaTimeoutError(f"no answer to {name} in {self._timeout_s} s") from None

    async def _ask_leaders_once(
        self, partitions: Sequence[TopicPartition], name: str, handler: Callable[[Sequence[TopicPartition]], Handler]
    ) -> dict[TopicPartition, Any]:
        if self._updating is not None and not self._updating.done():
            await asyncio.shield(self._updating)
        by_broker: dict[int, list[TopicPartition]] = {}
        for each in partitions:
            leader = self._leader(each)
            if leader is None:
                self._track([each[0]])
                raise errors.StaleMetadata(each)
            if leader < 0:
                raise errors.LeaderNotAvailableError(each)
            by_broker.setdefault(leader, []).append(TopicPartition(*each))
        requests = [self._ask(broker, name, handler(places)) for broker, places in by_broker.items()]
        found: dict[TopicPartition, Any] = {}
        for answers in [await requests[0]] if len(requests) == 1 else await asyncio.gather(*requests):
            for place, answer in answers.items():
                if isinstance(answer, type):
                    raise answer(place)
                found[place] = answer
        return found

    async def committed(self, partition: TopicPartition) -> int | None:
        answer = await self._group_request("OffsetFetch", partial(self._cluster.coordinators.fetch_offsets, self._group or ""))
        offset: int | None = answer.get(partition)
        return offset

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for place in offsets:
            self._state(place)
        await self._group_request("OffsetCommit", partial(self._cluster.coordinators.commit_offsets, self._group or "", dict(offsets)))

    async def _group_request(self, name: str, handler: Any) -> Any:
        if self._group is None:
            raise errors.IllegalOperation("Requires group_id")
        while True:
            answer = await self._coordinated(GROUP, self._group, name, handler)
            if not isinstance(answer, type):
                return answer
            error = answer()
            if not error.retriable:  # a commit to a topic that is gone is repeated for ever
                raise error
            await asyncio.sleep(self._backoff_s)

    # Topics

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._counts.get(topic)
        return None if count is None else set(range(count))
