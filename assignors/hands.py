"""Who gets which hand: what was dealt to members that are alike goes to them so that the fewest tasks change their owner.

Members that subscribe to the same are dealt to alike, so any of them may have any hand; and tasks of one *suit*, such as those of one sub-topology
with equal lags, may stand for each other in any hand. So a member keeps, of each suit, as many of its own as its hand has, and which hand it gets is
an assignment problem: the sum of what is kept, at its largest.

Before: m1 owns 0_0 and 0_1, m2 owns 0_2, m3 nothing; lags are equal; hands (0_0), (0_1), (0_2). After: m1 keeps 0_0, m2 keeps 0_2, 0_1 goes to m3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from assignors.network import deal
from assignors.transport import Hashes, Network, mixed, solve, stable_hash
from events.tasks import TaskId

Suit = tuple[int, int]
"""What tasks share that may stand for each other; the last number is their lag."""
Shape = tuple[tuple[Suit, int], ...]
"""How many tasks of each suit a hand has."""


@attrs.frozen
class Dealt:
    """`owner`: task -> its member. `unique`: False when as few tasks would move in another way too."""

    owner: Mapping[TaskId, str]
    unique: bool = True


def given(hands: Mapping[str, Sequence[TaskId]], suits: Mapping[TaskId, Suit], owner: Mapping[TaskId, str]) -> Dealt:
    """The same hands, given anew among the members named. When none of them owns any of it, each has the hand it was dealt."""
    tasks = [task for hand in hands.values() for task in hand]
    if not any(owner.get(task) in hands for task in tasks):
        return Dealt({task: name for name, hand in hands.items() for task in hand})
    held: dict[Suit, dict[str, list[TaskId]]] = {}
    for task in sorted(tasks):
        if owner.get(task) in hands:
            held.setdefault(suits[task], {}).setdefault(owner[task], []).append(task)
    shapes: dict[Shape, int] = {}
    for hand in hands.values():
        shape = _shape(suits[task] for task in hand)
        shapes[shape] = shapes.get(shape, 0) + 1
    shape_of, unique = _matched(shapes, {suit: {name: len(own) for name, own in of.items()} for suit, of in held.items()}, sorted(hands))
    kept: dict[TaskId, str] = {}
    open_places: dict[Suit, dict[str, int]] = {}
    for name, shape in shape_of.items():
        for suit, count in shape:
            own = held.get(suit, {}).get(name, [])[:count]
            kept.update(dict.fromkeys(own, name))
            open_places.setdefault(suit, {})[name] = count - len(own)
    rest: dict[Suit, list[TaskId]] = {}
    for task in sorted(tasks):
        if task not in kept:
            rest.setdefault(suits[task], []).append(task)
    for suit, left in rest.items():
        kept.update(deal(left, open_places[suit]))
    return Dealt(kept, unique)


def _shape(suits: Iterable[Suit]) -> Shape:
    counts: dict[Suit, int] = {}
    for suit in suits:
        counts[suit] = counts.get(suit, 0) + 1
    return tuple(sorted(counts.items()))


def _matched(shapes: Mapping[Shape, int], held: Mapping[Suit, Mapping[str, int]], members: Sequence[str]) -> tuple[dict[str, Shape], bool]:
    """Member -> the shape of its hand, and whether no other way keeps as much. `shapes`: how many hands have each; as many as members.

    A flow: from each shape to the members that would keep something of it, or through a pool to any, and from each member one unit to the sink.
    """
    ordered = sorted(shapes)
    first_member = 2 + len(ordered)  # 0 is the sink, 1 the pool
    node = {name: first_member + index for index, name in enumerate(members)}
    most = max(sum(count for _, count in shape) for shape in ordered)
    arcs: list[tuple[int, int, int, int]] = []  # tail, head, capacity, cost
    for index, shape in enumerate(ordered):
        keeps: dict[str, int] = {}
        for suit, count in shape:
            for name, own in held.get(suit, {}).items():
                keeps[name] = keeps.get(name, 0) + min(own, count)
        arcs.extend((2 + index, node[name], 1, most - kept) for name, kept in sorted(keeps.items()))
        arcs.append((2 + index, 1, shapes[shape], most))
    arcs.extend((1, node[name], 1, 0) for name in members)
    arcs.extend((node[name], 0, 1, 0) for name in members)
    supply = np.zeros(first_member + len(members), dtype=np.int64)
    supply[2:first_member] = [shapes[shape] for shape in ordered]
    supply[0] = -len(members)
    table = np.array(arcs, dtype=np.int64)
    flow = solve(
        Network(
            nodes=len(supply),
            supply=supply,
            tail=table[:, 0].copy(),
            head=table[:, 1].copy(),
            capacity=table[:, 2].copy(),
            costs=(table[:, 3].copy(),),
            names=_names(arcs, members, first_member),
            most_costed=1,
        )
    )
    shape_of: dict[str, Shape] = {}
    pooled: list[Shape] = []
    for (tail, head, _, _), amount in zip(arcs, flow.amount.tolist(), strict=True):
        if amount and 2 <= tail < first_member:
            if head == 1:
                pooled.extend([ordered[tail - 2]] * amount)
            else:
                shape_of[members[head - first_member]] = ordered[tail - 2]
    empty_handed = [name for name in members if name not in shape_of]
    shape_of.update(zip(empty_handed, pooled, strict=True))
    return shape_of, flow.unique


def _names(arcs: Sequence[tuple[int, int, int, int]], members: Sequence[str], first_member: int) -> Hashes:
    """A stable hash of what each arc joins."""
    hashes = [stable_hash(name) for name in members]

    def name(node: int) -> int:
        return node if node < first_member else hashes[node - first_member]

    parts = np.array([(name(tail), name(head)) for tail, head, _, _ in arcs], dtype=np.uint64)
    return mixed(parts[:, 0] ^ mixed(parts[:, 1], 1), 0)
