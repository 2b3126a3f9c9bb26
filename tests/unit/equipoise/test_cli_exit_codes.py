"""Commands that are ended by Ctrl-C, by SIGTERM or by a full disk: one line names the files
written and how to resume, and no temporary file is left.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from equipoise.events.errors import LogError
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import all_parts, by_partition
from equipoise.replay.parallel import ProcessDiedError, in_processes
from examples.fleet.many_groups import Fleet, make_fleet
from tests.unit.equipoise.test_output import contents
from tests.unit.replay.lived import lived, write

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "equipoise"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
SIGNALS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
"""A test for each of many commands, so one signal is enough for `make test`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ended")
    with open_log(place / "group.db", "w") as log:
        write(log, lived())
    make_fleet(Fleet(groups=1, records=300), place / "small")
    return place


def processes_of(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def command_of(line: str) -> list[str]:
    """`line`: a command and its arguments, or ``.MODULE`` of equipoise and its arguments."""
    name, *words = line.split()
    return [*COMMAND[:-1], name, *words] if "." in name else [*COMMAND, name, *words]


def ended(line: str, folder: Path, target: Path, sign: str, which: signal.Signals, *, whole_group: bool = False) -> tuple[int, str]:
    """Runs a command on a terminal, ends it once `sign` shows there; returns its exit code and what
    came on the terminal behind the sign.

    `whole_group`: the signal goes to all processes of the terminal, as Ctrl-C does.
    """
    leader, follower = pty.openpty()
    command = command_of(line.format(f=folder, t=target))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
    os.close(follower)
    drawn, at = b"", -1
    watchdog = threading.Timer(100, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    while True:
        try:
            piece = os.read(leader, 65_536)
        except OSError:  # Linux says EIO when the last writer has gone
            break
        drawn += piece
        if at < 0 and sign.encode() in drawn:
            at = len(drawn)
            (os.killpg if whole_group else os.kill)(process.pid, which)
    os.close(leader)
    code = process.wait(timeout=60)
    watchdog.cancel()
    assert at >= 0, drawn.decode()
    assert processes_of(process.pid) == [], "a process is left"
    return code, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn[at:].decode()).replace("\r", "")


READERS = {
    "verify {f}/group.db": "verifying",
    "status {f}/group.db": "folding",
    "explain {f}/group.db --task 0_0": "folding",
    "timeline {f}/group.db": "folding",
    "what-if {f}/group.db --sweep max_warmups=1,2,3,4": "configurations",
    "tail {f}/group.db --follow": "orders: round",
    "demo --out {t}/out": "equipoise demo",
}


@pytest.mark.parametrize(("which", "code"), SIGNALS)
@pytest.mark.parametrize("line", READERS)
def test_ended_reader_prints_one_line(folder: Path, tmp_path: Path, line: str, which: signal.Signals, code: int) -> None:
    before = contents(folder)
    ended_with, told = ended(line, folder, tmp_path, READERS[line], which)
    assert ended_with == code, told
    assert re.search(r"equipoise: interrupted(; \S+ was not written)?\n$", told), told
    assert "Traceback" not in told
    assert contents(folder) == before


WRITERS = {
    "what-if {f}/group.db --to {t}/new.db": ("simulating", "{t}/new.db was not written"),
    "import kafka-streams scale-out --to {t}/new.jsonl": ("importing", "{t}/new.jsonl was not written"),
    "archive {f}/group.db --to {t}/copy.db --follow": ("copying", "{t}/copy.db holds what was copied so far; the same command resumes there"),
    "archive {f}/group.db --to {t}/copy/ --follow": ("copying", "{t}/copy/ holds what was copied so far; the same command resumes there"),
}


@pytest.mark.parametrize(("which", "code"), SIGNALS)
@pytest.mark.parametrize("line", WRITERS)
def test_ended_writer_reports_its_files(folder: Path, tmp_path: Path, line: str, which: signal.Signals, code: int) -> None:
    sign, said = WRITERS[line]
    ended_with, told = ended(line, folder, tmp_path, sign, which)
    assert ended_with == code, told
    assert f"equipoise: interrupted; {said.format(t=tmp_path)}" in told.splitlines()[-1]
    assert not [name for name in contents(tmp_path) if re.search(r"\.part|\.lock|new", name)]


@pytest.mark.parametrize("whole_group", [False, True], ids=["the process", "the terminal"])
@pytest.mark.parametrize(("which", "code"), SIGNALS)
def test_ended_fleet_stops_its_processes_and_can_resume(tmp_path: Path, which: signal.Signals, code: int, whole_group: bool) -> None:
    line = "examples.fleet --to {t}/fleet --groups 4 --records 1600 --seed 3 --processes 2"
    ended_with, told = ended(line, tmp_path, tmp_path, "simulating", which, whole_group=whole_group)
    assert ended_with == code, told
    assert re.search(r"^equipoise: interrupted; \S+/fleet holds \d of 4 groups; the same command makes the others$", told, re.MULTILINE), told
    assert "Traceback" not in told
    assert not [name for name in contents(tmp_path) if re.search(r"/\.", name)], "hidden files and locks are gone"
    fleet = Fleet(groups=4, records=1_600, seed=3)
    whole, continued = tmp_path / "whole", tmp_path / "fleet"
    assert make_fleet(fleet, whole) == make_fleet(fleet, continued)
    assert contents(whole) == contents(continued)


def test_fleet_resumes_with_the_missing_groups(tmp_path: Path) -> None:
    fleet = Fleet(groups=3, records=1_000, seed=7)
    steps: list[int] = []

    def advance(records: int) -> None:
        steps.append(records)
        if len(steps) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_fleet(fleet, tmp_path / "fleet", advance=advance)
    first = {part.name: (tmp_path / "fleet" / part.name).stat().st_mtime_ns for part in all_parts(store_at(tmp_path / "fleet"))}
    assert list(by_partition(all_parts(store_at(tmp_path / "fleet")))) == [0]
    written = make_fleet(fleet, tmp_path / "fleet", advance=steps.append)
    assert steps[2] == steps[1]
    assert {name: (tmp_path / "fleet" / name).stat().st_mtime_ns for name in first} == first, "finished groups are not made again"
    assert written == make_fleet(fleet, tmp_path / "whole")
    assert contents(tmp_path / "fleet") == contents(tmp_path / "whole")
    make_fleet(Fleet(groups=1, records=300), tmp_path / "fleet")
    assert list(by_partition(all_parts(store_at(tmp_path / "fleet")))) == [0], "another fleet takes its place"


def test_ended_compaction_loses_nothing(folder: Path, tmp_path: Path) -> None:
    entries = list(lived())
    for at in range(0, len(entries), 20):
        with open_log(f"{tmp_path}/a/", "a") as log:
            write(log, entries[at : at + 20])
    ended_with, told = ended("archive {t}/a --compact", folder, tmp_path, "compacting", signal.SIGTERM)
    assert ended_with in (0, 143), told
    assert ended_with == 0 or f"equipoise: interrupted; nothing in {tmp_path}/a is lost" in told, told
    assert not [name for name in contents(tmp_path) if re.search(r"/\.", name)]
    with open_log(f"{tmp_path}/a/") as log:
        assert list(log.read()) == entries


# --------------------------------------------------------------------------------------- full disks


@attrs.define
class SmallDisk:
    """A folder with little room: a file system of its own, or, where mounting is not allowed, one
    with a limit on the size of each file.
    """

    folder: Path
    is_mounted: bool
    _most_bytes: int | None = None

    def leave(self, room: int) -> None:
        """From now on there is room for so many bytes, or for files up to that size; whole pages of
        memory in a mounted one.
        """
        if self.is_mounted:
            status = os.statvfs(self.folder)
            (self.folder / "ballast").write_bytes(b"x" * max(0, status.f_bavail * status.f_bsize - room))
        else:
            self._most_bytes = room

    def make_room(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)
        self._most_bytes = None

    def run(self, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = command_of(line.format(f=folder, t=self.folder))
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, check=False, timeout=120, preexec_fn=self._limit)

    def _limit(self) -> None:
        if self._most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._most_bytes, self._most_bytes))


