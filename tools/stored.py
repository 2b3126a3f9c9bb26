"""Writes what a build stores, so that later builds are tested with it: `make release` adds a folder
to tests/data/stored for each version. By hand: `python -m tools.stored tests/data/stored/0.1.0`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from equipoise.events.tasks import TaskId
from equipoise.log import open_log
from equipoise.log.parquet.log import ArchiveLog
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.stores import RocksStore
from equipoise.replay.verification import verify
from examples.fleet.many_groups import Fleet, make_fleet

GROUPS, RECORDS, SEED = 1, 400, 10
STATE = {f"key {number}".encode(): f"value {number}".encode() * 3 for number in range(50)}
POSITION = 50
TASK, TOPIC, GROUP, MEMBER = TaskId(0, 3), "orders-counts", "orders", "m1"
INCARNATION, LOG_ID = 7, "a-log"


def write(folder: Path) -> None:
    """Writes a log in each form of a file, and the state directory of a member. Raises ValueError
    for a log that does not verify.
    """
    folder.mkdir(parents=True)
    make_fleet(Fleet(groups=GROUPS, records=RECORDS, seed=SEED), folder / "archive", processes=1)
    for name in ("log.jsonl", "log.db"):
        with ArchiveLog(f"{folder}/archive", "r") as source, open_log(folder / name, "w") as target, target.transaction():
            for row, _ in source.part(0).checked_rows():
                target.append_row(row)
        with open_log(folder / name) as log:
            if verify(log.read()).problems:
                raise ValueError(f"{folder / name} does not verify")
    with StateDirectory(folder / "state", GROUP, MEMBER) as directory:
        directory.begin(INCARNATION, LOG_ID)
        store = RocksStore(directory.store(TASK, TOPIC))
        store.apply(dict(STATE), offset=POSITION)
        store.close()
        for diary in directory.store(TASK, TOPIC).glob("LOG*"):
            diary.unlink()  # names this machine's folders
    for lock in (folder / "state").rglob("lock"):
        lock.write_text("")


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    write(Path(sys.argv[1]))
