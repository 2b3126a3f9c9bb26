"""docs/faults.md: every test and scenario that it names exists."""

from __future__ import annotations

import pytest

from tests.pages import check_place, places_of, read_page, rows_of

PAGE = read_page("faults.md")


def test_fault_rows_name_a_test() -> None:
    rows = [row for row in rows_of(PAGE) if row.section != "What the simulation finds again"]
    assert len(rows) >= 47
    assert [row for row in rows if not any(place.startswith("tests/") for place in places_of(row.cells[-1]))] == []


@pytest.mark.parametrize("place", places_of(PAGE))
def test_tests_of_a_fault_exist(place: str) -> None:
    check_place(place)
