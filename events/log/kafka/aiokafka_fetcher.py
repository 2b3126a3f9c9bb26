"""How a deployed consumer fetches and decodes records, over the fetcher of aiokafka."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException

from equipoise.events.log.kafka.aiokafka_sessions import FetchSession, SessionRequest
from equipoise.events.log.kafka.client import Record

REST_S = 1.0
"""How often to look for changes while all partitions wait for answers: answers, seeks and new
assignments come at once. aiokafka looks each 0.2 s.
"""
_UNKNOWN = (None, -1)
"""Leaders that are not known."""
_FIELDS = attrgetter("key", "value", "offset", "timestamp", "headers")
"""Of a record of aiokafka."""


class FetchedPartitions(OrderedDict[Any, Any]):
    """What was fetched: partition -> result, or error."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0
        """How often something was found."""
        self._last: dict[Any, int] = {}
        self._bytes: dict[Any, int] = {}

    def __setitem__(self, place: Any, found: Any) -> None:
        if isinstance(found, FetchResult):
            records = found._partition_records
            records.__class__ = _FetchedRecords
            records._records_iterator = records._unpack_records()
            self._bytes[place] = records._records.size_in_bytes()
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


class _Rest(NamedTuple):
    """What all partitions wait for."""

    assignment: Any
    partitions: Any
    states: list[tuple[int | None, Any]]
    """Position of each partition, and the future that ends its pause."""
    requests: dict[int, Any]
    """Broker -> its last request."""
    brokers: frozenset[int]
    resumed: list[Any]
    """Futures that end pauses."""


