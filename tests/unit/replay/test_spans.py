"""An answer for a span of time: the parts of a history add up to the whole, what was before is
folded, and nothing far behind the end is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.events.facts import ProbingTick
from equipoise.events.records import Entry, FactRecord
from equipoise.log import open_log
from equipoise.replay import spans
from equipoise.replay.spans import ALWAYS, Span
from equipoise.replay.spark.groups import Unit, files_of, units_of
from equipoise.replay.spark.timeline import TABLES, timeline_group
from equipoise.replay.spark.what_if import what_if_group
from equipoise.replay.timelines import build_timeline
from equipoise.replay.whatif.evaluate import Configuration
from tests.unit.replay.lived import BACK_MS, END_MS, JOINED_MS, KILLED_MS, START_MS, configured, decided, lived, write

DAY_MS = 86_400_000


def unit(entries: Iterable[Entry] | None = None) -> Unit:
    return Unit(location="a?partition=0", group="orders", records=1, read=lambda: iter(lived() if entries is None else entries))


CUTS = (None, JOINED_MS, KILLED_MS, KILLED_MS + 3_000, BACK_MS, END_MS - 1_000, None)
PARTS = [Span(*each) for each in itertools.pairwise(CUTS)]


def test_spans_add_up_to_the_whole() -> None:
    whole, parts = timeline_group(unit()), [timeline_group(unit(), span) for span in PARTS]
    for name in ("facts", "moves", "rounds", "stopped_ms"):
        assert sum(part["groups"][name] for part in parts) == whole["groups"][name] > 0, name
    assert max(part["groups"]["longest_ms"] for part in parts) == whole["groups"]["longest_ms"]
    for table in ("unavailability", "rounds"):
        assert sorted((row for part in parts for row in part[table]), key=str) == sorted(whole[table], key=str)
    for table in TABLES:
        if table not in ("costs", "unavailability"):
            assert all(row in whole[table] for part in parts for row in part[table])
    stopped = [sum(row["stopped_ms"] for row in part["costs"]) for part in parts]
    assert stopped == [part["groups"]["stopped_ms"] for part in parts]


def test_span_reports_what_touches_it_and_folds_what_was_before() -> None:
    part = timeline_group(unit(), Span(KILLED_MS, BACK_MS))
    assert (part["groups"]["from_ms"], part["groups"]["to_ms"], part["groups"]["problem"]) == (KILLED_MS, BACK_MS, None)
    assert {row["member_id"] for row in part["members"]} == {"m1", "m2", "m3", "m4"}, "members that joined before"
    assert all(row["from_ms"] < BACK_MS and row["to_ms"] >= KILLED_MS for row in part["intervals"])
    assert any(row["from_ms"] < KILLED_MS for row in part["intervals"])
    assert [row["cause"] for row in part["costs"] if row["stopped_ms"]] == ["expiry"]
    assert part["imbalance"][0]["append_ms"] < KILLED_MS
    assert all(KILLED_MS <= row["append_ms"] < BACK_MS for row in part["imbalance"][1:])


def test_span_reads_no_further_than_what_began_in_it_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "AFTER_MS", 30_000)
    read: list[int] = []

    def entries() -> Iterator[Entry]:
        for entry in lived():
            if isinstance(entry, FactRecord):
                read.append(entry.append_ms)
            yield entry

    span = Span(None, KILLED_MS + 3_000)
    cut = timeline_group(unit(entries()), span)
    assert KILLED_MS + 33_000 <= read[-1] < KILLED_MS + 40_000 < END_MS
    whole = timeline_group(unit(), attrs.evolve(span))
    assert cut["groups"]["stopped_ms"] == whole["groups"]["stopped_ms"]
    assert cut["unavailability"] == whole["unavailability"]
    assert cut["costs"] == whole["costs"]


@pytest.mark.parametrize("span", [Span(None, START_MS - 2 * DAY_MS), Span(END_MS + DAY_MS, None), Span(START_MS - 9, START_MS - 5)])
def test_group_without_a_fact_in_the_span_has_no_problem(span: Span) -> None:
    found = timeline_group(unit(), span)
    assert (found["groups"]["facts"], found["groups"]["problem"], found["groups"]["stopped_ms"]) == (0, None, None)
    assert not any(found[table] for table in TABLES)
    answer = what_if_group(unit(), [Configuration(name="four", settings={"max_warmups": 4})], (0,), span)
    assert (answer["facts"], answer["problem"], answer["outcomes"]) == (0, None, [])


def test_what_if_counts_the_costs_of_the_span() -> None:
    asked = [Configuration(name="standby", settings={"num_standbys": 1})]

    def costs(span: Span) -> list[dict[str, Any]]:
        answer = what_if_group(unit(), asked, (0,), span)
        assert answer["problem"] is None
        rows: list[dict[str, Any]] = answer["outcomes"]
        return rows

    whole, before, after = costs(ALWAYS), costs(Span(None, KILLED_MS - 5_000)), costs(Span(KILLED_MS - 5_000, None))
    for seq in (0, 1):
        for name in ("moves", "rebalances"):
            assert before[seq][name] + after[seq][name] == whole[seq][name]
        both = before[seq]["unavailable_task_seconds"] + after[seq]["unavailable_task_seconds"]
        assert abs(both - whole[seq]["unavailable_task_seconds"]) < 0.2
    assert after[1]["unavailable_task_seconds"] < after[0]["unavailable_task_seconds"], "standbys pay when a member dies"


def test_files_after_the_end_are_not_read(tmp_path: Path) -> None:
    """Days apart: the file of the last is damaged, and nobody looks."""
    archive = tmp_path / "archive"
    with open_log(f"{archive}/", "w") as log:
        write(log, decided((START_MS, configured()), (START_MS + DAY_MS, ProbingTick()), (START_MS + 9 * DAY_MS, ProbingTick())))
    (one,) = units_of([str(archive)])
    days = [part.day for part in files_of([one])[one.location].parts]
    assert len(days) == 3
    span = Span(None, START_MS + 2 * DAY_MS)
    assert [part.day for part in files_of([one], span.last_day)[one.location].parts] == days[:2]
    assert [part.day for part in files_of([one], "1999-01-01")[one.location].parts] == days[:1]
    (file,) = archive.glob(f"date={days[2]}/*.parquet")
    file.write_bytes(file.read_bytes()[:-200])
    assert timeline_group(one, span)["groups"]["problem"] is None
    assert timeline_group(one)["groups"]["problem"] is not None


def test_span_that_is_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--until: is not later than --from"):
        Span(5, 5)
    for command in (["timeline", "--to", str(tmp_path / "x")], ["what-if", "--sweep", "max_warmups=1"]):
        name, *options = command
        result = CliRunner().invoke(main, ["spark", name, str(tmp_path), "--from", "2026-11-02", "--until", "2026-11-01", *options])
        assert result.exit_code == 2
        assert "--until: is not later than --from" in result.stderr


def test_timeline_of_all_time_is_the_whole_one() -> None:
    built = build_timeline(lived())
    assert timeline_group(unit())["groups"]["stopped_ms"] == built.totals().stopped_ms
    assert timeline_group(unit(), Span(START_MS - DAY_MS, END_MS + DAY_MS))["costs"] == timeline_group(unit())["costs"]
