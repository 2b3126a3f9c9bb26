"""Wrong uses of the command line: each is one line on stderr that names the place and the fix, exit
code 2, and never a traceback.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.cli.params import Number, WholeNumber
from equipoise.events.facts import LogOpened
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from tests.support.scenarios.__main__ import scenario
from tests.unit.replay.lived import lived, write
from tools.brokers import main as broker

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "equipoise"]
TOOLS = {"scenario": scenario}


def run(line: str, stdin: bytes = b"") -> Result:
    name, *words = line.split() or [""]
    return CliRunner().invoke(TOOLS[name], words, input=stdin) if name in TOOLS else CliRunner().invoke(main, line.split(), input=stdin)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, valid and damaged, and files that are no logs."""
    place = tmp_path_factory.mktemp("wrong")
    for name in ("group.db", "group.jsonl"):
        with open_log(place / name, "w") as log:
            write(log, lived())
    with open_log(place / "two.db", "w") as log, log.transaction():
        for entry in lived():
            if isinstance(entry, FactRecord):
                log.append_fact(entry.group, entry.append_ms, entry.event)
                if entry.group:
                    log.append_fact("payments", entry.append_ms, entry.event)
    lines = (place / "group.jsonl").read_bytes().splitlines(keepends=True)
    (place / "gap.jsonl").write_bytes(b"".join(lines[:50] + lines[51:]))
    (place / "torn.jsonl").write_bytes(b"".join(lines[:50]) + lines[50][:30])
    (place / "flipped.jsonl").write_bytes(b"".join([*lines[:50], lines[50].replace(b"1", b"2", 1), *lines[51:]]))
    noise = random.Random(0).randbytes(5_000)
    for name in ("noise.db", "noise.jsonl", "noise.txt"):
        (place / name).write_bytes(noise)
    (place / "text.db").write_text("this is text\n" * 100)
    for name in ("empty.db", "empty.jsonl", "empty.txt"):
        (place / name).touch()
    (place / "huge.jsonl").write_bytes(b"{" + b"a" * 1_000_000)
    for name in ("dir", "dir.db"):
        (place / name).mkdir()
    with contextlib.closing(sqlite3.connect(place / "other.db")) as other, other:
        other.execute("CREATE TABLE x (y)")
    other.close()
    return place


