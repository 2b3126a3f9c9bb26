"""Metrics of the groups that a worker leads: their values, which groups are named, and how large
and how quick the page of thousands of groups is.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from equipoise.assignors import registry
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import MemberLeft, PartitionsObserved, ProbingTick, Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.replay.group_view import task_rows
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import Lost, Parked
from equipoise.worker import group_metrics
from equipoise.worker.group_metrics import HELD_S, KEPT_S, MOST_VALUES, OTHERS, escaped
from equipoise.worker.group_readings import LAGGING_RECORDS, GroupCondition, read
from equipoise.worker.metrics import WorkerMetrics
from tests.groups import Group, configured
from tests.prometheus import RULES, promtool, rules

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
QUIET = Group(watched=False).starts("m1", "m2", stateful=4)
QUIET.settles()


def lead(name: str, machine: GroupMachine | None = None) -> GroupLead:
    """A group of two members at rest."""
    made = machine or GroupMachine.restore(QUIET.machine.snapshot())
    if machine is None:
        made.last_evaluation = QUIET.machine.last_evaluation
    return GroupLead(name, made)


def samples(text: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


class Worker:
    """Groups and the metrics of a worker that leads them, with a clock of its own."""

    def __init__(self, leads: Iterable[GroupLead], most: int = 1_000) -> None:
        self.leads = list(leads)
        self.most = most
        self.now_s = 0.0
        self.metrics = WorkerMetrics()
        self.metrics.observe(lambda: ((each, True) for each in self.leads), list, lambda: self.most, lambda: self.now_s)

    def scrape(self, after_s: float = 0.0) -> Samples:
        self.now_s += after_s
        return samples(self.metrics.text())

    def named(self, after_s: float = 0.0, *, metric: str = "equipoise_group_halted") -> list[str]:
        return sorted(dict(labels)["group"] for name, labels in self.scrape(after_s) if name == metric)

    def value(self, name: str, **labels: str) -> float | None:
        return self.scrape().get((name, frozenset(labels.items())))


def test_metrics_show_the_assignors_promises() -> None:
    group = Group().starts("m1", stateful=4, end_offset=1_000, max_warmups=3)
    group.settles()
    worker = Worker([lead("orders", group.machine)])

    def value(name: str, **labels: str) -> float | None:
        return worker.value(name, group="orders", **labels)

    group.join("m2")
    group.fact(ProbingTick())
    assert (value("equipoise_target_moves", count="planned"), value("equipoise_target_moves", count="lower_bound")) == (2.0, 2.0)
    assert value("equipoise_cross_rack_partitions") == 0.0
    assert value("equipoise_load_spread_ratio", at="now") is None, "high_availability counts tasks"
    assert (value("equipoise_lost_tasks", state="waiting"), value("equipoise_lost_tasks_wait_seconds")) == (0.0, 0.0)
    group.state.behind[TaskId(0, 1)] = 190_000
    group.state.lost[TaskId(0, 0)] = Lost(since_ms=group.state.now_ms, until_ms=group.state.now_ms + 5_000)
    assert (value("equipoise_source_lag_records"), value("equipoise_lost_tasks_wait_seconds")) == (190_000.0, 5.0)
    worker.leads[0].machine = GroupMachine.restore(group.machine.snapshot())
    assert value("equipoise_target_moves", count="planned") is None, "there was no round since"


def test_values_are_those_of_the_rows_of_the_group() -> None:
    """Through joins, hand-overs and a leave, beside the rows that `status` shows."""
    group = Group().starts("m1", stateful=6, stateless=3, end_offset=40_000, max_warmups=1)
    group.settles()
    worker = Worker([lead("orders", group.machine)])
    seen = Counter[str]()

    def compare() -> None:
        state, found = group.state, worker.scrape()

        def values(metric: str) -> dict[str, float]:
            return {dict(labels)["state"]: value for (name, labels), value in found.items() if name == metric and dict(labels)["group"] == "orders"}

        rows = list(task_rows(state))
        assert values("equipoise_tasks") == {each: sum(row.state == each for row in rows) for each in ("owned", "revoking", "nobody")}
        phases = Counter(state.member_phase(member).value for member in state.members.values())
        assert values("equipoise_members") == {"STABLE": 0, **phases}
        moving = Counter(movement.state.value for movement in state.in_flight.values())
        moving["waiting"] += state.waiting
        assert values("equipoise_movements") == {each: moving[each] for each in ("waiting", "warming", "revoking")}
        behind = sum(copy.lag for row in rows for copy in row.warmups if isinstance(copy.lag, int))
        assert found["equipoise_warmup_lag_records", frozenset({("group", "orders")})] == behind
        for name, value in (("all_tasks", values("equipoise_tasks")), ("all_movements", values("equipoise_movements"))):
            assert {dict(labels)["state"]: total for (each, labels), total in found.items() if each == f"equipoise_{name}"} == value
        seen.update(name for name, count in (*values("equipoise_tasks").items(), *moving.items(), *phases.items()) if count)
        seen["behind"] += behind > 0

    compare()
    group.join("m2", restores=9_000)
    for _ in range(12):
        compare()
        group.cycle()
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    compare()
    group.settles()
    compare()
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    compare()
    assert set(seen) >= {"owned", "revoking", "nobody", "warming", "waiting", "STABLE", "UNREVOKED", "behind"}


def test_parked_task_is_counted_while_the_member_that_parked_it_has_it() -> None:
    worker = Worker([lead("orders")])
    state, task = worker.leads[0].machine.state, TaskId(0, 0)
    none = {"group": "orders", "task": "", "topic": "", "partition": "", "offset": ""}
    assert worker.value("equipoise_parked_tasks", **none) == 0.0
    state.parked[task] = Parked(state.owner[task], since_ms=0, topic="in", partition=0, offset=5, error="not a number")
    it = {"group": "orders", "task": "0_0", "topic": "in", "partition": "0", "offset": "5"}
    assert (worker.value("equipoise_parked_tasks", **it), worker.value("equipoise_all_parked_tasks")) == (1.0, 1.0)
    assert worker.value("equipoise_groups", condition="trouble", named="true") == 1.0
    state.owner[task] = next(member for member in state.members if member != state.owner[task])
    assert worker.value("equipoise_parked_tasks", **none) == 0.0


def test_group_with_an_unreadable_state_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(lead(name, GroupMachine()) for name in ("broken", "sound"))
    worker.leads[0].machine.state.members["m1"] = None  # type: ignore[assignment]  # half a step was taken
    worker.leads[0].halted = GroupHalted("broken", 5, "defect", "a defect")
    for _ in range(2):
        found = worker.scrape()
        assert found["equipoise_group_halted", frozenset({("group", "broken")})] == 1.0
        assert ("equipoise_tasks", frozenset({("group", "sound"), ("state", "owned")})) in found
        assert ("equipoise_tasks", frozenset({("group", "broken"), ("state", "owned")})) not in found
        assert found["equipoise_groups", frozenset({("condition", "halted"), ("named", "true")})] == 1.0
    assert caplog.text.count("cannot be read for the metrics") == 1


def test_failed_tasks_are_named_with_their_records_up_to_ten_of_a_group() -> None:
    group = Group().starts("m1", stateful=12)
    worker = Worker([lead("g", group.machine)])

    def parked() -> dict[tuple[str, str], float]:
        found = worker.scrape()
        assert found["equipoise_all_parked_tasks", frozenset()] == len(group.state.parked)
        rows = [(dict(labels), value) for (name, labels), value in found.items() if name == "equipoise_parked_tasks"]
        return {(row["task"], f"{row['topic']}/{row['partition']} {row['offset']}"): value for row, value in rows}

    assert parked() == {("", "/ "): 0.0}
    assert read(worker.leads[0]).condition is GroupCondition.AT_REST
    for partition in range(12):
        group.state.parked[TaskId(0, partition)] = Parked("m1", 0, 'a "topic"', partition, 17, "ValueError")
        assert read(worker.leads[0]).condition is GroupCondition.TROUBLE
    found = parked()
    assert len(found) == 11
    assert found["0_3", 'a "topic"/3 17'] == 1.0
    assert found["(others)", "/ "] == 2.0


def test_group_that_is_not_known_now_is_not_at_rest() -> None:
    group = lead("g", Group().starts("m1", stateful=2).machine)
    assert read(group).condition is GroupCondition.AT_REST
    assert read(group, is_known=False).condition is GroupCondition.UNKNOWN


def test_member_that_is_held_up_is_trouble() -> None:
    group = lead("g", Group().starts("m1", stateful=2).machine)
    group.machine.state.members["m1"].troubles = ("task 0_1 waits for its handler",)
    assert (read(group).condition, read(group).held_up) == (GroupCondition.TROUBLE, 1)


def test_names_of_groups_and_topics_are_escaped() -> None:
    name = 'a "group"\\with\nlines{}'
    group = Group().starts("m1", stateful=1)
    found = Worker([lead(name, group.machine)])
    assert found.value("equipoise_unread_partitions", group=name, topic="in") == 0.0
    assert found.value("equipoise_unavailable_task_seconds_total", group=name) == 0.0
    promtool("check", "metrics", stdin=found.metrics.text().decode())
    assert escaped(name) == 'a \\"group\\"\\\\with\\nlines{}'


def test_group_of_many_topics_shows_some_and_all_that_nobody_reads() -> None:
    group = Group()
    topics = tuple(f"t{number:02}" for number in range(50))
    group.fact(configured())
    group.fact(TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=False, source_topics=topics),)))
    group.fact(PartitionsObserved(end_offsets={"t40": {0: 1, 1: 1, 2: 1}}))
    found = Worker([lead("g", group.machine)]).scrape()
    shown = {dict(labels)["topic"]: value for (name, labels), value in found.items() if name == "equipoise_unread_partitions"}
    assert shown == {**dict.fromkeys(topics[:10], 0.0), "t40": 1.0}
    assert found["equipoise_all_unread_partitions", frozenset()] == 1.0


def test_page_of_ten_thousand_groups_is_small_and_made_in_short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(lead(f"orders-of-region-{number:05}", QUIET.machine) for number in range(10_000))
    first = worker.metrics.text()
    assert len(first) < 2_000_000
    found = samples(first)
    assert len(found) < 25_000
    assert found["equipoise_all_members", frozenset({("state", "STABLE")})] == 20_000
    assert found["equipoise_all_tasks", frozenset({("state", "owned")})] == 40_000
    assert found["equipoise_groups", frozenset({("condition", "at_rest"), ("named", "false")})] == 9_000
    assert found["equipoise_groups", frozenset({("condition", "at_rest"), ("named", "true")})] == 1_000
    assert found["equipoise_setting_groups", frozenset({("setting", "num_standbys"), ("value", "0")})] == 10_000
    assert max(Counter(name for name, _ in found).values()) <= 3_000, "nothing has a series of each group"
    cpu_s = min(_cpu_s(worker) for _ in range(3))
    assert cpu_s < 1.0, "0.13 s alone; the machine of this test may be busy"
    monkeypatch.setattr(group_metrics, "TURN_S", 0.0)
    assert asyncio.run(_turns_of_others(worker)) > 50


def _cpu_s(worker: Worker) -> float:
    before_s = time.process_time()
    worker.metrics.text()
    return time.process_time() - before_s


async def _turns_of_others(worker: Worker) -> int:
    """How often another coroutine runs while two scrapes get one page."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    first, second = await asyncio.gather(worker.metrics.page(), worker.metrics.page())
    running.cancel()
    assert first == second
    return turns


