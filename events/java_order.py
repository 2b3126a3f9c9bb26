"""Java's orders of strings, for results that must equal those of a Java assignor.

Every order is a function of the text alone; Python's hash is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

FEWEST_BUCKETS = 16
MASK_32 = 0xFFFF_FFFF


def text_key(text: str) -> bytes:
    """Sort key of `String.compareTo`: UTF-16 code units, which differ from Python's order beyond
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
    """The keys, each once, in the iteration order of a `HashMap` filled in the order given.
    `hash_of`: unsigned 32-bit hashes.

    The map has 16 buckets, doubled while the keys are more than three quarters of them. A bucket is
    chosen by the hash with its upper half folded in, and keeps insertion order.
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
