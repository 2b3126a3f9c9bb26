"""The machine under arbitrary facts: truthful members, late and lost messages, and lies; judged
after every step and at the end of every run.

After each step: invariants 1 to 6, with the whole state compared. At the end of a run: invariant 8
at many split points, and invariant 7: every member becomes truthful, and the group settles within
the bound of `settling_ms` and stays settled.
"""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import note, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, precondition, rule

from equipoise.assignors import Guarantee, registry
from equipoise.assignors.cooperative.options import CooperativeOptions
from equipoise.events.decisions import AssignmentIssued, ChangeJudged, Checkpointed, EventRejected
from equipoise.events.facts import (
    CHANGE_KINDS,
    MEASURED_KINDS,
    READINESS,
    AssignmentObserved,
    BaseRequested,
    ChangeMeasured,
    ChangePlanned,
    DealRequested,
    Fact,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    Load,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    ObservedMember,
    PartitionsObserved,
    RestartIntended,
    SilenceObserved,
    TaskReady,
    TasksRevoked,
    TroublesReported,
    Undecodable,
)
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupPhase
from tests import faults
from tests.faults import OPTIONS
from tests.groups import GROUP, HEARTBEAT_MS, Group, Truthful, all_but_time_and_leases, configured, joined, rejections, topology
from tests.support.reference_model.invariants import check_snapshot_replay, settling_ms, unsettled

MEMBERS = ("m1", "m2", "m3", "m4")
LIARS = (*MEMBERS, "a stranger")
STALL_MS = 20_000
LEAST_STEP_MS = 500
"""As in `is_configured_anew`: at the least `max_step_ms`, each second would have a thousand ticks.
"""
DELAY_MS = 25_000
"""How long `cooperative` leaves lost tasks without owner, and postpones moves at most."""
QUIET_CYCLES = 30
CHOICES = [(name, options) for name in dict.fromkeys(name for name, _ in registry.available()) for options in OPTIONS.get(name, ({},))]
"""Assignors and their options."""

member_ids = st.sampled_from(MEMBERS)
steps_ms = st.one_of(st.integers(0, 1_500), st.sampled_from((-86_400_000, -5_000, -1, 40_000, 86_400_000)))
some_tasks = st.builds(TaskId, st.integers(0, 2), st.integers(0, 5))
task_sets = st.frozensets(some_tasks, max_size=4).map(sorted).map(tuple)
some_lags = st.dictionaries(some_tasks, st.one_of(st.integers(0, 60_000), st.sampled_from(LagSentinel)), max_size=4)
small = st.integers(0, 8)
assignors = st.sampled_from(("high_availability", "cooperative", "lag_aware"))


