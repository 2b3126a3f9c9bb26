"""What each release has stored is read by this build: logs in every form of a file, and the state
directories of members (`tools/stored.py`).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from equipoise.log import open_log
from equipoise.log.parquet.log import ArchiveLog
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.stores import RocksStore
from equipoise.replay.timelines import build_timeline
from equipoise.replay.verification import Verdict, verify
from tools import stored

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "data" / "stored"
RELEASES = sorted(path.name for path in STORED.iterdir())


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy: reading may write beside it."""
    shutil.copytree(STORED / request.param, tmp_path / "stored")
    return tmp_path / "stored"


@pytest.mark.parametrize("name", ["log.jsonl", "log.db", "archive/"])
def test_log_of_a_release_verifies_to_the_byte_and_has_its_history(release: Path, name: str) -> None:
    with open_log(f"{release}/{name}") as log:
        entries = list(log.read())
        found = verify(entries)
    assert found.verdict is Verdict.IDENTICAL, found.problems
    (group,) = found.groups
    assert found.records == len(entries) > stored.RECORDS
    assert (group.not_compared, group.not_yet_written) == (0, 0), "a state in an older form is counted apart: see tests/data/logs"
    assert build_timeline(entries, group=group.group).totals().stopped_ms > 0


def test_log_of_a_release_is_continued(release: Path) -> None:
    with ArchiveLog(f"{release}/archive", "r") as source, open_log(release / "more.db", "a") as target, target.transaction():
        assert [target.append_row(row) for row, _ in source.part(0).checked_rows()].count(False) == 0
    with open_log(release / "more.db") as log, open_log(release / "log.db") as same:
        assert list(log.read()) == list(same.read())


def test_state_directory_of_a_release_is_opened(release: Path) -> None:
    with StateDirectory(release / "state", stored.GROUP, stored.MEMBER) as directory:
        assert (directory.last_incarnation, directory.last_log_id) == (stored.INCARNATION, stored.LOG_ID)
        assert directory.ended_incarnation is None
        assert "another machine" in directory.unproven or "the lock file is another one" in directory.unproven
        assert directory.stores() == [(stored.TASK, stored.TOPIC)]
        store = RocksStore(directory.store(stored.TASK, stored.TOPIC))
        assert (store.offset, dict(store.items())) == (stored.POSITION, stored.STATE)
        store.close()


def test_this_build_stores_what_its_release_has(tmp_path: Path) -> None:
    """What is released never changes; what is not, is written again by `python -m tools.stored`."""
    stored.write(tmp_path / "now")
    files = subprocess.run(["git", "ls-files", "."], cwd=STORED / RELEASES[-1], capture_output=True, text=True, check=True).stdout.split()
    assert {Path(name).parts[0] for name in files} == {path.name for path in (tmp_path / "now").iterdir()}
    with open_log(tmp_path / "now" / "log.jsonl") as now, open_log(STORED / RELEASES[-1] / "log.jsonl") as released:
        assert verify(now.read()).verdict is verify(released.read()).verdict is Verdict.IDENTICAL
