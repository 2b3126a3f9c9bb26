"""Logs in both forms: reads return the appended records, records out of sequence are refused, and
damage stops the reader with its offset.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import DamagedError, GapError, InputError, LogError, RepeatError, UnknownKindError
from equipoise.events.facts import LogOpened, MemberJoined, ProbingTick, Undecodable
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import Log, Mode, open_log, seal
from equipoise.log.jsonl import JsonLinesLog, parse, render
from equipoise.log.rows import Row
from tests.strategies import any_fact, instances
from tests.unit.log.logs_under_test import FORMS, decision_row, fact_row, fill, put, read_all, rows_of

MODES: tuple[Mode, ...] = ("r", "a", "w")


@pytest.fixture(params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path for a log of each form."""
    return tmp_path / str(request.param)


# ------------------------------------------------------------------------------------------ reading


def test_log_read_returns_appended_records(path: Path) -> None:
    written = fill(path)
    with open_log(path) as log:
        assert list(log.read()) == written
        assert (log.count(), log.position()) == (len(written), 6)


def offset_of(record: Entry) -> int:
    return record.caused_by if isinstance(record, DecisionRecord) else record.offset


@pytest.mark.parametrize("from_offset", range(7))
def test_reading_begins_at_any_offset(path: Path, from_offset: int) -> None:
    written = fill(path)
    with open_log(path) as log:
        assert list(log.read(from_offset)) == [record for record in written if offset_of(record) >= from_offset]


def test_read_group_gives_its_records_and_opening(path: Path) -> None:
    written = fill(path)
    with open_log(path) as log:
        assert list(log.read(group="clicks")) == [record for record in written if record.group in ("", "clicks")]
        assert [record.group for record in log.read(3, "orders")] == ["orders"] * 3


@pytest.mark.parametrize("from_offset", [-1, True, 1.0, "0"])
def test_read_invalid_offset_is_refused(path: Path, from_offset: Any) -> None:
    fill(path)
    with open_log(path) as log, pytest.raises(InputError, match="is not an offset"):
        log.read(from_offset)


def test_read_from_offset_past_the_end_is_refused(path: Path) -> None:
    fill(path)
    with open_log(path) as log, pytest.raises(InputError, match=r"offset 7 is past the end of the log \(next offset 6\)"):
        list(log.read(7))


def test_read_ends_where_the_log_ended_at_start(path: Path) -> None:
    fill(path)
    with open_log(path, "a") as log:
        count = 0
        for _ in log.read():
            log.append_fact("orders", 9_000, ProbingTick())
            count += 1
        assert (count, log.count()) == (10, 20)


def test_sqlite_and_json_lines_hold_equal_rows(tmp_path: Path) -> None:
    for form in FORMS:
        fill(tmp_path / form)
    assert rows_of(tmp_path / "group.db") == rows_of(tmp_path / "group.jsonl")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(any_fact().filter(lambda event: not isinstance(event, LogOpened)), min_size=1, max_size=8), opened=instances(LogOpened))
def test_fact_appended_to_any_log_is_read(path: Path, events: list[Any], opened: LogOpened) -> None:
    with open_log(path, "w") as log, log.transaction():
        records = [log.append_fact("", 0, opened), *(log.append_fact("g", 1, event) for event in events)]
    assert read_all(path) == records
    assert [record.event for record in records] == [opened, *events]


# ---------------------------------------------------------------------------------------- appending


def test_append_continues_at_the_end(path: Path) -> None:
    written = fill(path)
    for _ in range(2):
        with open_log(path, "a") as log:
            fact = log.append_fact("orders", 9_000, ProbingTick())
            number = 4 + (fact.offset - 6)
            decision = DecisionRecord("a1", "orders", number, fact.offset, 0, fact.checksum, EventRejected(kind=12, code="x"))
            log.append_decisions([decision])
            written += [fact, decision]
    assert read_all(path) == written
    assert [record.offset for record in written[-4:] if isinstance(record, FactRecord)] == [6, 7]


