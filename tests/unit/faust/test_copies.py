"""Copies on a worker's disk, with Faust's real stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faust
from faust.types import TP

from equipoise.faust.copies import Copies, is_persistent, worker_name

TOPIC = "app-counts-changelog"


def app_in(folder: Path, store: str = "rocksdb://") -> Any:
    app = faust.App("app", broker="kafka://nowhere", store=store, datadir=str(folder), autodiscover=False)
    app.conf.tabledir.mkdir(parents=True, exist_ok=True)
    app.Table("counts", partitions=4)
    return app


def test_offsets_are_of_open_copies_and_of_those_on_the_disk_which_stay_closed(tmp_path: Path) -> None:
    before = app_in(tmp_path)
    for number in (0, 2, 3):
        before.tables["counts"].data.set_persisted_offset(TP(TOPIC, number), 100 + number)
    for database in before.tables["counts"].data._dbs.values():
        database.close()
    app = app_in(tmp_path)
    store, copies = app.tables["counts"].data, Copies(app)
    store.set_persisted_offset(TP(TOPIC, 2), 500)
    assert copies.offsets() == {TOPIC: {0: 100, 2: 500, 3: 103}}
    assert list(store._dbs) == [2]
    store.set_persisted_offset(TP(TOPIC, 3), 700)  # it is open now, and gets on
    assert copies.offsets() == {TOPIC: {0: 100, 2: 500, 3: 700}}


def test_table_in_memory_has_no_copies(tmp_path: Path) -> None:
    app = app_in(tmp_path, "memory://")
    assert not is_persistent(app.tables["counts"])
    assert Copies(app).offsets() == {}


def test_global_table_is_everywhere_and_so_does_not_count(tmp_path: Path) -> None:
    app = app_in(tmp_path)
    assert not is_persistent(app.GlobalTable("all", partitions=1))


def test_worker_has_the_same_name_after_a_restart_and_another_one_than_other_workers(tmp_path: Path) -> None:
    name = worker_name(tmp_path / "w1")
    assert worker_name(tmp_path / "w1") == name
    assert worker_name(tmp_path / "w2") != name
