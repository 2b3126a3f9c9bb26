"""A fleet does not depend on the number of processes that make it, its groups have the sizes asked
for, and their logs replay.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.events.errors import FieldError, InputError
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.log import ArchiveLog
from equipoise.replay.verification import verify
from examples.fleet.many_groups import Fleet, check_location, make_fleet


def test_fleet_sizes_fall_and_add_up() -> None:
    sizes = Fleet(groups=200, records=5_000_000).sizes()
    assert sizes == sorted(sizes, reverse=True)
    assert 4_999_000 < sum(sizes) <= 5_000_000
    assert sizes[0] > 20 * sizes[-1]
    with pytest.raises(FieldError, match="at least 40,000"):
        Fleet(groups=200, records=39_999)


def test_fleet_is_same_for_any_processes(tmp_path: Path) -> None:
    fleet = Fleet(groups=3, records=2_000, seed=7)
    alone, together = tmp_path / "alone", tmp_path / "together"
    written = make_fleet(fleet, alone)
    assert make_fleet(fleet, together, processes=2) == written
    assert [part.name for part in all_parts(store_at(alone))] == [part.name for part in all_parts(store_at(together))]
    assert [(alone / part.name).read_bytes() for part in all_parts(store_at(alone))] == [
        (together / part.name).read_bytes() for part in all_parts(store_at(together))
    ]
    with ArchiveLog(str(alone), "r") as log:
        groups = log.groups()
    assert list(groups) == ["g000", "g001", "g002"]
    assert all(records + 1 >= size for (_, records), size in zip(groups.values(), fleet.sizes(), strict=True))
    with open_log(alone) as log:
        verification = verify(log.read())
    assert (verification.verdict.value, len(verification.groups), verification.problems) == ("identical", 3, [])
    assert all(group.compared > 3 for group in verification.groups)


def test_fleet_differs_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_fleet(Fleet(groups=1, records=300, seed=seed), tmp_path / str(seed))
    with open_log(tmp_path / "1") as one, open_log(tmp_path / "2") as other:
        assert [record.group for record in one.read()][:3] == [record.group for record in other.read()][:3]
        assert list(one.read())[5:] != list(other.read())[5:]


def test_fleet_needs_an_own_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a folder"):
        check_location("kafka://127.0.0.1:9092")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="something else in it"):
        make_fleet(Fleet(groups=1, records=300), tmp_path)
