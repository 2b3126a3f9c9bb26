"""Decides when a task sends its outputs and commits: named states, inputs, orders, and one table
for each guarantee. Times come in and orders go out: nothing here waits, sends or looks at a clock.
`open_task.py` carries the orders out.

Tasks of a member commit together, in ticks, and share what may be uncommitted (`Uncommitted`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from math import ceil, inf
from typing import Protocol, TypeVar

from equipoise.events.errors import EquipoiseError

SEND_S = 0.1
"""Longest time that outputs wait, with at_least_once, while more records are processed."""
MOST_UNSENT = 4_000
"""Outputs that wait, with at_least_once, while more records are processed."""
BEHIND_S = 3.0
"""A task that has much to do commits that seldom: of a key that it counts ten times, one change is
written.
"""
FEW_RECORDS = 50
"""A task with fewer uncommitted records waits for no more of them, however many will come soon."""
MANY_RECORDS = 500
"""A task that is behind by so many has more to read soon."""


class CommitState(enum.Enum):
    """The commits of a task that is open."""

    IDLE = "nothing"
    FILLING = "records that are in no commit; none is under way"
    COMMITTING_OPEN = "a commit is under way, and takes more: its transaction is open"
    COMMITTING_CLOSING = "a commit is under way, and takes no more"
    FAILED = "a commit has failed, which the task does not know yet"
    CLOSED = "the task commits no more"


class CommitInput(enum.Enum):
    """An event that a task tells its schedule."""

    PROCESSED = "records were processed, or a timer ran"
    LOOKED = "it has looked for records"
    BATCH_OVER = "the records at hand are processed"
    NOTHING_TO_READ = "there are no records at hand"
    WAITS = "it waits for records"
    ACKNOWLEDGED = "outputs that were sent are acknowledged"
    TURN = "its turn to commit has come, or it stops"
    ASKED = "a commit is asked for, which takes more while it is open"
    ASKED_DUE = "a commit is asked for that takes no more"
    READY = "the outputs of the commit are sent, or at hand"
    BEGUN = "the commit has begun, and is open"
    BEGUN_DUE = "the commit has begun, and takes no more"
    ADDED = "more was added to the commit"
    ADDED_DUE = "more was added to the commit, and it is due now"
    TRANSACTION_CLOSES = "the transaction of the commit closes"
    ENDED = "the commit is over"
    FAILED = "the commit has failed"
    LEFT = "the task is closed, or opens again"


class CommitOrder(enum.Enum):
    """Something that a task is to do. Those that end with NOW are carried out without waking it."""

    NOTHING = enum.auto()
    SEND = enum.auto()
    SEND_NOW = enum.auto()
    COMMIT = enum.auto()
    COMMIT_EARLY = enum.auto()
    ANNOUNCE = enum.auto()
    AWAIT_TURN = enum.auto()
    AWAIT_END = enum.auto()
    TAKE_OUTPUTS = enum.auto()
    BEGIN = enum.auto()
    BEGIN_NOW = enum.auto()
    EXTEND = enum.auto()
    HURRY = enum.auto()
    HOLD_BACK = enum.auto()
    WAKE = enum.auto()


class WrongCommitInputError(EquipoiseError):
    """A task has told its schedule what cannot be in its state: a defect."""


class CommitLoad(Protocol):
    """The part of a task that its schedule looks at. `unsent`: outputs that wait.
    `is_acknowledged`: whether those that were sent last are. `behind`: source records still to be
    processed; None: unknown. `most`: records of one commit at most.
    """

    @property
    def unsent(self) -> int: ...

    @property
    def is_acknowledged(self) -> bool: ...

    @property
    def behind(self) -> int | None: ...

    @property
    def most(self) -> int: ...


class CommitSchedule:
    """Decides when one task commits, from its opening to its end. `table`: of its guarantee.
    `interval_s`: time between two commits while more records wait. `turn_came`: called with an
    order when its turn has come.
    """

    def __init__(
        self, table: Table, interval_s: float, task: CommitLoad, ticks: CommitTicks, of_member: Uncommitted, turn_came: Callable[[CommitOrder], None]
    ) -> None:
        self.state = CommitState.IDLE
        self.records = 0
        """Records that are in no commit."""
        self.in_commit = 0
        """Records in the commit that is under way, or was the last."""
        self.has_turn = False
        """Whether the task may begin a commit. Others wait until that is over, or it leaves."""
        self.over_s = -inf
        """When its last commit was over."""
        self.is_waiting = False
        """Whether it waits for records, and nothing has woken it but these."""
        self.expects_more = False
        """Whether it has many records to read soon."""
        self.commit_by_s = self.send_by_s = 0.0
        """When a commit is due, or outputs, although more records wait."""
        self.task, self.ticks, self.of_member = task, ticks, of_member
        self._table, self._interval_s, self._turn_came = table, interval_s, turn_came

    @property
    def is_committing(self) -> bool:
        return self.state in _COMMITTING

    def tell(self, heard: CommitInput, now_s: float) -> CommitOrder:
        """Returns what to do. Raises WrongCommitInputError for what cannot be in this state."""
        rule = self._table[self.state].get(heard)
        if rule is None:
            raise WrongCommitInputError(f"{heard.name} cannot be in {self.state.name}")
        return rule if isinstance(rule, CommitOrder) else rule(self, now_s)

    def processed(self, records: int, now_s: float) -> CommitOrder:
        """The same for PROCESSED: so many records, 0 of those that failed."""
        self.records += records
        return self.tell(CommitInput.PROCESSED, now_s)

    def woken(self) -> None:
        """It waits for records no more, and not for a turn that has not come."""
        self.is_waiting = False
        if not self.has_turn:
            self.ticks.withdraw(self)

    def sent(self, now_s: float) -> None:
        """Its outputs are on their way."""
        self.send_by_s = now_s + SEND_S

    def wait_s(self, now_s: float) -> float | None:
        """Returns how long to wait for records at most (s); None: whatever is waited for wakes it."""
        return max(0.0, self.commit_by_s - now_s) if self.expects_more and not self.is_committing else None

    def come(self, now_s: float) -> None:
        """The task may begin a commit."""
        self.has_turn = True
        self._turn_came(self.tell(CommitInput.TURN, now_s))

    def set_due(self, now_s: float) -> None:
        """The interval begins now: it counts from the end of a commit, or slow commits would hold a
        single record each.
        """
        is_behind = (self.task.behind or 0) >= self.task.most
        self.send_by_s = now_s + SEND_S
        self.commit_by_s = now_s + (max(BEHIND_S, self._interval_s) if is_behind else self._interval_s)

    def give_turn_back(self, now_s: float) -> None:
        """It begins no commit in this tick."""
        self.of_member.note(self, 0)
        self.has_turn = False
        self.ticks.withdraw(self)
        self.ticks.end(self, now_s)


Rule = Callable[[CommitSchedule, float], CommitOrder]
Cell = Rule | CommitOrder
Table = Mapping[CommitState, Mapping[CommitInput, Cell]]
_COMMITTING = frozenset((CommitState.COMMITTING_OPEN, CommitState.COMMITTING_CLOSING))


# Rules. The first line of each is in docs/architecture.md.


def count(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The records are counted. COMMIT when the task has as many as one commit takes, or most of all
    when two thirds of the member's are reached. HOLD_BACK when all are.
    """
    if schedule.records and schedule.state is CommitState.IDLE:
        schedule.state = CommitState.FILLING
    schedule.of_member.note(schedule, schedule.records)
    if schedule.records >= schedule.task.most or schedule.of_member.is_next(schedule):
        return CommitOrder.COMMIT
    return CommitOrder.HOLD_BACK if schedule.of_member.is_full else CommitOrder.NOTHING


