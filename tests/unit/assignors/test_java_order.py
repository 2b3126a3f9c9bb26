"""Java's orders of strings. The expected hashes and orders are Java's own (`jshell`:
`"...".hashCode()`, `new HashMap<>` filled and printed).
"""

from __future__ import annotations

import pytest

from equipoise.events.java_order import hash_order, text_hash, text_key, text_order


@pytest.mark.parametrize(
    ("text", "signed"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -2147483648), ("member-\U0001f600", 1343942006), ("ÿ", 255)],
)
def test_text_hash_is_javas(text: str, signed: int):
    assert text_hash(text) == signed % 2**32


def test_texts_sort_by_utf_16_unit():
    assert sorted(["\ue000", "\U0001f600", "b", "a"], key=text_key) == ["a", "b", "\U0001f600", "\ue000"]
    assert sorted(["\ue000", "\U0001f600"]) == ["\ue000", "\U0001f600"], "Python's own order is another"


def test_text_order_by_bucket():
    assert text_order(["t0", "t1", "t2", "t3", "t4"]) == ("t4", "t0", "t1", "t2", "t3")


def test_text_order_of_13_has_more_buckets():
    assert "".join(text_order("pabcdefghijk")) == "pabcdefghijk"
    assert "".join(text_order("pabcdefghijkl")) == "abcdefghijklp"


def test_bucket_keeps_insertion_order():
    assert text_hash("Aa") == text_hash("BB")
    assert text_order(["BB", "Aa", "BB"]) == ("BB", "Aa")
    assert hash_order([16, 0, 32, 1], lambda number: number) == (16, 0, 32, 1)
