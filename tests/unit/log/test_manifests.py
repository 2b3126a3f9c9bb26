"""Manifests of an archive: in each state a reader, an appender and a compactor do what the table
says; commits side by side lose nothing; whatever is damaged is named.
"""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from equipoise.events.errors import LogError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.log.parquet import manifests, snapshot
from equipoise.log.parquet.archive_stores import FolderStore, store_at
from equipoise.log.parquet.compact import compact
from equipoise.log.parquet.files import make_archive, part_name, part_of
from equipoise.log.parquet.manifests import TABLE, Appender, Compactor, Manifest, PartitionState, Reader, decode, encode, look, name_of
from equipoise.log.parquet.store import ArchivePartition
from equipoise.replay.verification import Verdict, verify_log
from equipoise.replay.wording import extent_text

STORE = FolderStore(Path("/nowhere"))
DAY_MS = 86_400_000


def part(first: int, last: int, partition: int = 0):
    found = part_of(STORE, part_name("2026-03-01", partition, (first, last), (first, last), 7))
    assert found is not None
    return found


def manifest(*ends: int, number: int = 3, **fields) -> Manifest:
    files = tuple(part(first, last) for first, last in zip((0, *ends), ends, strict=False))
    return Manifest(partition=0, number=number, log_id="a1", partitions=1, end_offset=None, files=files, **fields)


# ------------------------------------------------------------------------------------------ the core


def test_manifest_is_read_as_it_was_written() -> None:
    written = manifest(5, 9, unused={"date=2026-03-01/x": 4})
    assert decode(STORE, written.name, encode(written)) == written


def test_changed_manifest_is_told() -> None:
    text = encode(manifest(5, 9))
    name = name_of(0, 3)
    for at in range(len(text.rstrip())):
        for changed in (text[:at], text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]):
            try:
                found = decode(STORE, name, changed)
            except ValueError:
                continue
            assert found == manifest(5, 9), changed
    for name in (name_of(0, 4), name_of(1, 3)):
        with pytest.raises(ValueError, match="it is manifest 3 of partition 0"):
            decode(STORE, name, text)
    with pytest.raises(ValueError, match="form 2, this build reads 1; use the build that wrote it"):
        decode(STORE, name_of(0, 3), text.replace('"form": 1', '"form": 2'))


@pytest.mark.parametrize(
    ("there", "newest", "state", "rows", "behind"),
    [
        ((), None, PartitionState.EMPTY, 0, 0),
        (((0, 5), (5, 9)), None, PartitionState.UNLISTED, 9, 0),
        (((0, 9), (5, 9)), None, PartitionState.UNLISTED, 9, 0),
        (((0, 5), (7, 9), (9, 11)), None, PartitionState.HOLED, 5, 2),
        (((3, 5),), None, PartitionState.HOLED, 0, 1),
        (((0, 5), (5, 9)), (5, 9), PartitionState.COMMITTED, 9, 0),
        (((0, 5), (0, 9), (5, 9)), (5, 9), PartitionState.COMMITTED, 9, 0),
        (((0, 5), (5, 9), (9, 10)), (5, 9), PartitionState.AHEAD, 9, 0),
        (((0, 5), (5, 9), (5, 10)), (5, 9), PartitionState.AHEAD, 9, 0),
        (((0, 5),), (5, 9), PartitionState.LACKING, 5, 0),
        (((5, 9), (9, 12)), (5, 9, 12), PartitionState.LACKING, 0, 2),
        ((), (5, 9), PartitionState.LACKING, 0, 0),
        (((0, 5), (5, 9)), "its text is cut", PartitionState.UNREADABLE, 9, 0),
        (((0, 5), (7, 9)), "its text is cut", PartitionState.UNREADABLE, 5, 1),
    ],
)
def test_each_state_is_known_by_files_and_manifest(there, newest, state: PartitionState, rows: int, behind: int) -> None:
    known = manifest(*newest) if isinstance(newest, tuple) else newest
    found = look(0, sorted((part(*each) for each in there), key=lambda each: (each.first_row, -each.next_row)), known)
    assert (found.state, found.next_row, len(found.behind)) == (state, rows, behind)
    assert bool(found.problem) == (found.reader is Reader.STOPS)
    assert bool(found.strict().problem) == (found.reader in (Reader.STOPS, Reader.COMMITTED))


def test_table_has_every_state() -> None:
    assert set(TABLE) == set(PartitionState)
    refused = {state for state in PartitionState if TABLE[state][1] is Appender.REFUSE}
    assert (
        refused
        == {state for state in PartitionState if TABLE[state][2] is Compactor.REFUSE}
        == {PartitionState.HOLED, PartitionState.LACKING, PartitionState.UNREADABLE}
    )
    assert {state for state in PartitionState if TABLE[state][0] is Reader.ALL} == {PartitionState.COMMITTED}


def test_decision_record_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "decisions" / "0029-manifests-of-an-archive.md").read_text(encoding="utf-8")
    for state, (reader, appender, compactor) in TABLE.items():
        assert f"| {state.value} | {reader.value} | {appender.value} | {compactor.value} |\n" in page


