"""Which member gets which bundle where racks make a difference: the same bundles, given so that the
least is read across racks.

Counts are settled when bundles are dealt (`dealing`), and so are lags, except between
interchangeable partitions. Open is which of the interchangeable members gets which bundle, and,
within a lag class, which tasks. Two stages, each solved exactly by min-cost flow:

1. **Bundles to members.** A bundle costs a member at least as much as the cheapest tasks of its
   classes, as many as the bundle has. That is exact where each class has one task, as it is when
   all lags differ.
2. **Tasks to members**, class by class, with as many places as the bundles have.

The cost is that of traffic and changes of owner together (`racks`); then the fewest changes. The
cost of the first stage is a lower bound for any way to give these bundles; where the second stage
reaches it, the result is proven optimal. Where all tasks are of one class the stages are one, and
exact.

Before: m1 in rack a runs 0_0, whose replica is in b; m2 in b runs 0_1, whose replica is in a; lags
are equal. After: 0_0 and 0_1 have changed places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from equipoise.assignors.common.flow_network import AssignmentNetwork, Offer
from equipoise.assignors.common.indexed_problem import IndexedProblem, pool_of
from equipoise.assignors.common.node_aggregation import Ints
from equipoise.assignors.common.transport import Flow, FlowNetwork, solve
from equipoise.assignors.lag_aware.bundles import MOST_PAIRS, Dealt, LagClass, Shape, arc_names, given, keeps_of, shape
from equipoise.events.tasks import TaskId


def given_by_racks(indexed: IndexedProblem, bundles: Mapping[str, Sequence[TaskId]], lag_classes: Mapping[TaskId, LagClass]) -> Dealt:
    """The bundles, given to these members at the least rack cost."""
    members = sorted(bundles)
    of_class: dict[LagClass, list[TaskId]] = {}
    for task in sorted(task for bundle in bundles.values() for task in bundle):
        of_class.setdefault(lag_classes[task], []).append(task)
    if len(of_class) == 1:
        return _one_class(indexed, next(iter(of_class.values())), {name: len(bundle) for name, bundle in bundles.items()})
    shapes: dict[str, Shape] = {name: shape(lag_classes[task] for task in bundle) for name, bundle in bundles.items()}
    unique, bound = True, sum(indexed.racks.active(task).least for tasks in of_class.values() for task in tasks)
    if len(set(shapes.values())) * len(members) <= MOST_PAIRS:
        shapes, bound, unique = _matched(indexed, shapes, of_class, members)
    owner: dict[TaskId, str] = {}
    for lag_class, tasks in of_class.items():
        places = {name: count for name in members for each, count in shapes[name] if each == lag_class}
        if len(places) == 1:
            owner.update(dict.fromkeys(tasks, next(iter(places))))
        else:
            placed, flow = _placed(indexed, tasks, places)
            owner.update(placed)
            unique &= flow.unique
    plain = given(bundles, lag_classes, indexed.owner)
    if _cost(indexed, plain.owner) < _cost(indexed, owner):
        return attrs.evolve(plain, rack_cost_lower_bound=bound)
    return Dealt(owner, unique, bound)


def _cost(indexed: IndexedProblem, owner: Mapping[TaskId, str]) -> int:
    racks, now = indexed.racks, indexed.owner
    return sum(racks.cost(task, name) + (racks.move_cost(task) if now.get(task, name) != name else 0) for task, name in owner.items())


def _one_class(indexed: IndexedProblem, tasks: Sequence[TaskId], counts: Mapping[str, int]) -> Dealt:
    """All tasks are interchangeable: counts and tasks are settled together, so one stage is exact."""
    placed, flow = _placed(indexed, tasks, dict.fromkeys(sorted(counts), min(counts.values())), more=max(counts.values()) - min(counts.values()))
    return Dealt(placed, flow.unique, _cost(indexed, placed) if flow.optimal else 0)


def _placed(indexed: IndexedProblem, tasks: Sequence[TaskId], places: Mapping[str, int], more: int = 0) -> tuple[dict[TaskId, str], Flow]:
    """Tasks of one lag class -> members with so many places, at the least cost. `more`: further
    places of each member, used when all others are taken.
    """
    racks, pool = indexed.racks, pool_of(sorted(places))
    network = AssignmentNetwork(indexed.tasks, levels=3, racks=racks.of)
    for task in tasks:
        owner, traffic = indexed.owner.get(task), racks.active(task)
        moves = int(owner is not None)
        if owner is not None and owner in places:
            network.direct(task, owner, (0, traffic.at(racks.of[owner]), 0))
        price = moves * racks.move_cost(task)
        near = {rack: (0, cost + price, moves) for rack, cost in traffic.near.items()}
        network.pooled(task, Offer(pool, network.lane(task), (0, traffic.far + price, moves), near))
    network.wanted()
    for name, count in places.items():
        network.place(name, count, (0, 0, 0))
        network.place(name, more, (1, 0, 0))
    flow = network.solve()
    return network.assigned(flow), flow


def _matched(
    indexed: IndexedProblem, dealt: Mapping[str, Shape], of_class: Mapping[LagClass, Sequence[TaskId]], members: Sequence[str]
) -> tuple[dict[str, Shape], int, bool]:
    """Member -> the shape of its bundle, the least that costs, and whether there is no other way.

    A flow: from each shape to the members that own any of it, or through the members of a rack to
    any, and one unit from each member to the sink.
    """
    racks, column = indexed.racks, {name: index for index, name in enumerate(members)}
    ordered = sorted(set(dealt.values()))
    counts = np.array([sum(shape == each for each in dealt.values()) for shape in ordered], dtype=np.int64)
    places = sorted({racks.of[name] for name in members}, key=lambda rack: (rack is not None, rack or ""))
    held = _held(indexed, of_class, column)
    by_rack = np.zeros((len(ordered), len(places)), dtype=np.int64)
    by_member = np.zeros((len(ordered), len(members)), dtype=np.int64)
    rack_of_member = np.array([places.index(racks.of[name]) for name in members], dtype=np.int64)
    for lag_class, tasks in of_class.items():
        rows = [(row, count) for row, shape in enumerate(ordered) for each, count in shape if each == lag_class]
        price = np.array([racks.move_cost(task) if task in indexed.owner else 0 for task in tasks], dtype=np.int64)
        traffic = np.array([[racks.active(task).at(rack) for rack in places] for task in tasks], dtype=np.int64)
        at_least = np.cumsum(np.sort(traffic + price[:, None], axis=0), axis=0)
        of_owner = {
            name: np.cumsum(np.sort(traffic[:, rack_of_member[column[name]]] + np.where(np.isin(np.arange(len(tasks)), own), 0, price)))
            for name, own in held.get(lag_class, {}).items()
        }
        for row, count in rows:
            by_rack[row] += at_least[count - 1]
            by_member[row] += at_least[count - 1][rack_of_member]
            for name, own_least in of_owner.items():
                by_member[row, column[name]] += own_least[count - 1] - at_least[count - 1, rack_of_member[column[name]]]
    keeps = keeps_of(ordered, {lag_class: {name: len(own) for name, own in of.items()} for lag_class, of in held.items()}, members)
    owns_some = {name for of in held.values() for name in of}
    return _given(ordered, counts, members, rack_of_member, by_rack, by_member, keeps, [column[name] for name in sorted(owns_some)])


def _held(indexed: IndexedProblem, of_class: Mapping[LagClass, Sequence[TaskId]], column: Mapping[str, int]) -> dict[LagClass, dict[str, list[int]]]:
    """Lag class -> member -> indexes of the class's tasks that it owns."""
    held: dict[LagClass, dict[str, list[int]]] = {}
    for lag_class, tasks in of_class.items():
        for place, task in enumerate(tasks):
            if indexed.owner.get(task) in column:
                held.setdefault(lag_class, {}).setdefault(indexed.owner[task], []).append(place)
    return held


