"""The machine as a whole: numbers, group time, the start of a group, rejections and halts,
checkpoints, snapshots.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, Plan, TaskLoad, registry
from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, Checkpointed, Decision, EventRejected, MemberAssigned
from equipoise.events.errors import EquipoiseError, GroupHalted, InputError, RepeatError
from equipoise.events.facts import (
    AssignmentObserved,
    Fact,
    GroupRejoined,
    LagReported,
    LeaveIntended,
    Load,
    MemberEnded,
    MemberLeft,
    MemberUnchanged,
    ObservedMember,
    PartitionsObserved,
    ProbingTick,
    RejoinedMember,
    TaskParked,
    TaskReady,
    TasksRevoked,
    Undecodable,
)
from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import Evaluation, GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.rejections import REJECTIONS, rejection_text
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.snapshots import FORM
from equipoise.statemachine.state import GroupPhase
from tests.groups import GROUP, LOG_OPENED, SESSION_MS, Group, all_but_time_and_leases, assigned, configured, joined, rejections, tasks, topology
from tests.support.reference_model.invariants import check_snapshot_replay


def kinds(decisions: list[Decision]) -> list[type]:
    return [decision.__class__ for decision in decisions]


# Numbers (L4)


def test_decisions_are_numbered_densely_and_name_the_fact_that_caused_them():
    group = Group().starts("m1", "m2", stateless=4)
    group.cycle()
    assert [each.number for each in group.decisions] == list(range(1, len(group.decisions) + 1))
    first = group.decisions[0]
    cause = group.records[first.caused_by]
    assert (first.log_id, first.group, first.index, first.fact_checksum) == ("log-1", GROUP, 0, cause.checksum)
    indexes = [each.index for each in group.decisions if each.caused_by == first.caused_by]
    assert indexes == list(range(len(indexes)))
    assert len(indexes) > 1


def test_repeated_record_raises_and_changes_nothing():
    group = Group().starts("m1", stateless=1)
    before = group.machine.snapshot()
    last = group.records[-1].offset
    for record in group.records[-2:]:
        with pytest.raises(RepeatError, match=f"^offset {record.offset}: the group is at offset {last} already$"):
            group.machine.step(record)
    assert group.machine.snapshot() == before


def test_fact_of_another_group_raises_and_changes_nothing():
    group = Group().starts("m1", stateless=1)
    before = group.machine.snapshot()
    with pytest.raises(InputError, match=r"^offset 99: a fact of group 'billing' was handed to the machine of group 'orders'$"):
        group.machine.step(make_record("billing", 99, group.append_ms, ProbingTick()))
    assert group.machine.snapshot() == before
    group.tick()


def test_gap_in_offsets_is_accepted():
    """One partition holds many groups; the group's own facts are dense in `seq`."""
    group = Group().starts("m1", stateless=1)
    seq = group.state.seq
    group.machine.step(make_record(GROUP, 1_000, group.append_ms, ProbingTick()))
    assert (group.state.seq, group.state.last_offset) == (seq + 1, 1_000)


# Measured speeds


def test_restore_speed_before_a_measurement_is_the_slowest_of_the_others():
    group = Group().starts("m1", "m2", stateful=4)

    def speeds() -> dict[str, int]:
        return {name: member.restore_records_per_s for name, member in group.state.members.items()}

    def measured(name: str, records_per_s: float | None) -> None:
        load = None if records_per_s is None else Load(restored_records_per_s=records_per_s)
        group.members[name].reads()
        group.fact(attrs.evolve(group.members[name].report(), load=load))

    assert speeds() == {"m1": 0, "m2": 0}
    measured("m1", 20_000.9)
    measured("m2", 8_000.0)
    assert speeds() == {"m1": 20_000, "m2": 8_000}
    measured("m1", 0.0)
    measured("m2", None)  # it reports no speed: the measured one stays
    group.join("m3")
    assert speeds() == {"m1": 20_000, "m2": 8_000, "m3": 8_000}
    measured("m3", 9_000)
    group.fact(joined("m1", 2))  # its next incarnation, at once
    assert speeds() == {"m1": 20_000, "m2": 8_000, "m3": 9_000}
    check_snapshot_replay(group.records)


