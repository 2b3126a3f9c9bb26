"""The transition relation of `model/lease.pml` in Python, action by action under the same names.

The test compares its numbers of states with SPIN's. `tests.model.trace` follows recorded logs and
simulated runs with it: then times are in ms, and `time` passes several at once.

An action that is not enabled raises `NotAllowed`; a state in which two processes may run the task,
or one for which the leader does not wait, raises `TwoOwners` or `NotWaitedFor`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator

import attrs

from tests.model.configurations import Configuration

REVOKED, OUT, TASK = 1, 2, 3
UNKNOWN, LIVE, FENCED, GONE = range(4)
NOT_STARTED, RUNS, OVER = range(3)
SENT, APPENDED, SERVED = 1, 2, 2


class NotAllowed(Exception):
    """The model has no such step in this state."""


class TwoOwners(Exception):
    """Two processes may run the task."""


class NotWaitedFor(Exception):
    """A process may run the task; the leader neither takes it for the owner nor waits for it."""


@attrs.define(kw_only=True, eq=False)
class At:
    """What the model knows of one process. Names as in `model/lease.pml`."""

    known: int = UNKNOWN
    quiet: int = 0
    silent: int = 0
    measured: int = 0
    runs: int = NOT_STARTED
    beat: int = 0
    seen: int = 0
    grant: int = 0
    told: bool = False
    batch: int = 0
    sent: int = 0
    free: bool = False
    held: bool = False
    left: bool = False
    joins: bool = False
    proof: bool = False
    fetch: int = 0
    asked: int = 0
    brings: int = 0
    whole: bool = False
    unread: tuple[int, ...] = ()
    pending: int = 0
    # Of traces only:
    last_free: bool = False
    last_held: bool = False
    """Of a process that is over: what facts may say that it sent before, and that are still on
    their way.
    """


class Lease:
    """One state of the model. Every action changes it in place."""

    def __init__(self, given: Configuration) -> None:
        self.given = given
        self.processes = given.processes
        self.none = len(self.processes)
        self.everyone = range(self.none)
        self._lead = max(given.step, given.raised) if given.on("R_CLAMP") else max(process.session for process in self.processes) + 1
        self._shortest = min(process.session for process in self.processes)
        self.since, self.most, self.owner, self.revoking, self.hold, self.jumps = 0, given.step, 0, False, 0, given.jumps
        self.late = False
        self.apart = 0
        self.spared: tuple[int, ...] = ()
        """In a trace: whom the fact that is being folded has expelled."""
        self.at = [At() if process.starts else At(known=LIVE, runs=RUNS, grant=int(index == 0)) for index, process in enumerate(self.processes)]

    def key(self) -> tuple[object, ...]:
        leader = self.since, self.apart, self.most, self.owner, self.revoking, self.late, self.hold, self.jumps
        return (*leader, *(attrs.astuple(each) for each in self.at))

    def copied(self) -> Lease:
        other = copy.copy(self)
        other.at = [copy.copy(each) for each in self.at]
        return other

    # What holds

    def lasts(self, i: int) -> int:
        return self.processes[i].session - (self.processes[i].margin if self.given.on("R_MARGIN") else 0)

    def waits(self, i: int) -> int:
        return self.processes[i].session if self.given.on("R_OWN_SESSION") else self._shortest

    def fresh(self, i: int) -> bool:
        return self.at[i].beat < self.lasts(i) and (self.at[i].seen < self.lasts(i) or not self.given.on("R_FETCH"))

    def may_run(self, i: int) -> bool:
        return self.at[i].runs == RUNS and self.at[i].grant == 1 and (not self.processes[i].suspect or self.fresh(i))

    def check(self) -> None:
        running = [i for i, at in enumerate(self.at) if at.grant == 1 and self.may_run(i)]
        if len(running) > 1:
            raise TwoOwners(f"processes {running} may run the task")
        if not self.given.without:
            for i in running:
                if self.owner != i and self.at[i].known != FENCED:
                    raise NotWaitedFor(f"process {i} may run the task; the leader knows {self.owner} as its owner and does not wait")

    def _moves(self) -> int:
        return min(self.since, self.most) if self.given.on("R_CLAMP") else self.since

    def is_due(self, i: int) -> bool:
        """Whether the session of a member would end with the next fact."""
        return self.at[i].quiet + self._moves() >= self.waits(i)

    # Parts of actions

    def _over(self, i: int) -> None:
        at = self.at[i]
        if self.given.trails:
            at.last_free, at.last_held = at.told, at.grant == 1
        at.runs, at.beat, at.seen, at.grant, at.told, at.sent = OVER, 0, 0, 0, False, 0
        at.fetch, at.asked, at.brings, at.whole, at.unread, at.pending = 0, 0, 0, False, (), 0
        if at.batch == APPENDED:
            at.batch = 0

    def _clear_hold(self) -> None:
        self.hold = 0
        for at in self.at:
            if at.known == FENCED:
                at.known, at.quiet = GONE, 0

    def _tell(self, i: int, what: int) -> None:
        at = self.at[i]
        if at.runs != RUNS:
            return
        if self.processes[i].suspect:
            at.unread = (*at.unread, what)
            at.pending += self.late
        elif self.late:
            at.pending = what
        else:
            self._reads(i, what)

    def _reads(self, i: int, what: int) -> None:
        at = self.at[i]
        if what == OUT:
            self._over(i)
        elif what >= TASK:
            if at.grant == 0:
                at.grant = what - TASK + 1
            elif what == TASK:
                at.grant = 1
            if at.grant == 1:
                self._clear_hold()

    def _force(self, i: int) -> None:
        at = self.at[i]
        if self.owner == i:
            at.known, self.owner, self.revoking = FENCED, self.none, False
            self.hold = max(self.hold, self.waits(i)) if self.given.on("R_LONGEST") else self.waits(i)
        else:
            at.known, at.quiet = GONE, 0
        self._tell(i, OUT)

    def _remove(self, i: int) -> None:
        self.at[i].known, self.at[i].quiet = GONE, 0
        if self.owner == i:
            self.owner, self.revoking = self.none, False

    def _fold(self, expelled: Collection[int] = ()) -> None:
        """`expelled`: by a deadline that was due before the others."""
        for i in expelled:
            self._force(i)
        self._elapse()
        moved = self._moves()
        self.since = 0
        for i, at in enumerate(self.at):
            if (at.known == LIVE and self.processes[i].suspect) or at.known == FENCED:
                at.quiet = min(at.quiet + moved, self.waits(i))
        for i, at in enumerate(self.at):
            if at.known == LIVE and at.quiet >= self.waits(i):
                self._remove(i)
                self._tell(i, OUT)
        found = False
        for i, at in enumerate(self.at):
            if at.known == FENCED and at.quiet >= self.waits(i) and i not in expelled and i not in self.spared:
                at.known, at.quiet, found = GONE, 0, True
        if found:
            self._unfenced()

    def _elapse(self) -> None:
        """A record is appended in the partition: its clock moves."""
        if self.given.rests:
            moved = min(self.apart, self.given.step) if self.given.on("R_SMALLEST") else self.apart
            self.apart = 0
            for i, at in enumerate(self.at):
                at.silent = min(at.silent + moved, self.waits(i)) if at.known == LIVE and self.processes[i].suspect else 0

    def _unfenced(self) -> None:
        if self.hold and not any(at.known == FENCED for at in self.at):
            self.hold = 0
            if self.owner != self.none and not self.revoking:
                self._tell(self.owner, TASK)

    def _join(self, i: int) -> None:
        mine = [c for c in self.everyone if self.processes[c].member == self.processes[i].member]
        newer = any(c > i and self.at[c].known in (LIVE, FENCED) for c in mine)
        if newer or (self.given.on("R_JOIN_MARGIN") and self.processes[i].margin < self.most):
            self.at[i].known = GONE
            self._tell(i, OUT)
            return
        self.at[i].known, self.at[i].quiet, self.at[i].silent = LIVE, 0, 0
        for c in mine:
            if c < i and self.at[c].known == LIVE:
                if self.at[i].proof:
                    self._remove(c)
                    self._tell(c, OUT)
                else:
                    self._force(c)

    def _is_suspect_that_runs(self, i: int) -> bool:
        return self.at[i].runs == RUNS and self.processes[i].suspect

    def _may_have_sent(self, i: int) -> bool:
        """In a trace, several facts of a process that is over may still be on their way."""
        return self._is_suspect_that_runs(i) or (self.given.trails and self.at[i].runs == OVER)

    def _has_room(self, i: int) -> bool:
        """The search goes on only where few decisions are unread."""
        return self.given.trails or len(self.at[i].unread) < 3

    def _outdate(self, i: int) -> None:
        """What the process has said so far of the task no longer counts: it is older than what the
        leader decides now.
        """
        at = self.at[i]
        at.told = at.free = at.last_free = False

    # Actions

    def time(self, steps: int = 1) -> None:
        self.since = min(self.since + steps, self._lead)
        self.apart = min(self.apart + steps, self._lead) if self.given.rests else 0
        for i, at in enumerate(self.at):
            if at.runs != RUNS:
                continue
            if self.processes[i].suspect:
                most = self.processes[i].session
                at.beat, at.seen = min(at.beat + steps, most), min(at.seen + steps, most)
                at.sent = min(at.sent + steps, most) if at.batch else at.sent
                at.asked = min(at.asked + steps, most) if at.fetch else at.asked
                at.grant = max(1, at.grant - steps) if at.grant else 0
                if self.given.on("R_NO_REVIVAL") and not self.fresh(i):
                    self._over(i)
            elif at.grant > 1:
                at.grant = max(1, at.grant - steps)
                if at.grant == 1:
                    self._clear_hold()
        self.check()

    def jump(self, wanted: int | None = None) -> None:
        """`wanted`: of a trace, which knows how far."""
        _only_if(self.jumps > 0)
        self.jumps -= 1
        self.since = self._lead if wanted is None else min(wanted, self._lead)
        self.apart = self.since if self.given.rests else 0
        self.check()

    def back(self, wanted: int = 0) -> None:
        _only_if(self.since > wanted or self.apart > wanted)
        self.since, self.apart = wanted, 0
        self.check()

    def others(self) -> None:
        _only_if(self.apart > 0)
        self._elapse()
        self.check()

    def measure(self) -> None:
        _only_if(self.given.rests and not self.given.on("R_AFTER"))
        for at in self.at:
            at.measured = 1 + at.silent
        self.check()

    def observe(self) -> None:
        after = self.given.on("R_AFTER")
        _only_if(self.given.rests and (after or self.at[0].measured > 0))
        self._fold()
        for i, at in enumerate(self.at):
            said = at.silent if after else at.measured - 1
            if at.known == LIVE and self.processes[i].suspect:
                at.quiet = max(at.quiet, said)
            at.measured = 0
        self.check()

    def told(self, i: int, silent: int) -> None:
        """As `observe`, with what the worker says of one process (a trace)."""
        if self.at[i].known == LIVE:
            self.at[i].quiet = max(self.at[i].quiet, min(silent, self.waits(i)))
        self.check()

    def tick(self) -> None:
        _only_if(self.since > 0)
        self._fold()
        self.check()

    def move(self) -> None:
        b = self.owner
        _only_if(self.given.moves and self.since == 0 and b != self.none and not self.revoking and self._has_room(b))
        _only_if(self.processes[b].suspect or not self.late)
        if self.given.on("R_EPOCH"):
            self._outdate(b)
        if self.processes[b].suspect:
            self.revoking = True
            self._tell(b, REVOKED)
        else:
            self.at[b].grant, self.owner = 0, self.none
        self.check()

    def give(self, i: int) -> None:
        returns = self.owner == i and self.revoking and self._has_room(i)
        _only_if(self.since == 0 and self.at[i].known == LIVE and (self.owner == self.none or returns))
        self.owner, self.revoking = i, False
        if self.given.on("R_EPOCH"):
            self._outdate(i)
        self.at[i].held = self.at[i].last_held = False
        self._tell(i, TASK + (self.hold if self.given.on("R_HOLD") else 0))
        if not self.given.on("R_HOLD_PASSES"):
            self._clear_hold()
        self.check()

    def expel(self, *which: int) -> None:
        """`which`: one; in a trace all that one fact expels."""
        _only_if(self.given.moves and all(self.at[i].known == LIVE and self.processes[i].suspect for i in which))
        self._fold(which)
        self.check()

    def fall_behind(self) -> None:
        _only_if(self.given.late and not self.late)
        self.late = True
        self.check()

    def publish(self) -> None:
        _only_if(self.late)
        self.late = False
        for i, at in enumerate(self.at):
            what, at.pending = at.pending, 0
            if what and not self.processes[i].suspect:
                self._reads(i, what)
        self.check()

    def configure(self, wanted: int | None = None) -> None:
        """`wanted`: of a trace, which may set any value."""
        _only_if(self.given.raised != self.given.step and self.since == 0)
        if wanted is None:
            wanted = self.given.raised if self.most == self.given.step else self.given.step
        judged = {LIVE: self.given.on("R_FITS_LIVE"), FENCED: self.given.on("R_FITS_FENCED")}
        if not any(judged.get(at.known, False) and self.processes[i].margin < wanted for i, at in enumerate(self.at)):
            self.most = wanted
        self.check()

    def start(self, i: int) -> None:
        at, process = self.at[i], self.processes[i]
        _only_if(at.runs == NOT_STARTED and process.starts)
        former = [c for c in range(i) if self.processes[c].member == process.member][-1:]
        at.proof = process.proof and not (self.given.on("R_PROOF") and any(self.at[c].runs == RUNS for c in former))
        at.runs = RUNS
        if process.suspect:
            at.batch, at.joins = SENT, True
        else:
            self._fold()
            self._join(i)
            at.proof = False
        self.check()

    def crash(self, i: int) -> None:
        _only_if(self.given.crashes and self._is_suspect_that_runs(i))
        self._over(i)
        self.check()

    def close(self, i: int) -> None:
        at = self.at[i]
        _only_if(self.given.closes and self._may_have_sent(i) and at.batch == 0)
        if at.runs == RUNS:
            self._over(i)
        at.batch, at.left, at.free, at.held = SENT, True, False, False
        self.check()

    def send(self, i: int, says: int) -> None:
        at = self.at[i]
        free, held = at.told if self.given.on("R_EPOCH") else at.grant != 1, at.grant == 1
        if at.runs == OVER:
            free, held = at.last_free, at.last_held
        _only_if(self._may_have_sent(i) and at.batch == 0 and (not says or free or held))
        at.batch, at.sent, at.free, at.held = SENT, 0, bool(says and free), bool(says and held)
        self.check()

    def prove(self, i: int) -> None:
        at = self.at[i]
        _only_if(self.given.witness and self.processes[i].suspect and at.known in (LIVE, FENCED))
        _only_if(at.runs == OVER or not self.given.on("R_WITNESS"))
        self._fold()
        if at.known == LIVE:
            self._remove(i)
            self._tell(i, OUT)
        elif at.known == FENCED:
            at.known, at.quiet = GONE, 0
            self._unfenced()
        self.check()

    def append(self, i: int) -> None:
        at = self.at[i]
        _only_if(at.batch == SENT)
        self._fold()
        if at.joins:
            self._join(i)
        elif at.known == LIVE:
            at.quiet = at.silent = 0
            if at.left:
                self._remove(i)
            elif self.owner == i and self.revoking and at.free:
                self.owner, self.revoking = self.none, False
            elif self.owner == i and not self.revoking and at.held and self.hold:
                self._clear_hold()
        elif at.known == FENCED and self.given.on("R_HEARD"):
            at.quiet = 0
        at.joins = at.proof = at.left = at.free = at.held = False
        at.batch = APPENDED if at.runs == RUNS else 0
        self.check()

    def acknowledge(self, i: int) -> None:
        at = self.at[i]
        _only_if(at.batch == APPENDED)
        at.beat = min(at.beat, at.sent) if self.given.on("R_DATED") else 0
        at.batch = at.sent = 0
        self.check()

    def ask(self, i: int) -> None:
        at = self.at[i]
        _only_if(self._is_suspect_that_runs(i) and at.fetch == 0)
        at.fetch, at.asked = SENT, 0
        self.check()

    def serve(self, i: int, brings: int) -> None:
        at = self.at[i]
        published = len(at.unread) - at.pending
        _only_if(at.fetch == SENT and published >= brings)
        at.fetch, at.brings, at.whole = SERVED, brings, brings == published
        self.check()

    def lose(self, i: int) -> None:
        at = self.at[i]
        _only_if(not self.given.on("R_NUMBERS") and len(at.unread) > at.pending and at.fetch == 0)
        at.unread = at.unread[1:]
        self.check()

    def arrive(self, i: int) -> None:
        at = self.at[i]
        _only_if(at.fetch == SERVED)
        brings, at.brings, at.fetch = at.brings, 0, 0
        for _ in range(brings):
            item, at.unread = at.unread[0], at.unread[1:]
            if item == OUT and self.given.on("R_HEEDS"):
                self._over(i)
                break
            if item == REVOKED:
                at.grant, at.told = 0, not any(later >= TASK for later in at.unread)
            elif item >= TASK and at.grant == 0:
                at.grant, at.told = item - TASK + 1, False
            elif item == TASK:
                at.grant = 1
        if at.runs == RUNS and (at.whole or not self.given.on("R_END")):
            at.seen = min(at.seen, at.asked) if self.given.on("R_DATED") else 0
        at.asked, at.whole = 0, False
        self.check()


def _only_if(enabled: bool) -> None:
    if not enabled:
        raise NotAllowed


OF_THE_LEADER = ("time", "jump", "back", "tick", "move", "fall_behind", "publish", "configure", "others", "measure", "observe")
OF_A_PROCESS = ("give", "expel", "start", "crash", "close", "append", "acknowledge", "ask", "arrive", "lose", "prove")


def nexts(state: Lease) -> Iterator[Lease]:
    """Every state that one action leads to."""
    actions: list[tuple[str, tuple[int, ...]]] = [(name, ()) for name in OF_THE_LEADER]
    for i in state.everyone:
        actions += [(name, (i,)) for name in OF_A_PROCESS]
        actions += [("send", (i, says)) for says in range(2)]
        actions += [("serve", (i, brings)) for brings in range(6)]
    for name, arguments in actions:
        after = state.copied()
        try:
            getattr(after, name)(*arguments)
        except NotAllowed:
            continue
        yield after


def states(given: Configuration) -> int:
    """The number of states that can be reached. Raises TwoOwners or NotWaitedFor."""
    first = Lease(given)
    seen = {first.key()}
    todo = deque([first])
    while todo:
        for after in nexts(todo.popleft()):
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append(after)
    return len(seen)