def test_decisions_of_the_last_fact_may_follow_after_reopening(path: Path) -> None:
    written = fill(path)
    fact = written[-1]
    assert isinstance(fact, FactRecord)
    with open_log(path, "a") as log:
        log.append_decisions([DecisionRecord("a1", "orders", 4, fact.offset, 0, fact.checksum, EventRejected(kind=12, code="x"))])
    with open_log(path, "a") as log:
        log.append_decisions([DecisionRecord("a1", "orders", 5, fact.offset, 1, fact.checksum, EventRejected(kind=12, code="x"))])
    assert len(read_all(path)) == len(written) + 2


def append_and_fail(log: Log, *facts: tuple[str, Any]) -> None:
    with log.transaction():
        for group, event in facts:
            with log.transaction():
                log.append_fact(group, 9_000, event)
        raise ZeroDivisionError


def append_and_pass_over_a_failure(log: Log) -> None:
    with log.transaction():
        log.append_fact("orders", 9_000, ProbingTick())
        with contextlib.suppress(UnknownKindError):
            log.append_payload("orders", 9_000, 99, 1, b"\x90")


def test_transaction_failed_leaves_nothing(path: Path) -> None:
    written = fill(path)
    with open_log(path, "a") as log:
        with pytest.raises(ZeroDivisionError):
            append_and_fail(log, ("orders", ProbingTick()))
        assert (log.count(), log.position()) == (len(written), 6)
        assert log.append_fact("orders", 9_000, ProbingTick()).offset == 6
    assert len(read_all(path)) == len(written) + 1


def test_transaction_with_failed_part_fails(path: Path) -> None:
    written = fill(path)
    with open_log(path, "a") as log:
        with pytest.raises(InputError, match="start it again"):
            append_and_pass_over_a_failure(log)
        assert log.position() == 6
    assert read_all(path) == written


def test_transaction_nested_is_part_of_the_outer(path: Path) -> None:
    with open_log(path, "w") as log:
        with pytest.raises(ZeroDivisionError):
            append_and_fail(log, ("", LogOpened(log_id="x")))
        assert (log.count(), log.position()) == (0, 0)


def test_transaction_large_failed_leaves_nothing(path: Path) -> None:
    fill(path)
    large = MemberJoined(member_id="m", incarnation=1, join_nonce="n" * 1_000, rack="x" * 1_000)
    with open_log(path, "a") as log, pytest.raises(ZeroDivisionError):
        append_and_fail(log, *[("orders", large)] * 800)
    assert len(read_all(path)) == 10


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"log_id": "b2"}, InputError),
        ({"fact_checksum": 1}, InputError),
        ({"number": 5}, GapError),
        ({"number": 3}, RepeatError),
        ({"index": 1}, GapError),
        ({"caused_by": 6}, GapError),
        ({"caused_by": 4}, RepeatError),
        ({"group": ""}, DamagedError),
        ({"group": "clicks"}, GapError),
    ],
)
def test_decisions_that_do_not_follow_on_are_not_appended(path: Path, changes: dict[str, Any], error: type[Exception]) -> None:
    written = fill(path)
    fact = written[-1]
    assert isinstance(fact, FactRecord)
    sound = DecisionRecord("a1", "orders", 4, fact.offset, 0, fact.checksum, EventRejected(kind=12, code="x"))
    with open_log(path, "a") as log:
        with pytest.raises(error):
            log.append_decisions([attrs.evolve(sound, **changes)])
        log.append_decisions([sound])
    assert read_all(path) == [*written, sound]


@pytest.mark.parametrize(
    ("group", "append_ms", "event", "says"),
    [
        ("", 1, ProbingTick(), "after LogOpened, records are facts of a named group"),
        ("x" * 1_001, 1, ProbingTick(), "named group"),
        ("\ud800", 1, ProbingTick(), "named group"),
        (5, 1, ProbingTick(), "named group"),
        ("orders", -1, ProbingTick(), "append_ms"),
        ("orders", 1.5, ProbingTick(), "append_ms"),
        ("orders", 2**63, ProbingTick(), "append_ms"),
        ("", 1, LogOpened(log_id="again"), "after LogOpened"),
        ("orders", 1, EventRejected(kind=1, code="x"), "is a decision"),
        ("orders", 1, "tick", "is no event"),
    ],
)
def test_append_fact_out_of_place_is_refused(path: Path, group: Any, append_ms: Any, event: Any, says: str) -> None:
    written = fill(path)
    with open_log(path, "a") as log, pytest.raises(InputError, match=says):
        log.append_fact(group, append_ms, event)
    assert read_all(path) == written


