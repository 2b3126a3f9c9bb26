"""The iteration order of a ``java.util.HashMap`` in which many keys share a bucket.

Tasks do: partition p of sub-topology g has the same hash as partition p-31 of sub-topology g+1.
Java keeps a bucket of more than eight keys as a red-black tree and a list at once, and iterates the
list. Two operations move keys in it: a new key follows its parent in the tree, and a new root moves
to the front. So the tree is kept here as well, as in the textbook (Cormen, Leiserson and Rivest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import attrs

from equipoise.events.java_order import FEWEST_BUCKETS

K = TypeVar("K")

FEWEST_BUCKETS_WITH_TREES = 64
"""With fewer buckets, a bucket that would become a tree doubles the buckets instead."""
MOST_IN_A_LIST = 8
MOST_BACK_TO_A_LIST = 6
"""Parts of a split tree with at most so many keys become lists."""
LEFT, RIGHT = 0, 1


@attrs.define(eq=False)
class _Node(Generic[K]):
    """A key. `rank`: its place in the tree's order."""

    key: K
    hash: int
    rank: tuple[Any, ...]
    red: bool = False
    parent: _Node[K] | None = None
    child: list[_Node[K] | None] = attrs.field(factory=lambda: [None, None])


class HashMap(Generic[K]):
    """Distinct keys in the iteration order of a `HashMap` filled in the order given.

    `hash_of`: unsigned 32-bit hashes. `rank_of`: the order of ``compareTo``.
    """

    def __init__(self, keys: Iterable[K], hash_of: Callable[[K], int], rank_of: Callable[[K], tuple[Any, ...]]) -> None:
        self._buckets: list[_Bucket[K]] = [_Bucket() for _ in range(FEWEST_BUCKETS)]
        self._nodes: dict[K, _Node[K]] = {}
        for key in keys:
            value = hash_of(key)
            spread = value ^ value >> 16
            self._put(_Node(key, spread, (spread - (1 << 32) if spread >> 31 else spread, *rank_of(key))))

    def __iter__(self) -> Iterator[K]:
        return (node.key for bucket in self._buckets for node in bucket.order)

    def __len__(self) -> int:
        return len(self._nodes)

    def remove(self, key: K) -> None:
        """Removes a key, which must be present."""
        node = self._nodes.pop(key)
        self._bucket(node).remove(node)

    def _bucket(self, node: _Node[K]) -> _Bucket[K]:
        return self._buckets[node.hash & (len(self._buckets) - 1)]

    def _put(self, node: _Node[K]) -> None:
        self._nodes[node.key] = node
        bucket = self._bucket(node)
        bucket.put(node)
        if bucket.root is None and len(bucket.order) > MOST_IN_A_LIST:
            if len(self._buckets) < FEWEST_BUCKETS_WITH_TREES:
                self._double()
            else:
                bucket.grow_tree()
        if 4 * len(self._nodes) > 3 * len(self._buckets):
            self._double()

    def _double(self) -> None:
        bit = len(self._buckets)
        halves = [bucket.split(bit) for bucket in self._buckets]
        self._buckets = [*(low for low, _ in halves), *(high for _, high in halves)]