def test_groups_in_trouble_are_named_first_and_at_rest_left_out_by_name() -> None:
    worker = Worker([lead(f"g{number}") for number in range(6)], most=3)
    assert worker.named() == ["g0", "g1", "g2"]
    by_name = {each.name: each for each in worker.leads}
    by_name["g5"].halted = GroupHalted("g5", 5, "defect", "a defect")
    by_name["g4"].machine.state.owner.popitem()
    assert worker.named() == ["g0", "g4", "g5"]
    by_name["g3"].machine.state.waiting = 2
    assert worker.named() == ["g3", "g4", "g5"]
    by_name["g2"].machine.state.members.clear()
    by_name["g2"].machine.state.owner.clear()
    assert worker.named() == ["g3", "g4", "g5"], "an empty group comes after those that have members"
    worker.most = 2
    assert worker.named() == ["g4", "g5"]
    found = worker.scrape()
    assert found["equipoise_groups", frozenset({("condition", "busy"), ("named", "false")})] == 1.0
    assert found["equipoise_groups", frozenset({("condition", "empty"), ("named", "false")})] == 1.0
    assert found["equipoise_all_movements", frozenset({("state", "waiting")})] == 2.0
    assert found["equipoise_all_tasks", frozenset({("state", "nobody")})] == 5.0
    worker.most = 0
    assert worker.named() == []
    assert worker.value("equipoise_groups", condition="halted", named="false") == 1.0
    worker.most = 6
    assert len(worker.named()) == 6


