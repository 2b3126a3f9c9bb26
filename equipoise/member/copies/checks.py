"""Checks whether a local copy is one of its changelog as that is now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import attrs

from equipoise.kafka.client import NO_EPOCH, Consumer, LeaderEnd, TopicPartition, call_off
from equipoise.member.copies.fencing import CopiedTopic, FencedStore

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
SHRUNK_LOOKS = 5
"""How often the end of a changelog that appears shorter than its copy is read, _RETRY_S apart,
before the copy is wiped: a new partition leader may take a moment to learn its high watermark.
"""
_DELETIONS = "delete.retention.ms"
DELETIONS_KEPT_MS = 86_400_000
"""Kafka's default of this setting."""
_LEFT = 8
"""A copy may be as old as deletions are kept, less one of so many parts: for what is read until it
is up to date, and for clocks. The times of records are those of members, unless the changelog has
message.timestamp.type=LogAppendTime.
"""


@attrs.frozen
class ChangelogSpans:
    """The ranges of changelog partitions now, `now_ms` by the brokers' clocks. `ids`: of their
    topics. `forked`, `old`: see the methods of `CopyChecks`.
    """

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, LeaderEnd]
    ids: Mapping[str, str]
    forked: Mapping[TopicPartition, int]
    old: Mapping[TopicPartition, int]
    now_ms: int

    def settle(self, tp: TopicPartition, store: FencedStore) -> None:
        """Wipes the store if it is no copy of its changelog, and places it within the range."""
        topic = CopiedTopic(self.ids.get(tp.topic, ""), self.begins[tp])
        why = _why_no_copy(store, topic, self.ends[tp].offset, self.forked.get(tp))
        if not why and tp in self.old:
            why = f"it is older than that, and its deletions are kept for {self.old[tp] // 1_000} s"
        if why:
            _LOG.error("changelog %s/%d: not using the local copy up to offset %d, because %s: restoring from scratch", *tp, store.offset, why)
            store.wipe()
        begun_ms = None if store.offset else self.now_ms
        if store.offset < self.begins[tp]:
            store.apply((), offset=self.begins[tp])
        if store.leader_epoch == NO_EPOCH:
            store.leader_epoch = self.ends[tp].epoch
        store.note_copied(topic, begun_ms)


class CopyChecks:
    """Asks the brokers about changelogs. `asker`: a consumer that only requests offsets. `now_ms`:
    the time by the brokers' clocks, since 1970.
    """

    def __init__(self, asker: Consumer, now_ms: Callable[[], int]) -> None:
        self._asker, self._now_ms = asker, now_ms

    async def spans(self, stores: Mapping[TopicPartition, FencedStore]) -> ChangelogSpans:
        """Asks for all of these partitions at once. Raises KafkaError."""
        asking = asyncio.ensure_future(self.ask_ids(stores))
        try:
            begins = await self._asker.beginning_offsets(list(stores))
            ids = await asking
        finally:
            await call_off(asking)
        for look in range(SHRUNK_LOOKS):
            ends = await self._asker.leader_ends(list(stores))
            forked = await self.forked(stores)
            if look == SHRUNK_LOOKS - 1 or not (forked or any(store.offset > ends[tp].offset for tp, store in stores.items())):
                break
            await asyncio.sleep(_RETRY_S)
        now_ms = self._now_ms()
        old = await self.old({tp: store for tp, store in stores.items() if 0 < store.offset < ends[tp].offset}, now_ms)
        return ChangelogSpans(begins, ends, ids, forked, old, now_ms)

    async def old(self, stores: Mapping[TopicPartition, FencedStore], now_ms: int) -> dict[TopicPartition, int]:
        """Returns the stores that may have keys of which compaction has removed the deletions: all
        that they have was read, and written, longer ago than deletions are kept. Partition -> for
        how long (ms). Raises KafkaError.
        """
        if not stores:
            return {}
        configs = await self._asker.topic_configs(sorted({tp.topic for tp in stores}))
        kept_ms = {tp: int(configs[tp.topic].get(_DELETIONS, DELETIONS_KEPT_MS)) for tp in stores}
        from_ms = {tp: max(0, now_ms - each + each // _LEFT) for tp, each in kept_ms.items()}
        from_ms = {tp: each for tp, each in from_ms.items() if stores[tp].begun_ms < each}
        if not from_ms:
            return {}
        found = await self._asker.offsets_for_times(from_ms)
        return {tp: kept_ms[tp] for tp, first in found.items() if first is None or first > stores[tp].offset}

    async def forked(self, stores: Mapping[TopicPartition, FencedStore]) -> dict[TopicPartition, int]:
        """Returns the stores that have more of their leader epoch than their changelogs have now:
        an unclean election has lost records, and others may have their offsets. Partition -> where
        the epoch ends; -1: the changelog has no epoch as late as this. Raises KafkaError.
        """
        epochs = {tp: store.leader_epoch for tp, store in stores.items() if store.offset and store.leader_epoch != NO_EPOCH}
        if not epochs:
            return {}
        ends = await self._asker.epoch_ends(epochs) or {}
        return {tp: end for tp, end in ends.items() if end < stores[tp].offset}

    async def ask_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Topic -> id; empty: the brokers have none (before Kafka 2.8). Raises KafkaError."""
        leads = {tp.topic: tp for tp in partitions}
        if not leads:
            return {}
        topics = sorted(leads)
        ids = await self._asker.topic_ids(topics, leads[topics[0]])
        return {} if ids is None else dict(zip(topics, ids, strict=True))


def _why_no_copy(store: FencedStore, topic: CopiedTopic, end: int, epoch_end: int | None) -> str:
    """Returns why `store` is no copy of `topic`, which spans to `end`; "": it is one, or has
    nothing. A store that a build without ids has written is a copy if its offset is in the range.
    `epoch_end`: as `CopyChecks.forked` returns it; None: it does not.
    """
    if not store.offset:
        return ""
    former = store.copied
    why = "" if former is None else topic.differs(former)
    if not why and store.offset > end:
        why = f"it now ends at {end}"
    if not why and epoch_end is not None:
        ends = f"ends at {epoch_end} there" if epoch_end >= 0 else "is later than any there"
        why = f"records may have been lost by an unclean election (leader epoch {store.leader_epoch} {ends})"
    if not why and (store.offset < topic.begin or (former is None and store.offset == topic.begin)):
        why = f"it now begins at {topic.begin}"
    return why
