"""How a deployed consumer fetches and decodes records, over the fetcher of aiokafka."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from operator import attrgetter, ne
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException, TopicAuthorizationFailedError

from equipoise.kafka.aiokafka_sessions import FetchSession, SessionRequest
from equipoise.kafka.client import NO_EPOCH, Record, Row

REST_S = 1.0
"""How often to look for changes while all partitions wait for answers: answers, seeks and new
assignments come at once. aiokafka looks each 0.2 s.
"""
_UNKNOWN = (None, -1)
"""Leaders that are not known."""
_FIELDS = attrgetter("key", "value", "offset", "timestamp", "headers")
"""Of a record of aiokafka."""
_SEEN = attrgetter("_position", "_paused", "_resume_fut")
"""Of the state of a partition. Two pauses have different futures."""
_PROGRESS = attrgetter("_position", "highwater", "_paused")
"""The end is that of the last fetch."""
_COMMITTED_PROGRESS = attrgetter("_position", "lso", "_paused")
"""The same for a consumer that reads committed records only."""


def raise_if_hidden(client: AIOKafkaClient, topic: str) -> None:
    """Raises TopicAuthorizationFailedError when the last metadata says that the user may not see
    `topic`, and asks for newer metadata.
    """
    if topic in client.cluster.unauthorized_topics:
        client.force_metadata_update()
        raise TopicAuthorizationFailedError(topic)


class FetchedPartitions(OrderedDict[Any, Any]):
    """What was fetched: partition -> result, or error."""

    def __init__(self, *, as_rows: bool = False) -> None:
        super().__init__()
        self._made = _FetchedRows if as_rows else _FetchedRecords
        self.fetches = 0
        """How often something was found."""
        self.answered: dict[tuple[str, int], int] = {}
        """Partition -> leader epoch of the last batch in an answer, which may be out of date."""
        self.epochs: dict[tuple[str, int], int] = {}
        """The same of what was fetched here."""
        self._last: dict[Any, int] = {}
        self._bytes: dict[Any, int] = {}

    def __setitem__(self, place: Any, found: Any) -> None:
        if isinstance(found, FetchResult):
            records = found._partition_records
            records.__class__ = self._made
            records._records_iterator = records._unpack_records()
            self._bytes[place] = records._records.size_in_bytes()
            self.epochs[place] = self.answered.get(place, NO_EPOCH)
        self.fetches += 1
        self._last[place] = self.fetches
        super().__setitem__(place, found)

    @property
    def bytes(self) -> int:
        """Of the partitions whose records are not all taken."""
        return sum(self._bytes.get(place, 0) for place in self)

    def last(self, topic: str, partition: int) -> int:
        """Number of the fetch that found something there last; 0: none did."""
        return self._last.get((topic, partition), 0)


METADATA_AGAIN_S = 0.1
"""Time between two requests for the metadata of a topic that has no leader, or may not be seen."""


class _Asked(NamedTuple):
    """What the brokers were asked for, as long as no more than positions change."""

    assignment: Any
    partitions: Any
    leaders: Any
    brokers: frozenset[int]
    """Those that were asked."""
    places: list[TopicPartition]
    states: list[Any]
    """Of each of `places`."""
    nodes: list[int]
    """Broker to ask, of each of `places`."""
    seen: list[tuple[int | None, bool, Any] | None]
    """Position of each of `places` at the last request for it, whether it is paused, and the future
    that ends the pause; None: its broker was not asked for it.
    """
    resumed: list[Any]
    """Futures that end pauses."""
    checked: set[int]
    """Brokers whose sessions have no partitions but those in `places` that are theirs."""


class FairFetcher(Fetcher):  # type: ignore[misc]
    """Fetches in turn: partitions whose records were fetched the longest time ago come first. An
    answer holds few partitions with a large lag, and aiokafka asks in random order.

    While records of one answer are left, it fetches the next answer, if other partitions are known
    to have records. aiokafka fetches when no records are left.

    As long as no more than positions change, a request is made of those that did. To look at each
    partition, as aiokafka does, costs more than all the rest.
    """

    _ahead_of = -1
    """How often something was found before the last fetch ahead."""
    _sessions: defaultdict[int, FetchSession]
    """Broker -> what it remembers."""
    _asked: _Asked | None = None
    """None: there is something else to do."""
    _metadata_from_s = 0.0
    """When metadata may be asked for again, by the loop's clock."""
    _waited_for = -1
    """How often something was found when it last waited for all of it to be taken."""

    @classmethod
    def replace(cls, fetcher: Fetcher, *, as_rows: bool = False) -> None:
        """Makes a started fetcher of aiokafka, which has no assignment yet, fetch like this."""
        fetcher._records = FetchedPartitions(as_rows=as_rows)
        fetcher._sessions = defaultdict(FetchSession)
        fetcher.__class__ = cls

    async def fetched_records(self, partitions: Any, timeout: float = 0, max_records: int | None = None) -> dict[Any, Sequence[Record]]:  # noqa: ASYNC109
        """Returns what `take` finds, the first fetched first, as soon as there is something."""
        until_s = self._loop.time() + timeout
        while True:
            wanted = set(partitions)
            found = self.take([place for place in self._records if not wanted or place in wanted], max_records or sys.maxsize)
            left_s = until_s - self._loop.time()
            if found or left_s <= 0:
                return found
            waiter = self._create_fetch_waiter()
            await asyncio.wait((waiter,), timeout=left_s)
            if not waiter.done() or self._closed:
                waiter.cancel()
                return {}
            waiter.result()  # it may be that reading is not allowed

    def take(self, partitions: Sequence[Any], most: int) -> dict[Any, Sequence[Record]]:
        """The records that were fetched of these partitions, so many at most. Raises the error that
        came instead of records.
        """
        taken: dict[Any, Sequence[Record]] = {}
        for place in partitions:
            fetched = self._records.get(place)
            if fetched is None or (taken and not isinstance(fetched, FetchResult)):  # the next call raises the error
                continue
            records: list[Any] = []
            if not isinstance(fetched, FetchResult):
                self._forget(place)
                fetched.check_raise()
            elif fetched.check_assignment(place):
                records = list(islice(fetched._partition_records, most))
                if records and len(records) == most:  # the iterator has not come to an end
                    unpacked = fetched._partition_records
                    unpacked.next_fetch_offset = records[-1][unpacked.OFFSET] + 1
                fetched._update_position()
            if len(records) < most:
                self._forget(place)
            if records:
                taken[place] = records
                most -= len(records)
                if not most:
                    break
        return taken

    async def _proc_offset_requests(self, timestamps: Mapping[Any, int]) -> Any:
        """Adds topics that the client does not know, so that aiokafka waits for their metadata.
        Without that it fails first, and asks again 0.1 s later. Raises
        TopicAuthorizationFailedError for a topic that the user may not see: aiokafka asks for its
        leader until the time is over.
        """
        topics = dict.fromkeys(place.topic for place in timestamps)
        for topic in topics:
            self._client.add_topic(topic)
        await self._client._maybe_wait_metadata()
        for topic in topics:
            raise_if_hidden(self._client, topic)
        return await super()._proc_offset_requests(timestamps)

    def _forget(self, place: Any) -> None:
        del self._records[place]
        self._notify(self._wait_consume_future)

    def _get_actions_per_node(self, assignment: Any) -> Any:
        asked = self._asked
        if (
            asked is None
            or self._preferred_read_replica
            or asked.assignment is not assignment
            or asked.partitions is not assignment.tps
            or asked.leaders is not self._client.cluster._partitions
            or any(each.done() for each in asked.resumed)  # else aiokafka would wait for nothing, and look again at once
        ):
            return self._look(assignment)
        if self._records:
            waits = self._has_asked_all(asked)
            return ([], {}, self._prefetch_backoff, False, asked.resumed) if waits else self._look(assignment)
        requests = self._changes(asked)
        return self._look(assignment) if requests is None else (requests, {}, REST_S, False, asked.resumed)

    def _has_asked_all(self, asked: _Asked) -> bool:
        """Returns whether no broker is to be asked before what the last answer has brought is
        taken. Only once for an answer: a task that takes nothing does not hold up others.
        """
        records, leader = self._records, self._client.cluster.leader_for_partition
        if self._waited_for == records.fetches:
            return False
        self._waited_for = records.fetches
        return asked.brokers <= self._in_flight.union(map(leader, records)) and not self._may_fetch_ahead(asked.assignment)

    def _changes(self, asked: _Asked) -> list[tuple[int, SessionRequest]] | None:
        """Requests to all brokers that have answered; None: there is something else to do."""
        free = asked.brokers - self._in_flight
        if not all(self._sessions[each].takes_changes for each in free):
            return None
        for each in free - asked.checked:  # it was being asked when all was looked at, for partitions that others may lead now
            if not self._sessions[each].knows_only(place for place, node_id in zip(asked.places, asked.nodes, strict=True) if node_id == each):
                return None
            asked.checked.add(each)
        changed: dict[int, dict[str, list[tuple[int, int, int]]]] = {each: {} for each in free}
        seen = list(map(_SEEN, asked.states))
        for number in compress(range(len(seen)), map(ne, seen, asked.seen)):
            (topic, partition), node_id, (position, is_paused, _) = asked.places[number], asked.nodes[number], seen[number]
            if position is None or is_paused or node_id not in asked.brokers or asked.states[number].highwater is None:
                return None
            if node_id in changed:
                changed[node_id].setdefault(topic, []).append((partition, position, self._max_partition_fetch_bytes))
                asked.seen[number] = seen[number]
        requests = []
        for node_id, topics in changed.items():
            request = self._new_request(node_id, topics, self._fetch_max_wait_ms)
            request.names_changes = True
            requests.append((node_id, request))
        return requests

    def _look(self, assignment: Any) -> Any:
        """Returns what aiokafka's own method returns, in less time. The partitions of which
        something was found last come last.
        """
        ahead, records, leader = self._may_fetch_ahead(assignment), self._records, self._client.cluster.leader_for_partition
        replica = self._select_read_replica if self._preferred_read_replica else leader
        wanted: defaultdict[int, list[tuple[int, TopicPartition, int]]] = defaultdict(list)
        resets: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        backoffs_s: dict[Any, float] = {}
        is_invalid, resumed = False, []
        places = list(assignment.tps)
        states, nodes = list(map(assignment.state_value, places)), list(map(replica, places))
        for place, state, node_id in zip(places, states, nodes, strict=True):
            found = records.get(place)
            if found is not None:
                found._backoff = 0 if ahead else self._prefetch_backoff
                backoffs_s[node_id] = max(backoffs_s.get(node_id, 0.0), found.calculate_backoff())
            elif node_id in self._in_flight:
                pass
            elif node_id in _UNKNOWN or (state._position is None and leader(place) in _UNKNOWN):
                is_invalid = True
            elif state._position is None:
                resets[leader(place)].append(place)
            elif state._paused:
                resumed.append(state._resume_fut)
            else:
                wanted[node_id].append((records.last(*place), place, state._position))
                if state.highwater is None and self._sessions[node_id].knows(*place):
                    self._sessions[node_id].lost()  # assigned again meanwhile: the broker would not name its end once more
        free = [each for each in wanted if not backoffs_s.get(each) and each not in resets]
        requests = [(each, self._request(each, wanted[each], ahead=ahead)) for each in free]
        self._asked = None
        if not (resets or is_invalid or self._preferred_read_replica):
            brokers = self._in_flight.union(free)
            seen = [
                _SEEN(state) if node_id not in self._in_flight and place not in records and (node_id in brokers or state._paused) else None
                for place, state, node_id in zip(places, states, nodes, strict=True)
            ]
            leaders = self._client.cluster._partitions
            self._asked = _Asked(assignment, assignment.tps, leaders, frozenset(brokers), places, states, nodes, seen, resumed, set(free))
        backoff_s = min(filter(None, backoffs_s.values()), default=self._fetcher_timeout)
        if is_invalid:  # aiokafka asks for metadata at once, and looks again when it is there
            now_s = asyncio.get_running_loop().time()
            is_invalid, wait_s = now_s >= self._metadata_from_s, self._metadata_from_s - now_s
            if is_invalid:
                self._metadata_from_s = now_s + METADATA_AGAIN_S
            else:
                backoff_s = min(backoff_s, wait_s)
        return requests, resets, backoff_s, is_invalid, resumed

    def _request(self, node_id: int, partitions: list[tuple[int, TopicPartition, int]], *, ahead: bool) -> SessionRequest:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for _, (topic, partition), position in sorted(partitions):
            topics.setdefault(topic, []).append((partition, position, self._max_partition_fetch_bytes))
        wait_ms = 0 if ahead else self._fetch_max_wait_ms  # what is being taken must not wait for it
        if ahead:
            self._ahead_of = self._records.fetches
        return self._new_request(node_id, topics, wait_ms)

    def _new_request(self, node_id: int, topics: dict[str, list[tuple[int, int, int]]], wait_ms: int) -> SessionRequest:
        made = SessionRequest(
            wait_ms, self._fetch_min_bytes, self._fetch_max_bytes, self._isolation_level, list(topics.items()), self._client_rack or ""
        )
        made.session, made.epochs = self._sessions[node_id], self._records.answered
        return made

    def _may_fetch_ahead(self, assignment: Any) -> bool:
        records = self._records
        if not records or records.fetches == self._ahead_of or records.bytes > self._fetch_max_bytes:
            return False
        progress = _COMMITTED_PROGRESS if self._isolation_level == READ_COMMITTED else _PROGRESS
        others = map(assignment._tp_state.__getitem__, assignment.tps.difference(records))
        return any(position is not None and position < (end or 0) and not is_paused for position, end, is_paused in map(progress, others))


