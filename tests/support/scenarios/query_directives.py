"""Directives that append nothing: queries, display settings, restarts and expected halts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common.ranking import rank as rank_of
from equipoise.events.decisions import Checkpointed
from equipoise.events.errors import InputError, LogError
from equipoise.events.records import DecisionRecord, Entry
from equipoise.events.tasks import TaskId, parse_task
from equipoise.log import open_log
from equipoise.replay.verification import verify
from equipoise.replay.wording import counted, share_text
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import MemberState
from tests.support.scenarios.argument_values import NAMES, WHOLE, YES_NO, one_of, tasks_text
from tests.support.scenarios.builds import DEFECTS
from tests.support.scenarios.directives import directive
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.render import by_task_text, lag_text, member_text
from tests.support.scenarios.scenario_context import Context


@directive(
    "show",
    "",
    "Selects additional output for the lines below; lasts until changed.",
    balance=Argument(YES_NO, "BalanceEvaluated"),
    reasons=Argument(YES_NO, "cause of each round; each movement with its reason"),
    epochs=Argument(YES_NO, "in member lines: assignment epoch, issued/applied"),
    tokens=Argument(YES_NO, "in member lines: fencing tokens"),
    checkpoints=Argument(YES_NO, "Checkpointed"),
    time=Argument(YES_NO, "group time after each fact"),
)
def show(context: Context, parsed: ParsedDirective) -> None:
    for name in parsed.directive.arguments:
        setattr(context.shown, name, parsed.get(name, False))


@directive("state", "", "The state as tables: group, members, movements in flight, holds, parked tasks, previous owners, lost tasks, crashes.")
def state_table(context: Context, parsed: ParsedDirective) -> None:
    state = context.state
    deadline_ms = context.group_harness.machine.next_deadline_ms
    columns = ("member", "phase", "epoch", "heard_ms", "active", "standby", "warmup", "revoke", "lags", "mark")
    context.say(
        f"#{state.seq} {state.phase.name} now_ms={state.now_ms} generation={state.generation} next_deadline_ms={deadline_ms}",
        *_table(columns, [_row(context, member) for member in _members(context)]),
    )
    for task, movement in sorted(state.in_flight.items()):
        context.say(f"in flight: {task} {movement.source} -> {movement.destination} {movement.state.value}")
    if state.waiting:
        context.say(f"waiting for a slot: {state.waiting}")
    if state.parked:
        context.say(f"parked: {by_task_text({task: f'{each.member_id} since {each.since_ms}' for task, each in state.parked.items()})}")
    if state.holds:
        context.say(f"hold_ms: {by_task_text({task: str(ms) for task, ms in state.holds.items()})}")
    if state.previous_owners:
        context.say(f"previous owners: {by_task_text(dict(state.previous_owners))}")
    if state.lost:
        context.say(f"lost: {by_task_text({task: f'{lost.since_ms}..{lost.until_ms}' for task, lost in state.lost.items()})}")
    if state.revocations.since_ms is not None:
        context.say(f"revocations: times={state.revocations.times} since_ms={state.revocations.since_ms} until_ms={state.revocations.until_ms}")
    if state.memory:
        context.say(f"memory: {' '.join(f'{key}={_remembered(value)}' for key, value in state.memory.items())}")
    for (task, member_id), backoff in sorted(state.backoffs.items()):
        context.say(f"back-off: {task} on {member_id} until_ms={backoff.until_ms} times={backoff.times} {'over' if backoff.over else 'running'}")
    for member_id, crashes in sorted(state.crashes.items()):
        if crashes.times > 1:
            context.say(f"crashes: {member_id} times={crashes.times} changed_ms={crashes.changed_ms} until_ms={crashes.until_ms}")
    for member_id, member in sorted(state.members.items()):
        if member.slot_backoff is not None:
            until_ms, times, over = member.slot_backoff.until_ms, member.slot_backoff.times, member.slot_backoff.over
            context.say(f"slot back-off: {member_id} until_ms={until_ms} times={times} {'over' if over else 'running'}")


@directive("marks", "", "Each task that has learners: its owner, its learners, and which of them are ready.")
def marks(context: Context, parsed: ParsedDirective) -> None:
    state = context.state
    for task in state.tasks():
        learners = [f"{name} isLearner{' isReady' if task in state.members[name].ready else ''}" for name in state.learners(task)]
        if learners:
            context.say(f"{task} {state.owner.get(task, 'nobody')} isLearned, {', '.join(learners)}")
    if not any(map(state.learners, state.tasks())):
        context.say("nothing is being learned")


def _remembered(value: int | tuple[str, ...] | tuple[TaskId, ...]) -> str:
    return str(value) if isinstance(value, int) else f"({','.join(map(str, value))})"


def _members(context: Context) -> list[MemberState]:
    return [context.state.members[name] for name in sorted(context.state.members)]


def _row(context: Context, member: MemberState) -> tuple[str, ...]:
    conditions = (
        ("leaving", member.leaving),
        ("asked", context.state.is_asked(member.member_id)),
        ("drained", member.drain_expired),
        ("released", member.released),
    )
    marks = [word for word, holds in conditions if holds]
    return (
        member_text(member.member_id, member.incarnation),
        context.state.member_phase(member).value,
        f"{member.issued_epoch}/{member.applied_epoch}",
        str(member.last_heard_ms),
        tasks_text(member.active),
        tasks_text(member.standby),
        tasks_text(member.warmup),
        tasks_text(member.revoking),
        by_task_text({task: lag_text(lag) for task, lag in member.lags.items()}),
        " ".join(marks),
    )


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns two spaces apart; empty columns are left out; without rows there are no lines."""
    if not rows:
        return []
    kept = [at for at in range(len(columns)) if any(row[at] not in ("", "()") for row in rows)]
    lines = [tuple(line[at] for at in kept) for line in (columns, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(kept))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


@directive("rank", "[TASK...]", "Shows KIP-441's ranking: for each stateful task (default: all), the members by rank; 0 = caught up.")
def rank(context: Context, parsed: ParsedDirective) -> None:
    problem = build_problem(context.state)
    ranks = rank_of(problem.tasks, problem.members, problem.settings)
    try:
        wanted = [parse_task(word) for word in parsed.directive.words] or sorted(ranks)
    except InputError as error:
        raise parsed.error(str(error)) from None
    for task in wanted:
        if task not in ranks:
            raise parsed.error(f"{task} is no stateful task")
        context.say(" ".join([str(task), *(f"{of}:({','.join(members)})" for of, members in ranks[task].items())]))


@directive(
    "plan",
    "",
    "Shows the assignor's answer for the current state: target, movements with reasons, cost. Applies nothing.",
    target=Argument(YES_NO, "no: without the target"),
)
def plan(context: Context, parsed: ParsedDirective) -> None:
    config = context.config(parsed)
    answer = registry.load(config.assignor, config.behaviour_version).assign(build_problem(context.state))
    if parsed.get("target", True):
        context.say(*(f"{member_id} target={tasks_text(tasks)}" for member_id, tasks in answer.target.items()))
    for movement in answer.movements:
        reason = answer.reasons[movement.task]
        lag = "" if reason.lag_records is None else f" lag={reason.lag_records}"
        context.say(f"   {movement.task} {movement.source or 'nobody'} -> {movement.destination} {movement.state.value} {reason.code}{lag}")
    for task, until_ms in answer.lost_until_ms.items():
        context.say(f"   {task} nobody until_ms={until_ms} {answer.reasons[task].code}")
    cost = answer.cost
    context.say(
        f"cost moves={cost.moves} moves_lower_bound={cost.moves_lower_bound} restore_records={cost.restore_records} "
        f"imbalance={answer.imbalance_now}->{cost.imbalance} optimal={'yes' if cost.optimal else 'no'} unique={'yes' if answer.unique else 'no'}"
    )
    load = answer.load
    if load is not None:
        now, then = (f"{share_text(low)}..{share_text(high)}" for low, high in ((load.lowest_now, load.highest_now), (load.lowest, load.highest)))
        context.say(f"load={now} -> {then} of a fair share, at rest at most {share_text(load.bound)} apart")


@directive("members", "[MEMBER...]", "Shows the current member lines (default: all members).")
def members(context: Context, parsed: ParsedDirective) -> None:
    context.say(*(context.member_lines(parsed.members() or context.state.members) or ["nobody"]))


@directive("mark", "", "Remembers the owner of each task, for `moved`.")
def mark(context: Context, parsed: ParsedDirective) -> None:
    context.marked = dict(context.state.owner)


@directive("moved", "", "Shows the tasks whose owner changed since the last `mark`.", tasks=Argument(YES_NO, "no: only their number"))
def moved(context: Context, parsed: ParsedDirective) -> None:
    owner = context.state.owner
    changed = sorted(task for task in context.marked.keys() | owner.keys() if context.marked.get(task) != owner.get(task))
    context.say(f"{len(changed)} tasks changed owner")
    if parsed.get("tasks", True):
        context.say(*(f"   {task} {context.marked.get(task, 'nobody')} -> {owner.get(task, 'nobody')}" for task in changed))


@directive("reset", "", "Starts over with an empty log, to run the same sequence under another rule.")
def reset(context: Context, parsed: ParsedDirective) -> None:
    context.close()
    context.reset()


@directive(
    "replace-log",
    "",
    "Deletes and re-creates the log's topics: an empty log with another id, "
    "in which the group must be configured and its tasks declared again. Sessions continue.",
)
def replace_log(context: Context, parsed: ParsedDirective) -> None:
    context.replace_log()


@directive("restart", "", "Another process takes over from the group's last good snapshot and folds the facts after it.")
def restart(context: Context, parsed: ParsedDirective) -> None:
    shown = len(context.group_harness.disagreements)
    same, again = context.group_harness.restart()
    context.say(f"restored at #{context.state.seq - len(again)}, {'the same bytes' if same else 'OTHER BYTES'}")
    for fact, decisions in again:
        context.show_step(fact, decisions, shown, quiet=False)


@directive("expect-halt", "CODE", "Expects the group to be halted with this code. A halt without this directive in the same case is an error.")
def expect_halt(context: Context, parsed: ParsedDirective) -> None:
    halted = context.halted
    code = parsed.directive.words[0]
    if halted is None or halted.code != code:
        raise parsed.error(f"expected the group to be halted with {code}; it is {'not halted' if halted is None else f'halted with {halted.code}'}")
    context.expected_halt = True


@directive(
    "build",
    "",
    "Changes the build that leads the group from here on.",
    lacks=Argument(NAMES, "assignors that the build lacks"),
    defect=Argument(
        one_of(*DEFECTS),
        "defect of the build's assignor: owner_twice = its plans give one task to every member; gives_up = it raises; "
        "other_ties = it breaks ties differently",
    ),
)
def build(context: Context, parsed: ParsedDirective) -> None:
    context.group_harness.build.lacks = frozenset(parsed.get("lacks", tuple(context.group_harness.build.lacks)))
    context.group_harness.build.defect = parsed.get("defect", context.group_harness.build.defect)


@directive(
    "reread",
    "",
    "Writes the log so far as JSON Lines, with the given fault, and reads it with the reader that all commands use.",
    drop=Argument(WHOLE, "omits the fact at this offset (LogOpened has offset 0, so the fact shown as #n has n + 1)"),
    twice=Argument(WHOLE, "writes the fact at this offset twice"),
    flip=Argument(WHOLE, "flips one bit of the fact at this offset"),
)
def reread(context: Context, parsed: ParsedDirective) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "group.jsonl"
        with open_log(path, "w") as log:
            for record in context.group_harness.records:
                log.append_fact(record.group, record.append_ms, record.event)
        lines = path.read_bytes().splitlines(keepends=True)
        lines[parsed.get("drop", len(lines)) :] = lines[parsed.get("drop", len(lines)) + 1 :]
        if parsed.has("twice"):
            lines.insert(parsed.get("twice", 0), lines[parsed.get("twice", 0)])
        if parsed.has("flip"):
            at = parsed.get("flip", 0)
            middle = len(lines[at]) // 2
            lines[at] = lines[at][:middle] + bytes([lines[at][middle] ^ 1]) + lines[at][middle + 1 :]
        path.write_bytes(b"".join(lines))
        try:
            with open_log(path) as log:
                count = sum(1 for _ in log.read())
        except (LogError, InputError) as error:
            context.say(f"!! {str(error).replace(str(path), path.name)}")
        else:
            context.say(f"{count} facts, no gap, each as it was written")


@directive(
    "verify",
    "",
    "Verifies the log so far, as `equipoise verify` does.",
    form=Argument(WHOLE, "form of the state that the stored hashes claim; 0 = none named"),
    hashes=Argument(one_of("kept", "others"), "others: the stored hashes are wrong"),
)
def verify_log(context: Context, parsed: ParsedDirective) -> None:
    def stored(record: DecisionRecord) -> DecisionRecord:
        decision = record.decision
        if not isinstance(decision, Checkpointed):
            return record
        sha256 = "0" * 64 if parsed.get("hashes", "kept") == "others" else decision.state_sha256
        return attrs.evolve(record, decision=attrs.evolve(decision, state_sha256=sha256, form=parsed.get("form", decision.form)))

    caused: dict[int, list[DecisionRecord]] = {}
    for decision in context.group_harness.decisions:
        caused.setdefault(decision.caused_by, []).append(stored(decision))
    entries: list[Entry] = []
    for record in context.group_harness.records:
        entries += [attrs.evolve(record, refused=False), *caused.get(record.offset, [])]
    for group in verify(entries, load=context.group_harness.build.load).groups:
        found = f"{counted(group.compared, 'decision')} the same, {counted(group.checkpoints, 'state hash', 'state hashes')} of them"
        context.say(f"{group.verdict.value}: {found}; {group.not_compared} not compared")
        if group.divergence is not None:
            context.say(f"  {group.divergence.problem}")