def test_append_before_log_opened_is_refused(path: Path) -> None:
    with open_log(path, "w") as log, pytest.raises(InputError, match="the first record of a log is LogOpened"):
        log.append_fact("orders", 1, ProbingTick())


def test_unsound_bytes_of_a_sender_are_kept_and_read_as_undecodable(path: Path) -> None:
    fill(path)
    with open_log(path, "a") as log:
        record = log.append_payload("orders", 9_000, codec.kind_of(ProbingTick), 1, b"\x91\x00")
        assert isinstance(record.event, Undecodable)
        assert record.event.code == "misshapen"
    assert read_all(path)[-1] == record


def test_past_versions_are_kept_as_they_came(path: Path) -> None:
    fill(path)
    payload = msgpack.packb(["m7", 1, 1, None, 30_000, 3_000, 0, "n", None])
    with open_log(path, "a") as log:
        record = log.append_payload("orders", 9_000, codec.kind_of(MemberJoined), 1, payload)
    assert record.event == MemberJoined(member_id="m7", incarnation=1, join_nonce="n")
    assert read_all(path)[-1] == record
    assert rows_of(path)[-1].payload == payload


# ---------------------------------------------------------------------------- what stops the reader


def without(rows: list[Row], at: int) -> list[Row]:
    return rows[:at] + rows[at + 1 :]


def twice(rows: list[Row], at: int) -> list[Row]:
    return rows[: at + 1] + rows[at:]


TICK = codec.kind_of(ProbingTick)
REJECTED = codec.encode(EventRejected(kind=12, code="x"))

# Rows: 0 fact 0, 1 fact 1, 2 fact 2, 3 and 4 its decisions 1 and 2 of orders, 5 fact 3, 6 its
# decision 1 of clicks, 7 fact 4, 8 its decision 3 of orders, 9 fact 5.
AMISS: list[tuple[str, Any, type[LogError], int]] = [
    ("a fact is missing", lambda rows: without(rows, 1), GapError, 1),
    ("a fact is missing, its decision is there", lambda rows: without(rows, 5), GapError, 3),
    ("the opening is missing", lambda rows: without(rows, 0), GapError, 0),
    ("a fact came twice", lambda rows: twice(rows, 1), RepeatError, 1),
    ("a fact came late", lambda rows: [*rows, rows[1]], RepeatError, 1),
    ("a decision is missing", lambda rows: without(rows, 3), GapError, 2),
    ("a group's decision is missing, and shows later", lambda rows: without(rows, 4), GapError, 4),
    ("a decision came twice", lambda rows: twice(rows, 4), RepeatError, 2),
    ("decisions in the wrong order", lambda rows: [*rows[:3], rows[4], rows[3], *rows[5:]], GapError, 2),
    ("a decision behind the next fact", lambda rows: [*rows[:4], rows[5], rows[4], *rows[6:]], RepeatError, 2),
    ("a decision before any fact", lambda rows: [rows[3], *rows], GapError, 0),
    ("an unsound decision", lambda rows: [*rows, decision_row(4, rows[-1], 0, REJECTED.kind, 1, b"\x90")], DamagedError, 5),
    ("a fact in the place of a decision", lambda rows: [*rows, decision_row(4, rows[-1], 0, TICK, 1, b"\x90")], DamagedError, 5),
    ("a second opening", lambda rows: [*rows, fact_row("", 6, *codec.encode(LogOpened(log_id="b")))], DamagedError, 6),
    ("no opening", lambda rows: [fact_row("orders", 0, TICK, 1, b"\x90")], DamagedError, 0),
    ("an opening of a group", lambda rows: [fact_row("orders", 0, *codec.encode(LogOpened(log_id="b")))], DamagedError, 0),
    ("an unsound opening", lambda rows: [fact_row("", 0, 1, 1, b"\x90")], DamagedError, 0),
    ("another payload", lambda rows: [*rows[:-1], attrs.evolve(rows[-1], payload=b"\x91")], DamagedError, 5),
    ("another decision payload", lambda rows: [*rows[:-2], attrs.evolve(rows[-2], payload=REJECTED.payload), rows[-1]], DamagedError, 4),
    ("a decision of another log", lambda rows: [fact_row("", 0, *codec.encode(LogOpened(log_id="b"))), *rows[1:]], DamagedError, 2),
]


