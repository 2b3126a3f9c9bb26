"""Stores: offset and content agree, also after a kill -9. State directories: lock and proof of
death.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.stores import PROGRESS_KEY, DamagedStoreError, MemoryStore, OpenStore, RocksMemory, RocksStore, StateStore

BOTH = pytest.mark.parametrize("open_store", [MemoryStore, RocksStore])


@BOTH
def test_store_holds_applied_changes(open_store: OpenStore, tmp_path: Path) -> None:
    store: StateStore = open_store(tmp_path / "store")
    assert (store.offset, list(store.items())) == (0, [])
    store.apply({b"b": b"1", b"a": b"2", b"c": b"4"}, offset=3)
    store.apply({b"b": b"3", b"c": None}, offset=5)
    assert store.offset == 5
    assert list(store.items()) == [(b"a", b"2"), (b"b", b"3")]
    assert (store.get(b"b"), store.get(b"c")) == (b"3", None)
    store.apply({}, offset=9, bulk=True)
    assert store.offset == 9
    store.wipe()
    assert (store.offset, list(store.items())) == (0, [])
    store.apply({b"\x00": b""}, offset=1)
    assert list(store.items()) == [(b"\x00", b"")]
    store.close()


@pytest.mark.parametrize("at", [0.01, 0.3, 0.5, 0.9])
def test_damaged_files_are_never_a_smaller_state(at: float, tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    store.apply({b"k%05d" % number: os.urandom(100) for number in range(20_000)}, offset=1)
    store._db.flush()
    store.close()
    (file,) = tmp_path.glob("*.sst")
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DamagedStoreError, match="the files of this store are damaged"):  # noqa: PT012  # the first block has the position
        store = RocksStore(tmp_path)
        assert len(list(store.items(b"k00000", b"k00005"))) == 5
        list(store.items())
    for key in (b"k%05d" % number for number in range(20_000)):
        try:
            assert at == 0.01 or store.get(key) is not None
        except DamagedStoreError:
            break
    else:
        assert at == 0.01, "no key was in the damaged block"
    store.close()


def test_files_that_cannot_be_opened_for_damage_say_so(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (manifest,) = tmp_path.glob("MANIFEST*")
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(bytes(content))
    with pytest.raises(DamagedStoreError, match="damaged"):
        RocksStore(tmp_path)


@BOTH
def test_store_reads_ranges_and_many_keys(open_store: OpenStore, tmp_path: Path) -> None:
    store: StateStore = open_store(tmp_path / "store")
    store.apply({key: b"v" + key for key in (b"", b"a", b"aa", b"b", b"\xff")}, offset=1)
    assert [key for key, _ in store.items(b"a", b"b")] == [b"a", b"aa"]
    assert [key for key, _ in store.items(b"aaa")] == [b"b", b"\xff"]
    assert [key for key, _ in store.items(end=b"a")] == [b""]
    assert list(store.items(b"c", b"d")) == []
    assert store.get_many([b"b", b"x", b"", b"b"]) == [b"vb", None, b"v", b"vb"]
    assert store.get_many([]) == []
    store.close()


@pytest.mark.parametrize("bulk", [True, False])
def test_rocks_store_reopened_keeps_its_offset(tmp_path: Path, bulk: bool) -> None:
    store = RocksStore(tmp_path)
    store.apply({b"a": b"1"}, offset=10, bulk=bulk)
    store.close()
    again = RocksStore(tmp_path)
    assert (again.offset, again.get(b"a")) == (10, b"1")
    with pytest.raises(InputError, match="cannot open RocksDB"):
        RocksStore(tmp_path)
    again.close()


def test_rocks_store_refuses_its_own_key(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    with pytest.raises(InputError, match="use another key"):
        store.apply({PROGRESS_KEY: b"1"}, offset=1)
    assert store.offset == 0
    store.close()


@pytest.mark.parametrize("write_buffer_bytes", [2 * 2**20, 64 * 2**20])
def test_rocks_stores_share_their_memory(tmp_path: Path, write_buffer_bytes: int) -> None:
    memory = RocksMemory(write_buffer_bytes=write_buffer_bytes)
    stores = [RocksStore(tmp_path / str(number), memory) for number in range(20)]
    for begin in range(0, 1_000, 50):
        for store in stores:
            store.apply({b"%d" % number: bytes(1_000) for number in range(begin, begin + 50)}, offset=begin + 50)
    end_s = time.monotonic() + 10
    offset = 1_000
    while memory.write_buffers.get_usage() > write_buffer_bytes and time.monotonic() < end_s:
        offset += 1
        for store in stores:
            store.apply({b"0": b""}, offset=offset)
        time.sleep(0.05)  # files are written by another thread
    used_bytes = memory.write_buffers.get_usage()
    assert used_bytes <= write_buffer_bytes
    assert (used_bytes > 20 * 10**6) == (write_buffer_bytes > 20 * 10**6), "20 MB were written"
    for store in stores:
        assert len(list(store.items())) == 1_000
        store.close()


_WRITER = """
import os, sys
from pathlib import Path
from equipoise.member.copies.stores import RocksStore
store = RocksStore(Path(sys.argv[1]))
number = store.offset
while True:
    number += 1
    store.apply({str(number % 1000).encode(): str(number).encode() + bytes(2000)}, offset=number, bulk=number % 50000 > 500)
    if number % 5000 == 0:
        os.write(1, b"%d\\n" % number)
