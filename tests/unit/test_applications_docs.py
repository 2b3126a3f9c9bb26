"""docs/applications.md and docs/applications-by-task.md: each block of code runs.
tests/live/test_applications.py runs the program of the first on a broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise import CopyLocation, ErrorPolicy, JsonSerde, KeyLocation, Member, StringSerde, TaskId
from equipoise.cli import COMMANDS
from equipoise.testing import SentRecord, TaskDriver

ROOT = Path(__file__).parents[2]
FIRST, BY_TASK = (ROOT / "docs" / name for name in ("applications.md", "applications-by-task.md"))
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
SERDES: dict[str, Any] = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


def blocks(kind: str) -> list[tuple[str, str]]:
    """File ("": it has none) and text of each block of a kind, of both pages."""
    texts = [page.read_text(encoding="utf-8") for page in (FIRST, BY_TASK)]
    return [(match["file"] or "", match["text"]) for text in texts for match in BLOCK.finditer(text) if match["kind"] == kind]


def files() -> dict[str, str]:
    """The files that the pages have their reader write."""
    return {file: text for file, text in blocks("python") if file}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the blocks define that are no files."""
    names: dict[str, Any] = {"__name__": "page"}
    for file, text in blocks("python"):
        if not file:
            exec(compile(text, "page", "exec"), names)  # noqa: S102  # the page itself
    return names


def write_all(folder: Path) -> list[str]:
    """Writes each block of code to a file, and a program with a misspelt option. Returns the names."""
    written = {**files(), **{f"block_{number}.py": text for number, (file, text) in enumerate(blocks("python")) if not file}}
    (chain,) = (name for name, text in written.items() if "CHAIN =" in text)
    for test in [name for name, text in written.items() if "CHAIN" in text and name != chain]:
        written[test] = f"from {chain.removesuffix('.py')} import CHAIN\n{written[test]}"
    written["misspelt.py"] = files()["spending.py"].replace("guarantee=", "guarante=")
    for name, text in written.items():
        (folder / name).write_text(text)
    return list(written)


