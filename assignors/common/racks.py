"""Racks of members, and the traffic cost of running a task or keeping a copy there (KIP-925,
KIP-708).

A partition is *remote* for a member when none of its replicas is in the member's rack; it then
costs its weight x `rack_traffic_cost`. Running a task costs its source partitions, and its
changelogs with `rack_changelog_cost`; keeping a copy costs its changelogs. A stateless task costs 1
for each remote partition, and its moves are free, as in Kafka.

Unknown racks disable nothing: a partition of unknown racks costs 0 everywhere, and a member of
unknown rack is remote from every partition, so it gets the tasks that have no better place.

When all members cost the same, traffic is not counted, and plans are those of the strategy `none`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import attrs

from equipoise.assignors.common.problem import MemberSpec, Partition, Task
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

RACK_TAG = "rack"
"""The client tag that names a member's rack. Where `rack_aware_tags` lists it, it takes precedence
over the member's `rack` (KIP-925, 4.D).
"""
STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


def rack_of(member: MemberSpec, settings: GroupSettings) -> str | None:
    """The member's rack; None: not known."""
    if RACK_TAG in settings.rack_aware_tags and RACK_TAG in member.tags:
        return member.tags[RACK_TAG]
    return member.rack


@attrs.frozen(eq=False)
class Traffic:
    """Cost of one task by rack. `near`: rack -> cost, where it is less than `far`, the cost
    everywhere else.

    Compared by identity, so that it is a cheap key: `Racks` keeps one object for all tasks of equal
    cost.
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
"""Partitions, and the cost of one of weight 1 where it is remote."""
_Remote = tuple[tuple[tuple[str, ...], int], ...]
"""Racks of each partition where they are known, and its cost elsewhere."""


def _run_by(task: Task, settings: GroupSettings) -> tuple[_Priced, ...]:
    """The partitions that running the task reads and writes, with their cost."""
    if not task.stateful:
        return ((task.source, STATELESS_TRAFFIC_COST),)
    if settings.rack_changelog_cost == 0:
        return ((task.source, settings.rack_traffic_cost),)
    return (task.source, settings.rack_traffic_cost), (task.changelog, settings.rack_changelog_cost)


def _remote_costs(priced: Iterable[_Priced]) -> _Remote:
    return tuple([(part.racks, cost * part.weight) for partitions, cost in priced for part in partitions if part.racks])


def _traffic(remote: _Remote, racks: Container[str | None]) -> Traffic:
    """Traffic by those of `racks` that hold a replica."""
    far = sum(cost for _, cost in remote)
    saved: dict[str, int] = {}
    for near, cost in remote:
        for rack in dict.fromkeys(near):
            if cost and rack in racks:
                saved[rack] = saved.get(rack, 0) + cost
    return Traffic(far, {rack: far - saved[rack] for rack in sorted(saved)})


def traffic_cost(task: Task, member: MemberSpec, settings: GroupSettings) -> int | None:
    """Traffic cost of the task on the member; None: the member's rack, or the racks of all
    partitions, are not known.
    """
    rack, remote = rack_of(member, settings), _remote_costs(_run_by(task, settings))
    return None if rack is None or not remote else _traffic(remote, (rack,)).at(rack)


class Racks:
    """Racks of the members, and the costs of tasks there.

    `counts`: traffic makes a difference for owners; `copies_count`: for standbys. `spreads`:
    sub-topologies are to be spread.
    """

    def __init__(self, settings: GroupSettings, tasks: Mapping[TaskId, Task], members: Mapping[str, MemberSpec]) -> None:
        self.settings = settings
        self.of = {member.id: rack_of(member, settings) for member in members.values()}
        self._tasks = tasks
        self._here = frozenset(self.of[member.id] for member in members.values() if not member.leaving)
        self._profiles: dict[_Remote, Traffic] = {}
        self.active_traffic: dict[TaskId, Traffic] = {}
        """Task -> cost of running it; empty when traffic does not count."""
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
        """The `Traffic` of all tasks whose partitions have these racks and weights."""
        key = _remote_costs(priced)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = _traffic(key, self._here)
        return found

    def _differing(self, traffic: dict[TaskId, Traffic]) -> dict[TaskId, Traffic]:
        """`traffic`; empty if every task costs the same in all racks."""
        differs = any(len({each.at(rack) for rack in self._here}) > 1 for each in self._profiles.values())
        self._profiles = {}
        return traffic if differs else {}

    def active(self, task: TaskId) -> Traffic:
        """Cost of running the task; 0 when traffic does not count."""
        return self.active_traffic.get(task, NO_TRAFFIC)

    def standby(self, task: TaskId) -> Traffic:
        """Cost of keeping a copy of the task; 0 when that makes no difference."""
        return self._standby.get(task, NO_TRAFFIC)

    def cost(self, task: TaskId, member: str) -> int:
        """Cost of the task on the member."""
        return self.active(task).at(self.of[member])

    def move_cost(self, task: TaskId) -> int:
        """Cost of a change of owner, in the same unit as traffic; 0 when traffic does not count."""
        if not self.counts:
            return 0
        return self.settings.rack_non_overlap_cost if self._tasks[task].stateful else STATELESS_NON_OVERLAP_COST

    def total(self, owner: Mapping[TaskId, str]) -> int:
        """Traffic cost of these owners, without the changes that lead to them."""
        return sum(traffic.at(self.of[owner[task]]) for task, traffic in self.active_traffic.items() if task in owner)

    def least(self) -> int:
        """A lower bound of `total`: every task where it costs least, regardless of balance."""
        return sum(traffic.least for traffic in self.active_traffic.values())

    def least_of_copies(self, wanted: Mapping[TaskId, int]) -> int:
        """A lower bound of the cost of so many copies of each task, wherever the tasks run."""
        return sum(traffic.least * wanted.get(task, 0) for task, traffic in self._standby.items())


Values = tuple[str | None, ...]
"""A member's value of each key that counts; None: not known."""


class Places:
    """Which members are apart: in different racks, or, with `rack_aware_tags`, with different
    values of these tags (KIP-708).

    Members with the same rack and the same values are in one place. `matter`: some members are
    apart.
    """

    def __init__(self, settings: GroupSettings, members: Iterable[MemberSpec]) -> None:
        self.of: dict[str, str] = {}
        """Member -> id of its place."""
        self.values: dict[str, Values] = {}
        """Place -> its values."""
        self.rack: dict[str, str | None] = {}
        names: dict[tuple[str | None, Values], str] = {}
        known: list[tuple[MemberSpec, str | None, Values]] = []
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
        """Returns how many values a copy here shares with the other copies of its task, given their
        places: 1 for each copy and each equal key. An unknown value counts as equal.
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
