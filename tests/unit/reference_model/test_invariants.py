"""The validator finds each violation: valid logs in which one decision was changed, or one value of
the machine's state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Plan, registry
from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, Decision, MemberAssigned, MemberExpired, Move
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import Fact, LagReported, LeaveIntended, MemberLeft, ProbingTick
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import GroupMachine
from tests.groups import GROUP, LOG_OPENED, SESSION_MS, Group, configured, joined, tasks, topology
from tests.support.reference_model.invariants import Validator, check_snapshot_replay
from tests.support.reference_model.step_checker import StepChecker, check_sizes

Change = Callable[[Decision], Decision | None]


class Tampered(Group):
    """A group whose validator sees changed decisions once `change` is set; None drops a decision."""

    def __init__(self) -> None:
        super().__init__(watched=False)
        self.judge = Validator(whole_every=1)
        self.change: Change = lambda decision: decision
        self.judge.check(self.records[0], [], self.state)

    def fact(self, event: Fact, after_ms: int = 0) -> list[Decision]:
        before = len(self.decisions)
        decisions = super().fact(event, after_ms)
        if event == LOG_OPENED:
            return decisions
        changed = [each for each in map(self.change, decisions) if each is not None]
        first = self.decisions[before].number if decisions else 0
        shown = [attrs.evolve(self.decisions[before], number=first + index, index=index, decision=each) for index, each in enumerate(changed)]
        self.judge.check(self.records[-1], shown, self.state)
        return decisions

    def told_otherwise(self, member_id: str, **fields: Any) -> None:
        """From here on the validator sees this member's assignments with other contents."""

        def change(decision: Decision) -> Decision:
            if isinstance(decision, MemberAssigned) and decision.member_id == member_id:
                return attrs.evolve(decision, **fields)
            return decision

        self.change = change


def broken(number: int, text: str) -> Any:
    return pytest.raises(InvariantBroken, match=rf"^invariant {number}: .*{text}")


def test_validator_accepts_a_valid_log():
    group = Tampered().starts("m1", "m2", stateful=4, stateless=2, num_standbys=1)
    group.settles()


# 1


def test_validator_finds_a_grant_before_the_release():
    group = Tampered().starts("m1", stateless=2)
    first, second = tasks("1_0", "1_1")
    group.fact(joined("m2"))  # m1 must give one up
    kept = next(iter(group.state.members["m1"].active))
    moved = second if kept == first else first
    group.told_otherwise("m2", active=(kept,), tokens=(9,))
    with broken(1, f"{kept} was granted to m2 while m1 still owns it"):
        group.fact(LagReported("m1", 1, 0, 2, held=(kept,)))
    assert group.state.owner[moved] == "m2"


def test_validator_finds_a_forced_grant_without_hold():
    group = Tampered().starts("m1", stateless=1)
    group.told_otherwise("m1", hold_ms={})
    with broken(1, f"hold of 0 ms; its last owner may run on for {SESSION_MS} ms"):
        group.fact(joined("m1", 2))


def test_validator_finds_a_forced_removal_without_hold():
    group = Tampered().starts("m1", stateless=1)
    group.change = lambda decision: attrs.evolve(decision, hold_ms=0) if isinstance(decision, MemberExpired) else decision
    with broken(1, "removed by force with a hold of 0 ms"):
        group.fact(joined("m1", 2))


def test_validator_finds_a_fencing_token_that_does_not_rise():
    group = Tampered().starts("m1", stateless=1)
    group.told_otherwise("m1", tokens=(1,))
    with broken(1, "with token 1 after 1"):
        group.fact(joined("m1", 2, ended_incarnation=1))


def test_validator_finds_an_early_expiry():
    group = Tampered().starts("m1", stateless=1)
    group.pass_ms(5_000)
    early = MemberExpired(member_id="m1", incarnation=1, cause="session_timeout", silent_ms=6_000)
    record = make_record(GROUP, len(group.records), group.append_ms + 1_000, ProbingTick())
    with broken(1, "m1 was expired after 6000 ms of silence"):
        group.judge.check(record, [DecisionRecord("log-1", GROUP, group.state.number + 1, record.offset, 0, record.checksum, early)], group.state)


