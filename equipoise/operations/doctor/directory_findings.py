"""Findings about state directories on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from equipoise.hosting.runtime import DEPLOYED
from equipoise.operations.doctor.finding import Finding, fine, problem, warning

LEAST_FREE = 0.05
"""Part of the disk that should be free."""
MOUNTS = Path("/proc/mounts")
_OF_THE_NETWORK = ("nfs", "cifs", "smb", "ceph", "gluster", "lustre", "fuse.sshfs", "fuse.s3fs", "9p")
_IN_MEMORY = ("tmpfs", "ramfs")


def of_state_directory(folder: Path) -> Iterable[Finding]:
    """Space, kind of file system, and whether a member may write and lock there."""
    there = folder if folder.exists() else next(each for each in folder.absolute().parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield problem("disk", f"{folder}: this user may not write there", f"chown it to the member's user: {there}")
        return
    kind = file_system(there)
    if kind.startswith(_OF_THE_NETWORK):
        fix = "put it on a disk of the machine (docs/restarts.md#state-directories)"
        yield problem("disk", f"{folder} is on a network file system ({kind}): a lock there proves nothing", fix)
    elif kind in _IN_MEMORY:
        yield warning("disk", f"{folder} is in memory ({kind}): every reboot restores all state", "put it on a disk")
    try:
        locks = _locks(there)
    except OSError as error:  # of a file system that takes no files, as /proc
        yield problem("disk", f"{folder}: no file can be made there: {error.strerror or error}", "name a directory on a disk of the machine")
        return
    if not locks:
        yield problem("disk", f"{folder}: files there cannot be locked", "put it on a file system with flock")
    if DEPLOYED.boot_id() is None:
        yield warning("disk", "this system has no boot id: a restarted member cannot prove that its former process is dead", "run members on Linux")
    usage, used = shutil.disk_usage(there), _bytes_in(folder)
    text = f"{folder}: {_size(used)} of state, {_size(usage.free)} free of {_size(usage.total)}"
    if usage.free < used or usage.free < LEAST_FREE * usage.total:
        yield warning("disk", f"{text}: compaction of a store needs as much space again while it runs", "free disk space, or use a larger disk")
    else:
        yield fine("disk", text)


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """The kind of file system; "": unknown."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    place = folder.resolve()
    found = [(len(line[1]), number, line[2]) for number, line in enumerate(lines) if place.is_relative_to(line[1].replace("\\040", " "))]
    return max(found, default=(0, 0, ""))[2]


def _locks(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix=".equipoise-doctor-", dir=folder) as made:
        try:
            DEPLOYED.lock(Path(made) / "lock").release()
        except OSError:
            return False
    return True


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # a store that is compacted
                continue
    return total


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1_000 or unit == "TB":
            break
        size /= 1_000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