"""


def test_store_killed_offset_matches_content(tmp_path: Path) -> None:
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(3):
            said = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = RocksStore(tmp_path)
        assert store.offset >= said - said % 50000  # writes without bulk are kept
        for number in range(max(1, store.offset - 999), store.offset + 1):
            value = store.get(str(number % 1000).encode())
            assert value is not None
            assert int(value.rstrip(b"\0")) == number
        assert len(list(store.items())) == min(store.offset, 1000)
        store.close()


# -------------------------------------------------------------------------------------- directories


def names() -> st.SearchStrategy[str]:
    """Names of at most 249 bytes of UTF-8."""
    letters = st.sampled_from(["a", "A", ".", "%", "/", "ü", "€", "𝄞", "\u0301"]) | st.characters(exclude_categories=["Cs", "Cc"])
    text = st.text(letters, min_size=1, max_size=30)
    return st.builds(lambda part, times: (part * times).encode()[:249].decode(errors="ignore"), text, st.integers(1, 249))


def test_directory_keeps_stores_and_last_incarnation(tmp_path: Path) -> None:
    with StateDirectory(tmp_path, "or/ders", "..") as directory:
        assert directory.last_incarnation is None
        directory.begin(7, "log-1")
        assert directory.stores() == []
        for task, topic in ((TaskId(0, 10), "a.log"), (TaskId(0, 2), "b%log"), (TaskId(0, 2), "a.log")):
            RocksStore(directory.store(task, topic)).close()
        (directory.folder / "tasks" / "lost+found").mkdir()
    with StateDirectory(tmp_path, "or/ders", "..") as directory:
        assert (directory.last_incarnation, directory.ended_incarnation, directory.last_log_id) == (7, 7, "log-1")
        assert directory.stores() == [(TaskId(0, 2), "a.log"), (TaskId(0, 2), "b%log"), (TaskId(0, 10), "a.log")]
        directory.remove(TaskId(0, 2))
        assert directory.stores() == [(TaskId(0, 10), "a.log")]
    assert list(tmp_path.iterdir()) == [tmp_path / "or%2Fders"]


@given(group=names(), member=names(), other=names())
@example(group="ü" * 124, member="ü" * 120 + "a", other="ü" * 120 + "b")
@example(group="g" * 249, member="%" * 249, other="." * 249)
@settings(max_examples=50, deadline=None)
def test_every_name_has_a_directory_of_its_own(group: str, member: str, other: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        with StateDirectory(root, group, member) as directory:
            directory.begin(7)
            assert directory.folder.parent.parent == Path(root)
            if other != member:
                with StateDirectory(root, group, other) as another:
                    assert another.last_incarnation is None
        with StateDirectory(root, group, member) as directory:
            assert directory.last_incarnation == 7


@pytest.mark.parametrize("text", ["", "{", "[]", '{"incarnation": "7"}', '{"incarnation": -1}'])
def test_damaged_incarnation_file_proves_nothing(tmp_path: Path, text: str) -> None:
    with StateDirectory(tmp_path, "g", "m") as directory:
        (directory.folder / "incarnation.json").write_text(text)
    with StateDirectory(tmp_path, "g", "m") as directory:
        assert (directory.last_incarnation, directory.ended_incarnation, directory.unproven) == (None, None, "")


_HOLDER = """
import sys, time
from equipoise.member.copies.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "g", "m")
directory.begin(41)
print("held", flush=True)
time.sleep(600)
"""


def _locked(tmp_path: Path) -> bool:
    try:
        StateDirectory(tmp_path, "g", "m").close()
    except InputError as error:
        return "a live process has" in str(error)
    return False


@pytest.mark.parametrize("end", [lambda process: os.kill(process.pid, signal.SIGKILL), lambda process: process.terminate()])
def test_lock_is_held_until_its_process_ends(tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    os.kill(process.pid, signal.SIGSTOP)
    assert _locked(tmp_path)  # a stopped process is not dead
    os.kill(process.pid, signal.SIGCONT)
    end(process)
    process.wait()
    process.stdout.close()
    assert not _locked(tmp_path)
    with StateDirectory(tmp_path, "g", "m") as directory:
        assert (directory.last_incarnation, directory.ended_incarnation, directory.unproven) == (41, 41, "")


@contextlib.contextmanager
def _held(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A live process that holds the directory as incarnation 41."""
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(root)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _proof(root: Path) -> tuple[int | None, int | None, str]:
    with StateDirectory(root, "g", "m") as directory:
        return directory.last_incarnation, directory.ended_incarnation, directory.unproven