# 2


def test_validator_finds_a_task_without_target_owner():
    group = Tampered().starts("m1", stateless=2)
    group.told_otherwise("m1", active=tasks("1_0"), tokens=(2,))
    with broken(2, "1_1 has no target owner .*eligible: m1"):
        group.fact(joined("m1", 2, ended_incarnation=1))


def left_and_lost(**issued: Any) -> Tampered:
    """m2 left with a task, which waits for its return; the validator sees that round with other
    contents.
    """
    group = Tampered().starts("m1", stateless=2, assignor="cooperative")
    group.join("m2")
    group.settles()

    def change(decision: Decision) -> Decision:
        return attrs.evolve(decision, **issued) if isinstance(decision, AssignmentIssued) else decision

    group.change = change
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    return group


def test_validator_accepts_lost_tasks_that_wait_for_a_stated_time():
    group = left_and_lost()
    (task,) = group.state.lost
    group.fact(joined("m2", 2))
    assert group.state.owner[task] == "m2"


def test_validator_finds_lost_tasks_that_wait_without_a_stated_time():
    with broken(2, "has no target owner"):
        left_and_lost(scheduled_delay_ms=0)


def test_validator_finds_lost_tasks_that_wait_longer_than_stated():
    group = left_and_lost(scheduled_delay_ms=1_500)
    group.fact(ProbingTick(), 1_000)
    with broken(2, "has no target owner"):
        group.fact(ProbingTick(), 1_000)


def test_validator_finds_a_task_without_owner_that_was_not_lost():
    waits = Move(task=tasks("1_0")[0], source="m2", destination=None, state="waiting", reason="lost")
    group = Tampered().starts("m1", stateless=2, assignor="cooperative")
    group.change = lambda decision: attrs.evolve(decision, moves=(waits, *decision.moves)) if isinstance(decision, AssignmentIssued) else decision
    with broken(2, "1_0 is left without owner .lost., but its owner has neither left nor died"):
        group.join("m2")


def eager_beside_another(**assigned: Any) -> Tampered:
    """e1 runs all four tasks and m2 joins, so e1 must give up all of them and gets two again; the
    validator sees its assignment with other contents.
    """
    group = Tampered().starts(stateless=4, assignor="cooperative")
    group.join("e1", eager=True)
    group.settles()
    group.fact(joined("m2"))
    assert len(group.state.members["e1"].revoking) == 4
    assert len(group.state.members["e1"].eager_regrants) == 2
    group.told_otherwise("e1", **assigned)
    return group


def test_validator_accepts_an_eager_regrant():
    group = eager_beside_another()
    group.fact(LagReported("e1", 1, 90, 2, held=()))
    assert {name: len(member.active) for name, member in group.state.members.items()} == {"e1": 2, "m2": 2}
    assert group.state.members["e1"].eager_regrants == {}


def test_validator_finds_an_eager_regrant_that_never_comes():
    group = eager_beside_another(active=(), tokens=())
    with broken(2, "has no target owner"):
        group.fact(LagReported("e1", 1, 90, 2, held=()))


# 3


@pytest.mark.parametrize(("kind", "name"), [("standby", "standby"), ("warmup", "warm-up")])
def test_validator_finds_a_copy_beside_the_active_task(kind: str, name: str):
    group = Tampered().starts("m1", stateful=1)
    group.told_otherwise("m1", **{kind: tasks("0_0")})
    with broken(3, rf"m1 owns \(0_0\) and is assigned a {name}"):
        group.fact(joined("m1", 2, ended_incarnation=1))


def test_validator_finds_a_copy_of_a_stateless_task():
    group = Tampered().starts("m1", stateless=1)
    group.cycle()
    group.told_otherwise("m2", standby=tasks("1_0"))
    group.fact(topology(epoch=2, stateless=3))
    with broken(3, r"m2 is assigned a standby of \(1_0\), which has no state"):
        group.join("m2", topology_epoch=2)
        group.settles()


# 4


