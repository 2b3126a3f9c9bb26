"""examples/pageviews.py, recounted: members crash, leave and join while its users change and its
clicks come late and in no order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest

from equipoise.testing import Group
from examples.pageviews import OPTIONS, PROCESSORS

USERS = 12
COUNTRIES = ["SE", "NO", "DE"]


def end_of_all_ms(running: Group) -> int:
    """Sends a click to each partition that is so late that everything before it is closed."""
    at_ms = 10_000_000
    for partition in range(2):
        running.send({"page": "/end"}, key=f"end{partition}", topic="clicks", partition=partition, timestamp_ms=at_ms)
    return at_ms


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_a_recount(seed: int, guarantee: str) -> None:
    random = Random(seed)
    clicks = [(f"u{random.randrange(USERS)}", number * 700 - random.choice([0, 0, 0, 4_000]), f"/{number}") for number in range(400)]
    with Group(processors=PROCESSORS, partitions=2, seed=seed, **{**OPTIONS, "guarantee": guarantee}) as running:
        for key, at_ms, page in clicks[:200]:
            running.send({"page": page}, key=key, topic="clicks", timestamp_ms=max(0, at_ms))
        for number in range(USERS):
            running.send({"country": COUNTRIES[number % 3]}, key=f"u{number}", topic="users", timestamp_ms=9_000_000)
        running.join("m1", "m2")
        running.advance(random.random() * 3)
        running.crash("m1")
        for key, at_ms, page in clicks[200:]:
            running.send({"page": page}, key=key, topic="clicks", timestamp_ms=max(0, at_ms))
        running.advance(random.random() * 20)
        running.join("m1", "m3")
        running.settle()
        running.leave("m2")
        end_of_all_ms(running)
        running.settle()
        country = {f"u{number}": COUNTRIES[number % 3] for number in range(USERS)}
        newest: dict[tuple[str, int], int] = {}
        for each in running.outputs("pv-counts"):
            newest[each.key, each.value["minute"]] = max(each.value["views"], newest.get((each.key, each.value["minute"]), 0))
        sent = Counter((each.key, max(0, each.timestamp_ms or 0) // 60_000 * 60_000) for each in running.outputs("pv-views"))
        clicked = Counter((country[key], max(0, at_ms) // 60_000 * 60_000) for key, at_ms, _ in clicks)
        if guarantee == "exactly_once":
            assert {place: views for place, views in sent.items() if place[0] != "??"} == clicked
            assert newest == sent
        pages: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for key, at_ms, page in clicks:
            pages[key].append((max(0, at_ms), page))
        expected = set()
        for key, its in pages.items():
            times = sorted(at_ms for at_ms, _ in its)
            begins = [at for number, at in enumerate(times) if not number or at - times[number - 1] > 30_000]
            ends = [at for number, at in enumerate(times) if number + 1 == len(times) or times[number + 1] - at > 30_000]
            expected |= {(key, *each) for each in zip(begins, ends, strict=True)}
        assert {(each.key, each.value["start"], each.value["end"]) for each in running.outputs("pv-sessions")} == expected
        running.recount()
