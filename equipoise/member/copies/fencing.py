"""Decides which records of a changelog count: a fold over one changelog partition, without Kafka
and without a clock. See docs/protocol.md#m6.

A member that is granted a stateful task first writes a *fence* to each changelog of the task: a
record under FENCE_KEY with the origin of the grant. A record counts if its origin is not lower than
the highest origin before it. So a late record of a former owner is either before the fence, and the
new owner restores it, or behind the fence, and every later restore ignores it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

import attrs
import msgpack

from equipoise.events.errors import InputError
from equipoise.kafka.client import NO_EPOCH, Row
from equipoise.member.copies.origin import Origin, read_origin
from equipoise.member.copies.stores import Change, DamagedStoreError, StateStore

_LOG = logging.getLogger(__name__)
AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE = "exactly_once"
"""As the value of a fence: of a build whose owners have a transactional id for each task. The
present one appends a colon and the transactional id of its member.
"""
RESERVED_PREFIX = b"\x00equipoise."
"""Prefix of the member's own keys in changelogs and stores."""
FENCE_KEY = b"\x00equipoise.fence"
"""In a changelog: the key of fences; the value is the guarantee of the owner, or GIVEN_BACK. In a
store: the state of this fold at the store's offset.
"""
GIVEN_BACK = b"given_back"
"""Value of the fence in the last transaction of an owner that has closed its task."""
SOURCES_KEY = b"\x00equipoise.sources"
"""Key of the record in each commit with the source offsets that the state corresponds to. The
next owner continues there, whatever offsets a former owner has committed meanwhile.
"""
SOURCE_TOPICS_KEY = b"\x00equipoise.source_topics"
"""Of which topics the source offsets are: topic -> id (KIP-516)."""
TOPIC_KEY = b"\x00equipoise.topic"
"""In a store only: the topic that it is a copy of (`CopiedTopic`), its leader epoch, and when the
copy was begun; former builds wrote less.
"""
MOST_STALE_KEYS = 100_000
"""Most keys of ignored records to remember. A former owner has at most one commit under way, 10,000
records by default.
"""
_FORM = 1
_TRANSACTIONAL = EXACTLY_ONCE + ":"
_GIVEN_BACK = GIVEN_BACK.decode()
_FENCES = AT_LEAST_ONCE, EXACTLY_ONCE, _GIVEN_BACK

_KEY, _VALUE, _HEADERS, _ALL = itemgetter(0), itemgetter(1), itemgetter(2), itemgetter(0, 1, 2)


class ChangelogRecord(NamedTuple):
    """A record of a changelog. A `Row` of a consumer begins with the same items."""

    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@attrs.frozen
class ChangelogOwner:
    """The owner of a changelog at some offset. `guarantee`: the value of its last fence; "": it
    was compacted away.
    """

    origin: Origin
    guarantee: str = ""

    def outranks(self, grant: Origin) -> bool:
        """Returns whether this owner has a later grant of the same writer than `grant`."""
        return self.origin.same_writer(grant) and self.origin.token > grant.token

    @property
    def has_given_back(self) -> bool:
        """Returns whether it has closed its task, and writes nothing any more."""
        return self.guarantee == _GIVEN_BACK

    @property
    def transactional_id(self) -> str:
        """The transactional id of a transaction that this owner may have left open; "": none."""
        if self.guarantee == EXACTLY_ONCE:
            return self.origin.transactional_id
        return self.guarantee.removeprefix(_TRANSACTIONAL) if self.guarantee.startswith(_TRANSACTIONAL) else ""


Owners = Mapping[str, ChangelogOwner | None]
"""Changelog topic -> its owner; None: nobody has written to it."""
TakeIf = Callable[[Owners], bool]
"""Whether stores that are restored up to these owners are handed over. Any thread may call it."""


