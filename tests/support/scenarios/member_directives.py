"""Directives for truthful members: acknowledgements, restores, and time that passes while they run."""

from __future__ import annotations

from equipoise.events.errors import InputError
from equipoise.events.facts import ProbingTick
from equipoise.events.tasks import TaskId
from tests.support.scenarios.argument_values import LAGS, TASKS, WHOLE, YES_NO, one_of
from tests.support.scenarios.directives import TIME, directive
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.scenario_context import Context


@directive(
    "ack",
    "MEMBER...",
    "The member applies its last assignment and reports: it runs its active tasks (after their holds), its copies keep their lag, "
    "and a new copy lags by the whole changelog. `all`: every live member.",
    lags=Argument(LAGS, "new lag of these copies"),
    restore=Argument(WHOLE, "number of records that each copy has restored"),
    **TIME,
)
def ack(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in context.live_members(parsed):
        actor = context.actor(parsed, member_id)
        context.apply(actor)
        actor.lags.update(parsed.get("lags", {}))
        actor.restore(parsed.get("restore", 0))
        context.append(actor.report())


@directive(
    "catch-up",
    "MEMBER [TASKS]",
    "The member has restored its copies of these tasks (default: all assigned copies) and reports it.",
    lag=Argument(WHOLE, "remaining lag in records; 0"),
    **TIME,
)
def catch_up(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    actor = context.actor(parsed, parsed.member)
    context.apply(actor)
    if len(parsed.directive.words) > 1:
        wanted = _tasks(parsed, parsed.directive.words[1])
    else:
        wanted = () if actor.granted is None else (*actor.granted.standby, *actor.granted.warmup)
    actor.lags.update(dict.fromkeys(wanted, parsed.get("lag", 0)))
    actor.declare()
    context.append(actor.report())


@directive("wipe", "MEMBER [TASKS]", "The member has lost these copies (default: all) and reports it.", **TIME)
def wipe(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    actor = context.actor(parsed, parsed.member)
    gone = _tasks(parsed, parsed.directive.words[1]) if len(parsed.directive.words) > 1 else tuple(actor.lags)
    for task in gone:
        actor.lags.pop(task, None)
    context.append(actor.report())


def _tasks(parsed: ParsedDirective, text: str) -> tuple[TaskId, ...]:
    try:
        found: tuple[TaskId, ...] = TASKS.read(text)
    except InputError as error:
        raise parsed.error(str(error)) from None
    return found


@directive(
    "live",
    "[MEMBER...]",
    "Time passes: at each step every named member (default: all) applies its assignment, restores and reports; "
    "then a tick follows. Steps that cause a decision are shown.",
    for_ms=Argument(WHOLE, "duration; 10000"),
    every_ms=Argument(WHOLE, "length of a step; 1000"),
    restore=Argument(WHOLE, "records that each copy restores in a step; 10000"),
    until=Argument(one_of("time", "settled"), "settled: end as soon as no movement is in progress or planned"),
    tell=Argument(YES_NO, "no: show only the summary"),
    **TIME,
)
def live(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    state, out = context.state, len(context.out)
    generation, owners, number = state.generation, dict(state.owner), state.number
    step_ms = parsed.get("every_ms", 1_000)
    steps = 0
    for _ in range(0, parsed.get("for_ms", 10_000), step_ms):
        steps += 1
        context.group_harness.append_ms += step_ms
        for member_id in parsed.members() or sorted(context.state.members):
            if member_id not in context.state.members:
                continue
            actor = context.actors[member_id]
            context.apply(actor)
            actor.restore(parsed.get("restore", 10_000))
            context.append(actor.report(), quiet=True)
        context.append(ProbingTick(), quiet=True)
        if parsed.get("until", "time") == "settled" and settled(context):
            break
    state = context.state
    if not parsed.get("tell", True):
        del context.out[out:]
    changed = sum(1 for task in owners.keys() | state.owner.keys() if owners.get(task) != state.owner.get(task))
    how = "settled" if settled(context) else "still moving"
    context.say(
        f"({steps * step_ms} ms: {state.generation - generation} rounds, {state.number - number} decisions, {changed} tasks changed owner, {how})"
    )


def settled(context: Context) -> bool:
    """No movement is in progress or planned, and every member has applied its last assignment."""
    state = context.state
    applied = all(member.applied_epoch == member.issued_epoch for member in state.members.values())
    balanced = state.verdict is not None and state.verdict[0] == "balanced" and not any(member.warmup for member in state.members.values())
    waits = state.in_flight or state.waiting or state.holds or any(map(state.is_crash_looping, state.members))
    return applied and not waits and (state.probing_deadline_ms is None or balanced)