class _Bucket(Generic[K]):
    """`order`: keys in iteration order. `root`: of the tree; None: the bucket is a list."""

    def __init__(self, order: list[_Node[K]] | None = None) -> None:
        self.order: list[_Node[K]] = [] if order is None else order
        self.root: _Node[K] | None = None

    def put(self, node: _Node[K]) -> None:
        if self.root is None:
            self.order.append(node)
            return
        parent = self._attach(node)
        self.order.insert(self.order.index(parent) + 1, node)
        self._balance_after_growth(node)
        self._root_to_front()

    def grow_tree(self) -> None:
        """Builds the tree from the keys in their order."""
        self.root = None
        for node in self.order:
            node.child, node.parent = [None, None], None
            if self.root is None:
                self.root, node.red = node, False
            else:
                self._attach(node)
                self._balance_after_growth(node)
        self._root_to_front()

    def split(self, bit: int) -> tuple[_Bucket[K], _Bucket[K]]:
        """Keys without and with the bit in their hash, each part in this order."""
        parts = _Bucket([node for node in self.order if not node.hash & bit]), _Bucket([node for node in self.order if node.hash & bit])
        for part, other in (parts, parts[::-1]):
            if self.root is not None and len(part.order) > MOST_BACK_TO_A_LIST:
                if other.order:
                    part.grow_tree()
                else:
                    part.root = self.root
        return parts

    def remove(self, node: _Node[K]) -> None:
        self.order.remove(node)
        if self.root is None:
            return
        left = self.root.child[LEFT]
        if self.root.child[RIGHT] is None or left is None or left.child[LEFT] is None:
            self.root = None  # too small to be worth a tree
            return
        if None not in node.child:
            self._trade_places(node, self._next(node))
        only = node.child[LEFT] or node.child[RIGHT]
        if only is not None:
            self._replace(node, only)
            if not node.red:
                self._balance_after_loss(only)
        else:
            if not node.red:
                self._balance_after_loss(node)
            self._replace(node, None)
        self._root_to_front()

    def _root_to_front(self) -> None:
        assert self.root is not None
        self.order.remove(self.root)
        self.order.insert(0, self.root)

    def _attach(self, node: _Node[K]) -> _Node[K]:
        """Adds the node as a leaf. Returns its parent."""
        parent = below = self.root
        side = LEFT
        while below is not None:
            parent = below
            side = LEFT if node.rank < below.rank else RIGHT
            below = below.child[side]
        assert parent is not None
        node.parent, parent.child[side] = parent, node
        return parent

    def _next(self, node: _Node[K]) -> _Node[K]:
        """The least node above; there is one."""
        found, lower = node, node.child[RIGHT]
        while lower is not None:
            found, lower = lower, lower.child[LEFT]
        return found

    def _replace(self, node: _Node[K], other: _Node[K] | None) -> None:
        """Puts `other` in the place of `node`."""
        if node.parent is None:
            self.root = other
        else:
            node.parent.child[_side(node)] = other
        if other is not None:
            other.parent = node.parent

    def _trade_places(self, node: _Node[K], below: _Node[K]) -> None:
        """Exchanges two nodes of the tree, colours included. `below` has no left child and is on
        the right of `node`.
        """
        left, right = node.child
        orphan, its_parent = below.child[RIGHT], below.parent
        self._replace(node, below)
        node.red, below.red = below.red, node.red
        if its_parent is node:
            below.child = [left, node]
        else:
            assert its_parent is not None
            its_parent.child[LEFT] = node
            below.child = [left, right]
        node.child = [None, orphan]
        node.parent = its_parent if its_parent is not node else below
        for parent in (below, node):
            for each in parent.child:
                if each is not None:
                    each.parent = parent

    def _rotate(self, node: _Node[K], side: int) -> None:
        """Moves `node` down on that side; the child on the other side moves up."""
        riser = node.child[1 - side]
        assert riser is not None
        self._replace(node, riser)
        node.child[1 - side] = moved = riser.child[side]
        if moved is not None:
            moved.parent = node
        riser.child[side], node.parent = node, riser

    def _balance_after_growth(self, node: _Node[K]) -> None:
        node.red = True
        while node.parent is not None and node.parent.red:
            parent = node.parent
            grand = parent.parent
            assert grand is not None, "the root is black"
            side = _side(parent)
            uncle = grand.child[1 - side]
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grand.red = True
                node = grand
                continue
            if _side(node) != side:
                self._rotate(parent, side)
                node, parent = parent, node
            parent.red, grand.red = False, True
            self._rotate(grand, 1 - side)
        assert self.root is not None
        self.root.red = False

    def _balance_after_loss(self, node: _Node[K]) -> None:
        """Restores the colours where a black node is missing above `node`."""
        while node.parent is not None and not node.red:
            parent, side = node.parent, _side(node)
            sibling = parent.child[1 - side]
            if sibling is not None and sibling.red:
                sibling.red, parent.red = False, True
                self._rotate(parent, side)
                sibling = parent.child[1 - side]
            if sibling is None:
                node = parent
                continue
            near, far = sibling.child[side], sibling.child[1 - side]
            if not _is_red(near) and not _is_red(far):
                sibling.red = True
                node = parent
                continue
            if near is not None and not _is_red(far):
                near.red, sibling.red = False, True
                self._rotate(sibling, 1 - side)
                sibling, far = near, sibling
            assert far is not None
            sibling.red, parent.red, far.red = parent.red, False, False
            self._rotate(parent, side)
            break
        else:
            node.red = False


def _side(node: _Node[K]) -> int:
    assert node.parent is not None
    return LEFT if node.parent.child[LEFT] is node else RIGHT


def _is_red(node: _Node[K] | None) -> bool:
    return node is not None and node.red
