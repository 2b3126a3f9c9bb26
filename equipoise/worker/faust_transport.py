"""Faust's transport ``equipoise+kafka://``, over `equipoise.kafka`. It serves equipoise's worker.

It differs from Faust's own drivers:

- One event carries the records that one fetch brought for one partition, and the next event comes
  when the agent has handled it. Who reads, and from where, is up to the application
  (`LogConsumer.deliver`); offsets are not committed.
- A rebalance stops no partition that stays: `on_partitions_revoked` and `on_partitions_assigned`
  are sent with what has moved, and agents of other partitions do not hear of it.
- There is no thread, and no topic is made.

The application is a `LogApp`, which has a `connection`. Another application needs topics with a
schema of `Batches` and without acknowledgements (``acks=False``), agents with
``isolated_partitions=True``, and somebody who calls `deliver` for each partition that it is
assigned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Self

import attrs
import faust
from faust.transport.base import Transport
from faust.transport.producer import Producer
from faust.types import TP
from faust.types.transports import ConsumerT
from faust.types.tuples import ConsumerMessage
from mode import Service

from equipoise.kafka import client
from equipoise.kafka.aiokafka_structs import client_assignment, client_subscription
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_client import Generation, GroupClient
from equipoise.kafka.group_membership import GroupMembership

_FAUST_LOG = logging.getLogger("faust.equipoise")
"""Services say in it that they start and stop, as those of Faust do."""
SCHEME = "equipoise+kafka"
NO_GENERATION = "", -1


class LogApp(faust.App):  # type: ignore[misc]  # Faust ships no types
    """An application over `LogTransport`. `shared_as`: topic that agents read -> the topic by which
    the group shares its partitions. `now_s`: the clock of timers. `noted`: as of `GroupMembership`.
    """

    logger = _FAUST_LOG

    connection: Connection
    shared_as: Mapping[str, str]
    now_s: Callable[[], float]
    noted: Callable[[str, BaseException], bool]

    @classmethod
    def make(
        cls,
        name: str,
        connection: Connection,
        *,
        shared_as: Mapping[str, str],
        now_s: Callable[[], float],
        noted: Callable[[str, BaseException], bool],
        **conf: Any,
    ) -> Self:
        """Returns an application. `conf`: as for `faust.App`."""
        app = cls(name, broker=f"{SCHEME}://", **conf)
        app.connection, app.shared_as, app.now_s, app.noted = connection, shared_as, now_s, noted
        return app

    def delivery(self, partition: int) -> Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, None]]:
        """Returns `LogConsumer.deliver` for a partition of the one topic that agents read."""
        (topic,) = self.shared_as
        return partial(self.consumer.deliver, TP(topic, partition))

    async def on_start(self) -> None:
        """Sets the clock of all timers that there are."""
        await super().on_start()
        for service in (self, self.monitor, self.tables.recovery):
            service.itertimer = partial(service.itertimer, clock=self.now_s)


class Batches(faust.Schema):  # type: ignore[misc]  # Faust ships no types
    """Events whose value is what `deliver` was given."""

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, **_: Any) -> Any:
            return app.create_event(None, message.value, message.headers, message)

        return decode


class Nothing(Service):  # type: ignore[misc]  # mode ships no types
    """A service in the place of one that is not needed: `deliver` fetches."""

    logger = _FAUST_LOG

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(**options)


@attrs.frozen
class _Topics:
    """The cluster, as assignors of Faust ask about it."""

    partitions: Mapping[str, set[int]]

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self.partitions.get(topic, set())


class Delivered(ConsumerMessage):  # type: ignore[misc]  # Faust ships no types
    """The message of one event. `handled` is done when its agent asks for the next event."""

    __slots__ = ("_acked", "handled")

    def __init__(self, place: TP, value: Any, generation: int, handled: asyncio.Future[None]) -> None:
        self.handled = handled
        super().__init__(place.topic, place.partition, 0, 0.0, 1, None, None, value, None, 0, 0, tp=place, generation_id=generation)

    @property
    def acked(self) -> bool:
        """Set by the stream."""
        return self._acked

    @acked.setter
    def acked(self, acked: bool) -> None:
        self._acked = acked
        if acked and not self.handled.done():
            self.handled.set_result(None)


def _not_here(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("records come through LogConsumer.deliver; offsets, topics and positions are the application's")


@attrs.frozen
class _Rebalanced:
    """An answer of the group: the member has these partitions from this generation on; None: a
    generation is prepared, in which it may get others.
    """

    member_id: str
    generation: int
    assigned: frozenset[TP] | None


class LogConsumer(Service, ConsumerT):  # type: ignore[misc]  # Faust ships no types
    """The member of the application's group, and the way of records to its agents. `generation`: as
    which member it is in the group, and in which generation, as far as the application has heard.
    """

    logger = _FAUST_LOG

    in_transaction = False
    randomly_assigned_topics: set[str]

    def __init__(self, transport: LogTransport, callback: Any, on_partitions_revoked: Any, on_partitions_assigned: Any, **options: Any) -> None:
        self.transport, self.app, self.callback = transport, transport.app, callback
        self._tell_app = on_partitions_assigned
        self.commit_interval = 0.0
        self.randomly_assigned_topics = set()
        self.generation = NO_GENERATION
        self._assigned: frozenset[TP] = frozenset()
        self._unacked_messages: set[Any] = set()  # which streams look for, and leave empty
        self._changes: asyncio.Queue[_Rebalanced] = asyncio.Queue()
        self._topics: dict[str, str] = {}
        self._membership: GroupMembership | None = None
        self._jobs: list[asyncio.Future[Any]] = []
        super().__init__(**options)

    # Records

    async def deliver(self, place: TP, batch: Callable[[], Awaitable[Any]]) -> None:
        """Gives the agent of a partition what `batch` returns, one event after the other, until it
        is cancelled. Raises what `batch` raises.
        """
        loop = asyncio.get_running_loop()
        while True:
            message = Delivered(place, await batch(), self.app.consumer_generation_id, loop.create_future())
            await self.callback(message)
            await message.handled

    # The group

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group, at the first call."""
        if self._membership is not None:
            return
        app, conf = self.app, self.app.conf
        self._topics = {app.shared_as.get(topic, topic): topic for topic in sorted(topics)}
        self._membership = GroupMembership(
            client=GroupClient(
                app.connection,
                conf.id,
                client_id=conf.broker_client_id,
                session_ms=int(conf.broker_session_timeout * 1_000),
                subscription=lambda protocol: bytes(app.assignor.metadata(set(self._topics)).encode()),
                quiet=False,
            ),
            protocol=app.assignor.name,
            shared=self,
            session_s=conf.broker_session_timeout,
            heartbeat_s=conf.broker_heartbeat_interval,
            noted=app.noted,
        )
        self._jobs = [self.add_future(self._membership.run()), self.add_future(self._tell_changes())]

    async def assign(self, generation: Generation) -> list[tuple[str, bytes]]:
        """See `group_membership.SharedPartitions`."""
        assert self._membership is not None, "subscribe makes it"
        members = {member_id: client_subscription(data) for member_id, _, data in generation.members}
        topics = sorted({topic for each in members.values() for topic in each.subscription})
        assigned = self.app.assignor.assign(_Topics(await self._membership.client.partitions(topics)), members)
        return [(member_id, bytes(each.encode())) for member_id, each in assigned.items()]

    def revoked(self) -> None:
        """See `group_membership.SharedPartitions`."""
        assert self._membership is not None, "subscribe makes it"
        client = self._membership.client
        self._changes.put_nowait(_Rebalanced(client.member_id, client.generation, None))

    def assigned(self, generation: int, member_id: str, assignment: bytes) -> None:
        """See `group_membership.SharedPartitions`."""
        decoded = client_assignment(assignment)
        self.app.assignor.on_assignment(decoded)
        places = frozenset(TP(self._topics[each.topic], each.partition) for each in decoded.partitions() if each.topic in self._topics)
        self._changes.put_nowait(_Rebalanced(member_id, generation, places))

    async def _tell_changes(self) -> None:
        """Tells the application of each change, one after the other. Agents are there as long as
        the application may deliver to them.
        """
        app = self.app
        app.on_rebalance_start()
        await self._tell_app(set(), app.consumer_generation_id)  # nothing has to be recovered: streams flow from now on
        while True:
            change = await self._changes.get()
            if change.assigned is None:
                await app.on_partitions_revoked.send(set(self._assigned))
                continue
            former, self._assigned = self._assigned, change.assigned
            self.generation = change.member_id, change.generation
            await app.agents.on_rebalance(set(), set(change.assigned - former))
            await app.topics.on_partitions_assigned(set(change.assigned | former))
            await app.on_partitions_assigned.send(set(change.assigned))
            for place in sorted(former - change.assigned):
                await app.agents.on_rebalance({place}, set())
            await app.topics.on_partitions_assigned(set(change.assigned))

    async def on_stop(self) -> None:
        """Leaves the group."""
        if self._membership is not None:
            await call_off(*self._jobs, again_s=ENDS_S)
            await self._membership.leave()

    def assignment(self) -> set[TP]:
        return set(self._assigned)

    # What Faust asks of a consumer, and `deliver` makes needless

    @property
    def unacked(self) -> set[Any]:
        return self._unacked_messages

    def track_message(self, message: Any) -> None:
        """`deliver` waits for each message."""

    def ack(self, message: Any) -> bool:
        """Notes that the agents have handled the event."""
        message.acked = True
        return True

    def stop_flow(self) -> None:
        """Does nothing: deliveries end with their sessions."""

    resume_flow = close = stop_flow

    def pause_partitions(self, partitions: Iterable[TP]) -> None:
        """Does nothing: deliveries begin with their sessions."""

    resume_partitions = on_buffer_full = on_buffer_drop = pause_partitions

    def verify_recovery_event_path(self, now: float, place: TP) -> None:
        """Nothing is recovered."""

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commits nothing: where to read from follows from the log."""
        return False

    async def wait_empty(self) -> None:
        """Nothing is waited for: what was not handled is read again."""

    async def on_task_error(self, error: BaseException) -> None:
        """Nothing has to be committed."""

    create_topic = getmany = perform_seek = seek = seek_wait = position = _not_here
    highwater = highwaters = earliest_offsets = topic_partitions = key_partition = _not_here


class LogProducer(Producer):  # type: ignore[misc]  # Faust ships no types
    """Producers of takeover sessions: each of them fails by itself."""

    logger = _FAUST_LOG

    async def flush(self) -> None:
        """Waits for nothing: agents send through `session`, and not through Faust."""

    def session(self, **options: Any) -> client.Producer:
        """Returns a producer. `options`: as for `equipoise.kafka.client.Clients.producer`."""
        made: client.Producer = self.app.connection.clients.producer(**options)
        return made


class LogTransport(Transport):  # type: ignore[misc]  # Faust ships no types
    """Faust finds it by the scheme of `broker`."""

    Consumer, Producer, Fetcher = LogConsumer, LogProducer, Nothing
    driver_version = SCHEME
    app: LogApp
