"""`Member`: what an application embeds to be one member of a group that equipoise leads.

::

    async def count(record, context):
        total = int(context.state.get(record.key) or b"0") + 1
        context.state.put(record.key, b"%d" % total)
        context.send("counts", b"%d" % total, key=record.key)

    async with Member("orders", "m1", count, topology, connection=Connection(bootstrap="127.0.0.1:9092"),
                      guarantee="exactly_once", state_directory="state") as member:
        await member.wait()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from equipoise.events import codec, fields
from equipoise.events.errors import InputError
from equipoise.events.facts import TopologyDeclared
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.opening import partition_count
from equipoise.events.tasks import Lag, TaskId
from equipoise.member.host import MemberHost
from equipoise.member.options import MemberOptions
from equipoise.member.preparing import PreparationProgress, PrepareCallback
from equipoise.member.runner import Callback, Handler
from equipoise.member.work import AskedCallback, StandbyCallback

if TYPE_CHECKING:
    from equipoise.member.embedded_worker import EmbeddedWorker
    from equipoise.worker.settings import WorkerSettings


class Member:
    """One member of `group`, for as long as the context is entered; `member_id` is for one process
    at a time, the same one after each restart.

    `handler(record, context)` gets each source record (aiokafka's ConsumerRecord) of the tasks
    granted here, in their order within a partition. It may be a coroutine. What it writes to
    `context.state` and sends takes effect at the next commit, together. If it raises, the member
    stops everything, says that it leaves, and `wait` raises that.

    `topology`: the tasks of this build of the application; a build with other tasks has a higher
    epoch (PROTOCOL D1).

    `on_assigned(context)` is called when a task has been restored, before its first record;
    `on_revoked(context)` when it has stopped here, given up or taken, and before anybody hears that
    it was given up; `on_standby(task)` when a copy of it begins to be kept here. `on_asked(leave)`
    when an operator asks this member to leave (`equipoise scale-down`), or takes that back: nothing
    needs to be done. It goes on until its tasks run elsewhere; then it is released, and `wait`
    returns as after `leave`.

    `prepare(context)` makes a task ready to run here: caches to warm, indexes to open, models to
    load. It is called for each copy that is near enough, and the task moves here when it has
    returned, and not before; so its first record finds everything there. It may take minutes, and
    say how far it is: `context.progress(0.4)`. A coroutine runs in the application's loop, a
    function on a thread of its own. What it raises is logged, and it is tried again later. A task
    that must be granted before anybody has prepared it waits for that before its first record.
    `prepare` is called once for each copy and incarnation, and again for a task that has run here
    and stopped. A sub-topology without changelogs is prepared too if it is declared with
    ``stateful=True``: its tasks are to be made ready before they move, with no state to restore.

    `lead`: also run a worker in this process; True, or its settings. When several members do, each
    log partition is led by one of them.

    `options`: the fields of `MemberOptions`. The connection is to the brokers that have the log's
    topics and the application's alike.

    Entering raises InputError for a setting, topic or state directory that cannot be used, and when
    no broker or log is there.
    """

    def __init__(
        self,
        group: str,
        member_id: str,
        handler: Handler,
        topology: TopologyDeclared,
        *,
        connection: Connection | None = None,
        on_assigned: Callback | None = None,
        on_standby: StandbyCallback | None = None,
        on_revoked: Callback | None = None,
        on_asked: AskedCallback | None = None,
        prepare: PrepareCallback | None = None,
        lead: bool | WorkerSettings = False,
        **options: Any,
    ) -> None:
        fields.check_name("Member.group", group)
        fields.check_name("Member.member_id", member_id)
        self.group = group
        self.member_id = member_id
        self._handler = handler
        self._topology = topology
        self._connection = Connection() if connection is None else connection
        self._callbacks = {"on_assigned": on_assigned, "on_standby": on_standby, "on_revoked": on_revoked, "on_asked": on_asked}
        self._prepare = prepare
        known = MemberOptions.__annotations__
        for name in options:
            if name not in known:
                raise InputError(f"Member: no such option {name!r}; there are: {', '.join(sorted(known))}")
        self._options = MemberOptions(**options)
        self._check_facts()
        self._host: MemberHost | None = None
        self._leads = lead
        self._lead: EmbeddedWorker | None = None

    async def __aenter__(self) -> Self:
        await self._check_topics()
        if self._leads is not False:
            from equipoise.member.embedded_worker import EmbeddedWorker, worker_settings  # a worker brings much along

            settings = worker_settings(self._connection, self._options.prefix) if self._leads is True else self._leads
            self._lead = EmbeddedWorker(settings)
            await self._lead.start()
        try:
            self._host = await self._begin()
        except BaseException:
            await self._stop_leading()
            raise
        return self

    async def _begin(self) -> MemberHost:
        host = MemberHost(
            connection=self._connection,
            group=self.group,
            member_id=self.member_id,
            topology=self._topology,
            handler=self._handler,
            options=self._options,
            prepare=self._prepare,
            **self._callbacks,  # type: ignore[arg-type]  # each under its own name
        )
        await host.begin()
        return host

    async def _stop_leading(self) -> None:
        if self._lead is not None:
            await self._lead.stop()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        host = self._running_host()
        host.close()
        await host.end()
        await self._stop_leading()
        if error is None:
            await host.over

    @property
    def http_port(self) -> int:
        """Where the worker in this process serves health, metrics and states (`lead`); 0: there is
        none.
        """
        return 0 if self._lead is None else self._lead.http_port

    async def wait(self) -> None:
        """Until the member has ended: released after `leave` or because it was asked to, closed, or
        by an error, which this raises.

        SupersededError: another process has joined with its id. Else what the handler or a callback
        raised, or an EquipoiseError.
        """
        await asyncio.shield(self._running_host().over)

    async def leave(self) -> None:
        """Asks to leave, goes on running its tasks until they run elsewhere, and returns when it
        was released.
        """
        self._running_host().leave()
        await self.wait()

    def cancel_leave(self) -> None:
        """Stays after all. Too late when it was released already."""
        self._running_host().cancel_leave()

    def close(self) -> None:
        """Stops everything at once, in order, and says so: `wait` returns when that is done.
        Leaving the context does it too.
        """
        self._running_host().close()

    def ready(self, task: TaskId) -> None:
        """Declares that the application could process `task` here at once, for one that prepares
        tasks by itself (``declares_ready=True``). `on_standby` tells when a copy begins. The word
        holds until the copy is gone, or the task has run here and stopped. Any thread may call it.

        Raises InputError when no copy of `task` is to be kept here."""
        self._running_host().declare_ready(task)

    # For people and metrics

    @property
    def incarnation(self) -> int:
        return self._running_host().session.incarnation

    @property
    def leaving(self) -> bool:
        """It goes once its tasks run elsewhere: of itself (`leave`), or because an operator asked
        it to.
        """
        session = self._running_host().session
        return session.leaving or session.asked

    @property
    def running(self) -> dict[TaskId, int]:
        """Task it may process at this moment -> fencing token."""
        return self._running_host().work.running

    @property
    def lags(self) -> dict[TaskId, Lag]:
        """Copies it has, but of what runs -> records behind."""
        return dict(self._running_host().work.lags)

    @property
    def preparing(self) -> Mapping[TaskId, PreparationProgress]:
        """What `prepare` is at work on, and how far it is."""
        return self._running_host().work.preparing

    @property
    def acceptable_lag(self) -> int | None:
        """Records that a copy here may be behind and be ready: its own limit, else the group's as
        it is now; None: not known yet.
        """
        return self._running_host().session.acceptable_lag

    @property
    def fenced_writes(self) -> int:
        """Commits that Kafka refused because somebody else had begun the task (exactly_once)."""
        return self._running_host().work.fenced_writes

    # Inside

    def _running_host(self) -> MemberHost:
        if self._host is None:
            raise InputError("Member: enter it first: async with Member(...) as member")
        return self._host

    def _check_facts(self) -> None:
        """Raises InputError for what no fact of this member could say."""
        for index, part in enumerate(self._topology.subtopologies):
            for names in ("source_topics", "changelog_topics"):
                for topic in getattr(part, names):
                    fields.check_name(f"topology.subtopologies[{index}].{names}", topic)
        codec.encode(self._topology)
        if self._options.group_config is not None:
            fields.check_name("group_config.assignor", self._options.group_config.assignor)
            codec.encode(self._options.group_config)

    async def _check_topics(self) -> None:
        for part in self._topology.subtopologies:
            place = f"topology, sub-topology {part.subtopology}"
            if not part.source_topics:
                raise InputError(f"{place}: name the topics it reads in source_topics")
            if part.stateful and not part.changelog_topics and self._prepare is None and not self._options.declares_ready:
                how = "name the topics of its state in changelog_topics; or, where there is none and it must be prepared, say how: prepare=..."
                raise InputError(f"{place}: it is stateful; {how}")
            for topic in (*part.source_topics, *(part.changelog_topics if part.stateful else ())):
                count = await partition_count(self._connection, topic)
                if count < part.partitions:
                    raise InputError(f"{place}: it has {part.partitions} partitions and topic {topic} has {count}; make it with as many")
