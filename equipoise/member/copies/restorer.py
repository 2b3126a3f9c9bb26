"""Keeps copies of tasks up to date with their changelogs: standbys, warm-ups, and tasks that open
here.

Everything belongs to one event loop (on a thread of its own, because applying ten thousand
records takes a while), except `lags` and the counts of records, which any thread may read.

One consumer reads all changelogs, with its partitions assigned by hand. Opening tasks come first:
while one of them is behind, copies wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import ENDS_S, Consumer, LeaderEnd, Row, TopicPartition, call_off, size_bytes
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reaching
from equipoise.member.copies.apart_partitions import ApartPartitions
from equipoise.member.copies.changelog_ends import ASK_S, Ask, ChangelogEnds, ask_ends
from equipoise.member.copies.checks import CopyChecks
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.fencing import CopiedTopic, FencedStore, Owners, TakeIf
from equipoise.member.copies.kept_stores import CopyStores, put_down
from equipoise.member.copies.stores import DamagedStoreError, OpenStore, StateStore, StoreError
from equipoise.member.copies.throttle import Throttle
from equipoise.member.tasks.held_sources import HeldSources, ReadTo
from equipoise.member.tasks.refusals import is_missing_right

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
MOST_RECORDS = 10_000
"""Records applied at once, at most. More is hardly faster, and makes the throttle coarser and a
crash undo more.
"""
BULK_LAG = 20_000
"""Lag, in records, above which a copy is written in bulk."""
REPORT_EVERY_S = 0.1
"""Shortest time between two reports of ordinary progress."""
RETRY_S = 0.5
PARTS = 8
"""So many questions for partitions that cannot be read are asked at once."""
FOLLOW_WAIT_MS = 500
MARKER_WAIT_MS = 5
FETCH_WAIT_MS = 100
"""How long a broker holds a fetch that finds nothing. A partition that is assigned meanwhile has to
wait for that, and so has one of which records were waiting here when the fetch was sent.
"""
OPENING_FETCH_WAIT_MS = 10
"""The same while a task opens."""
FETCH_BYTES = 4 * 2**20
MAX_IDLE_MS = 10_000
"""A member without copies has no connection to restore, after this time."""


def _never(_: Owners) -> bool:
    return False


@attrs.define(eq=False)
class _RestoredCopy:
    stores: dict[str, FencedStore]
    """Changelog topic -> store."""
    placed: bool = False
    """Its offsets were checked against the ranges of its changelogs."""
    sought: bool = False
    """The consumer was moved to the stores' offsets. Records that it had fetched for a former
    copy of the task are out of date.
    """
    opening: bool = False
    """The task opens here: it is restored before copies of other tasks."""
    goals: Mapping[str, int] | None = None
    """Changelog topic -> offset to reach before `waiting` is done; None: the changelog's end,
    which is requested next.
    """
    waiting: asyncio.Future[tuple[Owners, dict[str, FencedStore] | None]] | None = None
    take_if: TakeIf = _never
    """Whether the stores leave this thread then, and are in the result of `waiting`."""


def _parts(partitions: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
    size = -(-len(partitions) // PARTS)
    return [partitions[at : at + size] for at in range(0, len(partitions), size)] if partitions else []


class ChangelogRestorer:
    """Keeps the copies of one member.

    Records of uncommitted transactions are not read, with either guarantee, because a task may
    change its guarantee. Late records of former owners do not count (`fencing`).

    `changelogs`: task -> its changelog topics, for every stateful task. `directory`: None: stores
    are in memory. `ends_every_s`: time between two requests for the changelogs' ends. `rack`: lets
    brokers serve reads from a near replica; ends are requested from leaders all the same.
    `ask_owned`: asks for the ends of changelogs of running tasks; None: as for those of copies.
    `now_ms`: the time by the brokers' clocks, since 1970.
    `progressed` is called from this loop when lags have changed: at most every REPORT_EVERY_S, but
    at once when a copy comes within `ready_lag_records`. `failed` is called when it cannot go on.
    """

    def __init__(
        self,
        connection: Connection,
        changelogs: Mapping[TaskId, tuple[str, ...]],
        open_store: OpenStore,
        directory: StateDirectory | None,
        *,
        runtime: Runtime = DEPLOYED,
        throttle: Throttle,
        ends_every_s: float,
        rack: str | None = None,
        progressed: Callable[[], None],
        failed: Callable[[BaseException], None],
        brokers: BrokerWatch | None = None,
        ask_owned: Ask[LeaderEnd] | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        self._ask_owned = ask_owned
        self._now_ms = now_ms
        self._brokers = brokers or BrokerWatch("restoring", runtime.monotonic_s)
        self._connection = connection
        self._changelogs = changelogs
        self._monotonic_s = runtime.monotonic_s
        self._runtime = runtime
        self._has_directory = directory is not None
        self._throttle = throttle
        self.ready_lag_records = 0
        """Lag with which a copy is ready. The member sets it, from any thread."""
        self._ends_every_s = ends_every_s
        self._rack = rack
        self._progressed = progressed
        self._failed = failed
        self._consumer: Consumer
        self._asker: Consumer
        """A consumer that only requests offsets, on connections of its own: a broker answers the
        requests of a connection in order, and a fetch waits for records.
        """
        self._checks: CopyChecks
        self._copies: dict[TaskId, _RestoredCopy] = {}
        self._stores = CopyStores(changelogs, open_store, directory, runtime.monotonic_s)
        """Stores that are neither followed nor handed over."""
        self._handed_over: dict[TaskId, dict[str, FencedStore]] = {}
        self._ends = ChangelogEnds()
        self._unknown = asyncio.Event()
        """Set when ends were forgotten, so that they are requested at once."""
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._held: frozenset[TopicPartition] = frozenset()
        """Those of them that are not fetched while tasks open."""
        self._apart = ApartPartitions(runtime.monotonic_s)
        self._waiting = HeldSources("changelog")
        self._woken = asyncio.Event()
        self._reported_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._busy_s = 0.0
        self._bulk_records = 0
        self.lags: dict[TaskId, Lag] = {}
        """Lag of every copy here, in records; of an opening task at least 1, until its stores are
        handed over. The dict is replaced, never changed. UNKNOWN unless every end is known:
        otherwise the task might be granted to a member that has most of it to restore
        (docs/protocol.md#m2).
        """
        self.restored_records = 0
        """Number of records that were applied to copies and opening tasks."""
        self.dropped_records = 0
        """Number of late records of former owners that were ignored."""

    @property
    def damaged_copies(self) -> int:
        """Returns how many copies were given up because they were damaged. Any thread may call it."""
        return self._stores.damaged_copies

    @property
    def restored_records_per_s(self) -> float:
        """Measured restore rate, throttled or not; 0: too little was restored to measure it."""
        return self._bulk_records / self._busy_s if self._busy_s else 0.0

    async def start(self) -> None:
        """Connects, and learns the lags of the copies on disk. Raises InputError when no broker
        answers.
        """
        with reaching(self._connection):
            clients = self._connection.clients
            self._consumer = clients.consumer(
                read_committed=True,
                rack=self._rack,
                max_partition_fetch_bytes=FETCH_BYTES,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                connections_max_idle_ms=MAX_IDLE_MS,
                as_rows=True,
            )
            self._asker = clients.consumer(read_committed=True, connections_max_idle_ms=MAX_IDLE_MS)
            self._checks = CopyChecks(self._asker, self._now_ms)
            for consumer in (self._consumer, self._asker):
                await consumer.start()
        if self._has_directory:
            stored = self._stores.stored()
            places = [TopicPartition(topic, task.partition) for task, topic in stored]
            await asyncio.gather(self._runtime.run_blocking(self._stores.open_all, stored), self._ends.learn(self._asker.end_offsets, places))
        self._report(now=True)
        self._tasks = [asyncio.create_task(self._run(), name="restore"), asyncio.create_task(self._keep_ends(), name="changelog ends")]
        for each in self._tasks:
            each.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Closes all connections and stores."""
        await call_off(*self._tasks, again_s=ENDS_S)
        for consumer in (getattr(self, "_consumer", None), getattr(self, "_asker", None)):  # `start` may have failed before
            if consumer is not None:
                await consumer.stop()
        left = [each.stores for each in self._copies.values()] + self._stores.take_all()
        for waiting in [each.waiting for each in self._copies.values() if each.waiting is not None]:
            waiting.cancel()
        self._copies.clear()
        for stores in left:
            try:
                put_down(stores)
            except StoreError as error:  # its changelog has all of it; the others are to be closed, too
                _LOG.error("%s", error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # Orders

    def order(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls one of the methods below, for those who do not wait for its end: an error of a
        store is reported to `failed`.
        """
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001  # nobody else would hear of it
            self._failed(error)

    def follow(self, task: TaskId) -> None:
        """Keeps a copy of `task` up to date."""
        if task not in self._copies:
            self._copies[task] = _RestoredCopy(self._take_stores(task))
            self._woken.set()

    def leave(self, task: TaskId) -> None:
        """Stops following `task`. Its copy stays as it is."""
        copy = self._copies.pop(task, None)
        if copy is not None:
            if copy.waiting is not None:
                copy.waiting.cancel()
            self._woken.set()
            self._stores.put_away(task, copy.stores)
            self._report(now=True)

    async def restore(self, task: TaskId, take_if: TakeIf = _never) -> tuple[Owners, dict[str, FencedStore] | None]:
        """Restores `task` to the present ends of its changelogs. Returns changelog topic -> owner
        there; None: nobody has written to it. If `take_if` returns True for these owners, the
        stores come with them, handed over as by `open`; otherwise they follow the changelogs until
        `open` or `put_back`, which also cancels this.
        """
        return await self._reached(task, None, take_if)

    async def open(self, task: TaskId, goals: Mapping[str, int]) -> dict[str, FencedStore]:
        """Restores `task` at least up to `goals` (changelog topic -> offset of the record to apply
        next), and hands its stores over until `put_back`, which also cancels this. Topics that
        `goals` lacks stay where they are.
        """
        _, stores = await self._reached(task, goals, lambda _: True)
        assert stores is not None, "they were asked for"
        return stores

    async def _reached(self, task: TaskId, goals: Mapping[str, int] | None, take_if: TakeIf) -> tuple[Owners, dict[str, FencedStore] | None]:
        copy = self._copies.get(task)
        if copy is None:
            copy = self._copies[task] = _RestoredCopy(self._take_stores(task))
        copy.opening, copy.goals, copy.take_if = True, goals, take_if
        copy.waiting = asyncio.get_running_loop().create_future()
        self._woken.set()
        return await copy.waiting

    def put_back(self, task: TaskId) -> None:
        """Takes the stores of `task` back, or cancels its restore. Its copy stays as it is."""
        stores = self._handed_over.pop(task, None)
        if stores is None:
            self.leave(task)
        else:
            self._stores.put_away(task, stores)
            self._ends.forget(self._partitions(task))  # its next owner may have written since
            self._unknown.set()
            self._report(now=True)

    def _take_stores(self, task: TaskId) -> dict[str, FencedStore]:
        if not self._stores.has(task):
            self._ends.forget(self._partitions(task))  # not requested while there was no copy here
        return self._stores.take(task)

    def give_up(self, task: TaskId, error: DamagedStoreError) -> None:
        """Stores of `task`, which are handed over or followed, are damaged: they are wiped when
        they are put back. Raises StoreError when that happened a moment ago.
        """
        self._stores.note_given_up(task, error)
        copy = self._copies.get(task)
        for each in (self._handed_over.get(task) or ({} if copy is None else copy.stores)).values():
            each.is_damaged = True

    def _wipe_damaged(self, task: TaskId, error: DamagedStoreError) -> None:
        """Wipes stores that the restorer has found damaged itself."""
        self._stores.note_given_up(task, error)
        copy = self._copies[task]
        for each in copy.stores.values():
            if each.is_damaged:
                each.wipe()
        copy.placed = copy.sought = False
        self._assigned = frozenset()

    def forget_kept(self, wanted: Iterable[TaskId]) -> None:
        """Drops copies in memory that are not in `wanted`, and closes stores on disk."""
        for task in self._stores.kept_beside(wanted):
            self._stores.drop(task)
            self._report(now=True)

    async def read(self, task: TaskId, topic: str, read: Callable[[StateStore], T]) -> tuple[T, Lag] | None:
        """Reads the store of a copy that is followed. Returns also its lag; None: there is none, or
        the task has no such changelog. Raises StoreError.
        """
        copy = self._copies.get(task)
        store = None if copy is None or copy.opening else copy.stores.get(topic)
        return None if store is None or store.is_damaged else (read(store.store), self.lags.get(task, LagSentinel.UNKNOWN))

    # Reading

    async def _run(self) -> None:
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError

        while True:
            self._woken.clear()
            try:
                if not self._copies:
                    self._rest()
                    await self._woken.wait()
                    continue
                await self._place()
                if self._finish():
                    continue
                served = self._served()
                self._hold_all_but(served)
                wait_s = self._throttle.wait_s()
                if wait_s:
                    await self._unless_woken(asyncio.sleep(wait_s))
                elif served:
                    most = self._throttle.most_records(MOST_RECORDS)
                    begun_s = self._monotonic_s()
                    is_opening = any(copy.opening for copy in self._copies.values())
                    self._consumer.hold_fetches(OPENING_FETCH_WAIT_MS if is_opening else FETCH_WAIT_MS)
                    # A transaction marker moves the position without a record, so `getmany` must
                    # return early for those that wait for the end.
                    wait_ms = MARKER_WAIT_MS if is_opening else FOLLOW_WAIT_MS
                    if self._apart.is_each_read(begun_s):
                        batches = await self._get_each(served, wait_ms, most)
                    else:
                        batches = await self._unless_woken(self._consumer.getmany(*served, timeout_ms=wait_ms, max_records=most))
                    await self._take(served, batches or {}, begun_s)
                elif self._apart:  # until a partition that cannot be read is tried again
                    await self._unless_woken(asyncio.sleep(RETRY_S))
            except DamagedStoreError as error:
                damaged = [task for task, copy in self._copies.items() if any(each.is_damaged for each in copy.stores.values())]
                if not damaged:
                    raise
                for task in damaged:
                    self._wipe_damaged(task, error)
            except OffsetOutOfRangeError as error:
                self._check_again(*(error.args[0] if error.args else ()))
            except KafkaError as error:
                if not await self._set_unreadable_apart() and not self._brokers.noted("restoring", error):
                    _LOG.warning("restoring failed, retrying: %r", error)
                await asyncio.sleep(RETRY_S)

    async def _get_each(self, served: Collection[TopicPartition], wait_ms: int, most: int) -> dict[TopicPartition, Sequence[Row]]:
        """Records of the partitions, each read by itself, so that one that cannot be read holds up
        no other.
        """
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError

        if self._consumer.ready().isdisjoint(served):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1_000):
                    await self._unless_woken(self._consumer.fetched())
        batches: dict[TopicPartition, Sequence[Row]] = {}
        failed: dict[TopicPartition, Exception] = {}
        for tp in sorted(self._consumer.ready() & frozenset(served)):
            try:
                found: Any = await self._consumer.getmany(tp, timeout_ms=0, max_records=most)
                batches.update(found)
            except OffsetOutOfRangeError as error:
                self._check_again(*(error.args[0] if error.args else ()))
            except KafkaError as error:
                failed[tp] = error
        self._set_apart(failed)
        self._apart.put_right(batches)
        return batches

    async def _set_unreadable_apart(self) -> bool:
        """After an error that names no partition: looks for the partitions that fail while others
        do not, and sets them apart. Returns whether there are some.

        Few partitions are asked for together, and of these that fail fewer: a question for each of
        thousands would take longer than it may.
        """
        from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

        unanswered = (TimeoutError, KafkaTimeoutError, KafkaConnectionError)
        failed: dict[TopicPartition, Exception] = {}

        async def look(partitions: Sequence[TopicPartition]) -> Exception | None:
            try:
                async with asyncio.timeout(ASK_S):
                    await self._asker.end_offsets(partitions)
                    await self._checks.ask_ids(partitions)
            except TimeoutError:
                return TimeoutError(f"no answer within {ASK_S:.0f} s")
            except KafkaError as error:
                refused: Exception = error
                return refused
            return None

        now_s = self._monotonic_s()
        partitions = [tp for task in self._copies for tp in self._partitions(task) if not self._apart.includes_any([tp])]
        first = parts = _parts(partitions)
        while parts:
            errors = await asyncio.gather(*map(look, parts))
            if parts is first and len(parts) > 1 and all(isinstance(each, unanswered) for each in errors):
                return False  # no broker answers
            wrong = [(part, error) for part, error in zip(parts, errors, strict=True) if error is not None]
            failed |= {part[0]: error for part, error in wrong if len(part) == 1}
            parts = [each for part, _ in wrong if len(part) > 1 for each in _parts(part)]
        if len(failed) == len(partitions) and len(partitions) > 1 and not any(map(is_missing_right, failed.values())):
            return False
        self._set_apart(failed)
        # Fetched records of which one is damaged are read again, each partition by itself.
        self._apart.read_each(now_s)
        return bool(failed)

    def _set_apart(self, failed: Mapping[TopicPartition, Exception]) -> None:
        forbidden = self._apart.put(failed)
        for task, copy in self._copies.items() if forbidden else ():
            if copy.waiting is not None and not copy.waiting.done():
                for tp in forbidden.intersection(self._partitions(task)):
                    copy.waiting.set_exception(failed[tp])  # who opens it decides
                    break

    def _is_apart(self, task: TaskId) -> bool:
        return self._apart.includes_any(self._partitions(task))

    def _hold_all_but(self, served: Collection[TopicPartition]) -> None:
        """Fetches no other partitions, and drops what was fetched of them: while records of one
        partition are not taken, aiokafka sends its broker no fetch, for 0.1 s.
        """
        held = self._assigned.difference(served)
        self._consumer.resume(*sorted(self._held - held))
        self._consumer.pause(*sorted(held - self._held))
        self._held = held
        fetched = held.intersection(self._consumer.ready())
        if fetched:
            for task, copy in self._copies.items():
                for tp, store in self._partitions(task, copy).items():
                    if tp in fetched:
                        self._consumer.seek(tp, store.offset)

    def _rest(self) -> None:
        """Fetches nothing while there is no copy: else it would fetch, and keep, what the running
        tasks write.
        """
        if self._assigned:
            last = min(self._assigned)  # a consumer has at least one partition
            self._consumer.assign([last])
            self._consumer.pause(last)
            self._assigned = self._held = frozenset()

    async def _unless_woken(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The coroutine's result; None, and it is cancelled, when `_woken` is set first."""
        task = asyncio.ensure_future(coroutine)
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((task, woken), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            await call_off(task, woken, again_s=ENDS_S)

    async def _place(self) -> None:
        """Checks new copies against their changelogs, sets the goals of opening tasks, and assigns
        partitions to the consumer.
        """
        looked_at: set[TaskId] = set()
        # Includes copies that come meanwhile: each new assignment waits for the fetch under way.
        while coming := {task: copy for task, copy in self._copies.items() if task not in looked_at and not self._is_apart(task)}:
            looked_at.update(coming)
            opening = {task: copy for task, copy in coming.items() if copy.waiting is not None and copy.goals is None}
            if opening:
                placed_stores = {tp: store for task, copy in opening.items() if copy.placed for tp, store in self._partitions(task, copy).items()}
                ends, forked = await asyncio.gather(
                    self._asker.end_offsets([tp for task in opening for tp in self._partitions(task)]), self._checks.forked(placed_stores)
                )
                self._check_again(*forked)
                for task, copy in opening.items():
                    copy.goals = {tp.topic: ends[tp] for tp in self._partitions(task)}
                self._ends.answered(ends)
            await self._check_ranges({task: copy for task, copy in coming.items() if not copy.placed})
        # A copy that replaced another meanwhile waits for the next look: its offset may be out of
        # its changelog's range.
        placed = {task: copy for task, copy in self._copies.items() if copy.placed}
        partitions = {tp: store for task, copy in placed.items() for tp, store in self._partitions(task, copy).items()}
        unsought = {tp for task, copy in placed.items() if not copy.sought for tp in self._partitions(task, copy)}
        if placed and self._assigned != partitions.keys():
            new = partitions.keys() - self._assigned
            self._consumer.assign(sorted(partitions))
            self._consumer.resume(*new)
            unsought |= new
            self._assigned, self._held = frozenset(partitions), self._held.intersection(partitions).difference(new)
        for tp in sorted(unsought):
            self._consumer.seek(tp, partitions[tp].offset)
        for copy in placed.values():
            copy.sought = True

    async def _check_ranges(self, copies: Mapping[TaskId, _RestoredCopy]) -> None:
        """Wipes each store that is no copy of its changelog: it is of another topic of this name,
        or its offset is out of range. Asks for all of them at once.
        """
        partitions = {tp: store for task, copy in copies.items() for tp, store in self._partitions(task, copy).items()}
        if not partitions:
            return
        spans = await self._checks.spans(partitions)
        answered: list[TopicPartition] = []
        for task, copy in copies.items():
            if self._copies.get(task) is not copy:
                continue  # left meanwhile: its stores are closed
            for tp, store in self._partitions(task, copy).items():
                self._ends.answered({tp: spans.ends[tp].offset})
                spans.settle(tp, store)
                if not self._apart.is_forbidden(tp):
                    answered.append(tp)
            copy.placed = True
        self._apart.put_right(answered)

    async def _look_for_new_topics(self) -> None:
        """Checks the copies again whose changelogs were deleted and made again. Their owners notice
        by the offsets of what they write.
        """
        from aiokafka.errors import KafkaError

        try:
            async with asyncio.timeout(ASK_S):
                ids = await self._checks.ask_ids(tp for task, copy in self._copies.items() if copy.placed for tp in self._partitions(task))
        except (KafkaError, TimeoutError):
            return  # looked for again with the next ends
        again = [
            tp
            for task, copy in self._copies.items()
            if copy.placed
            for tp, store in self._partitions(task, copy).items()
            if (known := store.copied) is not None and CopiedTopic(ids.get(tp.topic, ""), known.begin).differs(known)
        ]
        if again:
            self._check_again(*again)
            self._woken.set()

    def _check_again(self, *partitions: TopicPartition) -> None:
        """Checks the copies of these partitions again: the records to read next were deleted."""
        if not partitions:
            return
        for task, copy in self._copies.items():
            if copy.placed and not set(self._partitions(task)).isdisjoint(partitions):
                copy.placed = False
        self._assigned = frozenset()

    def _partitions(self, task: TaskId, copy: _RestoredCopy | None = None) -> dict[TopicPartition, FencedStore]:
        stores: Mapping[str, Any] = dict.fromkeys(self._changelogs[task]) if copy is None else copy.stores
        return {TopicPartition(topic, task.partition): store for topic, store in stores.items()}

    def _served(self) -> dict[TopicPartition, tuple[TaskId, _RestoredCopy]]:
        readable = [task for task in self._copies if not self._apart or not self._is_apart(task)]
        opening = [task for task in readable if self._copies[task].opening]
        served = [(task, self._copies[task]) for task in opening or readable]
        return {tp: (task, copy) for task, copy in served if copy.placed for tp in self._partitions(task)}

    async def _take(
        self, served: dict[TopicPartition, tuple[TaskId, _RestoredCopy]], batches: Mapping[TopicPartition, Sequence[Row]], begun_s: float
    ) -> None:
        records = taken_bytes = 0
        behind = more = False
        forked = await self._forked_by(served)
        self._check_again(*forked)
        for tp, (task, copy) in served.items():
            if self._copies.get(task) is not copy or tp in forked:
                continue  # left meanwhile; a new copy reads again
            store = copy.stores[tp.topic]
            batch = batches.get(tp, [])
            position = await self._consumer.position(tp)  # behind transaction markers, too
            self._ends.read(tp, position, self._consumer.last_stable_offset(tp))
            end = self._ends.known.get(tp, position)
            if not batch and position <= store.offset:
                continue
            was_behind = end - store.offset > self.ready_lag_records
            bulk = end - position > BULK_LAG
            self._apply(tp, store, batch, position, bulk=bulk)
            records += len(batch)
            taken_bytes += sum(size_bytes(key, value) for key, value, _, _ in batch) if self._throttle.counts_bytes else 0
            more = more or end > position
            behind = behind or (was_behind and end - position <= self.ready_lag_records)
        self._throttle.taken(records, taken_bytes, more=more)
        self.restored_records += records
        if records >= MOST_RECORDS // 10:  # small batches do not measure the rate
            self._bulk_records += records
            self._busy_s += self._monotonic_s() - begun_s
        if records:
            self._report(now=behind)

    async def _forked_by(self, served: Mapping[TopicPartition, tuple[TaskId, _RestoredCopy]]) -> dict[TopicPartition, int]:
        """Does what `CopyChecks.forked` does, for stores of which a later leader epoch was fetched."""
        stores = {tp: copy.stores[tp.topic] for tp, (_, copy) in served.items()}
        later = {tp: store for tp, store in stores.items() if self._consumer.fetched_epoch(tp) > store.leader_epoch}
        if not later:
            return {}
        forked = await self._checks.forked(later)
        for tp, store in later.items():
            if tp not in forked:
                store.leader_epoch = self._consumer.fetched_epoch(tp)
        return forked

    def _apply(self, tp: TopicPartition, store: FencedStore, batch: Sequence[Row], position: int, *, bulk: bool) -> None:
        before = store.fence.dropped_records
        # Kafka refuses records without a key in compacted topics.
        store.apply(batch, offset=position, bulk=bulk)
        dropped = store.fence.dropped_records - before
        if dropped:
            self.dropped_records += dropped
            _LOG.warning("changelog %s/%d: ignoring %d late records of a former owner before offset %d", *tp, dropped, position)

    def _finish(self) -> bool:
        """Completes the futures of copies that have reached their goals. True: there was one."""
        finished = handed_over = False
        for task, copy in list(self._copies.items()):
            if copy.waiting is None or copy.goals is None or not copy.placed:
                continue
            if any(copy.stores[topic].offset < goal for topic, goal in copy.goals.items()):
                continue
            waiting, copy.waiting = copy.waiting, None
            finished = True
            if waiting.done():
                continue  # cancelled; `put_back` follows
            owners = {topic: store.fence.owner for topic, store in copy.stores.items()}
            if not copy.take_if(owners):
                waiting.set_result((owners, None))
                continue
            for store in copy.stores.values():
                store.apply((), offset=store.offset)  # ends bulk writing
            del self._copies[task]
            self._handed_over[task] = copy.stores
            waiting.set_result((owners, copy.stores))
            handed_over = True
        if handed_over:
            self._report(now=True)
        return finished

    # Lags

    async def _keep_ends(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ends_every_s):  # `wait_for` may miss a cancel right after `put_back`
                    await self._unknown.wait()
            self._unknown.clear()
            await self._learn_ends()
            self._look_for_transactions()
            self._report(now=True)

    async def _learn_ends(self) -> None:
        here = {*self._copies, *self._stores.tasks}
        places = [tp for task in here for tp in self._partitions(task)]
        await asyncio.gather(self._ends.learn(self._asker.end_offsets, places), self._look_for_new_topics(), self._note_epochs())

    def _look_for_transactions(self) -> None:
        read, places = self._consumer, self._assigned & self._served().keys()
        reads = {tp: ReadTo(read.next_offset(tp), read.last_stable_offset(tp), read.highwater(tp)) for tp in places}
        self._waiting.look(self._monotonic_s(), reads)

    @property
    def troubles(self) -> list[str]:
        """Returns what holds up restores from outside. Any thread may call it."""
        return self._waiting.troubles

    async def _note_epochs(self) -> None:
        """Notes for stores of running tasks in which leader epochs the changelogs have what is in
        them: an owner reads no records that would tell. What it writes between a new leader and
        this is taken for lost if it ends before this.
        """
        stores = {TopicPartition(topic, task.partition): store for task, each in self._handed_over.items() for topic, store in each.items()}
        offsets = {tp: store.offset for tp, store in stores.items()}
        for tp, end in (await ask_ends(self._ask_owned or self._asker.leader_ends, sorted(stores))).items() if stores else ():
            if offsets[tp] <= end.offset:
                stores[tp].leader_epoch = max(stores[tp].leader_epoch, end.epoch)

    def _report(self, *, now: bool) -> None:
        if not now and self._monotonic_s() < self._reported_s + REPORT_EVERY_S:
            return
        self._reported_s = self._monotonic_s()
        offsets = {task: {topic: store.offset for topic, store in copy.stores.items()} for task, copy in self._copies.items()}
        offsets |= self._stores.offsets()
        self.lags = {task: self._lag(task, at) for task, at in offsets.items()}
        self._progressed()

    def _lag(self, task: TaskId, at: dict[str, int]) -> Lag:
        lag = 0
        for tp in self._partitions(task):
            behind = self._ends.behind(tp, at.get(tp.topic, 0))
            if behind is None:
                return LagSentinel.UNKNOWN
            lag += behind
        return max(1, lag) if task in self._copies and self._copies[task].opening else lag