@pytest.mark.parametrize(("damage", "error", "offset"), [case[1:] for case in AMISS], ids=[case[0] for case in AMISS])
def test_log_damage_stops_the_reader_with_its_offset(path: Path, damage: Any, error: type[LogError], offset: int) -> None:
    written = fill(path)
    put(path, damage(rows_of(path)))
    read: list[Entry] = []
    with open_log(path) as log, pytest.raises(LogError) as caught:
        read.extend(log.read())
    assert type(caught.value) is error
    assert caught.value.offset == offset
    assert f"offset {offset}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(record in written for record in read[1:])  # nothing wrong was given out before; record 0 is another opening in one case


def test_sound_rows_make_a_sound_log(path: Path) -> None:
    """The same edits as above, without damage."""
    written = fill(path)
    put(path, rows_of(path))
    assert read_all(path) == written


@pytest.mark.parametrize("form", ["group.db", "group.jsonl"])
def test_records_of_other_groups_are_checked_too(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    fill(path)
    rows: list[Any] = list(rows_of(path))
    put(path, [*rows[:5], attrs.evolve(rows[5], append_ms=7), *rows[6:]])
    with open_log(path) as log, pytest.raises(DamagedError, match="offset 3"):
        list(log.read(group="orders"))


@pytest.mark.parametrize("at", range(10))
def test_open_damaged_log_to_append_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "group.jsonl"
    fill(path)
    rows = rows_of(path)
    put(path, [*rows[:at], attrs.evolve(rows[at], checksum=0), *rows[at + 1 :]])
    with pytest.raises(DamagedError) as caught:
        open_log(path, "a")
    assert caught.value.offset == [0, 1, 2, 2, 2, 3, 3, 4, 4, 5][at]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:at], b"?" + lines[at], *lines[at + 1 :]]))
    with pytest.raises((DamagedError, InputError)) as broken:
        open_log(path, "a")
    assert f"offset {[0, 1, 2, 3, 3, 3, 4, 4, 5, 5][at]}" in str(broken.value) or at == 0


# ------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("archive/", "archive: there is no such log; make one with"),
        ("kafka://127.0.0.1:1/equipoise", "no broker answers at 127.0.0.1:1"),
        ("http://x/group.db", "this build reads SQLite"),
        ("group.parquet", "there is no such log"),
        ("group", "which form is this"),
        ("127.0.0.1:9092", "for a log in Kafka write kafka://127.0.0.1:9092"),
        ("b1:9092,b2:9092/orders", "write kafka://b1:9092,b2:9092/orders"),
        ("nothing.db", "there is no such log"),
        ("nothing.jsonl", "there is no such log"),
        ("sqlite:///nothing.txt", "there is no such log"),
    ],
)
def test_open_invalid_location_error_names_the_fix(location: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says) as caught:
        open_log(location)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_new_log_in_missing_folder_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="correct the path"):
        open_log(path.parent / "nowhere" / path.name, "w")


def test_open_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, but not an archive of equipoise"):
        open_log(tmp_path)


def test_sqlite_url_opens_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = fill(tmp_path / "group.db")
    for url in ("sqlite:///group.db", f"sqlite:///{tmp_path}/group.db"):
        with open_log(url) as log:
            assert list(log.read()) == written


def test_open_unknown_mode_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="mode 'rw'"):
        open_log(path, "rw")  # type: ignore[arg-type]


def test_open_to_write_replaces_the_old_log(path: Path) -> None:
    fill(path)
    with open_log(path, "w") as log:
        assert (log.count(), log.position()) == (0, 0)
        log.append_fact("", 0, LogOpened(log_id="b2"))
    assert len(read_all(path)) == 1


def test_read_empty_log_gives_nothing(path: Path) -> None:
    open_log(path, "w").close()
    with open_log(path) as log:
        assert (list(log.read()), log.count(), log.position()) == ([], 0, 0)
    with open_log(path, "a") as log:
        assert log.append_fact("", 0, LogOpened(log_id="b2")).offset == 0