def test_growth_is_measured_between_the_last_two_observations():
    group = Group().starts("m1", stateful=2)
    part = group.state.tasks()[TaskId(0, 0)]

    def observed(after_ms: int, *ends: int) -> list[int]:
        group.fact(PartitionsObserved(end_offsets={"log": dict(enumerate(ends))}), after_ms)
        return [group.state.written_records_per_s(task, part) for task in group.state.tasks()]

    assert observed(0, 50_000) == [0, 0]
    assert observed(1_000, 50_100, 50_001) == [100, 1]
    assert observed(0, 50_200, 50_001) == [100, 1]  # the same moment
    assert observed(300, 50_201) == [4, 1]  # 3.3, rounded up; the other was not observed
    assert observed(900_000, 51_201) == [1_000, 1]  # group time moved by max_step_ms: never too slow
    assert observed(1_000, 7) == [0, 1]  # created again
    assert observed(500, 2**63 - 1) == [2**63 - 1, 1]
    check_snapshot_replay(group.records)


def test_host_load_is_divided_by_records_processed_and_averaged():
    """Two threads at 0.6 are 1.2 threads; 0_0 processes three times what 0_1 does. Half a window
    later the host idles.
    """
    group = Group().starts(stateful=2, load_window_ms=10_000)
    member = group.join("m1", capacity=2)
    member.reports()
    member.reports()

    def reports(after_ms: int, **load: Any) -> list[tuple[int, int]]:
        group.pass_ms(after_ms)
        member.reads()
        group.fact(attrs.evolve(member.report(), load=Load(**load)))
        return [(load.cpu, load.records_per_s) for _, load in sorted(group.state.loads.items())]

    rates = {TaskId(0, 0): 300, TaskId(0, 1): 100}
    assert reports(0, cpu=0.6, tasks=rates) == [(900_000, 300), (300_000, 100)]
    assert reports(5_000, tasks=rates) == [(450_000, 300), (150_000, 100)]
    assert reports(0, cpu=1.0, tasks=rates) == [(450_000, 300), (150_000, 100)]  # no time has passed
    assert reports(12_000, cpu=0.1, records_per_s=50) == [(100_000, 25), (100_000, 25)]  # no part is known: equal parts
    assert reports(1_000, restored_records_per_s=9_000) == [(100_000, 25), (100_000, 25)]  # no load reported
    problem = build_problem(group.state)
    assert [task.load for task in problem.tasks] == [TaskLoad(cpu=100_000, records_per_s=25)] * 2
    group.fact(PartitionsObserved(end_offsets={"log": {0: 50_000, 1: 50_000}}))
    group.fact(PartitionsObserved(end_offsets={"log": {0: 50_900, 1: 50_100}}), 1_000)
    assert reports(12_000, cpu=0.5) == [(900_000, 0), (100_000, 0)]  # by records written to their changelogs
    check_snapshot_replay(group.records)


def test_average_of_a_few_records_per_second_changes():
    """In a window of 10 s, a report after 1 s counts a tenth: less than one record of a difference
    of three. The average approaches the value all the same, and stays.
    """
    group = Group().starts(stateful=1, load_window_ms=10_000)
    member = group.join("m1")
    member.reports()
    member.reports()
    seen = []
    for rate in (2, *[5] * 4, *[2] * 4):
        group.pass_ms(1_000)
        member.reads()
        group.fact(attrs.evolve(member.report(), load=Load(tasks={TaskId(0, 0): rate})))
        seen.append(group.state.loads[TaskId(0, 0)].records_per_s)
    assert seen == [2, 3, 4, 5, 5, 4, 3, 2, 2]
    check_snapshot_replay(group.records)


def test_host_cpu_is_divided_by_busy_time_and_memory_by_state():
    """0_1 processes ten times as many records as 0_0, each record of 0_0 takes ninety times as
    long, and 0_1 keeps four times the state.
    """
    group = Group().starts("m1", stateful=2, load_window_ms=1)
    group.fact(PartitionsObserved(end_offsets={"log": {0: 10_000, 1: 40_000}}))
    member = group.members["m1"]
    member.reports()
    member.reports()
    first, second = TaskId(0, 0), TaskId(0, 1)
    load = Load(cpu=0.5, memory=0.2, disk=0.1, tasks={first: 10, second: 100}, busy={first: 450_000, second: 50_000})
    group.fact(attrs.evolve(member.report(), load=load))
    measured = {task: (found.cpu, found.memory, found.disk, found.records_per_s) for task, found in group.state.loads.items()}
    assert measured == {first: (450_000, 40_000, 20_000, 10), second: (50_000, 160_000, 80_000, 100)}
    group.fact(attrs.evolve(member.report(), load=attrs.evolve(load, busy={}, cpu=0.55)), 10)
    assert [group.state.loads[task].cpu for task in (first, second)] == [50_000, 500_000], "busy time unknown: by records processed"
    check_snapshot_replay(group.records)


