"""The worker: a Faust application through whose stream the facts of all groups flow.

An agent folds them: each event is what one fetch has brought for one partition, and steps the
machines of its groups; the decisions go out before the next event comes. A timer has probing ticks
appended, which come back as facts. Partitions are shared by Kafka's group protocol; a
`PartitionHost` takes each of them over, from checkpoints and published decisions, and then has its
facts delivered to the agent (`faust_transport`).

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
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs

from equipoise.console.recent import Recent
from equipoise.events import codec
from equipoise.events.errors import InputError
from equipoise.hosting.admission import names_in
from equipoise.hosting.proof import ConsumerProof, Witness
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import MISSING
from equipoise.log.kafka.envelope import partition_of
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.faust_group import CLIENT_ID, FaustGroup, group_name
from equipoise.worker.group_observation import GroupObservation
from equipoise.worker.group_sizes import GroupSizes
from equipoise.worker.led_log import CHECK_LOG_S, LedLog
from equipoise.worker.led_partitions import Generation, LedPartitions
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.observer import Observer
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import Server, tls_context
from equipoise.worker.settings import RELOADED, WorkerSettings
from equipoise.worker.takeover_session import FactBatch
from equipoise.worker.tracing import Tracing

if TYPE_CHECKING:
    from equipoise.worker.faust_transport import LogApp

_LOG = logging.getLogger(__name__)
_HEARTBEAT_S = 0.5
"""Longest time between two heartbeats to the consumer group: so late a worker learns that another
one has left.
"""
_TICK_S = 0.02
_WATCH_S = 0.5
_RETRY_S = 2.0
_MOST_SILENT_S = 4.5
"""A worker is not ready when the brokers have not answered for so long. It asks them every two
seconds.
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
        self.sizes = GroupSizes(self._host_of, runtime.monotonic_s)
        self.asked = AskedWorkers(self.sizes, names_in(settings.http_peers))
        self.http_port = 0
        self._server: Server | None = None
        self._observer = Observer(settings)
        self._brokers = BrokerWatch(f"worker of {settings.prefix}", runtime.monotonic_s)
        self._observation = GroupObservation(self._observer, self._hosts, lambda: self.settings, self._brokers, runtime)
        self._log = LedLog(settings, self._observer, self._brokers, runtime)
        self._partitions = LedPartitions(self._make_host, runtime.monotonic_s)
        self._group = FaustGroup(self.declare)
        self._held_back = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._witness: Witness | None = None
        self._tracing: Tracing | None = None
        self._folder = ""
        self._problem = ""
        self.unready_beside: Callable[[], str] = lambda: ""
        """Why what this process does beside is not ready; "": it is, or there is nothing."""
        self.metrics.observe(self._measured, self._positions, lambda: self.settings.metrics_groups, runtime.monotonic_s)

    # The stream

    def declare(self, folder: str) -> LogApp:
        """Returns the application. `folder`: for Faust's files."""
        from equipoise.worker.faust_transport import NO_GENERATION, Batches, LogApp  # of the extra `kafka`

        settings, topics = self.settings, self.settings.topics
        app = LogApp.make(
            group_name(settings),
            settings,
            shared_as={topics.facts: topics.checkpoints},  # what former workers share, and as many partitions
            now_s=self._runtime.monotonic_s,
            noted=self._brokers.noted,
            broker_client_id=f"{CLIENT_ID}{codec.FACT_VERSIONS}",
            broker_session_timeout=settings.worker_session_timeout_ms / 1_000,
            broker_heartbeat_interval=min(_HEARTBEAT_S, settings.worker_session_timeout_ms / 5_000),
            stream_wait_empty=False,  # what was not folded is read again by who leads next
            store="memory://",
            datadir=folder,
            autodiscover=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
        )
        facts = app.topic(topics.facts, schema=Batches(), acks=False)

        @app.agent(facts, name=topics.facts, isolated_partitions=True)  # type: ignore[untyped-decorator]  # Faust ships no types
        async def fold(stream: AsyncIterable[FactBatch]) -> None:
            async for batch in stream:
                await batch.fold()

        @app.timer(_TICK_S)  # type: ignore[untyped-decorator]  # Faust ships no types
        async def tick() -> None:
            for host in self._hosts():
                host.tick()

        async def assigned(app: LogApp, assigned: Iterable[Any], **_: Any) -> None:
            if app.consumer.generation != NO_GENERATION and not self._group.has_ended:  # else it is in no group yet, or any more
                await self._assigned(sorted(place.partition for place in assigned), app.consumer.generation)

        async def revoked(app: LogApp, revoked: Iterable[Any], **_: Any) -> None:
            if not self._group.has_ended:
                self._partitions.revoke(app.consumer.generation)

        app.on_partitions_assigned.connect(assigned, weak=False)
        app.on_partitions_revoked.connect(revoked, weak=False)
        return app

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
            await self._log.open_with_retries()
            self._folder = tempfile.mkdtemp(prefix="equipoise-worker-")
            self._witness = self._runtime.witness() if settings.witness else None
            self._server = Server(self, settings.http_host, settings.http_port, tls_context(settings))
            self.http_port = await self._server.start()
            await self._group.start(self._folder)
        except BaseException:
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._observation.run()), asyncio.create_task(self._watch())]
        _LOG.info("leading log %s of %s/%s; %s", self.log_id, settings.bootstrap, settings.prefix, self.url)

    @property
    def url(self) -> str:
        """Where it serves health, metrics and states."""
        scheme = "https" if self.settings.http_tls_cert else "http"
        return f"{scheme}://{self.settings.http_host}:{self.http_port}"

    async def stop(self) -> None:
        """Stops within 5 s: stores last checkpoints, gives the partitions back, closes the port."""
        await call_off(*self._tasks, again_s=ENDS_S)
        self._tasks = []
        await self._partitions.stop_all()
        tracing, self._tracing = self._tracing, None
        await asyncio.gather(self._leave_group(), *([] if tracing is None else [self._runtime.run_blocking(tracing.close)]))
        if self._witness is not None:
            await self._runtime.run_blocking(self._witness.dismiss)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._observer.close(), 0.5)
        if self._server is not None:
            await self._server.stop()
            self._server = None
        await self.sizes.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._held_back.close()

    def reload(self, settings: WorkerSettings) -> list[str]:
        """Takes over the settings of `RELOADED`. Returns the names of others that differ, which
        need a restart.
        """
        self.settings = attrs.evolve(self.settings, **{name: getattr(settings, name) for name in RELOADED})
        for host in self._hosts():
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
        return self._log.id

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group led here, by name."""
        leads = [(host.partition, lead) for host in self._hosts() for lead in host.lead.groups.values()]
        yield from sorted(leads, key=lambda pair: pair[1].name)

    def unhealthy(self) -> str:
        """Returns why the worker does not do its work; "" when it does."""
        return self._problem

    def unready(self) -> str:
        """Returns why not every assigned partition is led, or what is done beside is not ready; ""
        when all is.
        """
        if self._problem or not self._partitions.is_assigned:
            return self._problem or "no partitions were assigned yet"
        if silence := self._silence():
            return silence
        waiting = ", ".join(filter(None, (_not_led(host) for _, host in sorted(self._partitions.hosts.items()))))
        return waiting or self.unready_beside()

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        """Returns the evidence of statements about a group that is led here."""
        host = self._partitions.hosts.get(partition)
        unread = f"this worker no longer leads partition {partition}" if host is None else _not_led(host) or self._silence()
        return led_here(lead.machine.state, self._problem or unread)

    def _measured(self) -> Iterator[tuple[GroupLead, bool]]:
        """Every group led here, with whether its state is that of now."""
        is_answered = not (self._problem or self._silence())
        leads = {host.partition: is_answered and host.leading for host in self._hosts()}
        yield from ((lead, leads[partition]) for partition, lead in self.groups())

    def _silence(self) -> str:
        silent_s = max([self._runtime.monotonic_s() - self._log.asked_s, *(host.silent_s() for host in self._hosts())])
        return f"the brokers have not answered for {silent_s:.0f} s" if silent_s > _MOST_SILENT_S else ""

    def _positions(self) -> Iterable[tuple[int, int | None, bool]]:
        hosts, opened, is_answered = self._partitions.hosts, self._log.opened, not self._silence()
        for partition in range(0 if opened is None else opened.partitions):
            host = hosts.get(partition)
            yield (partition, None, False) if host is None else (partition, host.lead.position, host.leading and is_answered)

    # Partitions

    async def _assigned(self, partitions: list[int], generation: Generation) -> None:
        self._watch_its_end(generation)
        await self._partitions.assign(partitions, generation)

    def _watch_its_end(self, generation: Generation) -> None:
        """The witness is told under which id the worker is in its consumer group now."""
        if self._witness is not None:
            settings = self.settings
            self._witness.watch(
                ConsumerProof(
                    connection=settings,
                    group=group_name(settings),
                    member_id=generation[0],
                    within_s=settings.worker_session_timeout_ms / 1_000,
                )
            )

    def _make_host(self, partition: int) -> PartitionHost | None:
        opened = self._log.opened
        assert opened is not None, "the log is opened before Faust starts"
        if partition >= opened.partitions:
            return None  # partitions added later hold no group: docs/protocol.md#l1
        self.recent.forget(partition)
        self.sizes.forget(partition)
        return PartitionHost(
            self.settings,
            opened,
            partition,
            self.metrics,
            self._group.delivery(partition),
            self._group.make_producer,
            topic_ids=self._log.topic_ids,
            replaced=self._log.note_replaced,
            runtime=self._runtime,
            brokers=self._brokers,
            recent=self.recent,
            tracing=self._tracing,
            folded=self.sizes.note,
        )

    def _host_of(self, group: str) -> PartitionHost | None:
        """The host that leads this group's partition; None: another worker leads it, or none yet."""
        if self._log.opened is None:
            return None
        host = self._partitions.hosts.get(partition_of(group, self._log.opened.partitions))
        return host if host is not None and host.leading else None

    def _hosts(self) -> Iterable[PartitionHost]:
        return self._partitions.hosts.values()

    # What ends by itself

    async def _leave_group(self) -> None:
        self._partitions.is_assigned = False
        await self._group.stop()
        await self._partitions.abandon_all()  # those that were assigned at the last moment

    async def _watch(self) -> None:
        """Restarts Faust when it has ended by itself, and everything when the log was replaced."""
        looked_s = self._runtime.monotonic_s()
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._witness is not None:
                self._witness.look()
            if self._runtime.monotonic_s() - looked_s > CHECK_LOG_S:
                await self._log.check()
                looked_s = self._runtime.monotonic_s()
            if self._log.is_replaced:
                await self._lead_present_log()
                continue
            await self._partitions.stop_overdue(self.settings.worker_session_timeout_ms / 1_000)
            if not self._group.has_ended:
                continue
            self._problem = "Faust has ended; restarting it"
            _LOG.error("%s%s", self._problem, self._group.crash)
            await self._partitions.stop_all()
            await self._leave_group()
            try:
                await self._group.start(self._folder)
                self._problem = ""
            except Exception as error:  # noqa: BLE001 most likely a broker is down: retry until it is back
                _LOG.warning("Faust failed to start, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _lead_present_log(self) -> None:
        """Stops leading, and starts again with the log that the topics hold now. When there is none
        it sets `_problem`, and the next call tries again.
        """
        former = self.log_id
        if not self._problem:
            self._problem = f"the topics of log {former} were deleted"
            _LOG.error("%s; giving up its partitions", self._problem)
        await self._partitions.abandon_all()
        await self._leave_group()
        try:
            await self._log.open(make=False)
            await self._group.start(self._folder)
        except Exception as error:  # noqa: BLE001 no topics, wrong settings, or no broker: retry until that is fixed
            if self._problem != str(error):
                _LOG.warning("cannot lead the log, retrying: %s", error)
            self._problem = str(error)
            await asyncio.sleep(_RETRY_S)
            return
        self._log.is_replaced, self._problem = False, ""
        _LOG.warning("leading log %s, which has replaced log %s", self.log_id, former)


def _not_led(host: PartitionHost) -> str:
    """Returns why nothing is decided in a partition; "": it is led."""
    return "" if host.leading else f"partition {host.partition} is being taken over{host.problem and ': ' + host.problem}"
