"""The worker: a Faust app that hands out partitions. A `PartitionHost` leads each of them.

The app subscribes to the topic of checkpoints, which has as many partitions as the facts and almost
no traffic. The worker leads the facts' partition of each checkpoint partition that is assigned to
it. The host reads the facts with its own consumer: through Faust's stream (a thread, a queue, an
agent) a decision took 1.2 ms longer and the worker used twice the CPU.

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
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import attrs

from equipoise.broker_watch import BrokerWatch
from equipoise.console.recent import Recent
from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.events.log.kafka.client import Consumer
from equipoise.events.log.kafka.connection import MISSING
from equipoise.events.log.kafka.envelope import partition_of
from equipoise.events.log.kafka.log_opening import NotThereError, open_partitions
from equipoise.events.log.kafka.log_topics import MUST_BE
from equipoise.events.log.kafka.started_clients import NotNowError, reaching, reader
from equipoise.events.log.kafka.topic_making import ensure_topics, partition_count
from equipoise.runtime import DEPLOYED, Runtime, Witness
from equipoise.statemachine.group_lead import GroupLead
from equipoise.witness.proof import ConsumerProof
from equipoise.worker.broker_answers import answered
from equipoise.worker.faust_connection import faust_credentials
from equipoise.worker.group_observation import GroupObservation
from equipoise.worker.observer import Observer
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.tracing import Tracing
from equipoise.worker.worker_http import Server, tls_context
from equipoise.worker.worker_metrics import WorkerMetrics
from equipoise.worker.worker_settings import RELOADED, WorkerSettings

_LOG = logging.getLogger(__name__)
_LAST_CHECKPOINTS_S = 2.0
"""Time for last checkpoints when a partition is revoked."""
_STOP_FAUST_S = 2.0
_SLOW_START_S = 10.0
_WATCH_S = 0.5
_HEARTBEAT_S = 0.5
"""Longest time between two heartbeats to the consumer group: so late a worker learns that another
one has left.
"""
_RETRY_S = 2.0
_BROKER_START_S = 60.0
"""How long a starting worker waits for brokers that answer but are not ready yet."""
_MOST_SILENT_S = 4.5
"""A worker is not ready when the brokers have not answered for so long. It asks them every two
seconds.
"""
_CHECK_LOG_S = 2.0
"""Time between two checks that the log's topics are still the same, for a worker without
partitions. Also the longest wait for such a check.
"""


class Worker:
    """Leads groups until it is stopped. One process may have several workers; the worker that has a
    group's partition leads the group.
    """

    def __init__(self, settings: WorkerSettings, runtime: Runtime = DEPLOYED) -> None:
        self.settings = settings
        self._runtime = runtime
        self.metrics = WorkerMetrics()
        self.recent = Recent()
        """What happened to its groups lately, for the console."""
        self.rounds = Rounds(self._host_of, settings, self.metrics, runtime)
        self.http_port = 0
        self._opened: LogOpened | None = None
        self._topic_ids: tuple[str, ...] | None = None
        """Ids of the topics of the log that `_opened` names; None: the brokers give topics no ids.
        """
        self._is_replaced = False
        self._hosts: dict[int, PartitionHost] = {}
        self._assigned = False
        self._revoked_s: float | None = None
        """Since when its partitions are revoked; None: they are not."""
        self._revoked_in: tuple[str, int] | None = None
        """As which member, and in which generation of the consumer group."""
        self._app: Any = None
        self._server: Server | None = None
        self._observer = Observer(settings)
        self._brokers = BrokerWatch(f"worker of {settings.prefix}", runtime.monotonic_s)
        self._observation = GroupObservation(self._observer, self._all_hosts, lambda: self.settings, self._brokers, runtime)
        self._asked_s = 0.0
        """When the last request about the log began that the brokers have answered (monotonic, s).
        """
        self._held_back = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._witness: Witness | None = None
        self._tracing: Tracing | None = None
        self._folder = ""
        self._problem = ""
        self.metrics.observe(
            lambda: (lead for _, lead in self.groups()), self._positions, lambda: self.settings.metrics_groups, runtime.monotonic_s
        )  # fmt: skip

    # Start and stop

    async def start(self) -> None:
        """Returns when the worker runs. It leads once Faust has assigned partitions to it.

        Raises InputError when its settings or those of the topics are wrong, when no broker
        answers, or when the extra `kafka` is not installed.
        """
        try:
            import faust  # noqa: F401 a missing extra is reported before anything starts
        except ImportError:
            raise InputError(MISSING) from None
        settings = self.settings
        self._tracing = Tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self._held_back.enter_context(settings.clients.hold_back_log(self._brokers))
        try:
            await self._open_with_retries()
            self._folder = tempfile.mkdtemp(prefix="equipoise-worker-")
            self._witness = self._runtime.witness() if settings.witness else None
            self._server = Server(self, settings.http_host, settings.http_port, tls_context(settings))
            self.http_port = await self._server.start()
            await self._start_faust()
        except BaseException:
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._observation.run()), asyncio.create_task(self._watch())]
        assert self._opened is not None, "it was opened above"
        _LOG.info("leading log %s of %s/%s; %s", self.log_id, settings.bootstrap, settings.prefix, self.url)

    @property
    def url(self) -> str:
        """Where it serves health, metrics and states."""
        scheme = "https" if self.settings.http_tls_cert else "http"
        return f"{scheme}://{self.settings.http_host}:{self.http_port}"

    async def _open_with_retries(self) -> None:
        """Opens the log, and retries while brokers restart. Raises InputError."""
        end_s = self._runtime.monotonic_s() + _BROKER_START_S
        while True:
            try:
                await self._open(make=True)
                return
            except NotNowError as error:
                if self._runtime.monotonic_s() > end_s:
                    raise
                _LOG.warning("%s; retrying", error)
            await asyncio.sleep(_WATCH_S)

    async def _open(self, *, make: bool) -> None:
        """Reads which log the topics hold, and opens one if they are empty. `make`: creates missing
        topics. Raises InputError.
        """
        settings, topics = self.settings, self.settings.topics
        if make or all([await partition_count(settings, topics.name_of(what)) for what in MUST_BE]):
            await ensure_topics(
                settings, topics, partitions=settings.partitions, replication=settings.replication, bases=settings.has_retention
            )
        else:
            raise NotThereError(f"the topics of {topics.prefix} are gone: start another worker, or this one again, to make a new log")
        async with reader(settings) as consumer:
            while True:
                ids = await self._ask_topic_ids(consumer)
                self._asked_s = self._runtime.monotonic_s()
                self._opened = await open_partitions(settings, topics, new_id=self._runtime.unique())
                if await self._ask_topic_ids(consumer) == ids:
                    break
        self._topic_ids = ids

    async def _ask_topic_ids(self, consumer: Consumer) -> tuple[str, ...] | None:
        """Retries, because brokers learn of new topics one after the other. Raises InputError."""
        from aiokafka.errors import KafkaError

        end_s = self._runtime.monotonic_s() + _CHECK_LOG_S
        while True:
            with reaching(self.settings):
                try:
                    return await self.settings.topics.ids(consumer)
                except KafkaError:
                    if self._runtime.monotonic_s() > end_s:
                        raise
            await asyncio.sleep(_WATCH_S)

    async def stop(self) -> None:
        """Stops within 5 s: stores last checkpoints, gives the partitions back, closes the port."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._stop_hosts(list(self._hosts))
        tracing, self._tracing = self._tracing, None
        await asyncio.gather(self._stop_faust(), *([] if tracing is None else [self._runtime.run_blocking(tracing.close)]))
        if self._witness is not None:
            await self._runtime.run_blocking(self._witness.dismiss)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._observer.close(), 0.5)
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._held_back.close()

    def reload(self, settings: WorkerSettings) -> list[str]:
        """Takes over the settings of `RELOADED`. Returns the names of others that differ, which
        need a restart.
        """
        self.settings = attrs.evolve(self.settings, **{name: getattr(settings, name) for name in RELOADED})
        for host in self._hosts.values():
            host.reload(self.settings)
        return [name for name, value in attrs.asdict(settings).items() if value != getattr(self.settings, name)]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # State, for the HTTP server and tests

    @property
    def log_id(self) -> str:
        """The id of the log that it leads; "" before `start`."""
        return "" if self._opened is None else self._opened.log_id

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group led here, by name."""
        leads = [(host.partition, lead) for host in self._hosts.values() for lead in host.lead.groups.values()]
        yield from sorted(leads, key=lambda pair: pair[1].name)

    def unhealthy(self) -> str:
        """Returns why the worker does not do its work; "" when it does."""
        return self._problem

    def unready(self) -> str:
        """Returns why not every assigned partition is led; "" when each is."""
        if self._problem or not self._assigned:
            return self._problem or "no partitions were assigned yet"
        silent_s = max([self._runtime.monotonic_s() - self._asked_s, *(host.silent_s() for host in self._hosts.values())])
        if silent_s > _MOST_SILENT_S:
            return f"the brokers have not answered for {silent_s:.0f} s"
        waiting = [host for _, host in sorted(self._hosts.items()) if not host.leading]
        return ", ".join(f"partition {host.partition} is being taken over{host.problem and ': ' + host.problem}" for host in waiting)

    def _positions(self) -> Iterable[tuple[int, int, bool]]:
        return [(host.partition, host.lead.position, host.leading) for _, host in sorted(self._hosts.items())]

    # Faust

    async def _start_faust(self) -> None:
        import faust

        from equipoise.events.log.kafka.aiokafka_metadata import forbid_topic_creation

        settings = self.settings
        app = faust.App(
            f"{settings.prefix}.worker",
            broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
            broker_credentials=faust_credentials(settings),
            broker_session_timeout=settings.worker_session_timeout_ms / 1000,
            broker_heartbeat_interval=min(_HEARTBEAT_S, settings.worker_session_timeout_ms / 5000),
            broker_commit_interval=1.0,
            consumer_auto_offset_reset="latest",
            stream_wait_empty=False,  # unacknowledged records must not delay a rebalance
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

        async def ignore(stream: Any) -> None:
            async for _ in stream:
                pass  # the host reads checkpoints itself

        async def assigned(app: Any, assigned: Iterable[Any], **_: Any) -> None:
            if self._app is None:  # it is stopping
                return
            self._watch_its_end()
            await self._assign([place.partition for place in assigned if place.topic == places])

        async def revoked(app: Any, revoked: Iterable[Any], **_: Any) -> None:
            if self._app is not None:  # it is not stopping
                self._revoke()

        app.agent(topic, name=places)(ignore)
        app.on_partitions_assigned.connect(assigned, weak=False)
        app.on_partitions_revoked.connect(revoked, weak=False)
        app.finalize()
        # Its records are read by the host, and a spare worker has none: Faust would take both for
        # a consumer that is stuck, and log errors about it.
        app.consumer.verify_event_path = lambda now, place: None
        self._app = app
        await _started(app.start(), f"{settings.prefix}.worker")
        forbid_topic_creation(app.consumer._thread._consumer._client)  # Faust has no option for it

    def _revoke(self) -> None:
        """Kafka revokes all partitions before each rebalance of the consumer group, and nobody gets
        one before that has ended. So they are led on until then.
        """
        self._revoked_s, self._revoked_in = self._runtime.monotonic_s(), self._generation()
        for host in self._hosts.values():
            host.begin_checkpoints()  # so that another worker, if it gets the partition, reads little

    async def _assign(self, partitions: Sequence[int]) -> None:
        """Leads these partitions, and goes on with those that nobody else can have led meanwhile:
        the worker was in the generation right before.
        """
        (member_id, generation), revoked_in = self._generation(), self._revoked_in
        self._revoked_s = self._revoked_in = None
        stay = set(partitions) if revoked_in == (member_id, generation - 1) else set()
        await self._stop_hosts(sorted(self._hosts.keys() - stay))
        self._start_hosts(sorted(set(partitions) - self._hosts.keys()))

    def _generation(self) -> tuple[str, int]:
        """As which member the worker is in its consumer group, and in which generation."""
        coordinator = self._app.consumer._thread._consumer._coordinator  # Faust tells nobody
        return coordinator.member_id, coordinator.generation

    def _watch_its_end(self) -> None:
        """The witness is told under which id the worker is in its consumer group now."""
        if self._witness is not None:
            settings = self.settings
            self._witness.watch(
                ConsumerProof(
                    connection=settings, group=f"{settings.prefix}.worker", member_id=self._generation()[0],
                    within_s=settings.worker_session_timeout_ms / 1_000,
                )
            )  # fmt: skip

    async def _stop_faust(self) -> None:
        app, self._app = self._app, None
        self._assigned = False
        if app is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(app.stop(), _STOP_FAUST_S)

    async def _watch(self) -> None:
        """Restarts Faust when it has ended by itself, and everything when the log was replaced."""
        looked_s = self._runtime.monotonic_s()
        gone = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._witness is not None:
                self._witness.look()
            if self._runtime.monotonic_s() - looked_s > _CHECK_LOG_S:
                gone = await self._check_same_log(gone)
                looked_s = self._runtime.monotonic_s()
            if self._is_replaced:
                await self._lead_present_log()
                continue
            if self._revoked_s is not None and self._runtime.monotonic_s() - self._revoked_s > self.settings.worker_session_timeout_ms / 1_000:
                self._revoked_s = self._revoked_in = None
                await self._stop_hosts(list(self._hosts))  # it is put out of the rebalance
            if self._app is not None and not (self._app.crashed or self._app.should_stop):
                continue
            self._problem = "Faust has ended; restarting it"
            _LOG.error("%s%s", self._problem, "" if self._app is None else f": {self._app.crash_reason!r}")
            await self._stop_hosts(list(self._hosts))
            await self._stop_faust()
            try:
                await self._start_faust()
                self._problem = ""
            except Exception as error:  # noqa: BLE001 most likely a broker is down: retry until it is back
                _LOG.warning("Faust failed to start, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _check_same_log(self, gone: int) -> int:
        """Sets `_is_replaced`. `gone`: how often in a row the topics were missing. Returns the new
        count.
        """
        from aiokafka.errors import UnknownTopicOrPartitionError

        asked_s = self._runtime.monotonic_s()
        try:
            same = await answered(self._observer.log_topic_ids(self.settings.topics), _CHECK_LOG_S) == self._topic_ids
        except UnknownTopicOrPartitionError:  # a broker that starts may not know the topics yet: ask once more
            self._is_replaced = self._is_replaced or gone > 0
            return gone + 1
        except Exception as error:  # noqa: BLE001 the brokers are down: the next check asks again
            self._brokers.noted("cannot read the topics' ids", error)
            _LOG.debug("cannot read the topics' ids: %r", error)
            with contextlib.suppress(Exception):
                await self._observer.close()
            return 0
        self._asked_s = asked_s
        self._brokers.answered(asked_s)
        self._is_replaced = self._is_replaced or not same
        return 0

    async def _lead_present_log(self) -> None:
        """Stops leading, and starts again with the log that the topics hold now. When there is none
        it sets `_problem`, and the next call tries again.
        """
        former = self.log_id
        if not self._problem:
            self._problem = f"the topics of log {former} were deleted"
            _LOG.error("%s; giving up its partitions", self._problem)
        hosts, self._hosts = list(self._hosts.values()), {}
        await asyncio.gather(*(host.stop() for host in hosts))
        await self._stop_faust()
        try:
            await self._open(make=False)
            await self._start_faust()
        except Exception as error:  # noqa: BLE001 no topics, wrong settings, or no broker: retry until that is fixed
            if self._problem != str(error):
                _LOG.warning("cannot lead the log, retrying: %s", error)
            self._problem = str(error)
            await asyncio.sleep(_RETRY_S)
            return
        self._is_replaced, self._problem = False, ""
        _LOG.warning("leading log %s, which has replaced log %s", self.log_id, former)

    def _note_replaced(self) -> None:
        self._is_replaced = True

    def _host_of(self, group: str) -> PartitionHost | None:
        """The host that leads this group's partition; None: another worker leads it, or none yet.
        """
        if self._opened is None:
            return None
        host = self._hosts.get(partition_of(group, self._opened.partitions))
        return host if host is not None and host.leading else None

    def _all_hosts(self) -> Iterable[PartitionHost]:
        return self._hosts.values()

    def _start_hosts(self, partitions: Iterable[int]) -> None:
        assert self._opened is not None, "the log is opened before Faust starts"
        self._assigned = True
        for partition in sorted(partitions):
            if partition < self._opened.partitions:  # partitions added later hold no group: docs/protocol.md#l1
                self.recent.forget(partition)
                host = self._hosts[partition] = PartitionHost(
                    self.settings, self._opened, partition, self.metrics, topic_ids=self._topic_ids, replaced=self._note_replaced,
                    runtime=self._runtime, brokers=self._brokers, recent=self.recent, tracing=self._tracing,
                )  # fmt: skip
                host.start()

    async def _stop_hosts(self, partitions: Iterable[int]) -> None:
        hosts = [self._hosts.pop(partition) for partition in partitions if partition in self._hosts]
        await asyncio.gather(*(_stop_with_checkpoint(host) for host in hosts))


async def _started(starting: Coroutine[Any, Any, None], group: str) -> None:
    """Starts Faust, which says nothing where it waits for ever."""
    task = asyncio.ensure_future(starting)
    try:
        while not (await asyncio.wait((task,), timeout=_SLOW_START_S))[0]:
            _LOG.warning("Faust has not started yet: consumer group %s has no coordinator, or this user may not Read on it (equipoise doctor)", group)
        task.result()
    finally:
        if task.cancel():
            await asyncio.wait((task,), timeout=_STOP_FAUST_S)


async def _stop_with_checkpoint(host: PartitionHost) -> None:
    try:
        await asyncio.wait_for(host.stop(checkpoint=True), _LAST_CHECKPOINTS_S)
    except TimeoutError:
        await host.stop()


