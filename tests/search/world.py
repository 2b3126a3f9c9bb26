"""A small group as a state that repeats: the real machine and the real sessions as interned
snapshots, and the messages between them.

Times are in steps of one millisecond. Every snapshot is *rebased* before it is kept: the clock is
set back to NOW together with every time in it, ages stop where nothing depends on them any more,
counters that only rise (offsets, decision and report numbers) restart, and a decision that does not
matter to a process is not kept for it. So unbounded time, with any number of heartbeats, is a
finite number of states.

What a single step of the search is:

* Appending a fact and folding it is one step, because a slower leader only expires members later.
* A process outside the `suspects` is as dangerous as possible: it reads every decision the moment
  it is made, closes at once, and its lease never lapses. So its messages are not in the state.
* A process of the `suspects` goes step by step: a producer's batch is sent, appended, acknowledged;
  a fetch is sent, served, arrives. Each may come as late as it likes, or never; doing nothing is
  being paused. A pause between the check of the lease and the write is not covered (M6).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import attrs

from equipoise.events import codec
from equipoise.events.decisions import Decision, EventRejected, MemberAssigned, MemberExpired
from equipoise.events.facts import Fact, GroupConfigured, ProbingTick, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import FATAL_REJECTIONS, MemberSession, MemberSettings
from tests.search.scripted_assignor import ScriptedAssignor, load
from tests.support.reference_model.step_checker import check_timers
from tests.support.session_snapshots import restore, snapshot

NOW = 1_000
APPENDED = 5_000
NUMBER = 1_000
NONCE_UNTIL = 10_000_000
GROUP = "g"
TASKS = (TaskId(0, 0), TaskId(0, 1))
CRASHED = -1


class Batch(NamedTuple):
    """Facts of one process on their way: age in steps since they were sent, their ids, and whether
    they are in the log.
    """

    age: int
    facts: tuple[int, ...]
    appended: bool


class Fetch(NamedTuple):
    """A read of the decisions on its way: age in steps since it was sent; `served`: how many of the
    unread decisions it brings, None before that.
    """

    age: int
    served: int | None
    reached_end: bool


class Process(NamedTuple):
    """One process: its incarnation, its session (id of a snapshot, or CRASHED), and for a suspect
    its messages on their way.
    """

    who: int
    session: int
    unread: tuple[int, ...] = ()
    batch: Batch | None = None
    fetch: Fetch | None = None


class World(NamedTuple):
    """One state of the search. The first of `processes` are the suspects.

    `since`: the broker's append clock minus the last append, in steps. `left`: faults that may
    still happen.
    """

    machine: int
    since: int
    processes: tuple[Process, ...]
    left: frozenset[str]


FIRST = GroupConfigured(
    assignor=ScriptedAssignor.name,
    knobs=GroupSettings(
        max_step_ms=1,
        initial_delay_ms=0,
        revocation_timeout_ms=2,
        drain_timeout_ms=0,
        checkpoint_every_records=0,
        options={str(TASKS[0]): "m1", str(TASKS[1]): "m2"},
    ),
)


def topology(epoch: int, partitions: int, *, subtopology: int = 0) -> TopologyDeclared:
    return TopologyDeclared(epoch=epoch, subtopologies=(Subtopology(subtopology=subtopology, partitions=partitions, stateful=False),))


T = TypeVar("T")


class Interned(Generic[T]):
    """Values as small numbers, so that states are cheap to keep and to compare."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._ids: dict[T, int] = {}

    def id_of(self, value: T) -> int:
        found = self._ids.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


def _settings(member_id: str, incarnation: int, steps: tuple[int, int], ended: int | None = None) -> MemberSettings:
    session_steps, margin_steps = steps
    return MemberSettings(
        member_id=member_id,
        incarnation=incarnation,
        session_timeout_ms=session_steps,
        lease_margin_ms=margin_steps,
        join_nonce=f"nonce-{incarnation}",
        ended_incarnation=ended,
        heartbeat_interval_ms=1,
    )