def test_restoring_member_is_not_measured_and_removed_tasks_are_forgotten():
    group = Group().starts("m1", stateful=2, load_window_ms=1)
    member = group.members["m1"]
    member.restores = 100
    member.reads()
    busy = Load(cpu=0.5)
    group.fact(attrs.evolve(member.report(), load=busy))
    member.restores_copies()
    group.fact(attrs.evolve(member.report(), load=busy))
    assert group.state.loads == {}
    member.restores = 1_000_000
    member.restores_copies()
    group.fact(attrs.evolve(member.report(), load=busy))
    assert sorted(group.state.loads) == [TaskId(0, 0), TaskId(0, 1)]
    group.fact(topology(epoch=2, stateful=1))
    assert sorted(group.state.loads) == [TaskId(0, 0)]
    check_snapshot_replay(group.records)


def test_group_balanced_by_load_keeps_probing():
    group = Group().starts("m1", "m2", stateful=4, assignor="load_balanced", probing_interval_ms=5_000)
    group.settles()
    looked = []
    for _ in range(12):
        before = group.state.probing_deadline_ms
        group.cycle()
        looked.append(group.state.probing_deadline_ms != before)
    assert group.state.probing_deadline_ms is not None
    assert looked.count(True) >= 5
    assert group.state.memory == {}
    check_snapshot_replay(group.records)


# Group time (L2)


@pytest.mark.parametrize(
    ("steps_ms", "group_ms"),
    [
        ((0, 100, 100), 200),
        ((0, 40_000), 1_000),  # a failover to a broker whose clock is ahead
        ((0, -86_400_000, 100), 100),  # a day back: no timer freezes
        ((0, 86_400_000, -86_400_000, 500), 1_500),  # a day ahead, then corrected
        ((0, -1), 0),
    ],
)
def test_group_time_follows_the_logs_clock_forward_up_to_max_step(steps_ms: tuple[int, ...], group_ms: int):
    group = Group()
    group.fact(configured())
    for step_ms in steps_ms:
        group.tick(step_ms)
    assert group.state.now_ms == group_ms


def test_max_step_is_a_setting_and_the_first_record_is_time_zero():
    group = Group()
    group.fact(configured(max_step_ms=50))
    assert group.state.now_ms == 0
    group.tick(49)
    group.tick(51)
    assert group.state.now_ms == 99


# The start (D2)


def test_initial_delay_lets_all_joining_members_share():
    group = Group()
    group.fact(configured(initial_delay_ms=3_000))
    group.fact(topology(stateful=4))
    for member_id in ("m1", "m2"):
        assert assigned(group.join(member_id).answer) == {}
    assert group.state.phase is GroupPhase.GATHERING
    assert assigned(group.pass_ms(2_999)) == {}
    started = group.tick(1)
    assert {name: len(each.active) for name, each in assigned(started).items()} == {"m1": 2, "m2": 2}
    assert [each.cause for each in started if isinstance(each, AssignmentIssued)] == ["start"]


def test_group_that_became_empty_waits_the_initial_delay_again():
    group = Group()
    group.fact(configured(initial_delay_ms=3_000))
    group.fact(topology(stateless=1))
    group.join("m1")
    group.pass_ms(1_000)
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    assert group.machine.next_deadline_ms is None, "an empty group needs no ticks"
    group.pass_ms(2_500)
    group.join("m1", 2)
    assert assigned(group.pass_ms(2_999)) == {}
    assert list(assigned(group.tick(1))) == ["m1"]