def test_group_that_was_busy_stays_named_for_a_while_and_then_until_others_are_busy() -> None:
    worker = Worker([lead(f"g{number}") for number in range(4)], most=2)
    assert worker.named() == ["g0", "g1"]
    by_name = {each.name: each for each in worker.leads}
    by_name["g3"].machine.state.waiting = 1
    assert worker.named(15) == ["g0", "g3"]
    by_name["g3"].machine.state.waiting = 0
    by_name["g2"].machine.state.generation += 1  # a round, between two scrapes
    assert worker.named(15) == ["g2", "g3"]
    assert worker.named(KEPT_S - 20) == ["g2", "g3"]
    assert worker.named(30) == ["g2", "g3"], "no series changes without need"
    by_name["g0"].machine.state.waiting = 1
    assert worker.named(15) == ["g0", "g2"]
    worker.leads = [by_name[name] for name in ("g0", "g1", "g3")]
    assert worker.named(15) == ["g0", "g1"], "the group that left keeps no place"


def test_counter_of_a_group_that_is_named_again_begins_with_its_former_value() -> None:
    """Prometheus sees no rise in a series that begins with it, and takes each fall for a reset."""
    worker = Worker([lead(f"g{number}") for number in range(3)], most=1)
    metric = "equipoise_unavailable_task_seconds_total"
    worker.metrics.unavailable_s["g2"] = 50.0
    worker.metrics.unavailable_in_all_s = 50.0
    assert worker.named() == ["g0"]
    assert worker.value(metric, group="g2") is None
    worker.now_s += 15
    worker.metrics.unavailable_s["g2"] = 750.0
    worker.metrics.unavailable_in_all_s = 750.0
    shown = [worker.value(metric, group="g2")]
    assert worker.value("equipoise_all_unavailable_task_seconds_total") == 750.0
    for _ in range(9):
        worker.now_s += HELD_S / 8
        shown.append(worker.value(metric, group="g2"))
    assert shown == [50.0] * 8 + [750.0] * 2
    worker.metrics.unavailable_s["g2"] = 760.0
    assert worker.value(metric, group="g2") == 760.0
    everyone = Worker([lead("g")])
    everyone.scrape()
    everyone.metrics.unavailable_s["g"] = 700.0
    assert everyone.value(metric, group="g") == 700.0, "with room for all each counter shows its value"


