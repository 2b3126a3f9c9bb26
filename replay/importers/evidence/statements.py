"""Tells what lines say about groups, in one form for every source."""

from __future__ import annotations

import enum
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import attrs

BEGINS = "it begins"
"""Text of JOINING where a client says that it is new."""


class Said(enum.IntEnum):
    """Says what a line says. Those up to UNLOADED are a broker's, the others a client's."""

    PREPARING = 1
    """A rebalance begins; `number`: the generation before it. `text`: the broker's reason."""
    STABILIZED = 2
    """All members have joined; `count`: how many."""
    ASSIGNED = 3
    """The leader's assignment is there: the rebalance is over."""
    EMPTY = 4
    ADDED = 5
    """A member is new."""
    LEFT = 6
    """`text`: the client's reason."""
    EXPIRED = 7
    """The session of a member is over."""
    NOT_JOINED = 8
    """Members were removed that had not joined within their rebalance timeout: `members`."""
    NOT_SYNCED = 9
    """Members were removed that had joined and did not ask for their assignment: `members`."""
    STATIC_BACK = 10
    """A process took over `instance`; `member`: the new id, `other`: the former."""
    FENCED = 11
    """A request of a process whose `instance` another one has."""
    LOADED = 12
    """The coordinator has read the group: it is another broker than before, or was started."""
    UNLOADED = 13
    EPOCH = 14
    """KIP-848 and KIP-1071: the group epoch is `number` now: a rebalance begins."""
    SUBSCRIBED = 15
    METADATA = 16
    """Topics or partitions that members read were made, or are gone."""
    RECONCILED = 17
    """A member's assignment: `number`: its epoch; `state`; `work`: what it has."""
    TOO_SLOW = 18
    """A member was removed that did not give up its work in time; `text`: the time, ms."""
    STATIC_AWAY = 19
    TARGET = 20
    """The assignment of epoch `number` is computed."""
    CONVERTED = 21
    TOPOLOGY = 22
    ALONE = 23
    """A rebalance ended because nobody joined it."""
    BROKER_UP = 24
    """The broker itself begins, or ends: of no group."""
    BROKER_DOWN = 25
    JOINING = 40
    """A client asks to join; `text`: why."""
    JOINED = 41
    """`number`: its generation."""
    SYNCED = 42
    GIVEN = 43
    """The client has partitions now: `work`: what is new, or all where `state` is ``all``."""
    REVOKED = 44
    LOST = 45
    """It had to give up work because it is no member any more."""
    POLL_TIMEOUT = 46
    """It did not poll within ``max.poll.interval.ms``; `number`: that, ms, where it is said."""
    SESSION_OVER = 47
    """It heard nothing from its coordinator for a session timeout."""
    LEAVING = 48
    UNKNOWN_MEMBER = 49
    """The coordinator no longer knows it."""
    INSTANCE_TAKEN = 50
    """Another process has its ``group.instance.id``."""
    AWAY = 51
    """The coordinator cannot be reached, or is another."""
    FOUND = 52
    """`text`: the coordinator's address."""
    REBALANCING = 53
    """It was told by a heartbeat that somebody else began a rebalance."""
    COMMIT_FAILED = 54
    DEALT = 55
    """The leader's assignment: `text`: members and their partitions."""
    STATE = 56
    """Of a thread or an application of Kafka Streams: `state`."""
    RESTORED = 57
    """`number`: how long its tasks took to restore, ms."""
    FOLLOW_UP = 58
    """It will ask for another rebalance to look whether copies are ready."""
    WORKER = 59
    """A worker of Kafka Connect has its assignment: `work`; `count`: the delay, ms."""
    SETTING = 61
    """`state`: name of a setting, `text`: its value."""
    FAILED = 62
    """A task or a connector of Kafka Connect failed: `work`; `text`."""
    TRANSITION = 64
    """A client of KIP-848 is in `state` now, at epoch `number`."""
    CHANGED = 65
    """A connector or its tasks were made, changed or deleted: `text`."""
    TOPICS = 66
    """The client saw other topics or partitions than before."""
    NO_STATE = 67
    """A process of Kafka Streams found nothing in its state directory."""
    DIED = 68
    """A thread of Kafka Streams ends by an exception: `text`, `other`: what caused that."""
    CALLBACK = 63
    """The application's callback was slow or failed."""

    @property
    def is_of_broker(self) -> bool:
        return self < Said.JOINING