def fence_value(transactional_id: str | None) -> bytes:
    """The value of an owner's fence. None: it commits with at_least_once."""
    return AT_LEAST_ONCE.encode() if transactional_id is None else f"{_TRANSACTIONAL}{transactional_id}".encode()


def claim(owner: ChangelogOwner | None, grant: Origin) -> Origin:
    """The origin of the grant's records in a changelog whose present owner is `owner`; None: it has
    none. `grant` has epoch 0.
    """
    if owner is None:
        return attrs.evolve(grant, epoch=1)
    known = owner.origin
    return attrs.evolve(grant, epoch=known.epoch if known.epoch and known.same_writer(grant) else known.epoch + 1)


class ChangelogFence:
    """The state of the fold over one changelog partition, up to some offset.

    `owner`: the last owner, whose records count; None: there was none. `stale_keys`: keys whose
    last record does not count. The owner has to write them again, because compaction would keep
    that record and delete the one that counts. `dropped_records`: records that did not count.
    """

    def __init__(self) -> None:
        self.owner: ChangelogOwner | None = None
        self.stale_keys: set[bytes] = set()
        self.dropped_records = 0
        self._changed = False
        self._judged: tuple[Sequence[tuple[str, bytes]], tuple[bool, bool]] | None = None
        """The last headers, and the verdict: most records have the same. Only others bring another
        owner.
        """

    def fold(self, records: Sequence[ChangelogRecord | Row]) -> Mapping[bytes, bytes | None]:
        """Folds the next records of the changelog, in order. Returns the changes to the store: key
        -> value of its last record that counts, and under FENCE_KEY the new state of the fold.
        """
        headers = list(map(_HEADERS, records))
        if headers and headers.count(headers[0]) == len(headers):  # most are of one owner
            changes = dict(zip(map(_KEY, records), map(_VALUE, records), strict=True))
            if self._takes_all(changes, headers[0]):
                return changes
        return self._fold_each(map(_ALL, records))

    def fold_written(self, changes: Mapping[bytes, bytes | None], headers: Sequence[tuple[str, bytes]]) -> Mapping[bytes, bytes | None]:
        """Does what `fold` does, for the records of a commit, which have the same headers."""
        if self._takes_all(changes, headers):
            return changes
        return self._fold_each(zip(changes, changes.values(), repeat(headers)))

    def _takes_all(self, changes: Mapping[bytes, bytes | None], headers: Sequence[tuple[str, bytes]]) -> bool:
        """Returns whether records with these headers all count, and change nothing of this fold."""
        return self._judge(headers) == (True, True) and not (self._changed or self.stale_keys or FENCE_KEY in changes)

    def _fold_each(self, records: Iterable[tuple[bytes, bytes | None, Sequence[tuple[str, bytes]]]]) -> dict[bytes, bytes | None]:
        changes: dict[bytes, bytes | None] = {}
        stale = self.stale_keys
        headers: Sequence[tuple[str, bytes]] | None = None
        counts, epoch_known = True, True
        for key, value, its_headers in records:
            if its_headers is not headers and its_headers != headers:  # the records of one owner have the same headers
                headers = its_headers
                counts, epoch_known = self._judge(headers)
            if not counts:
                self._leave_out(key)
                continue
            if stale and key in stale:
                stale.discard(key)
                self._changed = True
            if key == FENCE_KEY:
                self._fenced(value)
                continue
            if not epoch_known:
                self._written_by_former_build(key, changes)
            changes[key] = value
        if self._changed:
            self._changed = False
            changes[FENCE_KEY] = self.pack()
        return changes

    def _judge(self, headers: Sequence[tuple[str, bytes]]) -> tuple[bool, bool]:
        """Returns whether records with these headers count, and whether a build that knows epochs
        wrote them.
        """
        if self._judged is None or self._judged[0] != headers:
            self._judged = headers, self._judge_anew(headers)
        return self._judged[1]

    def _judge_anew(self, headers: Sequence[tuple[str, bytes]]) -> tuple[bool, bool]:
        origin = read_origin(headers)
        if origin is None:
            return True, True  # written by hand, not by an owner
        epoch_known = origin.epoch > 0
        owner = None if self.owner is None else self.owner.origin
        if owner is not None and not epoch_known:
            if owner.transactional_id == origin.transactional_id:
                origin = attrs.evolve(owner, token=origin.token)  # a build without epochs: compare tokens alone
            elif owner.epoch == 0:
                owner = None  # renumbered before fences existed: only the order here tells which is later
        if owner is not None and origin < owner:
            return False, epoch_known
        if origin != owner:
            self.owner = ChangelogOwner(origin)
            self._changed = True
        return True, epoch_known

    def _leave_out(self, key: bytes | None) -> None:
        self.dropped_records += 1
        if key is not None and key not in self.stale_keys and len(self.stale_keys) < MOST_STALE_KEYS:
            self.stale_keys.add(key)
            self._changed = True

    def _fenced(self, value: bytes | None) -> None:
        guarantee = (value or b"").decode(errors="replace")
        self._commits_under(guarantee if guarantee in _FENCES or guarantee.startswith(_TRANSACTIONAL) else "")

    def _written_by_former_build(self, key: bytes, changes: dict[bytes, bytes | None]) -> None:
        """A build without epochs ends each commit with the source offsets under at_least_once,
        and never writes them under exactly_once. Earlier offsets are then out of date.
        """
        if key == SOURCES_KEY:
            self._commits_under(AT_LEAST_ONCE)
        else:
            self._commits_under(EXACTLY_ONCE)
            changes[SOURCES_KEY] = None

    def _commits_under(self, guarantee: str) -> None:
        if self.owner is not None and self.owner.guarantee != guarantee:
            self.owner = attrs.evolve(self.owner, guarantee=guarantee)
            self._changed = True

    # In a store

    def pack(self) -> bytes:
        """The state of the fold as bytes, for FENCE_KEY in a store."""
        origin = None if self.owner is None else [*attrs.astuple(self.owner.origin), self.owner.guarantee]
        packed: bytes = msgpack.packb([_FORM, origin, sorted(self.stale_keys)])
        return packed

    @classmethod
    def unpack(cls, packed: bytes | None) -> ChangelogFence:
        """The fold that `pack` has packed; None: a new one. Raises InputError when the bytes are of
        another build.
        """
        fence = cls()
        if packed is None:
            return fence
        try:
            form, origin, stale_keys = msgpack.unpackb(packed)
            if form != _FORM:
                raise ValueError
            fence.stale_keys = set(stale_keys)
            if origin is not None:
                *fields, guarantee = origin
                fence.owner = ChangelogOwner(Origin(*fields), guarantee)
        except (ValueError, TypeError, msgpack.UnpackException):
            raise InputError(f"key {FENCE_KEY!r}: its value is not of this build") from None
        return fence