@pytest.mark.parametrize("content", [b"dear diary\n", b"\x00" * 5_000, b'{"offset":1}\n'])
def test_open_foreign_file_is_refused_and_left_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for mode in MODES:
        with pytest.raises((InputError, LogError)) as caught, open_log(path, mode) as log:
            list(log.read())
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_open_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE diary (day TEXT)")
    database.close()
    for mode in MODES:
        with pytest.raises(InputError, match="not a log of equipoise"):
            open_log(path, mode)


def test_open_other_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    fill(path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 3")
        database.execute(seal.UNSEAL)
    database.close()
    with pytest.raises(InputError, match="schema 3"):
        open_log(path)


def test_append_when_read_only_or_use_when_closed_raises(path: Path) -> None:
    fill(path)
    with open_log(path) as log:
        with pytest.raises(InputError, match='mode "a"'):
            log.append_fact("orders", 1, ProbingTick())
        with pytest.raises(InputError, match='mode "a"'), log.transaction():
            pass
    log.close()
    for use in (log.read, log.position, log.count):
        with pytest.raises(InputError, match="is closed"):
            use()


def append_beside(first: Log, path: Path) -> None:
    with open_log(path, "a") as second:
        first.append_fact("orders", 9_000, ProbingTick())
        second.append_fact("orders", 9_000, ProbingTick())


def test_second_writer_is_refused(path: Path) -> None:
    fill(path)
    with open_log(path, "a") as first:
        with pytest.raises(InputError, match="a log has one writer"):
            append_beside(first, path)
        first.append_fact("orders", 9_001, ProbingTick())
    with open_log(path) as log:
        assert len(list(log.read())) == log.count()


def test_reading_leaves_nothing_beside_the_log(path: Path) -> None:
    fill(path)
    read_all(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# --------------------------------------------------------------------------------------- JSON Lines


def test_json_line_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "group.jsonl"
    fill(path)
    lines = path.read_text().splitlines()
    assert lines[0].startswith('{"offset":0,"group":"","append_ms":1000,"kind":"LogOpened","version":1,"event":{"log_id":"a1",')
    assert '"held":["0_0","0_1"],"ready":[],"lags":{"0_2":5,"1_0":"unknown"}' in lines[7]
    assert lines[3].startswith('{"number":1,"group":"orders","caused_by":2,"index":0,"kind":"BalanceEvaluated"')
    assert '"join_nonce":"é"' in lines[2]


def test_unsound_payloads_and_past_versions_have_lines_too(tmp_path: Path) -> None:
    unsound = fact_row("g", 5, TICK, 1, b"\x91\x00")
    assert b'"kind":12,"version":1,"payload":"9100"' in render(unsound)
    past = fact_row("g", 5, codec.kind_of(MemberJoined), 1, msgpack.packb(["m7", 1, 1, None, 30_000, 3_000, 0, "n", None]))
    assert b'"kind":"MemberJoined","version":1,"event":{"member_id":"m7"' in render(past)
    for row in (unsound, past):
        assert parse(render(row)) == row


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_lines_are_damaged(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "group.jsonl"
    path.unlink(missing_ok=True)
    fill(path)
    with open(path, "ab") as file:
        file.write(junk + b"\n")
    with pytest.raises(DamagedError, match="offset 6"):
        read_all(path)


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"offset":' + b"9" * 5_000 + b"}", b"{}", b"[]", b"null", b'{"offset":NaN}', b""])
def test_lines_that_parsers_dislike_are_damaged(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "group.jsonl"
    fill(path)
    with open(path, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DamagedError, match="offset 6"):
        read_all(path)


def test_torn_last_line_is_damage_and_next_writer_cuts_it_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "group.jsonl"
    written = fill(path)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DamagedError, match=r"offset 5.*Opening it to append cuts it off"):
            read_all(path)
        caplog.clear()
        with caplog.at_level(logging.WARNING), open_log(path, "a") as log:
            assert isinstance(log, JsonLinesLog)
            assert f"cut off {cut - last} bytes" in log.repaired
            assert "cut off" in caplog.text
            assert log.position() == 5
        assert read_all(path) == written[:-1]
