"""Racks: where members are, and what it costs to run a task or to keep a copy of it there (KIP-925,
KIP-708).

A partition is *remote* for a member when none of its replicas is in the member's rack; it then
costs its weight x `rack_traffic_cost`. Running a task costs its source partitions, and its
changelogs when `rack_changelog_cost` says so; keeping a copy costs its changelogs. A stateless task
costs 1 for each remote partition and moves for nothing, as in Kafka.

What is not known degrades and disables nothing: a partition whose racks are not known costs the
same everywhere, that is nothing; a member whose rack is not known is taken to be remote from every
partition, so it gets what has no better place.

When no choice of member makes a difference, traffic is not counted at all, and plans are those of
the strategy `none`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import attrs

from equipoise.assignors.common.problem import Member, Partition, Task
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

RACK_TAG = "rack"
"""The client tag that names a member's rack; where `rack_aware_tags` lists it, it wins over the
member's `rack` (KIP-925, 4.D).
"""
STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


def rack_of(member: Member, settings: GroupSettings) -> str | None:
    """The member's rack, None: not known."""
    if RACK_TAG in settings.rack_aware_tags and RACK_TAG in member.tags:
        return member.tags[RACK_TAG]
    return member.rack


@attrs.frozen(eq=False)
class Traffic:
    """What one task costs, by rack: `near` names the racks where it costs less than `far`, which it
    costs everywhere else.

    One is another's equal only if it is the same object, so that it is cheap to look up by: `Racks`
    keeps one for all tasks that cost the same.
    """

    far: int
    near: Mapping[str, int]

    def at(self, rack: str | None) -> int:
        return self.far if rack is None else self.near.get(rack, self.far)

    @property
    def least(self) -> int:
        return min(self.near.values(), default=self.far)


NO_TRAFFIC = Traffic(0, {})

_Priced = tuple[tuple[Partition, ...], int]
"""Partitions, and what one of weight 1 costs where it is remote."""
_Remote = tuple[tuple[tuple[str, ...], int], ...]
"""Of each partition whose racks are known: these, and what it costs elsewhere."""


def _run_by(task: Task, settings: GroupSettings) -> tuple[_Priced, ...]:
    """What running the task makes its member read and write."""
    if not task.stateful:
        return ((task.source, STATELESS_TRAFFIC_COST),)
    if settings.rack_changelog_cost == 0:
        return ((task.source, settings.rack_traffic_cost),)
    return (task.source, settings.rack_traffic_cost), (task.changelog, settings.rack_changelog_cost)


def _remote_costs(priced: Iterable[_Priced]) -> _Remote:
    return tuple([(part.racks, cost * part.weight) for partitions, cost in priced for part in partitions if part.racks])


def _traffic(remote: _Remote, racks: Container[str | None]) -> Traffic:
    """By those of `racks` where any of it is near."""
    far = sum(cost for _, cost in remote)
    saved: dict[str, int] = {}
    for near, cost in remote:
        for rack in dict.fromkeys(near):
            if cost and rack in racks:
                saved[rack] = saved.get(rack, 0) + cost
    return Traffic(far, {rack: far - saved[rack] for rack in sorted(saved)})


def traffic_cost(task: Task, member: Member, settings: GroupSettings) -> int | None:
    """What it costs that the member runs the task; None: its rack or those of all its partitions
    are not known.
    """
    rack, remote = rack_of(member, settings), _remote_costs(_run_by(task, settings))
    return None if rack is None or not remote else _traffic(remote, (rack,)).at(rack)


