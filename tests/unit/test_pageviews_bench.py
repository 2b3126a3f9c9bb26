"""What `bench.pageviews` expects of each system is what the example's own handlers give."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from bench.pageviews.__main__ import HERE, USERS, country_of, events, expected, lines_of
from equipoise.testing import TaskDriver
from examples.pageviews import OPTIONS, PROCESSORS

SERDES = {name: OPTIONS[name] for name in ("key_serde", "value_serde")}


def test_expected_results_are_those_of_the_handlers() -> None:
    made = events(6_000)
    counts, sessions = expected(made)
    enrich, count_views = PROCESSORS

    async def run() -> None:
        first = TaskDriver(enrich.handler, sources=enrich.sources, state=enrich.state, **SERDES)
        second = TaskDriver(count_views.handler, sources=count_views.sources, state=count_views.state, **SERDES)
        for number in range(USERS):
            await first.send({"country": country_of(f"user-{number}")}, key=f"user-{number}", topic="users", timestamp_ms=made[0][2] - 1)
        found: Counter[tuple[str, int]] = Counter()
        closed = set()
        for user, page, at_ms in made:
            for sent in await first.send({"page": page}, key=user, topic="clicks", timestamp_ms=at_ms):
                if sent.topic == "pv-sessions":
                    closed.add((sent.key, sent.value["start"], sent.value["end"], tuple(sent.value["pages"])))
                    continue
                (counted,) = await second.send(sent.value, key=sent.key, timestamp_ms=at_ms)
                found[counted.key, counted.value["minute"]] = counted.value["views"]
        assert found == counts
        assert closed >= sessions > set()

    asyncio.run(run())


def test_lines_are_counted_without_comments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("# a\nx = 1\n\ny = 2  # b\n")
    (tmp_path / "A.java").write_text("/** a\n * b\n */\nint x;\n// c\n")
    assert lines_of((tmp_path / "a.py", tmp_path / "A.java")) == 3
    assert lines_of((HERE / "PageViews.java",)) > 50
