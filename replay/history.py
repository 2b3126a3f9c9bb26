"""The history of a group: which member owned each task when, and how each task moved. `explain`
shows one task, `timeline` all tasks.

`History` observes a `Replayer` step by step. It keeps changes only, so its size grows with the
changes of the group and not with the records of its log.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors import AssignmentProblem, Movement, MovementState
from equipoise.assignors.common.racks import rack_of, traffic_cost
from equipoise.assignors.common.ranking import acceptable_lag, is_ready
from equipoise.assignors.lag_aware.options import LagAwareOptions
from equipoise.assignors.lag_aware.uneven import UNEVEN_SINCE
from equipoise.assignors.load_balanced.weights import weights
from equipoise.events.decisions import AssignmentIssued, Move, RoundPlanned
from equipoise.events.facts import AssignmentObserved, LagReported, TaskReady
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.owners import Owners, part_of
from equipoise.replay.replayer import AssignorCall, ReplayStep
from equipoise.replay.silence import SilenceFinder
from equipoise.statemachine.state import GroupPhase, GroupState


@attrs.frozen(kw_only=True)
class Candidate:
    """A member at the time when a movement was decided."""

    member_id: str
    owns_it: bool
    lag: Lag | None
    caught_up: bool
    active_tasks: int
    capacity: int
    obstacle: str
    """Why it could not get the task; "": it could."""
    restore_records_per_s: int
    rack: str | None = None
    traffic_cost: int | None = None
    """Traffic cost of the task there; None: the group is not rack-aware, or racks are unknown."""
    load_share: int | None = None
    """Its load per thread, in millionths of a fair share
    (`equipoise.assignors.load_balanced.weights`); None: its assignor does not use loads.
    """
    task_share: int | None = None
    """Load of the task itself, in the same unit; equal for all members."""


@attrs.frozen(kw_only=True)
class UnevenLags:
    """Lags when a group dealt by itself (`equipoise.assignors.lag_aware.uneven`). `uneven_ms`: for
    how long they had been uneven, in group time. `behind`: member -> records that its partitions
    were behind, those of the task's topic where each topic is dealt alone. `task_behind`: records
    of the task itself.
    """

    uneven_ms: int
    behind: Mapping[str, int]
    task_behind: int


WAITS = ("slot_full", "after_state", "carried", "warming", "next_probing")
"""Reasons that name what a movement waits for, or that it continues; not why it began."""


@attrs.frozen(kw_only=True)
class MoveStep:
    """One step of a movement. `state`: one of `equipoise.events.decisions.MOVE_STATES`, or
    ``observed`` in a group that something else leads.
    """

    state: str
    offset: int
    number: int | None
    """Number of the decision; None: there is no decision (the movement only waits, or was
    observed).
    """
    append_ms: int
    generation: int
    cause: str
    reason: str
    lag_records: int | None
    position: int | None
    """Records in the destination's copy at that time; None: unknown, or no state."""


@attrs.define(kw_only=True)
class MoveStory:
    """The movement of a task from one member to another. `source` None: it had no owner."""

    task: TaskId
    source: str | None
    destination: str
    steps: list[MoveStep]
    declared_ready_ms: int | None = None
    """When the destination declared its copy ready; None: it did not, or there is no state."""
    candidates: tuple[Candidate, ...] = ()
    """All members when the movement was decided. Filled only when one task is followed."""
    wanted_because: str | None = None
    """The reason in the plan while the movement only waited; None: the plan had none."""
    uneven: UnevenLags | None = None
    """Lags when the movement was decided; None: they did not cause it. Filled only when one task is
    followed.
    """

    @property
    def outcome(self) -> str:
        last = self.steps[-1].state
        return "granted" if last == "observed" else last if last in ("granted", "cancelled") else "under way"

    @property
    def began_ms(self) -> int:
        return self.steps[0].append_ms

    @property
    def ended_ms(self) -> int | None:
        return None if self.outcome == "under way" else self.steps[-1].append_ms

    @property
    def reason(self) -> str:
        """Returns why it began: the reason in the plan, or the first reason that is not in WAITS."""
        return self.wanted_because or next((step.reason for step in self.steps if step.reason not in WAITS), self.steps[0].reason)

    def spent_ms(self, state: str, now_ms: int) -> int:
        """Wall time in milliseconds in `state`; until `now_ms` for the current state."""
        spent = 0
        for step, after in zip(self.steps, [*self.steps[1:], None], strict=True):
            if step.state == state:
                until_ms = after.append_ms if after is not None else now_ms
                spent += until_ms - step.append_ms
        return spent

    @property
    def restored_records(self) -> int | None:
        """Records that the destination's copy gained from the first step to the last. None:
        unknown, only one step, or no state.
        """
        positions = [step.position for step in self.steps if step.position is not None]
        return positions[-1] - positions[0] if len(positions) > 1 else None


