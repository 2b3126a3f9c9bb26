"""Costs by day and cause: their sums are the timeline's totals, whatever the span, and each cause
is what was done to the group.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from equipoise.replay.importers.kafka_streams.importer import import_history
from equipoise.replay.owners import Condition
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.timelines import Cost, Timeline, build_timeline, costs_of
from equipoise.replay.timelines.history_costs import COST_CAUSES, ROLLING_MS, by_cause, by_group, cause_of_cost_text
from equipoise.replay.wording import CAUSES
from tests.unit.replay.lived import KILLED_MS, START_MS, TOPOLOGY, configured, lived
from tools.import_check import MemoryLog

DATA = Path(__file__).parents[3] / "replay" / "data"
DAY_MS = 86_400_000


@functools.cache
def recorded(run: str) -> Timeline:
    """A recorded group that Kafka Streams led."""
    log = MemoryLog()
    import_history(DATA / run, log)
    return build_timeline(log.records)


@functools.cache
def of_cluster(happens: Callable[[SimulatedCluster], None]) -> Timeline:
    """Three members, at rest after two minutes, and what then happens to them."""
    sink = MemorySink()
    growth = {("store", partition): steady(records=400_000, records_per_s=50, start_ms=START_MS) for partition in range(12)}
    config = ClusterConfig(group="orders", log_id="made", configured=configured(), topology=TOPOLOGY, growth=growth, start_ms=START_MS)
    cluster = SimulatedCluster(config, seed=3, sink=sink)
    cluster.start_worker()
    for number in (1, 2, 3):
        cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=2))
    cluster.run_for(120_000)
    happens(cluster)
    cluster.run_for(90_000)
    return build_timeline(sink.entries)


def restart(cluster: SimulatedCluster, member_id: str) -> None:
    cluster.last_process(member_id).leave_to_restart(20_000)
    cluster.run_for(15_000)
    cluster.restart(member_id)
    cluster.run_for(20_000)


def one_restart(cluster: SimulatedCluster) -> None:
    restart(cluster, "m1")


def rolling_restart(cluster: SimulatedCluster) -> None:
    for member_id in ("m1", "m2", "m3"):
        restart(cluster, member_id)


def restarts_far_apart(cluster: SimulatedCluster) -> None:
    restart(cluster, "m1")
    cluster.run_for(ROLLING_MS)
    restart(cluster, "m2")


def close_for_good(cluster: SimulatedCluster) -> None:
    cluster.last_process("m1").close()


def stopped(timeline: Timeline) -> dict[str, int]:
    """Cause -> task-milliseconds, without those of the beginning."""
    return {each.cause: each.stopped_ms for each in costs_of(timeline) if each.stopped_ms and each.cause != "start"}


HISTORIES: dict[str, Callable[[], Timeline]] = {
    "lived": lambda: build_timeline(lived()),
    "scale-out": lambda: recorded("scale-out"),
    "rolling": lambda: recorded("rolling"),
    "restarts": lambda: of_cluster(rolling_restart),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_costs_sum_to_the_totals_of_every_span(name: str) -> None:
    timeline = HISTORIES[name]()
    length_ms = timeline.to_ms - timeline.from_ms
    cuts = [None, *(timeline.from_ms + length_ms * part // 7 for part in range(1, 7)), None]
    spans = list(itertools.pairwise(cuts))
    parts = [costs_of(timeline, *span) for span in spans]
    for costs, span in zip([costs_of(timeline), *parts], [(None, None), *spans], strict=True):
        totals = timeline.totals("all", *span)
        assert sum(each.stopped_ms for each in costs) == totals.stopped_ms
        assert sum(each.moves for each in costs) == totals.moves
        assert max((each.longest_ms for each in costs), default=0) == totals.longest_ms
        assert [(each.day, each.cause) for each in costs] == sorted({(each.day, each.cause) for each in costs})
        assert {each.cause for each in costs} <= CAUSES.keys() | COST_CAUSES.keys()
    whole = costs_of(timeline)
    assert sum(each.stretches for of_part in parts for each in of_part) == sum(each.stretches for each in whole) > 0


@pytest.mark.parametrize(
    ("happens", "cause"),
    [(one_restart, "restarting"), (rolling_restart, "deploy"), (restarts_far_apart, "restarting"), (close_for_good, "leave")],
)
def test_cost_belongs_to_what_was_done(happens: Callable[[SimulatedCluster], None], cause: str) -> None:
    found = stopped(of_cluster(happens))
    assert found.keys() == {cause}
    assert found[cause] > 0


def test_cost_of_a_silence_without_an_end_is_of_its_own() -> None:
    timeline = build_timeline(lived())
    (silent, *_) = (each for each in timeline.intervals if each.condition is Condition.SILENT)
    alone = attrs.evolve(timeline, intervals=(silent,), moves=())
    assert [each.cause for each in costs_of(alone)] == ["expiry"]
    assert [each.cause for each in costs_of(attrs.evolve(alone, lifelines=()))] == ["silent"]


def test_cost_of_a_crash_is_not_that_of_the_join_behind_it() -> None:
    timeline = build_timeline(lived())
    costs = {each.cause: each for each in costs_of(timeline)}
    assert costs["expiry"].stopped_ms == sum(
        until - since for stretches in timeline.stopped(KILLED_MS - 10_000, timeline.to_ms).values() for since, until in stretches
    )
    assert costs["expiry"].tasks == costs["expiry"].stretches
    assert costs["join"].moves > 0
    assert costs["join"].restored_records > 0


def test_recorded_deployment_costs_as_what_it_was() -> None:
    """Its actions: rolling restarts of three processes, one of them killed."""
    timeline = recorded("rolling")
    found = stopped(timeline)
    assert max(found, key=lambda cause: found[cause]) == "deploy"
    ended = [life for life in timeline.lifelines if life.how == "replaced"]
    assert len({life.member_id for life in ended}) > 1


def test_cost_counts_in_full_on_the_day_of_its_middle() -> None:
    timeline = build_timeline(lived())
    interval = next(each for each in timeline.intervals if each.condition is not Condition.RUNNING)
    midnight_ms = (timeline.to_ms // DAY_MS + 1) * DAY_MS
    for begin_ms, end_ms, day in ((midnight_ms - 500, midnight_ms + 499, 0), (midnight_ms - 500, midnight_ms + 500, 1)):
        moved = attrs.evolve(
            timeline,
            from_ms=midnight_ms - DAY_MS,
            to_ms=midnight_ms + DAY_MS,
            moves=(),
            intervals=(attrs.evolve(interval, from_ms=begin_ms, to_ms=end_ms),),
        )
        (cost,) = costs_of(moved)
        assert cost.stopped_ms == end_ms - begin_ms
        assert cost.day == dt.datetime.fromtimestamp((midnight_ms + (day - 1) * DAY_MS) / 1_000, dt.UTC).date().isoformat()
        assert costs_of(moved, to_ms=midnight_ms) == ([cost] if day == 0 else [])
        assert costs_of(moved, midnight_ms) == ([cost] if day == 1 else [])


def row(group: str, cause: str, stopped_ms: int, moves: int = 0, location: str = "prod") -> dict[str, object]:
    cost = Cost(day="2026-11-23", cause=cause, stretches=1, tasks=1, stopped_ms=stopped_ms, longest_ms=stopped_ms, moves=moves, restored_records=5)
    return {"group": group, "location": location, **attrs.asdict(cost)}


def test_costs_of_groups_are_ranked() -> None:
    rows = [row("a", "join", 10), row("b", "expiry", 70), row("a", "expiry", 40), row("a", "expiry", 50, moves=2), row("c", "probing", 0, moves=1)]
    causes = by_cause(rows)
    assert [(each["cause"], each["groups"], each["stretches"], each["stopped_ms"], each["moves"], each["restored_records"]) for each in causes] == [
        ("expiry", 2, 3, 160, 2, 15),
        ("join", 1, 1, 10, 0, 5),
        ("probing", 1, 1, 0, 1, 5),
    ]
    assert [(each["worst_group"], each["worst_stopped_ms"], each["longest_ms"]) for each in causes] == [("a", 90, 70), ("a", 10, 10), ("c", 0, 0)]
    assert causes[0]["cause_text"] == cause_of_cost_text("expiry") == COST_CAUSES["expiry"]
    assert cause_of_cost_text("join") == CAUSES["join"]
    assert [(group, list(of.items())) for (group, _), of in by_group(rows).items()] == [
        ("a", [("expiry", 90), ("join", 10)]),
        ("b", [("expiry", 70)]),
        ("c", [("probing", 0)]),
    ]
    assert by_cause(reversed(rows)) == causes


def test_groups_of_one_name_in_two_archives_are_two_groups() -> None:
    rows = [row("a", "expiry", 10), row("a", "expiry", 30, location="staging"), row("b", "expiry", 20)]
    (cause,) = by_cause(rows)
    assert (cause["groups"], cause["stopped_ms"]) == (3, 60)
    assert (cause["worst_group"], cause["worst_location"], cause["worst_stopped_ms"]) == ("a", "staging", 30)
    assert by_group(rows) == {("a", "prod"): {"expiry": 10}, ("a", "staging"): {"expiry": 30}, ("b", "prod"): {"expiry": 20}}