def test_facts_before_the_configuration_are_rejected():
    group = Group()
    assert rejections(group.fact(joined("m1"))) == ["not_configured"]
    assert group.fact(topology(stateless=1)) == []
    assert group.state.phase is GroupPhase.UNCONFIGURED


# Reject (L6)


def unsound(group: Group) -> dict[str, list[Any]]:
    """Rejection code -> facts that it must answer, in a group where m1 runs 0_0 and m2 warms it up."""
    m1: dict[str, Any] = {"member_id": "m1", "incarnation": 1}
    first, unknown = tasks("0_0"), tasks("7_7")
    return {
        "undecodable": [Undecodable(code="not_msgpack", length_bytes=3, crc32=9)],
        "not_external": [AssignmentObserved(generation=9, members=())],
        "leader_change": [configured(led_by="external")],
        "step_exceeds_margin": [configured(max_step_ms=5_000)],
        "topology_not_newer": [
            topology(epoch=1, stateful=9),
            topology(epoch=0),
            GroupRejoined(generation=1, protocol="range", members=(), topologies=(topology(epoch=1),)),
        ],
        "join_repeated": [joined("m1", 1), joined("m3", 1, join_nonce="m1-1")],
        "incarnation_repeated": [joined("m1", 1, join_nonce="another")],
        "incarnation_too_low": [
            joined("m1", 0),
            joined("m1", 0, ended_incarnation=1, join_nonce="another"),
            GroupRejoined(generation=1, protocol="range", members=(RejoinedMember(member_id="m1", incarnation=0, client="m1"),)),
        ],
        "margin_too_small": [joined("m3", lease_margin_ms=999)],
        "margin_too_large": [joined("m3", lease_margin_ms=SESSION_MS)],
        "unknown_member": [LagReported("nobody", 1, 0, 0), MemberLeft(member_id="nobody", incarnation=1)],
        "stale_incarnation": [LagReported("m1", 0, 9, 0), TasksRevoked(member_id="m1", incarnation=2, assignment_epoch=1, tasks=first)],
        "not_waited_for": [MemberEnded(member_id="m1", incarnation=0), MemberEnded(member_id="nobody", incarnation=1)],
        "epoch_from_future": [LagReported("m1", 1, 99, 99), TaskReady(**m1, assignment_epoch=99, tasks=first)],
        "epoch_went_back": [LagReported("m1", 1, 99, 0)],
        "report_repeated": [LagReported("m1", 1, 0, 1)],
        "report_base_unknown": [LagReported("m1", 1, 99, 1, base=50), MemberUnchanged(**m1, report=50)],
        "held_not_granted": [LagReported("m1", 1, 99, 1, held=unknown), LagReported("m2", 1, 99, 0, held=first)],
        "not_revoking": [TasksRevoked(**m1, assignment_epoch=1, tasks=first), TasksRevoked(**m1, assignment_epoch=1, tasks=unknown)],
        "not_granted": [TaskParked(**m1, task=unknown[0], token=1), TaskParked(**m1, task=first[0], token=9)],
        "not_a_copy": [TaskReady(**m1, assignment_epoch=1, tasks=unknown)],
    }


def test_unsound_facts_are_rejected_and_change_nothing_but_a_lease():
    group = Group().starts("m1", stateful=2)
    group.cycle()
    group.join("m2", restores=0)
    group.members["m1"].reports()
    for code, facts in unsound(group).items():
        for fact in facts:
            before = all_but_time_and_leases(group.machine)
            decided = group.fact(fact, after_ms=1)
            assert rejections(decided) == [code], fact
            assert len(decided) == 1
            assert all_but_time_and_leases(group.machine) == before, fact
    check_snapshot_replay(group.records)


def test_rejection_names_the_fact_and_its_member_in_a_sentence():
    group = Group().starts("m1", stateless=1)
    (rejected,) = group.fact(LagReported("m1", 1, 0, 99))
    assert rejected == EventRejected(kind=6, code="epoch_from_future", member_id="m1", incarnation=1, numbers=(99, 1))
    assert isinstance(rejected, EventRejected)
    assert rejection_text(rejected) == "assignment_epoch 99 was never issued to this member; the last one is 1"


