"""What a process takes of its host, measured on this one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from equipoise.member import hostload
from equipoise.member.hostload import DISK_EVERY_MS, HostLoad
from equipoise.member.rates import LOOK_EVERY_MS


def burn(seconds: float) -> None:
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_processor_time_is_a_share_of_the_processors_there_are() -> None:
    load = HostLoad(None)
    assert load.look(1_000).cpu == 0.0, "nothing to measure from yet"
    burn(0.2)
    measured = load.look(1_000 + LOOK_EVERY_MS)
    least = 0.2 / (LOOK_EVERY_MS / 1_000) / hostload.processors()
    assert least * 0.99 <= measured.cpu <= least * 3
    assert 0 < measured.memory < 1
    assert measured.disk == 0.0, "it keeps no state on disk"
    burn(0.05)
    assert load.look(1_001 + LOOK_EVERY_MS) == measured, "too soon"


def test_disk_is_what_its_stores_take_of_their_file_system(tmp_path: Path) -> None:
    load = HostLoad(tmp_path)
    assert load.look(0).disk == 0.0
    (tmp_path / "0_0").mkdir()
    (tmp_path / "0_0" / "store.sst").write_bytes(b"x" * 1_000)
    assert hostload.bytes_in(tmp_path) == 1_000
    assert load.look(DISK_EVERY_MS - 1).disk == 0.0
    (tmp_path / "0_0" / "more.sst").write_bytes(b"x" * 9_000_000)
    assert load.look(DISK_EVERY_MS).disk > 0.0


def test_a_containers_limits_are_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostload, "_CGROUP", tmp_path)
    unlimited, machine = hostload.processors(), hostload.memory_bytes()
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert (hostload.processors(), hostload.memory_bytes()) == (0.5, 1_000_000)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (hostload.processors(), hostload.memory_bytes()) == (unlimited, machine)


def test_where_nobody_tells_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostload, "_STATM", tmp_path / "none")
    assert hostload.resident_bytes() == 0
    assert HostLoad(None).look(0).memory == 0.0