def test_validator_finds_a_revocation_for_a_cold_destination():
    group = Tampered().starts("m1", stateful=2)
    group.settles()

    def hasty(decision: Decision) -> Decision:
        if isinstance(decision, AssignmentIssued):
            return attrs.evolve(decision, moves=tuple(attrs.evolve(move, state="revoking") for move in decision.moves))
        return decision

    group.change = hasty
    with broken(4, "goes to m2 .*, which is not caught up; m1 is"):
        group.join("m2", restores=0)


def test_validator_finds_a_move_to_a_crash_looping_member():
    group = Tampered().starts("m1", "m2", stateful=1, stateless=1, num_standbys=1)
    group.settles()
    (task,) = tasks("0_0")
    owner = group.state.owner[task]
    other = "m2" if owner == "m1" else "m1"

    def returned(decision: Decision) -> Decision:
        if isinstance(decision, AssignmentIssued):
            return attrs.evolve(decision, moves=tuple(attrs.evolve(move, destination=owner) for move in decision.moves))
        return decision

    for incarnation in (2, 3):
        if incarnation == 3:
            group.change = returned
        kept = joined(owner, incarnation, ended_incarnation=incarnation - 1, lags={task: 0})
        with broken(4, f"0_0 goes to {owner} .*, which keeps crashing; {other} is caught up too") if incarnation == 3 else contextlib.nullcontext():
            group.fact(kept)


# 5


@pytest.mark.parametrize(
    ("settings", "text"), [({"max_warmups": 1}, "2 warm-ups, 0 before; the cap is 1"), ({"max_warmups_per_member": 1}, "m2 has 2 warm-ups")]
)
def test_validator_finds_too_many_warm_ups(settings: dict[str, int], text: str):
    group = Tampered().starts("m1", stateful=4, **settings)
    group.settles()
    group.told_otherwise("m2", warmup=tasks("0_0", "0_1"))
    with broken(5, text):
        group.join("m2", restores=0)


def test_validator_finds_too_many_standbys():
    group = Tampered().starts("m1", "m2", stateful=4)
    group.settles()
    group.told_otherwise("m3", standby=tasks("0_0"), warmup=())
    with broken(5, "0_0 has 1 standbys; num_standbys is 0"):
        group.join("m3", restores=0)


# 6


def test_validator_finds_a_new_task_on_a_leaving_member():
    group = Tampered().starts("m1", "m2", "m3", stateful=3)
    group.settles()
    mine = tuple(sorted(group.members["m1"].active))
    other = tuple(sorted(group.members["m2"].active))
    group.members["m1"].leaves()
    group.told_otherwise("m1", active=mine, tokens=(1,) * len(mine), revoke=(), standby=other)
    with broken(6, rf"m1 is leaving and got \({other[0]}"):
        for _ in range(5):
            group.cycle()


def test_validator_finds_a_release_of_an_owner():
    group = Tampered().starts("m1", stateless=2)
    group.cycle()
    group.told_otherwise("m1", released=True)
    with broken(6, "m1 was released; leaving=False"):
        group.join("m2")


def test_validator_finds_a_missing_release():
    group = Tampered().starts("m1", stateless=1)
    group.join("m2")
    idle = next(name for name, member in group.state.members.items() if member.owns_nothing())
    group.told_otherwise(idle, released=False)
    with broken(6, f"{idle} is leaving, owns nothing and was not released"):
        group.fact(LeaveIntended(member_id=idle, incarnation=1))


# 0


def test_validator_finds_decisions_that_are_not_dense():
    group = Tampered().starts("m1", stateless=1)
    dropped: list[Decision] = []

    def drop_first(decision: Decision) -> Decision | None:
        if dropped:
            return decision
        dropped.append(decision)
        return None

    group.join("m2")
    group.change = drop_first
    with broken(0, ""):
        group.fact(joined("m3", session_timeout_ms=1))  # only a part of its answer is shown
        group.fact(joined("m1", 2))