@attrs.frozen(kw_only=True)
class Detail:
    """The part of a statement that others share. `client`: the process, as it calls itself."""

    member: str = ""
    instance: str = ""
    other: str = ""
    client: str = ""
    text: str = ""
    state: str = ""
    kind: str = ""
    """Of the group: ``consumer``, ``streams``, ``connect``, or ""."""
    count: int = -1
    work: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Statement:
    """`number`: a generation, an epoch, a time; -1: none."""

    at_ms: int
    said: Said
    place: str
    number: int
    detail: Detail
    file: int


class Statements:
    """Statements about one group, in columns: a log may hold millions. `names`: the files.
    `backwards`: those whose newest lines come first.
    """

    def __init__(self, names: Sequence[str], backwards: AbstractSet[int] = frozenset()) -> None:
        self._names, self._backwards = names, backwards
        self._at_ms = array("q")
        self._said = array("B")
        self._number = array("q")
        self._file = array("H")
        self._line = array("q")
        self._detail: list[Detail] = []

    def __len__(self) -> int:
        return len(self._detail)

    def append(self, at_ms: int, said: Said, number: int, file: int, line: int, detail: Detail) -> None:
        self._at_ms.append(at_ms)
        self._said.append(said)
        self._number.append(number)
        self._file.append(file)
        self._line.append(line)
        self._detail.append(detail)

    def details(self) -> set[Detail]:
        """The different parts that statements share."""
        return set(self._detail)

    def rename(self, name: Callable[[str], str]) -> None:
        """Gives files, members and partitions other names."""
        self._names = [name(each) for each in self._names]
        named = {each: _renamed(each, name) for each in self.details()}
        self._detail = [named[each] for each in self._detail]

    def in_order(self, shifts_ms: Sequence[int] | None = None) -> Iterator[Statement]:
        """All, by time; of equal times in the order of the lines. `shifts_ms`: added to the times
        of each file.
        """
        shifts = shifts_ms or [0] * len(self._names)
        times = self._at_ms if not any(shifts) else array("q", (at + shifts[file] for at, file in zip(self._at_ms, self._file, strict=True)))
        order: Sequence[int] = range(len(times))
        if any(times[index] < times[index - 1] for index in range(1, len(times))):
            signs = [-1 if file in self._backwards else 1 for file in range(len(self._names))]
            order = sorted(order, key=lambda index: (times[index], self._file[index], signs[self._file[index]] * self._line[index]))
        for index in order:
            file = self._file[index]
            yield Statement(
                at_ms=times[index],
                said=Said(self._said[index]),
                place=f"{self._names[file]}:{self._line[index]}",
                number=self._number[index],
                detail=self._detail[index],
                file=file,
            )

    def move(self, file: int, into: Statements, rest: Statements) -> None:
        """Copies those of one file to `into`, and the others to `rest`."""
        for index, detail in enumerate(self._detail):
            chosen = into if self._file[index] == file else rest
            chosen.append(self._at_ms[index], Said(self._said[index]), self._number[index], self._file[index], self._line[index], detail)


_NAMED = re.compile(r"(\b(?:[Mm]ember|group|instance|client)[ =:]+)([^\s,;()\[\]]+)")


def _renamed(detail: Detail, name: Callable[[str], str]) -> Detail:
    return attrs.evolve(
        detail,
        member=name(detail.member),
        instance=name(detail.instance),
        other=name(detail.other),
        client=name(detail.client),
        text=_NAMED.sub(lambda match: match[1] + name(match[2]), detail.text),
        work=tuple(map(name, detail.work)),
        members=tuple(map(name, detail.members)),
    )