def test_rejection_code_has_a_text_for_its_numbers():
    group = Group().starts("m1", stateful=2)
    group.cycle()
    group.join("m2", restores=0)
    group.members["m1"].reports()
    for code, facts in unsound(group).items():
        assert code in REJECTIONS
        for fact in facts:
            (rejected,) = group.fact(fact)
            assert isinstance(rejected, EventRejected)
            assert "{" not in rejection_text(rejected)


def test_rejected_configuration_keeps_the_assignor():
    """Otherwise a machine restored from a checkpoint would decide with another assignor than the
    original.
    """
    told: list[str] = []

    def load(name: str, version: int) -> Any:
        told.append(f"{name} {version}")
        return registry.load("high_availability", 1)

    group = Group(load, watched=False).starts("m1", stateless=1)
    asked = len(told)
    refused = make_record(GROUP, len(group.records), group.append_ms, attrs.evolve(configured(max_step_ms=9_000), assignor="unheard_of"))
    assert rejections([each.decision for each in group.machine.step(refused)]) == ["step_exceeds_margin"]
    assert len(told) == asked


def test_lowered_cap_counts_warm_ups_of_a_leaving_owner_if_the_new_assignor_does():
    """Version 2 of the assignor has them apart from the caps, version 1 does not."""
    for version, kept in ((2, 3), (1, 1)):
        group = Group().starts("m1", stateful=3, max_warmups=1)
        group.settles()
        group.join("m2", restores=0)
        group.members["m1"].leaves()
        group.cycle()
        assert len(group.state.members["m2"].warmup) == 3
        group.fact(configured(version=version, initial_delay_ms=0, max_warmups=1, probing_interval_ms=9_000))
        assert len(group.state.members["m2"].warmup) == kept
        assert [move.reason for move in group.moves("cancelled")] == ["reconfigured"] * (3 - kept)


def test_settings_that_the_assignor_does_not_take_are_rejected():
    group = Group().starts("m1", stateless=1)
    before = all_but_time_and_leases(group.machine)
    assert rejections(group.fact(configured(options={"strict": "maybe"}))) == ["knobs_refused"]
    assert all_but_time_and_leases(group.machine) == before


# Halt (L6)


def assert_halts(group: Group, fact: Any, code: str, problem_text: str) -> None:
    """A machine without a leader halts; a leader refuses what its build lacks
    (`test_refused_configuration`).
    """

    def step(event: Any) -> None:
        group.machine.step(make_record(GROUP, len(group.records), group.append_ms, event))

    with pytest.raises(GroupHalted) as halted:
        step(fact)
    assert (halted.value.group, halted.value.offset, halted.value.code) == (GROUP, len(group.records), code)
    assert problem_text in halted.value.problem
    for going_on in (lambda: step(ProbingTick()), group.machine.snapshot):
        with pytest.raises(GroupHalted) as again:
            going_on()
        assert again.value is halted.value


def test_missing_assignor_or_behaviour_version_halts():
    assert_halts(Group(), attrs.evolve(configured(), assignor="unheard_of"), "assignor_missing", "'unheard_of' version 3 is not installed")
    assert_halts(Group(), attrs.evolve(configured(), behaviour_version=999), "assignor_missing", "version 999 is not installed")


def test_other_solver_halts_unless_any_solver_is_set():
    other = attrs.evolve(configured(), solver="ortools-1.0")
    assert_halts(Group(), other, "solver_missing", "pinned to solver 'ortools-1.0'")
    reader = GroupMachine(any_solver=True)
    assert reader.step(make_record(GROUP, 0, 0, other)) == []


@attrs.frozen
class Broken:
    """An assignor that fails in a given way."""

    error: BaseException | None
    name: str = "broken"
    version: int = 1
    solver: str = ""
    guarantees: frozenset[Any] = frozenset()

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = registry.load("high_availability", 1).assign(problem)
        if self.error is not None and problem.members:
            raise self.error
        return attrs.evolve(plan, target={})


@pytest.mark.parametrize(
    ("error", "code", "problem_text"),
    [
        (EquipoiseError("no optimum"), "assignor_failed", "broken could not decide: no optimum"),
        (InputError("racks"), "assignor_failed", "broken could not decide: racks"),
        (None, "plan_invalid", ""),
    ],
)
def test_failing_assignor_or_invalid_plan_halts(error: Exception | None, code: str, problem_text: str):
    group = Group(lambda name, version: Broken(error))
    group.fact(attrs.evolve(configured(initial_delay_ms=0), solver=""))
    group.fact(topology(stateless=1))
    assert_halts(group, joined("m1"), code, problem_text)