def _given(
    shapes: Sequence[Shape], counts: Ints, members: Sequence[str], rack_of: Ints, by_rack: Ints, by_member: Ints, keeps: Ints, owners: Sequence[int]
) -> tuple[dict[str, Shape], int, bool]:
    """Solves the first stage. `shapes`, `counts`: shapes and the number of bundles of each.
    `by_rack`, `by_member`: least cost of each shape (row) in each rack, on each member (column).
    `keeps`: tasks that it would keep.
    """
    racks = by_rack.shape[1]
    first_shape, first_rack, first_member = 1, 1 + len(shapes), 1 + len(shapes) + racks  # 0 is the sink
    kind, place = np.divmod(np.arange(len(shapes) * racks, dtype=np.int64), racks)
    own_shape = np.repeat(np.arange(len(shapes), dtype=np.int64), len(owners))
    own_member = np.tile(np.array(owners, dtype=np.int64), len(shapes))
    everyone = np.arange(len(members), dtype=np.int64)
    most = int(keeps.max(initial=0))
    tail = np.concatenate((own_shape + first_shape, kind + first_shape, rack_of + first_rack, everyone + first_member))
    head = np.concatenate((own_member + first_member, place + first_rack, everyone + first_member, np.zeros_like(everyone)))
    supply = np.zeros(first_member + len(members), dtype=np.int64)
    supply[first_shape:first_rack] = counts
    supply[0] = -len(members)
    ones, zeros = np.ones_like(everyone), np.zeros_like(everyone)
    flow = solve(
        FlowNetwork(
            nodes=len(supply),
            supply=supply,
            tail=tail,
            head=head,
            capacity=np.concatenate((np.ones_like(own_shape), counts[kind], ones, ones)),
            costs=(
                np.concatenate((by_member[own_shape, own_member], by_rack[kind, place], zeros, zeros)),
                np.concatenate((most - keeps[own_shape, own_member], np.full_like(kind, most), zeros, zeros)),
            ),
            names=lambda: arc_names(tail, head, members, first_member),
            most_costed=1,
        )
    )
    used = flow.amount[: len(own_shape)] > 0
    found = {members[member]: shapes[row] for row, member in zip(own_shape[used].tolist(), own_member[used].tolist(), strict=True)}
    cost = int(by_member[own_shape[used], own_member[used]].sum())
    through = flow.amount[len(own_shape) : len(own_shape) + len(kind)]
    cost += int((through * by_rack[kind, place]).sum())
    taken = flow.amount[len(own_shape) + len(kind) : len(own_shape) + len(kind) + len(members)]
    for rack in range(racks):
        here = place == rack
        rest = np.repeat(kind[here], through[here]).tolist()
        takers = np.flatnonzero((rack_of == rack) & (taken > 0)).tolist()
        found.update((members[member], shapes[row]) for member, row in zip(takers, rest, strict=True))
    return found, cost if flow.optimal else 0, flow.unique
