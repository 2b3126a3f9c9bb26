"""Who gets which hand: what was dealt to members that are alike goes to them so that the fewest
tasks change their owner.

Members that subscribe to the same are dealt to alike, so any of them may have any hand; and tasks
of one *suit*, such as those of one sub-topology with equal lags, may stand for each other in any
hand. So a member keeps, of each suit, as many of its own as its hand has, and which hand it gets is
an assignment problem: the sum of what is kept, at its largest.

Before: m1 owns 0_0 and 0_1, m2 owns 0_2, m3 nothing; lags are equal; hands (0_0), (0_1), (0_2).
After: m1 keeps 0_0, m2 keeps 0_2, 0_1 goes to m3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from equipoise.assignors.common.node_aggregation import Hashes, Ints, mixed
from equipoise.assignors.common.round_robin import deal
from equipoise.assignors.common.transport import Network, solve, stable_hash
from equipoise.events.tasks import TaskId

Suit = tuple[int, int]
"""What tasks share that may stand for each other; the last number is their lag."""
Shape = tuple[tuple[Suit, int], ...]
"""How many tasks of each suit a hand has."""


MOST_PAIRS = 4_000_000
"""Hands that differ times members: beyond that each member has the hand it was dealt, and keeps
what it can of that. (2,000 members, seconds.)
"""


@attrs.frozen
class Dealt:
    """`owner`: task -> its member. `unique`: False when as few tasks would move in another way too.
    """

    owner: Mapping[TaskId, str]
    unique: bool = True
    rack_cost_lower_bound: int = 0
    """Where racks make a difference: of what these hands cost, traffic and changes of owner,
    however they are given.
    """
    for_traffic: frozenset[TaskId] = frozenset()
    """Tasks that change their owner for that alone."""


def given(hands: Mapping[str, Sequence[TaskId]], suits: Mapping[TaskId, Suit], owner: Mapping[TaskId, str]) -> Dealt:
    """The same hands, given anew among the members named. When none of them owns any of it, each
    has the hand it was dealt.
    """
    tasks = [task for hand in hands.values() for task in hand]
    if not any(owner.get(task) in hands for task in tasks):
        return Dealt({task: name for name, hand in hands.items() for task in hand})
    held: dict[Suit, dict[str, list[TaskId]]] = {}
    for task in sorted(tasks):
        if owner.get(task) in hands:
            held.setdefault(suits[task], {}).setdefault(owner[task], []).append(task)
    shapes: dict[Shape, int] = {}
    for hand in hands.values():
        its_shape = shape(suits[task] for task in hand)
        shapes[its_shape] = shapes.get(its_shape, 0) + 1
    if len(shapes) * len(hands) > MOST_PAIRS:
        shape_of, unique = {name: shape(suits[task] for task in hand) for name, hand in hands.items()}, True
    else:
        shape_of, unique = _matched(shapes, {suit: {name: len(own) for name, own in of.items()} for suit, of in held.items()}, sorted(hands))
    kept: dict[TaskId, str] = {}
    open_places: dict[Suit, dict[str, int]] = {}
    for name, its_shape in shape_of.items():
        for suit, count in its_shape:
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


def shape(suits: Iterable[Suit]) -> Shape:
    """How many tasks of each suit these are."""
    counts: dict[Suit, int] = {}
    for suit in suits:
        counts[suit] = counts.get(suit, 0) + 1
    return tuple(sorted(counts.items()))


def _matched(shapes: Mapping[Shape, int], held: Mapping[Suit, Mapping[str, int]], members: Sequence[str]) -> tuple[dict[str, Shape], bool]:
    """Member -> the shape of its hand, and whether no other way keeps as much. `shapes`: how many
    hands have each; as many as members.

    A flow: from each shape to the members that would keep more of it than of the worst, or through
    a pool to any, and from each member one unit to the sink.
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
        Network(
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


def keeps_of(shapes: Sequence[Shape], held: Mapping[Suit, Mapping[str, int]], members: Sequence[str]) -> Ints:
    """How much of each shape (row) each member (column) would keep."""
    column = {name: index for index, name in enumerate(members)}
    wanted: dict[Suit, list[tuple[int, int]]] = {}
    for row, shape in enumerate(shapes):
        for suit, count in shape:
            wanted.setdefault(suit, []).append((row, count))
    keeps = np.zeros((len(shapes), len(members)), dtype=np.int64)
    for suit, own in held.items():
        rows, counts = zip(*wanted[suit], strict=True)
        columns = [column[name] for name in own]
        keeps[np.ix_(rows, columns)] += np.minimum.outer(np.array(counts), np.array(list(own.values())))
    return keeps


def arc_names(tail: Ints, head: Ints, members: Sequence[str], first_member: int) -> Hashes:
    """A stable hash of what each arc joins."""
    nodes = np.array([*range(first_member), *(stable_hash(name) for name in members)], dtype=np.uint64)
    return mixed(nodes[tail] ^ mixed(nodes[head], 1), 0)
