"""`Member`: one member of a group that equipoise leads. `equipoise.member` has a complete example."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import math
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

import attrs

from equipoise._extras import needed_by
from equipoise.events import codec, fields
from equipoise.events.errors import EquipoiseError, FieldError, InputError
from equipoise.events.facts import TopologyDeclared
from equipoise.events.tasks import Lag, TaskId
from equipoise.hosting.runtime import DEPLOYED, Runtime, SignalWatch, collect_seldom, end_at_once
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import partition_of_key
from equipoise.kafka.connection import Connection
from equipoise.member.http.asking import ASK_S, MemberQueries
from equipoise.member.http.queries import MOST_ROWS, QueryError, StateQuestion, StateRows, View
from equipoise.member.options import MemberKeywords, MemberOptions, RestartIntent, refuse_unknown
from equipoise.member.session.host import MemberHost
from equipoise.member.session.location import KeyLocation, Partitioner
from equipoise.member.session.orders import AskedCallback, StandbyCallback
from equipoise.member.session.preparing import PreparationProgress, PrepareCallback
from equipoise.member.session.start_retries import patiently
from equipoise.member.source import Sources
from equipoise.member.tasks.callbacks import check_callback
from equipoise.member.tasks.context import Callback
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.processing import BatchHandler, Handler, Processor
from equipoise.member.topics import (
    DEFAULT_PARTITIONS,
    check_processors,
    check_topics,
    ensure_positions_topic,
    source_partitions,
    topology_of,
)

_LOG = logging.getLogger(__name__)
DAY_S = 86_400
LEADER = "equipoise.worker.embedded"
"""Where `lead` finds its worker, by name: a member that leads nothing has no part of one."""
_CALLED_WITH = {"on_assigned": "context", "on_standby": "task", "on_revoked": "context", "on_asked": "leave", "prepare": "context"}


class EmbeddedLeader(Protocol):
    """A worker in this process."""

    @property
    def http_port(self) -> int: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Member:
    """One member of the group `group`. `run` runs it as a program does. Or enter it as a context:
    it joins, and closes when the context is exited.

    `handler(record, context)` is called with each `Record` of `sources` in the tasks granted here,
    in order within a partition and by their timestamps between several sources, and the task's
    `TaskContext`. Or `batch_handler(records, context)`
    gets those that are there, of one partition. Either may be a coroutine function. What it writes
    to `context.state` lasts with the next commit, and what it sends is written with it, or with
    at_least_once soon before. When it raises, `on_error` applies (`ErrorPolicy`).

    `sources`, `state`, `outputs`: topics that are read, that log the state (compacted) and that are
    sent to; a name or several, or `Source` for what a name does not say. There is one task for each
    partition of the sources. Several handlers with topics of their own are `processors` instead:
    the sub-topologies 0, 1, ...

    `topology_epoch`: higher for a build with other tasks, as after partitions were added
    (docs/protocol.md#d1).

    `create_topics`: makes topics that are missing; sources with `partitions` partitions.

    `member_id`: one process at a time has it, the same one after each restart. None: the host's
    name, and behind it `instance`, for several members on one host.

    `connection`: to the brokers that have both the log's topics and the application's. None: as the
    environment variables `EQUIPOISE_...` say, else to 127.0.0.1:9092.

    Callbacks, each a function or a coroutine function; when one raises, `wait` raises the error:

    - `on_assigned(context)`: a task was granted and restored here; called before its first record.
    - `on_revoked(context)`: a task has stopped here; called before the group hears of it.
    - `on_standby(task)`: this member begins to keep a copy of `task`.
    - `on_asked(leave)`: an operator asks this member to leave (`equipoise scale-down`), or, with
      False, withdraws the request. There is nothing to do: the member runs its tasks until they run
      elsewhere, then it is released and `wait` returns.

    `prepare(context)` makes a task ready to run here: it warms caches, opens indexes or loads
    models. It is called with a `PrepareContext` for each copy that has caught up, and the task
    moves here only after it has returned. It may take minutes and report `context.progress(0.4)`. A
    coroutine function runs in the application's loop, a function on a thread of its own. An attempt
    that raises is logged and repeated later. A task that was granted unprepared is prepared before
    its first record. `prepare` is called once for each copy and incarnation, and again for a task
    that has run here and stopped. Tasks without state are prepared, too.

    `lead`: True, or the settings of a worker: also runs a worker in this process. Several members
    may; each partition of the log is then led by one of them.

    `options`: fields of `MemberOptions`. The constructor raises InputError when one is unknown or
    invalid, or a name is too long. Entering the context raises InputError when a topic or the state
    directory cannot be used, and when no broker or log is found.
    """

    def __init__(
        self,
        group: str,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        sources: Sources = (),
        state: str | Sequence[str] = (),
        outputs: str | Sequence[str] = (),
        processors: Sequence[Processor] = (),
        topology_epoch: int = 0,
        create_topics: bool = False,
        partitions: int = DEFAULT_PARTITIONS,
        member_id: str | None = None,
        instance: str = "",
        connection: Connection | None = None,
        on_assigned: Callback | None = None,
        on_standby: StandbyCallback | None = None,
        on_revoked: Callback | None = None,
        on_asked: AskedCallback | None = None,
        prepare: PrepareCallback | None = None,
        lead: bool | Connection = False,
        _topology: TopologyDeclared | None = None,  # tests declare tasks that the topics do not have
        _runtime: Runtime = DEPLOYED,  # the simulation has another
        **options: Unpack[MemberKeywords],
    ) -> None:
        fields.check_name("Member.group", group)
        if member_id is None:
            member_id = "-".join(filter(None, (socket.gethostname(), instance)))
        fields.check_name("Member.member_id", member_id)
        self.group = group
        self.member_id = member_id
        others = {name for name in inspect.signature(Member).parameters if not name.startswith("_")}
        refuse_unknown("Member", options, {*MemberOptions.__annotations__, *others} - {"options"})
        self._options = MemberOptions(**options)
        if self._options.adopts == group:
            raise FieldError("adopts", f"{group!r} is the members' own group; give them another name than the consumer group has")
        self._declared = _topology
        if _topology is not None:
            self._processors = {
                part.subtopology: Processor(handler, batch_handler=batch_handler, sources=part.source_topics, state=part.changelog_topics)
                for part in _topology.subtopologies
            }
        else:
            own = handler is not None or batch_handler is not None or sources or state or outputs
            if bool(own) == bool(processors):
                raise InputError("Member: give it a handler with its sources, or processors")
            given = processors or [Processor(handler, batch_handler=batch_handler, sources=sources, state=state, outputs=outputs)]
            check_processors(group, given, dead_letters=self._options.on_error.topic, adopts=self._options.adopts)
            self._processors = dict(enumerate(given))
        self._topology_epoch = topology_epoch
        self._make_partitions = partitions if create_topics else 0
        self._connection = Connection.from_environment() if connection is None else connection
        self._callbacks = {"on_assigned": on_assigned, "on_standby": on_standby, "on_revoked": on_revoked, "on_asked": on_asked}
        self._prepare = prepare
        for field, callback in {**self._callbacks, "prepare": prepare}.items():
            check_callback(field, callback, _CALLED_WITH[field])
        self._check_facts(self._topology([1] * len(self._processors)))
        self._host: MemberHost | None = None
        self._queries: MemberQueries | None = None
        self._leads = lead
        self._runtime = _runtime
        self._lead: EmbeddedLeader | None = None
        self._brokers = BrokerWatch(f"group {group}: member {member_id}", _runtime.monotonic_s)
        self._http_port = 0
        self._opened = contextlib.AsyncExitStack()

    def _topology(self, partitions: Sequence[int]) -> TopologyDeclared:
        if self._declared is not None:
            return self._declared
        prepares = self._prepare is not None or self._options.declares_ready
        return topology_of(list(self._processors.values()), partitions, self._topology_epoch, prepares=prepares)

    async def run(self) -> int:
        """Joins the group, runs until the member has ended, and returns the exit status of a
        process: 0, or that of the EquipoiseError that ended it, which is logged. Other errors are
        raised.

        SIGTERM: the member leaves, which takes until its tasks run elsewhere, or does what
        `on_sigterm` says. SIGINT, and a second SIGTERM: it stops its tasks and leaves at once. A
        handler that has not returned within `session_timeout_ms` then is cancelled, and if it
        blocks the event loop for so long after a signal, the process ends with status 1.
        Python's collector runs less often from here on (`gc.freeze`, and after 50,000 new objects
        unless it is set to more, or off). Call this in the main thread::

            sys.exit(asyncio.run(member.run()))
        """
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(self._run())
        interrupted = False

        within_s = self._options.session_timeout_ms / 1_000
        watch = SignalWatch(within_s, partial(end_at_once, f"member {self.member_id} of group {self.group}", within_s))

        def end(*, leaves: bool) -> None:
            nonlocal interrupted
            watch.heard()
            if self._host is None:  # it has not joined
                interrupted = True
                running.cancel()
            elif leaves and self._options.on_sigterm == "restart" and not self._host.is_leaving:
                _LOG.info("member %s stops when it is released, and will be back", self.member_id)
                self._host.leave(RestartIntent(back_within_ms=self._options.back_within_ms, wait_turn=self._options.wait_turn))
            elif leaves and self._options.on_sigterm == "leave" and not self._host.is_leaving:
                _LOG.info("member %s leaves when its tasks run elsewhere", self.member_id)
                self._host.leave()
            else:
                self._host.close()

        loop.add_signal_handler(signal.SIGTERM, lambda: end(leaves=True))
        loop.add_signal_handler(signal.SIGINT, lambda: end(leaves=False))
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, watch.signalled)  # beside the loop's, which gets it by its own pipe
        try:
            await running
        except EquipoiseError as error:
            _LOG.error("member %s of group %s has ended: %s", self.member_id, self.group, error)
            return error.exit_code
        except asyncio.CancelledError:
            if not interrupted:
                raise
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)
        return 0

    async def _run(self) -> None:
        async with self:
            collect_seldom()
            await self.wait()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def _open(self) -> None:
        self._opened.enter_context(self._connection.clients.hold_back_log(self._brokers))
        if self._options.http_port is not None:
            await self._serve()
        who = f"group {self.group}: member {self.member_id}"
        topology = await patiently(self._find_topology, who, self._runtime.monotonic_s)
        if self._leads is not False:
            with needed_by("leads"):
                self._lead = await patiently(self._start_worker, who, self._runtime.monotonic_s)
            self._opened.push_async_callback(self._lead.stop)
        self._host = host = await self._begin(topology)
        self._queries = MemberQueries(host, self.member_id, self._processors, self._options, self._runtime.monotonic_s)
        self._opened.push_async_callback(self._queries.close)

    async def _start_worker(self) -> EmbeddedLeader:
        leader = importlib.import_module(LEADER)  # loads Faust
        reached = self._connection if self._leads is True else self._leads
        started: EmbeddedLeader = leader.embedded_worker(reached, self._options.prefix, self._runtime, self.group)
        await started.start()
        return started

    async def _serve(self) -> None:
        from equipoise.member.http.server import MemberServer  # loads aiohttp

        app = asyncio.get_running_loop()

        async def answer(question: StateQuestion) -> StateRows:
            if self._queries is None:
                raise QueryError("not_here", f"member {self.member_id} starts")
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._queries.answer(question), app))

        server = MemberServer(self.group, self.member_id, self._options, self._runtime, lambda: self._host, answer)
        self._opened.push_async_callback(server.end)
        self._http_port = await server.begin()
        self._options = attrs.evolve(self._options, advertised=self._options.reached_at(self._http_port))
        _LOG.info("group %s: member %s serves http://%s:%d", self.group, self.member_id, self._options.http_host, self._http_port)

    async def _find_topology(self) -> TopologyDeclared:
        """The tasks, by the present partitions of the sources. Raises InputError."""
        partitions: Sequence[int] = ()
        if self._declared is None:
            dead_letters = [self._options.on_error.topic] if self._options.on_error.topic else []
            partitions = await source_partitions(self._connection, list(self._processors.values()), dead_letters, self._make_partitions)
        topology = self._topology(partitions)
        await check_topics(self._connection, topology)
        await ensure_positions_topic(self._connection, self.group)
        return topology

    async def _begin(self, topology: TopologyDeclared) -> MemberHost:
        host = MemberHost(
            connection=self._connection,
            group=self.group,
            member_id=self.member_id,
            topology=topology,
            processors=self._processors,
            options=self._options,
            prepare=self._prepare,
            runtime=self._runtime,
            brokers=self._brokers,
            **self._callbacks,  # type: ignore[arg-type]  # each under its own name
        )
        await host.begin()
        return host

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        host = self._running_host()
        host.close()
        try:
            await host.end()
        finally:
            await self._opened.aclose()
        if error is None:
            await self.wait()

    @property
    def http_port(self) -> int:
        """Port on which the member serves health, readiness and metrics, with the option
        `http_port`; 0: none.
        """
        return self._http_port

    @property
    def worker_http_port(self) -> int:
        """Port on which the worker in this process (`lead`) serves health, metrics and states; 0:
        there is no worker.
        """
        return 0 if self._lead is None else self._lead.http_port

    async def wait(self) -> None:
        """Returns when the member has ended: it was closed, or released after `leave` or an
        operator's request.

        Raises SupersededError when another process has joined with this member id, the error of the
        handler or a callback when one raised, and EquipoiseError when the member cannot go on.
        """
        await asyncio.shield(self._running_host().over)

    async def leave(self, *, back_within_s: float | None = None, will_be_back: bool = False, wait_turn: bool = True) -> None:
        """Leaves the group: runs its tasks until they run elsewhere, and returns when the member is
        released and has stopped.

        `back_within_s`: a process with this member id will have joined again within that time
        after this one has left. Tasks of which another member has a caught-up copy move there until
        then, and come back; the others wait for it (docs/protocol.md#m12). `will_be_back`: the same
        without a stated time; the leader expects twice what the last restart took. `wait_turn`: not
        while other members restart.

        Raises FieldError for a time of no or more than 24 hours, and what `wait` raises.
        """
        if back_within_s is not None and not 0 < back_within_s <= DAY_S:
            raise FieldError("back_within_s", f"{back_within_s} must be over 0 and at most {DAY_S}; leave it out with will_be_back=True if unknown")
        restart = None
        if back_within_s is not None or will_be_back:
            restart = RestartIntent(back_within_ms=None if back_within_s is None else math.ceil(back_within_s * 1_000), wait_turn=wait_turn)
        self._running_host().leave(restart)
        await self.wait()

    def cancel_leave(self) -> None:
        """Withdraws `leave`. Has no effect once the member is released."""
        self._running_host().cancel_leave()

    def close(self) -> None:
        """Stops all tasks after the record at hand and a commit, and leaves. `wait` returns when
        that is done. Exiting the context closes the member too.
        """
        self._running_host().close()

    def ready(self, task: TaskId) -> None:
        """Declares that the application has prepared `task` (with ``declares_ready=True``).
        `on_standby` reports when a copy begins. The declaration holds until the copy is gone, or
        until the task has run here and stopped. Any thread may call this.

        Raises InputError when this member keeps no copy of `task`, or does not declare readiness.
        """
        self._running_host().declare_ready(task)

    async def owner(self, key: Any, *, subtopology: int | None = None, partitioner: Partitioner = partition_of_key) -> KeyLocation:
        """Where the task that reads the records of `key` runs, and where its copies are, for
        queries of its state by other processes.

        `subtopology`: the processor that reads the key; None: there is one. `partitioner(key bytes,
        partitions)`: how the producers of its sources choose partitions; by default as Kafka's own
        clients do (murmur2).

        The first call reads the group's log, and from then on this process follows it, as a worker
        does. Raises InputError when there is no such sub-topology or partition, GroupHalted when
        this build cannot follow the group.
        """
        host = self._running_host()
        (first, *_) = self._processors.get(subtopology or 0, self._processors[0]).inputs
        return await host.owner((first.key_serde or self._options.key_serde).serialize(key), subtopology, partitioner)

    async def query(
        self,
        key: Any,
        *,
        of: View | None = None,
        at_ms: int = 0,
        state: str | None = None,
        task: TaskId | None = None,
        subtopology: int | None = None,
        partitioner: Partitioner = partition_of_key,
        newest: bool = False,
        max_lag: int | None = None,
        timeout_s: float = ASK_S,
    ) -> Any:
        """The value that the state of `key` has, wherever its task runs; None: there is none.

        `of`: a table, or windows, of `equipoise.streams`; of fixed windows the one that begins at
        `at_ms`, and of sliding ones the one that ends then. None: what handlers put. `state`: its
        changelog; None: there is one. `task`: that has it; None: the one that reads the records of
        `key`, by `subtopology` and `partitioner` as for `owner`. `newest`: also what is not
        committed, and may be taken back. `max_lag`: a copy may answer that is at most so many
        records behind; None: the owner answers. `timeout_s`: how long to ask while the task moves.

        Another member is asked over HTTP, at its `advertised`; it has ``queries=True``. Raises
        QueryError when there is no answer (its `reason` says why), and what `owner` raises.
        """
        return await self._asking().one(
            key,
            of=of,
            at_ms=at_ms,
            state=state,
            task=task,
            subtopology=subtopology,
            partitioner=partitioner,
            newest=newest,
            max_lag=max_lag,
            timeout_s=timeout_s,
        )

    async def query_range(
        self,
        start: Any = None,
        end: Any = None,
        *,
        of: View | None = None,
        state: str | None = None,
        task: TaskId | None = None,
        subtopology: int | None = None,
        newest: bool = False,
        max_lag: int | None = None,
        limit: int = MOST_ROWS,
        timeout_s: float = ASK_S,
    ) -> list[Any]:
        """Keys from `start` to before `end` with their values, at most `limit`, in rising order of
        the keys' bytes, of `task` or of all tasks of `subtopology`. None: from the first, to the
        last. `of` fixed windows: those that begin from `start` to before `end`, in ms, as
        WindowResult; of sliding ones: those of the key `start`, or all. The rest is as for `query`;
        tasks are asked one after the other, so the answer is of no single moment. Raises QueryError
        when one of them does not answer.
        """
        return await self._asking().range(
            start, end, of=of, state=state, task=task, subtopology=subtopology, newest=newest, max_lag=max_lag, limit=limit, timeout_s=timeout_s
        )

    def _asking(self) -> MemberQueries:
        self._running_host()
        assert self._queries is not None, "it comes with the host"
        return self._queries

    # State, for people and metrics; any thread may read it

    @property
    def incarnation(self) -> int:
        """Number of this life of the member; every restart and rejoin has a higher one."""
        return self._running_host().session.incarnation

    @property
    def leaving(self) -> bool:
        """Returns whether the member leaves once its tasks run elsewhere, after `leave` or an
        operator's request.
        """
        session = self._running_host().session
        return session.leaving or session.asked

    @property
    def running(self) -> dict[TaskId, int]:
        """Task that the member may process at this moment -> fencing token of its grant."""
        return self._running_host().work.running

    @property
    def lags(self) -> dict[TaskId, Lag]:
        """Task of each copy here that does not run -> lag in records, or `LagSentinel.UNKNOWN`."""
        return dict(self._running_host().work.lags)

    @property
    def preparing(self) -> Mapping[TaskId, PreparationProgress]:
        """Task that `prepare` works on -> progress."""
        return self._running_host().work.permit.preparing

    @property
    def acceptable_lag(self) -> int | None:
        """Largest lag, in records, with which a copy here counts as ready: the member's own
        `ready_lag_records`, else the group's present limit; None: not known yet.
        """
        return self._running_host().session.acceptable_lag

    @property
    def failed_tasks(self) -> dict[TaskId, FailedTask]:
        """Task that handles nothing more -> the record and the error."""
        return self._running_host().work.failed_tasks

    @property
    def fenced_writes(self) -> int:
        """Number of commits that were refused, or found to be overtaken, because a later owner of
        the task had begun. Kafka refuses them with ``exactly_once``.
        """
        return 0 if self._host is None else self._host.work.permit.fenced_writes

    def _running_host(self) -> MemberHost:
        if self._host is None:
            raise InputError("Member: enter it first: async with Member(...) as member")
        return self._host

    def _check_facts(self, topology: TopologyDeclared) -> None:
        """Raises InputError when a fact of this member is too large, or a name in it too long."""
        codec.encode(topology)
        if self._options.group_config is not None:
            fields.check_name("group_config.assignor", self._options.group_config.assignor)
            codec.encode(self._options.group_config)
