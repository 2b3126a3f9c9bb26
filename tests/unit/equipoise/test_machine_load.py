"""The shares of its machine that this process uses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from equipoise.hosting import machine_load as module
from equipoise.hosting.machine_load import DISK_EVERY_MS, MEASURE_EVERY_MS, HostLoad


def burn(seconds: float) -> None:
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_cpu_is_a_share_of_the_available_processors() -> None:
    load = HostLoad(None)
    assert load.look(1_000).cpu == 0.0, "nothing to measure from yet"
    burn(0.2)
    measured = load.look(1_000 + MEASURE_EVERY_MS)
    least = 0.2 / (MEASURE_EVERY_MS / 1_000) / module.processors()
    assert least * 0.99 <= measured.cpu <= least * 3
    assert 0 < measured.memory < 1
    assert measured.disk == 0.0, "it keeps no state on disk"
    burn(0.05)
    assert load.look(1_001 + MEASURE_EVERY_MS) == measured, "too soon"


def test_disk_is_the_share_of_the_file_system_that_its_stores_use(tmp_path: Path) -> None:
    load = HostLoad(tmp_path)
    assert load.look(0).disk == 0.0
    (tmp_path / "0_0").mkdir()
    (tmp_path / "0_0" / "store.sst").write_bytes(b"x" * 1_000)
    assert module.bytes_in(tmp_path) == 1_000
    assert load.look(DISK_EVERY_MS - 1).disk == 0.0
    (tmp_path / "0_0" / "more.sst").write_bytes(b"x" * 9_000_000)
    assert load.look(DISK_EVERY_MS).disk > 0.0


def test_limits_of_a_container_count_as_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CGROUP", tmp_path)
    unlimited, machine = module.processors(), module.memory_bytes()
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert (module.processors(), module.memory_bytes()) == (0.5, 1_000_000)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (module.processors(), module.memory_bytes()) == (unlimited, machine)


def test_share_that_the_system_does_not_report_is_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATM", tmp_path / "none")
    assert module.resident_bytes() == 0
    assert HostLoad(None).look(0).memory == 0.0
