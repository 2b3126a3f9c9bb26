"""Which records may be deleted: behind two bases, by age and by size, never what an archive or a
group that has halted needs.
"""

from __future__ import annotations

import pytest

from equipoise.log.kafka.bases_topic import Base
from equipoise.worker.retention import Retention, deletion

HOUR_MS = 3_600_000
DAY = Retention(retention_ms=24 * HOUR_MS, retention_bytes=0, interval_ms=6 * HOUR_MS)


def base(hour: float, *, halted: int | None = None, interval_bytes: int = 100) -> Base:
    position = int(hour * 100) + 100
    groups = {"a": (position - 2, 1, 4, ""), "b": (position - 1 if halted is None else halted, 1, 4, "")}
    first = min(place[0] for place in groups.values()) + 1
    return Base(
        log_id="log",
        position=position,
        append_ms=int(hour * HOUR_MS),
        facts_offset=first,
        decisions_offset=first,
        interval_bytes=interval_bytes,
        previous="",
        groups=groups,
    )


BASES = [base(hour) for hour in range(0, 37, 6)]


def behind(
    bases: list[Base],
    hour: float,
    retention: Retention = DAY,
    *,
    running: int = 0,
    archives: dict[str, int] | None = None,
    halted: dict[str, int] | None = None,
) -> tuple[int | None, str]:
    """Hour of the base behind which records are deleted, and what holds others."""
    found = deletion(bases, int(hour * HOUR_MS), running, retention, archives or {}, halted or {})
    return None if found.behind is None else found.behind.append_ms // HOUR_MS, found.held_by


@pytest.mark.parametrize(("hour", "expected"), [(36, 12), (20, 12), (41.9, 12), (42, 18)])
def test_records_older_than_the_retention_are_deleted(hour: float, expected: int) -> None:
    assert behind(BASES, hour) == (expected, "")


def test_two_bases_are_always_kept() -> None:
    assert behind(BASES[:1], 100) == (None, "")
    assert behind(BASES[:2], 24) == (None, "")  # the second is not older than twice the time between bases
    assert behind([base(0), base(12)], 36) == (0, "")
    assert behind([base(0), base(12), base(24)], 36) == (12, "")
    assert behind([], 100) == (None, "")
    short = Retention(retention_ms=1, retention_bytes=0, interval_ms=6 * HOUR_MS)
    assert behind(BASES[:2], 100, short) == (0, "")


def test_wrong_clock_of_a_broker_makes_little_old() -> None:
    ahead = [*BASES[:5], base(24 * 300)]
    assert behind(ahead, 24 * 300) == (12, "")  # the jump counts as twelve hours
    back = [base(24 * 300), *BASES[:3]]
    assert behind(back, 12) == (None, "")


@pytest.mark.parametrize(
    ("most", "running", "expected"), [(1_000, 0, None), (700, 0, None), (699, 0, 0), (600, 0, 0), (599, 0, 6), (1, 0, 30), (700, 101, 6)]
)
def test_log_that_is_too_large_loses_its_oldest_records(most: int, running: int, expected: int | None) -> None:
    by_size = Retention(retention_ms=0, retention_bytes=most, interval_ms=6 * HOUR_MS)
    assert behind(BASES, 36, by_size, running=running) == (expected, "")


def test_the_stricter_limit_counts() -> None:
    both = Retention(retention_ms=24 * HOUR_MS, retention_bytes=350, interval_ms=6 * HOUR_MS)
    assert behind(BASES, 36, both) == (18, "")
    assert behind(BASES, 36, Retention(retention_ms=24 * HOUR_MS, retention_bytes=650, interval_ms=6 * HOUR_MS)) == (12, "")


def test_archive_keeps_what_it_lacks_and_is_named() -> None:
    due = BASES[2].facts_offset
    assert behind(BASES, 36, archives={"nightly": due}) == (12, "")
    assert behind(BASES, 36, archives={"nightly": due - 1, "other": 10**6}) == (6, f"archive nightly has the facts up to offset {due - 1} only")
    assert behind(BASES, 36, archives={"nightly": 5}) == (None, "archive nightly has the facts up to offset 5 only")
    assert behind(BASES, 24, archives={"nightly": 5}) == (None, "archive nightly has the facts up to offset 5 only")
    assert behind(BASES[:2], 24, archives={"nightly": 5}) == (None, "")  # nothing is due


def test_group_that_has_halted_keeps_its_facts_and_is_named() -> None:
    held = [base(0), *(base(hour, halted=99) for hour in range(6, 37, 6))]
    found = deletion(held, 36 * HOUR_MS, 0, DAY, {}, {"b": 150})
    assert found.behind is not None
    assert (found.behind.facts_offset, found.held_by) == (99 + 1, "group b has halted at offset 150")
    assert behind(BASES, 36, halted={"b": BASES[-1].position}) == (12, "")  # it has halted just now, and holds nothing yet


def test_group_that_halted_before_its_first_base_keeps_everything() -> None:
    none = [
        Base(
            log_id="log",
            position=each.position,
            append_ms=each.append_ms,
            facts_offset=0,
            decisions_offset=0,
            interval_bytes=1,
            previous="",
            groups={"a": each.groups["a"]},
        )
        for each in BASES
    ]
    found = deletion(none, 36 * HOUR_MS, 0, DAY, {}, {"b": 3})
    assert found.behind is not None
    assert (found.behind.facts_offset, found.held_by) == (0, "group b has halted at offset 3")