def test_defect_is_raised_and_halts():
    group = Group(lambda name, version: Broken(ZeroDivisionError("a defect")))
    group.fact(attrs.evolve(configured(initial_delay_ms=0), solver=""))
    with pytest.raises(ZeroDivisionError):
        group.fact(joined("m1"))
    with pytest.raises(GroupHalted) as caught:
        group.fact(ProbingTick())
    halted = caught.value
    assert (halted.group, halted.offset, halted.code, halted.problem) == (GROUP, 2, "defect", "ZeroDivisionError: a defect")
    assert isinstance(halted.__cause__, ZeroDivisionError)


def test_assignor_that_raises_system_exit_halts_its_group_alone():
    lead = PartitionLead(machine_factory=lambda checkpoint: GroupMachine(load=lambda name, version: Broken(SystemExit(7))))
    facts: list[Fact] = [LOG_OPENED, attrs.evolve(configured(initial_delay_ms=0), solver=""), topology(stateless=1), joined("m1")]
    for offset, fact in enumerate(facts):
        lead.fold(make_record("" if fact is LOG_OPENED else GROUP, offset, 0, fact), 0)
    halted = lead.groups[GROUP].halted
    assert halted is not None
    assert (halted.code, halted.problem) == ("defect", "RuntimeError: assignor broken 1 raised SystemExit: 7")


def test_restored_machine_without_its_assignor_halts():
    group = Group().starts("m1", stateless=1)

    def missing(name: str, version: int) -> Any:
        raise InputError(f"{name} is not installed")

    with pytest.raises(GroupHalted, match="high_availability is not installed"):
        GroupMachine.restore(group.machine.snapshot(), load=missing)


def test_restored_machine_halts_for_another_solver_unless_any_solver_is_set():
    machine = GroupMachine(any_solver=True)
    machine.step(make_record(GROUP, 7, 0, attrs.evolve(configured(), solver="ortools-1.0")))
    with pytest.raises(GroupHalted) as caught:
        GroupMachine.restore(machine.snapshot())
    halted = caught.value
    assert (halted.group, halted.offset, halted.code) == (GROUP, 7, "solver_missing")
    assert halted.problem.startswith("its decisions are pinned to solver 'ortools-1.0'")
    assert GroupMachine.restore(machine.snapshot(), any_solver=True).snapshot() == machine.snapshot()


def test_restored_machine_has_the_size_limit_that_it_is_given():
    group = Group(watched=False).starts("m1", stateless=59)
    small = GroupMachine(most_event_bytes=210)
    for record in group.records[:-1]:
        small.step(record)
    restored = GroupMachine.restore(small.snapshot(), most_event_bytes=210)
    decided = small.step(group.records[-1])
    assert restored.step(group.records[-1]) == decided
    parts = [kinds([each.decision for each in decisions]).count(AssignmentIssued) for decisions in (decided, group.decisions)]
    assert parts == [59, 1], "one for each task"


# Evaluations


class Recording(DelegatingAssignor):
    """Keeps its last plan."""

    plan: Plan | None = None

    def assign(self, problem: AssignmentProblem) -> Plan:
        self.plan = super().assign(problem)
        return self.plan


def test_evaluation_is_of_the_last_plan_and_no_part_of_the_state():
    assignor = Recording(registry.latest("load_balanced"))
    group = Group(lambda name, version: assignor).starts("m1", stateless=4, assignor="load_balanced")
    group.members["m1"].load = Load(cpu=0.5)
    group.cycle()
    group.join("m2")
    assert assignor.plan is not None
    assert (assignor.plan.cost.moves, assignor.plan.load is None) == (2, False)
    assert group.machine.last_evaluation == Evaluation(cost=assignor.plan.cost, load=assignor.plan.load)
    assert (GroupMachine().last_evaluation, GroupMachine.restore(group.machine.snapshot()).last_evaluation) == (None, None)


# Checkpoints and snapshots (L7)


