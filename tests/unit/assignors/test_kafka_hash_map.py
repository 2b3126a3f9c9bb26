"""Keys of one bucket come in the order in which Java's tree leaves them."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.assignors.kafka_streams.hash_map import HashMap, _Bucket, _Node
from equipoise.assignors.kafka_streams.java import task_hash
from equipoise.events.java_order import hash_order
from equipoise.events.tasks import TaskId

JAVAS = [
    (8, 100, 0, 800, "f516a2319faf1a53"),
    (12, 300, 0, 3600, "1132b1e084c04b26"),
    (12, 300, 3, 2520, "aaf482986ab52fe9"),
    (12, 300, 7, 1080, "a5c30d4a4c90b721"),
    (40, 120, 5, 2400, "7ce90aa823a128b7"),
    (30, 400, 9, 1200, "2cdb7af4c887fffb"),
]
"""Sub-topologies, partitions of each, tenths of the keys removed, keys left, and the first half of
the SHA-256 of their texts, in the order in which a `HashMap<TaskId, Integer>` of Java 17 gave them,
filled by `Collectors.toMap` in rising order."""


@pytest.mark.parametrize(("subtopologies", "partitions", "tenths", "left", "digest"), JAVAS)
def test_order_is_javas(subtopologies: int, partitions: int, tenths: int, left: int, digest: str) -> None:
    tasks = [TaskId(subtopology, partition) for subtopology in range(subtopologies) for partition in range(partitions)]
    keys = HashMap(tasks, task_hash, lambda task: task)
    for task in tasks:
        if (task.subtopology * 7 + task.partition * 13) % 10 < tenths:
            keys.remove(task)
    assert len(keys) == left
    assert hashlib.sha256(" ".join(map(str, keys)).encode()).hexdigest()[:16] == digest


def test_order_without_crowded_buckets() -> None:
    tasks = [TaskId(subtopology, partition) for subtopology in range(5) for partition in range(60)]
    random.Random(3).shuffle(tasks)
    assert tuple(HashMap(tasks, task_hash, lambda task: task)) == hash_order(tasks, task_hash)


def test_ninth_key_of_a_small_map_doubles_the_buckets() -> None:
    """Nine keys of one bucket of 16 come in two of 32."""
    numbers = [16 * number for number in range(9)]
    assert list(HashMap(numbers, lambda number: number, lambda number: (number,))) == [0, 32, 64, 96, 128, 16, 48, 80, 112]


def blacks(node: _Node[int] | None) -> int:
    """Black nodes on every way down, the same number on each; asserts that no red node has a red
    child, and that parents are right.
    """
    if node is None:
        return 1
    for each in node.child:
        assert each is None or (each.parent is node and not (node.red and each.red))
    left, right = map(blacks, node.child)
    assert left == right
    return left + (not node.red)


def keys_of(node: _Node[int] | None) -> list[int]:
    return [] if node is None else [*keys_of(node.child[0]), node.key, *keys_of(node.child[1])]


@given(st.lists(st.integers(0, 500), min_size=9, max_size=60, unique=True), st.randoms(use_true_random=False))
def test_tree_stays_sorted_and_balanced(numbers: list[int], dice: random.Random) -> None:
    bucket: _Bucket[int] = _Bucket([_Node(number, 0, (number,)) for number in numbers[:9]])
    bucket.grow_tree()
    nodes = list(bucket.order)
    for number in numbers[9:]:
        nodes.append(_Node(number, 0, (number,)))
        bucket.put(nodes[-1])
    dice.shuffle(nodes)
    while bucket.root is not None:
        assert blacks(bucket.root) > 1
        assert not bucket.root.red
        assert bucket.root.parent is None
        assert bucket.order[0] is bucket.root
        assert keys_of(bucket.root) == sorted(node.key for node in bucket.order)
        bucket.remove(nodes.pop())
    assert sorted(node.key for node in bucket.order) == sorted(node.key for node in nodes)
    assert 2 <= len(nodes) <= 10
