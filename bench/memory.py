"""Peak memory of this process."""

from __future__ import annotations

from pathlib import Path


def peak_mb() -> float:
    """Peak resident memory, in MiB. Linux only.

    Not `ru_maxrss`: the kernel hands that one on through fork and exec, so that a small child of a
    large process is as large as its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError("/proc/self/status has no line VmHWM")