WRONG = [
    # no LOG, or no sound one
    ("verify {f}/absent.db", "there is no such log; import or simulate one"),
    ("verify {f}/absent.jsonl", "there is no such log; import or simulate one"),
    ("verify {f}/dir", "not an archive of equipoise"),
    ("status {f}/dir.db", "not an archive of equipoise"),
    ("verify {f}/group.txt", "Name it .db (SQLite) or .jsonl (JSON Lines)"),
    ("verify kafka://127.0.0.1:1", "no broker answers at 127.0.0.1:1"),
    ("verify {f}/text.db", "text.db"),
    ("timeline {f}/noise.db", "noise.db"),
    ("verify {f}/noise.jsonl", "offset 0: "),
    ("verify {f}/huge.jsonl", "offset 0: "),
    ("verify {f}/other.db", "not a log of equipoise; name another file"),
    ("verify {f}/empty.db", "not a log of equipoise; name another file"),
    ("verify {f}/empty.jsonl", "the log is empty, so there is nothing to verify; import or simulate one"),
    ("status {f}/empty.jsonl", "the log holds no fact of any group; import or simulate one"),
    ("explain {f}/empty.jsonl --task 0_0", "the log holds no fact of any group; import or simulate one"),
    ("what-if {f}/empty.jsonl --to {t}/x.db", "the log holds no fact of any group; import or simulate one"),
    ("verify {f}/gap.jsonl", "offset "),
    ("verify {f}/torn.jsonl", "offset "),
    ("verify {f}/flipped.jsonl", "the record's bytes differ from its checksum"),
    ("status {f}/flipped.jsonl", "the record's bytes differ from its checksum"),
    ("timeline {f}/gap.jsonl", "is missing; the next record has offset"),
    ("what-if {f}/flipped.jsonl --to {t}/x.db", "the record's bytes differ from its checksum"),
    # the question
    ("status {f}/group.db --at 999999", "--at: the log ends at offset"),
    ("status {f}/group.db --at -1", "'--at': -1 is not in the range"),
    ("timeline {f}/group.db --at soon", "'--at': 'soon' is not an offset, or a time with its date; write it as"),
    ("explain {f}/group.db", "Missing option '--task'"),
    ("explain {f}/group.db --task 9_9", "no task 9_9 at offset"),
    ("explain {f}/group.db --task first", "write <sub-topology>_<partition>, as in 0_3"),
    ("status {f}/group.db --group payments", "no fact of group 'payments'; it holds 'orders'"),
    ("status {f}/two.db --at 9", "--at: name the group with --group; it holds 'orders', 'payments'"),
    ("explain {f}/two.db --task 0_0", "several groups, 'orders' and 'payments' among them; name one"),
    ("tail {f}/two.db --group refunds", "--group: the log holds no fact of group 'refunds'; it holds 'orders', 'payments'"),
    ("timeline {f}/two.db --group refunds", "no fact of group 'refunds'; it holds 'orders', 'payments'"),
    ("what-if {f}/two.db --to {t}/x.db", "--group: the log holds several groups, 'orders' and 'payments' among them; name one"),
    ("what-if {f}/two.db --to {t}/x.db --group refunds", "--group: the log holds no fact of group 'refunds'; it holds 'orders', 'payments'"),
    # the target
    ("timeline {f}/group.db --html {f}/dir", "'--html'"),
    ("timeline {f}/group.db --html {f}/absent/x.html", "name a file that can be written"),
    ("timeline {f}/group.db --svg /proc/x.svg", "--svg /proc/x.svg: "),
    ("what-if {f}/group.db --force", "--force: needs --to"),
    ("what-if {f}/group.db --restarts-within 30", "--restarts-within: needs --to"),
    ("what-if {f}/group.db --to {t}/x.db --sweep max_warmups=1,2", "--to: writes one simulation; name its settings with --set"),
    ("what-if {f}/group.db --set max_warmups=1 --sweep max_warmups=1,2", "--sweep max_warmups: has a value by --set already"),
    ("what-if {f}/group.db --to {t}/x.db --set carrier=kafka_streams", "--set carrier: with --to members carry out"),
    ("what-if {f}/group.db --to {f}/group.db", "that is the log to read; name another one"),
    ("what-if {f}/group.db --to sqlite:///{f}/group.db", "that is the log to read; name another one"),
    ("what-if {f}/group.db --to {f}/dir", "not an archive of equipoise"),
    ("what-if {f}/group.db --to {t}/x.txt", "x.txt: which form is this?"),
    ("what-if {f}/group.db --to {t}/absent/x.db", "--to {t}/absent/x.db: "),
    ("what-if {f}/group.db --to {t}/absent/x.jsonl", "--to {t}/absent/x.jsonl: there is no such folder; make it"),
    ("what-if {f}/group.db --to /proc/x.db", "--to /proc/x.db: "),
    ("what-if {f}/group.db --to {f}/text.db", "text.db"),
    ("what-if {f}/group.db --to {f}/other.db", "not a log of equipoise; name another file"),
    ("demo --out {f}/group.db", "'--out'"),
    ("demo --out {f}/group.db/out", "--out {f}/group.db/out: Not a directory; correct the path"),
    # numbers and times
    ("status {f}/group.db --at 10:30", "'--at': '10:30' is not an offset, or a time with its date; write it as 2026-11-23T09:30"),
    ("status {f}/group.db --at 2020-01-01", "--at: the log begins later, at 2026-11-20 04:33:07 UTC; name a time from then on"),
    ("explain {f}/group.db --task 0_3 --at yesterday", "'--at': 'yesterday' is not an offset, or a time"),
    ("scale-down --group orders --keep 4 --timeout abc", "'--timeout': 'abc' is not a number from 0 on; write one as 2.5"),
    ("scale-down --group orders --keep 4 --timeout nan", "'--timeout': 'nan' is not a number"),
    ("lead --group clicks --to {t}/o.db --hold abc", "'--hold': 'abc' is not a number from 0 to 240; write one as 2.5"),
    ("lead --group clicks --to {t}/o.db --hold 241", "'--hold': 241.0 is not in the range"),
    ("record kafka://127.0.0.1:1 --to {t}/x.db --keep-days 0", "'--keep-days': 0.0 is not in the range"),
    ("record kafka://127.0.0.1:1 --to {t}/x.db --keep-days week", "'--keep-days': 'week' is not a number above 0"),
    ("what-if {f}/group.db --seeds three", "'--seeds': 'three' is not a whole number from 1 to 100"),
    ("incident scale-out --all --from yesterday", "'--from': 'yesterday' is not a time with its date; write it as 2026-11-23T09:30"),
    ("incident scale-out --all --until 17:20", "'--until': '17:20' is not a time with its date"),
    ("incident scale-out --all --from 2026-11-27T17:20 --until 2026-11-27T17:00", "--until: 2026-11-27 17:00:00 UTC is not after --from"),
    # brokers
    ("status --group orders --bootstrap 127.0.0.1:99999", "bootstrap: '99999' in '127.0.0.1:99999' is not a port from 1 to 65535; write host:port"),
    ("status --group orders --bootstrap 127.0.0.1:abc", "bootstrap: 'abc' in '127.0.0.1:abc' is not a port"),
    ("status --bootstrap a:1,b:0", "bootstrap: '0' in 'b:0' is not a port"),
    ("status --bootstrap a:1,,b:2", "bootstrap: '' names no host"),
    ("status --bootstrap kafka://127.0.0.1:1", "bootstrap: 'kafka://127.0.0.1:1' is not host:port; write host:port"),
    ("doctor --bootstrap 127.0.0.1:99999", "bootstrap: '99999'"),
    ("worker --bootstrap 127.0.0.1:99999", "bootstrap: '99999'"),
    ("lead --group clicks --to {t}/o.db --bootstrap 127.0.0.1:abc", "bootstrap: 'abc'"),
    ("archive kafka://127.0.0.1:99999 --to {t}/x/", "bootstrap: '99999'"),
    ("record kafka://127.0.0.1:abc --to {t}/x.db", "bootstrap: 'abc'"),
    ("status --group orders --bootstrap 127.0.0.1:1", "no broker answers at 127.0.0.1:1 (127.0.0.1:1: Connection refused); start it, or correct"),
    ("status --bootstrap nowhere.invalid:1", "no broker answers at nowhere.invalid:1 (nowhere.invalid:1: "),
    ("archive kafka://127.0.0.1:1 --to {t}/x/", "no broker answers at 127.0.0.1:1 (127.0.0.1:1: Connection refused); start it"),
    ("cluster kafka://127.0.0.1:1", "no broker answers at 127.0.0.1:1 (127.0.0.1:1: Connection refused); start it"),
    ("import kafka-streams kafka://127.0.0.1:1 --group orders --to {t}/x.db", "no broker answers at 127.0.0.1:1 (127.0.0.1:1: Connection"),
    ("status --group orders --security-protocol SSL --ssl-ca-file /nope.pem", "ssl_ca_file: /nope.pem: No such file or directory; correct the path"),
    ("status --group orders --security-protocol SSL --ssl-ca-file {f}/text.db", "ssl_ca_file: {f}/text.db holds no certificates in PEM"),
    ("status --group orders --security-protocol SSL --ssl-certificate-file /nope.pem", "ssl_certificate_file: /nope.pem: No such file"),
    ("status --group orders --security-protocol SSL --ssl-certificate-file {f}/text.db", "{f}/text.db are no certificate in PEM with its key"),
    ("status --group orders --security-protocol SSL --ssl-key-file /nope.pem", "ssl_certificate_file: ssl_key_file is its key, and needs it"),
    # places
    ("record nonsense --to {t}/x.db", "nonsense: not a place of brokers; write kafka://host:port"),
    ("record 127.0.0.1:9092 --to {t}/x.db", "127.0.0.1:9092: not a place of brokers; write kafka://127.0.0.1:9092"),
    ("record kafka://127.0.0.1:1 --to {t}/absent/x.db", "--to {t}/absent/x.db: there is no such folder; make it, or name another file"),
    ("record kafka://127.0.0.1:1 --to {f}/dir", "{f}/dir: is a folder, and no recording of groups; name a file"),
    ("cluster 127.0.0.1:9092", "127.0.0.1:9092: there is no such recording; for a broker write kafka://127.0.0.1:9092"),
    ("cluster nonsense", "nonsense: there is no such recording; make one with `equipoise record kafka://host:port --to FILE`, or correct the path"),
    ("incident 127.0.0.1:9092 --all", "127.0.0.1:9092: there is no such recording; for a broker write kafka://127.0.0.1:9092"),
    ("incident scale_out --all", "scale_out: there is no such recording; did you mean scale-out?"),
    ("incident {f}/dir --all", "offsets_topic.jsonl (or offsets_topic.jsonl.gz) is missing, which a folder with a recorded run must have"),
    ("incident scale-out", "--group: name the group to explain, or give --all; scale-out holds 'orders'"),
    ("incident scale-out --all --group orders", "--group: name one group, or give --all, and not both"),
    ("incident scale-out --group nope", "--group: scale-out has no group 'nope'; scale-out holds 'orders'"),
    ("import kafka-streams nope --to {t}/x.db", "Recorded runs that come with equipoise: rolling, scale-out"),
    ("import kafka-streams 127.0.0.1:9092 --group orders --to {t}/x.db", "for a broker write kafka://127.0.0.1:9092"),
    ("verify {f}/text.db", "{f}/text.db is not a SQLite file, as a log named .db is; name another file"),
    ("lead --group clicks", "Missing option '--to'"),
    ("lead --group clicks --to {f}/dir", "--to {f}/dir: name a file that ends in .db (SQLite) or .jsonl (JSON Lines)"),
    ("lead --group clicks-* --to {t}/o.db", "--to {t}/o.db: --group clicks-* may be several groups; name a folder for their logs"),
    ("lead --group clicks-* --to {t}/logs --evict", "--evict: takes the leader out of one group; name it with --group"),
    ("worker --lead-groups clicks-*", "lead_folder: lead_groups needs a folder for their logs"),
    ("worker --lead-groups clicks-* --lead-folder {t} --lead-capacity big", "--lead-capacity: big: write it as CLIENT_ID=N, with N of 1 or more"),
    ("lead --group clicks --to {t}/x.txt", "--to {t}/x.txt: name a file that ends in .db"),
    ("archive {f}/group.db --to webhdfs://nn/y/", "webhdfs: is not supported; mount it, and name the folder. An archive is in a folder"),
    ("archive {f}/group.db --to s3a://bucket/y/", "s3a: is not supported; write s3://bucket/y/. An archive is in a folder"),
    ("archive {f}/group.db --to dbfs:/y/", "dbfs: is not supported; Databricks mounts it as a folder: write /dbfs/y/. An archive is"),
    ("verify viewfs://nn/y", "name the folder. An archive is in a folder that all machines see, or at s3://, gs://, abfs:// or hdfs://"),
    ("spark verify dbfs:/y", "dbfs: is not supported; Databricks mounts it as a folder: write /dbfs/y"),
    ("verify file:///tmp/x.db", "file: is not supported; write /tmp/x.db"),
    # settings
    ("what-if {f}/group.db --to {t}/x.db --set max_warmups", "write it as name=value"),
    ("what-if {f}/group.db --to {t}/x.db --set max_warmup=1", "did you mean max_warmups?"),
    ("what-if {f}/group.db --to {t}/x.db --set zzz=1", "there are: acceptable_recovery_lag"),
    ("what-if {f}/group.db --to {t}/x.db --set max_warmups=", "--set max_warmups: '' is not a whole number"),
    ("what-if {f}/group.db --to {t}/x.db --set max_warmups=0", "--set max_warmups: 0 is not a whole number from 1 to"),
    ("what-if {f}/group.db --to {t}/x.db --set max_warmups=99999999999999999999", "--set max_warmups: 99999999999999999999 is not"),
    ("what-if {f}/group.db --to {t}/x.db --set rack_aware_strategy=best", "--set rack_aware_strategy: 'best' is not one of none,"),
    ("what-if {f}/group.db --to {t}/x.db --set options.=1", "--set options"),
    ("what-if {f}/group.db --to {t}/x.db --set assignor=nobody", "'nobody'"),
    ("what-if {f}/group.db --to {t}/x.db --seed -1", "'--seed'"),
    ("what-if {f}/group.db --to {t}/x.db --restore-speed 0", "'--restore-speed'"),
    ("lead --group clicks --to {t}/o.db --set probing_interval_ms=59999", "probing_interval_ms: 59999 is below 60000, the least of KIP-441"),
    ("lead --group clicks --to {t}/o.db --set max_warmups=0", "max_warmups: 0 is not a whole number from 1"),
    ("lead --group clicks --to {t}/o.db --set max_warmups=one", "--set max_warmups: 'one' is not a whole number"),
    ("lead --group clicks --to {t}/o.db --set assignor=lag_aware --set options.crosstopic=true", "crosstopic: lag_aware has no such option"),
    ("lead --group clicks --to {t}/o.db --set assignor=lag_aware --set options.cross_topic=yes", "cross_topic: 'yes' is neither true nor false"),
    ("lead --group clicks --to {t}/o.db --set max_warmup=1", "--set max_warmup: no such setting; did you mean max_warmups?"),
    # imports
    ("import", "kafka-streams"),
    ("import flink rolling --to {t}/x.db", "'flink' is not 'kafka-streams'"),
    ("import kafka-streams {f}/absent --to {t}/x.db", "there is no such recording; make one with"),
    ("import kafka-streams {f}/dir --to {t}/x.db", "offsets_topic.jsonl"),
    ("import kafka-streams {f}/group.db --to {t}/x.db", "group.db: is no recording of groups; name a file that equipoise record wrote"),
    ("import kafka-streams rolling --to {t}/x.txt", "which form is this?"),
    ("import kafka-streams rolling --to {t}/x.db --group nobody", "no generation of group 'nobody' in the dump"),
    ("import kafka-streams rolling --to {t}/x.db --set colour=red", "--set: unknown setting 'colour'; known are acceptable_recovery_lag"),
    ("import kafka-streams rolling --to {t}/x.db --set max_warmups=two", "--set: setting 'max_warmups' is 'two', which is no whole number"),
    ("import kafka-streams rolling --to {t}/x.db --set max_warmups=0", "--set: max_warmups: 0 is not a whole number from 1 to"),
    # scenarios, problems, words
    ("scenario", "name a scenario, or a folder with scenarios; --directives lists what they may contain"),
    ("scenario {f}/absent.txt", "does not exist"),
    ("scenario {f}/dir", "no .txt file in there; name a scenario, or a folder with scenarios"),
    ("scenario {f}/empty.txt", "empty.txt:1: no directive in the file"),
    ("scenario {f}/noise.txt", "noise.txt:1: is not UTF-8, so it is no scenario"),
    ("scenario {f}/group.db", "is not UTF-8, so it is no scenario"),
    ("vrify {f}/group.db", "did you mean verify?"),
    ("verify {f}/group.db {f}/group.db", "unexpected extra argument"),
    ("verify --fast {f}/group.db", "No such option: --fast"),
]