@pytest.mark.parametrize("copy", [["cp", "-r"], ["cp", "-a"]])
def test_copied_directory_proves_nothing_while_the_original_lives_or_after(tmp_path: Path, copy: list[str]) -> None:
    with _held(tmp_path / "a"):
        subprocess.run([*copy, str(tmp_path / "a"), str(tmp_path / "b")], check=True)
        last, ended, why = _proof(tmp_path / "b")
        assert (last, ended) == (41, None)
        assert "the directory was copied or restored" in why
    assert _proof(tmp_path / "b")[:2] == (41, None)
    assert _proof(tmp_path / "a") == (41, 41, "")


def test_moved_directory_keeps_its_lock(tmp_path: Path) -> None:
    with _held(tmp_path / "a"):
        subprocess.run(["mv", str(tmp_path / "a"), str(tmp_path / "b")], check=True)
        with pytest.raises(InputError, match="a live process has"):
            StateDirectory(tmp_path / "b", "g", "m")
        assert _proof(tmp_path / "a") == (None, None, "")  # a new directory under the former path knows of no incarnation
    assert _proof(tmp_path / "b") == (41, 41, "")


def test_replaced_lock_file_proves_nothing(tmp_path: Path) -> None:
    with _held(tmp_path):
        (tmp_path / "g" / "m" / "lock").unlink()
        last, ended, why = _proof(tmp_path)
        assert (last, ended) == (41, None)
        assert "the lock file is another one" in why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"boot_id": "00000000-0000-0000-0000-000000000000"}, "another machine, or before the last boot of this one"),
        ({"boot_id": None}, "another machine, or before the last boot of this one"),
        ({"lock": None}, "the lock file is another one"),
        ({"format": 1}, "written by another version"),
        ({"format": 3}, "written by another version"),
    ],
)
def test_incarnation_of_another_boot_lock_or_format_is_not_proven_dead(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    with StateDirectory(tmp_path, "g", "m") as directory:
        directory.begin(41)
        written = directory.folder / "incarnation.json"
    written.write_text(json.dumps({**json.loads(written.read_text()), **changes}))
    last, ended, reason = _proof(tmp_path)
    assert (last, ended) == (41, None)
    assert why in reason


def test_directory_of_the_former_format_proves_nothing(tmp_path: Path) -> None:
    with StateDirectory(tmp_path, "g", "m") as directory:
        (directory.folder / "incarnation.json").write_text('{"incarnation": 41}')
    assert _proof(tmp_path) == (41, None, "the directory was written by another version of equipoise")


def test_system_without_boot_ids_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.hosting.runtime.BOOT_ID", tmp_path / "none")
    with StateDirectory(tmp_path, "g", "m") as directory:
        directory.begin(41)
    last, ended, why = _proof(tmp_path)
    assert (last, ended) == (41, None)
    assert "which identifies a boot of a machine" in why