class Racks:
    """Where the members are, and what that costs.

    `counts`: traffic makes a difference for who runs what; `copies_count`: for who keeps copies.
    `spreads`: sub-topologies are to be spread.
    """

    def __init__(self, settings: GroupSettings, tasks: Mapping[TaskId, Task], members: Mapping[str, Member]) -> None:
        self.settings = settings
        self.of = {member.id: rack_of(member, settings) for member in members.values()}
        self._tasks = tasks
        self._here = frozenset(self.of[member.id] for member in members.values() if not member.leaving)
        self._profiles: dict[_Remote, Traffic] = {}
        self.active_traffic: dict[TaskId, Traffic] = {}
        """Task -> what it costs to run it; empty when traffic does not count."""
        if settings.rack_aware_strategy != "none":
            self.active_traffic = self._differing({task.id: self._profile(*_run_by(task, settings)) for task in tasks.values()})
        self._standby: dict[TaskId, Traffic] = {}
        if settings.rack_aware_strategy != "none" and settings.num_standbys:
            copied = [task for task in tasks.values() if task.stateful]
            self._standby = self._differing({task.id: self._profile((task.changelog, settings.rack_traffic_cost)) for task in copied})
        self.counts = bool(self.active_traffic)
        self.copies_count = bool(self._standby)
        self.spreads = self.counts and settings.rack_aware_strategy == "balanced_min_cost"

    def _profile(self, *priced: _Priced) -> Traffic:
        """One `Traffic` for all tasks whose partitions have the same racks and weights: most of a
        group share a few.
        """
        key = _remote_costs(priced)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = _traffic(key, self._here)
        return found

    def _differing(self, traffic: dict[TaskId, Traffic]) -> dict[TaskId, Traffic]:
        """The same, or nothing if no task costs more in one rack than in another."""
        differs = any(len({each.at(rack) for rack in self._here}) > 1 for each in self._profiles.values())
        self._profiles = {}
        return traffic if differs else {}

    def active(self, task: TaskId) -> Traffic:
        """What it costs to run the task; nothing when traffic does not count."""
        return self.active_traffic.get(task, NO_TRAFFIC)

    def standby(self, task: TaskId) -> Traffic:
        """What it costs to keep a copy of the task; nothing when that makes no difference."""
        return self._standby.get(task, NO_TRAFFIC)

    def cost(self, task: TaskId, member: str) -> int:
        """What it costs that the member runs the task."""
        return self.active(task).at(self.of[member])

    def move_cost(self, task: TaskId) -> int:
        """What a change of its owner costs, in the same coin; 0 when traffic does not count."""
        if not self.counts:
            return 0
        return self.settings.rack_non_overlap_cost if self._tasks[task].stateful else STATELESS_NON_OVERLAP_COST

    def total(self, owner: Mapping[TaskId, str]) -> int:
        """Cost of these owners, without what the changes that lead there cost."""
        return sum(traffic.at(self.of[owner[task]]) for task, traffic in self.active_traffic.items() if task in owner)

    def least(self) -> int:
        """A lower bound of `total`: every task where it costs least, whatever that does to the
        balance.
        """
        return sum(traffic.least for traffic in self.active_traffic.values())

    def least_of_copies(self, wanted: Mapping[TaskId, int]) -> int:
        """A lower bound of what so many copies of each task cost, wherever the tasks run."""
        return sum(traffic.least * wanted.get(task, 0) for task, traffic in self._standby.items())


Values = tuple[str | None, ...]
"""Where a member is, by each key that counts; None: not known."""


class Places:
    """Which members are apart: in different racks, or, where `rack_aware_tags` are given, different
    by these (KIP-708).

    Members with the same rack and the same tags are in one place. `matter`: there are members that
    are apart.
    """

    def __init__(self, settings: GroupSettings, members: Iterable[Member]) -> None:
        self.of: dict[str, str] = {}
        """Member -> its place, by a name that is short and says nothing."""
        self.values: dict[str, Values] = {}
        """Place -> where it is."""
        self.rack: dict[str, str | None] = {}
        names: dict[tuple[str | None, Values], str] = {}
        known: list[tuple[Member, str | None, Values]] = []
        for member in members:
            rack = rack_of(member, settings)
            if settings.rack_aware_tags:
                values: Values = tuple(member.tags.get(key) for key in settings.rack_aware_tags)
            else:
                values = (rack,) if settings.rack_aware_strategy != "none" else ()
            known.append((member, rack, values))
        for rack, values in sorted({(rack, values) for _, rack, values in known}, key=_known_first):
            name = names[rack, values] = f"{len(names):05}"
            self.values[name], self.rack[name] = values, rack
        self.of = {member.id: names[rack, values] for member, rack, values in known}
        staying = {values for member, _, values in known if not member.leaving}
        self.matter = any(len({values[index] for values in staying}) > 1 for index in range(len(next(iter(staying), ()))))

    def common_values(self, place: str, copies: Iterable[str]) -> int:
        """What a copy here has in common with the other copies of its task, by their places: 1 for
        each of them and each key that is the same.

        A place that is not known is taken to be the same, for nobody can say that it is not.
        """
        here = self.values[place]
        common = 0
        for other in copies:
            for one, another in zip(here, self.values[other], strict=True):
                common += one is None or one == another
        return common


def _known_first(item: tuple[str | None, Values]) -> tuple[tuple[bool, str], ...]:
    rack, values = item
    return tuple((value is None, value or "") for value in (rack, *values))
