"""The assignor that Faust's workers use: equipoise decides, Faust's own code does the rest."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import attrs
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment, CopartitionedAssignment
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP

from equipoise.faust.coordinator import FaustCoordinator
from equipoise.faust.copies import Copies, is_persistent, worker_name
from equipoise.faust.corrections import correct
from equipoise.faust.layout import Ends, Layout, layout_of
from equipoise.faust.rebalance import FaustAnswer, FaustWorker, answer, configuration
from equipoise.faust.report import Report, Told, report_in, told_in, with_report, with_told
from equipoise.hosting.runtime import DEPLOYED
from equipoise.lead.group_log import GroupLog
from equipoise.replay.wording import counted

_LOG = logging.getLogger(__name__)
LOG_VARIABLE = "EQUIPOISE_FAUST_LOG"
LOG_FILE = "equipoise.db"
COLLECT_S = 10.0
"""Longest wait for the offsets of all copies on the disk."""
LOOK_S = 0.5
"""Between two looks at copies that are being restored."""
NEARLY_RECORDS = 100
"""A copy that is so near is caught up. One that is farther, within the acceptable lag, is when it
gets no nearer.
"""
SETTLED_S = 3.0
"""A rebalance is asked for at the earliest so long after the last one; twice as long, whenever the
last one found the copies behind again.
"""
MOST_SETTLED_S = 300.0


Lags = Mapping[tuple[str, int], int]
"""Changelog partition -> records that a copy lacks."""


class _NotLed(Exception):
    """Why the stock assignor decides this rebalance."""


class FaustAssignor(PartitionAssignor):  # type: ignore[misc]  # Faust ships no types
    """Assigns by lag: a table moves once a copy is restored on its new worker.

    Subclass it to change a setting. `acceptable_lag`: records that a copy may lack when it takes
    over. `heartbeat_ms`, `fetch_wait_ms`: see `FaustCoordinator`. `log_file`: the log of this
    worker's decisions; None: that of the environment variable EQUIPOISE_FAUST_LOG, or
    ``equipoise.db`` in the application's data directory.

    Whatever goes wrong here, Faust's own assignor decides, and a line at level WARNING says why.
    """

    acceptable_lag = 1_000
    heartbeat_ms = 300
    fetch_wait_ms = 200
    log_file: str | None = None

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas=replicas)
        self._copies = Copies(app)
        self._coordinator: FaustCoordinator | None = None
        self._report: Report | None = None
        self._log: GroupLog | None = None
        self._ends: Ends | None = None
        self._answer: FaustAnswer | None = None
        """Of this rebalance, if this worker leads."""
        self._answered_s: float | None = None
        self._asked = 0
        """How often this worker has asked since it last waited for no copy."""

    # ---------------------------------------------------------------------- what a worker says

    def metadata(self, topics: Any) -> Any:
        stock = super().metadata(topics)
        try:
            return ConsumerProtocolMemberMetadata(stock.version, stock.subscription, with_report(stock.user_data, self._next_report()))
        except Exception as error:  # noqa: BLE001  # without a report the group goes on as with the stock assignor
            _LOG.warning("this worker joins without a report of its copies: %s", _text(error))
            return stock

    def _next_report(self) -> Report:
        self._attach()
        before = self._report or Report(worker=worker_name(Path(self.app.conf.datadir)))
        self._report = attrs.evolve(before, is_current=False, asked=before.asked + 1)
        try:
            self._report = attrs.evolve(self._report, is_current=True, offsets=self._offsets())
        except Exception as error:  # noqa: BLE001  # an older report does, too
            _LOG.warning("the offsets of this worker's copies are not known now: %s", _text(error))
        return self._report

    def _attach(self) -> None:
        consumer = self.app.consumer._thread._ensure_consumer()
        if self._coordinator is None or self._coordinator.consumer is not consumer:
            correct(self.app, consumer)
            self._coordinator = FaustCoordinator(consumer, self._before_assignment, heartbeat_ms=self.heartbeat_ms, fetch_wait_ms=self.fetch_wait_ms)

    def _offsets(self) -> dict[str, dict[int, int]]:
        """Offsets of the copies on the disk. The tables belong to the application's thread, which
        does not wait for this one.
        """

        async def collect() -> dict[str, dict[int, int]]:
            return self._copies.offsets()

        future = asyncio.run_coroutine_threadsafe(collect(), self.app.loop)
        try:
            return future.result(COLLECT_S)
        except FutureTimeoutError:
            future.cancel()
            raise TimeoutError(f"the application's loop was busy for {COLLECT_S:g} s") from None

    # ---------------------------------------------------------------------- what the leader decides

    async def _before_assignment(self) -> None:
        self._ends = None
        assert self._coordinator is not None, "it calls this"
        try:
            self._ends = await self._coordinator.ends(self._layout_now().changelog_partitions)
        except Exception as error:  # noqa: BLE001  # the stock assignor decides then
            _LOG.warning("ends of changelogs are not known: %s", _text(error))

    def _layout_now(self) -> Layout:
        coordinator = self._coordinator
        assert coordinator is not None, "a worker attaches when it joins"
        cluster, topics = coordinator.consumer._client.cluster, coordinator.consumer.subscription()
        return self._layout(cluster, topics)

    def _layout(self, cluster: Any, topics: Any) -> Layout:
        tables = list(self.app.tables.values())
        return layout_of(
            topics,
            lambda topic: len(cluster.partitions_for_topic(topic) or ()),
            global_changelogs={table.changelog_topic.get_topic_name() for table in tables if table.is_global},
            persistent_changelogs={table.changelog_topic.get_topic_name() for table in tables if is_persistent(table)},
        )

    def _perform_assignment(self, cluster: Any, member_metadata: Mapping[str, Any]) -> Any:
        self._answer = None
        try:
            return self._led(cluster, member_metadata)
        except Exception as error:  # noqa: BLE001  # an error here would end the worker
            _LOG.warning("Faust's own assignor decides this rebalance: %s", _text(error))
            self._close_log()
        return super()._perform_assignment(cluster, member_metadata)

    def _led(self, cluster: Any, member_metadata: Mapping[str, Any]) -> Any:
        reports = {name: report for name, metadata in member_metadata.items() if (report := report_in(metadata.user_data)) is not None}
        if len(reports) < len(member_metadata):
            raise _NotLed(f"no report of its copies from {len(member_metadata) - len(reports)} of {counted(len(member_metadata), 'worker')}")
        subscriptions = {frozenset(metadata.subscription) for metadata in member_metadata.values()}
        if len(subscriptions) > 1:
            raise _NotLed("the workers read different topics, as in the middle of a deployment")
        layout, ends = self._layout(cluster, *subscriptions), self._ends
        if ends is None or any(place not in ends for place in layout.changelog_partitions):
            raise _NotLed("the ends of changelogs are not known")
        clients = {name: self._get_client_metadata(metadata) for name, metadata in member_metadata.items()}
        self._update_member_urls(clients)
        workers = [FaustWorker(member_id=name, report=reports[name], active=clients[name].assignment.actives) for name in reports]
        now_s = time.monotonic()
        passed_ms = 0 if self._answered_s is None else int((now_s - self._answered_s) * 1_000)
        answered = answer(self._opened_log(), workers, layout, ends, passed_ms=passed_ms)
        assigned = self._in_fausts_form(answered, layout)
        self._answer, self._answered_s = answered, now_s
        _LOG.info(
            "decided for %s in %.0f ms: %s to move, %s to be restored first",
            counted(len(workers), "worker"),
            (time.monotonic() - now_s) * 1_000,
            counted(answered.moves, "task"),
            counted(sum(len(dealt.warmups) for dealt in answered.dealt.values()), "copy", "copies"),
        )
        return assigned

    def _opened_log(self) -> GroupLog:
        if self._log is None:
            given = self.log_file or os.environ.get(LOG_VARIABLE)
            file = Path(given) if given else Path(self.app.conf.appdir) / LOG_FILE
            file.parent.mkdir(parents=True, exist_ok=True)
            self._log = GroupLog(file, self.app.conf.id, DEPLOYED.wall_us, DEPLOYED.unique)
            self._log.configure(configuration(self.replicas, self.acceptable_lag))
        return self._log

    def _close_log(self) -> None:
        """The log is open while this worker leads."""
        log, self._log, self._answered_s = self._log, None, None
        if log is not None:
            log.close()

    def _in_fausts_form(self, answered: FaustAnswer, layout: Layout) -> dict[str, Any]:
        assignments = {member_id: ClientAssignment(actives={}, standbys={}) for member_id in answered.dealt}
        for member_id, dealt in answered.dealt.items():
            for group in layout.groups:
                own = CopartitionedAssignment(
                    actives={task.partition for task in dealt.active if task.subtopology == group.number},
                    standbys={task.partition for task in dealt.standby if task.subtopology == group.number},
                    topics=set(group.topics),
                )
                assignments[member_id].add_copartitioned_assignment(own)
        assignments = self._global_table_standby_assignments(assignments, layout.partition_counts)
        of_stock = self._protocol_assignments(
            assignments, self._get_changelog_distribution(assignments), self._get_external_topic_distribution(assignments), dict(layout.topic_groups)
        )
        found = {}
        for member_id, each in of_stock.items():
            dealt = answered.dealt[member_id]
            changelogs = {group.number: group.changelogs for group in layout.groups}
            warmups = tuple((topic, task.partition) for task in dealt.warmups for topic in changelogs[task.subtopology])
            told = Told(group=answered.group, warmups=warmups, acceptable_lag=self.acceptable_lag)
            data = self._compress(with_told(self._decompress(each.user_data), told))
            found[member_id] = ConsumerProtocolMemberAssignment(each.version, each.assignment, data)
        return found

    # ---------------------------------------------------------------------- what a worker is told

    def on_assignment(self, assignment: Any) -> None:
        super().on_assignment(assignment)
        try:
            self._take(told_in(self._decompress(assignment.user_data)))
        except Exception as error:  # noqa: BLE001  # what Faust needs of the assignment it has already
            _LOG.warning("what the leader told cannot be used: %s", _text(error))

    def _take(self, told: Told | None) -> None:
        coordinator, answered = self._coordinator, self._answer
        self._answer = None
        if answered is None:
            self._close_log()
        if coordinator is None or self._report is None:
            return
        self._report = attrs.evolve(self._report, generation=coordinator.generation, group=told.group if told is not None else ())
        if told is None or not told.warmups:
            self._asked = 0
        coordinator.run(self._ask_when_due(coordinator, told or Told(), answered.follow_up_ms if answered is not None else None))

    async def _ask_when_due(self, coordinator: FaustCoordinator, told: Told, follow_up_ms: int | None) -> None:
        """Asks for the next rebalance: when this worker's copies are caught up, and as the leader
        when that is due. Does nothing, and so costs nothing, where neither is wanted.
        """
        begun_s, settled_s = time.monotonic(), min(SETTLED_S * 2**self._asked, MOST_SETTLED_S)
        before: Lags | None = None
        while told.warmups or follow_up_ms is not None:
            await asyncio.sleep(LOOK_S)
            passed_s = time.monotonic() - begun_s
            if follow_up_ms is not None and passed_s * 1_000 >= follow_up_ms:
                coordinator.ask(f"{follow_up_ms / 1_000:.0f} s have passed")
                return
            lags = self._lags(coordinator, told)
            if told.warmups and lags is not None and passed_s >= settled_s and _are_caught_up(lags, before, told.acceptable_lag):
                self._asked += 1
                coordinator.ask(f"caught up: {counted(len(lags), 'copy', 'copies')}")
                return
            before = lags

    def _lags(self, coordinator: FaustCoordinator, told: Told) -> Lags | None:
        """Records that each copy lacks; None: not known of all."""
        lags: dict[tuple[str, int], int] = {}
        for topic, number in told.warmups:
            end, offset = coordinator.highwater(topic, number), self.app.tables.recovery.standby_offsets.get(TP(topic, number))
            if end is None or offset is None:
                return None
            lags[topic, number] = max(0, end - 1 - offset)
        return lags


def _are_caught_up(lags: Lags, before: Lags | None, acceptable_lag: int) -> bool:
    """`before`: the lags at the last look; None: not known."""

    def is_caught_up(place: tuple[str, int], lag: int) -> bool:
        return lag <= min(NEARLY_RECORDS, acceptable_lag) or (lag <= acceptable_lag and before is not None and lag >= before[place])

    return all(is_caught_up(place, lag) for place, lag in lags.items())


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, _NotLed) else f"{type(error).__name__}: {error}"