class History(Owners):
    """The history of a group while its log is replayed.

    `only`: follow this task and note the candidates of its movements; None: follow all tasks.
    `silences`: see `Owners`. `intervals` and `moves` grow with the log. First placements are moves
    with source None. `finish` closes the open intervals.
    """

    def __init__(self, only: TaskId | None = None, silences: SilenceFinder | None = None) -> None:
        super().__init__(only, silences)
        self.moves: list[MoveStory] = []
        self.waiting: dict[TaskId, MoveStory] = {}
        """Movements that are wanted but have not begun; no decision names them yet."""
        self.under_way: dict[TaskId, MoveStory] = {}
        self._learned: dict[TaskId, MoveStory] = {}
        """Movements that continue while the owner gives the task up and takes it again."""

    def observe(self, step: ReplayStep, state: GroupState) -> None:
        """Takes one step. `state`: after the step."""
        record = step.record
        if step.base is not None:
            self.begin(record, state)
            return
        self._note_waiting(step, state)
        self._note_declared(record, state)
        for decision in step.decisions:
            if isinstance(decision.decision, AssignmentIssued | RoundPlanned):
                for move in decision.decision.moves:
                    if self._only in (None, move.task):
                        self._note_move(step, state, decision, decision.decision, move)
        changed = self.see(record, step.decisions, state)
        if isinstance(record.event, AssignmentObserved) and state.phase is GroupPhase.SHADOWING:
            for task, source, owner in changed:
                if source != owner:
                    self._note_observed(step, state, record.event, task, source, owner)

    def forget_before(self, append_ms: int) -> None:
        """Drops intervals and movements that had ended by that time."""
        self.intervals = [each for each in self.intervals if each.to_ms > append_ms]
        self.moves = [each for each in self.moves if each.ended_ms is None or each.ended_ms > append_ms]

    # Movements

    def _note_waiting(self, step: ReplayStep, state: GroupState) -> None:
        if step.assignor_call is None or state.phase is GroupPhase.SHADOWING:
            return
        wanted = {
            movement.task: movement
            for movement in step.assignor_call.plan.movements
            if movement.state is MovementState.WAITING and self._only in (None, movement.task)
        }
        for task in [task for task in self.waiting if task not in wanted and task not in state.in_flight]:
            del self.waiting[task]
        for task, movement in wanted.items():
            story = self.waiting.get(task)
            if story is not None:
                story.destination = movement.destination
            else:
                self.waiting[task] = self._wait(step, state, movement)

    def _wait(self, step: ReplayStep, state: GroupState, movement: Movement) -> MoveStory:
        assert step.assignor_call is not None
        reason = step.assignor_call.plan.reasons.get(movement.task)
        first = MoveStep(
            state="waiting",
            offset=step.record.offset,
            number=None,
            append_ms=step.record.append_ms,
            generation=state.generation,
            cause="",
            reason="slot_full" if reason is None else reason.code,
            lag_records=None if reason is None else reason.lag_records,
            position=_position(state, movement.task, movement.destination),
        )
        return MoveStory(
            task=movement.task,
            source=movement.source,
            destination=movement.destination,
            steps=[first],
            candidates=self._candidates(step, movement.task),
            wanted_because=None if reason is None else reason.because,
        )

    def _note_move(self, step: ReplayStep, state: GroupState, decided: DecisionRecord, issued: AssignmentIssued | RoundPlanned, move: Move) -> None:
        if move.destination is None or move.reason == "eager":
            return  # deferred lost work and eager regrants have no destination
        task = move.task
        move_step = MoveStep(
            state=move.state,
            offset=step.record.offset,
            number=decided.number,
            append_ms=step.record.append_ms,
            generation=issued.generation,
            cause="asked" if isinstance(issued, RoundPlanned) else issued.cause,
            reason=move.reason,
            lag_records=move.lag_records,
            position=_position(state, task, move.destination),
        )
        story = self.under_way.get(task)
        waited = self.waiting.pop(task, None)
        if story is None or story.destination != move.destination:
            if story is not None and move.source != move.destination:
                story.steps.append(attrs.evolve(move_step, state="cancelled", reason="not_wanted"))  # regranted before the first grant was published
            if story is not None and move.source == move.destination and move.state == "revoking":
                self._learned[task] = story
            source = move.source if move.source is not None else self._last_owner.get(task)
            if waited is not None and waited.destination == move.destination:
                story = waited
            else:
                uneven = None if self._only is None or step.assignor_call is None else uneven_lags(step.assignor_call, task)
                candidates = self._candidates(step, task)
                story = MoveStory(task=task, source=source, destination=move.destination, steps=[], candidates=candidates, uneven=uneven)
            self.moves.append(story)
            if move.state in ("warming", "revoking") and _is_ready(state, task, story.destination):
                story.declared_ready_ms = step.record.append_ms  # declared before the movement was wanted
        story.steps.append(move_step)
        if move.state in ("granted", "cancelled"):
            if move.source != move.destination or self.under_way.get(task) is story:  # an eager regrant may be moving elsewhere
                self.under_way.pop(task, None)
            if move.source == move.destination and task in self._learned:
                self.under_way[task] = self._learned.pop(task)
        else:
            self.under_way[task] = story

    def _candidates(self, step: ReplayStep, task: TaskId) -> tuple[Candidate, ...]:
        if self._only is None or step.assignor_call is None:
            return ()
        return tuple(candidates(step.assignor_call.problem, task, by_load=step.assignor_call.plan.load is not None))

    def _note_declared(self, record: FactRecord, state: GroupState) -> None:
        if isinstance(record.event, TaskReady | LagReported):
            for task in record.event.tasks if isinstance(record.event, TaskReady) else record.event.ready:
                story = self.under_way.get(task)
                if story is not None and story.destination == record.event.member_id and story.declared_ready_ms is None:
                    story.declared_ready_ms = record.append_ms if _is_ready(state, task, story.destination) else None

    def _note_observed(self, step: ReplayStep, state: GroupState, event: AssignmentObserved, task: TaskId, source: str | None, owner: str) -> None:
        observed = MoveStep(
            state="observed",
            offset=step.record.offset,
            number=None,
            append_ms=step.record.append_ms,
            generation=event.generation,
            cause=event.cause,
            reason="observed",
            lag_records=_known(state.members[owner].lags.get(task)),
            position=_position(state, task, owner),
        )
        self.moves.append(MoveStory(task=task, source=source, destination=owner, steps=[observed], candidates=self._candidates(step, task)))