def test_checkpoint_hashes_the_state_after_its_step():
    group = Group()
    group.fact(configured(initial_delay_ms=0, checkpoint_every_records=4))
    group.fact(topology(stateless=1))
    seen = []
    for event in (joined("m1"), ProbingTick(), ProbingTick(), ProbingTick(), joined("m2"), joined("m3")):
        for decision in group.fact(event):
            if isinstance(decision, Checkpointed):
                seen.append(decision.seq)
                assert decision.form == FORM
                assert decision.state_sha256 == hashlib.sha256(group.machine.snapshot()).hexdigest()
    assert seen == [3, 7]


def test_checkpoints_are_off_at_zero():
    group = Group().starts("m1", stateless=1, checkpoint_every_records=0)
    group.pass_ms(20_000)
    assert not [each for each in group.decisions if isinstance(each.decision, Checkpointed)]


def test_snapshot_restores_to_the_same_bytes():
    group = Group().starts("m1", "m2", "m3", stateful=6, stateless=2, num_standbys=1)
    for _ in range(5):
        group.cycle()
        snapshot = group.machine.snapshot()
        assert GroupMachine.restore(snapshot).snapshot() == snapshot
    check_snapshot_replay(group.records)


def test_damaged_snapshot_raises_input_error():
    group = Group().starts("m1", "m2", stateful=3)
    group.cycle()
    snapshot = group.machine.snapshot()
    for place in range(len(snapshot)):
        for flipped in (snapshot[place] ^ 1, snapshot[place] ^ 0x80):
            with pytest.raises(InputError):
                GroupMachine.restore(snapshot[:place] + bytes([flipped]) + snapshot[place + 1 :])


@pytest.mark.parametrize("checkpoint", [b"", b"\xc0", b"\x90", b"\x01", b"no checkpoint", b"\x80", b"\xff" * 40])
def test_bytes_that_are_no_snapshot_raise_input_error(checkpoint: bytes):
    with pytest.raises(InputError):
        GroupMachine.restore(checkpoint)


def test_snapshot_of_another_form_raises_with_its_form():
    snapshot = bytearray(GroupMachine().snapshot())
    place = snapshot.index(b"equipoise-state") + len(b"equipoise-state")
    snapshot[place] = 99
    with pytest.raises(InputError, match=f"has form 99, this build reads forms 1 to {FORM}"):
        GroupMachine.restore(bytes(snapshot))


# Shadow (D7)


def test_assignment_of_another_leader_is_current_and_ours_is_proposed():
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(topology(stateless=2))
    for member_id in ("m1", "m2"):
        assert group.fact(joined(member_id)) == []
    both = tasks("1_0", "1_1")
    has_all, has_none = ObservedMember(member_id="m1", incarnation=1, active=both), ObservedMember(member_id="m2", incarnation=1)
    observed = AssignmentObserved(generation=7, members=(has_all, has_none))
    (proposed,) = group.fact(observed)
    assert not isinstance(proposed, MemberAssigned | BalanceEvaluated)
    assert {member.member_id: len(member.active) for member in proposed.members} == {"m1": 1, "m2": 1}  # type: ignore[union-attr]
    assert group.state.owner == dict.fromkeys(both, "m1")
    assert rejections(group.fact(observed)) == ["generation_not_newer"]
    assert rejections(group.fact(LeaveIntended(member_id="m1", incarnation=1))) == ["external"]
    assert group.pass_ms(10 * SESSION_MS) == [], "no member expires while another leader leads"
    assert len(group.state.members) == 2
    check_snapshot_replay(group.records)


def test_contradictory_observation_is_rejected():
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(topology(stateless=1))
    for member_id in ("m1", "m2"):
        group.fact(joined(member_id))
    first = tasks("1_0")
    twice = tuple(ObservedMember(member_id=name, incarnation=1, active=first) for name in ("m1", "m2"))
    before = all_but_time_and_leases(group.machine)
    for code, members in {
        "task_owned_twice": twice,
        "observed_unknown_task": (ObservedMember(member_id="m1", incarnation=1, active=tasks("8_8")),),
        "unknown_member": (ObservedMember(member_id="m9", incarnation=1),),
        "stale_incarnation": (ObservedMember(member_id="m1", incarnation=4),),
    }.items():
        assert rejections(group.fact(AssignmentObserved(generation=3, members=members))) == [code]
        assert all_but_time_and_leases(group.machine) == before
