"""A breadth-first search through every interleaving of a small group: may two processes run one
task at the same time?

`Search.run` returns the shortest sequence that leads there, or the number of states when there is
none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs

from equipoise.events.facts import Fact, LeaveRequested, MemberEnded
from equipoise.events.tasks import TaskId
from tests.search.scripted_assignor import OtherAssignor
from tests.search.world import CRASHED, TASKS, Batch, Fetch, Process, Stepper, World, topology

FAULTS: dict[str, str] = {
    "clock jumps": "the broker's append clock jumps ahead",
    "task reassigned": "the group is reconfigured: 0_0 moves from m1 to m2; m1 must release it, and is expelled if it does not",
    "second process": "a second process with the id of m1 joins while the first may be running",
    "crash": "m1's process is gone; what it has sent may still arrive",
    "restart": "after the crash, its successor has the lock of the state directory and reports it",
    "proven dead": "a witness has seen the process of m1 end, then or earlier",
    "false proof": "somebody says so while it runs",
    "leaves": "m1 reports that it wants to leave",
    "stops": "m1 is closed by its host",
    "m2 restarts": "m2's process is gone and its successor has the lock and inherits all waits of m2",
    "m2 is doubled": "a second process with the id of m2 joins",
    "max_step_ms raised": "an operator sets it to the highest value of the search",
    "revocation timeout lowered": "to the least, whatever is being revoked",
    "revocation timeout raised": "to twice what it was",
    "drain timeout raised": "a leaving member gets some time",
    "other assignor": "another assignor leads, which has every task run elsewhere and guarantees nothing",
    "set back": "the first configuration is in force again, whatever was changed",
    "asked to leave": "an operator asks m1 to leave",
    "asked to stay": "the operator withdraws the request",
    "tasks removed": "a topology without any of the tasks",
    "tasks return": "a topology with these tasks and one more",
}
CONFIGURED: dict[str, dict[str, Any]] = {
    "task reassigned": {"options": {str(task): "m2" for task in TASKS}},
    "revocation timeout lowered": {"revocation_timeout_ms": 1},
    "revocation timeout raised": {"revocation_timeout_ms": 4},
    "drain timeout raised": {"drain_timeout_ms": 2},
    "other assignor": {"assignor": OtherAssignor.name},
    "set back": {},
}
OF_OPERATORS: dict[str, Fact] = {
    "asked to leave": LeaveRequested(members=("m1",)),
    "asked to stay": LeaveRequested(members=("m1",), withdrawn=True),
    "tasks removed": topology(1, 1, subtopology=1),
    "tasks return": topology(2, len(TASKS) + 1),
}
SECOND_M1, RESTARTED_M1, RESTARTED_M2, SECOND_M2 = 2, 3, 4, 5
"""Indices in Stepper.incarnations; m1 and m2 themselves are 0 and 1."""


@attrs.frozen
class Found:
    """`states`: number of states seen. `path`: shortest sequence to two owners; None: there is
    none. `task`: the task with two owners.
    """

    states: int
    transitions: int
    path: tuple[str, ...] | None = None
    task: TaskId | None = None


class TooLarge(Exception):
    """The search has more states than allowed."""


class Search:
    """One search over the transitions of a `Stepper`: which faults may happen (each once), with
    `suspects` processes that go step by step: m1, or m1 and m2.
    """

    def __init__(self, stepper: Stepper, faults: frozenset[str], suspects: int = 1) -> None:
        self.stepper = stepper
        self.faults = faults
        self.suspects = suspects

    def first(self) -> World:
        """m1 runs 0_0, m2 runs 0_1, and no message is on its way."""
        world = World(machine=self.stepper.first_machine(), since=0, processes=(), left=self.faults)
        for who in (0, 1):
            world = self._joined(world, who)
        world = self._settled(world, everyone=True)
        assert self.stepper.may_run(0, world.processes[0].session) == {TASKS[0]}
        assert self.stepper.may_run(1, world.processes[1].session) == {TASKS[1]}
        return world

    def run(self, most_states: int = 5_000_000) -> Found:
        """Searches to the end, or to the first state with two owners. Raises TooLarge."""
        first = self.first()
        seen: dict[World, tuple[World, str] | None] = {first: None}
        todo = deque([first])
        transitions = 0
        while todo:
            world = todo.popleft()
            task = self.run_twice(world)
            if task is not None:
                return Found(len(seen), transitions, _path(seen, world), task)
            for name, after in self.nexts(world):
                transitions += 1
                if after not in seen:
                    seen[after] = world, name
                    todo.append(after)
            if len(seen) > most_states:
                raise TooLarge(f"over {most_states} states")
        return Found(len(seen), transitions)

    def run_twice(self, world: World) -> TaskId | None:
        """A task that two processes may run; None: there is none."""
        running: set[TaskId] = set()
        for process in world.processes:
            may_run = self.stepper.may_run(process.who, process.session)
            both = sorted(running & may_run)
            if both:
                return both[0]
            running |= may_run
        return None

    # Possible events

    def nexts(self, world: World) -> Iterator[tuple[str, World]]:
        yield "time", self._later(world)
        if world.since:
            yield "tick", self._settled(self._append(world, (self.stepper.tick,)))
        yield from self._faults(world)
        for place in range(self.suspects):
            suspect = world.processes[place]
            name = self.stepper.incarnations[suspect.who].member_id
            if suspect.batch is not None and not suspect.batch.appended:
                yield f"{name}'s facts are appended", self._batch_appended(world, place)
            if not self.stepper.is_over(suspect.session):
                yield from self._of_suspect(world, place, name)

    def _of_suspect(self, world: World, place: int, name: str) -> Iterator[tuple[str, World]]:
        stepper, suspect = self.stepper, world.processes[place]
        who, session = suspect.who, suspect.session
        if suspect.batch is None:
            after, facts = stepper.ask(who, session, "poll")
            if facts:
                yield f"{name} sends", self._with(world, place, suspect._replace(session=after, batch=Batch(0, facts, False)))
        elif suspect.batch.appended:
            after, _ = stepper.ask(who, session, "acknowledged", suspect.batch.age)
            yield f"{name}'s acknowledgement arrives", self._with(world, place, suspect._replace(session=after, batch=None))
            yield f"{name}'s acknowledgement is lost", self._with(world, place, suspect._replace(batch=None))
        else:
            yield f"{name}'s facts are lost", self._with(world, place, suspect._replace(batch=None))
        fetch = suspect.fetch
        if fetch is None:
            yield f"{name} fetches", self._with(world, place, suspect._replace(fetch=Fetch(0, None, False)))
        elif fetch.served is None:
            for served in sorted({min(1, len(suspect.unread)), len(suspect.unread)}):
                reached_end = served == len(suspect.unread)
                event = f"{name}'s fetch is served" if reached_end else f"{name}'s fetch is served in part"
                yield event, self._with(world, place, suspect._replace(fetch=fetch._replace(served=served, reached_end=reached_end)))
        else:
            decisions = suspect.unread[: fetch.served]
            after, _ = stepper.ask(who, session, "fetched", decisions, fetch.age, fetch.reached_end)
            left = suspect.unread[fetch.served :]
            yield f"{name}'s fetch arrives", self._with(world, place, suspect._replace(session=after, unread=left, fetch=None))
        if stepper.closing(session):
            after, _ = stepper.ask(who, session, "closed")
            yield f"{name} closes", self._with(world, place, suspect._replace(session=after))

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        stepper, m1, m2 = self.stepper, world.processes[0], world.processes[1]
        for fault in sorted(world.left):
            after = world._replace(left=world.left - {fault})
            if fault == "clock jumps":
                yield fault, after._replace(since=min(stepper.most_since, world.since + stepper.jump_steps))
            elif fault in CONFIGURED or fault == "max_step_ms raised":
                changes = CONFIGURED.get(fault, {"max_step_ms": stepper.most_step_ms})
                yield fault, self._settled(self._append(after, (stepper.configured_otherwise(world.machine, **changes),)))
            elif fault in OF_OPERATORS:
                yield fault, self._settled(self._append(after, (stepper.fact_id(OF_OPERATORS[fault]),)))
            elif fault == "second process":
                yield fault, self._settled(self._joined(after, SECOND_M1))
            elif fault == "crash" and not stepper.is_over(m1.session):
                yield fault, self._with(after, 0, m1._replace(session=CRASHED, unread=(), fetch=None))
            elif fault == "restart" and m1.session == CRASHED and "crash" in self.faults - world.left:
                yield fault, self._settled(self._joined(after, RESTARTED_M1))
            elif fault == "false proof" or (fault == "proven dead" and m1.session == CRASHED):
                incarnation = stepper.incarnations[m1.who]
                proof = MemberEnded(member_id=incarnation.member_id, incarnation=incarnation.incarnation)
                yield fault, self._settled(self._append(after, (stepper.fact_id(proof),)))
            elif fault in ("leaves", "stops") and not stepper.is_over(m1.session):
                session, _ = stepper.ask(m1.who, m1.session, fault)
                yield fault, self._with(after, 0, m1._replace(session=session))
            elif fault == "m2 restarts":
                gone = self._with(after, 1, m2._replace(session=CRASHED, unread=(), fetch=None))
                yield fault, self._settled(self._joined(gone, RESTARTED_M2))
            elif fault == "m2 is doubled":
                yield fault, self._settled(self._joined(after, SECOND_M2))

    # Their effects

    def _with(self, world: World, place: int, process: Process) -> World:
        """The process as it is now. Of a process that is over, only facts that may still be
        appended matter.
        """
        if self.stepper.is_over(process.session):
            batch = process.batch if process.batch is not None and not process.batch.appended else None
            process = Process(process.who, CRASHED, batch=batch and batch._replace(age=0))
        return world._replace(processes=(*world.processes[:place], process, *world.processes[place + 1 :]))

    def _later(self, world: World) -> World:
        """One step of time for every process and every message on its way."""
        oldest = self.stepper.longest_steps + 1
        later = world._replace(since=min(self.stepper.most_since, world.since + 1))
        for place, process in enumerate(world.processes):
            if process.session == CRASHED:
                continue
            session = self.stepper.aged(process.who, process.session)
            if place >= self.suspects:  # its lease is always fresh
                session, _ = self.stepper.ask(process.who, session, "acknowledged", 0)
                session, _ = self.stepper.ask(process.who, session, "fetched", (), 0, True)
            batch = process.batch and process.batch._replace(age=min(oldest, process.batch.age + 1))
            fetch = process.fetch and process.fetch._replace(age=min(oldest, process.fetch.age + 1))
            later = self._with(later, place, process._replace(session=session, batch=batch, fetch=fetch))
        return later

    def _append(self, world: World, facts: tuple[int, ...]) -> World:
        """Appends the facts and folds them; members that the decisions name may read them from now
        on.
        """
        for fact in facts:
            machine, named = self.stepper.fold(world.machine, world.since, fact)
            processes = tuple(
                process._replace(unread=self.stepper.to_read(process.unread, named[process.who])) if process.session != CRASHED else process
                for process in world.processes
            )
            world = world._replace(machine=machine, since=0, processes=processes)
        return world

    def _batch_appended(self, world: World, place: int) -> World:
        batch = world.processes[place].batch
        assert batch is not None, "only what was sent is appended"
        after = self._append(world, batch.facts)
        return self._settled(self._with(after, place, after.processes[place]._replace(batch=batch._replace(appended=True))))

    def _joined(self, world: World, who: int) -> World:
        session, joined = self.stepper.first_session(who)
        return self._append(world._replace(processes=(*world.processes, Process(who, session))), (joined,))

    def _settled(self, world: World, *, everyone: bool = False) -> World:
        """Lets every process that does not go step by step read, close and report, at the moment of
        the last append, until it has nothing more to send.
        """
        for rounds in range(50):
            quiet = rounds > 0
            for place in range(0 if everyone else self.suspects, len(world.processes)):
                process = world.processes[place]
                if process.session == CRASHED:
                    continue
                session, facts = self.stepper.ask(process.who, process.session, "perfect", process.unread)
                quiet = quiet and not process.unread
                world = self._with(world, place, process._replace(session=session, unread=()))
                since = world.since
                world = self._append(world._replace(since=0), facts)._replace(since=since)
            if quiet:
                return world
        raise AssertionError("the perfect processes talk for ever")


def _path(seen: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    path: list[str] = []
    step = seen[world]
    while step is not None:
        path.append(step[1])
        step = seen[step[0]]
    return tuple(reversed(path))