def test_next_manifests() -> None:
    first = manifest(5, 9, 12)
    assert [each.next_row for each in first.appended([part(12, 20)]).files] == [5, 9, 12, 20]
    assert [each.next_row for each in first.appended([part(9, 11), part(11, 20)]).files] == [5, 9, 12, 20]
    merged = first.replaced(first.files[:2], [part(0, 9)], 70)
    assert merged is not None
    assert ([each.rows for each in merged.files], merged.number, set(merged.unused.values())) == ([9, 3], 4, {70})
    assert merged.replaced(first.files[:2], [part(0, 9)], 80) is None, "another compaction was there first"
    there = [*first.files, *merged.files, part(2, 4), part(12, 14)]
    tidied, gone = merged.tidied(there, 80)
    assert (gone, sorted(tidied.unused.values())) == ([], [70, 70, 80])
    tidied, gone = tidied.tidied(there, 70 + DAY_MS)
    assert (gone, sorted(tidied.unused.values())) == (sorted(each.name for each in first.files[:2]), [80])
    assert tidied.files == merged.files


# ------------------------------------------------------------------------------------------- commits


def ticks(path: Path, partition: int, *groups: str, partitions: int = 2) -> None:
    """A fact of each group, each in a file of its own."""
    with open_log(f"{path}/?partition={partition}", "a") as log:
        if log.position() == 0:
            log.append_fact("", 1, LogOpened(log_id="a1", partitions=partitions))
        for group in groups:
            log.append_fact(group, 5, ProbingTick())


def test_commits_side_by_side_lose_no_file(tmp_path: Path) -> None:
    """More of them than manifests stay, so that free numbers come again."""
    store = FolderStore(tmp_path)
    empty = look(0, (), None)

    def named(new: str, newest: Manifest) -> Manifest | None:
        return None if new in newest.unused else newest._next((), {**newest.unused, new: 1})

    def commits(lane: int) -> None:
        for at in range(12):
            known = snapshot.look_at(store, 0) if at % 3 == 0 else empty
            snapshot.commit(store, known, partial(named, f"{lane}-{at}"))

    lanes = [threading.Thread(target=commits, args=(lane,)) for lane in range(4)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join(60)
    found = snapshot.look_at(store, 0).manifest
    assert found is not None
    assert (found.number, len(found.unused)) == (48, 48)
    assert len(store.names(manifests.FOLDER)) <= manifests.KEPT + 1


class WithoutLocks(FolderStore):
    """As an object store."""

    def lock(self, name: str, refusal: str) -> None:
        return None


def facts(path: Path) -> list[tuple[str, int]]:
    with open_log(path) as log:
        return [(each.group, each.append_ms) for each in log.read() if isinstance(each, FactRecord)]


@pytest.mark.parametrize("theirs", [[("g", 6), ("g", 7)], [("g", 6)], [("h", 6)]])
def test_two_that_append_at_once_lose_nothing(tmp_path: Path, theirs: list[tuple[str, int]]) -> None:
    store = WithoutLocks(tmp_path / "archive")
    make_archive(store)
    ticks(store.root, 0, "g")
    first, second = (ArchivePartition(store, 0, "a", "archive") for _ in range(2))

    def both() -> None:
        with first.transaction():
            first.append_fact("g", 6, ProbingTick())
            with second.transaction():
                for group, at_ms in theirs:
                    second.append_fact(group, at_ms, ProbingTick())

    if theirs[0] == ("g", 6):
        both()
    else:
        with pytest.raises(LogError, match="another process has appended other records meanwhile"):
            both()
    assert facts(store.root) == [("", 1), ("g", 5), *theirs]
    with first.transaction():
        first.append_fact("g", 9, ProbingTick())
    assert facts(store.root) == [("", 1), ("g", 5), *theirs, ("g", 9)]


def test_writer_killed_before_its_commit_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_WAITS_S", ())
    path = tmp_path / "archive"
    ticks(path, 0, "g", "g", partitions=1)
    max((path / manifests.FOLDER).iterdir()).unlink()
    with open_log(path) as log:
        assert len(list(log.read())) == 2
        found = verify_log(log)
    assert found.verdict is Verdict.CANNOT_VERIFY
    assert "is behind the end of its newest manifest, 2: the next one is missing, or a writer was killed" in found.problem
    with open_log(path, "a") as log:
        assert log.position() == 3
    with open_log(path) as log:
        assert [len(list(log.read())), verify_log(log).problem] == [3, ""]


def test_reader_waits_for_a_writer_between_files_and_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "archive"
    ticks(path, 0, "g", "g", partitions=1)
    newest = max((path / manifests.FOLDER).iterdir())
    newest.rename(tmp_path / "kept")
    monkeypatch.setattr("time.sleep", lambda _: (tmp_path / "kept").rename(newest))
    assert snapshot.look_at(FolderStore(path), 0).state is PartitionState.COMMITTED


def test_archive_without_manifests_is_read_and_its_end_is_not_proven(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    for partition in (0, 1):
        ticks(path, partition, "gh"[partition])
    shutil.rmtree(path / manifests.FOLDER)
    with open_log(path) as log:
        extent = verify_log(log).extent
    assert extent is not None
    assert [(each.partition, each.next_offset, each.manifest) for each in extent.read] == [(0, 2, None), (1, 2, None)]
    assert extent_text(extent) == (
        "read 2 of 2 partitions: partition 0 up to offset 2, partition 1 up to offset 2; nothing proves the end of each of them: "
        "an archive of an earlier build, or a damaged one"
    )
    ticks(path, 1, "h")
    with open_log(path) as log:
        extent = verify_log(log).extent
    assert extent is not None
    assert "partition 1 up to offset 3; nothing proves the end of partition 0: an archive of an earlier build" in extent_text(extent)
    compact(store_at(path))
    with open_log(path) as log:
        extent = verify_log(log).extent
    assert extent is not None
    assert extent_text(extent) == "read 2 of 2 partitions: partition 0 up to offset 2, partition 1 up to offset 3; a manifest proves each end"