@pytest.fixture(params=["limit", pytest.param("disk", marks=pytest.mark.slow)] if os.geteuid() == 0 else ["limit"])  # mounting is for root
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "small"
    place.mkdir()
    if request.param == "limit":
        yield SmallDisk(place, is_mounted=False)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
    try:
        yield SmallDisk(place, is_mounted=True)
    finally:
        subprocess.run(["umount", place], check=True)


NOT_WRITTEN = "nothing was written there: make room, or name another place, and run it again"
GOES_ON = "the same command resumes there"
FILLED = {
    "import kafka-streams scale-out --to {t}/x.db": (40_000, NOT_WRITTEN),
    "import kafka-streams rolling --to {t}/x.jsonl": (40_000, NOT_WRITTEN),
    "what-if {f}/group.db --to {t}/x.db": (40_000, NOT_WRITTEN),
    "what-if {f}/group.db --to {t}/x/": (8_192, NOT_WRITTEN),
    "archive {f}/group.db --to {t}/x.db": (40_000, GOES_ON),
    "archive {f}/group.db --to {t}/x.jsonl": (40_000, GOES_ON),
    "archive {f}/group.db --to {t}/x/": (8_192, GOES_ON),
    "timeline {f}/group.db --html {t}/x.html": (8_192, "make room there, or name another place"),
    "timeline {f}/group.db --svg {t}/x.svg": (4_096, "make room there, or name another place"),
    "demo --out {t}/out": (40_000, NOT_WRITTEN),
}