@pytest.mark.parametrize(("line", "names"), WRONG, ids=[line.replace("{f}/", "").replace("{t}/", "") for line, _ in WRONG])
def test_wrong_use_is_one_line_with_the_fix(folder: Path, tmp_path: Path, line: str, names: str) -> None:
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    result = run(line.format(f=folder, t=tmp_path))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("equipoise: ")
    assert result.stderr.count("\n") == 1
    assert names.format(f=folder, t=tmp_path) in result.stderr
    assert ".part" not in result.stderr
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == before, "nothing there is touched"
    assert list(tmp_path.iterdir()) == [], "nothing half made is left"


def test_every_number_of_every_command_says_how_to_write_one() -> None:
    """click's own types say "is not a valid integer range"."""

    def walk(command: click.Command, path: str) -> Iterator[str]:
        context = click.Context(command)
        for parameter in command.params:
            if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType) and not isinstance(
                parameter.type, WholeNumber | Number
            ):
                yield f"{path} --{parameter.name}"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, f"{path} {name}")

    assert list(walk(main, "equipoise")) == []


def test_tail_of_a_log_without_decisions_says_so(folder: Path, tmp_path: Path) -> None:
    with open_log(tmp_path / "facts.db", "w") as log, log.transaction():
        for entry in lived():
            if isinstance(entry, FactRecord):
                log.append_fact(entry.group, entry.append_ms, entry.event)
    result = run(f"tail {tmp_path}/facts.db --json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    with open_log(tmp_path / "quiet.db", "w") as log:
        log.append_fact("", 0, LogOpened(log_id="quiet"))
    result = run(f"tail {tmp_path}/quiet.db")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{tmp_path}/quiet.db holds no decision; --facts prints its facts\n")


def test_at_takes_a_time_which_stands_for_the_last_fact_until_then(folder: Path) -> None:
    with open_log(folder / "group.db") as log:
        facts = [entry for entry in log.read() if isinstance(entry, FactRecord)]
    middle = facts[len(facts) // 2]
    last = max(entry.offset for entry in facts if entry.append_ms <= middle.append_ms)
    time_text = dt.datetime.fromtimestamp(middle.append_ms / 1000, dt.UTC).isoformat()
    for line in ("status --json {f}/group.db", "explain --json {f}/group.db --task 0_3"):
        by_offset, by_time = (run(f"{line.format(f=folder)} --at {at}") for at in (last, time_text))
        assert by_offset.exit_code == by_time.exit_code == 0, by_time.stderr
        assert by_offset.stdout == by_time.stdout
    assert run(f"status {folder}/group.db --at 2099-01-01").stdout == run(f"status {folder}/group.db").stdout


@pytest.mark.parametrize("port", ["abc", "99999", "0", "-1", "9092.5"])
def test_make_broker_refuses_what_is_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert broker([port]) == 2
    assert capsys.readouterr().err == f"PORT={port}: not a port from 1 to 65535; as in make broker PORT=9192\n"


@pytest.mark.parametrize("name", ["group.db", "group.jsonl"])
def test_command_failed_leaves_the_log_at_its_target(folder: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    target.write_bytes((folder / name).read_bytes())
    for line in ("what-if {f}/group.db --to {t} --set rack_aware_strategy=best", "import kafka-streams rolling --to {t} --group nobody"):
        assert run(line.format(f=folder, t=target)).exit_code == 2
        assert run(f"verify {target}").stdout.startswith("identical: ")
        assert [path.name for path in tmp_path.iterdir()] == [name]
    assert run(f"what-if {folder}/group.db --to {target} --force").exit_code == 0
    assert run(f"verify {target}").stdout.startswith("identical: ")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_empty_file_is_replaced_by_a_log(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "made.db"
    target.touch()
    assert run(f"what-if {folder}/group.db --to {target}").exit_code == 0
    assert run(f"verify {target}").exit_code == 0


def shell(line: str, folder: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = line.format(e=" ".join(COMMAND), f=folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", command], input=stdin, capture_output=True, check=False, cwd=ROOT, env=environment, timeout=60)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{e} verify {f}/group.db >&-", 0),
        ("{e} verify {f}/group.db 2>&-", 0),
        ("{e} verify {f}/absent.db 2>&-", 2),
        ("{e} --help >&-", 0),
    ],
)
def test_closed_standard_stream_is_no_defect(folder: Path, line: str, code: int) -> None:
    done = shell(line, folder)
    assert done.returncode == code, done.stderr
    assert b"defect" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("line", [" verify {f}/group.db", " timeline --json {f}/group.db", " --help"])
def test_unwritable_answer_is_one_line(folder: Path, line: str) -> None:
    done = shell(f"{{e}}{line} >/dev/full", folder)
    assert (done.returncode, done.stderr) == (74, b"equipoise: the answer cannot be written: No space left on device\n")


def test_help_to_a_closed_stdout_is_no_error(folder: Path) -> None:
    read, write_end = os.pipe()
    os.close(read)
    with subprocess.Popen([*COMMAND, "--help"], stdout=write_end, stderr=subprocess.PIPE, cwd=ROOT) as process:
        os.close(write_end)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_interrupt_while_writing_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "import", "kafka-streams", "scale-out", "--to", tmp_path / "x.db"], stderr=subprocess.PIPE, cwd=ROOT) as process:
        while not list(tmp_path.iterdir()) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, f"equipoise: interrupted; {tmp_path / 'x.db'} was not written\n".encode())
    assert list(tmp_path.iterdir()) == []


