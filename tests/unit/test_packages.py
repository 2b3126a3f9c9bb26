"""Few packages know each other: `python -m tools.packages` draws what is counted here."""

from __future__ import annotations

import pytest

from tools import packages

MOST_ARROWS = 190
MOST_LINES = 118_900
"""Of the product, `equipoise.testing` among it. Lower it with each part that goes."""
MOST_REACHED_LINES = 50_000
"""By `import equipoise.member`: an application has no worker, no forecast and no Spark."""


def test_packages_have_few_arrows_between_them_and_no_circle() -> None:
    pairs = packages.arrows(packages.graph())
    assert ("worker", "log") in pairs
    assert len(pairs) <= MOST_ARROWS
    assert packages.circles(pairs) == []


def test_no_file_is_in_a_circle() -> None:
    assert packages.file_circles(packages.graph()) == []


def test_member_reaches_no_more_than_a_member_needs() -> None:
    assert packages.reached_lines(packages.graph(types=False), "equipoise.member") <= MOST_REACHED_LINES


def test_product_has_no_more_lines() -> None:
    assert 100_000 < sum(map(packages.lines_of, packages.graph().modules)) <= MOST_LINES


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (set(), []),
        ({("a", "b"), ("b", "c")}, []),
        ({("a", "b"), ("b", "a"), ("b", "c")}, [["a", "b"]]),
        ({("a", "b"), ("b", "c"), ("c", "a"), ("d", "e"), ("e", "d")}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_circle_is_found(pairs: set[tuple[str, str]], found: list[list[str]]) -> None:
    assert packages.circles(pairs) == found
