"""The orders in which Java gives out strings, for what has to come out as a Java assignor would
have it.

Nothing here uses Python's own hash: every order is a function of the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

FEWEST_BUCKETS = 16
MASK_32 = 0xFFFF_FFFF


def text_key(text: str) -> bytes:
    """Sorts as `String.compareTo`: by UTF-16 code unit, which differs from Python's order beyond
    U+FFFF.
    """
    return text.encode("utf-16-be", "surrogatepass")


def text_hash(text: str) -> int:
    """`String.hashCode`, as an unsigned 32-bit number."""
    units = text_key(text)
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & MASK_32
    return value


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int]) -> tuple[T, ...]:
    """The keys, each once, in the order of a `HashMap` they were put into in the order given.
    `hash_of` gives unsigned 32-bit numbers.

    16 buckets, doubled while more than three quarters of them are wanted; a bucket is chosen by the
    hash with its upper half folded in, and holds its keys in the order of their coming.
    """
    distinct = tuple(dict.fromkeys(keys))
    buckets = FEWEST_BUCKETS
    while 4 * len(distinct) > 3 * buckets:
        buckets *= 2

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & (buckets - 1)

    return tuple(sorted(distinct, key=bucket))


def text_order(texts: Iterable[str]) -> tuple[str, ...]:
    """The order of a `HashMap<String, ?>`."""
    return hash_order(texts, text_hash)
