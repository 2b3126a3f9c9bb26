"""The problem sorted, checked and indexed, so that no later step depends on the order of its input."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from operator import attrgetter

import attrs

from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Movement, MovementState, Task
from equipoise.assignors.common.racks import Places, Racks, Traffic
from equipoise.assignors.common.ranking import Copy, copies, whole
from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId


@attrs.frozen(eq=False)
class Pool:
    """Members that are eligible for the same tasks, in rising order. One object per set of members,
    compared by identity, which is cheap.
    """

    members: tuple[str, ...]
    as_set: frozenset[str]

    def __contains__(self, member: object) -> bool:
        return member in self.as_set

    def __bool__(self) -> bool:
        return bool(self.members)


def pool_of(members: Iterable[str]) -> Pool:
    """A new pool; `members` in rising order."""
    ids = tuple(members)
    return Pool(ids, frozenset(ids))


@attrs.frozen(eq=False)
class EquivalenceClass:
    """Tasks, in rising order, between which a target makes no difference but by name and size of
    state: no member owns them, has a copy, or owned them before.

    In a new group these are all tasks. What holds for `first` holds for all of them and is computed
    once.
    """

    first: Task
    tasks: list[TaskId]
    records: list[int]
    """Records of each task (`whole`); 0: it has no state."""


@attrs.frozen(kw_only=True)
class Behaviour:
    """How the behaviour versions of the assignors that share this code differ. Defaults: the
    newest.
    """

    slack_on_both_sides: bool = False
    """`balance_factor` - 1 is allowed below the fair share and above it, so members differ by up to
    twice as much.
    """
    leaving_within_caps: bool = False
    """Copies that take over from leaving members take the slots of `max_warmups`, like all others.
    """
    ties_by_name: bool = False
    """Partitions that are dealt beside others that stay: ties between members go by name alone."""
    standbys_rest_early: bool = False
    """A group is called settled although its standbys have just changed places, and the next search
    may find better ones.
    """
    equally_soon_within_lag: bool = False
    """Members that are ready within `acceptable_recovery_lag` of the first one count as equally
    soon, however long that takes to restore.
    """
    subtopologies_apart: bool = False
    """The target does not spread the tasks of each sub-topology."""
    subscriptions_apart: bool = False
    """`lag_aware` evens out total counts among members with equal subscriptions alone, and calls a
    deal optimal whatever the totals are.
    """
    bound_everywhere: bool = False
    """`load_balanced` names the bound of groups in which every task may run everywhere, for all."""
    reasons_unchecked: bool = False
    """Of a task that nobody ran the reason names who is soonest ready, or has room, whether or not
    that decided.
    """
    stateless_at_target: bool = False
    """Tasks without state go to their target at once, however much runs there until state has
    moved.
    """


MOST_COPIES = 2_000_000
"""Standbys of a group, about 30 s of work for a round that places all: the other groups of a
partition wait for it. Settings that ask for more get so many of each task as there are within this.
"""


def within_bounds(settings: GroupSettings, tasks: Mapping[TaskId, Task]) -> GroupSettings:
    """The settings with as many standbys of each task as MOST_COPIES allows, and at least one."""
    if settings.num_standbys * len(tasks) <= MOST_COPIES:
        return settings
    stateful = sum(task.stateful for task in tasks.values())
    most = max(1, MOST_COPIES // max(1, stateful))
    return settings if settings.num_standbys <= most else attrs.evolve(settings, num_standbys=most)


NEWEST = Behaviour()
VERSION_2 = Behaviour(
    ties_by_name=True,
    standbys_rest_early=True,
    equally_soon_within_lag=True,
    subtopologies_apart=True,
    subscriptions_apart=True,
    bound_everywhere=True,
    reasons_unchecked=True,
    stateless_at_target=True,
)
VERSION_1 = attrs.evolve(VERSION_2, slack_on_both_sides=True, leaving_within_caps=True)


class IndexedProblem:
    """Members, tasks, owners and copies of one problem. Raises FieldError when the problem
    contradicts itself.

    `owner`: task -> its owner; tasks without one are absent. `in_flight`: earlier movements that
    still hold: their destination lives, is eligible and does not own the task yet. `announced`: a
    copy is ready when its member declares it ready, whatever its lag.

    A member that crashes repeatedly (`MemberSpec.crash_looping`) is treated as leaving while
    another member stays: its share is 0, it gets nothing new, and its tasks move when another
    member is ready. It stays eligible for tasks that no other member may run; see `last_resort`.
    `crash_loops` False: it counts as any other.
    """

    def __init__(self, problem: AssignmentProblem, *, announced: bool = False, crash_loops: bool = True, behaviour: Behaviour = NEWEST) -> None:
        self.announced = announced
        self.now_ms = problem.now_ms
        self.behaviour = behaviour
        self.settings = within_bounds(problem.settings, problem.task_by_id)
        self._asked_standbys = problem.settings.num_standbys
        self.anew = problem.anew
        self.tasks = problem.task_by_id
        self.members: dict[str, MemberSpec] = {member.id: member for member in sorted(problem.members, key=attrgetter("id"))}
        self.owner = problem.owner
        self.owned_once = problem.owned_once
        _check(problem, self.tasks, self.members)
        self._crash_looping = [member for member in self.members.values() if crash_loops and member.crash_looping and not member.leaving]
        if len(self._crash_looping) < sum(not member.leaving for member in self.members.values()):
            self.members.update((member.id, attrs.evolve(member, leaving=True)) for member in self._crash_looping)
        else:
            self._crash_looping = []  # there is no other member
        self.racks = Racks(self.settings, self.tasks, self.members)
        self.blocked: dict[TaskId, list[str]] = {}
        """Task -> members on which no warm-up of the task may begin."""
        for task_id, member_id in sorted(problem.blocked):
            if task_id not in self.tasks or not self.tasks[task_id].stateful:
                continue
            self.blocked.setdefault(task_id, []).append(member_id)
        self.copies: Mapping[TaskId, Mapping[str, Copy]] = copies(self.tasks, self.members.values(), self.settings)
        self.stateful = list(self.copies)
        self.restore_rates = RestoreRates({name: member.restore_records_per_s for name, member in self.members.items()})
        self._of_subtopology, self._of_task = self._pools()
        self.pools = (*self._of_subtopology.values(), *self._of_task.values())
        """Pools of all sub-topologies, and of tasks whose pool differs from that of their
        sub-topology. A pool may occur more than once.
        """
        self._unblocked: dict[tuple[Pool, tuple[str, ...]], Pool] = {}
        self._previous_owners = self._index_previous_owners()
        self.in_flight: dict[TaskId, Movement] = {
            movement.task: movement
            for movement in sorted(problem.in_flight, key=lambda movement: movement.task)
            if movement.state is not MovementState.WAITING
            and movement.task in self.tasks
            and self.may_run(movement.destination, movement.task)
            and self.owner.get(movement.task) != movement.destination
        }

        self.unowned = [task for task in self.tasks if task not in self.owner] if len(self.owner) < len(self.tasks) else []
        self.class_of: dict[TaskId, EquivalenceClass] = {}
        self.equivalence_classes = self._equivalence_classes()
        self.others = [task for task in self.tasks if task not in self.class_of] if self.class_of else list(self.tasks)
        """Tasks that are in no equivalence class."""
        self.staying = self._staying()
        self.copied = self.staying.keys() & {task for task, held in self.copies.items() if len(held) > 1}
        """Those tasks of `staying` of which other members have copies."""
        self.settled = {task: owner for task, owner in self.staying.items() if task not in self.copied} if self.copied else self.staying
        """Those of which none has: only their owner has a reason to run them."""

    @property
    def lacks_standbys(self) -> bool:
        """Returns whether tasks get fewer standbys than was asked for and there are members for."""
        return self.settings.num_standbys < min(self._asked_standbys, len(self.members) - 1)

    @cached_property
    def places(self) -> Places:
        """Which members are apart."""
        return Places(self.settings, self.members.values())

    def _staying(self) -> dict[TaskId, str]:
        """Task -> owner, in rising order, of tasks that their owner may keep, no other member owned
        before, no movement is in flight and no warm-up is blocked.

        In a large group these are nearly all, and steps that treat each task alone treat them
        together. None where racks count, or where some members know only part of a sub-topology.
        """
        if self.racks.counts or self._of_task:
            return {}
        staying = dict(self.owner)
        displaced = [task.id for task in self.tasks.values() if task.displaced]
        for task in itertools.chain(self.in_flight, self.blocked, self._previous_owners, displaced):
            staying.pop(task, None)
        for member in self.members.values():
            for task in member.active if member.leaving or member.subtopologies is not None else ():
                staying.pop(task, None)
        return staying

    def _equivalence_classes(self) -> list[EquivalenceClass]:
        """Classes by sub-topology, eligible members, kind and traffic."""
        traffic = self.racks.active_traffic
        groups: dict[tuple[int, Pool, bool, bool, Traffic | None], EquivalenceClass] = {}
        for name in self.unowned:
            if not (self.copies.get(name) or name in self.in_flight or name in self.blocked or name in self._previous_owners):
                task = self.tasks[name]
                key = name[0], self.eligible(name), task.stateful, task.displaced, traffic.get(name)
                group = groups.get(key)
                if group is None:
                    group = groups[key] = EquivalenceClass(task, [], [])
                group.tasks.append(name)
                group.records.append(whole(task) if task.stateful else 0)
                self.class_of[name] = group
        return list(groups.values())

    def _pools(self) -> tuple[dict[int, Pool], dict[TaskId, Pool]]:
        """Sub-topology -> members that may run any of its tasks; task -> members that may run it,
        where they differ within the sub-topology.

        Equal pools are one object.
        """
        staying = [member for member in self.members.values() if not member.leaving]
        everyone = pool_of(member.id for member in staying)
        last = self._crash_looping
        shared: dict[tuple[str, ...], Pool] = {everyone.members: everyone}

        def pool(task: TaskId) -> Pool:
            ids = tuple([member.id for member in staying if member.knows(task)])
            ids = ids or tuple([member.id for member in last if member.knows(task)])
            return shared.setdefault(ids, shared.get(ids) or pool_of(ids))

        of_subtopology: dict[int, Pool] = {}
        of_task: dict[TaskId, Pool] = {}
        for subtopology, group in itertools.groupby(self.tasks, key=attrgetter("subtopology")):
            tasks = list(group)
            of_subtopology[subtopology] = found = pool(tasks[0])  # whoever knows a partition knows those before it
            ends = {member.subtopologies[subtopology] for member in (*staying, *last) if member.subtopologies and subtopology in member.subtopologies}
            within = sorted(end for end in ends if tasks[0].partition < end <= tasks[-1].partition)
            for task in tasks if within else ():
                if within and task.partition >= within[0]:
                    found = pool(task)
                    within = [end for end in within if end > task.partition]
                of_task[task] = found
        return of_subtopology, of_task

    def _index_previous_owners(self) -> dict[TaskId, list[str]]:
        previous_owners: dict[TaskId, list[str]] = {}
        for member in self.members.values():
            for task in sorted(member.previously_owned):
                if task in self.tasks:
                    previous_owners.setdefault(task, []).append(member.id)
        return previous_owners

    def changes(self, owner: Mapping[TaskId, str]) -> list[TaskId]:
        """Tasks whose owner in `owner` is not the present one, in rising order. Most tasks stay, so
        what a plan costs and lists is found from these.
        """
        if owner is self.owner:
            return []
        differs = map(operator.ne, map(owner.get, self.tasks), map(self.owner.get, self.tasks))
        return list(itertools.compress(self.tasks, differs))

    def owned(self) -> dict[str, tuple[TaskId, ...]]:
        """Member -> the tasks of the topology that it owns, in rising order, for every member."""
        if self.owned_once:
            return {name: member.active_in_order for name, member in self.members.items()}
        return {name: tuple([task for task in dict.fromkeys(member.active_in_order) if task in self.tasks]) for name, member in self.members.items()}

    def previous_owners(self, task: TaskId) -> Collection[str]:
        """Members that owned the task until they left or died, in rising order."""
        return self._previous_owners.get(task, ())

    def goes_back_to(self, member: str, task: TaskId) -> bool:
        """Returns whether the member owned the task before and has less than half of its state to
        restore.
        """
        if task not in self.members[member].previously_owned:
            return False
        return not self.tasks[task].stateful or self.caught_up(member, task) or 2 * self.records(member, task) < whole(self.tasks[task])

    def eligible(self, task: TaskId) -> Pool:
        """Members that may be given the task: live, not leaving, and their topology epoch has it.
        See docs/protocol.md#d1.
        """
        if self._of_task and task in self._of_task:
            return self._of_task[task]
        return self._of_subtopology[task.subtopology]

    def eligible_for_any(self, subtopology: int) -> Pool:
        """Members that may be given some task of the sub-topology."""
        return self._of_subtopology[subtopology]

    def last_resort(self, task: TaskId) -> Iterable[str]:
        """Crash-looping members that know a task for which others are eligible. They count while no
        other member is caught up.
        """
        for member in self._crash_looping:
            if member.knows(task) and not self.may_run(member.id, task):
                yield member.id

    def parting(self, member: str) -> str:
        """Reason code for moving the member's tasks elsewhere; "": they stay."""
        if any(each.id == member for each in self._crash_looping):
            return "crash_loop"
        leaving = self.members[member]
        return ("overdue" if leaving.drain_expired else "leaving") if leaving.leaving else ""

    def is_apart(self, task: TaskId) -> bool:
        """Returns whether the task's owner is leaving, so that a copy to take over is outside the
        caps.
        """
        return not self.behaviour.leaving_within_caps and task in self.owner and self.parting(self.owner[task]) in ("leaving", "overdue")

    def previous_owner_crash_loops(self, task: TaskId) -> bool:
        """Returns whether a previous owner is back and crashes repeatedly."""
        return any(each.id in self.previous_owners(task) for each in self._crash_looping)

    def may_run(self, member: str, task: TaskId) -> bool:
        return member in self.eligible(task)

    def unblocked(self, task: TaskId) -> Pool:
        """Eligible members on which a warm-up of the task may begin. Tasks with the same members
        share one pool.
        """
        pool = self.eligible(task)
        if task not in self.blocked:
            return pool
        blocked = tuple(self.blocked[task])
        if (pool, blocked) not in self._unblocked:
            self._unblocked[pool, blocked] = pool_of(member for member in pool.members if member not in blocked)
        return self._unblocked[pool, blocked]

    def is_blocked(self, task: TaskId, member: str) -> bool:
        return member in self.blocked.get(task, ())

    def is_ready(self, member: str, task: TaskId) -> bool:
        """Returns whether the member could take the task over at once: it is caught up, or the task
        has no state.
        """
        if not self.tasks[task].stateful:
            return True
        return self.caught_up(member, task) and (not self.announced or task in self.members[member].ready)

    def caught_up(self, member: str, task: TaskId) -> bool:
        """Returns whether the member's copy has rank 0."""
        copy = self.copies[task].get(member)
        return copy is not None and copy.caught_up

    def within_records(self, member: str, task: TaskId) -> bool:
        """Returns whether the copy counts as caught up by its lag or because it was declared ready,
        and not by acceptable_recovery_ms alone.
        """
        of = self.members[member]
        limit = self.settings.acceptable_recovery_lag if of.ready_lag_records is None else of.ready_lag_records
        return (of.readiness == "word_or_lag" and task in of.ready) or self.records(member, task) <= limit

    def records(self, member: str, task: TaskId) -> int:
        """Records the member has to restore before it can run the task; 0 for a stateless one."""
        if not self.tasks[task].stateful:
            return 0
        copy = self.copies[task].get(member)
        return whole(self.tasks[task]) if copy is None else copy.records

    def restore_time(self, member: str, task: TaskId) -> int:
        """Restore time of the member's copy (see `restore_rate`); 0: it could run the task at once."""
        return 0 if self.is_ready(member, task) else self.restore_rates.restore_time(member, self.records(member, task))

    def lag(self, member: str, task: TaskId) -> int | None:
        """`records` for a `Reason`; None: the task has no state."""
        return self.records(member, task) if self.tasks[task].stateful else None

    def stateful_of(self, owner: Mapping[TaskId, str]) -> Counter[str]:
        """Member -> number of its stateful tasks, given the owners."""
        if len(self.stateful) == len(self.tasks):
            return Counter(owner.values())
        return Counter([member for task, member in owner.items() if self.tasks[task].stateful])

    def stateless_of(self, owner: Mapping[TaskId, str]) -> Counter[str]:
        """Member -> number of its stateless tasks, given the owners."""
        if len(self.stateful) == len(self.tasks):
            return Counter()
        return Counter([member for task, member in owner.items() if not self.tasks[task].stateful])

    def must_move(self, task: TaskId) -> bool:
        """Returns whether the owner may not keep the task while another member may run it. An owner
        of an older topology epoch keeps a task that nobody else can run; a leaving one does not.
        """
        owner = self.owner.get(task)
        return owner is not None and not self.may_run(owner, task) and bool(self.eligible(task))


