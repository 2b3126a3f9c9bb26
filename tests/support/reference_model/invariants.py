"""Eight of the nine invariants (docs/architecture.md), judged without trusting the machine.
`tests.support.reference_model.step_checker` has the ninth.

`Validator` feeds every fact and decision to a `ReferenceModel` and judges 1 to 6 after every step,
in time that grows with the step and not with the group. Then it compares the machine's state with
the model. 7 and 8 are judged per run, with `settling_ms` and `unsettled`, and with
`check_snapshot_replay`. A broken invariant raises `equipoise.events.errors.InvariantBroken`; number
0: facts, decisions and state contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from equipoise.assignors import Guarantee, MovementState, deals_by_lag, registry
from equipoise.events.decisions import MemberAssigned, Move
from equipoise.events.errors import GroupHalted, InvariantBroken
from equipoise.events.facts import GroupConfigured
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, tasks_text
from equipoise.statemachine.machine import AssignorLoader, GroupMachine
from equipoise.statemachine.state import MOST_INITIAL_DELAYS, GroupState, MemberState, stall_ms
from tests.support.reference_model.model import MemberRecord, ReferenceModel

Compared = tuple[str, object, object]
"""(name, value in the machine's state, value that the log implies)."""


class Validator:
    """Judges every step of one group, from its first fact on.

    `load` finds the assignor, whose guarantees say whether 2, 4 and 5 are judged. Every
    `whole_every` steps (0: never) the whole state is compared with the model, and otherwise only
    the members that the step may have touched.
    """

    def __init__(self, *, load: AssignorLoader = registry.load, whole_every: int = 100) -> None:
        self.model = ReferenceModel()
        self.model.judged = self._judge
        self.model.deals_by_lag = lambda config: deals_by_lag(load(config.assignor, config.behaviour_version))
        self.steps = 0
        self._load = load
        self._whole_every = whole_every
        self._config: GroupConfigured | None = None
        self._guarantees: frozenset[Guarantee] = frozenset()
        self._warmups_before = 0
        self._before: dict[str, tuple[frozenset[TaskId], frozenset[TaskId]]] = {}
        """Members that this step assigns to -> their standbys and warm-ups before it."""

    def check(self, record: FactRecord, decisions: list[DecisionRecord], state: GroupState) -> None:
        """Judges one step: the fact, its decisions, and the state after it. Raises InvariantBroken."""
        model = self.model
        self.steps += 1
        self._warmups_before = model.warmups
        answers = [each.decision for each in decisions]
        self._before = {answer.member_id: self._copies_of(answer.member_id) for answer in whole(answers) if isinstance(answer, MemberAssigned)}
        model.step(record, decisions)
        if not model.shadowing:
            self._check_owned()
            self._check_released()
            for member_id in self._before:
                self._check_copies(member_id)
            if self._is_promised(Guarantee.COPIES_CAPPED):
                self._check_caps()
        self._check_state(state)
        if self._whole_every and self.steps % self._whole_every == 0:
            self.check_whole(state)

    def _is_promised(self, guarantee: Guarantee) -> bool:
        """Returns whether the assignor that decides in this step has the guarantee. An assignor
        that the step's own fact configures has decided already (docs/protocol.md#d8).
        """
        config = self.model.config
        if config is not self._config and config is not None:
            self._config = config
            self._guarantees = self._load(config.assignor, config.behaviour_version).guarantees
        return guarantee in self._guarantees

    # 2

    def _check_owned(self) -> None:
        model = self.model
        if not model.idle or not model.leading or not self._is_promised(Guarantee.ALWAYS_OWNED):
            return
        for task in sorted(model.idle):
            destination = model.handing_over.get(task, model.eager_regrants.get(task))
            owner = model.owner.get(task)
            if task in model.lost and model.now_ms < model.waiting_until_ms:
                continue
            if owner is not None and model.members[owner].eager and (model.members[owner].leaving or model.members[owner].is_restarting):
                continue  # it gives up everything for one movement; the other tasks are assigned after that
            if destination is not None and (owner is not None or model.gathers(destination)) and model.is_eligible(model.members[destination], task):
                continue
            eligible = sorted(member.member_id for member in model.members.values() if model.is_eligible(member, task))
            if eligible:
                raise InvariantBroken(2, f"{task} has no target owner (last: {owner}, going to: {destination}); eligible: {', '.join(eligible)}")

    # 3

    def _check_copies(self, member_id: str) -> None:
        member = self.model.members[member_id]
        owned = {*member.active, *member.revoking}
        for kind, copies in (("standby", member.standby), ("warm-up", member.warmup)):
            both = sorted(copies & owned)
            if both:
                raise InvariantBroken(3, f"{member_id} owns {tasks_text(both)} and is assigned a {kind} of it")
            stateless = sorted(task for task in copies if not self.model.is_stateful(task))
            if stateless:
                raise InvariantBroken(3, f"{member_id} is assigned a {kind} of {tasks_text(stateless)}, which has no state or is no task")
            unknown = sorted(task for task in copies.difference(*self._before[member_id]) if not self.model.knows(member, task))
            if unknown:
                epoch = member.topology_epoch
                raise InvariantBroken(0, f"{member_id} is assigned a {kind} of {tasks_text(unknown)}; its topology epoch {epoch} has no such")
        twice = sorted(member.standby & member.warmup)
        if twice:
            raise InvariantBroken(0, f"{member_id} is assigned {tasks_text(twice)} both as standby and as warm-up")

    def _copies_of(self, member_id: str) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
        member = self.model.members.get(member_id)
        return (frozenset(), frozenset()) if member is None else (member.standby, member.warmup)

    # 4

    def _judge(self, move: Move) -> None:
        """A stateful task goes to a caught-up member if there is one. Judged when the move is
        decided, not when it is carried out (docs/protocol.md#d3).
        """
        model = self.model
        if move.state not in ("revoking", "granted") or not model.is_stateful(move.task) or not self._is_promised(Guarantee.CAUGHT_UP_FIRST):
            return
        if move.destination is None:
            raise InvariantBroken(0, f"{move.task} is {move.state} and has no destination")
        promised = model.promised if move.reason == "eager" else model.handing_over  # where the task goes after the eager member was said before
        before = promised, model.regranted, model.eager_regrants, model.owner
        if move.destination in [known.get(move.task) for known in before]:
            return
        destination = model.members.get(move.destination)
        if destination is None:
            raise InvariantBroken(0, f"{move.task} is {move.state} to {move.destination}, which is no member")
        caught_up, crash_looping = model.is_caught_up(destination, move.task, surely=False), model.is_crash_looping(destination)
        if caught_up and not crash_looping:
            return
        eligible = [member for member in model.members.values() if model.is_eligible(member, move.task)]
        better = [member for member in eligible if model.is_caught_up(member, move.task, surely=True)]
        if caught_up:
            better = [member for member in better if not model.is_crash_looping(member)]
        if better:
            names = ", ".join(sorted(member.member_id for member in better))
            worse = f"which keeps crashing; {names} is caught up too" if caught_up else f"which is not caught up; {names} is"
            raise InvariantBroken(4, f"{move.task} goes to {move.destination} (lag {destination.lags.get(move.task)}, {move.reason}), {worse}")

    # 5

    def _check_caps(self) -> None:
        """Lower caps end no movement that is being handed over (docs/protocol.md#d8, #d9): above
        its cap a number of copies may only fall.
        """
        model = self.model
        settings: GroupSettings = model.config.knobs  # type: ignore[union-attr]  # somebody was assigned to
        warmups = model.warmups
        if warmups > max(settings.max_warmups, self._warmups_before):
            warmups = sum(self._counted(member.warmup) for member in model.members.values())
        if warmups > max(settings.max_warmups, self._warmups_before):
            raise InvariantBroken(5, f"{warmups} warm-ups, {self._warmups_before} before; the cap is {settings.max_warmups}")
        for member_id, (_, warmup_before) in self._before.items():
            member = model.members[member_id]
            copies = self._counted(member.warmup)
            if copies > max(settings.max_warmups_per_member, len(warmup_before)):
                raise InvariantBroken(5, f"{member_id} has {copies} warm-ups; the cap for one member is {settings.max_warmups_per_member}")
            for task in sorted(member.standby):
                if model.standbys[task] > settings.num_standbys:
                    raise InvariantBroken(5, f"{task} has {model.standbys[task]} standbys; num_standbys is {settings.num_standbys}")

    def _counted(self, warmups: Iterable[TaskId]) -> int:
        """The number of warm-ups within the caps: copies of tasks of leaving members may be
        outside.
        """
        owner, members = self.model.owner, self.model.members
        apart = self._is_promised(Guarantee.LEAVING_APART)
        return sum(not (apart and task in owner and members[owner[task]].leaving) for task in warmups)

    # 6

    def _check_released(self) -> None:
        model = self.model
        if not model.leaving or not model.leading:
            return
        for member_id in sorted(model.leaving):
            member = model.members[member_id]
            if not member.released and not member.active and not member.revoking:
                raise InvariantBroken(6, f"{member_id} is leaving, owns nothing and was not released")

    # The machine's state

    def _check_state(self, state: GroupState) -> None:
        model = self.model
        compared = (
            ("group time", state.now_ms, model.now_ms),
            ("decision number", state.number, model.number),
            ("generation", state.generation, model.generation if not model.shadowing else state.generation),
            ("members", len(state.members), len(model.members)),
        )
        _check_equal(compared)
        if not model.shadowing:
            for member_id in sorted(model.touched):
                self._check_member(member_id, state)

    def _check_member(self, member_id: str, state: GroupState) -> None:
        expected, member = self.model.members.get(member_id), state.members.get(member_id)
        if expected is None or member is None:
            if expected is not None or member is not None:
                raise InvariantBroken(0, f"{member_id}: live in the {'log' if member is None else 'state'} alone")
            return
        _check_equal(_compared(expected, member), f"{member_id}.")

    def check_whole(self, state: GroupState) -> None:
        """Compares the whole state with the model. Costs time in the group's size. Raises
        InvariantBroken.
        """
        model = self.model
        if model.shadowing:
            return
        for member_id in sorted({*state.members, *model.members}):
            self._check_member(member_id, state)
        compared: tuple[Compared, ...] = (
            ("owner", state.owner, model.owner),
            ("tokens", [task for task, token in sorted(model.tokens.items()) if state.tokens.get(task, 0) < token], []),
            ("in flight", {task: m.destination for task, m in state.in_flight.items() if m.state is MovementState.REVOKING}, model.handing_over),
            ("eager regrants", {task: member.member_id for member in state.members.values() for task in member.eager_regrants}, model.eager_regrants),
            ("asked", state.asked, model.asked),
            (
                "crash loops",
                {name: (crashes.times, crashes.until_ms) for name, crashes in state.crashes.items() if state.is_crash_looping(name)},
                {
                    member.member_id: (model.crashes[member.member_id].times, model.crashes[member.member_id].until_ms)
                    for member in model.members.values()
                    if model.is_crash_looping(member)
                },
            ),
            # One may be longer than here: of two fences of a task the longer session counts until
            # both are over.
            ("holds", {task for task, hold_ms in state.holds.items() if hold_ms >= model.forced.get(task, 0)}, model.forced.keys()),
        )
        _check_equal(compared)
        for member in state.members.values():
            incoming = {task for task, movement in state.in_flight.items() if movement.destination == member.member_id}
            if member.incoming != incoming:
                raise InvariantBroken(0, f"{member.member_id}.incoming: {member.incoming}, in flight to it are {incoming}")


def _compared(expected: MemberRecord, member: MemberState) -> Iterable[Compared]:
    yield "incarnation", member.incarnation, expected.incarnation
    yield "last_heard_ms", member.last_heard_ms, expected.last_heard_ms
    yield "issued_epoch", member.issued_epoch, expected.epoch
    yield "intends", member.intends, expected.intends
    yield "leaving", member.leaving, expected.leaving
    yield "released", member.released, expected.released
    yield "active", member.active.keys(), expected.active.keys()
    yield "revoking", member.revoking.keys(), expected.revoking.keys()
    if not expected.is_away:  # it is told of its copies when it is back
        yield "standby", member.standby, expected.standby
    yield "warmup", member.warmup.keys(), expected.warmup
    yield "restore_records_per_s", member.restore_records_per_s, expected.restore_records_per_s


def _check_equal(compared: Iterable[Compared], prefix: str = "") -> None:
    for name, actual, expected in compared:
        if actual != expected:
            raise InvariantBroken(0, f"{prefix}{name}: the state has {actual}, the log implies {expected}")


# 7


def unsettled(state: GroupState) -> str:
    """Returns what a group that equipoise leads has still to do; "": it is balanced and nothing is
    under way.
    """
    tasks = state.tasks()
    for what, names in (
        ("tasks without owner:", [str(task) for task in tasks if task not in state.owner and _may_be_run(state, task)]),
        ("movements in flight:", [str(task) for task in sorted(state.in_flight)]),
        ("members that revoke tasks:", sorted(member.member_id for member in state.members.values() if member.revoking)),
        ("members with warm-ups:", sorted(member.member_id for member in state.members.values() if member.warmup)),
        ("members to release:", sorted(member.member_id for member in state.members.values() if member.leaving and not member.released)),
        ("fenced incarnations:", sorted(state.fenced)),
        ("members that restart:", sorted(state.restarts)),
        ("tasks that were lent:", [str(task) for task in sorted(state.lent)]),
        ("members in back-off after crashes:", sorted(filter(state.is_crash_looping, state.members))),
    ):
        if names:
            return f"{what} {', '.join(names)}"
    if state.members and (state.verdict is None or state.verdict[0] != "balanced"):
        return f"the verdict is {state.verdict}"
    return ""


def _may_be_run(state: GroupState, task: TaskId) -> bool:
    known = (state.runnable(member) for member in state.members.values() if not member.leaving)
    return any(partitions is None or task.partition < partitions.get(task.subtopology, 0) for partitions in known)


def settling_ms(state: GroupState, *, report_ms: int, restore_ms: int, delays_ms: int = 0) -> int:
    """Invariant 7: the group time, in ms, within which this group settles, whatever happened
    before.

    Assumes that from now on there are ticks, no member joins, every member is silent or reports at
    least every `report_ms` what it has read, closed and restored since its last report, and a copy
    is caught up within `restore_ms` of the member reading its assignment. The reasons, step by
    step:

    * A silent member is removed after its session timeout; a group that gathers starts after its
      initial delay, and new members are decided after the join delay. From then on the members are
      fixed.
    * Movements in flight are completed (docs/protocol.md#d9). After that each granted movement
      belongs to a smallest plan and makes the plan smaller by one. So each task and each standby
      moves at most once, and each move uses one slot.
    * A slot is used from the decision until the grant: until the destination has read it, restored
      and reported, and the source has read and reported that it gave the task up. That takes
      restore_ms and at most four reports.
    * While a movement waits for a slot, all slots of the group or all of one member are in use: at
      least min(max_warmups, max_warmups_per_member) at a time. So there are at most uses / that
      many such spans, and one more for movements that need no slot.
    * A warm-up that stalled before may be in back-off, and one that is close to stalling may still
      stall once.
    * A warm-up that was slow until now may still give way once, and then uses a slot twice. A copy
      that takes longer than `warmup_stall_ms` may give way to each other copy, which is then ready
      sooner; its back-off ends when nothing waits any more, so no slot is idle for that.
    * A member in back-off after crashes takes no part in the balance before its end; then each task
      may have to move once more.
    * What no report says is seen at the next probing.
    * Before all that the assignor may leave lost tasks without owner, and postpone moves, for
      `delays_ms` in all.
    """
    settings = state.settings
    members = state.members.values()
    stateful = sum(part.stateful for part in state.tasks().values())
    uses = len(state.in_flight) + stateful * (1 + settings.num_standbys) + sum(len(member.warmup) for member in members)
    if restore_ms + report_ms >= settings.warmup_stall_ms:
        uses *= uses
    crash_backoffs = [max(0, crashes.until_ms - state.now_ms) for crashes in state.crashes.values() if crashes.until_ms is not None]
    uses += stateful * (1 + settings.num_standbys) if crash_backoffs else 0
    spans = 1 + -(-uses // min(settings.max_warmups, settings.max_warmups_per_member))
    back_offs = [back_off.until_ms - state.now_ms for back_off in state.backoffs.values() if not back_off.over]
    for member in members:
        for task in member.warmup:
            stalled = state.backoffs.get((task, member.member_id))
            back_offs.append(stall_ms(settings, 1 if stalled is None else stalled.times + 1))
    return (
        max((member.session_timeout_ms for member in members), default=0)
        + MOST_INITIAL_DELAYS * settings.initial_delay_ms
        + settings.join_delay_ms
        + max(back_offs, default=0)
        + max(crash_backoffs, default=0)
        + settings.probing_interval_ms
        + delays_ms
        + spans * (restore_ms + 4 * report_ms)
    )


# 8


MOST_SPLITS = 200
"""`check_snapshot_replay` splits a log of up to this many facts at every fact, and a longer one at
this many, evenly spread.
"""


def check_snapshot_replay(records: Sequence[FactRecord], *, load: AssignorLoader = registry.load, most_splits: int = MOST_SPLITS) -> None:
    """Invariant 8: a machine restored from any checkpoint continues as the original does: same
    decisions, same bytes, same halt.

    Costs len(records) x splits / 2 steps. Raises InvariantBroken 8 with the offset of the first
    difference.
    """
    machine = GroupMachine(load=load)
    checkpoints: list[bytes] = []
    decided: list[list[DecisionRecord]] = []
    halted: str | None = None
    for record in records:
        checkpoints.append(machine.snapshot())
        try:
            decided.append(machine.step(record))
        except GroupHalted as halt:
            halted = halt.code
            break
    last = None if halted is not None else machine.snapshot()
    every = max(1, -(-len(checkpoints) // most_splits))
    for split in range(0, len(checkpoints), every):
        _check_tail(records, split, checkpoints, decided, halted, last, load)


def _check_tail(
    records: Sequence[FactRecord],
    split: int,
    checkpoints: list[bytes],
    decided: list[list[DecisionRecord]],
    halted: str | None,
    last: bytes | None,
    load: AssignorLoader,
) -> None:
    at = f"restored before offset {records[split].offset}"
    machine = GroupMachine.restore(checkpoints[split], load=load)
    for index in range(split, len(checkpoints)):
        offset = records[index].offset
        if index % 16 == 0 and machine.snapshot() != checkpoints[index]:
            raise InvariantBroken(8, f"{at}: before offset {offset} the state differs")
        try:
            decisions = machine.step(records[index])
        except GroupHalted as halt:
            if index < len(decided) or halt.code != halted:
                raise InvariantBroken(8, f"{at}: halts at offset {offset} ({halt.code})") from halt
            return
        if index >= len(decided):
            raise InvariantBroken(8, f"{at}: does not halt at offset {offset} ({halted})")
        if decisions != decided[index]:
            raise InvariantBroken(8, f"{at}: at offset {offset} it decides {decisions}, not {decided[index]}")
    if machine.snapshot() != last:
        raise InvariantBroken(8, f"{at}: the last state differs")
