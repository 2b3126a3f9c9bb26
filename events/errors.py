"""Everything this project raises, in one tree.

::

    EquipoiseError                  any of the below; `exit_code` is what the command line ends with
    ├── InputError                  the caller's data or usage is wrong: say which field, and the fix   (exit 2)
    │   ├── FieldError              one field of one event or problem is unsound
    │   │   └── UnsoundError        an event's bytes do not make a sound event
    │   └── TooLargeError           an event is larger than a log may hold
    ├── UnknownEventError           an event kind or version this build does not know; has no offset yet   (exit 2)
    ├── LogError                    a log cannot be read further; carries the offset                    (exit 2)
    │   ├── GapError                an offset is missing
    │   ├── RepeatError             an offset came twice
    │   ├── UnknownKindError        an event kind or version this build does not know
    │   └── DamagedError            bytes differ from their checksum, or are no record at all
    ├── StorageError                nothing more can be written there: a full disk, a quota, a limit    (exit 74)
    ├── GroupHalted                 going on would be a guess: state is kept, no decision is emitted    (exit 2)
    └── InvariantBroken             a promise of the validator does not hold: a defect of ours          (exit 1)

A *rejection* is not an exception: an unsound fact is answered by the decision `EventRejected`, and
the group goes on.
"""

from __future__ import annotations

from typing import Any


class EquipoiseError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code = 2

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its text and its attributes, since a constructor may take other arguments: so
        one reaches the parent of the process it is in.
        """
        return _unpickled, (self.__class__, self.args, self.__dict__)


def _unpickled(kind: type[EquipoiseError], args: tuple[Any, ...], attributes: dict[str, Any]) -> EquipoiseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class InputError(EquipoiseError):
    """Data or usage the caller can mend; the text names the place and the fix."""


class FieldError(InputError):
    """One field is unsound.

    `field` is its path (``LagReported.lags[0_3]``), `problem` says what is wrong and what would be
    right.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnsoundError(FieldError):
    """Bytes that are no sound event: `code` is one of `equipoise.events.codec.UNDECODABLE_CODES`,
    `field` is ``Class.field`` or ``Class``.
    """

    def __init__(self, code: str, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.code = code


class TooLargeError(InputError):
    """An event over `equipoise.events.codec.MOST_EVENT_BYTES`; it must be split."""


class UnknownEventError(EquipoiseError):
    """An event kind or schema version that this build does not know. A log reader turns it into
    UnknownKindError, a worker halts the group.
    """

    def __init__(self, kind: int, version: int, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind
        self.version = version


class LogError(EquipoiseError):
    """A log cannot be read past `offset` (of the fact, or of the fact that caused the decision; -1:
    before the first).
    """

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")
        self.offset = offset
        self.problem = problem


class GapError(LogError):
    """A record is missing before this one."""


class RepeatError(LogError):
    """This record, or a later one, was read before."""


class UnknownKindError(LogError):
    """The record's kind or schema version is not known to this build."""


class DamagedError(LogError):
    """The record's bytes are not what was written."""


class StorageError(EquipoiseError):
    """Nothing more can be written to `place`: `reason` says why, `fix` what can be done. What was
    written there before is whole.
    """

    exit_code = 74  # EX_IOERR of sysexits.h

    def __init__(self, place: str, reason: str, fix: str) -> None:
        super().__init__(f"{place}: {reason}; {fix}")
        self.place = place
        self.reason = reason
        self.fix = fix


class GroupHalted(EquipoiseError):
    """The group stops here, because another worker might decide otherwise (PROTOCOL L6).

    `code` names the reason, `offset` the fact at which it stopped. Other groups go on.
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
