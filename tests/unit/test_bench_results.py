"""bench/results: each row names its date, command, machine and settings, and docs/benchmarks.md shows
the same numbers. Each compared system names its settings.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import member_speed
from bench.pageviews import __main__ as pageviews
from bench.peers import systems
from bench.peers.feed import Load
from bench.results import FOLDER, read_csv, write_csv
from equipoise.member.options import MemberOptions

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = {path.name: read_csv(path) for path in sorted(FOLDER.glob("*.csv"))}


def number(row: dict[str, str], name: str, places: int = 0) -> str:
    return f"{float(row[name]):,.{places}f}"


def shown_speed(row: dict[str, str]) -> str:
    waits = [f"{number(row, f'p50_ms_at_{rate}_per_s')} / {number(row, f'p99_ms_at_{rate}_per_s')}" for rate in (200, 2_000)]
    return f"| {row['system']} | {' | '.join(waits)} | {float(row['records_per_s']) / 1_000:.0f} | {number(row, 'cpu_s_per_100k', 2)} |"


def shown_pageviews(row: dict[str, str]) -> str:
    assert (row["counts_equal"], row["sessions_missing"]) == ("True", "0")
    return f"| {row['system']} | {number(row, 'records_per_s')} | {number(row, 'cpu_s_per_100k', 2)} | {float(row['state_bytes']) / 1e6:.1f} |"


def shown_peers(row: dict[str, str]) -> str:
    over = "over " if row["at rest after, s"].startswith("over") else ""
    waits = f"{number(row, 'wait_median_ms')}, {number(row, 'wait_p99_ms')}"
    costs = f"{over}{number(row, 'task-s', 1)} | {number(row, 'longest, s', 1)} | {row['owners changed']}"
    return f"| {row['system']} | {costs} | {waits} | {number(row, 'started_s')} |"


SHOWN = {"member_speed.csv": shown_speed, "member_speed_again.csv": shown_speed, "pageviews.csv": shown_pageviews, "peers_kill.csv": shown_peers}


def test_each_file_has_its_table() -> None:
    assert set(RESULTS) == set(SHOWN) | {"recorded_groups.csv"}, "tests/unit/test_readme.py writes that one"


@pytest.mark.parametrize("name", SHOWN)
def test_page_shows_the_rows_of_the_file(name: str) -> None:
    assert [line for line in map(SHOWN[name], RESULTS[name]) if line not in PAGE] == []
    (run,) = {(row["date"], row["command"], row["machine"]) for row in RESULTS[name]}
    assert all(run)
    assert run[1].removeprefix("python ") in " ".join(PAGE.split())
    load = re.search(r"load ([\d.]+) before", run[2])
    assert load is not None
    assert f"load {load[1]}" in PAGE
    assert all(row["settings"] for row in RESULTS[name])


@pytest.mark.parametrize("system", {**systems.SYSTEMS, **systems.OTHERS, **member_speed.SYSTEMS}.values(), ids=lambda system: system.__name__)
def test_each_system_names_its_settings(system: type[systems.System]) -> None:
    assert system.settings


def test_linger_of_kafka_streams_is_varied_and_its_default_named(tmp_path: Path) -> None:
    load = Load(tasks=1, state_mb=0, per_s=0)
    set_to = {
        key: system("127.0.0.1:1", key, tmp_path / key, load, 0).settings_of("m").get("producer.linger.ms")
        for key, system in member_speed.SYSTEMS.items()
        if issubclass(system, systems.KafkaStreams) and not system.in_windows
    }
    assert set_to == {"streams": None, "streams-linger-5": "5", "streams-linger-0": "0"}
    assert "linger.ms=100 (its default)" in systems.KafkaStreams.settings
    assert [each.linger_ms for each in pageviews.SYSTEMS.values() if "PageViews.java" in str(each.files)] == [None, 0]


def test_commit_interval_of_equipoise_is_the_one_that_is_named() -> None:
    least, once = (MemberOptions(guarantee=guarantee).commit_interval_s for guarantee in ("at_least_once", "exactly_once"))
    assert (least, once) == (0.5, 0.1)
    assert "commits after 500 ms or 10,000 records, exactly once after 100 ms" in systems.Equipoise.settings


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [{"system": "a, b", "p50_ms": 1.5}, {"system": 'c "d"', "p50_ms": 2.0}]
    write_csv(tmp_path / "results.csv", rows)
    assert read_csv(tmp_path / "results.csv") == [{name: str(value) for name, value in row.items()} for row in rows]