class _FetchedRecords(PartitionRecords):  # type: ignore[misc]
    """Makes records of our own, with a third of aiokafka's calls for each."""

    OFFSET = Record._fields.index("offset")
    """Index of the offset in what is made of a record."""
    next_fetch_offset: int

    def __iter__(self) -> Iterator[Any]:
        return self._records_iterator  # type: ignore[no-any-return]

    def _unpack_records(self) -> Iterator[Any]:
        (topic, partition), new = self._tp, tuple.__new__
        last: list[tuple[str, bytes]] = []
        shared: tuple[tuple[str, bytes], ...] = ()
        for kind, fields in self._unpack_batches():
            for key, value, offset, timestamp_ms, headers in fields:
                if headers != last:  # those of one owner have the same ones: a tuple for all
                    last, shared = headers, tuple(headers)
                # As `Record(...)` does, without a call of its own.
                yield new(Record, (key, value, topic, partition, offset, timestamp_ms, shared, kind))

    def _unpack_batches(self) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Timestamp type and `_FIELDS` of the records of each batch. `next_fetch_offset` is the
        position behind the last batch that was unpacked. Whoever stops within one has to set it.
        """
        batches = self._records
        begin: int | None = self.next_fetch_offset  # which may be within the first batch
        while batches.has_next():
            batch = batches.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            if self._holds_records(batch):
                fields: Iterator[tuple[Any, ...]] = map(_FIELDS, batch)
                if begin is not None:
                    fields, begin = _from(begin, fields), None
                yield batch.timestamp_type, fields
            self.next_fetch_offset = batch.next_offset  # compaction may have removed the last ones

    def _holds_records(self, batch: Any) -> bool:
        """False: transaction markers, or what an aborted transaction has written."""
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            elif batch.is_transactional and batch.producer_id in self._aborted_producers:
                return False
        return not batch.is_control_batch


class _FetchedRows(_FetchedRecords):
    """Makes a `Row` of each record: a plain tuple costs less than one with names. The loop is that
    of records once more, because a call for each record would cost what this saves.
    """

    OFFSET = 3

    def _unpack_records(self) -> Iterator[Row]:
        last: list[tuple[str, bytes]] = []
        shared: tuple[tuple[str, bytes], ...] = ()
        for _, fields in self._unpack_batches():
            for key, value, offset, _, headers in fields:
                if headers != last:
                    last, shared = headers, tuple(headers)
                yield key, value, shared, offset


def _from(begin: int, records: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return (fields for fields in records if fields[2] >= begin)
