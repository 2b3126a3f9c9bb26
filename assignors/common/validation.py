"""Checks that a plan keeps its promises, from problem and plan alone, so it works for any assignor.

Invariants 1, 3 and 6 bind every plan; 2, 4 and 5 bind assignors that declare them (`Guarantee`).
Time and memory are linear in the size of problem and plan. Most members of a large group keep what
they own, which breaks nothing; they are told apart first, and the rest is checked task by task.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.plan import MemberPlan, Plan
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Movement, MovementState
from equipoise.assignors.common.ranking import acceptable_lag, is_ready
from equipoise.events.tasks import LagSentinel, TaskId, tasks_text


def plan_faults(problem: AssignmentProblem, plan: Plan, guarantees: Set[Guarantee]) -> list[str]:
    """The faults of the plan, one line each, naming members and tasks; empty: it holds."""
    judge = _PlanChecker(problem, plan, apart=Guarantee.LEAVING_APART in guarantees)
    faults = list(judge.form())
    if faults:
        return faults  # the rest reads members and tasks by name
    faults.extend(judge.ownership())
    faults.extend(judge.copies())
    faults.extend(judge.leaving())
    faults.extend(judge.movements())
    faults.extend(judge.lost())
    if Guarantee.ALWAYS_OWNED in guarantees:
        faults.extend(judge.always_owned())
    if Guarantee.CAUGHT_UP_FIRST in guarantees:
        faults.extend(judge.caught_up_first())
    if Guarantee.COPIES_CAPPED in guarantees:
        faults.extend(judge.copies_capped())
    return faults


class _PlanChecker:
    def __init__(self, problem: AssignmentProblem, plan: Plan, *, apart: bool) -> None:
        self.problem = problem
        self._apart = apart
        self.plan = plan
        self.tasks = problem.task_by_id
        self.members: dict[str, MemberSpec] = {member.id: member for member in problem.members}
        self.owner = problem.owner
        self.kept: Set[TaskId] = frozenset()
        """Tasks of members that keep exactly what they own, now and at the target."""
        self.changing: dict[str, MemberPlan] = dict(plan.members)
        """The plans of all other members."""
        if problem.owned_once:
            keeping = {name: part.active for name, part in plan.members.items() if self._keeps(name, part)}
            self.kept = frozenset(itertools.chain.from_iterable(keeping.values()))
            self.changing = {name: part for name, part in plan.members.items() if name not in keeping}
        self.open = self.tasks.keys() - self.kept
        self.target = {task: name for name in self.changing for task in plan.target.get(name, ())}
        """Task that is not kept -> its owner in the end."""
        self.now = {task: name for name, part in self.changing.items() for task in (*part.active, *filter(self.tasks.__contains__, part.revoke))}
        """Task that is not kept -> member that runs it until it has revoked what it must."""
        self.revoked = {task for part in self.changing.values() for task in part.revoke}
        self.handing_over = {movement.task: movement.destination for movement in problem.in_flight if movement.state is MovementState.REVOKING}
        self.begun = {(movement.task, movement.destination) for movement in problem.in_flight}
        self._acceptable: dict[str, int] = {}
        staying = [member for member in problem.members if not member.leaving]
        self._all_is_known = any(member.subtopologies is None for member in staying)
        self._known: dict[int, int] = {}
        """Sub-topology -> of its partitions, how many are known to some member that is not leaving;
        unless one knows all.
        """
        for member in staying:
            for subtopology, partitions in (member.subtopologies or {}).items():
                self._known[subtopology] = max(partitions, self._known.get(subtopology, 0))

    def _keeps(self, name: str, part: MemberPlan) -> bool:
        """Returns whether the member keeps what it owns and may go on to."""
        member = self.members.get(name)
        if member is None or member.leaving or member.subtopologies is not None or part.revoke:
            return False
        return part.active == member.active == self.plan.target.get(name) and _rises(part.active)

    def has_eligible(self, task: TaskId) -> bool:
        """Returns whether some member may be given the task."""
        return self._all_is_known or task.partition < self._known.get(task.subtopology, 0)

    def not_to_be_given(self, name: str, tasks: Collection[TaskId]) -> Collection[TaskId]:
        """Those of the tasks that the member must not get, because it is leaving or does not know
        them.
        """
        member = self.members[name]
        if member.leaving:
            return tasks
        return () if member.subtopologies is None else [task for task in tasks if not member.knows(task)]

    def is_caught_up(self, member: MemberSpec, task: TaskId) -> bool:
        lag = member.lags.get(task)
        if lag is LagSentinel.ACTIVE and self.owner.get(task) == member.id:
            return True
        acceptable = self._acceptable.get(member.id)
        if acceptable is None:
            acceptable = self._acceptable[member.id] = acceptable_lag(self.tasks, member, self.problem.settings)
        return is_ready(lag, word=task in member.ready, readiness=member.readiness, acceptable=acceptable)

    def caught_up(self, tasks: Set[TaskId]) -> dict[TaskId, list[str]]:
        """Those of the tasks on which some member is caught up that may be given them -> these
        members.
        """
        found: dict[TaskId, list[str]] = {}
        for member in self.problem.members if tasks else ():
            if not member.leaving:
                for task in sorted(tasks & (member.lags.keys() | member.ready if member.ready else member.lags.keys())):
                    if self.is_caught_up(member, task) and member.knows(task):
                        found.setdefault(task, []).append(member.id)
        return found

    def form(self) -> Iterator[str]:
        """Every member is named, every list is in rising order and names known tasks."""
        for what, named in (("members", list(self.plan.members)), ("target", list(self.plan.target))):
            if named != sorted(self.members):
                yield f"{what}: does not name every live member once, in rising order"
        for name, part in self.plan.members.items():
            target = self.plan.target.get(name, ())
            if name not in self.changing and not (part.standby or part.warmup):
                continue
            lists = {"active": part.active, "standby": part.standby, "warmup": part.warmup, "revoke": part.revoke, "target": target}
            for what, tasks in lists.items():
                in_order = sorted(tasks) if what == "active" else tasks
                if not _rises(in_order):
                    yield f"{name}.{what}: not {'' if what == 'active' else 'in rising order, '}each task once"
                if what != "revoke" and not self._names_tasks(tasks):
                    yield f"{name}.{what}: there is no task {tasks_text(task for task in tasks if task not in self.tasks)}"
        for movement in self.plan.movements:
            for end in (movement.source, movement.destination):
                if end is not None and end not in self.members:
                    yield f"movement of {movement.task}: there is no member {end}"
            if movement.task not in self.tasks:
                yield f"movement of {movement.task}: there is no such task"
            elif movement.task not in self.plan.reasons:
                yield f"movement of {movement.task}: no reason is given"

    def _names_tasks(self, tasks: Iterable[TaskId]) -> bool:
        """Returns whether there are all these tasks."""
        return all(map(self.tasks.__contains__, tasks))

    def ownership(self) -> Iterator[str]:
        """1: a task is active only where it is free or owned and kept; what is not kept is revoked."""
        for task, names in self._in_several({name: part.active for name, part in self.plan.members.items()}):
            for name in names[1:]:
                yield f"{task} is active on {names[0]} and {name}"
        for name, part in self.changing.items():
            owned = frozenset(self.members[name].active)
            for task in filter(self.owner.__contains__, part.active):
                if self.owner[task] != name:
                    yield f"{task} is active on {name} before {self.owner[task]} has given it up"
            for task in self.not_to_be_given(name, list(itertools.filterfalse(owned.__contains__, part.active))):
                yield f"{task} is granted to {name}, which is leaving or does not know it"
            others = [task for task in part.revoke if self.owner.get(task, name) != name and task not in (self.members[name].reported or ())]
            yield from _named(f"{name} is to revoke what it does not own", others)
            yield from _named(f"{name} is to keep and to revoke", frozenset(part.active).intersection(part.revoke))
            yield from _named(f"{name} neither keeps nor revokes", owned.difference(part.active, part.revoke))
        for task, names in self._in_several(self.plan.target):
            for name in names[1:]:
                yield f"{task} has two targets, {names[0]} and {name}"
        for name in self.changing:
            for task in self.not_to_be_given(name, self.plan.target[name]):
                if self.owner.get(task) != name or self.has_eligible(task):
                    yield f"the target of {task} is {name}, which is leaving or does not know it"

    def _in_several(self, lists: Mapping[str, Collection[TaskId]]) -> list[tuple[TaskId, list[str]]]:
        """Tasks that are in more than one of the lists, in rising order, with the names of these
        lists. `lists`: those of all members; no list has a task twice.
        """
        changing = list(itertools.chain.from_iterable(lists[name] for name in self.changing))
        if len(frozenset(changing)) == len(changing) and self.kept.isdisjoint(changing):
            return []
        times = Counter(itertools.chain.from_iterable(lists.values()))
        return [(task, [name for name, of in lists.items() if task in of]) for task in sorted(times) if times[task] > 1]

    def copies(self) -> Iterator[str]:
        """Invariant 3: no copy beside the active task, none of stateless tasks, none twice."""
        for name, part in self.plan.members.items():
            if not (part.standby or part.warmup):
                continue
            runs = frozenset((*part.active, *part.revoke))
            for what, tasks in (("standby", part.standby), ("warm-up", part.warmup)):
                yield from _named(f"{name} runs and is to keep a {what} of", runs.intersection(tasks))
                yield from _named(f"{name} is to keep a {what} without state:", [task for task in tasks if not self.tasks[task].stateful])
            yield from _named(f"{name} is to keep as standby and as warm-up", frozenset(part.warmup).intersection(part.standby))

    def leaving(self) -> Iterator[str]:
        """Invariant 6: a leaving member gets nothing new, and no member gets copies of tasks that
        its topology does not have.
        """
        for name, part in self.plan.members.items():
            if not (part.standby or part.warmup):
                continue
            member = self.members[name]
            unfit = frozenset(self.not_to_be_given(name, (*part.standby, *part.warmup)))
            yield from _named(f"{name} is leaving or does not know what it is to copy:", unfit.difference(member.standby, member.warmup))

    def movements(self) -> Iterator[str]:
        """Movements are the difference between now and the target, and the lists of members match
        their states.
        """
        wanted = {task for task, name in self.now.items() if self.target.get(task, name) != name}
        given_back = {movement.task for movement in self.plan.movements if self._is_taken_again(movement)}
        named = [movement.task for movement in self.plan.movements]
        if len(named) != len(frozenset(named)):
            yield "a task has two movements"
        yield from _named("no movement brings to its target", wanted.difference(named))
        yield from _named("a movement is not wanted by the target:", frozenset(named).difference(wanted, given_back))
        for movement in self.plan.movements:
            yield from self._movement(movement)
        if self.plan.cost.moves != len(wanted):
            yield f"cost.moves is {self.plan.cost.moves}; the target changes {len(wanted)} owners"
        if self.plan.cost.moves < self.plan.cost.moves_lower_bound:
            yield f"cost.moves is {self.plan.cost.moves}, below its own lower bound {self.plan.cost.moves_lower_bound}"

    def _movement(self, movement: Movement) -> Iterator[str]:
        task, name = movement.task, f"movement of {movement.task}"
        revoked = task in self.revoked
        kept_by = self.owner[task] if task in self.kept else None
        if movement.source != self.now.get(task, kept_by):
            yield f"{name}: {movement.source} does not run it"
        if movement.destination != self.target.get(task, kept_by) and not self._is_taken_again(movement):
            yield f"{name}: to {movement.destination}, the target is {self.target.get(task, kept_by)}"
        if revoked != (movement.state is MovementState.REVOKING):
            yield f"{name}: {movement.state.value}, but its source is {'' if revoked else 'not '}asked to revoke it"
        part = self.plan.members[movement.destination]
        if movement.state is MovementState.WARMING and task not in part.warmup and task not in part.standby:
            yield f"{name}: warming, but {movement.destination} is not assigned a copy"
        if (
            movement.state is MovementState.WARMING
            and (task, movement.destination) in self.problem.blocked
            and task in part.warmup
            and task not in self.members[movement.destination].warmup
            and (task, movement.destination) not in self.begun
        ):
            yield f"{name}: begins on {movement.destination} during its back-off"

    def lost(self) -> Iterator[str]:
        """Only lost tasks without an owner may wait, with a reason and an end."""
        active = frozenset(itertools.chain.from_iterable(part.active for part in self.plan.members.values())) if self.plan.lost_until_ms else ()
        for task, until_ms in self.plan.lost_until_ms.items():
            if task not in self.tasks or self.tasks[task].lost_since_ms is None:
                yield f"{task} is left without an owner until {until_ms}, but it was not lost"
            elif task in active or task in self.owner:
                yield f"{task} is left without an owner until {until_ms}, but a member runs it"
            elif until_ms <= self.problem.now_ms:
                yield f"{task} is left without an owner until {until_ms}, and it is {self.problem.now_ms} already"
            elif task not in self.plan.reasons:
                yield f"{task} is left without an owner and without a reason"

    def _is_taken_again(self, movement: Movement) -> bool:
        """Returns whether the owner gives the task up and takes it again while a learner restores
        it (`learner`, option strict); the target is the learner.
        """
        reason = self.plan.reasons.get(movement.task)
        is_learned = reason is not None and reason.code == "being_learned"
        return movement.source == movement.destination and movement.state is MovementState.REVOKING and is_learned

    def always_owned(self) -> Iterator[str]:
        """Invariant 2: every task with an eligible member has a target, and a member runs it now or
        has been asked to give it up.

        Exception: a lost task that waits until a stated time.
        """
        moved = {movement.task for movement in self.plan.movements}
        yield from _named("no target for", filter(self._is_due, itertools.filterfalse(self.target.__contains__, self.open)))
        yield from _named("no member runs", filter(self._is_due, itertools.filterfalse(self.now.__contains__, self.open)))
        gone = {task for task in self.revoked if task in self.tasks and self.has_eligible(task)}
        yield from _named("revoked although nothing is to move:", gone.difference(moved))

    def _is_due(self, task: TaskId) -> bool:
        """Returns whether some member must run the task."""
        return self.has_eligible(task) and task not in self.plan.lost_until_ms

    def caught_up_first(self) -> Iterator[str]:
        """Invariant 4: a stateful task is granted to, or revoked for, a caught-up member if there
        is one. Earlier decisions hold.
        """
        granted = {task for task in self.open if task not in self.owner and self.tasks[task].stateful}
        revoking = [movement for movement in self.plan.movements if movement.state is MovementState.REVOKING and self.tasks[movement.task].stateful]
        caught_up = self.caught_up(granted.union(movement.task for movement in revoking))
        granted.intersection_update(caught_up)
        for name, part in self.changing.items():
            for task in part.active:
                if task in granted:
                    yield from self._colder(task, name, "granted to", caught_up)
        for movement in revoking:
            yield from self._colder(movement.task, movement.destination, "revoked for", caught_up)
            source = self.members[movement.source or movement.destination]
            decided = self.handing_over.get(movement.task) == movement.destination
            overdue = source.leaving and source.drain_expired
            if not decided and not overdue and not self.is_caught_up(self.members[movement.destination], movement.task):
                yield f"{movement.task} is revoked from {source.id} before {movement.destination} is caught up"

    def _colder(self, task: TaskId, name: str, what: str, caught_up: Mapping[TaskId, list[str]]) -> Iterator[str]:
        better = caught_up.get(task, [])
        if better and name not in better and self.handing_over.get(task) != name:
            yield f"{task} is {what} {name}, which is not caught up; {', '.join(better)} is"

    def copies_capped(self) -> Iterator[str]:
        """Invariant 5: warm-ups within the caps of group and member, standbys within num_standbys.

        Above a lowered cap a number may only fall. With LEAVING_APART, tasks of leaving owners do
        not count.
        """
        settings = self.problem.settings
        counted = {name: [task for task in part.warmup if not self._is_apart(task)] for name, part in self.plan.members.items() if part.warmup}
        warmups = sum(map(len, counted.values()))
        before = sum(len(member.warmup) for member in self.members.values())
        if warmups > max(settings.max_warmups, before):
            yield f"{warmups} warm-ups, the group may have {settings.max_warmups}"
        for name, copies in counted.items():
            if len(copies) > max(settings.max_warmups_per_member, len(self.members[name].warmup)):
                yield f"{name} has {len(copies)} warm-ups, a member may have {settings.max_warmups_per_member}"
        standbys = Counter(itertools.chain.from_iterable(part.standby for part in self.plan.members.values()))
        most = settings.num_standbys
        yield from _named(f"more than {most} standbys of", [task for task, copies in standbys.items() if copies > most])

    def _is_apart(self, task: TaskId) -> bool:
        return self._apart and task in self.owner and self.members[self.owner[task]].leaving


def _named(what: str, tasks: Iterable[TaskId]) -> Iterator[str]:
    found = sorted(tasks)
    if found:
        yield f"{what} {tasks_text(found)}"


def _rises(tasks: Sequence[TaskId]) -> bool:
    """Returns whether the tasks are in rising order, each once."""
    return all(map(operator.lt, tasks, itertools.islice(tasks, 1, None)))