def test_interrupt_during_import_is_one_line() -> None:
    """The command line's own modules take a tenth of a second to load: an interrupt then is no
    traceback either.
    """
    code = (
        "import builtins\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'equipoise.cli': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "from equipoise.__main__ import run\n"
        "builtins.__import__ = interrupted\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"equipoise: interrupted\n")


def test_script_entry_handles_interrupts() -> None:
    assert 'equipoise = "equipoise.__main__:run"' in (ROOT / "pyproject.toml").read_text()


def test_verify_json_of_an_unreadable_log(folder: Path) -> None:
    result = run(f"verify --json {folder}/empty.jsonl")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["verdict"] == "cannot verify"


def test_worker_that_is_to_send_traces_without_its_extra_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from equipoise.__main__ import run; "
        "sys.argv = ['equipoise', 'worker', '--bootstrap', '127.0.0.1:1', '--otlp-endpoint', 'http://127.0.0.1:1/v1/traces']; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "equipoise: otlp_endpoint: needs the extra: pip install 'equipoise[otel]'\n"
    assert done.returncode == 2


@pytest.mark.parametrize("missing", ["prometheus_client", "faust", "aiokafka", "aiohttp"])
def test_worker_without_its_extra_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['equipoise', 'worker']; from equipoise.__main__ import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "equipoise: Kafka needs the extra: pip install 'equipoise[kafka]'\n"
    assert done.returncode == 2