class Stepper:
    """The machine and the sessions, one transition at a time, each computed once.

    `others`: session and margin, in steps, of every incarnation but the first m1; None: the same as
    m1's. `later`: of those that start later; None: as `others`. `most_step_ms`: the highest
    `max_step_ms` that an operator sets. `session_class` and `machine_class` may be subclasses that
    break one rule.
    """

    def __init__(
        self,
        *,
        session_steps: int,
        margin_steps: int,
        jump_steps: int,
        others: tuple[int, int] | None = None,
        later: tuple[int, int] | None = None,
        most_step_ms: int = 1,
        session_class: type[MemberSession] = MemberSession,
        machine_class: type[GroupMachine] = GroupMachine,
    ) -> None:
        of_m1 = session_steps, margin_steps
        others = others or of_m1
        later = later or others
        self.longest_steps = max(session_steps, others[0], later[0])
        self.most_step_ms = most_step_ms
        self.jump_steps = jump_steps
        self._session_class = session_class
        self._machine_class = machine_class
        self.incarnations = [
            _settings("m1", 1, of_m1),
            _settings("m2", 2, others),
            _settings("m1", 3, later),
            _settings("m1", 4, later, ended=1),
            _settings("m2", 5, later, ended=2),
            _settings("m2", 6, later),
        ]
        self.machines: Interned[bytes] = Interned()
        self.sessions: Interned[bytes] = Interned()
        self.facts: Interned[codec.Encoded] = Interned()
        self.decisions: Interned[codec.Encoded] = Interned()
        self._folded: dict[tuple[int, int, int], tuple[int, tuple[tuple[int, ...], ...]]] = {}
        self._aged: dict[tuple[int, int], int] = {}
        self._first: dict[int, tuple[int, int]] = {}
        self._parsed: list[tuple[tuple[str, ...], bool]] = []
        self._may_run: dict[tuple[int, int], frozenset[TaskId]] = {}
        self._answered: dict[tuple[object, ...], tuple[int, tuple[int, ...]]] = {}
        self.most_since = self._most_since()
        self.tick = self.fact_id(ProbingTick())

    def configured_otherwise(self, machine_id: int, *, assignor: str | None = None, **settings: Any) -> int:
        """A configuration that differs from the one in force in this; nothing: it is the first one
        again.
        """
        changed = FIRST
        if assignor or settings:
            config = self._machine_class.restore(self.machines.values[machine_id], load=load).state.config
            assert config is not None, "the group is configured"
            changed = attrs.evolve(config, assignor=assignor or config.assignor, knobs=attrs.evolve(config.knobs, **settings))
        return self.fact_id(changed)

    def _most_since(self) -> int:
        """Lead of the append clock beyond which nothing changes: one step of group time, or, with
        that clamp broken, its largest value.
        """
        machine = self._machine_class(load=load)
        machine.state.config = attrs.evolve(FIRST, knobs=attrs.evolve(FIRST.knobs, max_step_ms=self.most_step_ms))
        most = self.longest_steps + 1 + self.jump_steps
        steps = [machine._time_step_ms(APPENDED, APPENDED + since) for since in range(most + 1)]
        return steps.index(steps[most])

    def fact_id(self, fact: Fact) -> int:
        return self.facts.id_of(codec.encode(fact))

    # The machine

    def first_machine(self) -> int:
        machine = self._machine_class(load=load)
        machine.step(FactRecord(GROUP, 0, APPENDED, FIRST))
        machine.step(FactRecord(GROUP, 1, APPENDED, topology(0, len(TASKS))))
        return self._keep_machine(machine)

    def fold(self, machine_id: int, since: int, fact_id: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """The machine after the fact, and the decisions that name each incarnation."""
        key = machine_id, since, fact_id
        if key not in self._folded:
            machine = self._machine_class.restore(self.machines.values[machine_id], load=load)
            fact: Any = codec.decode(*self.facts.values[fact_id])
            decided = [each.decision for each in machine.step(FactRecord(GROUP, 11, APPENDED + since, fact))]
            check_timers(machine)
            named = tuple(tuple(self.decisions.id_of(codec.encode(each)) for each in decided if _names(each, who)) for who in self.incarnations)
            self._folded[key] = self._keep_machine(machine), named
        return self._folded[key]

    def _keep_machine(self, machine: GroupMachine) -> int:
        state = machine.state
        shift = state.now_ms - NOW
        state.now_ms, state.last_append_ms, state.last_offset, state.seq = NOW, APPENDED, 10, 10
        state.number, state.generation = 0, 0
        state.nonces = dict.fromkeys(sorted(state.nonces), NONCE_UNTIL)
        state.asked = {name: until_ms and NONCE_UNTIL for name, until_ms in state.asked.items()}
        assert state.gathering_until_ms is None, "a timer that is not set back here"
        assert not state.backoffs, "a timer that is not set back here"
        if state.probing_deadline_ms is not None:
            state.probing_deadline_ms -= shift
        for fenced in state.fenced.values():
            fenced.last_heard_ms -= shift
        for member in state.members.values():
            member.last_heard_ms -= shift
            member.report_number = min(member.report_number, 0)
            member.revoking = {task: (epoch, since_ms - shift) for task, (epoch, since_ms) in member.revoking.items()}
            if member.drain_deadline_ms is not None:
                member.drain_deadline_ms -= shift
        return self.machines.id_of(machine.snapshot())

    # The sessions

    def _session(self, who: int, session_id: int) -> MemberSession:
        return restore(self._session_class, self.incarnations[who], self.sessions.values[session_id])

    def _keep_session(self, session: MemberSession, now_ms: int) -> int:
        state = json.loads(snapshot(session))
        oldest_ms = now_ms - self.longest_steps - 1
        for name in ("heartbeat_ms", "fetch_ms"):
            state[name] = max(oldest_ms, state[name]) - now_ms + NOW
        state["grants"] = [[task, [token, max(0, start_ms - now_ms) + NOW, restored]] for task, (token, start_ms, restored) in state["grants"]]
        state["next_report_ms"] = NOW  # a report may be sent at any moment
        state["report_number"] = 0
        state["last_number"] = NUMBER
        return self.sessions.id_of(json.dumps(state, sort_keys=True, separators=(",", ":")).encode())

    def first_session(self, who: int) -> tuple[int, int]:
        """A session whose reader is at the end and that joins now, and its MemberJoined."""
        if who not in self._first:
            session = self._session_class(self.incarnations[who])
            session.reader_placed(log_id="log", last_number=NUMBER, sent_ms=NOW, answered_ms=NOW)
            joined = self.fact_id(session.join(NOW))
            self._first[who] = self._keep_session(session, NOW), joined
        return self._first[who]

    def aged(self, who: int, session_id: int) -> int:
        """The session one step later, after it has checked its lease."""
        key = who, session_id
        if key not in self._aged:
            session = self._session(who, session_id)
            for task in TASKS:
                session.may_process(task, NOW + 1)
            self._aged[key] = self._keep_session(session, NOW + 1)
        return self._aged[key]

    def may_run(self, who: int, session_id: int) -> frozenset[TaskId]:
        """Tasks of which it may process a record now."""
        if session_id == CRASHED:
            return frozenset()
        key = who, session_id
        if key not in self._may_run:
            session = self._session(who, session_id)
            self._may_run[key] = frozenset(task for task in TASKS if session.may_process(task, NOW))
        return self._may_run[key]

    def ask(self, who: int, session_id: int, *question: object) -> tuple[int, tuple[int, ...]]:
        """The session after an event, and the facts that it sends."""
        key = who, session_id, *question
        if key not in self._answered:
            session = self._session(who, session_id)
            facts = _ASKED[str(question[0])](self, session, *question[1:])
            self._answered[key] = self._keep_session(session, NOW), tuple(self.fact_id(fact) for fact in facts)
        return self._answered[key]

    def to_read(self, unread: tuple[int, ...], decided: tuple[int, ...]) -> tuple[int, ...]:
        """Decisions still to be read, up to the first that ends the reader."""
        for decision_id in decided:
            if unread and ends(codec.decode(*self.decisions.values[unread[-1]])):  # type: ignore[arg-type]
                break
            unread = (*unread, decision_id)
        return unread

    def closing(self, session_id: int) -> tuple[str, ...]:
        return self._kept(session_id)[0] if session_id != CRASHED else ()

    def is_over(self, session_id: int) -> bool:
        """Whether it has ended and has nothing more to send."""
        return session_id == CRASHED or self._kept(session_id)[1]

    def _kept(self, session_id: int) -> tuple[tuple[str, ...], bool]:
        """What the session closes, and whether it is over; its snapshot is parsed once."""
        while len(self._parsed) <= session_id:
            state = json.loads(self.sessions.values[len(self._parsed)])
            self._parsed.append((tuple(state["closing"]), state["ended"] is not None and not state["urgent"]))
        return self._parsed[session_id]

    # Events of a session

    def _polled(self, session: MemberSession) -> list[Fact]:
        return session.poll(NOW)

    def _acknowledged(self, session: MemberSession, age: int) -> list[Fact]:
        session.heartbeat_acknowledged(sent_ms=NOW - age, now_ms=NOW)
        return []

    def _fetched(self, session: MemberSession, decisions: tuple[int, ...], age: int, reached_end: bool) -> list[Fact]:
        for index, decision_id in enumerate(decisions):
            decision: Decision = codec.decode(*self.decisions.values[decision_id])  # type: ignore[assignment]
            session.receive(DecisionRecord("log", GROUP, NUMBER + 1 + index, 11, 0, 0, decision), NOW)
        session.fetch_completed(sent_ms=NOW - age, reached_end=reached_end, now_ms=NOW)
        return []

    def _closed(self, session: MemberSession) -> list[Fact]:
        for task in sorted(session.closing):
            session.task_closed(task, NOW)
        return []

    def _leaves(self, session: MemberSession) -> list[Fact]:
        session.intend_leave()
        return []

    def _stops(self, session: MemberSession) -> list[Fact]:
        session.close(NOW)
        return []

    def _perfect(self, session: MemberSession, decisions: tuple[int, ...]) -> list[Fact]:
        """Reads, closes and reports at once, with a lease that is always fresh."""
        self._fetched(session, decisions, 0, True)
        self._acknowledged(session, 0)
        self._closed(session)
        return session.poll(NOW)


_ASKED: dict[str, Callable[..., list[Fact]]] = {
    "poll": Stepper._polled,
    "acknowledged": Stepper._acknowledged,
    "fetched": Stepper._fetched,
    "closed": Stepper._closed,
    "leaves": Stepper._leaves,
    "stops": Stepper._stops,
    "perfect": Stepper._perfect,
}


def _names(decision: Decision, who: MemberSettings) -> bool:
    """Whether the decision does more to the incarnation than to be counted."""
    if not isinstance(decision, MemberAssigned | MemberExpired | EventRejected):
        return False
    if isinstance(decision, EventRejected) and decision.code not in FATAL_REJECTIONS | {"report_base_unknown", "already_released"}:
        return False
    return decision.member_id == who.member_id and decision.incarnation == who.incarnation


def ends(decision: Decision) -> bool:
    """Whether nothing after this decision matters to the incarnation that it names."""
    return isinstance(decision, MemberExpired) or (isinstance(decision, EventRejected) and decision.code in FATAL_REJECTIONS)
