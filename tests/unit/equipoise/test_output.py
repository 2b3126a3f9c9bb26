"""What a command writes never replaces anything but an earlier output of the same kind, and is
there as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.cli.output import IMPORTED, SIMULATED, Kind, check_files, new_log, rewrite_file, same_place, write_file
from equipoise.cli.output_tables import new_tables
from equipoise.events.errors import InputError, StorageError
from equipoise.events.facts import LogOpened
from equipoise.log import open_log
from equipoise.replay.interrupts import undisturbed
from examples.fleet.__main__ import fleet
from tests.unit.replay.lived import lived, write

PAGE = '<!doctype html>\n<meta name="generator" content="equipoise">\n'


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in args])


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in ("group.db", "group.jsonl", "archive/"):
        with open_log(f"{folder}/{name}", "w") as log:
            write(log, lived())
    return folder


@pytest.fixture
def logs(sources: Path, tmp_path: Path) -> Path:
    """A folder with a log in each form, a letter, and links to the log."""
    folder = tmp_path / "logs"
    shutil.copytree(sources, folder)
    (folder / "letter.txt").write_text("dear")
    (folder / "rows.jsonl").write_text('{"a": 1}\n')
    (folder / "links").mkdir()
    (folder / "links" / "soft.html").symlink_to(folder / "group.db")
    os.link(folder / "group.db", folder / "links" / "hard.html")
    return folder


PAGES = {
    "the log that is read": "group.db",
    "a log in another form": "group.jsonl",
    "by another way": "links/../group.db",
    "through a symbolic link": "links/soft.html",
    "through a hard link": "links/hard.html",
    "a letter": "letter.txt",
    "a folder": "links",
    "an archive": "archive",
    "a file in an archive": "archive/_equipoise.json",
    "a new file in an archive": "archive/page.html",
    "a file beside the log": "group.db-wal",
    "a device": "/dev/null",
}


@pytest.mark.parametrize("option", ["--html", "--svg"])
@pytest.mark.parametrize("target", PAGES.values(), ids=PAGES)
def test_page_replaces_no_other_file(logs: Path, target: str, option: str) -> None:
    before = contents(logs)
    result = run("timeline", logs / "group.db", option, logs / target)
    assert result.exit_code == 2, result.output
    assert option in result.stderr
    assert result.stderr.count("\n") == 1
    assert contents(logs) == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert run("verify", logs / "group.db").exit_code == 0


def test_costs_picture_replaces_no_other_file(logs: Path) -> None:
    before = contents(logs)
    for target in ("group.db", "letter.txt", "archive/x.svg"):
        result = run("what-if", logs / "group.db", "--sweep", "max_warmups=1", "--seeds", "1", "--svg", logs / target)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "--svg" in result.stderr
    assert contents(logs) == before


def test_page_and_picture_replace_their_own_kind(logs: Path) -> None:
    page, picture = logs / "out.html", logs / "out.svg"
    page.touch()
    for _ in range(2):
        assert run("timeline", logs / "group.db", "--html", page, "--svg", picture).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert picture.read_text().startswith("<svg ")
    before = contents(logs)
    swapped = run("timeline", logs / "group.db", "--html", picture, "--svg", page)
    assert swapped.exit_code == 2
    assert "holds something else than a page of equipoise, and stays as it is" in swapped.stderr
    twice = run("timeline", logs / "group.db", "--html", logs / "new.html", "--svg", logs / "links/../new.html")
    assert "is the file that --html writes" in twice.stderr
    assert contents(logs) == before


def test_output_refused_before_the_log_is_folded(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.replay.timelines.build_timeline", lambda *args, **kwargs: pytest.fail("the work was begun"))
    assert run("timeline", logs / "group.db", "--html", logs / "letter.txt").exit_code == 2


@pytest.mark.parametrize("target", ["letter.txt", "rows.jsonl", "links", "links/soft.html"])
@pytest.mark.parametrize("command", ["what-if {log}", "import kafka-streams rolling", "archive {log}", "fleet --groups 1 --records 300"])
def test_log_replaces_only_a_log(logs: Path, command: str, target: str) -> None:
    before = contents(logs)
    result = run(*command.format(log=logs / "group.db").split(), "--to", logs / target)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert contents(logs) == before


def test_archive_with_foreign_files_is_not_replaced(logs: Path) -> None:
    (logs / "archive" / "notes").mkdir()
    (logs / "archive" / "notes" / "mine.txt").write_text("mine")
    before = contents(logs)
    result = run("what-if", logs / "group.db", "--to", f"{logs}/archive/")
    assert result.exit_code == 2
    assert "holds notes beside the archive, which would be lost" in result.stderr
    assert contents(logs) == before
    shutil.rmtree(logs / "archive" / "notes")
    assert run("what-if", logs / "group.db", "--to", f"{logs}/archive/", "--force").exit_code == 0
    assert run("verify", f"{logs}/archive/").exit_code == 0


def test_fleet_does_not_replace_another_archive(logs: Path) -> None:
    before = contents(logs)
    result = CliRunner().invoke(fleet, ["--to", str(logs / "archive"), "--groups", "1", "--records", "300"])
    assert result.exit_code == 2
    assert "is an archive of log 'lived', which is no fleet" in result.stderr
    assert contents(logs) == before


@pytest.mark.parametrize("target", ["group.db", "links/soft.html", "links/hard.html", "links/../group.db"])
def test_log_being_read_is_not_written(logs: Path, target: str) -> None:
    before = contents(logs)
    for command in ("what-if", "archive"):
        result = run(command, logs / "group.db", "--to", f"sqlite:///{logs / target}")
        assert "that is the log to read; name another one" in result.stderr
    assert contents(logs) == before
    assert same_place(str(logs / "group.db"), f"sqlite:///{logs / target}")
    assert not same_place(str(logs / "group.db"), str(logs / "group.jsonl"))
    assert not same_place("kafka://127.0.0.1:9092", str(logs))


def test_write_file_keeps_link_and_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text(PAGE)
    real.chmod(0o640)
    link.symlink_to(real)
    write_file("--html", link, Kind.PAGE, PAGE + "new")
    assert link.is_symlink()
    assert real.read_text() == PAGE + "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    fresh = tmp_path / "fresh.html"
    write_file("--html", fresh, Kind.PAGE, PAGE)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~mask


def test_new_log_keeps_link_and_mode(logs: Path) -> None:
    link = logs / "link.db"
    link.symlink_to(logs / "group.db")
    (logs / "group.db").chmod(0o640)
    with new_log(str(link), replaces=IMPORTED, force=True) as log:
        log.append_fact("", 0, LogOpened(log_id="new"))
    assert link.is_symlink()
    assert stat.S_IMODE((logs / "group.db").stat().st_mode) == 0o640
    with open_log(logs / "group.db") as log:
        assert log.count() == 1


@pytest.mark.parametrize("how", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_write_file_interrupted_leaves_the_old_page_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: BaseException) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGE)

    def fails(descriptor: int) -> None:
        raise how

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises((KeyboardInterrupt, StorageError)):
        write_file("--html", page, Kind.PAGE, PAGE + "new")
    with pytest.raises((KeyboardInterrupt, StorageError)):
        rewrite_file("--rewrite", page, "new")
    assert contents(tmp_path) == {"page.html": PAGE.encode()}


@pytest.mark.parametrize("name", ["group.db", "group.jsonl", "archive/"])
def test_new_log_replaces_what_its_command_has_made_and_nothing_else(logs: Path, name: str) -> None:
    before = contents(logs)  # without a manifest, as a copy of a live log
    with pytest.raises(InputError, match="holds a log that this command has not made"), new_log(f"{logs}/{name}", replaces=IMPORTED):
        pass
    assert contents(logs) == before
    for force, made_by in ((True, IMPORTED), (False, IMPORTED)):
        with new_log(f"{logs}/{name}", replaces=IMPORTED, force=force) as log:
            log.append_fact("", 0, LogOpened(log_id="new", manifest=json.dumps({made_by: {}})))
    with pytest.raises(InputError, match="--force"), new_log(f"{logs}/{name}", replaces=SIMULATED):
        pass


@pytest.mark.parametrize("name", ["group.db", "group.jsonl", "archive/"])
def test_new_log_interrupted_leaves_the_old_log_and_nothing_else(logs: Path, name: str) -> None:
    before = contents(logs)

    def write_some() -> None:
        with new_log(f"{logs}/{name}", replaces=IMPORTED, force=True) as log:
            log.append_fact("", 0, LogOpened(log_id="new"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        write_some()
    assert caught.value.__notes__ == [f"{logs / name} was not written"]
    assert contents(logs) == before


def test_folder_swap_that_fails_is_undone(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(logs)
    rename: Callable[..., None] = os.rename
    calls = []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("equipoise.cli.output._swapped", lambda one, other: False)
    monkeypatch.setattr("os.rename", second_fails)
    with pytest.raises(StorageError), new_log(f"{logs}/archive/", replaces=IMPORTED, force=True) as log:
        log.append_fact("", 0, LogOpened(log_id="new"))
    assert len(calls) == 3
    assert contents(logs) == before


def test_tables_replace_tables_alone(logs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    for text in ("one", "two"):
        with new_tables("--to", folder) as part:
            part.mkdir()
            (part / "part-0.parquet").write_text(text)
    assert contents(folder) == {"_equipoise.json": b'{"form": "equipoise tables"}\n', "part-0.parquet": b"two"}
    (folder / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for target in (folder, logs / "archive", logs / "letter.txt", logs, logs / "archive" / "tables"):
        with pytest.raises(InputError, match="--to"), new_tables("--to", target):
            pytest.fail("the work was begun")
    assert contents(tmp_path) == before


def test_unfinished_tables_leave_nothing(tmp_path: Path) -> None:
    def write_some() -> None:
        with new_tables("--to", tmp_path / "fresh") as part:
            part.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_some()
    assert contents(tmp_path) == {}


def test_write_file_refuses_unrecognisable_content(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        write_file("--html", tmp_path / "x.html", Kind.PAGE, "<html>")
    results = tmp_path / "results.json"
    for _ in range(2):
        write_file("--out", results, Kind.RESULTS, json.dumps({"made_by": "equipoise", "runs": []}))
    with pytest.raises(InputError, match="holds something else than a page"):
        check_files(("--html", results, Kind.PAGE))


def test_interrupt_waits_for_the_protected_block() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with SIGINT ignored
    try:
        check_that_an_interrupt_waits()
    finally:
        signal.signal(signal.SIGINT, before)


def check_that_an_interrupt_waits() -> None:
    done = []

    def work() -> None:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path
from equipoise.cli.output_tables import new_tables

folder = Path(sys.argv[1])

def write(text):
    with new_tables("--to", folder / "tables", frozenset({"one", "two"})) as part:
        for name in ("one", "two"):
            (part / name).mkdir(parents=True)
            (part / name / "rows.parquet").write_text(text)

write("former")
found = []
for step in itertools.count():
    child = os.fork()
    if not child:
        events = itertools.count()
        def look(event, _):
            if event.startswith(("open", "os.", "shutil.", "ctypes.")) and next(events) == step:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(look)
        write("new")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found.append([(folder / "tables" / name / "rows.parquet").read_text() for name in ("one", "two")])
    if not status:
        break
    if found[-1][0] == "new":
        write("former")
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders in one step")
def test_writer_of_tables_that_is_killed_at_any_step_leaves_the_former_or_the_new(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert len(found) > 20
    assert found[0] == ["former"] * 2
    assert found[-1] == ["new"] * 2
    assert {tuple(each) for each in found} == {("former",) * 2, ("new",) * 2}