class FairFetcher(Fetcher):  # type: ignore[misc]
    """Fetches in turn: partitions whose records were fetched the longest time ago come first. An
    answer holds few partitions with a large lag, and aiokafka asks in random order.

    While records of one answer are left, it fetches the next answer, if other partitions are known
    to have records. aiokafka fetches when no records are left.

    When a broker has found nothing, its last request is repeated as long as no partition has
    changed. To look at each partition, as aiokafka does, costs more than all the rest.
    """

    _ahead_of = -1
    """How often something was found before the last fetch ahead."""
    _sessions: defaultdict[int, FetchSession]
    """Broker -> what it remembers."""
    _rest: _Rest | None = None
    """None: there is something else to do."""
    _waited_for = -1
    """How often something was found when it last waited for all of it to be taken."""

    @classmethod
    def replace(cls, fetcher: Fetcher) -> None:
        """Makes a started fetcher of aiokafka, which has no assignment yet, fetch like this."""
        fetcher._records = FetchedPartitions()
        fetcher._sessions = defaultdict(FetchSession)
        fetcher.__class__ = cls

    def take(self, partitions: Sequence[Any], most: int) -> dict[Any, Sequence[Record]]:
        """As `fetched_records` of aiokafka, which looks at all partitions to find those of one
        task.
        """
        taken: dict[Any, Sequence[Record]] = {}
        for place in partitions:
            fetched = self._records.get(place)
            if fetched is None or (taken and not isinstance(fetched, FetchResult)):  # the next call raises the error
                continue
            records: list[Record] = []
            if not isinstance(fetched, FetchResult):
                self._forget(place)
                fetched.check_raise()
            elif fetched.check_assignment(place):
                records = list(islice(fetched._partition_records, most))
                fetched._update_position()
            if len(records) < most:
                self._forget(place)
            if records:
                taken[place] = records
                most -= len(records)
                if not most:
                    break
        return taken

    def _forget(self, place: Any) -> None:
        del self._records[place]
        self._notify(self._wait_consume_future)

    def _get_actions_per_node(self, assignment: Any) -> Any:
        if self._records:
            rest = self._rest
            if rest is not None and self._has_asked_all(rest, assignment):
                return [], {}, self._prefetch_backoff, False, rest.resumed
            self._rest = None
            return self._look(assignment)
        states = [(each._position, each._resume_fut) for each in map(assignment.state_value, assignment.tps)]
        rest = self._rest
        if rest is not None and (rest.assignment is not assignment or rest.partitions is not assignment.tps or rest.states != states):
            rest = None
        free = frozenset() if rest is None else rest.brokers - self._in_flight
        if rest is not None and all(each in rest.requests and self._sessions[each].found_nothing for each in free):
            for each in free:
                rest.requests[each]._max_wait_ms = self._fetch_max_wait_ms
            return [(each, rest.requests[each]) for each in free], {}, REST_S, False, rest.resumed
        requests = {} if rest is None else {each: request for each, request in rest.requests.items() if each in self._in_flight}
        actions = self._look(assignment)
        begun, resets, _, is_invalid, resumed = actions
        requests.update(begun)
        brokers = frozenset(self._in_flight.union(requests))
        self._rest = None if resets or is_invalid else _Rest(assignment, assignment.tps, states, requests, brokers, resumed)
        return actions

    def _has_asked_all(self, rest: _Rest, assignment: Any) -> bool:
        """Whether no broker is to be asked before what the last answer has brought is taken. Only
        once for an answer: a task that takes nothing does not hold up others.
        """
        records, leader = self._records, self._client.cluster.leader_for_partition
        if self._waited_for == records.fetches or rest.partitions is not assignment.tps:
            return False
        self._waited_for = records.fetches
        return rest.brokers <= self._in_flight.union(map(leader, records)) and not self._may_fetch_ahead(assignment)

    def _look(self, assignment: Any) -> Any:
        """What aiokafka's own method returns, in less time. The partitions of which something was
        found last come last.
        """
        ahead, records, leader = self._may_fetch_ahead(assignment), self._records, self._client.cluster.leader_for_partition
        replica = self._select_read_replica if self._preferred_read_replica else leader
        wanted: defaultdict[int, list[tuple[int, TopicPartition, int]]] = defaultdict(list)
        resets: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        backoffs_s: dict[Any, float] = {}
        is_invalid, resumed = False, []
        for place in assignment.tps:
            node_id, state, found = replica(place), assignment.state_value(place), records.get(place)
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
        backoff_s = min(filter(None, backoffs_s.values()), default=self._fetcher_timeout)
        return requests, resets, backoff_s, is_invalid, resumed

    def _request(self, node_id: int, partitions: list[tuple[int, TopicPartition, int]], *, ahead: bool) -> SessionRequest:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for _, (topic, partition), position in sorted(partitions):
            topics.setdefault(topic, []).append((partition, position, self._max_partition_fetch_bytes))
        wait_ms = 0 if ahead else self._fetch_max_wait_ms  # what is being taken must not wait for it
        made = SessionRequest(
            wait_ms, self._fetch_min_bytes, self._fetch_max_bytes, self._isolation_level, list(topics.items()), self._client_rack or ""
        )
        made.session = self._sessions[node_id]
        if ahead:
            self._ahead_of = self._records.fetches
        return made

    def _may_fetch_ahead(self, assignment: Any) -> bool:
        records = self._records
        if not records or records.fetches == self._ahead_of or records.bytes > self._fetch_max_bytes:
            return False
        end = attrgetter("lso" if self._isolation_level == READ_COMMITTED else "highwater")  # by its last fetch
        for state in map(assignment.state_value, assignment.tps.difference(records)):
            if not state._paused and state._position is not None and state._position < (end(state) or 0):
                return True
        return False


class _FetchedRecords(PartitionRecords):  # type: ignore[misc]
    """Makes records of our own, with a third of aiokafka's calls for each."""

    next_fetch_offset: int

    def __iter__(self) -> Iterator[Record]:
        return self._records_iterator  # type: ignore[no-any-return]

    def _unpack_records(self) -> Iterator[Record]:
        (topic, partition), batches, new = self._tp, self._records, tuple.__new__
        last: list[tuple[str, bytes]] = []
        shared: tuple[tuple[str, bytes], ...] = ()
        while batches.has_next():
            batch = batches.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            if self._holds_records(batch):
                begin = self.next_fetch_offset  # which may be within the batch
                kind = batch.timestamp_type
                for key, value, offset, timestamp_ms, headers in map(_FIELDS, batch):
                    if offset >= begin:
                        self.next_fetch_offset = offset + 1
                        if headers != last:  # those of one owner have the same ones: a tuple for all
                            last, shared = headers, tuple(headers)
                        # As `Record(...)` does, without a call of its own.
                        yield new(Record, (key, value, topic, partition, offset, timestamp_ms, shared, kind))
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
