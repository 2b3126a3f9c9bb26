"""The worker: a Faust app that says which partitions are ours. `host` does the rest.

The app subscribes to the checkpoints, which have the partitions of the facts and next to no
traffic, and a partition of theirs that falls to it is the partition of the facts to lead. The facts
themselves are read by the host's own consumer: through Faust's stream, which hands each from a
thread of its own to a queue to an agent, a decision took 1.2 ms longer, and the worker twice the
CPU.

::

    async with Worker(settings) as worker:
        ...                                    # in a process of its own: `equipoise worker`
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from equipoise.assignors.common.source_lag import auto_offset_reset
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import LogOpened
from equipoise.events.log.kafka.connection import MISSING
from equipoise.events.log.kafka.identity import log_topic_ids
from equipoise.events.log.kafka.opening import NotNowError, NotThereError, ensure_topics, open_partitions, partition_count, reaching, reader
from equipoise.events.log.kafka.topics import MUST_BE
from equipoise.statemachine.partition import GroupLead
from equipoise.worker.host import PartitionHost
from equipoise.worker.http import Server
from equipoise.worker.metrics import GroupCollector, WorkerMetrics
from equipoise.worker.observer import Observer, sources_of, topics_of
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_PARTING_S = 2.0
"""For last checkpoints, when a partition goes."""
_STOP_FAUST_S = 2.0
_WATCH_S = 0.5
_AGAIN_S = 2.0
_LAGS_S = 5.0
"""How long brokers may take to say how far one group is behind."""
_BROKERS_MAY_TAKE_S = 60.0
"""How long a worker that starts waits for brokers that answer, but cannot do what it asks yet."""
_LOOK_AT_LOG_S = 2.0
"""Between two looks whether the log's topics are still the same, for a worker that has no partition
of them.
"""


class Worker:
    """Leads until it is stopped. One process may have several; a group is led by the one that has
    its partition.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.metrics = WorkerMetrics()
        self.http_port = 0
        self._opened: LogOpened | None = None
        self._topic_ids: tuple[str, ...] | None = None
        """Of the log that `_opened` names; None: the brokers give none."""
        self._is_replaced = False
        self._hosts: dict[int, PartitionHost] = {}
        self._assigned = False
        self._app: Any = None
        self._server: Server | None = None
        self._observer = Observer(settings)
        self._tasks: list[asyncio.Task[None]] = []
        self._folder = ""
        self._problem = ""
        self.metrics.registry.register(GroupCollector(lambda: (lead for _, lead in self.groups()), self._positions))

    # Life

    async def start(self) -> None:
        """Returns when it is running; it leads once Faust has given it partitions. Raises
        InputError for wrong settings of its own or of topics.
        """
        try:
            import faust  # noqa: F401 here, so that what is missing is said before anything is begun
        except ImportError:
            raise InputError(MISSING) from None
        settings = self.settings
        await self._open_patiently()
        self._folder = tempfile.mkdtemp(prefix="equipoise-worker-")
        try:
            self._server = Server(self, settings.http_host, settings.http_port)
            self.http_port = await self._server.start()
            await self._start_faust()
        except BaseException:
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._observe_on()), asyncio.create_task(self._watch())]
        assert self._opened is not None, "it was opened above"
        _LOG.info("leading log %s of %s/%s; http://%s:%d", self.log_id, settings.bootstrap, settings.prefix, settings.http_host, self.http_port)

    async def _open_patiently(self) -> None:
        """A worker often starts while a broker restarts: what may be otherwise in a moment is tried
        again. Raises InputError.
        """
        end_s = time.monotonic() + _BROKERS_MAY_TAKE_S
        while True:
            try:
                await self._open(make=True)
                return
            except NotNowError as error:
                if time.monotonic() > end_s:
                    raise
                _LOG.warning("%s; asking again", error)
            await asyncio.sleep(_WATCH_S)

    async def _open(self, *, make: bool) -> None:
        """Learns which log the topics hold, and opens one if they are empty. `make`: makes topics
        that are missing. Raises InputError.
        """
        settings, topics = self.settings, self.settings.topics
        if make or all([await partition_count(settings, topics.name_of(what)) for what in MUST_BE]):
            await ensure_topics(settings, topics, partitions=settings.partitions, replication=settings.replication)
        else:
            raise NotThereError(f"the topics of {topics.prefix} are gone: start another worker, or this one again, to make a new log")
        async with reader(settings) as consumer:
            while True:
                ids = await self._ask_topic_ids(consumer)
                self._opened = await open_partitions(settings, topics)
                if await self._ask_topic_ids(consumer) == ids:
                    break
        self._topic_ids = ids

    async def _ask_topic_ids(self, consumer: Any) -> tuple[str, ...] | None:
        """Patiently: brokers hear of new topics one after the other. Raises InputError."""
        from aiokafka.errors import KafkaError

        end_s = time.monotonic() + _LOOK_AT_LOG_S
        while True:
            with reaching(self.settings):
                try:
                    return await log_topic_ids(consumer, self.settings.topics)
                except KafkaError:
                    if time.monotonic() > end_s:
                        raise
            await asyncio.sleep(_WATCH_S)

    async def stop(self) -> None:
        """Ends within 5 s: last checkpoints, the partitions given back, the ports closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._drop(list(self._hosts))
        await self._stop_faust()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._observer.close(), 0.5)
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # What it tells

    @property
    def log_id(self) -> str:
        return "" if self._opened is None else self._opened.log_id

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group led here, by name."""
        leads = [(host.partition, lead) for host in self._hosts.values() for lead in host.lead.groups.values()]
        yield from sorted(leads, key=lambda pair: pair[1].name)

    def unhealthy(self) -> str:
        """Why it does not do its work; "" when it does."""
        return self._problem

    def unready(self) -> str:
        """Why not every partition that is ours is led; "" when each is."""
        if self._problem or not self._assigned:
            return self._problem or "no partitions were assigned yet"
        waiting = [host for _, host in sorted(self._hosts.items()) if not host.leading]
        return ", ".join(f"partition {host.partition} is being taken over{host.problem and ': ' + host.problem}" for host in waiting)

    def _positions(self) -> Iterable[tuple[int, int, bool]]:
        return [(host.partition, host.lead.position, host.leading) for _, host in sorted(self._hosts.items())]

    # Faust

    async def _start_faust(self) -> None:
        import faust

        settings = self.settings
        app = faust.App(
            f"{settings.prefix}.worker",
            broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
            broker_credentials=_credentials(settings),
            broker_session_timeout=settings.worker_session_timeout_ms / 1000,
            broker_heartbeat_interval=settings.worker_session_timeout_ms / 5000,
            broker_commit_interval=1.0,
            consumer_auto_offset_reset="latest",
            stream_wait_empty=False,  # what was not acknowledged must not hold a rebalance up
            store="memory://",
            datadir=self._folder,
            autodiscover=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            loop=asyncio.get_running_loop(),
        )
        places = settings.topics.checkpoints
        topic = app.topic(places, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True)

        async def pass_by(stream: Any) -> None:
            async for _ in stream:
                pass  # who takes the partition over reads them all by itself

        async def assigned(app: Any, assigned: Iterable[Any], **_: Any) -> None:
            await self._drop(list(self._hosts))
            self._take([place.partition for place in assigned if place.topic == places])

        async def revoked(app: Any, revoked: Iterable[Any], **_: Any) -> None:
            await self._drop([place.partition for place in revoked if place.topic == places])

        app.agent(topic, name=places)(pass_by)
        app.on_partitions_assigned.connect(assigned, weak=False)
        app.on_partitions_revoked.connect(revoked, weak=False)
        app.finalize()
        self._app = app
        await app.start()

    async def _stop_faust(self) -> None:
        app, self._app = self._app, None
        self._assigned = False
        if app is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(app.stop(), _STOP_FAUST_S)

    async def _watch(self) -> None:
        """Faust that has ended by itself is started again, and so is all when the log has been
        replaced.
        """
        looked_s = time.monotonic()
        gone = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            if time.monotonic() - looked_s > _LOOK_AT_LOG_S:
                gone = await self._look_whether_log_is_the_same(gone)
                looked_s = time.monotonic()
            if self._is_replaced:
                await self._lead_what_is_there()
                continue
            if self._app is not None and not (self._app.crashed or self._app.should_stop):
                continue
            self._problem = "Faust has ended and is started anew"
            _LOG.error("%s%s", self._problem, "" if self._app is None else f": {self._app.crash_reason!r}")
            await self._drop(list(self._hosts))
            await self._stop_faust()
            try:
                await self._start_faust()
                self._problem = ""
            except Exception as error:  # noqa: BLE001 a broker that is away, most likely: try again until it is back
                _LOG.warning("Faust does not start: %s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _look_whether_log_is_the_same(self, gone: int) -> int:
        """Sets `_is_replaced`. `gone`: how often in a row the topics were not there; returns that
        number now.
        """
        from aiokafka.errors import UnknownTopicOrPartitionError

        try:
            async with asyncio.timeout(_LOOK_AT_LOG_S):
                same = await self._observer.log_topic_ids(self.settings.topics) == self._topic_ids
        except UnknownTopicOrPartitionError:  # once: a broker that begins may not know of them yet
            self._is_replaced = self._is_replaced or gone > 0
            return gone + 1
        except Exception as error:  # noqa: BLE001 the brokers are away: the hosts notice, and the next look asks again
            _LOG.debug("the topics' ids cannot be read: %r", error)
            with contextlib.suppress(Exception):
                await self._observer.close()
            return 0
        self._is_replaced = self._is_replaced or not same
        return 0

    async def _lead_what_is_there(self) -> None:
        """Gives everything up and begins again with the log that the topics hold now. If there is
        none, it does so at a later call.
        """
        former = self.log_id
        if not self._problem:
            self._problem = f"the topics of log {former} were deleted"
            _LOG.error("%s; its partitions are given up", self._problem)
        hosts, self._hosts = list(self._hosts.values()), {}
        await asyncio.gather(*(host.stop() for host in hosts))
        await self._stop_faust()
        try:
            await self._open(make=False)
            await self._start_faust()
        except Exception as error:  # noqa: BLE001 no topics, wrong settings, or no broker: try again until that is mended
            if self._problem != str(error):
                _LOG.warning("the log cannot be led: %s", error)
            self._problem = str(error)
            await asyncio.sleep(_AGAIN_S)
            return
        self._is_replaced, self._problem = False, ""
        _LOG.warning("leading log %s, in the place of log %s", self.log_id, former)

    def _note_replaced(self) -> None:
        self._is_replaced = True

    def _take(self, partitions: Iterable[int]) -> None:
        assert self._opened is not None, "the log is opened before Faust starts"
        self._assigned = True
        for partition in sorted(partitions):
            if partition < self._opened.partitions:  # those that were added later hold no group (PROTOCOL L1)
                host = self._hosts[partition] = PartitionHost(
                    self.settings, self._opened, partition, self.metrics, topic_ids=self._topic_ids, replaced=self._note_replaced
                )  # fmt: skip
                host.start()

    async def _drop(self, partitions: Iterable[int]) -> None:
        hosts = [self._hosts.pop(partition) for partition in partitions if partition in self._hosts]
        await asyncio.gather(*(_part(host) for host in hosts))

    # End offsets

    async def _observe_on(self) -> None:
        """Every `observe_interval_ms`, and soon where a first round waits for lags."""
        interval_s = self.settings.observe_interval_ms / 1000
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(min(_WATCH_S, interval_s))
            due = time.monotonic() - looked_s >= interval_s
            wanted = [(host, lead) for host, lead in self._observed() if due or lead.machine.awaits_lags]
            if due:
                looked_s = time.monotonic()
            try:
                await self._observe(wanted)
            except Exception as error:  # noqa: BLE001 the brokers are away: the next look asks again, over new connections
                _LOG.warning("end offsets cannot be read: %s", error)
                with contextlib.suppress(Exception):
                    await self._observer.close()

    def _observed(self) -> Iterator[tuple[PartitionHost, GroupLead]]:
        """Every group that is led here and has members."""
        for host in self._hosts.values():
            if host.leading:
                yield from ((host, lead) for lead in host.lead.groups.values() if lead.halted is None and lead.machine.state.members)

    async def _observe(self, wanted: list[tuple[PartitionHost, GroupLead]]) -> None:
        """What has changed, for each of these groups (PROTOCOL D6)."""
        topics = {lead.name: topics_of(lead.machine.state.topologies.values()) for _, lead in wanted}
        ends, racks = await self._observer.look(set().union(*topics.values()))
        for host, lead in wanted:
            mine = topics[lead.name]
            lags = await self._source_lags(lead) if lead.machine.deals_by_lag else {}
            if not host.leading or host.lead.groups.get(lead.name) is not lead:
                continue
            try:
                observed = host.lead.observe(
                    lead.name, {topic: ends[topic] for topic in mine & set(ends)}, {topic: racks[topic] for topic in mine & set(racks)}, lags
                )
                for part in observed_in_parts(observed) if observed is not None else ():
                    await host.append(lead.name, part)
            except EquipoiseError as error:  # its topics have names that no event can hold, or the like
                _LOG.warning("group %s: end offsets cannot be told: %s", lead.name, error)

    async def _source_lags(self, lead: GroupLead) -> dict[str, dict[int, int]]:
        """How far the group is behind its sources; none where that cannot be read now: the others
        are not to wait for it.
        """
        state = lead.machine.state
        try:
            async with asyncio.timeout(_LAGS_S):
                return await self._observer.source_lags(lead.name, sources_of(state), auto_offset_reset(state.settings))
        except Exception as error:  # noqa: BLE001 whatever the brokers say: the next look asks again
            _LOG.warning("group %s: lags of its sources cannot be read: %r", lead.name, error)
            return {}


async def _part(host: PartitionHost) -> None:
    try:
        await asyncio.wait_for(host.stop(checkpoint=True), _PARTING_S)
    except TimeoutError:
        await host.stop()


def _credentials(settings: WorkerSettings) -> Any:
    import faust
    from faust.types.auth import AuthProtocol, SASLMechanism

    context = settings.ssl_context
    if settings.security_protocol.startswith("SASL"):
        credentials = faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=context,
            mechanism=SASLMechanism(settings.sasl_mechanism),
        )
        credentials.protocol = AuthProtocol(settings.security_protocol)
        return credentials
    return None if context is None else faust.SSLCredentials(context)