@st.composite
def lies(draw: st.DrawFn) -> Fact:
    """Well-formed facts that need not be true or make sense."""
    who: dict[str, Any] = {"member_id": draw(st.sampled_from(LIARS)), "incarnation": draw(st.one_of(small, st.integers(9, 14)))}
    epoch = draw(small)
    return draw(
        st.one_of(
            st.builds(
                LagReported,
                st.just(who["member_id"]),
                st.just(who["incarnation"]),
                st.integers(0, 60),
                st.just(epoch),
                held=task_sets,
                ready=task_sets,
                lags=some_lags,
                base=st.none() | st.integers(0, 60),
                forgotten=task_sets,
                leaving=st.booleans(),
            ),
            st.builds(TaskReady, **{key: st.just(value) for key, value in who.items()}, assignment_epoch=st.just(epoch), tasks=task_sets),
            st.builds(TasksRevoked, **{key: st.just(value) for key, value in who.items()}, assignment_epoch=st.just(epoch), tasks=task_sets),
            st.builds(MemberUnchanged, **{key: st.just(value) for key, value in who.items()}, report=st.integers(0, 60)),
            st.builds(TroublesReported, **{key: st.just(value) for key, value in who.items()}, troubles=st.sampled_from(((), ("quotas",)))),
            st.just(LeaveIntended(**who)),
            st.just(LeaveCancelled(**who)),
            st.builds(
                RestartIntended,
                **{key: st.just(value) for key, value in who.items()},
                back_within_ms=st.none() | st.sampled_from((1, 3_000, 20_000, 120_000)),
                wait_turn=st.booleans(),
            ),
            st.builds(LeaveRequested, members=st.just((who["member_id"],)), withdrawn=st.booleans(), staying=st.none() | st.integers(0, 3)),
            st.just(MemberLeft(**who)),
            st.builds(
                MemberJoined,
                **{key: st.just(value) for key, value in who.items()},
                session_timeout_ms=st.sampled_from((1, 5_000, 30_000)),
                lease_margin_ms=st.sampled_from((0, 1_000, 3_000)),
                topology_epoch=small,
                join_nonce=st.text("ab", min_size=1, max_size=3),
                ended_incarnation=st.none() | small,
                lags=some_lags,
            ),
            st.builds(Undecodable, code=st.just("not_msgpack"), length_bytes=small, crc32=small),
            st.just(AssignmentObserved(generation=epoch, members=(ObservedMember(member_id="m1", incarnation=1),))),
            st.builds(topology, small, st.integers(0, 3), st.integers(0, 3)),
            st.just(configured(led_by="external")),
            st.just(configured(max_step_ms=10_000)),
        )
    )