def test_settings_are_counted_by_value_and_their_changes_seen() -> None:
    worker = Worker(lead(f"g{number}") for number in range(40))
    configs = [attrs.evolve(configured(), knobs=attrs.evolve(configured().knobs, num_standbys=number, options={"a": number})) for number in range(40)]
    for each, config in zip(worker.leads, configs, strict=True):
        each.machine.state.config = config
    newest = registry.latest("high_availability")
    assert worker.value("equipoise_setting_groups", setting="assignor", value=f"high_availability@{newest.version}") == 40
    assert worker.value("equipoise_setting_groups", setting="led_by", value="equipoise") == 40
    found = worker.scrape()
    by_value = [(dict(labels), count) for (name, labels), count in found.items() if name == "equipoise_setting_groups"]
    standbys = {labels["value"]: count for labels, count in by_value if labels["setting"] == "num_standbys"}
    assert len(standbys) == MOST_VALUES + 1
    assert (standbys["0"], standbys[OTHERS]) == (1, 40 - MOST_VALUES)
    assert worker.value("equipoise_setting_changes_total", setting="num_standbys") == 0, "an alert on a rise needs the value before"
    for each in worker.leads[1:]:
        each.machine.state.config = configs[0]
    found = worker.scrape()
    changes = {dict(labels)["setting"]: count for (name, labels), count in found.items() if name == "equipoise_setting_changes_total" and count}
    assert changes == {"num_standbys": 39, "options": 39}
    assert worker.value("equipoise_setting_groups", setting="num_standbys", value="0") == 40
    assert worker.value("equipoise_setting_groups", setting="options.a", value="0") == 40
    worker.leads = worker.leads[:1]
    assert worker.value("equipoise_setting_groups", setting="num_standbys", value="0") == 1
    same = GroupMachine.restore(worker.leads[0].machine.snapshot())
    worker.leads[0].machine = same
    assert worker.value("equipoise_setting_changes_total", setting="num_standbys") == 39, "a takeover changes nothing"


