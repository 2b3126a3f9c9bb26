"""`equipoise configure --deal`: reassigns the partitions of a running `lag_aware` group by their
present lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.facts import DealRequested
from equipoise.events.tasks import TaskId
from equipoise.hosting.live_settings import LiveSettings
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.operations.group_settings import Preview
    from equipoise.operations.live_group import AnsweredFact
    from equipoise.statemachine.state import GroupState

EXIT_NOT_DEALT = 1


@attrs.frozen
class Behind:
    """Records that a member's tasks still have to read: now, and when all moves are done."""

    member: str
    now: int
    after: int


async def deal(screen: Screen, settings: LiveSettings, group: str, *, dry_run: bool, timeout_s: float) -> int:
    """Shows what moves, appends one request to the log and waits for a worker's answer, `timeout_s`
    s at most. Returns the exit code.
    """
    from equipoise.operations.group_settings import preview
    from equipoise.operations.live_group import AnsweredFact

    async with AnsweredFact(settings, group) as live:
        machine = await live.machine()
        found = preview(machine, DealRequested())
        shown = _shown(machine.state, found)
        if dry_run or found.rejection is not None or not found.moves:
            outcome = "rejected" if found.rejection is not None else "dry run" if dry_run else "unchanged"
            parts = _parts(group, found, shown, "would move" if dry_run else "move")
            screen.answer(_document(group, outcome, found, shown, found.rejection), *parts)
            return 0 if found.rejection is None else EXIT_NOT_DEALT
        if not screen.json:
            screen.answer(None, *_parts(group, found, shown, "move"))
        planned = await _written_down(screen, settings, live, found)
        await live.say(DealRequested())
        if not await live.is_answered_within(timeout_s):
            late = f"{group}: no worker answered within {timeout_s:g} s; the request is in the log, and the next worker applies it"
            screen.answer(_document(group, "no answer", found, shown, None), late)
            return EXIT_NOT_DEALT
        rejection = live.rejection()
        if live.is_without_effect:
            found = attrs.evolve(found, moves=())
            shown = _shown((await live.machine()).state, found)
    outcome, said = "dealt", "reassigned"
    if rejection is not None:
        outcome, said = "rejected", f"rejected, so nothing moves: {rejection}"
    elif live.is_without_effect:
        outcome, said = "unchanged", "nothing moves: the lags have changed since the moves were computed"
    judged = [] if planned is None else [f"{planned} is judged when the group is at rest: `equipoise timeline --changes` shows it"]
    screen.answer(_document(group, outcome, found, shown, rejection, planned), f"{group}: {said}", *judged)
    return 0 if rejection is None else EXIT_NOT_DEALT


async def _written_down(screen: Screen, settings: LiveSettings, live: AnsweredFact, found: Preview) -> str | None:
    """Has the leader judge the deal. Returns the change's id; None, with a remark: it does not."""
    from equipoise.cli.judged import unasked_problem

    state = await live.state()
    problem = await unasked_problem(settings, state)
    if problem:
        screen.remark(f"not judged: {problem}")
        return None
    what = f"the partitions are dealt again by lag: {counted(len(found.moves), 'move')}"
    planned = ChangeWish().planned("deal", what, state.last_offset, None, state.config_number)
    await live.append(planned)
    return planned.change_id


def _shown(state: GroupState, found: Preview) -> list[Behind]:
    """By member, in rising order."""
    after = {**state.owner, **{move.task: move.destination for move in found.moves if move.destination is not None}}
    lags = {task: state.source_lag(task, part) or 0 for task, part in state.tasks().items()}

    def behind(owner: dict[TaskId, str], member: str) -> int:
        return sum(lags.get(task, 0) for task, name in owner.items() if name == member)

    return [Behind(member, behind(state.owner, member), behind(after, member)) for member in sorted(state.members)]


def _parts(group: str, found: Preview, shown: list[Behind], verb: str) -> list[Part]:
    if found.rejection is not None:
        return [f"{group}: rejected, so nothing moves: {found.rejection}"]
    rows = [(str(move.task), move.source, move.destination, move.lag_records) for move in found.moves]
    title = f"{counted(len(rows), 'task')} {verb if len(rows) != 1 or verb.startswith('would') else 'moves'}"
    table: list[Part] = [Table(columns=("task", "from", "to", "records behind"), rows=rows, title=title)] if rows else []
    columns = ("member", "records behind", "after the moves")
    head = Line(bold(group)) if rows else Line(bold(group), "  the assignment by present lag is the same: nothing moves")
    return [head, *table, Table(columns=columns, rows=[(each.member, each.now, each.after) for each in shown])]


def _document(group: str, outcome: str, found: Preview, shown: list[Behind], rejection: str | None, change_id: str | None = None) -> dict[str, Any]:
    moves = [
        {"task": str(move.task), "source": move.source, "destination": move.destination, "lag_records": move.lag_records} for move in found.moves
    ]
    return {
        "group": group,
        "outcome": outcome,
        "rejection": rejection,
        "moves": moves,
        "members": [attrs.asdict(each) for each in shown],
        "change_id": change_id,
    }
