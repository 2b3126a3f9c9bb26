"""All errors of equipoise, in one tree.

::

    EquipoiseError             any of the below; `exit_code` is what the command line ends with
    ├── InputError             the caller's data or usage is wrong: names the field and the fix (2)
    │   ├── FieldError         one field of one event or problem is unsound
    │   │   └── UnsoundError   an event's bytes do not make a sound event
    │   └── TooLargeError      an event is larger than a log may hold
    ├── UnknownEventError      an unknown event kind or version, at no offset yet (2)
    ├── LogError               a log cannot be read further; has the offset (2)
    │   ├── GapError           an offset is missing
    │   ├── RepeatError        an offset occurs twice
    │   ├── UnknownKindError   an event kind or version that this build does not know
    │   └── DamagedError       bytes differ from their checksum, or are no record at all
    ├── StorageError           the storage takes no more: a full disk, a quota, a limit (74)
    ├── GroupHalted            this build cannot know the next decision; state is kept (2)
    └── InvariantBroken        an invariant does not hold: a defect of equipoise (1)

Numbers are exit codes. A *rejection* is not an exception: the decision `EventRejected` answers an
unsound fact, and the group goes on.
"""

from __future__ import annotations

from typing import Any


class EquipoiseError(Exception):
    """The base class of every error of equipoise."""

    exit_code = 2

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the text and the attributes, because constructors take other arguments. So an
        error reaches the parent of its process.
        """
        return _unpickled, (self.__class__, self.args, self.__dict__)


def _unpickled(kind: type[EquipoiseError], args: tuple[Any, ...], attributes: dict[str, Any]) -> EquipoiseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class InputError(EquipoiseError):
    """Data or usage that the caller can correct. The text names the place and the fix."""


class FieldError(InputError):
    """One field is unsound.

    `field` is its path (``LagReported.lags[0_3]``). `problem` says what is wrong and what would be
    right.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    @property
    def name(self) -> str:
        """The path without the class: ``lags[0_3]``."""
        return self.field.partition(".")[2] or self.field


class UnsoundError(FieldError):
    """Bytes that are not a sound event. `code` is one of
    `equipoise.events.codec.UNDECODABLE_CODES`, `field` is ``Class.field`` or ``Class``.
    """

    def __init__(self, code: str, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.code = code


class TooLargeError(InputError):
    """An event is larger than `equipoise.events.codec.MOST_EVENT_BYTES` and must be split."""


class UnknownEventError(EquipoiseError):
    """This build does not know the kind or the schema version of an event. A log reader turns it
    into UnknownKindError; a worker halts the group.
    """

    def __init__(self, kind: int, version: int, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind
        self.version = version


class LogError(EquipoiseError):
    """A log cannot be read past `offset`: the offset of the fact, or of the fact that caused the
    decision; -1: before the first.
    """

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")
        self.offset = offset
        self.problem = problem


class GapError(LogError):
    """A record is missing before this one."""


class RepeatError(LogError):
    """This record, or a later one, was already read."""


class UnknownKindError(LogError):
    """This build does not know the kind or the schema version of the record."""


class DamagedError(LogError):
    """The bytes of the record differ from what was written."""


class StorageError(EquipoiseError):
    """Nothing more can be written to `place`. `reason` says why, `fix` what to do. Earlier writes
    are complete.
    """

    exit_code = 74  # EX_IOERR of sysexits.h

    def __init__(self, place: str, reason: str, fix: str) -> None:
        super().__init__(f"{place}: {reason}; {fix}")
        self.place = place
        self.reason = reason
        self.fix = fix


class GroupHalted(EquipoiseError):
    """The group stops here, because another worker might decide differently (docs/protocol.md#l6).

    `code` is the reason, `offset` the fact at which the group stopped. Other groups go on.
    """

    def __init__(self, group: str, offset: int, code: str, problem: str) -> None:
        super().__init__(f"group {group!r} halted at offset {offset}: {problem}")
        self.group = group
        self.offset = offset
        self.code = code
        self.problem = problem


class InvariantBroken(EquipoiseError):
    """One of the nine invariants does not hold."""

    exit_code = 1

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"invariant {number}: {problem}")
        self.number = number
        self.problem = problem
