"""Tells groups what is found of their topics: end offsets, racks, and how far they are behind their
sources (docs/protocol.md#d6).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from equipoise.assignors.common.source_lag import auto_offset_reset
from equipoise.events.errors import EquipoiseError
from equipoise.events.fact_parts import observed_in_parts
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.started_clients import NOT_SEEN
from equipoise.replay.trouble import unread
from equipoise.statemachine.group_lead import GroupLead
from equipoise.worker.group_metrics import TURN_S
from equipoise.worker.observer import Observer, TopicNews, sources_of, topics_of
from equipoise.worker.partition_host import PartitionHost
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5
"""Longest time between two looks for groups whose first round waits for lags."""
_LAGS_S = 5.0
"""Longest wait for the source lags of one group."""


class GroupObservation:
    """Observes the topics of the groups that `hosts` lead, and appends what has changed.
    `settings`: the present ones, which may be reloaded.
    """

    def __init__(
        self,
        observer: Observer,
        hosts: Callable[[], Iterable[PartitionHost]],
        settings: Callable[[], WorkerSettings],
        brokers: BrokerWatch,
        runtime: Runtime,
    ) -> None:
        self._observer, self._hosts, self._settings, self._brokers, self._runtime = observer, hosts, settings, brokers, runtime
        self._hidden: frozenset[str] = frozenset()
        """Topics of groups that this user may not see."""
        self._misfits: dict[str, frozenset[str]] = {}
        """Group -> what was logged of its source topics that do not fit its topology."""
        self._news = TopicNews()

    async def run(self) -> None:
        """Observes every `observe_interval_ms`, and at once where a first round waits for lags."""
        looked_s = self._runtime.monotonic_s()
        while True:
            interval_s = self._settings().observe_interval_ms / 1000
            await asyncio.sleep(min(_LOOK_S, interval_s))
            due = self._runtime.monotonic_s() - looked_s >= interval_s
            wanted = [*self._observed(everything=due)]
            if due:
                looked_s = self._runtime.monotonic_s()
            try:
                await self._observe(wanted)
            except Exception as error:  # noqa: BLE001 the brokers are down: the next look asks again, over new connections
                if not self._brokers.noted("cannot read end offsets", error):
                    _LOG.warning("cannot read end offsets: %r", error)
                with contextlib.suppress(Exception):
                    await self._observer.close()

    def _observed(self, *, everything: bool) -> Iterator[tuple[PartitionHost, GroupLead]]:
        """Yields the groups that are led here, have members and are not halted: all, or those whose
        first round waits for lags.
        """
        for host in self._hosts():
            if host.leading:
                leads = host.lead.groups.values() if everything else [host.lead.groups[name] for name in sorted(host.lead.awaiting_lags)]
                yield from ((host, lead) for lead in leads if lead.halted is None and lead.machine.state.members)

    async def _observe(self, wanted: list[tuple[PartitionHost, GroupLead]]) -> None:
        """Appends what has changed for each of these groups. See docs/protocol.md#d6."""
        topics = {lead.name: topics_of(lead.machine.state.topologies.values()) for _, lead in wanted}
        asked = set().union(*topics.values())
        ends, racks = await self._observer.look(asked)
        hidden = self._observer.hidden & asked
        if hidden - self._hidden:
            _LOG.warning("end offsets and racks of %s are not observed: %s", ", ".join(sorted(hidden)), NOT_SEEN)
        self._hidden = (self._hidden - asked) | hidden
        self._news.found(asked, ends, racks, self._observer.hidden | self._observer.unled)
        turn_from_s = self._runtime.monotonic_s()
        for host, lead in wanted:
            if self._runtime.monotonic_s() - turn_from_s > TURN_S:
                await asyncio.sleep(0)  # thousands of groups are led meanwhile
                turn_from_s = self._runtime.monotonic_s()
            mine = topics[lead.name]
            news = self._news.of(lead, mine)
            if self._news.is_known(lead, news) and not lead.machine.deals_by_lag:
                continue  # of thousands of groups, most have nothing new
            self._say_misfits(lead, ends, self._observer.hidden | self._observer.unled)
            lags = await self._source_lags(lead) if lead.machine.deals_by_lag else {}
            if not host.leading or host.lead.groups.get(lead.name) is not lead:
                continue
            try:
                observed = host.lead.observe(
                    lead.name, {topic: ends[topic] for topic in mine & set(ends)}, {topic: racks[topic] for topic in mine & set(racks)}, lags
                )
                for part in observed_in_parts(observed) if observed is not None else ():
                    await host.append(lead.name, part)
                self._news.told(lead, news)
            except EquipoiseError as error:  # for example a topic name that no event can hold
                _LOG.warning("group %s: cannot append end offsets: %s", lead.name, error)

    def _say_misfits(self, lead: GroupLead, ends: Mapping[str, Mapping[int, int]], unknown: frozenset[str]) -> None:
        """Logs, once each, which source topics are gone, and which have partitions without a task."""
        state = lead.machine.state
        if state.topology is None:
            return
        sources = {topic for part in state.topology.subtopologies for topic in part.source_topics}
        gone = {f"source topic {topic} does not exist: create it again, or deploy without it" for topic in sources - unknown - ends.keys()}
        misfits = frozenset(gone | {each.text for each in unread(state, ends)})
        for text in sorted(misfits - self._misfits.get(lead.name, frozenset())):
            _LOG.warning("group %s: %s", lead.name, text)
        self._misfits[lead.name] = misfits

    async def _source_lags(self, lead: GroupLead) -> dict[str, dict[int, int]]:
        """Records that the group has still to read, by topic and partition; empty when that cannot
        be read now, because other groups must not wait for it.
        """
        state = lead.machine.state
        try:
            async with asyncio.timeout(_LAGS_S):
                return await self._observer.source_lags(lead.name, sources_of(state), auto_offset_reset(state.settings))
        except Exception as error:  # noqa: BLE001 the next look asks again
            if not self._brokers.noted(f"group {lead.name}: cannot read its source lags", error):
                _LOG.warning("group %s: cannot read its source lags: %r", lead.name, error)
            return {}