def test_validator_finds_an_assignment_without_a_round():
    group = Tampered().starts(stateless=1)
    group.change = lambda decision: None if isinstance(decision, AssignmentIssued) else decision
    with broken(0, "m1 was assigned to without an AssignmentIssued"):
        group.join("m1")


def test_validator_finds_a_grant_without_a_move():
    group = Tampered().starts(stateless=1)
    group.change = lambda decision: attrs.evolve(decision, moves=()) if isinstance(decision, AssignmentIssued) else decision
    with broken(0, "1_0 was granted to m1 and no move says why"):
        group.join("m1")


def test_validator_finds_an_epoch_that_jumps():
    group = Tampered().starts(stateless=1)
    group.told_otherwise("m1", assignment_epoch=2)
    with broken(0, "m1 got epoch 2 after 0"):
        group.join("m1")


@pytest.mark.parametrize("what", ["owner", "standby", "revoking", "lease", "time", "token", "member"])
def test_validator_finds_a_state_that_contradicts_the_log(what: str):
    group = Tampered().starts("m1", "m2", stateful=2, num_standbys=1)
    group.settles()
    state, m1 = group.state, group.state.members["m1"]
    (task,) = m1.active
    if what == "owner":
        state.owner[task] = "m2"
    elif what == "standby":
        m1.standby.clear()
    elif what == "revoking":
        m1.revoking[task] = (1, 0)
    elif what == "lease":
        m1.last_heard_ms += 1
    elif what == "time":
        state.now_ms += 5
    elif what == "token":
        state.tokens[task] = 0
    else:
        del state.members["m2"]
    with broken(0, "the (state|log)"):
        group.tick(1)


# 8


def test_step_checker_finds_state_outside_the_checkpoint():
    class Moody:
        """An assignor with a memory: it puts every task on the first member, and from its third
        problem on, on the last.
        """

        def __init__(self) -> None:
            self.real = registry.load("high_availability", 1)
            self.name, self.version, self.solver = "moody", 1, ""
            self.guarantees: frozenset[Any] = frozenset()
            self.asked = 0

        def assign(self, problem: AssignmentProblem) -> Plan:
            self.asked += bool(problem.members)
            members = sorted(problem.members, key=lambda member: member.id)
            favoured = members[0 if self.asked < 3 else -1].id if members else ""
            chosen = [attrs.evolve(member, capacity=100 if member.id == favoured else 1) for member in members]
            return self.real.assign(attrs.evolve(problem, members=tuple(chosen)))

    group = Group(lambda name, version: Moody(), watched=False)
    group.fact(attrs.evolve(configured(initial_delay_ms=0), solver=""))
    group.fact(topology(stateless=4))
    for member_id in ("m1", "m2", "m3"):
        group.join(member_id)
        group.cycle()
    with broken(8, "restored before offset"):
        check_snapshot_replay(group.records, load=group.load)


def test_halted_log_halts_at_the_same_fact_from_every_checkpoint():
    group = Group().starts("m1", stateless=1)
    group.cycle()
    halting = make_record(GROUP, len(group.records), group.append_ms, attrs.evolve(configured(), assignor="unheard_of"))
    check_snapshot_replay([*group.records, halting, make_record(GROUP, halting.offset + 1, group.append_ms, ProbingTick())])


# 9


def test_check_sizes_finds_a_decision_above_the_limit():
    group = Group(watched=False)
    group.machine = GroupMachine(most_event_bytes=10**9)  # no decision is emitted in parts
    group.fact(configured(initial_delay_ms=0))
    group.fact(topology(stateless=4_000))
    group.fact(joined("a" * 500))
    with broken(9, "at offset 3 AssignmentIssued has 2[0-9]{6} bytes; an event has at most 1000000"):
        check_sizes(group.records[-1], group.decisions)


def test_check_sizes_finds_a_fact_above_the_limit():
    fact = LagReported("m1", 1, 0, 0, lags={TaskId(0, partition): 2**40 for partition in range(90_000)})
    checker = StepChecker()
    with broken(9, "at offset 7 LagReported has 1[0-9]{6} bytes"):
        checker(FactRecord(GROUP, 7, 0, fact), [], GroupMachine())