def begin_interval(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """An interval that is over begins again: after a rest, what comes first is not overdue."""
    if now_s >= schedule.commit_by_s:
        schedule.set_due(now_s)
    return CommitOrder.NOTHING


def commit_if_due(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """COMMIT when its turn has come, or the interval is over."""
    return CommitOrder.COMMIT if schedule.has_turn or now_s >= schedule.commit_by_s else CommitOrder.NOTHING


def commit_or_send_if_due(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """COMMIT when its turn has come, or the interval is over; SEND when 4,000 outputs wait, or some
    for 0.1 s.
    """
    if schedule.has_turn or now_s >= schedule.commit_by_s:
        return CommitOrder.COMMIT
    return send(schedule, now_s) if schedule.task.unsent >= MOST_UNSENT or now_s >= schedule.send_by_s else CommitOrder.NOTHING


def send(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """SEND what waits. Fewer than 4,000 outputs wait for those on their way: a request for each
    would take longer.
    """
    unsent = schedule.task.unsent
    return CommitOrder.SEND if unsent >= MOST_UNSENT or (unsent and schedule.task.is_acknowledged) else CommitOrder.NOTHING


def _expect_more(schedule: CommitSchedule) -> bool:
    schedule.expects_more = schedule.records >= FEW_RECORDS and (schedule.task.behind or 0) >= MANY_RECORDS
    return schedule.expects_more


def send_unless_more_comes(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """SEND, unless many records will come soon: for these it waits, until a commit is due."""
    return CommitOrder.NOTHING if _expect_more(schedule) else send(schedule, now_s)


def commit_unless_more_comes(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """COMMIT_EARLY, of all it has, unless many records will come soon; COMMIT when one commit takes
    no more.
    """
    if not schedule.records or _expect_more(schedule):
        return CommitOrder.NOTHING
    begun = schedule.in_commit if schedule.state is CommitState.COMMITTING_OPEN else 0
    return CommitOrder.COMMIT if schedule.records + begun >= schedule.task.most else CommitOrder.COMMIT_EARLY


def announce(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """ANNOUNCE that there will be more: the next transaction begins at once."""
    return CommitOrder.NOTHING if not schedule.records or _expect_more(schedule) else CommitOrder.ANNOUNCE


def expect_more(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """Nothing is sent: after a crash, the outputs of one commit are repeated."""
    _expect_more(schedule)
    return CommitOrder.NOTHING


def wait(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """It waits."""
    schedule.is_waiting = True
    return CommitOrder.NOTHING


def wait_for_turn(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """It waits for a turn, too, unless many records will come soon."""
    if schedule.records and not schedule.expects_more and not schedule.has_turn:
        schedule.ticks.want(schedule, is_due=False)
    schedule.is_waiting = True
    return CommitOrder.NOTHING


def send_rest(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """SEND_NOW what has waited for them."""
    if not schedule.task.unsent:
        return CommitOrder.NOTHING
    return CommitOrder.SEND_NOW if schedule.is_waiting else CommitOrder.WAKE


def begin_now(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """BEGIN_NOW if it waits, otherwise WAKE."""
    return CommitOrder.BEGIN_NOW if schedule.is_waiting else CommitOrder.WAKE


def leave(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The task gives its turn back: there is nothing to commit."""
    schedule.give_turn_back(now_s)
    schedule.set_due(now_s)
    return CommitOrder.NOTHING


def await_turn(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """AWAIT_TURN, in the next tick; when it has come, TAKE_OUTPUTS."""
    if schedule.has_turn:
        return CommitOrder.TAKE_OUTPUTS
    schedule.ticks.want(schedule, is_due=True)
    return CommitOrder.AWAIT_TURN


def take_outputs(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """TAKE_OUTPUTS: no turn is needed."""
    return CommitOrder.TAKE_OUTPUTS if schedule.records else leave(schedule, now_s)


def take_outputs_or_hurry(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """TAKE_OUTPUTS; HURRY when there is nothing to add."""
    if schedule.records:
        return CommitOrder.TAKE_OUTPUTS
    leave(schedule, now_s)
    return CommitOrder.HURRY


def _add(schedule: CommitSchedule, state: CommitState) -> CommitOrder:
    schedule.in_commit += schedule.records
    schedule.of_member.begin(schedule)
    schedule.records, schedule.state = 0, state
    return CommitOrder.NOTHING


def open_commit(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The records are in the commit."""
    schedule.has_turn, schedule.in_commit = False, 0
    return _add(schedule, CommitState.COMMITTING_OPEN)


def closing_commit(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The records are in the commit, which takes no more."""
    schedule.has_turn, schedule.in_commit = False, 0
    return _add(schedule, CommitState.COMMITTING_CLOSING)


def add(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The records are in the commit, too."""
    return _add(schedule, CommitState.COMMITTING_OPEN)


def close(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The commit, with what was added, takes no more."""
    return _add(schedule, CommitState.COMMITTING_CLOSING)


def take_no_more(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The commit takes no more: whatever comes is for the next one."""
    schedule.state = CommitState.COMMITTING_CLOSING
    return CommitOrder.NOTHING


def _end(schedule: CommitSchedule, now_s: float, state: CommitState) -> None:
    schedule.state = state
    schedule.of_member.end(schedule)
    schedule.set_due(now_s)
    schedule.ticks.end(schedule, now_s)


def end(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """The interval begins. WAKE, if there is more to commit."""
    _end(schedule, now_s, CommitState.FILLING if schedule.records else CommitState.IDLE)
    return CommitOrder.WAKE if schedule.records else CommitOrder.NOTHING


def fail(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """WAKE, to raise the error."""
    _end(schedule, now_s, CommitState.FAILED)
    return CommitOrder.WAKE


def close_task(schedule: CommitSchedule, now_s: float) -> CommitOrder:
    """Its records are of no commit any more."""
    schedule.state = CommitState.CLOSED
    schedule.of_member.end(schedule)
    schedule.give_turn_back(now_s)
    return CommitOrder.NOTHING


_I = CommitInput
_NOTHING, _WAKE, _AWAIT_END = CommitOrder.NOTHING, CommitOrder.WAKE, CommitOrder.AWAIT_END
_IDLE: Mapping[CommitInput, Cell] = {
    _I.PROCESSED: count, _I.LOOKED: begin_interval, _I.BATCH_OVER: commit_if_due, _I.NOTHING_TO_READ: _NOTHING, _I.WAITS: wait,
    _I.TURN: _WAKE, _I.ASKED_DUE: leave, _I.LEFT: close_task,
}  # fmt: skip # a table: one row a line
_FILLING: Mapping[CommitInput, Cell] = {
    _I.PROCESSED: count, _I.LOOKED: _NOTHING, _I.ASKED_DUE: await_turn, _I.READY: CommitOrder.BEGIN, _I.BEGUN_DUE: closing_commit,
    _I.LEFT: close_task,
}  # fmt: skip # a table: one row a line
_CLOSING: Mapping[CommitInput, Cell] = {
    _I.PROCESSED: count, _I.LOOKED: _NOTHING, _I.BATCH_OVER: _NOTHING, _I.TURN: _WAKE, _I.ASKED_DUE: _AWAIT_END,
    _I.ENDED: end, _I.FAILED: fail, _I.LEFT: close_task,
}  # fmt: skip # a table: one row a line
_FAILED: Mapping[CommitInput, Cell] = {
    _I.PROCESSED: count, _I.LOOKED: _NOTHING, _I.BATCH_OVER: _AWAIT_END, _I.NOTHING_TO_READ: _AWAIT_END, _I.WAITS: wait,
    _I.TURN: _WAKE, _I.ASKED_DUE: _AWAIT_END, _I.LEFT: close_task,
}  # fmt: skip # a table: one row a line
_CLOSED: Mapping[CommitInput, Cell] = {_I.TURN: _NOTHING, _I.ENDED: _NOTHING, _I.FAILED: _NOTHING, _I.LEFT: _NOTHING}

AT_LEAST_ONCE: Table = {
    CommitState.IDLE: {**_IDLE, _I.ACKNOWLEDGED: _NOTHING},
    CommitState.FILLING: {
        **_FILLING, _I.BATCH_OVER: commit_or_send_if_due, _I.NOTHING_TO_READ: send_unless_more_comes, _I.WAITS: wait_for_turn,
        _I.ACKNOWLEDGED: send_rest, _I.TURN: begin_now,
    },
    CommitState.COMMITTING_CLOSING: {**_CLOSING, _I.NOTHING_TO_READ: expect_more, _I.WAITS: wait_for_turn, _I.ACKNOWLEDGED: _NOTHING},
    CommitState.FAILED: {**_FAILED, _I.ACKNOWLEDGED: _NOTHING},
    CommitState.CLOSED: {**_CLOSED, _I.ACKNOWLEDGED: _NOTHING},
}  # fmt: skip # a table: one row a line
EXACTLY_ONCE: Table = {
    CommitState.IDLE: _IDLE,
    CommitState.FILLING: {
        **_FILLING, _I.BATCH_OVER: commit_if_due, _I.NOTHING_TO_READ: commit_unless_more_comes, _I.WAITS: wait, _I.TURN: _WAKE,
        _I.ASKED: take_outputs, _I.BEGUN: open_commit,
    },
    CommitState.COMMITTING_OPEN: {
        **_CLOSING, _I.NOTHING_TO_READ: commit_unless_more_comes, _I.WAITS: wait, _I.ASKED: take_outputs, _I.ASKED_DUE: take_outputs_or_hurry,
        _I.READY: CommitOrder.EXTEND, _I.ADDED: add, _I.ADDED_DUE: close, _I.TRANSACTION_CLOSES: take_no_more,
    },
    CommitState.COMMITTING_CLOSING: {
        **_CLOSING, _I.NOTHING_TO_READ: announce, _I.WAITS: wait, _I.ASKED: _AWAIT_END, _I.READY: _AWAIT_END, _I.TRANSACTION_CLOSES: _NOTHING,
    },
    CommitState.FAILED: {**_FAILED, _I.ASKED: _AWAIT_END, _I.READY: _AWAIT_END},
    CommitState.CLOSED: {**_CLOSED, _I.TRANSACTION_CLOSES: _NOTHING},
}  # fmt: skip # a table: one row a line


LONGEST_S = 0.1
"""A commit that takes longer, because one broker does not answer, holds up no later tick."""


class CommitTicks:
    """Lets tasks commit together, in ticks, so that their commits share requests. `plan`: called
    with the time (s) at which `begin` is to be called; None: not for now.

    A tick begins when the former one is over. Unless a commit is due, it also waits until the
    former one was over for as long as that took, and at most for `interval_s`.

    `parts` 1: a tick is for all tasks that wait. More: it is for those whose commit is due, or for
    that part of all, which have not committed for the longest time, because records of others wait
    while many tasks commit. Then ticks are that part of `interval_s` apart at least, and a task has
    one in half of `interval_s`.
    """

    def __init__(self, interval_s: float, plan: Callable[[float | None], None], *, parts: int = 1) -> None:
        self._interval_s, self._parts, self._plan_at = interval_s, parts, plan
        self._waiting: dict[CommitSchedule, bool] = {}
        """Task -> whether its commit is due."""
        self._is_due = False
        """Whether a commit of `_waiting` is due."""
        self._committing: set[CommitSchedule] = set()
        """Tasks of the present tick whose commits are not over."""
        self._began_s = self._rest_until_s = 0.0
        self._is_planned = False
        self._waits_until_s = -inf
        """What the next tick waits for: some task of `_waiting` may have one from then on."""

    def want(self, task: CommitSchedule, *, is_due: bool) -> None:
        """The task commits in one of the next ticks that begin when it has no commit under way. If
        `is_due`, in the next one.
        """
        self._waiting[task] = is_due
        if not self._is_planned or is_due > self._is_due or self._from_s(task) < self._waits_until_s:
            self._is_due |= is_due
            self._plan()

    def withdraw(self, task: CommitSchedule) -> None:
        """The task does not want to commit any more."""
        self._waiting.pop(task, None)

    def end(self, task: CommitSchedule, now_s: float) -> None:
        """The task has no commit under way any more."""
        task.over_s = now_s
        if task in self._committing:
            self._committing.remove(task)
            if not self._committing:
                least_s = 0.0 if self._parts == 1 else self._interval_s / self._parts
                self._rest_until_s = now_s + min(max(now_s - self._began_s, least_s), self._interval_s)
        self._plan()

    def _from_s(self, task: CommitSchedule) -> float:
        """Returns when a tick may be for this task, although its commit is not due."""
        return -inf if self._parts == 1 else task.over_s + self._interval_s / 2

    def _plan(self) -> None:
        self._waits_until_s = -inf
        begin_s = 0.0 if self._is_due else self._rest_until_s
        if self._committing:
            begin_s = max(begin_s, self._began_s + LONGEST_S)
        elif not self._is_due:
            self._waits_until_s = min((self._from_s(task) for task in self._waiting if not task.is_committing), default=inf)
            begin_s = max(begin_s, self._waits_until_s)
        self._is_planned = bool(self._waiting) and begin_s < inf  # otherwise the end of a commit plans it
        self._plan_at(begin_s if self._is_planned else None)

    def begin(self, now_s: float) -> None:
        """A tick begins: its tasks may begin their commits."""
        self._is_planned, self._is_due = False, False
        self._began_s = now_s
        tasks = [task for task in self._waiting if not task.is_committing]
        if self._parts > 1:
            due = [task for task in tasks if self._waiting[task]]
            ready = sorted((task for task in tasks if self._from_s(task) <= now_s), key=lambda task: task.over_s)
            tasks = due or ready[: ceil(len(self._waiting) / self._parts)]
        self._committing = set(tasks)
        for task in tasks:
            del self._waiting[task]
            task.come(now_s)
        self._plan()  # for the others, should no commit of these end


GATHER_S = 0.002
"""How long a transaction is open at least, for commits of other tasks that were woken by the same
records.
"""
OPEN_FACTOR = 16
"""How much longer than the former one has closed a transaction is open, when no part is due."""
CHANGES_AT = 0.8
"""Part of its time after which a transaction writes changes to changelogs."""
MOST_OF_TRANSACTION = 50_000
"""Most records of a transaction of several tasks. All of them are queued at once."""
ALONE_S = 10.0
"""For how long a task whose commit has failed has transactions of its own."""


class TransactionState(enum.Enum):
    """The present transaction of a producer."""

    NONE = "there is none"
    BEGINNING = "its producer connects, and ends what was left open"
    OPEN = "takes commits, and writes their outputs"
    WRITING = "takes commits, and writes their changes, too"
    CLOSING = "takes no more, and is committed when all is acknowledged"


TRANSACTION_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.NONE: frozenset((TransactionState.BEGINNING,)),
    TransactionState.BEGINNING: frozenset((TransactionState.OPEN, TransactionState.NONE)),
    TransactionState.OPEN: frozenset((TransactionState.WRITING, TransactionState.NONE)),
    TransactionState.WRITING: frozenset((TransactionState.CLOSING, TransactionState.NONE)),
    TransactionState.CLOSING: frozenset((TransactionState.NONE,)),
}
"""State -> those that may follow it."""


class PartLoad(Protocol):
    """The commit of one task, in a transaction or waiting for one. `is_due`: the transaction is to
    close now.
    """

    @property
    def task(self) -> Hashable: ...

    @property
    def records(self) -> int: ...

    @property
    def is_due(self) -> bool: ...


P = TypeVar("P", bound=PartLoad)


class TransactionSchedule:
    """Decides which commits are in a transaction, and until when it is open: at most `most_open_s`
    when no part is due.
    """

    def __init__(self, most_open_s: float) -> None:
        self.state = TransactionState.NONE
        self.alone_until_s: dict[Hashable, float] = {}
        """Task whose commit has failed -> until when it has transactions of its own."""
        self.open_until_s = 0.0
        self._most_open_s = most_open_s
        self._least_s = self._closing_s = 0.0

    @property
    def is_open(self) -> bool:
        """Returns whether commits may come to the transaction."""
        return self.state in (TransactionState.OPEN, TransactionState.WRITING)

    def go_to(self, state: TransactionState, now_s: float) -> None:
        """Raises WrongCommitInputError for a state that cannot follow the present one."""
        if state not in TRANSACTION_STATES[self.state]:
            raise WrongCommitInputError(f"a transaction cannot go from {self.state.name} to {state.name}")
        self.state = state
        if state is TransactionState.OPEN:
            self._least_s = now_s + GATHER_S
        elif state is TransactionState.CLOSING:
            self._closing_s = now_s

    def committed(self, now_s: float) -> None:
        """The transaction is over: what it took to close says how long the next one is open."""
        self.go_to(TransactionState.NONE, now_s)
        self.open_until_s = now_s + min(OPEN_FACTOR * (now_s - self._closing_s), self._most_open_s)

    def failed(self, now_s: float, at_fault: Iterable[Hashable]) -> None:
        """The transaction has failed, for these tasks; empty: for all of them."""
        self.go_to(TransactionState.NONE, now_s)
        self.alone_until_s |= dict.fromkeys(at_fault, now_s + ALONE_S)

    def until_s(self, parts: Iterable[PartLoad]) -> float:
        """Returns until when the present state lasts, with these parts in it or waiting."""
        if any(part.is_due for part in parts):
            return self._least_s
        part_of_it = CHANGES_AT if self.state is TransactionState.OPEN else 1.0
        return self._least_s + part_of_it * max(0.0, self.open_until_s - self._least_s)

    def taken(self, waiting: Iterable[P], present: Collection[PartLoad], now_s: float) -> list[P]:
        """Returns those that have waited the longest, as many as may be in one transaction beside
        `present`.
        """
        alone = {task for task, until_s in self.alone_until_s.items() if until_s > now_s}
        tasks, records = {part.task for part in present}, sum(part.records for part in present)
        taken: list[P] = []
        for part in waiting:
            if tasks & alone or part.task in tasks or (tasks and part.task in alone):
                continue
            records += part.records
            if tasks and records > MOST_OF_TRANSACTION:
                break
            tasks.add(part.task)
            taken.append(part)
        return taken


MOST_OF_MEMBER = 800_000
"""Uncommitted records of all tasks of a member, about: each takes some 300 bytes."""


class Uncommitted:
    """The records that the tasks of one member have processed and not committed, `most` together.

    Tasks that have much to do progress side by side, and would all commit at once. Instead, when
    two thirds of `most` are in no commit yet, the task with the most of them commits, of those
    whose former commit is over: so commits follow one another, and with commits of the same size
    half as many records wait. With `most`, other tasks wait for the end of a commit.
    """

    def __init__(self, most: int) -> None:
        self._most, self._most_waiting = most, most * 2 // 3
        self._waiting: dict[object, int] = {}
        """Task -> its records that are in no commit."""
        self._committing: dict[object, int] = {}
        """Task with a commit under way -> how many records are in it."""
        self._all_waiting = self._in_commits = 0
        self.held_back: list[Callable[[], None]] = []
        """Called once, at the end of the next commit."""

    def most_of_task(self, tasks: int) -> int:
        """Returns how many records one of so many tasks commits at most: twice its share, because
        on average a task is half-way to its commit.
        """
        return 2 * self._most_waiting // tasks

    def note(self, task: object, records: int) -> None:
        """So many records of the task are in no commit."""
        self._all_waiting += records - self._waiting.pop(task, 0)
        if records:
            self._waiting[task] = records

    def begin(self, task: object) -> None:
        """The task's records are in its commit from now on. It may be called again for more."""
        records = self._waiting.get(task, 0)
        self.note(task, 0)
        self._committing[task] = records + self._committing.get(task, 0)
        self._in_commits += records

    def end(self, task: object) -> None:
        """The task has no commit under way."""
        self._in_commits -= self._committing.pop(task, 0)
        told, self.held_back = self.held_back, []
        for each in told:
            each()

    def is_next(self, task: object) -> bool:
        """Returns whether the task has to commit now."""
        if self._all_waiting < self._most_waiting:
            return False
        free = {each: records for each, records in self._waiting.items() if each not in self._committing}
        return task in free and (free[task] >= max(free.values()) or (self.is_full and not self._committing))

    @property
    def is_full(self) -> bool:
        """Returns whether tasks may process no more for now."""
        return self._all_waiting + self._in_commits >= self._most

    @property
    def is_held_back(self) -> bool:
        """Returns whether tasks have to wait for the end of a commit."""
        return self.is_full and bool(self._committing)