def candidates(problem: AssignmentProblem, task: TaskId, *, by_load: bool = False) -> list[Candidate]:
    """Every member as the assignor saw it in `problem`, for `task`, in id order. `by_load`: its
    assignor uses loads.
    """
    found = []
    weight = weights(problem.tasks, problem.members, problem.settings) if by_load else {}
    tasks = {each.id: each for each in problem.tasks}
    known = tasks.get(task) if problem.settings.rack_aware_strategy != "none" else None
    for member in problem.members:
        lag = member.lags.get(task)
        owns_it = task in member.active
        obstacle = ""
        if member.leaving:
            obstacle = "is leaving"
        elif not member.knows(task):
            obstacle = "runs an older topology"
        elif member.crash_looping:
            obstacle = "keeps crashing"
        elif (task, member.id) in problem.blocked:
            obstacle = "backs off"
        found.append(
            Candidate(
                member_id=member.id,
                owns_it=owns_it,
                lag=lag,
                caught_up=owns_it
                or is_ready(lag, word=task in member.ready, readiness=member.readiness, acceptable=acceptable_lag(tasks, member, problem.settings)),
                active_tasks=len(member.active),
                capacity=member.capacity,
                obstacle=obstacle,
                restore_records_per_s=member.restore_records_per_s,
                rack=rack_of(member, problem.settings),
                traffic_cost=None if known is None else traffic_cost(known, member, problem.settings),
                load_share=sum(weight.get(each, 0) for each in member.active) // member.capacity if by_load else None,
                task_share=weight.get(task),
            )
        )
    return found


def uneven_lags(call: AssignorCall, task: TaskId) -> UnevenLags | None:
    """Lags when a plan moved `task` because they had been uneven; None: it did not."""
    problem, reason = call.problem, call.plan.reasons.get(task)
    since_ms = problem.memory.get(UNEVEN_SINCE)
    if reason is None or reason.code != "uneven" or not isinstance(since_ms, int):
        return None
    together = LagAwareOptions.of(problem.settings).cross_topic
    lags = {each.id: each.lag or 0 for each in problem.tasks if together or each.id.subtopology == task.subtopology}
    behind = {member.id: sum(lags.get(each, 0) for each in member.active) for member in problem.members}
    return UnevenLags(uneven_ms=problem.now_ms - since_ms, behind=behind, task_behind=lags[task])


def _is_ready(state: GroupState, task: TaskId, member_id: str) -> bool:
    return member_id in state.members and task in state.members[member_id].ready


def _position(state: GroupState, task: TaskId, member_id: str) -> int | None:
    """Records in the member's copy of the task; None: unknown, or the task has no state."""
    part = part_of(state, task)
    if part is None or not part.stateful:
        return None
    member = state.members.get(member_id)
    lag = None if member is None else member.lags.get(task)
    if lag is LagSentinel.UNKNOWN:
        return None
    end_offset = state.end_offset(task, part)
    return 0 if lag is None else max(0, end_offset - (_known(lag) or 0))


def _known(lag: Lag | None) -> int | None:
    return lag if isinstance(lag, int) else None