@pytest.mark.parametrize("line", FILLED)
def test_full_disk_error_names_the_file_and_the_fix(folder: Path, small: SmallDisk, line: str) -> None:
    room, said = FILLED[line]
    small.leave(room)
    done = small.run(line, folder)
    assert done.returncode == 74, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("equipoise: ")
    assert str(small.folder) in done.stderr
    assert said in done.stderr
    assert not [name for name in contents(small.folder) if re.search(r"(^|/)\.", name)]


@pytest.mark.parametrize("name", ["x.db", "x.jsonl", "x/"])
def test_archive_after_a_full_disk_resumes(folder: Path, small: SmallDisk, name: str) -> None:
    line = f"archive {{f}}/group.db --to {{t}}/{name}"
    small.leave(8_192 if name == "x/" else 40_000)
    assert small.run(line, folder).returncode == 74
    small.make_room()
    done = small.run(line, folder)
    assert done.returncode == 0, done.stderr
    with open_log(f"{small.folder}/{name}") as log:
        assert tuple(log.read()) == lived()


@pytest.mark.parametrize("processes", [1, 2])
def test_fleet_on_a_full_disk_counts_its_groups(folder: Path, small: SmallDisk, processes: int) -> None:
    small.leave(24_000 if small.is_mounted else 8_192)
    done = small.run(f"examples.fleet --to {{t}}/fleet --groups 4 --records 4000 --processes {processes}", folder)
    assert done.returncode == 74, done.stderr
    told = r"equipoise: \S+/fleet: .+; make room there; \S+/fleet holds (\d) of 4 groups; the same command makes the others\n"
    said = re.fullmatch(told, done.stderr)
    assert said is not None, done.stderr
    assert len(by_partition(all_parts(store_at(small.folder / "fleet")))) == int(said[1])
    assert not [name for name in contents(small.folder) if re.search(r"/\.", name)]


def test_compaction_on_a_full_disk_loses_nothing(folder: Path, small: SmallDisk) -> None:
    entries = list(lived())
    for at in range(0, len(entries), 200):
        with open_log(f"{small.folder}/a/", "a") as log:
            write(log, entries[at : at + 200])
    small.leave(4_096)
    done = small.run("archive {t}/a --compact", folder)
    assert done.returncode == 74, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"nothing in {small.folder}/a is lost" in done.stderr
    assert not [name for name in contents(small.folder) if re.search(r"/\.", name)]
    with open_log(f"{small.folder}/a/") as log:
        assert list(log.read()) == entries


# ----------------------------------------------------------------------------------- many processes


def _fails(number: int) -> int:
    if number == 3:
        raise LogError(17, "offset 16 is missing")
    if number == 4:
        raise ZeroDivisionError
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 2


def _waits(path: str) -> None:
    try:
        Path(path).touch()
        time.sleep(60)
    finally:
        Path(path).unlink()


def test_results_come_from_several_processes() -> None:
    assert sorted(in_processes(_fails, [0, 1, 2, 6, 7], 3)) == [0, 2, 4, 12, 14]
    assert list(in_processes(_fails, [], 3)) == []


def test_process_error_is_raised_unchanged() -> None:
    with pytest.raises(LogError, match="offset 17: offset 16 is missing") as caught:
        list(in_processes(_fails, [1, 3], 2))
    assert (caught.value.offset, caught.value.problem) == (17, "offset 16 is missing")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(in_processes(_fails, [4], 1))
    with pytest.raises(ProcessDiedError, match="killed by signal 9"):
        list(in_processes(_fails, [5, 1], 2))


def test_processes_tidy_up_when_their_parent_is_ended_or_dies(tmp_path: Path) -> None:
    for how, code in (("SIGTERM", 143), ("SIGKILL", -9)):
        script = (
            "import signal, sys\nfrom tests.unit.equipoise.test_cli_exit_codes import _waits\nfrom equipoise.replay.parallel import in_processes\n"
            "def end(*_): sys.exit(143)\nsignal.signal(signal.SIGTERM, end)\n"
            f"list(in_processes(_waits, [{str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r}], 2))\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline, "the processes have not begun"
            time.sleep(0.02)
        parent.send_signal(getattr(signal, how))
        assert parent.wait(timeout=30) == code
        while list(tmp_path.iterdir()) or processes_of(parent.pid):
            assert time.monotonic() < deadline, "a process outlives its parent"
            time.sleep(0.02)
