"""Explains one task from the log alone, in sentences with numbers: why it is where it is, how it
moved, and what it waits for.

The machine that decides live folds the log up to the requested offset. There the real assignor is
called once more, so the answer to "what next" is its own. In a group that something else leads, the
explanation has what was observed and what equipoise would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from equipoise.assignors import LoadBalance, Movement, MovementState, Plan, registry
from equipoise.events.errors import InputError
from equipoise.events.records import BaseState, Entry
from equipoise.events.tasks import TaskId
from equipoise.replay.all_clear import AllClear, Grounds, HowComplete, grounds_of
from equipoise.replay.group_view import TaskRow, preparing_row, task_rows
from equipoise.replay.history import Candidate, History, MoveStory, candidates
from equipoise.replay.numbers import WITHOUT_OWNER, WITHOUT_RUNNER
from equipoise.replay.owners import Condition, Interval
from equipoise.replay.replayer import Replayer
from equipoise.replay.trouble import UNCONFIGURED, parked_text, wrong
from equipoise.replay.wording import cause_text, clock_text, counted, lag_form, lag_text, preparing_text, reason_text, share_text, span_text
from equipoise.statemachine.machine import AssignorLoader
from equipoise.statemachine.restart_view import as_it_is, with_all_present
from equipoise.statemachine.restarts import restore_cost
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupPhase, GroupState, MemberState, known_lag


@attrs.frozen(kw_only=True)
class SlotHolder:
    """A warm-up that holds a slot of the group. `expected_ms`: time until it is caught up, at the
    member's restore speed; None: not measured.
    """

    task: TaskId
    member_id: str
    lag_records: int | None
    best_lag_records: int | None
    caught_up: bool
    expected_ms: int | None

    def document(self) -> dict[str, Any]:
        return {**attrs.asdict(self, recurse=False), "task": str(self.task)}


@attrs.frozen(kw_only=True)
class Explanation:
    """The explanation of one task after the fact at `offset`."""

    group: str
    task: TaskId
    offset: int
    append_ms: int
    row: TaskRow
    sources: tuple[str, ...]
    """The partitions that the task reads, as ``orders/3``, if its topology names them."""
    why_here: tuple[str, ...]
    """Sentences: why the task is on its member."""
    candidates: tuple[Candidate, ...]
    """Members that could have got it when that was decided, with their lags; or that could get it
    now, if it is not decided yet.
    """
    candidates_ms: int | None
    """Wall time of that decision; None: now."""
    moves: tuple[MoveStory, ...]
    """Its movements, oldest first, including its first placement."""
    what_next: tuple[str, ...]
    """Sentences: what it waits for, or why it stays."""
    slots: tuple[SlotHolder, ...]
    """Warm-ups that hold a slot, if the task waits for one."""
    max_warmups: int
    stopped: tuple[Interval, ...]
    """Intervals in which no member ran it."""
    without: str
    """What that time is called (`equipoise.replay.numbers`)."""
    first_divergence: int | None
    grounds: Grounds
    """Who decides and reports, and how far the log was read."""

    def document(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "task": str(self.task),
            "offset": self.offset,
            "append_ms": self.append_ms,
            "state": self.row.document(),
            "sources": list(self.sources),
            "why_here": list(self.why_here),
            "candidates_at_ms": self.candidates_ms,
            "candidates": [_candidate_document(candidate) for candidate in self.candidates],
            "moves": [move_document(move, self.append_ms) for move in self.moves],
            "what_next": list(self.what_next),
            "warmup_slots": {"of": self.max_warmups, "held_by": [slot.document() for slot in self.slots]},
            "not_running": [
                {
                    "condition": interval.condition.value,
                    "member_id": interval.member_id,
                    "from_ms": interval.from_ms,
                    "to_ms": interval.to_ms,
                    "offset": interval.offset,
                }
                for interval in self.stopped
            ],
            "log_differs_at": self.first_divergence,
            "grounds": self.grounds.document(),
        }


def _candidate_document(candidate: Candidate) -> dict[str, Any]:
    document = attrs.asdict(candidate, recurse=False)
    return {
        **document,
        "lag": lag_form(candidate.lag),
        "obstacle": candidate.obstacle or None,
        "restore_records_per_s": candidate.restore_records_per_s or None,
    }


def move_document(move: MoveStory, now_ms: int) -> dict[str, Any]:
    """A movement for documents: its steps, and the wall time in each state up to `now_ms`."""
    return {
        "task": str(move.task),
        "source": move.source,
        "destination": move.destination,
        "outcome": move.outcome,
        "reason": move.reason,
        "text": reason_text(move.reason, source=move.source, destination=move.destination, lag_records=move.steps[0].lag_records),
        "began_ms": move.began_ms,
        "ended_ms": move.ended_ms,
        "waited_ms": move.spent_ms("waiting", now_ms),
        "warmed_ms": move.spent_ms("warming", now_ms),
        "revoking_ms": move.spent_ms("revoking", now_ms),
        "declared_ready_ms": move.declared_ready_ms,
        "restored_records": move.restored_records,
        "steps": [attrs.asdict(step) for step in move.steps],
    }


def explain(
    entries: Iterable[Entry],
    task: TaskId,
    *,
    group: str | None = None,
    at_offset: int | None = None,
    known: Grounds | None = None,
    load: AssignorLoader = registry.load,
) -> Explanation:
    """Explains `task` after the fact at `at_offset` (None: at the end of the log). `known`: who
    decides and reports, of a log that is written now; None: nobody was asked.

    Raises InputError when the topology at that offset does not have the task, and what
    `Replayer.follow` raises.
    """
    replayer = Replayer(group, load=load)
    history = History(only=task)
    for step in replayer.follow(entries, until_offset=at_offset):
        history.observe(step, replayer.machine.state)
    state = replayer.machine.state
    row = next(iter(task_rows(state, task)), None)
    if row is None:
        parts = () if state.topology is None else state.topology.subtopologies
        there = ", ".join(f"{part.subtopology}_0 to {part.subtopology}_{part.partitions - 1}" for part in parts) or "none yet"
        raise InputError(f"--task: the group has no task {task} at offset {state.last_offset}; it has {there}")
    history.finish(replayer.last_append_ms)
    own = grounds_of(state, undecided=replayer.undecided if at_offset is None else None)
    grounds = own if known is None else attrs.evolve(known, as_of=attrs.evolve(own.as_of, age_ms=known.as_of.age_ms), complete=own.complete)
    return _Explaining(replayer, history, row, grounds).explanation()


def explain_decided(
    read: Callable[[], Iterable[Entry]], task: TaskId, *, group: str | None = None, at_offset: int | None = None, known: Grounds | None = None
) -> Explanation:
    """`explain`, at the last fact that is decided on where `at_offset` is None. `read`: begins to
    read the log. `known`: what was found of a log that is written now: what came later may be
    written soon. Raises what `explain` raises.
    """
    found = explain(read(), task, group=group, at_offset=at_offset, known=known)
    undecided = found.grounds.complete.undecided
    if at_offset is not None or undecided is None:
        return found
    before = explain(read(), task, group=group, at_offset=undecided.offset - 1, known=known)
    is_late = known is None or known.complete.undecided is not None
    return attrs.evolve(before, grounds=attrs.evolve(before.grounds, complete=HowComplete(undecided=undecided if is_late else None, unread="")))


def explain_state(
    base: BaseState, task: TaskId, *, moves: Sequence[MoveStory], stopped: Sequence[Interval], unknown_before: str, grounds: Grounds
) -> Explanation:
    """Explains `task` in a state, without the log before it. `moves`, `stopped`: its movements, and
    the intervals in which no member ran it, as far as they are known. `unknown_before`: what
    follows ``TASK is on MEMBER`` where none of them brought it there.

    Raises InputError when the state does not have the task.
    """
    replayer = Replayer(base.group)
    for _ in replayer.follow([base]):
        pass
    row = next(iter(task_rows(replayer.machine.state, task)), None)
    if row is None:
        raise InputError(f"the group has no task {task}")
    history = History(only=task)
    history.moves = list(moves)
    history.intervals = list(stopped)
    history.under_way = {move.task: move for move in moves if move.outcome == "under way"}
    return _Explaining(replayer, history, row, grounds, unknown_before).explanation()


class _Explaining:
    """Explains one task at one offset."""

    def __init__(self, replayer: Replayer, history: History, row: TaskRow, grounds: Grounds, unknown_before: str | None = None) -> None:
        self.replayer = replayer
        self.grounds = grounds
        self.unknown_before = unknown_before
        self.state: GroupState = replayer.machine.state
        self.history = history
        self.row = row
        self.task = row.task
        self.now_ms = replayer.last_append_ms
        self.plan: Plan | None = None
        problem = build_problem(self.state)
        if replayer.assignor is not None and self.state.members and self.state.phase in (GroupPhase.LEADING, GroupPhase.SHADOWING):
            seen = with_all_present(self.state, problem)
            self.plan, _ = as_it_is(self.state, seen, replayer.assignor.assign(seen))
        by_load = self.plan is not None and self.plan.load is not None
        self.candidates_now = tuple(candidates(problem, row.task, by_load=by_load))
        self.slots: tuple[SlotHolder, ...] = ()

    def explanation(self) -> Explanation:
        why_here, move = self._why_here()
        what_next = self._what_next()
        shown = move.candidates if move is not None and move.candidates else self.candidates_now
        return Explanation(
            group=self.state.group,
            task=self.task,
            offset=self.state.last_offset,
            append_ms=self.now_ms,
            row=self.row,
            sources=self._sources(),
            why_here=tuple(why_here),
            candidates=shown,
            candidates_ms=move.began_ms if move is not None and move.candidates else None,
            moves=tuple(self.history.moves),
            what_next=tuple(what_next),
            slots=self.slots,
            max_warmups=self.state.settings.max_warmups,
            stopped=tuple(interval for interval in self.history.intervals if interval.condition is not Condition.RUNNING),
            without=WITHOUT_OWNER if self.state.phase is GroupPhase.SHADOWING else WITHOUT_RUNNER,
            first_divergence=self.replayer.first_divergence,
            grounds=self.grounds,
        )

    def _sources(self) -> tuple[str, ...]:
        parts = () if self.state.topology is None else self.state.topology.subtopologies
        return tuple(f"{topic}/{self.task.partition}" for part in parts if part.subtopology == self.task.subtopology for topic in part.source_topics)

    # Why is it here?

    def _why_here(self) -> tuple[list[str], MoveStory | None]:
        owner = self.row.owner
        if owner is None:
            return [f"Nobody has {self.task}: {self._why_nobody()}."], None
        moves = [move for move in self.history.moves if move.outcome == "granted" and move.destination == owner]
        if not moves:
            base = self.replayer.base
            if self.unknown_before is not None:
                return [f"{self.task} is on {owner}{self.unknown_before}."], None
            if base is None:
                return [f"{owner} came with {self.task}: it had it before this log led the group, and no decision has moved it since."], None
            return [f"{self.task} is on {owner}, since before the base at offset {base.offset}, where this log begins; the archive has why."], None
        move = moves[-1]
        last = move.steps[-1]
        if last.state == "observed":
            return [
                (
                    f"{owner} has {self.task} since {clock_text(last.append_ms)} (offset {last.offset}): its own leader gave it to it in "
                    f"generation {last.generation}, because {cause_text(last.cause)}."
                ),
                self._copy_then(move, owner),
            ], move
        sentences = [
            (
                f"{owner} has {self.task} since {clock_text(last.append_ms)}: decision {last.number}, generation {last.generation}, "
                f"caused by the fact at offset {last.offset} ({cause_text(last.cause)})."
            )
        ]
        first = move.steps[0]
        reason = reason_text(move.reason, source=move.source, destination=owner, lag_records=last.lag_records)
        said_already = move.source is None or move.source == owner or move.source in reason
        before = "" if said_already else f"; {move.source} had it until then"
        sentences.append(f"Why {owner}: {reason}{before}.")
        sentences += self._traffic_then(move)
        sentences += _load_then(move)
        sentences += _lags_then(move)
        if len(move.steps) > 1:
            sentences.append(
                f"It was decided at {clock_text(first.append_ms)} (offset {first.offset}) and took {span_text(last.append_ms - first.append_ms)}."
            )
        sentences.append(self._copy_then(move, owner))
        return sentences, move

    def _traffic_then(self, move: MoveStory) -> list[str]:
        """Traffic cost of the task at its source, its destination and the cheapest member, when
        decided.
        """
        at = {candidate.member_id: candidate for candidate in move.candidates if candidate.traffic_cost is not None}
        costs = sorted((each.traffic_cost, each.member_id) for each in at.values() if not each.obstacle and each.traffic_cost is not None)
        if move.destination not in at or not costs or costs[0][0] == costs[-1][0]:
            return []
        named = list(dict.fromkeys(name for name in (move.destination, move.source, costs[0][1]) if name in at))
        each = [f"{at[name].traffic_cost:,} on {name} (rack {at[name].rack})" for name in named if name is not None]
        settings = self.state.settings
        weighed = f"rack_traffic_cost = {settings.rack_traffic_cost:,}, rack_non_overlap_cost = {settings.rack_non_overlap_cost:,}"
        return [f"Its traffic then: {', '.join(each)}; the least there was is {costs[0][0]:,} ({weighed})."]

    def _copy_then(self, move: MoveStory, owner: str) -> str:
        step = move.steps[-1]
        if not self.row.stateful:
            return f"{self.task} has no state, so nothing had to be restored."
        acceptable, limit = self._limit(self.state.members.get(owner))
        if step.lag_records is None:
            return (
                f"{owner} reported no copy of it then." if step.state == "granted" else f"How far behind the copy of {owner} was is not in the log."
            )
        had_none = len(move.steps) == 1 and any(each.member_id == owner and each.lag is None for each in move.candidates)
        side = "within" if step.lag_records <= acceptable else "over"
        in_time = side == "over" and any(each.member_id == owner and each.caught_up for each in move.candidates)
        and_time = f", but to be restored within {self._acceptable_time()}" if in_time else ""
        when = "then" if len(move.steps) == 1 else f"when {owner} got it"
        if had_none:
            return f"It had no copy then, and {counted(step.lag_records, 'record')} to restore, {side} {limit}{and_time}."
        return f"Its copy was {counted(step.lag_records, 'record')} behind {when}, {side} {limit}{and_time}."

    def _limit(self, member: MemberState | None) -> tuple[int, str]:
        """Acceptable lag of the member's copies in records, apart from speeds, and the setting it
        comes from.
        """
        if member is not None and member.ready_lag_records is not None:
            return member.ready_lag_records, f"its own ready_lag_records = {member.ready_lag_records:,}"
        acceptable = self.state.settings.acceptable_recovery_lag
        return acceptable, f"acceptable_recovery_lag = {acceptable:,}"

    def _acceptable_time(self) -> str:
        return f"acceptable_recovery_ms = {self.state.settings.acceptable_recovery_ms:,}"

    def _why_nobody(self) -> str:
        state = self.state
        if state.phase is GroupPhase.UNCONFIGURED:
            return UNCONFIGURED
        if state.phase is GroupPhase.GATHERING and state.gathering_until_ms is not None:
            left_ms = max(0, state.gathering_until_ms - state.now_ms)
            if state.awaiting_lags:
                return f"the group is new and waits another {span_text(left_ms)}, at most, until it is known how far behind its sources are"
            wait = f"(initial_delay_ms = {state.settings.initial_delay_ms:,})"
            return f"the group is new and waits another {span_text(left_ms)} for more members {wait}"
        if not state.members:
            return "the group has no members"
        if state.is_watched:
            return f"its own leader gave it to nobody in generation {state.generation}"
        lost = state.lost.get(self.task)
        if lost is not None and lost.until_ms is not None:
            gone, left_ms = span_text(state.now_ms - lost.since_ms), max(0, lost.until_ms - state.now_ms)
            owner = state.previous_owners.get(self.task, "its member")
            return f"{owner} had it and is gone since {gone}; for another {span_text(left_ms)} it is kept for it"
        gathering = next((member.member_id for member in state.members.values() if self.task in member.eager_regrants), None)
        if gathering is not None:
            return f"{gathering} is eager: it is to have it with all the rest, once it has given up everything and all of that is free"
        if all(candidate.obstacle for candidate in self.candidates_now):
            obstacles = "; ".join(f"{candidate.member_id} {candidate.obstacle}" for candidate in self.candidates_now)
            return f"no member may take it ({obstacles})"
        return "the next round hands it out"

    # What is next?

    def _what_next(self) -> list[str]:
        sentences = [*self._owner_trouble()]
        movement = self._movement()
        if movement is None:
            sentences += self._why_it_stays()
        elif self.state.is_watched:
            sentences.append(self._would_move(movement))
        elif movement.state is MovementState.WAITING:
            sentences += self._waits_for_slot(movement)
        elif movement.state is MovementState.WARMING:
            sentences += self._warms(movement)
        else:
            sentences += self._is_handed_over(movement)
        for (task, member_id), backoff in sorted(self.state.backoffs.items()):
            if task == self.task and not backoff.over:
                left_ms = max(0, backoff.until_ms - self.state.now_ms)
                sentences.append(
                    f"No new copy of it is begun on {member_id} for another {span_text(left_ms)}: the warm-up there stalled "
                    f"{counted(backoff.times, 'time')} (warmup_stall_ms = {self.state.settings.warmup_stall_ms:,})."
                )
        if movement is not None and movement.state is MovementState.WAITING:
            sentences += self._gave_way(self.state.members[movement.destination])
        return [*sentences, *self._crash_loops()]

    def _crash_loops(self) -> Iterable[str]:
        """Members that should have the task or have a copy, but are not preferred because they keep
        crashing.
        """
        state = self.state
        for member_id, member in sorted(state.members.items()):
            crashes = state.crashes.get(member_id)
            concerns = self.task in member.lags or self.task in member.active or state.previous_owners.get(self.task) == member_id
            if crashes is not None and crashes.until_ms is not None and concerns:
                yield (
                    f"{member_id} crashed {counted(crashes.times, 'time')} in {span_text(state.now_ms - crashes.first_ms)}; its copies are not "
                    f"preferred for another {span_text(max(0, crashes.until_ms - state.now_ms))} (PROTOCOL D10)."
                )

    def _gave_way(self, member: MemberState) -> list[str]:
        backoff = member.slot_backoff
        if backoff is None or backoff.over or self.task in backoff.exempt:
            return []
        left_ms = max(0, backoff.until_ms - self.state.now_ms)
        return [
            (
                f"{member.member_id} restores slowly and gave a slot to a copy that will be ready far sooner. No warm-up begins on it for another "
                f"{span_text(left_ms)}, or until nothing else waits for a slot."
            )
        ]

    def _movement(self) -> Movement | None:
        """The movement in flight, else the one that the assignor would begin now."""
        if self.task in self.state.in_flight:
            return self.state.in_flight[self.task]
        if self.plan is None:
            return None
        return next((movement for movement in self.plan.movements if movement.task == self.task), None)

    def _owner_trouble(self) -> list[str]:
        state = self.state
        owner = None if self.row.owner is None else state.members.get(self.row.owner)
        if owner is None:
            return []
        sentences = []
        if self.row.parked is not None:
            kept = f"{owner.member_id} keeps it and handles nothing more in it: mend the handler, and restart the member"
            sentences.append(f"It failed{parked_text(state, self.task)}. {kept}.")
        sentences += [f"{owner.member_id}: {each}." for each in owner.troubles]
        sentences += self._restart(owner)
        if state.phase is not GroupPhase.SHADOWING and not state.is_away(owner.member_id):
            silent_ms = state.now_ms - owner.last_heard_ms
            if silent_ms * 2 > owner.session_timeout_ms:
                left_ms = owner.session_timeout_ms - silent_ms
                heard = f"{owner.member_id} was last heard of {span_text(silent_ms)} ago"
                sentences.append(f"{heard}; it is out in {span_text(left_ms)} if it stays silent.")
        hold_ms = state.holds.get(self.task)
        if hold_ms:
            sentences.append(
                f"It was taken by force, so {owner.member_id} waits {span_text(hold_ms)} from reading its grant before it starts: "
                "the process that had it may still run (PROTOCOL M5)."
            )
        lag = known_lag(owner.lags.get(self.task))
        if self.row.stateful and lag and self.task in owner.active and lag > state.acceptable_lag(owner):
            expected = _expected(owner, lag)
            sentences.append(f"{owner.member_id} still restores it: {counted(lag, 'record')} to go{expected}.")
        row = preparing_row(state, owner, self.task)
        if row is not None and self.task in owner.active:
            does = preparing_text(row.thousandths, row.since_ms, has_failed=row.has_failed)
            sentences.append(f"It was granted before anybody had prepared it; the application of {owner.member_id} does that first: {does}.")
        if owner.leaving and owner.drain_deadline_ms is not None:
            left_ms = max(0, owner.drain_deadline_ms - state.now_ms)
            sentences.append(f"{owner.member_id} is leaving: its tasks go elsewhere by {span_text(left_ms)} from now, caught-up destination or not.")
        return sentences

    def _restart(self, owner: MemberState) -> list[str]:
        """Returns who restarts that owns the task or has lent it, and by which numbers the leader
        chose.
        """
        state, lent = self.state, self.state.lent.get(self.task)
        sentences = []
        if lent is not None and lent.borrower == owner.member_id:
            away = "restarts" if state.is_restarting(lent.home) else "is back and gets it again"
            sentences.append(f"{lent.home} has lent it to {lent.borrower}, which was caught up; {lent.home} {away} (docs/protocol.md#m12).")
        restart = state.restarts.get(owner.member_id)
        if restart is None:
            return sentences
        if restart.within_ms is None or not restart.begun:
            return [*sentences, f"{owner.member_id} wants to restart, and waits until the restarts before it are over (docs/protocol.md#m12)."]
        within = f"{span_text(restart.within_ms)}, {'as it stated' if restart.stated else 'by what restarts took before'}"
        cost = restore_cost(state, owner, owner.active)
        takes = "an unknown time" if cost.ms is None else span_text(cost.ms)
        other = f"{counted(cost.records, 'record')} would have to be restored elsewhere, {takes}"
        if restart.left_ms is None:
            return [*sentences, f"{owner.member_id} stops, and will be back within {within}. Its tasks without a caught-up copy wait: {other}."]
        left_ms = max(0, (restart.until_ms or 0) - state.now_ms)
        gone = f"{owner.member_id} restarts: it left {span_text(state.now_ms - restart.left_ms)} ago, and is expected within {within}"
        return [*sentences, f"{gone}. The task waits for it another {span_text(left_ms)} at most: {other}."]

    def _why_it_stays(self) -> list[str]:
        owner, plan = self.row.owner, self.plan
        if plan is None or owner is None:
            return [] if owner is None else ["Nothing is planned for it: the group does not decide at the moment."]
        if self.task not in plan.target.get(owner, ()):
            elsewhere = next((name for name, tasks in plan.target.items() if self.task in tasks), None)
            return [f"The target has it on {elsewhere or 'nobody'}."]
        member = self.state.members[owner]
        capacity = sum(each.capacity for each in self.state.members.values() if not each.leaving)
        share = f"{len(member.active)} of {counted(len(self.state.tasks()), 'task')} with {member.capacity} of {counted(capacity, 'thread')}"
        balance = (
            self._balanced()
            if plan.imbalance_now == 0
            else f"the group is {counted(plan.imbalance_now, 'task')} off balance, and {counted(plan.cost.imbalance, 'task')} when all is done"
        )
        if plan.load is not None:
            share, balance = (
                f"{counted(len(member.active), 'task')}, and the load is its measure{self._load_now(owner)}",
                f"the group is {self._load_balance(plan.load)}",
            )
        would = "equipoise would leave it there" if self.state.is_watched else "It stays where it is: the target has it there"
        return [f"{would}. {owner} has {share}; {balance}."]

    def _balanced(self) -> str:
        """Says that shares are even, unless something is wrong that the shares do not show."""
        trouble = next(iter(wrong(self.state)), None)
        return self.grounds.says(AllClear.BALANCED) if trouble is None else f"the shares are even, but {trouble}"

    def _load_now(self, owner: str) -> str:
        at = next((each for each in self.candidates_now if each.member_id == owner), None)
        if at is None or at.load_share is None or at.task_share is None:
            return ""
        return f": {share_text(at.task_share)} of a fair share is {self.task}, {share_text(at.load_share)} per thread all that {owner} has"

    def _load_balance(self, load: LoadBalance) -> str:
        spread = f"between {share_text(load.lowest_now)} and {share_text(load.highest_now)}"
        return f"{spread} of a fair share; once at rest, members differ by at most {share_text(load.bound)}"

    def _would_move(self, movement: Movement) -> str:
        assert self.plan is not None
        reason = self.plan.reasons.get(self.task)
        why = (
            ""
            if reason is None
            else f": {reason_text(reason.code, source=movement.source, destination=movement.destination, lag_records=reason.lag_records)}"
        )
        if movement.state is MovementState.REVOKING or movement.source is None:
            return f"equipoise would give it to {movement.destination} now{why}."
        copied = movement.state is MovementState.WARMING or (reason is not None and reason.code == "next_probing")
        how = "warm it up there first" if copied else "wait for a warm-up slot first"
        return f"equipoise would move it to {movement.destination}, and {how}{why}."

    def _waits_for_slot(self, movement: Movement) -> list[str]:
        assert self.plan is not None
        state = self.state
        self.slots = tuple(self._slots())
        waiting = [each.task for each in self.plan.movements if each.state is MovementState.WAITING]
        place = waiting.index(self.task) + 1
        story = self.history.waiting.get(self.task)
        since = "" if story is None else f" since {clock_text(story.began_ms)} (offset {story.steps[0].offset})"
        reason = self.plan.reasons.get(self.task)
        sentences = [
            (
                f"It is to move to {movement.destination}, and waits{since} for a warm-up slot: "
                f"{len(self.slots)} of max_warmups = {state.settings.max_warmups} are taken."
            )
        ]
        if reason is not None and reason.code == "next_probing":
            text = reason_text(reason.code, destination=movement.destination, lag_records=reason.lag_records)
            due_ms = state.probing_deadline_ms
            sentences = [f"It is to move to {movement.destination}: {text}{'' if due_ms is None else f', in {span_text(due_ms - state.now_ms)}'}."]
        elif reason is not None and reason.code == "blocked":
            sentences = [f"It is to move to {movement.destination}, but {reason_text('blocked', destination=movement.destination)}."]
        elif reason is not None and reason.code in ("back_off", "lost_work_waits"):
            due_ms = state.scheduled_ms
            when = "" if due_ms is None else f"; the leader looks again in {span_text(max(0, due_ms - state.now_ms))}"
            sentences = [f"It is to move to {movement.destination}, but {reason_text(reason.code)}{when}."]
        elif self.slots:
            soonest = min(self.slots, key=lambda slot: (slot.expected_ms is None, slot.expected_ms or 0, slot.lag_records or 0, slot.task))
            when = "" if soonest.expected_ms is None else f", about {span_text(soonest.expected_ms)} away"
            lag = "lag not reported yet" if soonest.lag_records is None else f"{counted(soonest.lag_records, 'record')} to go"
            sentences.append(f"The first to be done is {soonest.task} on {soonest.member_id}: {lag}{when}.")
        if len(waiting) > 1:
            sentences.append(f"It is number {place} of {len(waiting)} that wait.")
        return sentences

    def _slots(self) -> Iterable[SlotHolder]:
        for member_id in sorted(self.state.members):
            member = self.state.members[member_id]
            for task, warmup in sorted(member.warmup.items()):
                lag = known_lag(member.lags.get(task))
                yield SlotHolder(
                    task=task,
                    member_id=member_id,
                    lag_records=lag,
                    best_lag_records=warmup.best_lag,
                    caught_up=warmup.caught_up,
                    expected_ms=None if lag is None else expected_ms(member, lag - self.state.acceptable_lag(member)),
                )

    def _warms(self, movement: Movement) -> list[str]:
        state = self.state
        story = self.history.under_way.get(self.task)
        member = state.members[movement.destination]
        since = "" if story is None else f" since {clock_text(story.steps[-1].append_ms)} (offset {story.steps[-1].offset})"
        sentences = [f"{movement.destination} restores a copy{since}, to take it over from {movement.source or 'nobody'}."]
        lag = known_lag(member.lags.get(self.task))
        acceptable, limit = self._limit(member)
        if lag is None:
            sentences.append(f"{movement.destination} has not reported its lag yet; {counted(self.row.end_offset, 'record')} are in the changelog.")
        elif member.awaits_word(self.task, state.acceptable_lag(member)):
            sentences += self._is_prepared(member, lag)
        elif lag <= acceptable:
            sentences.append(f"It is {counted(lag, 'record')} behind, within {limit}: the next round hands it over.")
        elif lag <= state.acceptable_lag(member):
            sentences.append(
                f"It is {counted(lag, 'record')} behind, to be restored within {self._acceptable_time()} "
                f"at {member.restore_records_per_s:,} records/s: the next round hands it over."
            )
        else:
            expected = _expected(member, lag - acceptable)
            in_time = state.settings.acceptable_recovery_ms and member.ready_lag_records is None
            or_time = f" or within {self._acceptable_time()}" if in_time else ""
            own = "" if member.ready_lag_records is None else f" ({limit})"
            sentences.append(f"It is {counted(lag, 'record')} behind and counts as caught up at {acceptable:,}{own}{or_time}{expected}.")
        warmup = member.warmup.get(self.task)
        if warmup is not None and not warmup.caught_up and member.awaits_word(self.task, state.acceptable_lag(member)):
            left_ms = max(0, warmup.improved_ms + state.settings.warmup_stall_ms - state.now_ms)
            sentences.append(f"If that comes no further for another {span_text(left_ms)}, the slot goes to another task.")
        elif warmup is not None and not warmup.caught_up:
            left_ms = max(0, warmup.improved_ms + state.settings.warmup_stall_ms - state.now_ms)
            best = "nothing yet" if warmup.best_lag is None else f"{warmup.best_lag:,}"
            sentences.append(f"Its best lag so far: {best}. If that does not fall for another {span_text(left_ms)}, the slot goes to another task.")
            if state.queued:
                look_ms = max(0, warmup.looked_ms + state.settings.warmup_stall_ms - state.now_ms)
                sentences.append(
                    f"{counted(len(state.queued), 'copy waits', 'copies wait')} for a slot. In {span_text(look_ms)} its speed is measured: one that "
                    "could be ready in half of its time gets the slot."
                )
        return sentences

    def _is_prepared(self, member: MemberState, lag: int) -> list[str]:
        """The copy's lag is acceptable; it waits for the member's application."""
        row = preparing_row(self.state, member, self.task)
        does = "has not begun to prepare it" if row is None else f"is {preparing_text(row.thousandths, row.since_ms, has_failed=row.has_failed)}"
        return [f"It is {counted(lag, 'record')} behind, which is near enough; the application of {member.member_id} {does}."]

    def _is_handed_over(self, movement: Movement) -> list[str]:
        state = self.state
        source = None if movement.source is None else state.members.get(movement.source)
        if movement.source == movement.destination:
            learners = " and ".join(state.learners(self.task)) or "nobody"
            return [f"{movement.source} gives it up and takes it again, because {learners} learns it and a rebalance began (learner, option strict)."]
        if source is None or self.task not in source.revoking:
            return [f"It may move to {movement.destination} at once: the next round begins that{self._next_round()}."]
        epoch, since_ms = source.revoking[self.task]
        expelled_ms = max(0, since_ms + state.settings.revocation_timeout_ms - state.now_ms)
        told_ms = state.now_ms - since_ms
        applied = f"it has applied epoch {source.applied_epoch} so far" if source.applied_epoch < epoch else "it has read that, and still holds it"
        lag = lag_text(state.members[movement.destination].lags.get(self.task))
        limit = f"revocation_timeout_ms = {state.settings.revocation_timeout_ms:,}"
        return [
            f"{movement.destination} is caught up (lag: {lag}) and gets it the moment {source.member_id} has let go.",
            f"{source.member_id} was told {span_text(told_ms)} ago, in its epoch {epoch}; {applied}.",
            f"If it does not let go within {span_text(expelled_ms)}, it is expelled ({limit}).",
        ]

    def _next_round(self) -> str:
        deadline_ms = self.state.probing_deadline_ms
        return "" if deadline_ms is None else f", in {span_text(max(0, deadline_ms - self.state.now_ms))} at the latest"


def _load_then(move: MoveStory) -> list[str]:
    """Loads of the task and of both ends of its movement, when decided; empty if loads do not
    decide.
    """
    at = {each.member_id: each for each in move.candidates}
    ends = [at[name] for name in dict.fromkeys((move.source, move.destination)) if name in at]
    told = [f"{share_text(each.load_share)} on {each.member_id}" for each in ends if each.load_share is not None]
    task = next((each.task_share for each in ends), None)
    if not told or task is None:
        return []
    return [f"The load then, per thread and of a fair share: {', '.join(told)}; {share_text(task)} of that is {move.task}."]


def _lags_then(move: MoveStory) -> list[str]:
    """Returns how long lags had been uneven, and those of both ends of the movement; empty if they
    did not cause it.
    """
    uneven = move.uneven
    if uneven is None:
        return []
    behind = {name: uneven.behind.get(name, 0) for name in (move.source, move.destination) if name is not None}
    numbers = ", ".join(f"{records:,} for {name}" for name, records in [*behind.items(), (move.task, uneven.task_behind)])
    return [f"Lags had been uneven for {span_text(uneven.uneven_ms)}; records behind then: {numbers}."]


def expected_ms(member: MemberState, records: int) -> int | None:
    """Time to restore `records` at the member's speed; None: unknown."""
    speed = member.restore_records_per_s
    return None if not speed else max(0, records * 1_000 // speed)


def _expected(member: MemberState, records: int) -> str:
    """``, expected in 12.0 s at its 20,000 records/s``, or ""."""
    needed_ms = expected_ms(member, records)
    if needed_ms is None:
        return ""
    return f", expected in {span_text(needed_ms)} at its {member.restore_records_per_s:,} records/s"
