"""What `incident` says of recorded runs of Kafka Streams, beside what the operator did, and of
constructed histories of consumers.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.cli.incident_text import escaped, story
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit, open_recording
from equipoise.replay.importers.groups.dump import Dump
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.importers.groups.recorded_group import recorded_source
from equipoise.replay.importers.kafka_streams import ImportOptions, ImportSummary, StreamsSource, import_history, shipped_runs
from equipoise.replay.incident import Cause, GroupHistory, Incident, at_once, gaps, history_of, incidents, rebalances
from equipoise.replay.incident.causes import FOLLOWS, Rebalance
from equipoise.replay.incident.coordinator_history import read_history, with_sinks
from equipoise.replay.incident.page import render_incidents
from equipoise.replay.simulation import MemorySink
from tests.json_schemas import check
from tests.observed_groups import BOTH, group, history, member
from tests.pages import rows_of

JOINED, EXPIRED, LEFT, BACK, FIRST = Cause.JOINED, Cause.EXPIRED, Cause.LEFT, Cause.BACK, Cause.FIRST
DONE = {
    "scale-out": [
        ("start i1 i2", FIRST, ("i1", "i2")),
        ("A1_scale_out_one_cold", JOINED, ("i3",)),
        ("A2_scale_out_two_cold", JOINED, ("i4", "i5")),
        ("A3_kill_one", EXPIRED, ("i2",)),
        ("A4_restart_with_old_state", BACK, ("i2",)),
        ("A5_graceful_close_default", EXPIRED, ("i3",)),
    ],
    "rolling": [
        ("start i1 i2 i3", FIRST, ("i1", "i2", "i3")),
        ("B1_bounce", EXPIRED, ("i1",)),
        ("B2_bounce", EXPIRED, ("i2",)),
        ("B3_bounce", EXPIRED, ("i3",)),
        ("B3_bounce", BACK, ("i3",)),
        ("B4_disk_loss", EXPIRED, ("i2",)),
        ("B5_scale_in_leave_group", LEFT, ("i3",)),
    ],
}
"""What the operator did, and what has to be read of it: an application that closes does not leave
its group, so it is missed when its session is over.
"""


@pytest.mark.parametrize("run", sorted(DONE))
def test_recorded_run_tells_each_action_without_the_actions(run: str) -> None:
    source = StreamsSource(shipped_runs()[run])
    found = incidents(history_of(Dump(source), "orders"))
    assert [(each.cause, each.members) for each in found] == [(cause, members) for _, cause, members in DONE[run]]
    begun = {action.action: action.at_ms for action in source.actions()}
    for each, (action, cause, _) in zip(found, DONE[run], strict=True):
        if action in begun and cause is not BACK:
            assert abs(each.begin_ms - begun[action]) < 16_000, action  # a commit before it, or the first generation after it


def test_recorded_rolling_restart_is_one_and_a_lost_disk_is_seen() -> None:
    found = incidents(history_of(Dump(StreamsSource(shipped_runs()["rolling"])), "orders"))
    assert [each.members for each in found if each.is_rolling] == [("i1",), ("i2",), ("i3",), ("i2",)]
    assert [(name, each.cause) for each in found for step in each.chain for name in step.lost_state] == [("i2", EXPIRED)]
    assert all("group.instance.id" in each.advice[0] for each in found if each.is_rolling)


@functools.cache
def scale_out_shown() -> str:
    """What the command prints of a recorded run, which takes it some seconds."""
    shown = CliRunner().invoke(main, ["incident", "scale-out", "--group", "orders"])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_command_shows_a_recorded_run() -> None:
    shown = scale_out_shown()
    assert "orders  classic streams: 6 incidents" in shown
    assert "a member was not heard of for its session timeout (i2)" in shown
    document = json.loads(CliRunner().invoke(main, ["incident", "scale-out", "--all", "--json", "--until", "2026-11-20T04:40"]).stdout)
    assert [each["cause"] for each in document["groups"][0]["incidents"]] == ["first", "joined"]
    refused = CliRunner().invoke(main, ["incident", "scale-out", "--group", "order"])
    assert (refused.exit_code, "has no group 'order'" in refused.output) == (2, True)
    assert CliRunner().invoke(main, ["incident", "scale-out"]).exit_code == 2
    assert "is not a time" in CliRunner().invoke(main, ["incident", "scale-out", "--all", "--from", "noon"]).output


def test_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parents[3] / "docs" / "incidents.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    assert shown.rstrip() in CliRunner().invoke(main, ["incident", "scale-out", "--all"]).stdout
    causes = {row.cells[0] for row in rows_of(page)}
    named = {cause.value for cause in Cause if cause not in (*FOLLOWS, FIRST)}
    assert named <= causes


def test_markdown_for_a_ticket_shows_names_as_text() -> None:
    shown = CliRunner().invoke(main, ["incident", "scale-out", "--all", "--markdown"]).stdout.splitlines()
    assert shown[2:4] == [
        "| when | what began it | members | rebalances | moves | partitions | longest | without commits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    assert shown[11].startswith("**2026-11-20 04:33:18 UTC  the group began (i1, i2)")
    assert escaped("<b>|*_`") == "\\<b\\>\\|\\*\\_\\`"


# -- constructed histories: two consumers, four partitions, a commit each second


def only(*states: tuple[int, ObservedGroup], stopped: Mapping[int, Sequence[tuple[int, int]]] | None = None) -> Incident:
    found = [each for each in incidents(history((0, BOTH), *states, stopped=stopped)) if each.cause is not Cause.OUTSIDE]
    assert [each.cause for each in found[:-1]] == [FIRST]
    return found[-1]


def test_member_that_is_killed_and_one_that_leaves() -> None:
    alone = group(2, member("a", 0, 1, 2, 3))
    killed = only((110, alone), stopped={2: [(99, 111)], 3: [(99, 111)]})
    assert (killed.cause, killed.members, killed.begin_ms, killed.end_ms) == (EXPIRED, ("b",), 99_000, 111_000)
    assert (killed.unavailable_ms, killed.moves, killed.chain[0].stopped_ms) == (22_000, 2, 11_000)
    left = only((100, alone))
    assert (left.cause, left.chain[0].stopped_ms, left.unavailable_ms) == (LEFT, 0, 0)


def test_member_that_does_not_poll_in_time() -> None:
    slow = only((170, group(2, member("a", 0, 1, 2, 3))), stopped={2: [(100, 171)], 3: [(100, 171)]})
    assert (slow.cause, slow.members, "max.poll" in slow.advice[0]) == (Cause.POLL_TIMEOUT, ("b",), True)


def test_restarts() -> None:
    back = only((105, group(2, member("a", 0, 1), member("b", 2, 3, member_id="b-2"))))
    assert (back.cause, back.members) == (Cause.RESTARTED, ("b",))
    later = incidents(history((0, BOTH), (100, group(2, member("a", 0, 1, 2, 3))), (130, group(3, member("a", 0, 1), member("b", 2, 3)))))
    assert [(each.cause, each.is_rolling) for each in later] == [(FIRST, False), (LEFT, False), (BACK, False)]
    static = {"instance_id": "b"}
    pair = group(1, member("a", 0, 1), member("b", 2, 3, **static)), group(2, member("a", 0, 1), member("b", 2, 3, member_id="b-2", **static))
    assert incidents(history((0, pair[0]), (100, pair[1])))[-1].cause is Cause.STATIC_BACK


def test_consumers_that_share_a_client_id_are_not_taken_for_each_other() -> None:
    def same(number: int, *partitions: int) -> ClusterMember:
        return member("app", *partitions, member_id=f"app-{number}")

    pair = group(1, same(1, 0, 1), same(2, 2, 3))
    states = ((0, pair), (100, group(2, same(1, 0, 1, 2, 3))), (120, group(3, same(1, 0, 1), same(3, 2), same(4, 3))))
    assert [each.cause for each in incidents(history(*states))] == [FIRST, LEFT, JOINED]


def test_consumer_that_was_killed_and_joined_before_the_coordinator_knew() -> None:
    def consumers(epoch: int, *members: ClusterMember) -> ObservedGroup:
        at_rest = (attrs.evolve(each, epoch=epoch, state="stable") for each in members)
        return attrs.evolve(group(epoch, *at_rest), kind=GroupKind.CONSUMER)

    a, b, new = member("a", 0, 1), member("b", 2, 3), member("b", member_id="b-2")
    states = ((0, consumers(1, a, b)), (100, consumers(2, a, b, new)), (108, consumers(3, a, member("b", 2, 3, member_id="b-2"))))
    stopped = {2: [(97, 110)], 3: [(97, 110)]}
    found = incidents(history(*states, stopped=stopped))
    assert [(each.cause, each.members) for each in found[:2]] == [(FIRST, ("a", "b")), (Cause.RESTARTED, ("b",))]
    (_, stays) = incidents(history(*states[:2]))
    assert stays.cause is JOINED, "its namesake stays"


def test_rolling_restart_of_consumers() -> None:
    states = (
        (100, group(2, member("b", 0, 1, 2, 3))),
        (120, group(3, member("a", 0, 1), member("b", 2, 3))),
        (140, group(4, member("a", 0, 1, 2, 3))),
        (160, group(5, member("a", 0, 1), member("b", 2, 3))),
    )
    found = incidents(history((0, BOTH), *states))
    assert [(each.cause, each.is_rolling) for each in found[1:]] == [(LEFT, True), (BACK, False), (LEFT, True), (BACK, False)]
    assert "equipoise lead --hold" in found[1].advice[1]


def test_causes_without_a_change_of_members() -> None:
    a, b = member("a", 0, 1), member("b", 2, 3)
    cases = [
        (group(2, member("a", 0, 1, 4), b), Cause.PARTITIONS),
        (group(2, a, member("b", 2)), Cause.PARTITIONS),
        (group(2, a, attrs.evolve(b, topics=("orders", "stock"))), Cause.SUBSCRIBED),
        (group(2, a, attrs.evolve(b, pattern="o.*")), Cause.SUBSCRIBED),
        (group(2, a, b), Cause.ASKED),
        (group(2, member("a", 2, 3), member("b", 0, 1)), Cause.ASKED),
    ]
    for after, cause in cases:
        assert only((100, after)).cause is cause


def test_cooperative_rounds_are_one_incident() -> None:
    both = group(1, member("a", 0, 1), member("b", 2, 3), protocol="cooperative-sticky")
    revoked = group(2, member("a", 0), member("b", 2), member("c"), protocol="cooperative-sticky")
    given = group(3, member("a", 0), member("b", 2), member("c", 1, 3), protocol="cooperative-sticky")
    joined = incidents(history((0, both), (100, revoked), (101, given)))[-1]
    assert (joined.cause, [each.cause for each in joined.chain], joined.moves) == (JOINED, [JOINED, Cause.FOLLOW_UP], 2)


def test_incident_that_costs_more_than_those_before_is_unusual() -> None:
    states = [(0, BOTH)]
    for turn in range(5):
        at_s = 20 + 40 * turn
        states += [(at_s, group(2 + 2 * turn, member("a", 0, 1, 2, 3))), (at_s + 20, group(3 + 2 * turn, member("a", 0, 1), member("b", 2, 3)))]
    stops = [(20 + 40 * turn - 8, 20 + 40 * turn + (12 if turn == 4 else 1)) for turn in range(5)]
    killed = [each for each in incidents(history(*states, stopped={2: stops, 3: stops}, until_s=260)) if each.cause is EXPIRED]
    assert [each.is_unusual for each in killed] == [False, False, False, False, True]
    assert killed[-1].before == (16_000, 16_000, 16_000, 16_000)


def test_members_that_ask_again_and_again() -> None:
    states = [(100 + number, group(2 + number, member("a", 0, 1), member("b", 2, 3))) for number in range(30)]
    loop = only(*states)
    assert (loop.cause, len(loop.chain)) == (Cause.ASKED, 30)
    assert any("again and again" in text for text in loop.advice)


def test_work_that_stands_still_in_a_quiet_group() -> None:
    still = incidents(history((0, BOTH), stopped={3: [(100, 200)]}))[-1]
    assert (still.cause, still.begin_ms, {gap.partition for gap in still.gaps}) == (Cause.NOTHING, 100_000, {"orders-3"})
    assert still.unavailable_ms == 98_000


def test_partition_that_was_never_committed_is_told() -> None:
    """Of the group, nobody can know whether it works; it is not "0 unavailable"."""
    silent = history((0, BOTH), until_s=100)
    assert [each.cause for each in incidents(silent)] == [FIRST]
    never = attrs.evolve(silent, commits={partition: silent.commits[partition] for partition in ("orders-0", "orders-1")})
    (told,) = [each for each in incidents(never) if each.cause is not FIRST]
    assert (told.cause, told.members, told.unavailable_ms) == (Cause.UNCOMMITTED, ("b",), 2 * 99_000)
    assert {(gap.partition, gap.came) for gap in told.gaps} == {("orders-2", 990), ("orders-3", 990)}
    assert "1,980 records came meanwhile" in story(told, None)[0]
    assert [each.cause for each in incidents(attrs.evolve(never, ends=[{"orders": [5, 5, 5, 5]}] * 100))] == [FIRST], "no records"
    begun = history((0, BOTH), until_s=50)
    assert [each.cause for each in incidents(attrs.evolve(begun, commits={}))] == [FIRST], "it may have begun just now"


def test_partition_without_records_is_not_unavailable() -> None:
    quiet = history((0, BOTH), stopped={3: [(100, 150)]})
    ends = [{"orders": [*each["orders"][:3], min(each["orders"][3], 1_000)]} for each in quiet.ends]
    assert gaps(attrs.evolve(quiet, ends=ends)) == []
    assert [gap.partition for gap in gaps(quiet)] == ["orders-3"]


def test_consumers_of_kip_848_store_each_step() -> None:
    def consumers(epoch: int, target: int, *members: ClusterMember) -> ObservedGroup:
        return attrs.evolve(group(epoch, *members), kind=GroupKind.CONSUMER, assignment_epoch=target)

    first = consumers(1, 1, member("a", 0, 1, 2, 3, epoch=1, state="stable"))
    states = (
        (100, consumers(2, 1, *first.members.values(), member("b", epoch=0, state="unreleased"))),
        (101, consumers(2, 2, member("a", 0, 1, 2, 3, epoch=1, state="unrevoked"), member("b", epoch=2, state="unreleased"))),
        (103, consumers(2, 2, member("a", 0, 1, epoch=2, state="stable"), member("b", 2, 3, epoch=2, state="stable"))),
    )
    (_, joined) = rebalances(history((0, first), *states))
    assert (joined.cause, joined.members, joined.begin_ms, joined.took_ms, joined.moved) == (JOINED, ("b",), 100_000, 3_000, ("orders-2", "orders-3"))


def test_adopted_group_is_not_unavailable_because_its_members_commit_elsewhere() -> None:
    def held(prefix: str) -> ObservedGroup:
        plain = ClusterMember(member_id=f"{prefix}-1", client_id=prefix)
        return attrs.evolve(group(2, plain, protocol="equipoise"), kind=GroupKind.OTHER)

    stopped = {partition: [(100, 999)] for partition in range(4)}
    adopted = history((0, BOTH), (101, held("equipoise-member")), stopped=stopped)
    assert adopted.states[-1].group.is_adopted
    assert gaps(adopted) == []
    another = gaps(history((0, BOTH), (101, held("another")), stopped=stopped))
    assert sum(each.unavailable_ms for each in another) > 300_000, "nobody knows whether they read"
    late = gaps(history((0, BOTH), (130, held("equipoise-member")), stopped=stopped))
    assert {(each.from_ms, each.until_ms) for each in late} == {(100_000, 130_000)}, "until they hold it, nobody reads"


def test_history_without_records() -> None:
    assert incidents(GroupHistory(group="g", states=[], commits={}, end_times_ms=[], ends=[], unread=[])) == []


@pytest.mark.slow
def test_incident_with_a_page_prints_three_lines_beside(tmp_path: Path) -> None:
    whole = CliRunner().invoke(main, ["incident", "scale-out", "--group", "orders"])
    beside = CliRunner().invoke(main, ["incident", "scale-out", "--group", "orders", "--html", str(tmp_path / "page.html")])
    assert (whole.exit_code, beside.exit_code) == (0, 0)
    assert len(beside.stdout.splitlines()) < 10 < len(whole.stdout.splitlines())
    assert whole.stdout.startswith(beside.stdout.splitlines()[0])


@pytest.mark.slow
def test_command_simulates_a_recorded_application(tmp_path: Path) -> None:
    page = tmp_path / "incident.html"
    done = CliRunner().invoke(main, ["incident", "scale-out", "--group", "orders", "--json", "--html", str(page)])
    document = json.loads(done.stdout)
    check("incident", document)
    simulated = {each["members"][0]: each["simulated"] for each in document["groups"][0]["incidents"] if each["cause"] == "expired"}
    assert sorted(simulated) == ["i2", "i3"]
    for each in simulated.values():
        assert abs(each["error"]) < 0.2
        gaps_ms = [other["unavailable_ms"] for other in each["otherwise"]]
        assert gaps_ms == sorted(gaps_ms), "what helps most comes first"
        (led,) = [other for other in each["otherwise"] if other["change"].startswith("equipoise as the leader")]
        assert led["unavailable_ms"] < each["as_it_was_ms"] / 2
    assert any("leaveGroup" in other["change"] for other in simulated["i3"]["otherwise"]), "it closed without leaving"
    shown = scale_out_shown()
    assert shown.count("simulated as it was: ") == 5
    text = (Path(__file__).parents[3] / "docs" / "incidents.md").read_text(encoding="utf-8")
    assert text.partition("## What would have been")[2].partition("```text\n")[2].partition("```")[0] in shown
    check_page(page.read_text(encoding="utf-8"))


def check_page(written: str) -> None:
    """It draws owners, and what stood still."""
    drawn = json.loads(written.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    assert (len(drawn["windows"]), len(drawn["tasks"]), drawn["members"]) == (6, 26, ["i1", "i2", "i3", "i4", "i5"])
    spans: dict[int, list[tuple[int, int]]] = {}
    for task, _, _, from_ms, to_ms, *_ in drawn["intervals"]:
        spans.setdefault(task, []).append((from_ms, to_ms))
    for found in spans.values():
        assert all(to_ms == next_ms for (_, to_ms), (next_ms, _) in pairwise(found)), "one after the other, without a hole"
        assert found[-1][1] == drawn["to"]
    stood_still = sum(to_ms - from_ms for _, _, condition, from_ms, to_ms, *_ in drawn["intervals"] if condition)
    assert stood_still > 500_000
    assert [heading.partition(" UTC ")[2] for heading, _ in drawn["stories"]][:2] == ["the group began", "a member joined"]
    assert any("simulated as it was" in line for _, lines in drawn["stories"] for line in lines)


# -- Kafka Connect


def test_worker_of_connect_is_judged_by_what_its_sinks_commit() -> None:
    def workers(number: int, *members: ClusterMember) -> ObservedGroup:
        return attrs.evolve(group(number, *members), kind=GroupKind.CONNECT, name="connect")

    def worker(name: str, *tasks: str) -> ClusterMember:
        return attrs.evolve(member(name), active=frozenset(tasks))

    def task(number: int, *partitions: int) -> ClusterMember:
        return member(f"connector-consumer-sink-{number}", *partitions)

    connect = attrs.evolve(
        history((0, workers(1, worker("w1", "sink", "sink-0"), worker("w2", "sink-1"))), (110, workers(2, worker("w1", "sink", "sink-0", "sink-1")))),
        commits={},
        ends=history().ends,
    )
    gone = incidents(connect)[-1]
    assert gone.cause is Cause.GONE, "nothing says whether it left"
    sink = attrs.evolve(
        history((2, group(1, task(0, 0, 1), task(1, 2, 3))), (111, group(2, task(0, 0, 1, 2, 3))), stopped={2: [(99, 112)], 3: [(99, 112)]}),
        group="connect-sink",
    )
    judged = incidents(with_sinks(connect, {"sink": sink}))
    assert [(each.cause, each.members) for each in judged] == [(FIRST, ("w1", "w2")), (EXPIRED, ("w2",))]
    assert {gap.partition for gap in judged[-1].gaps} == {"connect-sink:orders-2", "connect-sink:orders-3"}
    left = attrs.evolve(sink, commits=history().commits)
    assert incidents(with_sinks(connect, {"sink": left}))[-1].cause is LEFT


def test_recording_is_read_like_a_recorded_run(tmp_path: Path) -> None:
    run = Dump(StreamsSource(shipped_runs()["scale-out"]))
    with open_recording(str(tmp_path / "cluster.db"), write=True) as recording:
        recording.append([("orders", each) for each in run.records()], list(run.commits()), {})
        for at_ms, ends in run.ends():
            recording.add_ends(at_ms, ends)
        theirs, ours = (import_summary(each) for each in (run.source, recorded_source(recording, "orders")))
    assert ours.facts == theirs.facts
    command = ["import", "kafka-streams", str(tmp_path / "cluster.db"), "--to", str(tmp_path / "log.db")]
    refused = CliRunner().invoke(main, command)
    assert (refused.exit_code, "--group" in refused.output) == (2, True)
    imported = CliRunner().invoke(main, [*command, "--group", "orders"])
    assert imported.exit_code == 0, imported.output
    listed = CliRunner().invoke(main, ["cluster", str(tmp_path / "cluster.db"), "--group", "orders", "--json"])
    document = json.loads(listed.stdout)
    check("cluster", document)
    assert [(each["client"], len(each["active"])) for each in document["members"]] != []
    assert document["groups"][0]["lag"] == sum(each["lag"] for each in document["partitions"])
    assert all(each["silent_ms"] for each in document["partitions"] if each["lag"])
    assert "no group 'order'" in CliRunner().invoke(main, ["cluster", str(tmp_path / "cluster.db"), "--group", "order"]).output


def import_summary(source: StreamsSource) -> ImportSummary:
    return import_history(source, MemorySink(), options=ImportOptions(group="orders"))


# -- known complaints


def test_process_that_was_removed_and_works_on() -> None:
    found = incidents(history((0, BOTH), (50, group(2, member("a", 0, 1, 2)))))
    assert [(each.cause, each.begin_ms, each.end_ms) for each in found] == [(FIRST, 0, 0), (LEFT, 50_000, 50_000), (Cause.OUTSIDE, 60_000, 199_000)]
    assert "outside" not in str([each.cause.name for each in incidents(history((0, BOTH), (50, group(2, member("a", 0, 1, 2, 3)))))]).lower()


def test_static_member_that_is_waited_for() -> None:
    ids = {"instance_id": "b"}
    static = group(1, member("a", 0, 1), member("b", 2, 3, **ids))
    states = ((0, static), (110, group(2, member("a", 0, 1, 2, 3))))
    found = incidents(history(*states, stopped={2: [(99, 111)], 3: [(99, 111)]}))[-1]
    assert (found.cause, found.is_static) == (EXPIRED, True)
    assert any("static members" in text for text in found.advice)


def test_what_comes_over_several_groups_at_once() -> None:
    def lost(at_s: int) -> list[Incident]:
        stops = [(at_s - 11, at_s + 1)]
        return incidents(history((0, BOTH), (at_s, group(2, member("a", 0, 1, 2, 3))), stopped={2: stops, 3: stops}))

    (found,) = at_once({"a": lost(100), "b": lost(104), "c": lost(110), "d": lost(150), "e": lost(158)})
    assert (found.begin_ms, found.end_ms, found.groups, found.causes) == (89_000, 111_000, ("a", "b", "c"), ((EXPIRED, 3),))
    quiet = incidents(history((0, BOTH)))
    assert at_once({f"g{number}": lost(100) if number < 3 else quiet for number in range(40)}) == [], "three of forty are chance"


# -- the page


def test_page_of_a_hostile_group_shows_names_as_text() -> None:
    evil = "</script><script>alert(1)</script>\u202e"
    past = history((0, group(1, member(evil, 0, 1), member("b", 2, 3))), (100, group(2, member(evil, 0, 1, 2, 3))))
    found = incidents(past)
    written = render_incidents(past, found, {each: [evil] for each in found})
    assert written.count("<script") == 2
    assert evil not in written


# -- commits that are no work, poll intervals, instance ids


def polls(name: str, *partitions: int, poll_s: int = 30, **settings: Any) -> ClusterMember:
    return member(name, *partitions, rebalance_timeout_ms=poll_s * 1_000, **settings)


def test_silence_of_a_poll_interval_is_a_poll_timeout_and_that_of_a_session_is_none() -> None:
    before = group(1, polls("a", 0, 1), polls("b", 2, 3))
    alone = group(2, polls("a", 0, 1, 2, 3))
    for silent_s, cause in ((29, Cause.POLL_TIMEOUT), (31, Cause.POLL_TIMEOUT), (10, EXPIRED), (12, EXPIRED)):
        found = incidents(history((0, before), (100, alone), stopped={2: [(100 - silent_s, 101)], 3: [(100 - silent_s, 101)]}))
        assert (found[1].cause, found[1].members) == (cause, ("b",)), silent_s
    same = group(1, polls("a", 0, 1, poll_s=10), polls("b", 2, 3, poll_s=10))
    found = incidents(history((0, same), (100, group(2, polls("a", 0, 1, 2, 3, poll_s=10))), stopped={2: [(89, 101)], 3: [(89, 101)]}))
    assert found[1].cause is EXPIRED, "aiokafka's rebalance timeout is its session's, and says nothing of polls"


def test_silence_of_a_member_of_kip_848_fits_a_session_timeout_that_no_record_has() -> None:
    def of_consumers(epoch: int, *members: ClusterMember) -> ObservedGroup:
        held = [attrs.evolve(each, epoch=epoch, state="stable", session_timeout_ms=-1) for each in members]
        return attrs.evolve(group(epoch, *held), kind=GroupKind.CONSUMER, assignment_epoch=epoch)

    before, alone = of_consumers(1, polls("a", 0, 1, poll_s=8), polls("b", 2, 3, poll_s=8)), of_consumers(2, polls("a", 0, 1, 2, 3, poll_s=8))
    (_, lost) = incidents(history((0, before), (100, alone), stopped={2: [(92, 101)], 3: [(92, 101)]}))
    assert (lost.cause, lost.chain[0].may_be) == (EXPIRED, (Cause.POLL_TIMEOUT,))
    assert "the coordinating broker's, tells which" in lost.chain[0].untold
    before, alone = of_consumers(1, polls("a", 0, 1, poll_s=80), polls("b", 2, 3, poll_s=80)), of_consumers(2, polls("a", 0, 1, 2, 3, poll_s=80))
    (_, lost) = incidents(history((0, before), (100, alone), stopped={2: [(20, 101)], 3: [(20, 101)]}))
    assert (lost.cause, lost.chain[0].may_be) == (Cause.POLL_TIMEOUT, ()), "no session is so long"


def test_commits_of_the_same_offset_are_no_work_and_show_that_a_member_lives() -> None:
    raw = [RecordedCommit(group="g", topic="orders", partition=0, at_ms=second * 1_000, committed=min(second, 20) * 10) for second in range(1, 60)]
    read = read_history("g", [], raw, [], {})
    assert read.commits["orders-0"][-1] == (20_000, 200)
    assert (len(read.repeats["orders-0"]), read.last_sign_ms("orders-0", 60_000)) == (39, 59_000)
    plain = history((0, BOTH), stopped={2: [(99, 160)]})
    (found,) = [each for each in incidents(plain) if each.cause is Cause.NOTHING]
    assert (found.members, {gap.partition for gap in found.gaps}, "look at b" in found.advice[0]) == (("b",), {"orders-2"}, True)
    left = history((0, BOTH), (130, group(2, member("a", 0, 1, 2, 3))), stopped={2: [(99, 131)], 3: [(99, 131)]})
    alive = attrs.evolve(left, repeats={f"orders-{partition}": [second * 1_000 for second in range(100, 130)] for partition in (2, 3)})
    assert [each.cause for each in incidents(left)] == [FIRST, EXPIRED]
    (_, gone) = incidents(alive)
    assert (gone.cause, "its own log" in gone.chain[0].untold) == (LEFT, True)


def test_static_member_whose_process_is_replaced_has_not_moved_and_again_and_again_is_two() -> None:
    static = {"instance_id": "b"}
    states = [(0, group(1, member("a", 0, 1), member("b", 2, 3, **static)))]
    states += [(100 + 4 * turn, group(1, member("a", 0, 1), member("b", 2, 3, member_id=f"b-{turn + 2}", **static))) for turn in range(8)]
    (_, twice) = incidents(history(*states))
    assert (twice.cause, twice.members, twice.moves, twice.advice[0].partition(":")[0]) == (
        Cause.TWICE,
        ("b",),
        0,
        "give each process a group.instance.id of its own",
    )


def test_long_history_takes_time_in_proportion() -> None:
    def took_s(turns: int) -> float:
        alone, both = (member("a", 0, 1, 2, 3),), (member("a", 0, 1), member("b", 2, 3))
        states = [(0, BOTH), *((100 + 12 * turn, group(2 + turn, *(both if turn % 2 else alone))) for turn in range(turns))]
        told = history(*states)
        began_s = time.process_time()
        found = incidents(told)
        assert [each.loop is not None for each in found] == [False, True]
        assert len(found[1].chain) == turns
        return time.process_time() - began_s

    few, many = took_s(1_000), took_s(8_000)
    assert many < 24 * max(few, 0.02), (few, many)


def test_member_that_takes_long_to_give_up_its_work_is_named() -> None:
    def led(epoch: int, *members: ClusterMember) -> ObservedGroup:
        return attrs.evolve(group(epoch, *members), kind=GroupKind.CONSUMER, assignment_epoch=epoch)

    a, b = member("a", 0, 1, epoch=1, state="stable"), member("b", 2, 3, epoch=1, state="stable")
    new = member("c", epoch=2, state="unreleased")
    slow = attrs.evolve(b, state="unrevoked", revoking=frozenset({"orders-3"}))
    done = member("b", 2, epoch=2, state="stable"), member("c", 3, epoch=2, state="stable")
    states = ((0, led(1, a, b)), (100, led(2, a, slow, new)), (140, led(2, attrs.evolve(a, epoch=2), *done)))
    (_, joined) = incidents(history(*states))
    assert (joined.cause, joined.members, joined.chain[0].detail) == (JOINED, ("c",), "b took 40.0 s to give up its work")


def test_adopted_group_is_no_outage_and_new_connectors_are_no_partitions() -> None:
    seats = [ClusterMember(member_id=f"equipoise-member-{name}", client_id=name) for name in "ab"]
    held = ObservedGroup(name="g", kind=GroupKind.OTHER, epoch=2, members={each.member_id: each for each in seats})
    assert [each.cause for each in incidents(history((0, BOTH), (100, held)))][1] is Cause.ADOPTED
    workers = ClusterMember(member_id="w-1", client_id="w", active=frozenset({"sink-0"}))
    more = attrs.evolve(workers, active=frozenset({"sink-0", "other-0"}))
    first, second = (ObservedGroup(name="g", kind=GroupKind.CONNECT, epoch=epoch, members={"w-1": each}) for epoch, each in ((1, workers), (2, more)))
    states = ((0, first), (100, second))
    found = incidents(attrs.evolve(history(*states), commits={}))[1]
    assert (found.cause, found.chain[0].given) == (Cause.CONNECTORS, ("other-0",))


def test_reason_of_a_brokers_log_beats_what_commits_tell() -> None:
    plain = history((0, BOTH), (100, group(2, member("a", 0, 1, 2, 3))), stopped={2: [(89, 101)], 3: [(89, 101)]})
    assert incidents(plain)[1].cause is EXPIRED
    said = Rebalance(
        number=2,
        begin_ms=95_000,
        end_ms=100_010,
        cause=Cause.POLL_TIMEOUT,
        members=("b",),
        detail="it said so",
        places=("server.log:7", "server.log:9"),
    )
    (_, told) = incidents(attrs.evolve(plain, told=[said]))
    assert (told.cause, told.members, told.places, told.chain[0].took_ms, told.chain[0].stopped_ms) == (
        Cause.POLL_TIMEOUT,
        ("b",),
        ("server.log:7", "server.log:9"),
        5_000,
        6_000,
    )
    vague = attrs.evolve(said, cause=Cause.UNSEEN, members=())
    assert incidents(attrs.evolve(plain, told=[vague]))[1].cause is EXPIRED, "a log without a reason leaves what is known"
    other = attrs.evolve(said, number=9, begin_ms=300_000, end_ms=300_100)
    assert [each.cause for each in incidents(attrs.evolve(plain, told=[said, other]))] == [FIRST, Cause.POLL_TIMEOUT, Cause.POLL_TIMEOUT]
