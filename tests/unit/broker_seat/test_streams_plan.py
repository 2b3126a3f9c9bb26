"""Groups of Kafka Streams: the vectors of the model, and from a description over a round to a plan
and what the assignor inside the brokers makes of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.bridge.mapping import facts_of, names_of
from equipoise.cli.lead import configuration
from equipoise.events.decisions import RoundPlanned
from equipoise.events.errors import InputError
from equipoise.events.parts import whole
from equipoise.events.tasks import TaskId
from equipoise.kafka.described_groups import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    DescribedTaskOffset,
    DescribedTopology,
    Tasks,
)
from equipoise.kafka.offsets_topic.record_values import TaskIds, TopicInfo
from equipoise.lead.broker_seat.broker_plan import write_plan
from equipoise.lead.broker_seat.described_streams import caught_up_copies, ended_members, question_of, streams_plan, topics_of_streams
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from tests.live.broker_tasks import random_task_groups, task_case, task_problems
from tests.support.task_assignor_model import TaskMember, TaskPart, assign_tasks

VECTORS = Path(__file__).parents[2] / "data" / "broker_tasks.jsonl"
COUNTS = {"in": 4, "app-store-changelog": 4}
RECORDS = 100_000


@pytest.mark.parametrize("line", VECTORS.read_text(encoding="utf-8").splitlines(), ids=lambda line: json.loads(line)["note"])
def test_model_answers_every_vector_of_tasks(line: str) -> None:
    case: dict[str, Any] = json.loads(line)
    names = [each["id"] for each in case["parts"]]
    parts = {each["id"]: TaskPart(partitions=each["partitions"], stateful=bool(each["stateful"])) for each in case["parts"]}

    def tasks(of: Any) -> dict[str, set[int]]:
        return {names[at]: set(numbers) for at, numbers in of}

    def offsets(of: Any) -> dict[str, dict[int, int]]:
        return {name: {number: offset for part, number, offset in of if names[part] == name} for name in names}

    members = [
        TaskMember(
            member_id=each["id"],
            process=each["process"],
            active=tasks(each["active"]),
            standby=tasks(each["standby"]),
            offsets=offsets(each["offsets"]),
        )
        for each in case["members"]
    ]
    assert task_case(members, parts, case["tags"])["answer"] == case["answer"]


def test_answers_of_the_model_of_tasks_are_valid() -> None:
    for group in random_task_groups(7, 500):
        assert task_problems(*group, task_case(*group)["answer"]) == []


class Simulated:
    """A group of threads whose broker has the assignor, as its model. `lag`: of each copy."""

    def __init__(self, *threads: str) -> None:
        self.active: dict[str, set[int]] = {each: set() for each in threads}
        self.standby: dict[str, set[int]] = {each: set() for each in threads}
        self.disk: dict[str, set[int]] = {}
        """Thread -> tasks of which it has a copy that nobody keeps up; it lacks one record."""
        self.has: dict[str, set[int]] = {}
        """Thread -> what it has, where that is not what it is to have."""
        self.lag = RECORDS
        self.back: dict[str, str] = {}
        """Thread that was killed -> the one in its place."""
        self.tags: list[str] = []
        self.epoch = 1
        self.assign()

    def assign(self) -> None:
        members = [
            TaskMember(
                member_id=name,
                process=name[:2],
                active={"0": self.has.get(name, self.active[name])},
                standby={"0": self.standby[name]},
                offsets={"0": dict.fromkeys(self.disk.get(name, ()), RECORDS - 1)},
            )
            for name in self.active
        ]
        for name, each in assign_tasks(members, {"0": TaskPart(partitions=4, stateful=True)}, self.tags).items():
            self.active[name], self.standby[name] = each.active.get("0", set()), each.standby.get("0", set())
        self.epoch += 1

    def described(self) -> DescribedStreamsGroup:
        part = DescribedSubtopology(
            subtopology_id="0",
            source_topics=("in",),
            repartition_sink_topics=(),
            repartition_source_topics=(),
            state_changelog_topics=(TopicInfo(name="app-store-changelog", partitions=0, replication_factor=0, topic_configs=()),),
        )
        return DescribedStreamsGroup(
            error_code=0,
            error_message=None,
            group="app",
            state="Stable",
            group_epoch=self.epoch,
            assignment_epoch=self.epoch,
            topology=DescribedTopology(epoch=0, subtopologies=(part,)),
            members=tuple(self._member(each) for each in self.active),
            authorized_operations=0,
        )

    def _member(self, name: str) -> DescribedStreamsMember:
        def tasks(of: set[int]) -> tuple[TaskIds, ...]:
            return (TaskIds(subtopology_id="0", partitions=tuple(sorted(of))),) if of else ()

        target = Tasks(active_tasks=tasks(self.active[name]), standby_tasks=tasks(self.standby[name]), warmup_tasks=())
        has = attrs.evolve(target, active_tasks=tasks(self.has.get(name, self.active[name])))
        ends = tuple(DescribedTaskOffset(subtopology_id="0", partition=number, offset=RECORDS) for number in sorted(self.standby[name]))
        offsets = dict.fromkeys(self.disk.get(name, ()), RECORDS - 1) | dict.fromkeys(self.standby[name], RECORDS - self.lag)
        replaces = {new: old for old, new in self.back.items()}
        at = tuple(DescribedTaskOffset(subtopology_id="0", partition=number, offset=each) for number, each in sorted(offsets.items()))
        return DescribedStreamsMember(
            member_id=name,
            member_epoch=self.epoch - (name in self.back),
            instance_id=None,
            rack_id=None,
            client_id=f"{replaces.get(name, name)}-StreamThread-1-consumer",
            client_host="h",
            topology_epoch=0,
            process_id=name[:2],
            user_endpoint=None,
            client_tags=(),
            task_offsets=at,
            task_end_offsets=ends,
            assignment=has,
            target_assignment=target,
            is_classic=0,
        )

    def led(self, log: SeatLog) -> RoundPlanned:
        """One round, carried out."""
        group = self.described()
        ends = {("app-store-changelog", number): RECORDS for number in range(4)}
        acceptable_lag = log.state.settings.acceptable_recovery_lag
        question = question_of(group, SeatTopicMetadata(counts=COUNTS, racks={}), ends, {}, f"r{self.epoch}", acceptable_lag=acceptable_lag)
        decided = log.append(*facts_of(question, log.state, 0))
        (planned,) = [each for each in whole(one.decision for one in decided) if isinstance(each, RoundPlanned)]
        plan = streams_plan(group, planned, names_of(question), question.tasks, number=self.epoch)
        self.tags = [write_plan(plan)]
        self.assign()
        return planned


def test_settings_that_are_given_hold_whatever_the_defaults_are() -> None:
    knobs = configuration(("acceptable_recovery_lag=10000", "max_warmups=2"), streams=True).knobs
    assert (knobs.acceptable_recovery_lag, knobs.max_warmups) == (10_000, 2)
    knobs = configuration((), streams=True).knobs
    assert (knobs.acceptable_recovery_lag, knobs.max_warmups) == (1_000, 10_000)
    assert configuration(()).knobs.acceptable_recovery_lag == 10_000


def test_copy_is_made_first_and_the_task_moves_when_it_has_caught_up(tmp_path: Path) -> None:
    group = Simulated("p1a", "p2a")
    with SeatLog(tmp_path / "seat.db", "app") as log:
        log.configure(configuration((), streams=True))
        had = {name: set(tasks) for name, tasks in group.active.items()}
        assert {len(tasks) for tasks in had.values()} == {2}
        group.led(log)
        assert group.active == had
        group.active["p3a"], group.standby["p3a"] = set(), set()
        planned = group.led(log)
        assert group.active == {**had, "p3a": set()}, "state first"
        (copied,) = group.standby["p3a"]
        assert planned.follow_up_ms is not None
        group.led(log)
        assert group.active == {**had, "p3a": set()}, "the copy is behind"
        assert caught_up_copies(group.described(), 0) == set()
        group.lag = 0
        assert caught_up_copies(group.described(), 0) == {("p3a", TaskId(0, copied))}
        group.led(log)
        assert group.active["p3a"] == {copied}, "work second"
        assert sum(len(tasks & group.active[name]) for name, tasks in had.items()) == 3, "the fewest moves"
        group.led(log)
        assert not any(group.standby.values()), "no copy stays that nobody wants"
    with open_log(tmp_path / "seat.db") as written:
        assert verify(written.read()).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("number", range(4))
def test_copy_on_the_disk_of_a_process_that_is_back_is_kept_up_before_its_task_moves(number: int, tmp_path: Path) -> None:
    group = Simulated("p1a", "p2a")
    with SeatLog(tmp_path / "seat.db", "app") as log:
        log.configure(configuration((), streams=True))
        group.led(log)
        group.active["p3a"], group.standby["p3a"], group.disk["p3a"] = set(), set(), {number}
        group.led(log)
        assert (group.active["p3a"], group.standby["p3a"]) == (set(), {number}), "the fewest records are copied"
        group.lag = 0
        group.led(log)
        assert group.active["p3a"] == {number}


def test_tasks_that_nobody_runs_go_back_to_their_state(tmp_path: Path) -> None:
    """First by the round, should it come first, and then by the assignor alone."""
    group = Simulated("p1a", "p2a", "p3a")
    with SeatLog(tmp_path / "seat.db", "app") as log:
        log.configure(configuration((), streams=True))
        group.led(log)
        group.disk = {"p1a": {2}, "p2a": {0, 3}, "p3a": {1}}
        for decides in (lambda: group.led(log), group.assign):
            group.active = {name: set() for name in group.active}
            decides()
            assert group.active == group.disk
            assert not any(group.standby.values())


def test_threads_of_a_process_share_its_tasks_and_keep_them(tmp_path: Path) -> None:
    group = Simulated("p1a", "p1b", "p2a")
    with SeatLog(tmp_path / "seat.db", "app") as log:
        log.configure(configuration((), streams=True))
        group.active = {"p1a": {0}, "p1b": {1}, "p2a": {2, 3}}
        group.lag = 0
        for _ in range(4):
            group.led(log)
        assert {0} <= group.active["p1a"]
        assert {1} <= group.active["p1b"]
        assert sorted(map(len, group.active.values())) == [1, 1, 2]


def test_process_that_was_killed_and_is_back_keeps_its_tasks_and_is_no_larger(tmp_path: Path) -> None:
    """Its former member is there until its session is over."""
    group = Simulated("p1a", "p2a")
    with SeatLog(tmp_path / "seat.db", "app") as log:
        log.configure(configuration((), streams=True))
        group.led(log)
        had = {name: set(tasks) for name, tasks in group.active.items()}
        group.back["p2a"] = "p2a-again"
        group.active["p2a-again"], group.standby["p2a-again"] = set(), set()
        group.has = {"p2a": had["p2a"], "p2a-again": set()}
        group.lag = 0
        for _ in range(3):
            group.led(log)
            assert group.active == {"p1a": had["p1a"], "p2a": set(), "p2a-again": had["p2a"]}, "nothing is for a member that is gone"
            assert not any(group.standby.values()), "the process is as large as it was"
        assert ended_members(group.described()) == {"p2a"}
        del group.active["p2a"], group.standby["p2a"]
        group.back.clear()
        group.has.clear()
        assert ended_members(group.described()) == set()
        group.assign()
        group.led(log)
        assert group.active == {"p1a": had["p1a"], "p2a-again": had["p2a"]}


def test_group_whose_topics_are_missing_is_left_as_it_is() -> None:
    group = Simulated("p1a").described()
    assert topics_of_streams(group) == set(COUNTS)
    with pytest.raises(InputError, match="the source topics of sub-topology 0 do not exist"):
        question_of(group, SeatTopicMetadata(counts={}, racks={}), {}, {}, "r")
