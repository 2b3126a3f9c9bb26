"""Breadth first through every interleaving of a small group: may two processes run the same task at one time?

`search` returns the shortest sequence that leads there, or the number of states when there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from events.tasks import TaskId
from tests.search.world import CRASHED, TASKS, Batch, Fetch, Process, Room, World

SUSPECT = 0
"""Index into World.processes."""

FAULTS: dict[str, str] = {
    "clock jumps": "the broker's append clock jumps ahead",
    "told otherwise": "the group is reconfigured: 0_0 is to move from m1 to m2, so m1 has to give it up, and is expelled when it does not",
    "second process": "a second process with the id of m1 joins while the first may be running",
    "crash": "m1's process is gone; what it has sent may still arrive",
    "restart": "after the crash, its successor has the state directory's lock, and says so",
    "leaves": "m1 says that it wants to leave",
    "stops": "m1 is closed by its host",
}


@attrs.frozen
class Found:
    """`states` looked at; `path`: shortest sequence to two owners, None when there is none; `task`: of which."""

    states: int
    transitions: int
    path: tuple[str, ...] | None = None
    task: TaskId | None = None


class TooLarge(Exception):
    """The search would look at more states than it was allowed."""


class Search:
    """One search: which faults may happen (each once), in a room."""

    def __init__(self, room: Room, faults: frozenset[str]) -> None:
        self.room = room
        self.faults = faults

    def first(self) -> World:
        """m1 runs 0_0 and m2 runs 0_1; nothing is on its way."""
        world = World(machine=self.room.first_machine(), since=0, processes=(), left=self.faults)
        for who in (0, 1):
            world = self._joined(world, who)
        world = self._settled(world, everyone=True)
        assert self.room.may_run(0, world.processes[0].session) == {TASKS[0]}
        assert self.room.may_run(1, world.processes[1].session) == {TASKS[1]}
        return world

    def run(self, most_states: int = 5_000_000) -> Found:
        """Raises TooLarge."""
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
        """A task that two processes may run."""
        running: set[TaskId] = set()
        for process in world.processes:
            may_run = self.room.may_run(process.who, process.session)
            both = sorted(running & may_run)
            if both:
                return both[0]
            running |= may_run
        return None

    # What may happen

    def nexts(self, world: World) -> Iterator[tuple[str, World]]:
        yield "time", self._later(world)
        if world.since:
            yield "tick", self._settled(self._append(world, (self.room.tick,)))
        yield from self._faults(world)
        suspect = world.processes[SUSPECT]
        if suspect.batch is not None and not suspect.batch.appended:
            yield "m1's facts are appended", self._batch_appended(world)
        if not self.room.is_over(suspect.session):
            yield from self._of_suspect(world, suspect)

    def _of_suspect(self, world: World, suspect: Process) -> Iterator[tuple[str, World]]:
        room, who, session = self.room, suspect.who, suspect.session
        if suspect.batch is None:
            after, facts = room.ask(who, session, "poll")
            if facts:
                yield "m1 sends", self._with(world, suspect._replace(session=after, batch=Batch(0, facts, False)))
        elif suspect.batch.appended:
            after, _ = room.ask(who, session, "acknowledged", suspect.batch.age)
            yield "m1's acknowledgement arrives", self._with(world, suspect._replace(session=after, batch=None))
            yield "m1's acknowledgement is lost", self._with(world, suspect._replace(batch=None))
        else:
            yield "m1's facts are lost", self._with(world, suspect._replace(batch=None))
        fetch = suspect.fetch
        if fetch is None:
            yield "m1 fetches", self._with(world, suspect._replace(fetch=Fetch(0, None, False)))
        elif fetch.served is None:
            for served in sorted({min(1, len(suspect.unread)), len(suspect.unread)}):
                reached_end = served == len(suspect.unread)
                name = "m1's fetch is served" if reached_end else "m1's fetch is served in part"
                yield name, self._with(world, suspect._replace(fetch=fetch._replace(served=served, reached_end=reached_end)))
        else:
            decisions = suspect.unread[: fetch.served]
            after, _ = room.ask(who, session, "fetched", decisions, fetch.age, fetch.reached_end)
            yield "m1's fetch arrives", self._with(world, suspect._replace(session=after, unread=suspect.unread[fetch.served :], fetch=None))
        if room.closing(session):
            after, _ = room.ask(who, session, "closed")
            yield "m1 closes", self._with(world, suspect._replace(session=after))

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        suspect = world.processes[SUSPECT]
        alive = not self.room.is_over(suspect.session)
        for fault in sorted(world.left):
            after = world._replace(left=world.left - {fault})
            if fault == "clock jumps":
                yield fault, after._replace(since=min(self.room.most_since, world.since + self.room.jump_steps))
            elif fault == "told otherwise":
                told = self.room.fact_id(self.room.configured(dict.fromkeys(TASKS, "m2")))
                yield fault, self._settled(self._append(after, (told,)))
            elif fault == "second process":
                yield fault, self._settled(self._joined(after, 2))
            elif fault == "crash" and alive:
                yield fault, self._with(after, suspect._replace(session=CRASHED, unread=(), fetch=None))
            elif fault == "restart" and suspect.session == CRASHED:
                yield fault, self._settled(self._joined(after, 3))
            elif fault in ("leaves", "stops") and alive:
                session, _ = self.room.ask(suspect.who, suspect.session, fault)
                yield fault, self._with(after, suspect._replace(session=session))

    # How it happens

    def _with(self, world: World, suspect: Process) -> World:
        """The suspect as it is now; of one that is over, only facts that may still be appended matter."""
        if self.room.is_over(suspect.session):
            batch = suspect.batch if suspect.batch is not None and not suspect.batch.appended else None
            suspect = Process(suspect.who, CRASHED, batch=batch and batch._replace(age=0))
        return world._replace(processes=(suspect, *world.processes[1:]))

    def _later(self, world: World) -> World:
        oldest = self.room.session_steps + 1
        processes = [
            process if process.session == CRASHED else process._replace(session=self.room.aged(process.who, process.session))
            for process in world.processes
        ]
        suspect = processes[SUSPECT]
        if suspect.batch is not None and suspect.session != CRASHED:
            suspect = suspect._replace(batch=suspect.batch._replace(age=min(oldest, suspect.batch.age + 1)))
        if suspect.fetch is not None:
            suspect = suspect._replace(fetch=suspect.fetch._replace(age=min(oldest, suspect.fetch.age + 1)))
        processes[SUSPECT] = suspect
        later = world._replace(since=min(self.room.most_since, world.since + 1), processes=tuple(processes))
        return self._with(self._perfect_leases(later), later.processes[SUSPECT])

    def _perfect_leases(self, world: World) -> World:
        """Whoever is not under suspicion has a fresh lease at every moment."""
        processes = list(world.processes)
        for index in range(1, len(processes)):
            process = processes[index]
            if process.session != CRASHED:
                session, _ = self.room.ask(process.who, process.session, "acknowledged", 0)
                session, _ = self.room.ask(process.who, session, "fetched", (), 0, True)
                processes[index] = process._replace(session=session)
        return world._replace(processes=tuple(processes))

    def _append(self, world: World, facts: tuple[int, ...]) -> World:
        """The facts are appended at once and folded; whom the decisions name may read them from now on."""
        for fact in facts:
            machine, named = self.room.fold(world.machine, world.since, fact)
            processes = tuple(
                process._replace(unread=self.room.to_read(process.unread, named[process.who])) if process.session != CRASHED else process
                for process in world.processes
            )
            world = world._replace(machine=machine, since=0, processes=processes)
        return world

    def _batch_appended(self, world: World) -> World:
        suspect = world.processes[SUSPECT]
        assert suspect.batch is not None
        after = self._append(world, suspect.batch.facts)
        suspect = after.processes[SUSPECT]
        return self._settled(self._with(after, suspect._replace(batch=suspect.batch._replace(appended=True))))  # type: ignore[union-attr]

    def _joined(self, world: World, who: int) -> World:
        session, joined = self.room.first_session(who)
        return self._append(world._replace(processes=(*world.processes, Process(who, session))), (joined,))

    def _settled(self, world: World, *, everyone: bool = False) -> World:
        """Whoever is not under suspicion reads, closes and reports, at the moment of the last append, until nobody has anything more to say."""
        rounds = 0
        while True:
            rounds += 1
            assert rounds < 50, "the perfect processes talk for ever"
            quiet = True
            for index in range(0 if everyone else 1, len(world.processes)):
                process = world.processes[index]
                if process.session == CRASHED:
                    continue
                session, facts = self.room.ask(process.who, process.session, "perfect", process.unread)
                quiet = quiet and not process.unread and rounds > 1
                processes = list(world.processes)
                processes[index] = process._replace(session=session, unread=())
                world = world._replace(processes=tuple(processes))
                since = world.since
                world = self._append(world._replace(since=0), facts)._replace(since=since)
                if self.room.is_over(session) and not world.processes[index].unread:
                    processes = list(world.processes)
                    processes[index] = Process(process.who, CRASHED)
                    world = world._replace(processes=tuple(processes))
            if quiet:
                return world


def _path(seen: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    path: list[str] = []
    step = seen[world]
    while step is not None:
        path.append(step[1])
        step = seen[step[0]]
    return tuple(reversed(path))