def _fires() -> dict[str, str]:
    """Alerts on gauges of a group -> their expressions, without what only members show, and seats in
    groups of others, which all are named.
    """
    found = {rule["alert"]: re.sub(r" or \(sum by \(group, member\).*", "", rule["expr"]) for rule in rules()}
    elsewhere = re.compile(r"equipoise_(member|lead)_")
    return {name: text for name, text in found.items() if re.search(r"by \(group[,)]", text) and not elsewhere.search(text)}


@pytest.mark.parametrize(
    ("alert", "changed"),
    [
        ("EquipoiseGroupHalted", lambda each: setattr(each, "halted", GroupHalted("g", 5, "defect", "a defect"))),
        ("EquipoiseTasksWithoutOwner", lambda each: each.machine.state.owner.popitem()),
        (
            "EquipoiseTaskParked",
            lambda each: each.machine.state.parked.update({TaskId(0, 0): Parked(each.machine.state.owner[TaskId(0, 0)], 0, "in", 0, 5, "bad")}),
        ),
        ("EquipoiseUnreadPartitions", lambda each: each.machine.state.end_offsets.update({"in": dict.fromkeys([0, 1, 9], 5)})),
        ("EquipoiseSourceLagGrows", lambda each: each.machine.state.behind.update({TaskId(0, 0): LAGGING_RECORDS + 1})),
        ("EquipoiseMovementsWait", lambda each: setattr(each.machine.state, "waiting", 1)),
        ("EquipoiseLostTasksFree", lambda each: each.machine.state.lost.update({TaskId(0, 0): Lost(since_ms=0)})),
        ("EquipoiseLostTasksWaitLong", lambda each: each.machine.state.lost.update({TaskId(0, 0): Lost(since_ms=0, until_ms=2**50)})),
        ("EquipoiseImbalanced", lambda each: setattr(each.machine.state, "verdict", ("blocked", 0, 1, 2, 2))),
        ("EquipoiseRoundsThrash", lambda each: setattr(each.machine.state, "generation", 99)),
    ],
)
def test_group_for_which_an_alert_may_fire_is_named(alert: str, changed: object) -> None:
    worker = Worker([lead("a"), lead("z")], most=1)
    assert worker.named() == ["a"]
    assert callable(changed)
    changed(worker.leads[1])
    (metric,) = set(re.findall(r"equipoise_\w+", _fires()[alert]))
    assert worker.named(15, metric=metric)[:1] == ["z"]


def test_every_alert_of_a_group_has_its_metric_and_threshold() -> None:
    assert f"(equipoise_source_lag_records) > {LAGGING_RECORDS} " in RULES.read_text(encoding="utf-8")
    assert set(_fires()) >= {"EquipoiseGroupHalted", "EquipoiseHandOverHangs", "EquipoiseWarmupStandsStill", "EquipoiseTasksUnavailable"}
    page = samples(Worker([lead("g", Group().starts("m1", stateful=1).machine)]).metrics.text())
    names = {name for name, labels in page if ("group", "g") in labels}
    assert {metric for text in _fires().values() for metric in re.findall(r"equipoise_\w+", text)} <= names
    assert [each.value for each in GroupCondition] == ["halted", "unknown", "trouble", "busy", "empty", "at_rest"]
    assert read(lead("g")).condition is GroupCondition.AT_REST