class Storm(RuleBasedStateMachine):
    """`live`: truthful members that may still report, even if their leader has removed them."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.lives = 10
        self.epoch = 1
        self.stateful, self.stateless = 0, 0
        self.settings: dict[str, Any] = {}
        self.assignor = "high_availability"

    @initialize(
        stateful=st.integers(0, 5),
        stateless=st.integers(0, 3),
        delay_ms=st.sampled_from((0, 3_000)),
        standbys=st.integers(0, 2),
        warmups=st.integers(1, 3),
        checkpoints=st.sampled_from((0, 7)),
        assignor=assignors,
    )
    def begins(self, stateful: int, stateless: int, delay_ms: int, standbys: int, warmups: int, checkpoints: int, assignor: str) -> None:
        self.assignor = assignor
        options = {"scheduled_delay_ms": DELAY_MS, "revocation_backoff_ms": 2_000, "revocations_per_round": 2}
        self.settings = {
            "options": options if assignor == "cooperative" else {},
            "initial_delay_ms": delay_ms,
            "num_standbys": standbys,
            "max_warmups": warmups,
            "checkpoint_every_records": checkpoints,
            "warmup_stall_ms": STALL_MS,
            "revocation_timeout_ms": 15_000,
            "drain_timeout_ms": 20_000,
            "probing_interval_ms": 30_000,
        }
        self.stateful, self.stateless = stateful, stateless
        self.group.starts(stateful=stateful, stateless=stateless, assignor=assignor, **self.settings)
        assert self.group.state.config is not None

    # Members come and go

    @rule(
        target=live,
        member_id=member_ids,
        proven=st.booleans(),
        capacity=st.integers(1, 2),
        kept=some_lags,
        after_ms=steps_ms,
        old=st.integers(0, 1),
        session_ms=st.sampled_from((8_000, 20_000)),
        margin_ms=st.sampled_from((1_000, 3_000, 6_000)),
        eager=st.sampled_from((False, False, True)),
        readiness=st.sampled_from(READINESS),
        limit=st.sampled_from((None, None, 500)),
    )
    def joins(
        self,
        member_id: str,
        proven: bool,
        capacity: int,
        kept: dict[TaskId, Any],
        after_ms: int,
        old: int,
        session_ms: int,
        margin_ms: int,
        eager: bool,
        readiness: str,
        limit: int | None,
    ) -> Truthful:
        """A process begins. `proven`: its predecessor is dead and sends nothing more. `old`: it
        runs the topology before the newest.
        """
        self.lives += 1
        before = self.group.state.members.get(member_id)
        ended = before.incarnation if proven and before is not None else None
        member = Truthful(self.group, member_id, self.lives, restores=20_000)
        member.copies = {task: lag for task, lag in kept.items() if isinstance(lag, int) and task.subtopology == 0}
        self.group.members[f"{member_id} {self.lives}"] = member
        if ended is not None:
            self.group.members.pop(f"{member_id} {ended}", None)
        self.group.fact(
            joined(
                member_id,
                self.lives,
                capacity=capacity,
                topology_epoch=max(0, self.epoch - old),
                ended_incarnation=ended,
                lags=dict(sorted(member.copies.items())),
                session_timeout_ms=session_ms,
                lease_margin_ms=margin_ms,
                eager=eager,
                readiness=readiness,
                ready_lag_records=limit,
            ),
            after_ms,
        )
        return member

    @rule(member=consumes(live))
    def crashes(self, member: Truthful) -> None:
        """The process sends nothing more."""
        self.group.members.pop(f"{member.member_id} {member.incarnation}", None)

    @rule(member=live, restored=st.sampled_from((0.0, 900.0, 50_000.0)), cpu=st.sampled_from((0.0, 0.3, 0.9)), rates=st.integers(0, 2))
    def measures(self, member: Truthful, restored: float, cpu: float, rates: int) -> None:
        """Sets the load of its next reports. `rates`: how far apart its tasks are; 0: it reports no
        load per task.
        """
        tasks = {task: rates * (1 + task.partition) for task in sorted(member.active)} if rates else {}
        member.load = Load(cpu=cpu, restored_records_per_s=restored, tasks=tasks)

    @rule(member=live)
    def loses_its_disk(self, member: Truthful) -> None:
        member.copies = {task: 50_000 for task in member.active if task.subtopology == 0}

    @rule(target=live, member=consumes(live), after_ms=steps_ms)
    def is_closed(self, member: Truthful, after_ms: int) -> Any:
        """It stops everything and sends MemberLeft."""
        self.crashes(member)
        self.group.fact(MemberLeft(member_id=member.member_id, incarnation=member.incarnation), after_ms)
        return multiple()

    # Reports of truthful members

    @rule(member=live)
    def reads(self, member: Truthful) -> None:
        member.reads()

    @rule(member=live, after_ms=steps_ms)
    def reports(self, member: Truthful, after_ms: int) -> None:
        """Reports by the decisions that it has read, perhaps long ago."""
        self.group.fact(member.report(), after_ms)

    @rule(member=live, after_ms=steps_ms)
    def says_that_nothing_has_changed(self, member: Truthful, after_ms: int) -> None:
        unchanged = member.unchanged()
        if unchanged is not None:
            self.group.fact(unchanged, after_ms)

    @rule(member=live, after_ms=steps_ms)
    def reads_restores_and_reports(self, member: Truthful, after_ms: int) -> None:
        if f"{member.member_id} {member.incarnation}" in self.group.members:
            member.reads()
            member.restores_copies()
            self.group.fact(member.report(), after_ms)

    @rule(member=live, after_ms=steps_ms, count=st.integers(1, 2))
    def says_what_it_gave_up(self, member: Truthful, after_ms: int, count: int) -> None:
        known = self.group.state.members.get(member.member_id)
        if known is not None and known.incarnation == member.incarnation:
            gone = tuple(sorted(set(known.revoking) - set(member.active)))[:count]
            who: dict[str, Any] = {"member_id": member.member_id, "incarnation": member.incarnation}
            self.group.fact(TasksRevoked(**who, assignment_epoch=member.epoch, tasks=gone), after_ms)

    @rule(member=live, after_ms=steps_ms)
    def says_what_is_ready(self, member: Truthful, after_ms: int) -> None:
        ready = tuple(sorted(task for task in member.keeps if member.copies.get(task) == 0))
        self.group.fact(TaskReady(member_id=member.member_id, incarnation=member.incarnation, assignment_epoch=member.epoch, tasks=ready), after_ms)

    @rule(member=live, leaving=st.booleans())
    def makes_up_its_mind(self, member: Truthful, leaving: bool) -> None:
        member.leaving = leaving

    # Events outside the members

    @rule(after_ms=steps_ms)
    def ticks(self, after_ms: int) -> None:
        self.group.tick(after_ms)

    @rule(duration_ms=st.sampled_from((3_000, 16_000, 21_000)))
    def is_silent_for_long(self, duration_ms: int) -> None:
        self.group.pass_ms(duration_ms)

    @rule(
        standbys=st.integers(0, 2),
        warmups=st.integers(1, 3),
        per_member=st.integers(1, 3),
        factor=st.integers(1, 2),
        acceptable=st.sampled_from((0, 10_000)),
        acceptable_ms=st.sampled_from((0, 0, 1_000, 60_000)),
        step_ms=st.sampled_from((500, 1_000, 3_000)),
    )
    def is_configured_anew(
        self, standbys: int, warmups: int, per_member: int, factor: int, acceptable: int, acceptable_ms: int, step_ms: int
    ) -> None:
        group_settings = self.settings | {
            "num_standbys": standbys,
            "max_warmups": warmups,
            "max_warmups_per_member": per_member,
            "balance_factor": factor,
            "acceptable_recovery_lag": acceptable,
            "acceptable_recovery_ms": acceptable_ms,
            "max_step_ms": step_ms,
        }
        if not rejections(self.group.fact(configured(self.assignor, **group_settings))):  # the step may exceed a member's margin
            self.settings = group_settings

    @rule(which=st.integers(0, len(faults.SETTINGS) - 1), back=st.booleans())
    def has_a_setting_raised_or_lowered(self, which: int, back: bool) -> None:
        """Any setting of the group, to a limit or to a tenth or ten times its default."""
        before = self.group.state.config
        assert before is not None, "it began with a configuration"
        self.group.fact(faults.with_setting(before, which, least_step_ms=LEAST_STEP_MS))
        if back:
            self.group.fact(before)

    @rule(which=st.integers(0, 1_000))
    def hears_a_hostile_or_giant_fact(self, which: int) -> None:
        self.group.fact(faults.hostile(which, GROUP) if which % 2 else faults.giant(which // 2))

    @rule(which=st.integers(0, 1_000))
    def is_joined_by_a_stranger(self, which: int) -> None:
        self.group.fact(faults.stranger(which, f"stranger {len(self.group.records)}"))

    @precondition(lambda self: self.epoch < 6)
    @rule(which=st.integers(0, 20), renumbered=st.booleans())
    def is_grown_or_renumbered(self, which: int, renumbered: bool) -> None:
        newest = self.group.state.topology
        if newest is not None and newest.subtopologies:
            made = (faults.renumbered if renumbered else faults.grown)(newest, which)
            self.epoch = made.epoch
            self.group.fact(made)

    @rule(member=live, after_ms=steps_ms)
    def reports_as_an_older_build(self, member: Truthful, after_ms: int) -> None:
        self.group.fact(faults.by_older_build(member.report()), after_ms)

    @rule(choice=st.sampled_from(CHOICES))
    def is_led_by_another_assignor(self, choice: tuple[str, dict[str, Any]]) -> None:
        """From here on, whatever is under way (docs/protocol.md#d8)."""
        self.assignor, options = choice
        self.settings |= {"options": options}
        shadowing = self.group.state.phase is GroupPhase.SHADOWING
        answer = self.group.fact(configured(self.assignor, **self.settings))
        assert shadowing or rejections(answer) == []

    @precondition(lambda self: self.epoch < 6)
    @rule(stateful=st.integers(0, 5), stateless=st.integers(0, 3))
    def is_deployed_anew(self, stateful: int, stateless: int) -> None:
        state = self.group.state
        self.epoch = 1 + (0 if state.topology is None else state.topology.epoch)
        self.group.fact(topology(self.epoch, stateful, stateless))

    @rule(partition=st.integers(0, 5), end_offset=st.integers(0, 200_000))
    def grows(self, partition: int, end_offset: int) -> None:
        self.group.fact(PartitionsObserved(end_offsets={"log": {partition: end_offset}}))

    @rule(lags=st.dictionaries(st.integers(0, 5), st.integers(0, 200_000), max_size=6))
    def falls_behind(self, lags: dict[int, int]) -> None:
        self.group.fact(PartitionsObserved(source_lags={"in": lags}))

    @rule()
    def is_to_be_dealt_anew(self) -> None:
        self.group.fact(DealRequested())

    @rule(late=st.integers(0, 2), change_id=st.sampled_from(["", "c"]))
    def is_configured_by_an_operator(self, late: int, change_id: str) -> None:
        """With settings read before so many other changes."""
        number, change = self.group.state.config_number, self.group.state.change
        named: dict[str, Any] = {"made_from": max(0, number - late), "change_id": change_id}
        is_late = named["made_from"] != number
        codes = rejections(self.group.fact(attrs.evolve(configured(self.assignor, **self.settings), **named)))
        assert (codes == ["configuration_changed"]) is is_late
        assert (codes == ["not_watched"]) is (not is_late and bool(change_id) and change is None)
        assert self.group.state.config_number == number + (not codes)

    @rule(
        kind=st.sampled_from(CHANGE_KINDS),
        within_ms=st.sampled_from([1, 60_000, 3_600_000]),
        most_ms=st.sampled_from([None, 0, 10_000]),
        late=st.sampled_from([None, 0, 1]),
        judged_by=st.sampled_from(["observer", "fold"]),
    )
    def is_to_be_changed(self, kind: str, within_ms: int, most_ms: int | None, late: int | None, judged_by: str) -> None:
        or_undo = kind == "configure" and most_ms is not None
        limits: dict[str, Any] = {"judged_by": judged_by, "judge_within_ms": within_ms, "quiet_ms": 5_000, "most_unavailable_task_ms": most_ms}
        number = None if late is None else max(0, self.group.state.config_number - late)
        self.group.fact(ChangePlanned(change_id="c", kind=kind, what="a change", or_undo=or_undo, made_from=number, **limits))

    @rule(outcome=st.sampled_from(["at_rest", "late", "too_much"]), unavailable_task_ms=st.sampled_from([0, 20_000]))
    def is_measured(self, outcome: str, unavailable_task_ms: int) -> None:
        change = self.group.state.change
        waits = change is not None and not change.undoes and (change.counts is None or change.planned.kind in MEASURED_KINDS)
        fact = ChangeMeasured(change_id="c", outcome=outcome, unavailable_task_ms=unavailable_task_ms, moves=0, rest_ms=1_000)
        decided = self.group.fact(fact)
        verdicts = [each for each in decided if isinstance(each, ChangeJudged)]
        assert (len(verdicts), bool(rejections(decided))) == ((1, False) if waits else (0, True))

    @rule(silent_ms=st.dictionaries(st.sampled_from(LIARS), st.integers(0, 50_000), max_size=3), late=st.integers(0, 2))
    def is_told_of_silence(self, silent_ms: dict[str, int], late: int) -> None:
        after_offset = self.group.state.last_offset - late
        decided = self.group.fact(SilenceObserved(silent_ms=silent_ms, after_offset=max(0, after_offset)))
        assert not late or rejections(decided)

    @rule()
    def base(self) -> None:
        decided = self.group.fact(BaseRequested())
        assert isinstance(decided[-1], Checkpointed)

    @rule(lie=lies(), after_ms=steps_ms)
    def hears_lies(self, lie: Fact, after_ms: int) -> None:
        before, due_ms = all_but_time_and_leases(self.group.machine), self.group.machine.next_deadline_ms
        answer = self.group.fact(lie, after_ms)
        if rejections(answer) and (due_ms is None or self.group.state.now_ms < due_ms):
            assert all(isinstance(decision, EventRejected | Checkpointed | ChangeJudged) for decision in answer)
            assert all_but_time_and_leases(self.group.machine) == before, "a rejection changes nothing but a lease"

    @rule()
    def is_led_by_another_worker(self) -> None:
        """Replaces the worker by one that has only the last checkpoint."""
        checkpoint = self.group.machine.snapshot()
        self.group.machine = GroupMachine.restore(checkpoint)
        assert self.group.machine.snapshot() == checkpoint

    # The end of a run

    def teardown(self) -> None:
        if self.group.state.config is None:
            return
        check_snapshot_replay(self.group.records, most_splits=8)
        if self.group.state.phase is GroupPhase.SHADOWING:
            return
        self._becomes_truthful()
        self._is_configured_as_before()
        if Guarantee.CONVERGES not in registry.latest(self.assignor).guarantees:
            self.is_led_by_another_assignor(("high_availability", {}))
        self._settles()
        self._stays()
        check_snapshot_replay(self.group.records, most_splits=3)

    def _is_configured_as_before(self) -> None:
        """Settings are set back, and stateful tasks are those of sub-topology 0 again, as truthful
        members take for granted.
        """
        assert rejections(self.group.fact(configured(self.assignor, **self.settings))) == []
        newest = self.group.state.topology
        if newest is not None and any(part.stateful != (part.subtopology == 0) for part in newest.subtopologies):
            counted = [sum(part.partitions for part in newest.subtopologies if part.stateful == stateful) for stateful in (True, False)]
            self.group.fact(topology(newest.epoch + 1, *counted))

    def _becomes_truthful(self) -> None:
        """Live members read all decisions and report in full from now on; members unknown to the
        leader are removed.
        """
        members = {}
        for member in self.group.members.values():
            known = self.group.state.members.get(member.member_id)
            if known is not None and known.incarnation == member.incarnation:
                member.number = max(member.number, known.report_number)
                member.leaving, member.restores = False, 1_000_000
                members[member.member_id] = member
        self.group.members = members

    def _settles(self) -> None:
        group = self.group
        bound_ms = settling_ms(group.state, report_ms=2 * HEARTBEAT_MS, restore_ms=0, delays_ms=2 * self._delay_ms())
        began_ms = group.state.now_ms
        while undone := self._undone():
            if group.state.now_ms - began_ms > bound_ms:
                raise AssertionError(f"not settled within {bound_ms} ms: {undone}")
            self._cycle()
        note(f"settled after {group.state.now_ms - began_ms} ms of {bound_ms}")

    def _delay_ms(self) -> int:
        """How long its assignor may leave lost tasks without owner, and postpone moves."""
        delays = self.assignor in ("cooperative", "kafka_connect")
        return int(self.group.state.settings.options.get("scheduled_delay_ms", CooperativeOptions().scheduled_delay_ms)) if delays else 0

    def _undone(self) -> str:
        absent = sorted(self.group.state.members.keys() - self.group.members.keys())
        behind = sorted(name for name, member in self.group.members.items() if member.is_behind())
        if absent or behind:
            return f"absent are {absent}, behind are {behind}"
        return unsettled(self.group.state)

    def _stays(self) -> None:
        group = self.group
        decided = len(group.decisions)
        for _ in range(QUIET_CYCLES):
            self._cycle()
        rounds = [each.decision for each in group.decisions[decided:] if isinstance(each.decision, AssignmentIssued)]
        assert rounds == [], "it had settled"

    def _cycle(self) -> None:
        if self.group.members:
            self.group.cycle()
        else:
            self.group.pass_ms(HEARTBEAT_MS)


TestStorm = pytest.mark.slow(Storm.TestCase)
TestStorm.settings = settings(stateful_step_count=40)
