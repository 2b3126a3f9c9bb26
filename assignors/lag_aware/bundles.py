"""Which member gets which bundle, so that the fewest tasks change their owner.

Members with equal subscriptions are interchangeable, so any of them may have any bundle; and tasks
of one *lag class*, such as those of one sub-topology with equal lags, are interchangeable in any
bundle. So a member keeps as many of its own tasks of each class as its bundle has. Which bundle it
gets is an assignment problem that maximises the number of tasks kept.

Before: m1 owns 0_0 and 0_1, m2 owns 0_2, m3 nothing; lags are equal; bundles (0_0), (0_1), (0_2).
After: m1 keeps 0_0, m2 keeps 0_2, 0_1 goes to m3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from equipoise.assignors.common.node_aggregation import Hashes, Ints, mixed
from equipoise.assignors.common.round_robin import deal
from equipoise.assignors.common.transport import FlowNetwork, solve, stable_hash
from equipoise.events.tasks import TaskId

LagClass = tuple[int, int]
"""What interchangeable tasks share; the last number is their lag."""
Shape = tuple[tuple[LagClass, int], ...]
"""Number of tasks of each lag class in a bundle."""


MOST_PAIRS = 4_000_000
"""Different bundles times members. Beyond that each member has the bundle that was dealt to it, and
keeps what it can. (2,000 members take seconds.)
"""


@attrs.frozen
class Dealt:
    """`owner`: task -> its member. `unique`: False when another deal moves as few tasks."""

    owner: Mapping[TaskId, str]
    unique: bool = True
    rack_cost_lower_bound: int = 0
    """Where racks make a difference: lower bound of the cost of these bundles, traffic and changes
    of owner, given in any way.
    """
    for_traffic: frozenset[TaskId] = frozenset()
    """Tasks that change their owner for traffic alone."""
    passed_on: frozenset[TaskId] = frozenset()
    """Tasks that change their owner for the total counts alone."""
    for_lags: frozenset[TaskId] = frozenset()
    """Tasks that change their owner because lags have been uneven for long."""


def given(bundles: Mapping[str, Sequence[TaskId]], lag_classes: Mapping[TaskId, LagClass], owner: Mapping[TaskId, str]) -> Dealt:
    """The same bundles, given to the members so that they keep the most tasks. When none of them
    owns any of the tasks, each has the bundle that was dealt to it.
    """
    tasks = [task for bundle in bundles.values() for task in bundle]
    if not any(owner.get(task) in bundles for task in tasks):
        return Dealt({task: name for name, bundle in bundles.items() for task in bundle})
    held: dict[LagClass, dict[str, list[TaskId]]] = {}
    for task in sorted(tasks):
        if owner.get(task) in bundles:
            held.setdefault(lag_classes[task], {}).setdefault(owner[task], []).append(task)
    shapes: dict[Shape, int] = {}
    for bundle in bundles.values():
        its_shape = shape(lag_classes[task] for task in bundle)
        shapes[its_shape] = shapes.get(its_shape, 0) + 1
    if len(shapes) * len(bundles) > MOST_PAIRS:
        shape_of, unique = {name: shape(lag_classes[task] for task in bundle) for name, bundle in bundles.items()}, True
    else:
        counts = {lag_class: {name: len(own) for name, own in of.items()} for lag_class, of in held.items()}
        shape_of, unique = _matched(shapes, counts, sorted(bundles))
    kept: dict[TaskId, str] = {}
    open_places: dict[LagClass, dict[str, int]] = {}
    for name, its_shape in shape_of.items():
        for lag_class, count in its_shape:
            own = held.get(lag_class, {}).get(name, [])[:count]
            kept.update(dict.fromkeys(own, name))
            open_places.setdefault(lag_class, {})[name] = count - len(own)
    rest: dict[LagClass, list[TaskId]] = {}
    for task in sorted(tasks):
        if task not in kept:
            rest.setdefault(lag_classes[task], []).append(task)
    for lag_class, left in rest.items():
        kept.update(deal(left, open_places[lag_class]))
    return Dealt(kept, unique)


def shape(lag_classes: Iterable[LagClass]) -> Shape:
    """Number of tasks of each lag class."""
    counts: dict[LagClass, int] = {}
    for lag_class in lag_classes:
        counts[lag_class] = counts.get(lag_class, 0) + 1
    return tuple(sorted(counts.items()))


def _matched(shapes: Mapping[Shape, int], held: Mapping[LagClass, Mapping[str, int]], members: Sequence[str]) -> tuple[dict[str, Shape], bool]:
    """Member -> the shape of its bundle, and whether no other way keeps as much. `shapes`: shape ->
    number of bundles; as many bundles as members.

    A flow: from each shape to the members that would keep more of it than of the worst shape, or
    through a pool to any member, and one unit from each member to the sink.
    """
    ordered = sorted(shapes)
    keeps = keeps_of(ordered, held, members)
    least = keeps.min(axis=0)
    shape, member = np.nonzero(keeps > least)
    first_member = 2 + len(ordered)  # 0 is the sink, 1 the pool, then the shapes
    everyone = np.arange(len(members), dtype=np.int64) + first_member
    kinds = np.arange(len(ordered), dtype=np.int64) + 2
    counts = np.array([shapes[each] for each in ordered], dtype=np.int64)
    most = int(keeps.max(initial=0))
    ones, zeros = np.ones_like(everyone), np.zeros_like(everyone)
    tail = np.concatenate((shape + 2, kinds, ones, everyone))
    head = np.concatenate((member + first_member, np.ones_like(kinds), everyone, zeros))
    supply = np.zeros(first_member + len(members), dtype=np.int64)
    supply[2:first_member] = counts
    supply[0] = -len(members)
    flow = solve(
        FlowNetwork(
            nodes=len(supply),
            supply=supply,
            tail=tail,
            head=head,
            capacity=np.concatenate((np.ones_like(shape), counts, ones, ones)),
            costs=(np.concatenate((most - keeps[shape, member], np.zeros_like(kinds), most - least, zeros)),),
            names=lambda: arc_names(tail, head, members, first_member),
            most_costed=1,
        )
    )
    used = np.flatnonzero(flow.amount[: len(shape)])
    shape_of = {members[member[arc]]: ordered[shape[arc]] for arc in used.tolist()}
    through_pool = flow.amount[len(shape) : len(shape) + len(ordered)].tolist()
    pooled = [each for each, amount in zip(ordered, through_pool, strict=True) for _ in range(amount)]
    shape_of.update(zip([name for name in members if name not in shape_of], pooled, strict=True))
    return shape_of, flow.unique


def keeps_of(shapes: Sequence[Shape], held: Mapping[LagClass, Mapping[str, int]], members: Sequence[str]) -> Ints:
    """Returns how many tasks of each shape (row) each member (column) would keep."""
    column = {name: index for index, name in enumerate(members)}
    wanted: dict[LagClass, list[tuple[int, int]]] = {}
    for row, shape in enumerate(shapes):
        for lag_class, count in shape:
            wanted.setdefault(lag_class, []).append((row, count))
    keeps = np.zeros((len(shapes), len(members)), dtype=np.int64)
    for lag_class, own in held.items():
        rows, counts = zip(*wanted[lag_class], strict=True)
        columns = [column[name] for name in own]
        keeps[np.ix_(rows, columns)] += np.minimum.outer(np.array(counts), np.array(list(own.values())))
    return keeps


def arc_names(tail: Ints, head: Ints, members: Sequence[str], first_member: int) -> Hashes:
    """A stable hash of the ends of each arc."""
    nodes = np.array([*range(first_member), *(stable_hash(name) for name in members)], dtype=np.uint64)
    return mixed(nodes[tail] ^ mixed(nodes[head], 1), 0)
