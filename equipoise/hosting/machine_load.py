"""How much of its machine this process uses."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import attrs

MEASURE_EVERY_MS = 5_000
"""Over a shorter time, one batch more or less would change the measured rate."""
DISK_EVERY_MS = 30_000
"""Adding up the files of many stores takes a while, and they grow slowly."""
_CGROUP = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")


@attrs.frozen(kw_only=True)
class HostShares:
    """Shares of the host's processors, memory and disk that this process uses, 0 to 1. 0: not
    measured.
    """

    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0


class HostLoad:
    """Measures `HostShares`: of this process alone, because other processes are no task's load. A
    container's limits count as the host (cgroup v2). A share that the operating system does not
    report is 0.

    `folder`: where the member keeps its state; None: it has no state on disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shares = HostShares()
        self._looked_ms: int | None = None
        self._disk_ms: int | None = None
        self._used_s = 0.0
        self._processors, self._memory_bytes = processors(), memory_bytes()

    def look(self, now_ms: int) -> HostShares:
        """The last measured shares; measures again after MEASURE_EVERY_MS (disk: DISK_EVERY_MS).
        `now_ms`: on a clock that does not go back.
        """
        if self._looked_ms is None or now_ms - self._looked_ms >= MEASURE_EVERY_MS:
            used_s = time.process_time()
            cpu = 0.0 if self._looked_ms is None else (used_s - self._used_s) * 1_000 / (now_ms - self._looked_ms) / self._processors
            self._looked_ms, self._used_s = now_ms, used_s
            memory = resident_bytes() / self._memory_bytes if self._memory_bytes else 0.0
            self._shares = attrs.evolve(self._shares, cpu=round(cpu, 4), memory=round(memory, 4))
        if self._folder is not None and (self._disk_ms is None or now_ms - self._disk_ms >= DISK_EVERY_MS):
            self._disk_ms = now_ms
            disk = bytes_in(self._folder) / shutil.disk_usage(self._folder).total
            self._shares = attrs.evolve(self._shares, disk=round(disk, 6))
        return self._shares


def processors() -> float:
    """Processors that this process may use, at least 0.01."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    limit = _read(_CGROUP / "cpu.max").split()
    if len(limit) == 2 and limit[0].isdigit() and int(limit[1]):
        count = min(count, int(limit[0]) / int(limit[1]))
    return max(0.01, count)


def memory_bytes() -> int:
    """Memory that this process may use; 0: not known."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
    limit = _read(_CGROUP / "memory.max").strip()
    return min(machine, int(limit)) if limit.isdigit() else machine


def resident_bytes() -> int:
    """Resident memory of this process; 0: not known."""
    pages = _read(_STATM).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def bytes_in(folder: Path) -> int:
    """Size of all files under `folder`. Files that vanish meanwhile (a store is compacted) count as
    nothing.
    """
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
