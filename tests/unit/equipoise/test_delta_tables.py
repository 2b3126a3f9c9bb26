"""Results as tables of Delta Lake: a version each, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from equipoise.cli.output_tables import check_tables, new_tables
from equipoise.events.errors import InputError, StorageError
from tests.object_store import ObjectStoreServer, serving

NAMES = frozenset({"costs", "ranking"})
ROWS = 20


def put(location: str, value: int, names: frozenset[str] = frozenset()) -> None:
    """Writes tables of `value` alone."""
    with new_tables("--to", location, names) as part:
        for name in names or {"."}:
            (part / name).mkdir(parents=True)
            parquet.write_table(pa.table({"group": ["g"] * ROWS, "value": [value] * ROWS}), part / name / "rows.parquet")


def values(uri: Path | str, **options: Any) -> tuple[int, set[int]]:
    """Version, and the values of its rows, of which there are ROWS."""
    table = DeltaTable(str(uri), **options)
    rows = table.to_pyarrow_table().column("value").to_pylist()
    assert len(rows) == ROWS
    return table.version(), set(rows)


@pytest.mark.parametrize("names", [frozenset(), NAMES])
def test_each_run_is_a_version(tmp_path: Path, names: frozenset[str]) -> None:
    for version in range(3):
        put(f"delta:{tmp_path}/history/", version * 10, names)
        for name in names or {"."}:
            assert values(tmp_path / "history" / name) == (version, {version * 10})
    assert DeltaTable(str(tmp_path / "history" / min(names, default="")), version=0).to_pyarrow_table().num_rows == ROWS


def test_columns_of_a_later_run_may_be_others(tmp_path: Path) -> None:
    put(f"delta:{tmp_path}/one", 1)
    with new_tables("--to", f"delta:{tmp_path}/one") as part:
        part.mkdir()
        parquet.write_table(pa.table({"other": [1.5]}), part / "rows.parquet")
    assert DeltaTable(str(tmp_path / "one")).to_pyarrow_table().to_pylist() == [{"other": 1.5}]


def test_what_is_no_table_of_ours_stays(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "theirs"), pa.table({"value": [1]}))
    with pytest.raises(InputError, match=r"--to delta:.*theirs: holds a Delta table of something else, and stays as it is"):
        put(f"delta:{tmp_path}/theirs", 2)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="files: holds something else than tables of equipoise, and stays as it is"):
        check_tables("--to", f"delta:{tmp_path}/files")
    with pytest.raises(InputError, match="there is no such folder to make it in"):
        check_tables("--to", f"delta:{tmp_path}/nothing/there")
    with pytest.raises(InputError, match="webhdfs: is not supported; mount it, and name the folder"):
        check_tables("--to", "delta:webhdfs://host/there")


def test_block_that_fails_writes_nothing(tmp_path: Path) -> None:
    put(f"delta:{tmp_path}/one", 1)

    def fail() -> None:
        with new_tables("--to", f"delta:{tmp_path}/one") as part:
            part.mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert values(tmp_path / "one") == (0, {1})


KILLED = """
import os, signal, sys
import equipoise.cli.delta_tables as tables
from tests.unit.equipoise.test_delta_tables import put
from pyarrow import parquet

class Dying(parquet.ParquetFile):
    def iter_batches(self, *args):
        for at, batch in enumerate(super().iter_batches(4)):
            if at == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
        if int(sys.argv[2]) == 5:
            os.kill(os.getpid(), signal.SIGKILL)

parquet.ParquetFile = Dying
put(sys.argv[1], 2)
"""


@pytest.mark.parametrize("at", [0, 2, 4, 5, 9])
def test_killed_writer_leaves_the_former_version(tmp_path: Path, at: int) -> None:
    """In the middle of the rows, and behind the last one. With 9 it is not killed."""
    put(f"delta:{tmp_path}/one", 1)
    done = subprocess.run([sys.executable, "-c", KILLED, f"delta:{tmp_path}/one", str(at)], check=False, env=dict(os.environ))
    assert done.returncode == (0 if at == 9 else -signal.SIGKILL)
    assert values(tmp_path / "one") == ((1, {2}) if at == 9 else (0, {1}))
    put(f"delta:{tmp_path}/one", 3)
    assert values(tmp_path / "one")[1] == {3}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStoreServer]:
    with serving() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def test_tables_in_a_bucket_are_the_former_or_the_new_version(server: ObjectStoreServer) -> None:
    place, options = "s3://bucket/costs", {"allow_http": "true"}
    put(f"delta:{place}/", 1, NAMES)
    for step, written in (("PUT /bucket/costs/costs/part", 1), ("PUT /bucket/costs/costs/_delta_log", 1), ("PUT /bucket/costs/ranking/", 2)):
        with server.failing(step), pytest.raises(StorageError, match="readers find the former rows of the tables that are not written"):
            put(f"delta:{place}/", 2, NAMES)
        assert values(f"{place}/costs", storage_options=options)[1] == {written}
        assert values(f"{place}/ranking", storage_options=options)[1] == {1}
    put(f"delta:{place}/", 3, NAMES)
    assert {values(f"{place}/{name}", storage_options=options)[1].pop() for name in NAMES} == {3}
