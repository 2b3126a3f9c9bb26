"""The consumer, without I/O and without a clock: answers and times (ms) in, requests out.

`ConsumerCore.due` returns what is to be sent now. Each of its orders ends with one call: `fetched`,
`placed` or `failed`. In between the caller assigns, seeks, pauses and takes as it likes; answers
that no longer fit are dropped. One order at a time is under way for each broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from math import inf
from typing import Any

from aiokafka import errors

from equipoise.kafka.client import NO_EPOCH, TopicPartition
from equipoise.kafka.consumer.batches import FetchedBatches
from equipoise.kafka.consumer.fetch_session import Asked
from equipoise.kafka.consumer.read_brokers import NO_LEADER, Leaders, ReadBroker, ReadBrokers, ReadPartition
from equipoise.kafka.consumer.reading_orders import Due, FetchOptions, FetchOrder, FindPositions, Order

PREFETCH_MS = 100.0
"""How long records that nobody takes keep others from being fetched from the same broker."""
METADATA_AGAIN_MS = 100.0
"""Time between two requests for metadata while a partition has no leader."""
_OFFSET_OUT_OF_RANGE, _TOPIC_AUTHORIZATION_FAILED = 1, 29
_SESSION_ERRORS = {70, 71}
"""FETCH_SESSION_ID_NOT_FOUND and INVALID_FETCH_SESSION_EPOCH: a new session begins at once."""
_FIRST_WITH_SESSIONS, _FIRST_WITH_REPLICAS = 7, 11


class ConsumerCore:
    """See the module."""

    def __init__(self, options: FetchOptions) -> None:
        self.options = options
        self.max_wait_ms = options.max_wait_ms
        """How long brokers hold a fetch that finds nothing, from the next one on."""
        self._partitions: dict[TopicPartition, ReadPartition] = {}
        self._brokers = ReadBrokers(options)
        self._found: dict[TopicPartition, ReadPartition] = {}
        self._unplaced: dict[TopicPartition, ReadPartition] = {}
        self.finds = 0
        """How often something was found: records, or an error."""
        self._untaken_bytes = 0
        self._has_moved = False
        """Whether a broker has said that it does not lead what it was asked for."""
        self._metadata_from_ms = -inf

    # What the host wants

    def assign(self, places: Collection[TopicPartition]) -> None:
        """Reads these partitions from now on. Those that were assigned before stay as they are;
        others are forgotten.
        """
        wanted = dict.fromkeys(places)
        for place in [each for each in self._partitions if each not in wanted]:
            each = self._partitions.pop(place)
            self._forget(each)
            self._unplaced.pop(place, None)
            self._brokers.leave(each)
        for place in wanted:
            if place not in self._partitions:
                each = self._partitions[place] = ReadPartition(TopicPartition(*place))
                self._unplaced[each.place] = each
                self._brokers.lead(each)

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Raises IllegalStateError, ValueError."""
        if offset < 0:
            raise ValueError(f"offset: {offset} is negative; the first one is 0")
        each = self._assigned(place)
        self._forget(each)
        each.is_finding, each.fetched_epoch = False, NO_EPOCH
        self._set_position(each, offset)

    def pause(self, place: TopicPartition) -> None:
        """Raises IllegalStateError."""
        each = self._assigned(place)
        each.is_paused = True
        self._brokers.count(each)

    def resume(self, place: TopicPartition) -> None:
        """Raises IllegalStateError."""
        each = self._assigned(place)
        each.is_paused = False
        self._brokers.count(each)

    def _assigned(self, place: TopicPartition) -> ReadPartition:
        each = self._partitions.get(place)
        if each is None:
            raise errors.IllegalStateError(f"No current assignment for partition {place}")
        return each

    # What is known

    @property
    def places(self) -> Collection[TopicPartition]:
        """Returns the assigned partitions."""
        return self._partitions.keys()

    def position(self, place: TopicPartition) -> int | None:
        """Returns the offset of the record to take next; None: unknown, or not assigned."""
        each = self._partitions.get(place)
        return None if each is None else each.position

    def end(self, place: TopicPartition) -> int | None:
        """Returns the high watermark, by the last fetch; None: unknown, or not assigned."""
        each = self._partitions.get(place)
        return None if each is None else each.end

    def last_stable_offset(self, place: TopicPartition) -> int | None:
        """Returns it by the last fetch; None: unknown. Raises IllegalStateError."""
        return self._assigned(place).stable

    def fetched_epoch(self, place: TopicPartition) -> int:
        """Returns the leader epoch of the last batch since `seek`; NO_EPOCH: unknown."""
        each = self._partitions.get(place)
        return NO_EPOCH if each is None else each.fetched_epoch

    # Records

    def ready(self) -> Set[TopicPartition]:
        """Returns the partitions of which something is there, the first found first."""
        return self._found.keys()

    def take(self, places: Collection[TopicPartition], most: int) -> dict[TopicPartition, Sequence[Any]]:
        """Returns at most so many records of `places`. Raises the error that came instead of
        records, if nothing is before it. What was found of a partition that is paused is dropped.
        """
        taken: dict[TopicPartition, Sequence[Any]] = {}
        for place in places:
            each = self._found.get(place)
            if each is None or (taken and each.error is not None):  # the next call raises the error
                continue
            if each.error is not None:
                error = each.error
                self._forget(each)
                raise error
            found = each.found
            if found is None or each.is_paused:
                self._forget(each)
                continue
            records, error_behind = found.take(most)
            each.position = found.next_offset
            if error_behind is not None:
                self._forget(each)
                self._fail(each, error_behind)
                if not records and not taken:
                    return self.take((place,), most)
            elif len(records) < most:
                self._forget(each)
            if records:
                taken[place] = records
                most -= len(records)
                if not most:
                    break
        return taken

    def _forget(self, each: ReadPartition) -> None:
        """Nothing of it is waiting any more."""
        if self._found.pop(each.place, None) is not None:
            if each.found is not None:
                self._untaken_bytes -= each.found.size_bytes
            each.found = each.error = None
            self._brokers.count(each)

    def _fail(self, each: ReadPartition, error: Exception) -> None:
        self.finds += 1
        each.error, each.last = error, self.finds
        self._found[each.place] = each
        self._brokers.count(each)

    # What is to be sent

    def due(self, now_ms: float) -> Due:
        """Returns what is to be sent now. Each order has to be ended."""
        again_ms = self._brokers.rested(now_ms)
        orders: list[Order] = list(self._find_positions()) if self._unplaced else []
        for node in self._brokers.nodes.values():
            if node.is_asked or not node.wanted:
                continue
            wait_ms, from_ms = self.max_wait_ms, node.from_ms
            if node.untaken:
                if node.behind and node.ahead_of != node.finds and self._untaken_bytes <= self.options.answer_bytes:
                    wait_ms = 0  # what is being taken must not wait for it
                else:
                    from_ms = max(from_ms, node.found_ms + PREFETCH_MS)
            if from_ms > now_ms:
                again_ms = min(again_ms, from_ms)
                continue
            if not wait_ms:
                node.ahead_of = node.finds
            orders.append(self._fetch(node, wait_ms))
        has_unled = any(not each.is_paused for each in self._brokers.unled.values())
        asks = (has_unled or self._has_moved) and now_ms >= self._metadata_from_ms
        if asks:
            self._has_moved, self._metadata_from_ms = False, now_ms + METADATA_AGAIN_MS
        if has_unled or self._has_moved:
            again_ms = min(again_ms, self._metadata_from_ms)
        return Due(orders, asks, again_ms)

    def _fetch(self, node: ReadBroker, wait_ms: int) -> FetchOrder:
        session, wanted, known = node.session, node.wanted, node.session.known
        named: dict[TopicPartition, Asked] = {}
        dropped: list[TopicPartition] = []
        for place in () if session.is_new else node.changed:
            each = wanted.get(place)
            if each is None:
                if place in known:
                    dropped.append(place)
                continue
            assert each.position is not None
            asked = each.position, each.epoch
            if known.get(place) != asked:
                named[place] = asked
            elif each.end is None:  # assigned again meanwhile: the broker would not name its end once more
                session.lost()
                break
        if session.is_new:
            first_found_first = sorted(wanted.values(), key=lambda each: each.last)
            named, dropped = {each.place: (each.position or 0, each.epoch) for each in first_found_first}, []
        node.changed.clear()
        node.is_asked = True
        session_epoch = session.epoch
        session.ask(named, dropped)
        return FetchOrder(node.id, session.id, session_epoch, wait_ms, named, dropped)

    def _find_positions(self) -> list[FindPositions]:
        committed: list[TopicPartition] = []
        listed: dict[int, list[TopicPartition]] = {}
        for each in self._unplaced.values():
            if each.is_finding or each.error is not None or each.place in self._brokers.resting:
                continue
            if self.options.has_group and not each.is_reset:
                committed.append(each.place)
            elif self.options.reset == "none":
                self._fail(each, errors.NoOffsetForPartitionError(each.place))
                continue
            elif each.leader == NO_LEADER:
                continue
            else:
                listed.setdefault(each.leader, []).append(each.place)
            each.is_finding = True
        found = [FindPositions(node, places) for node, places in listed.items()]
        return [FindPositions(None, committed), *found] if committed else found

    # What is heard

    def heard(self, leaders: Leaders, now_ms: float) -> None:
        """The brokers' metadata was heard. `leaders` is asked again for partitions that are
        assigned later.
        """
        self._brokers.heard(self._partitions.values(), leaders, now_ms)

    def fetched(self, order: FetchOrder, answer: Any, now_ms: float) -> None:
        """The broker has answered, with a response of aiokafka."""
        node, version = self._brokers.nodes[order.node], answer.API_VERSION
        node.is_asked = False
        node.from_ms = now_ms + answer.throttle_time_ms
        if version < _FIRST_WITH_SESSIONS:
            node.session.answered(0)
        elif answer.error_code:
            node.session.lost()
            if answer.error_code not in _SESSION_ERRORS:
                node.from_ms = max(node.from_ms, now_ms + self.options.retry_ms)
            return
        else:
            node.session.answered(answer.session_id)
        known = node.session.known
        for topic, partitions in answer.topics:
            for fields in partitions:
                place = TopicPartition(topic, fields[0])
                each, asked = self._partitions.get(place), known.get(place)
                if each is None or each.node is not node or each.error is not None or each.found is not None:
                    continue
                if asked is not None and asked[0] == each.position:
                    self._answered(node, each, fields, version, now_ms)

    def _answered(self, node: ReadBroker, each: ReadPartition, fields: Sequence[Any], version: int, now_ms: float) -> None:
        _, code, end, stable, *_, data = fields
        if code:
            self._refused(node, each, code, now_ms)
            return
        each.end, each.stable = end, stable
        if version >= _FIRST_WITH_REPLICAS and self.options.rack and fields[-2] != NO_LEADER:
            self._brokers.prefer(each, fields[-2], now_ms)
        if data:
            aborted = fields[-3 if version >= _FIRST_WITH_REPLICAS else -2] or ()
            assert each.position is not None
            found = FetchedBatches(each.place, data, each.position, aborted if self.options.read_committed else None, as_rows=self.options.as_rows)
            node.finds += 1
            node.found_ms = now_ms
            if found.is_empty:
                size = self.options.partition_bytes
                self._fail(each, errors.RecordTooLargeError(f"{each.place}: the record at {each.position} is larger than {size} bytes, or cut off"))
                return
            self.finds += 1
            each.last = self.finds
            each.found, each.fetched_epoch = found, found.leader_epoch
            self._untaken_bytes += found.size_bytes
            self._found[each.place] = each
        self._brokers.count(each)

    def _refused(self, node: ReadBroker, each: ReadPartition, code: int, now_ms: float) -> None:
        """The broker has an error in place of records."""
        is_behind_leader = each.replica != NO_LEADER and code == _OFFSET_OUT_OF_RANGE
        self._brokers.leave_replica(each)
        if is_behind_leader:
            return  # only the leader knows what is out of range
        if code == _OFFSET_OUT_OF_RANGE and self.options.reset != "none":
            each.is_reset = True
            self._set_position(each, None)
        elif code in (_OFFSET_OUT_OF_RANGE, _TOPIC_AUTHORIZATION_FAILED):
            node.finds += 1
            node.found_ms = now_ms
            out: Exception = errors.OffsetOutOfRangeError({each.place: each.position})
            self._fail(each, out if code == _OFFSET_OUT_OF_RANGE else errors.TopicAuthorizationFailedError(each.place.topic))
        else:
            self._brokers.rest(each, now_ms)
            self._has_moved = True

    def failed(self, order: Order, error: Exception, now_ms: float) -> None:
        """The order had no answer."""
        if isinstance(order, FetchOrder):
            node = self._brokers.nodes[order.node]
            node.is_asked = False
            node.session.lost()
            node.from_ms = now_ms + self.options.retry_ms
            for each in list(node.wanted.values()):
                self._brokers.leave_replica(each)  # the leader is there
            return
        for each in self._finding(order):
            each.is_finding = False
            if getattr(error, "retriable", False):
                self._brokers.rest(each, now_ms)
            else:
                self._fail(each, error)

    def placed(self, order: FindPositions, offsets: Mapping[TopicPartition, int | None], now_ms: float) -> None:
        """Where to begin was found. None: the group has committed nothing. What is missing is asked
        for again.
        """
        for each in self._finding(order):
            each.is_finding = False
            if each.place not in offsets:
                self._brokers.rest(each, now_ms)
                continue
            offset = offsets[each.place]
            each.is_reset = offset is None
            if offset is not None:
                self._set_position(each, offset)

    def _finding(self, order: FindPositions) -> list[ReadPartition]:
        asked = map(self._partitions.get, order.places)
        return [each for each in asked if each is not None and each.is_finding]

    def _set_position(self, each: ReadPartition, offset: int | None) -> None:
        each.position = offset
        if offset is None:
            self._unplaced[each.place] = each
        else:
            self._unplaced.pop(each.place, None)
        self._brokers.count(each)