def _check(problem: AssignmentProblem, tasks: Mapping[TaskId, Task], members: Mapping[str, MemberSpec]) -> None:
    """Raises FieldError when the problem contradicts itself."""
    if len(tasks) != len(problem.tasks):
        raise FieldError("tasks", f"{_first_repeat(str(task.id) for task in problem.tasks)} is named twice; name each task once")
    if len(members) != len(problem.members):
        raise FieldError("members", f"{_first_repeat(member.id for member in problem.members)} is named twice; name each member once")
    for member in members.values():
        if member.capacity < 1:
            raise FieldError(f"members[{member.id}].capacity", f"{member.capacity} is not a whole number >= 1")
    if not problem.owned_once:
        _check_owners(members)
    owner = problem.owner
    lost = [(task.id, task.lost_since_ms) for task in tasks.values() if task.lost_since_ms is not None]
    for task, since_ms in lost:
        if task in owner:
            raise FieldError(f"tasks[{task}].lost_since_ms", f"{owner[task]} runs the task; leave the field out for a task that has an owner")
        if since_ms > problem.now_ms:
            raise FieldError(f"tasks[{task}].lost_since_ms", f"{since_ms} is after now_ms, {problem.now_ms}; give both by one clock")
    repeated = _first_repeat(str(movement.task) for movement in problem.in_flight)
    if repeated:
        raise FieldError("in_flight", f"{repeated} has two movements; one at most")


def _check_owners(members: Mapping[str, MemberSpec]) -> None:
    """Raises FieldError when two members own a task."""
    owner: dict[TaskId, str] = {}
    for member in members.values():
        for task in member.active:
            other = owner.setdefault(task, member.id)
            if other != member.id:
                raise FieldError(f"members[{member.id}].active", f"{task} is active on {other} too; one owner at most")


def _first_repeat(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