@pytest.mark.docs
def test_code_of_the_page_passes_pyright_and_a_misspelt_option_does_not(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')  # the default of pyright itself
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    (found,) = json.loads(checked.stdout)["generalDiagnostics"]
    assert (Path(found["file"]).name, found["message"]) == ("misspelt.py", 'No parameter named "guarante"')


def test_code_of_the_page_passes_strict_mypy_and_a_misspelt_option_does_not(tmp_path: Path) -> None:
    written = write_all(tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *(str(tmp_path / name) for name in written)]
    environment = {**os.environ, "MYPYPATH": str(tmp_path)}  # in the repository, where `make check` has left its cache
    checked = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    (error,) = (line for line in checked.stdout.splitlines() if ": note: " not in line)
    assert "misspelt.py" in error
    assert 'Unexpected keyword argument "guarante" for "Member"; did you mean "guarantee"?' in error


def test_test_of_the_page_passes(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_spending.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert "1 passed" in tested.stdout, tested.stdout


def test_serde_of_the_page_is_one(names: dict[str, Any]) -> None:
    async def run() -> None:
        driver = TaskDriver(lambda record, context: context.send("out", record.value * 2), value_serde=names["NumberSerde"]())
        (sent,) = await driver.send(125)
        assert sent.value == 250

    asyncio.run(run())


def test_forwarding_handler_sends_headers_and_time(names: dict[str, Any]) -> None:
    async def run() -> None:
        (sent,) = await TaskDriver(names["forward"], **SERDES).send(1, key="k", headers=[("a", b"b")], timestamp_ms=7)
        assert sent == SentRecord("images", "k", b"\x89PNG", None, (("a", b"b"), ("content-type", b"image/png")), 7)

    asyncio.run(run())


def test_handler_of_visits_forgets_those_of_another_day(names: dict[str, Any]) -> None:
    async def run() -> None:
        driver = TaskDriver(names["keep_last_visits"], **SERDES)
        day_ms = 86_400_000
        counts = [await driver.send("page", key=key, timestamp_ms=at) for key, at in (("a", 0), ("b", 0), ("a", day_ms), ("a", day_ms + 1))]
        assert [sent[0].value for sent in counts] == [1, 1, 2, 2]

    asyncio.run(run())


def test_handler_of_the_page_joins_two_sources(names: dict[str, Any]) -> None:
    async def run() -> None:
        driver = TaskDriver(names["with_country"], sources=names["visits"]._processors[0].inputs, **SERDES)
        await driver.send("SE", key="ann", topic="users")
        assert await driver.send({"page": "/"}, key="ann") == [SentRecord("visits", "ann", {"page": "/", "country": "SE"}, timestamp_ms=0)]

    asyncio.run(run())


def handled(handler: Any, *records: tuple[str, str, Any, int]) -> list[tuple[str, Any, Any]]:
    """What a handler sends for records: topic, key, value and time (ms) of each."""

    async def run() -> list[tuple[str, Any, Any]]:
        driver = TaskDriver(handler, sources=list(dict.fromkeys(topic for topic, *_ in records)), **SERDES)
        sent = [await driver.send(value, key=key, topic=topic, timestamp_ms=at_ms) for topic, key, value, at_ms in records]
        return [(each.topic, each.key, each.value) for some in sent for each in some]

    return asyncio.run(run())


def test_orders_are_joined_with_payments_within_an_hour(names: dict[str, Any]) -> None:
    hour_ms = 3_600_000
    order, payment = {"cents": 5}, {"paid": 5}
    paid, unpaid, later = ("orders", "o1", order, 0), ("orders", "o2", order, hour_ms), ("orders", "o3", order, 3 * hour_ms)
    found = handled(names["pay"], paid, ("payments", "o1", payment, hour_ms), unpaid, later)
    assert found == [("paid", "o1", order), ("unpaid", "o2", order)]


def test_tables_are_joined_at_each_change(names: dict[str, Any]) -> None:
    found = handled(names["price"], ("amounts", "a", 3, 0), ("prices", "a", 7, 1), ("amounts", "a", 2, 2), ("prices", "a", None, 3))
    assert [value for _, _, value in found] == [None, 21, 14, None]


def test_window_of_the_page_is_sent_once_it_is_closed(names: dict[str, Any]) -> None:
    orders = [("orders", "all", {"cents": cents}, at_ms) for cents, at_ms in ((5, 1_000), (6, 64_999), (7, 59_000), (1, 65_000))]
    assert handled(names["by_minute"], *orders) == [("revenue", "all", 12)]


def test_session_of_the_page_ends_after_a_gap(names: dict[str, Any]) -> None:
    clicks = [("clicks", key, "/", at_ms) for key, at_ms in (("ann", 1_000), ("ann", 2_000), ("bob", 37_000), ("bob", 37_001))]
    assert handled(names["follow"], *clicks) == [("stays", "ann", 2)]


def test_duplicates_are_handled_once_a_day(names: dict[str, Any]) -> None:
    day_ms = names["DAY_MS"]
    payments = [("payments", "p1", at_ms, at_ms) for at_ms in (0, 5, day_ms - 1, day_ms + 5)]
    assert handled(names["once"], *payments) == [("payments-once", "p1", 0), ("payments-once", "p1", day_ms + 5)]


def test_late_record_is_sent_and_counted(names: dict[str, Any]) -> None:
    views = [("views", "a", number, at_ms) for number, at_ms in enumerate((1_000, 70_000, 59_999, 60_000))]
    assert handled(names["count_timely"], *views) == [("late", "a", 2)]


def test_batch_handler_of_the_page_adds_up(names: dict[str, Any]) -> None:
    async def run() -> None:
        driver = TaskDriver(batch_handler=names["add_up_all"], **SERDES)
        await driver.send({"cents": 1}, key="a")
        sent = await driver.send_many([("a", {"cents": 2}), ("b", {"cents": 3}), ("a", {"cents": 4})])
        assert sent == [SentRecord("spending", "a", {"cents": 7}, timestamp_ms=0), SentRecord("spending", "b", {"cents": 3}, timestamp_ms=0)]

    asyncio.run(run())


def test_timer_of_the_page_reports_each_minute(names: dict[str, Any]) -> None:
    async def run() -> None:
        driver = TaskDriver(lambda record, context: context.state.put(record.key, 1), on_assigned=names["on_assigned"], **SERDES)
        await driver.send(1, key="a")
        assert await driver.advance(125) == [SentRecord("customers", "0_0", 1)] * 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "lag", "expected"),
    [("a:1", 0, "a:1"), (None, 0, "b:1"), (None, 5, None)],
)
def test_address_of_the_page_is_the_owners_or_that_of_a_copy_without_lag(
    names: dict[str, Any], owner: str | None, lag: int, expected: str | None
) -> None:
    class Asked:
        async def owner(self, key: str) -> KeyLocation:
            copy = CopyLocation(member_id="m2", advertised="b:1", lag=lag)
            return KeyLocation(task=TaskId(0, 1), member_id="m1", advertised=owner, token=1, copies=(copy,), generation=1, as_of_ms=1)

    assert asyncio.run(names["address_of"](Asked(), "c1")) == expected


def test_policy_and_processors_of_the_page(names: dict[str, Any]) -> None:
    assert names["patient"] == ErrorPolicy(action="dead_letter", topic="orders-dead", retries=3, backoff_s=1.0)
    assert isinstance(names["member"], Member)
    assert [part.source_topics for part in names["member"]._topology([1, 1]).subtopologies] == [("clicks",), ("by-page",)]


def test_chain_of_the_page_is_tested_by_its_test(names: dict[str, Any]) -> None:
    names["test_views_of_a_page_are_counted_though_a_member_dies"]()
    asyncio.run(names["test_views_are_counted_as_before"]())
    names["test_late_views_are_dropped"]()


def test_shell_blocks_run_programs_of_the_page_and_commands_that_exist() -> None:
    lines = [line.removesuffix(" &").split() for _, text in blocks("sh") for line in text.splitlines()]
    assert {words[1] for words in lines if words[0] == "python"} == {"spending.py", "send.py"}
    assert {words[1] for words in lines if words[0] == "equipoise"} <= set(COMMANDS)


def test_every_block_is_of_a_kind_that_a_test_runs() -> None:
    for page, expected in ((FIRST, {"python", "sh"}), (BY_TASK, {"python"})):
        text = page.read_text(encoding="utf-8")
        kinds = [match["kind"] for match in BLOCK.finditer(text)]
        assert set(kinds) == expected
        assert text.count("```") == 2 * len(kinds)
