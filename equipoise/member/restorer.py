"""Brings copies up to date from their changelogs: standbys, warm-ups, and tasks that are to run
here.

All of it is for one event loop (a `LoopThread` of its own: applying ten thousand records takes a
while) but `lags`, `restored_records_per_s` and `dropped_records`, which any thread may read.

One consumer reads all changelogs, each partition assigned by hand. Tasks that are to run come
first: while one of them is behind, copies wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.log.kafka.clients import start_client, stop_client
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.opening import reaching
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.member.directory import StateDirectory
from equipoise.member.ends import ChangelogEnds
from equipoise.member.fencing import ChangelogOwner, FencedStore
from equipoise.member.stores import OpenStore
from equipoise.member.throttle import Throttle

_LOG = logging.getLogger(__name__)
MOST_RECORDS = 10_000
"""One take. More at once is hardly faster, and it is the grain of the throttle and of what a crash
takes back.
"""
BULK_LAG = 20_000
"""Records behind from which a copy is filled in bulk."""
NOWHERE = Path("/nowhere")
"""The folder of a store of a member without a state directory; whoever looks at it needs one."""
TELL_EVERY_S = 0.1
RETRY_S = 0.5
FOLLOW_WAIT_MS = 500
MARKER_WAIT_MS = 5
FETCH_WAIT_MS = 100
"""How long a broker holds a fetch that finds nothing. A partition that is assigned meanwhile is
asked for only after that.
"""
FETCH_BYTES = 4 * 2**20
SHRUNK_LOOKS = 5
"""A changelog that seems shorter than its copy is looked at so often, RETRY_S apart, before the
copy is thrown away: a broker that has just become the leader may take a moment to know how much of
it is committed."""


@attrs.define(eq=False)
class _RestoredCopy:
    stores: dict[str, FencedStore]
    """Changelog topic -> store."""
    placed: bool = False
    """Its stores have been held against what the changelogs still have."""
    sought: bool = False
    """The consumer reads on from where its stores are. What the consumer has fetched for a former
    copy of the task begins elsewhere, and is old.
    """
    opening: bool = False
    """The task is to run here: it is restored before copies of other tasks."""
    goals: Mapping[str, int] | None = None
    """The position that each store is to reach for whom `waiting` belongs to; None: the changelog's
    end, which is asked for next.
    """
    waiting: asyncio.Future[Any] | None = None
    hand_over: bool = False
    """Whoever waits gets the stores, and they leave this thread."""


class ChangelogRestorer:
    """The copies of one member.

    `changelogs`: task -> its changelog topics, for every stateful task. Records of transactions
    that were not committed are not read, with either guarantee: a task may change its guarantee.
    Records of a former owner do not count (`fencing`). `rack`: where it is, so that brokers can let
    it read from a near replica; what it has to reach is asked of leaders all the same. `progressed`
    is called from this loop when lags have changed: at most every TELL_EVERY_S, but at once when a
    copy comes within `ready_lag_records`. `failed` is called when it cannot go on.
    """

    def __init__(
        self,
        connection: Connection,
        changelogs: Mapping[TaskId, tuple[str, ...]],
        open_store: OpenStore,
        directory: StateDirectory | None,
        *,
        throttle: Throttle,
        ends_every_s: float,
        rack: str | None = None,
        progressed: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._changelogs = changelogs
        self._open_store = open_store
        self._directory = directory
        self._throttle = throttle
        self.ready_lag_records = 0
        """Its member says so, from any thread, whenever that changes."""
        self._ends_every_s = ends_every_s
        self._rack = rack
        self._progressed = progressed
        self._failed = failed
        self._consumer: Any = None
        self._asker: Any = None
        """Asks for offsets, on connections of its own: brokers answer one request after the other,
        and a fetch waits for records.
        """
        self._copies: dict[TaskId, _RestoredCopy] = {}
        self._kept: dict[TaskId, dict[str, FencedStore]] = {}
        """In memory, of no use now."""
        self._handed_over: dict[TaskId, dict[str, FencedStore]] = {}
        self._on_disk: dict[TaskId, dict[str, int]] = {}
        """Closed: changelog topic -> position."""
        self._ends = ChangelogEnds()
        self._unknown = asyncio.Event()
        """ChangelogEnds were forgotten: they are asked for at once."""
        self._assigned: frozenset[Any] = frozenset()
        self._woken = asyncio.Event()
        self._told_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._busy_s = 0.0
        self._bulk_records = 0
        self.lags: dict[TaskId, Lag] = {}
        """Of every copy that is here; of a task that is to run at least 1, until its stores are
        handed over. Replaced, never changed. A number only where all is known: else somebody might
        be given the task who has most of it to restore (docs/protocol.md#m2)."""
        self.dropped_records = 0
        """Records that a former owner wrote too late, and that were left out."""

    @property
    def restored_records_per_s(self) -> float:
        """Speed so far, throttled or not; 0: nothing much was restored."""
        return self._bulk_records / self._busy_s if self._busy_s else 0.0

    async def start(self) -> None:
        """Looks at what is on disk, connects, and learns how far behind that is. Raises InputError
        when no broker answers.
        """
        with reaching(self._connection):
            from aiokafka import AIOKafkaConsumer

            reading = {"enable_auto_commit": False, "auto_offset_reset": "none", "isolation_level": "read_committed"}
            options = {**self._connection.options(), **reading}
            fetching = {"max_partition_fetch_bytes": FETCH_BYTES, "fetch_max_wait_ms": FETCH_WAIT_MS, "client_rack": self._rack}
            self._consumer = AIOKafkaConsumer(**options, **fetching)
            self._asker = AIOKafkaConsumer(**options)
            await start_client(self._consumer)
            await start_client(self._asker)
        if self._directory is not None:
            for task, topic in self._directory.stores():
                if topic in self._changelogs.get(task, ()):
                    store = self._open_store(self._directory.store(task, topic))
                    self._on_disk.setdefault(task, {})[topic] = store.position
                    store.close()
        await self._learn_ends()
        self._tell(now=True)
        self._tasks = [asyncio.create_task(self._run(), name="restore"), asyncio.create_task(self._keep_ends(), name="changelog ends")]
        for each in self._tasks:
            each.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Closes everything it has."""
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for consumer in (self._consumer, self._asker):
            if consumer is not None:
                await stop_client(consumer)
        for task in list(self._copies):
            self.leave(task)
        for stores in self._kept.values():
            _close(stores)
        self._kept.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # What is wanted

    def follow(self, task: TaskId) -> None:
        """Keeps a copy of `task` up to date."""
        if task not in self._copies:
            self._copies[task] = _RestoredCopy(self._take_stores(task))
            self._woken.set()

    def leave(self, task: TaskId) -> None:
        """Its copy stays as it is."""
        copy = self._copies.pop(task, None)
        if copy is not None:
            self._put_away(task, copy.stores)
            if copy.waiting is not None:
                copy.waiting.cancel()
            self._woken.set()
            self._tell(now=True)

    async def restore(self, task: TaskId) -> dict[str, ChangelogOwner | None]:
        """Restores `task` to the end that its changelogs have now, and goes on following them until
        `open` or `put_back`, which also cancels this.

        Returns the owner of each changelog there; None: nobody has written to it.
        """
        owners: dict[str, ChangelogOwner | None] = await self._reached(task, None, hand_over=False)
        return owners

    async def open(self, task: TaskId, goals: Mapping[str, int]) -> dict[str, FencedStore]:
        """Restores `task` at least up to `goals`, changelog topic -> offset of the record to apply
        next, and hands its stores over until `put_back`, which also cancels this. A topic that
        `goals` does not name stays where it is."""
        stores: dict[str, FencedStore] = await self._reached(task, goals, hand_over=True)
        return stores

    async def _reached(self, task: TaskId, goals: Mapping[str, int] | None, *, hand_over: bool) -> Any:
        copy = self._copies.get(task)
        if copy is None:
            copy = self._copies[task] = _RestoredCopy(self._take_stores(task))
        copy.opening, copy.goals, copy.hand_over = True, goals, hand_over
        copy.waiting = asyncio.get_running_loop().create_future()
        self._woken.set()
        return await copy.waiting

    def put_back(self, task: TaskId) -> None:
        """`task` has stopped, or is not to run after all: its copy stays as it is."""
        stores = self._handed_over.pop(task, None)
        if stores is None:
            self.leave(task)
        else:
            self._put_away(task, stores)
            self._ends.forget(self._partitions(task))  # it ran here, and whoever took it from here may have written since
            self._unknown.set()
            self._tell(now=True)

    def _take_stores(self, task: TaskId) -> dict[str, FencedStore]:
        closed = self._on_disk.pop(task, None)
        kept = self._kept.pop(task, None)
        if kept is not None:
            return kept
        if closed is None:
            self._ends.forget(self._partitions(task))  # nobody has asked for them while nothing of it was here
        return {topic: self._open_one(task, topic) for topic in self._changelogs[task]}

    def _open_one(self, task: TaskId, topic: str) -> FencedStore:
        store = self._open_store(NOWHERE if self._directory is None else self._directory.store(task, topic))
        return FencedStore(store, f"{topic}/{task.partition}")

    def _put_away(self, task: TaskId, stores: dict[str, FencedStore]) -> None:
        if all(each.store.lasting for each in stores.values()):
            self._on_disk[task] = {topic: store.position for topic, store in stores.items()}
            _close(stores)
        else:
            self._kept[task] = stores

    def forget_kept(self, wanted: Iterable[TaskId]) -> None:
        """Drops copies in memory that are none of `wanted`."""
        for task in set(self._kept).difference(wanted):
            _close(self._kept.pop(task))
            self._tell(now=True)

    # Reading

    async def _run(self) -> None:
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError

        while True:
            self._woken.clear()
            try:
                if not self._copies:
                    await self._woken.wait()
                    continue
                await self._place()
                if self._finish():
                    continue
                served = self._served()
                wait_s = self._throttle.wait_s()
                if wait_s:
                    await self._unless_woken(asyncio.sleep(wait_s))
                elif served:
                    most = self._throttle.most_records(MOST_RECORDS)
                    begun_s = time.monotonic()
                    # A marker of a transaction moves the position and is no record to return for:
                    # who waits for the end must look now and then.
                    wait_ms = MARKER_WAIT_MS if any(copy.opening for copy in self._copies.values()) else FOLLOW_WAIT_MS
                    batches = await self._unless_woken(self._consumer.getmany(*served, timeout_ms=wait_ms, max_records=most))
                    await self._take(served, batches or {}, begun_s)
            except OffsetOutOfRangeError as error:
                self._begin_anew(error.args[0] if error.args else {})
            except KafkaError as error:
                _LOG.info("restoring waits: %r", error)
                await asyncio.sleep(RETRY_S)

    async def _unless_woken(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Its result; None, and it is cancelled, when somebody wants something else first."""
        task = asyncio.ensure_future(coroutine)
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((task, woken), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            for each in (task, woken):
                each.cancel()
            await asyncio.gather(task, woken, return_exceptions=True)

    async def _place(self) -> None:
        """New copies are held against their changelogs, tasks to run get their goals, and the
        consumer gets what there is to read.
        """
        looked_at: set[TaskId] = set()
        # Those that come meanwhile too: each time that the consumer is assigned something else, it
        # fetches again what it had fetched ahead.
        while coming := [(task, copy) for task, copy in self._copies.items() if task not in looked_at]:
            for task, copy in coming:
                looked_at.add(task)
                if copy.waiting is not None and copy.goals is None:
                    ends = await self._asker.end_offsets(self._partitions(task))
                    copy.goals = {tp.topic: end for tp, end in ends.items()}
                    self._ends.answered(ends)
                if not copy.placed:
                    await self._hold_against(task, copy)
        # A copy that took the place of another meanwhile waits for the next look: where it is may
        # be no place of its changelog.
        placed = {task: copy for task, copy in self._copies.items() if copy.placed}
        partitions = {tp: store for task, copy in placed.items() for tp, store in self._partitions(task, copy).items()}
        unsought = {tp for task, copy in placed.items() if not copy.sought for tp in self._partitions(task, copy)}
        if placed and self._assigned != partitions.keys():
            self._assigned = frozenset(partitions)
            self._consumer.assign(sorted(partitions))
            unsought = set(partitions)
        for tp in sorted(unsought):
            self._consumer.seek(tp, partitions[tp].position)
        for copy in placed.values():
            copy.sought = True

    async def _hold_against(self, task: TaskId, copy: _RestoredCopy) -> None:
        """A store that its changelog can no longer continue begins anew."""
        partitions = self._partitions(task, copy)
        begins = await self._asker.beginning_offsets(list(partitions))
        for look in range(SHRUNK_LOOKS):
            ends = await self._asker.end_offsets(list(partitions))
            shrunk = [tp for tp, store in partitions.items() if store.position > ends[tp]]
            if not shrunk or look == SHRUNK_LOOKS - 1:
                break
            await asyncio.sleep(RETRY_S)
        if self._copies.get(task) is not copy:
            return  # left meanwhile, and its stores are closed
        self._ends.answered(ends)
        for tp, store in partitions.items():
            if store.position < begins[tp] or tp in shrunk:
                if store.position:
                    _LOG.warning("%s/%d has %d to %d; the copy at %d begins anew", *tp, begins[tp], ends[tp], store.position)
                    store.wipe()
                store.apply((), position=begins[tp])
        copy.placed = True

    def _begin_anew(self, partitions: Iterable[Any]) -> None:
        """What the consumer wanted to read next is gone: it was away longer than the changelog
        keeps.
        """
        for task, copy in self._copies.items():
            if copy.placed and not set(self._partitions(task)).isdisjoint(partitions):
                copy.placed = False
        self._assigned = frozenset()

    def _partitions(self, task: TaskId, copy: _RestoredCopy | None = None) -> dict[Any, FencedStore]:
        from aiokafka import TopicPartition

        stores: Mapping[str, Any] = dict.fromkeys(self._changelogs[task]) if copy is None else copy.stores
        return {TopicPartition(topic, task.partition): store for topic, store in stores.items()}

    def _served(self) -> dict[Any, tuple[TaskId, _RestoredCopy]]:
        opening = [task for task, copy in self._copies.items() if copy.opening]
        served = [(task, self._copies[task]) for task in opening or self._copies]
        return {tp: (task, copy) for task, copy in served if copy.placed for tp in self._partitions(task)}

    async def _take(self, served: dict[Any, tuple[TaskId, _RestoredCopy]], batches: dict[Any, list[Any]], begun_s: float) -> None:
        records = size_bytes = 0
        behind = more = False
        for tp, (task, copy) in served.items():
            if self._copies.get(task) is not copy:
                continue  # left while it was read; a new copy is read anew
            store = copy.stores[tp.topic]
            batch = batches.get(tp, [])
            position = await self._consumer.position(tp)  # behind the markers of transactions, too
            self._ends.read(tp, position, self._consumer.last_stable_offset(tp))
            end = self._ends.known.get(tp, position)
            if not batch and position <= store.position:
                continue
            was_behind = end - store.position > self.ready_lag_records
            bulk = end - position > BULK_LAG
            self._apply(store, batch, position, bulk=bulk)
            records += len(batch)
            size_bytes += sum(map(_size, batch)) if self._throttle.counts_bytes else 0
            more = more or end > position
            behind = behind or (was_behind and end - position <= self.ready_lag_records)
        self._throttle.taken(records, size_bytes, more=more)
        if records >= MOST_RECORDS // 10:  # what trickles in says nothing about speed
            self._bulk_records += records
            self._busy_s += time.monotonic() - begun_s
        if records:
            self._tell(now=behind)

    def _apply(self, store: FencedStore, batch: list[Any], position: int, *, bulk: bool) -> None:
        before = store.fence.dropped_records
        store.apply(((record.key, record.value, record.headers) for record in batch), position=position, bulk=bulk)
        dropped = store.fence.dropped_records - before
        if dropped:
            self.dropped_records += dropped
            place = f"{batch[0].topic}/{batch[0].partition}"
            _LOG.warning("changelog %s: %d records before offset %d came from a former owner, too late: left out", place, dropped, position)

    def _finish(self) -> bool:
        """Whoever waits for a copy that has reached its goals gets it. True: there was one."""
        finished = False
        for task, copy in list(self._copies.items()):
            if copy.waiting is None or copy.goals is None or not copy.placed:
                continue
            if any(copy.stores[topic].position < goal for topic, goal in copy.goals.items()):
                continue
            waiting, copy.waiting = copy.waiting, None
            finished = True
            if waiting.done():
                continue  # called off; `put_back` follows
            if not copy.hand_over:
                waiting.set_result({topic: store.fence.owner for topic, store in copy.stores.items()})
                continue
            for store in copy.stores.values():
                store.apply((), position=store.position)  # ends a bulk
            del self._copies[task]
            self._handed_over[task] = copy.stores
            waiting.set_result(copy.stores)
            self._tell(now=True)
        return finished

    # Lags

    async def _keep_ends(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ends_every_s):  # `wait_for` would not heed `stop` right behind `put_back`
                    await self._unknown.wait()
            self._unknown.clear()
            await self._learn_ends()
            self._tell(now=True)

    async def _learn_ends(self) -> None:
        here = {*self._copies, *self._kept, *self._on_disk}
        await self._ends.learn(self._asker.end_offsets, [tp for task in here for tp in self._partitions(task)])

    def _tell(self, *, now: bool) -> None:
        if not now and time.monotonic() < self._told_s + TELL_EVERY_S:
            return
        self._told_s = time.monotonic()
        positions = {task: {topic: store.position for topic, store in copy.stores.items()} for task, copy in self._copies.items()}
        positions |= {task: {topic: store.position for topic, store in stores.items()} for task, stores in self._kept.items()}
        positions |= self._on_disk
        self.lags = {task: self._lag(task, at) for task, at in positions.items()}
        self._progressed()

    def _lag(self, task: TaskId, at: dict[str, int]) -> Lag:
        lag = 0
        for tp in self._partitions(task):
            behind = self._ends.behind(tp, at.get(tp.topic, 0))
            if behind is None:
                return LagSentinel.UNKNOWN
            lag += behind
        return max(1, lag) if task in self._copies and self._copies[task].opening else lag


def _size(record: Any) -> int:
    return int(max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0))


def _close(stores: dict[str, FencedStore]) -> None:
    for each in stores.values():
        each.store.close()