@attrs.frozen
class CopiedTopic:
    """The changelog that a store is a copy of. `topic_id`: (KIP-516) in hexadecimal; "": the
    brokers have none. `begin`: the partition's first offset when it was last compared.
    """

    topic_id: str
    begin: int

    def differs(self, former: CopiedTopic) -> str:
        """Returns why a copy of `former` is none of this; "": it is one. Records are only ever
        deleted from the begin of a compacted topic by hand, to empty it.
        """
        if self.topic_id and former.topic_id and self.topic_id != former.topic_id:
            return f"the topic was deleted and made again (its id was {former.topic_id}, and is {self.topic_id})"
        if self.begin > former.begin:
            return f"its records before offset {self.begin} were deleted (it began at {former.begin})"
        return ""


class FencedStore:
    """A store of one changelog partition, with the fence that decides which records reach it.
    `place`: the changelog's name, for messages.
    """

    def __init__(self, store: StateStore, place: str) -> None:
        self.store = store
        self._place = place
        self.is_damaged = False
        """Whether it is to be wiped."""
        self.copied: CopiedTopic | None = None
        """The topic that this is a copy of; None: unknown, because it is new, or a build that did
        not note it has written it.
        """
        self.leader_epoch = self._written_epoch = NO_EPOCH
        """A leader epoch in which the changelog had all up to `offset` (KIP-320): if it ends
        before that now, this is no copy any more. NO_EPOCH: unknown. It is stored with the next
        changes. Any thread may set it.
        """
        self.begun_ms = 0
        """Its first record was read not before this, by the brokers' clocks; 0: unknown."""
        self._read_topic()
        try:
            self.fence = ChangelogFence.unpack(store.get(FENCE_KEY))
        except InputError as error:
            _LOG.warning("changelog %s: the local copy is of another build (%s): restoring from the beginning", place, error)
            self.wipe()

    @property
    def offset(self) -> int:
        """Offset of the changelog record to apply next."""
        return self.store.offset

    def _read_topic(self) -> None:
        packed = self.store.get(TOPIC_KEY)
        try:
            if packed is not None:
                topic_id, begin, *rest = msgpack.unpackb(packed)
                self.copied = CopiedTopic(topic_id, begin)
                self.leader_epoch = self._written_epoch = rest[0] if rest else NO_EPOCH  # a build without epochs wrote it
                self.begun_ms = rest[1] if rest[1:] else 0
        except (ValueError, TypeError, msgpack.UnpackException):
            self.copied = None

    def note_copied(self, topic: CopiedTopic, begun_ms: int | None = None) -> None:
        """Notes the topic that this is a copy of. `begun_ms`: now, by the brokers' clocks, when it
        is read from its beginning; None: it has some of it.
        """
        if self.copied != topic or begun_ms is not None:
            self.copied = topic
            self.begun_ms = self.begun_ms if begun_ms is None else begun_ms
            self._apply({TOPIC_KEY: self._pack_topic(topic)}, offset=self.store.offset)

    def _pack_topic(self, topic: CopiedTopic) -> bytes:
        self._written_epoch = self.leader_epoch
        packed: bytes = msgpack.packb([topic.topic_id, topic.begin, self.leader_epoch, self.begun_ms])
        return packed

    def apply(self, records: Sequence[ChangelogRecord | Row], *, offset: int, bulk: bool = False) -> None:
        """Applies the changelog's next records, up to before `offset`. `bulk`: as for
        `StateStore.apply`. Raises InputError when a record has no key.
        """
        changes = self.fence.fold(records)
        if None in changes:
            raise InputError(f"changelog {self._place}, before offset {offset}: a record has no key; only members may write to a changelog")
        self._apply(changes, offset=offset, bulk=bulk)

    def apply_written(self, changes: Mapping[bytes, bytes | None], headers: Sequence[tuple[str, bytes]], *, offset: int) -> None:
        """Does what `apply` does, for the records of a commit, which have the same headers."""
        self._apply(self.fence.fold_written(changes, headers), offset=offset)

    def _apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        if self.leader_epoch != self._written_epoch and self.copied is not None:
            changes = {**changes, TOPIC_KEY: self._pack_topic(self.copied)}
        with self._noting_damage():
            self.store.apply(changes, offset=offset, bulk=bulk)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedStoreError:
            self.is_damaged = True
            raise

    def stale_changes(self) -> list[Change]:
        """The changes that the owner has to write again: the application's keys whose last record
        in the changelog does not count, with their values in this store.
        """
        return [(key, self.store.get(key)) for key in sorted(self.fence.stale_keys) if not key.startswith(RESERVED_PREFIX)]

    def wipe(self) -> None:
        """Removes everything; `offset` is 0 again."""
        self.store.wipe()
        self.is_damaged, self.copied, self.begun_ms = False, None, 0
        self.leader_epoch = self._written_epoch = NO_EPOCH
        self.fence = ChangelogFence()
