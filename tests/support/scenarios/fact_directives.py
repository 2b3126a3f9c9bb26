"""Directives that append one kind of fact each."""

from __future__ import annotations

import functools
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import FieldError, InputError, UnknownEventError
from equipoise.events.facts import (
    CARRIERS,
    JUDGED_METRICS,
    READINESS,
    AbsentMember,
    AssignmentObserved,
    BaseRequested,
    ChangeMeasured,
    ChangePlanned,
    DealRequested,
    GroupConfigured,
    GroupRejoined,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    Load,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    ObservedMember,
    PartitionsObserved,
    PresentMember,
    ProbingTick,
    RejoinedMember,
    RestartIntended,
    RoundAsked,
    SilenceObserved,
    Subtopology,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
    TroublesReported,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from tests.support.scenarios.argument_values import (
    BY_MEMBER,
    ENDS,
    LAGS,
    NAMES,
    NUMBER_BY_MEMBER,
    OPTIONS,
    PAIRS,
    PARTITIONS,
    RACKS,
    SIZES,
    TASKS,
    TEXT,
    WHOLE,
    YES_NO,
    ValueKind,
    one_of,
)
from tests.support.scenarios.directives import TIME, directive
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.scenario_context import Context

_ALIASES = {"standbys": "num_standbys"}


def _setting_kind(attribute: attrs.Attribute[Any]) -> ValueKind:
    kinds: dict[Any, ValueKind] = {int: WHOLE, str: TEXT, tuple[str, ...]: NAMES}
    return kinds[attribute.type]


attrs.resolve_types(GroupSettings)
SETTINGS = {
    attribute.name: Argument(_setting_kind(attribute), f"setting `{attribute.name}`")
    for attribute in attrs.fields(GroupSettings)
    if attribute.name != "options"
}
SETTINGS["options"] = Argument(OPTIONS, "options of the assignor; options not named keep their value; a new assignor starts with none")
SETTINGS |= {alias: Argument(SETTINGS[name].kind, f"the same as `{name}`") for alias, name in _ALIASES.items()}
CONFIG = {
    "assignor": Argument(TEXT, "name of the assignor"),
    "behaviour_version": Argument(WHOLE, "behaviour version of the assignor; default: the newest"),
    "solver": Argument(TEXT, "name of the pinned solver; default: this build's"),
    "led_by": Argument(one_of("equipoise", "external"), "the group's leader"),
}


def _settings(parsed: ParsedDirective, base: GroupSettings) -> GroupSettings:
    changes = parsed.given(*SETTINGS)
    for alias, name in _ALIASES.items():
        if alias in changes:
            changes[name] = changes.pop(alias)
    if "options" in changes:
        changes["options"] = {**base.options, **changes["options"]}
    try:
        return attrs.evolve(base, **changes)
    except FieldError as error:
        raise parsed.error(str(error)) from None


def _config(parsed: ParsedDirective, before: GroupConfigured) -> GroupConfigured:
    changes = parsed.given(*CONFIG)
    base = before.knobs if changes.get("assignor", before.assignor) == before.assignor else attrs.evolve(before.knobs, options={})
    config = attrs.evolve(before, knobs=_settings(parsed, base), **changes)
    another = "assignor" in changes or not before.solver
    if "behaviour_version" not in changes and another:
        newest = [version for name, version in registry.available() if name == config.assignor]
        config = attrs.evolve(config, behaviour_version=max(newest, default=1))
    if "solver" not in changes and (another or "behaviour_version" in changes):
        try:
            config = attrs.evolve(config, solver=registry.load(config.assignor, config.behaviour_version).solver)
        except InputError:
            config = attrs.evolve(config, solver="")  # a build that lacks it halts, and shows why
    return config


DEFAULT_KNOBS = GroupSettings(initial_delay_ms=0, checkpoint_every_records=0)
"""By default a scenario's group decides at once and writes no checkpoint."""


@directive(
    "group",
    "",
    "GroupConfigured: creates the group. `initial_delay_ms` and `checkpoint_every_records` default to 0. Shown only when it causes a decision.",
    session_timeout_ms=Argument(WHOLE, "default of `join`; 30000"),
    lease_margin_ms=Argument(WHOLE, "default of `join`; 3000"),
    **CONFIG,
    **SETTINGS,
    **TIME,
)
def group(context: Context, parsed: ParsedDirective) -> None:
    for name, value in parsed.given("session_timeout_ms", "lease_margin_ms").items():
        setattr(context.defaults, name, value)
    context.move_clock(parsed)
    context.append(_config(parsed, GroupConfigured(knobs=DEFAULT_KNOBS)), quiet=True)


MADE_FROM = Argument(WHOLE, "number of the configuration that it was made from; default: it holds whatever is in force")


@directive(
    "configure",
    "",
    "GroupConfigured: changes these parts of the configuration ([D8](protocol.md#d8)).",
    made_from=MADE_FROM,
    change_id=Argument(TEXT, "the plan that it carries out"),
    **CONFIG,
    **SETTINGS,
    **TIME,
)
def configure(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(attrs.evolve(_config(parsed, context.config(parsed)), **parsed.given("made_from", "change_id")))


def _sizes(parsed: ParsedDirective, tasks: tuple[TaskId, ...], name: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for task in tasks:
        if task.partition != sizes.get(task.subtopology, 0):
            raise parsed.error(f"{name}: sub-topology {task.subtopology} has no task {task.subtopology}_{sizes.get(task.subtopology, 0)} but {task}")
        sizes[task.subtopology] = task.partition + 1
    return sizes


def _parts(context: Context, parsed: ParsedDirective) -> list[Subtopology]:
    return _subtopologies(context, parsed, parsed.get("stateful", {}), parsed.get("stateless", {}))


def _subtopologies(context: Context, parsed: ParsedDirective, stateful: dict[int, int], stateless: dict[int, int]) -> list[Subtopology]:
    for number in sorted(stateful.keys() & stateless.keys()):
        raise parsed.error(f"sub-topology {number} is either stateful or stateless")
    sources = parsed.get("sources", "source")
    return [
        context.make(
            parsed,
            Subtopology,
            subtopology=number,
            partitions=(stateful | stateless)[number],
            stateful=number in stateful,
            source_topics=(f"{sources}{number}",),
            changelog_topics=(f"{parsed.get('changelogs', 'changelog')}{number}",) if number in stateful else (),
        )
        for number in sorted(stateful | stateless)
    ]


def _declare(context: Context, parsed: ParsedDirective, stateful: dict[int, int], stateless: dict[int, int], *, quiet: bool) -> None:
    before = context.state.topology
    parts = _subtopologies(context, parsed, stateful, stateless)
    epoch = parsed.get("epoch", 0 if before is None else before.epoch + 1)
    context.append(TopologyDeclared(epoch=epoch, subtopologies=tuple(parts)), quiet=quiet)


def changelog(subtopology: int) -> str:
    """The one changelog topic of a stateful sub-topology."""
    return f"changelog{subtopology}"


@directive(
    "tasks",
    "",
    "TopologyDeclared: declares the tasks; with `ends=`, PartitionsObserved follows. Shown only when it causes a decision.",
    stateful=Argument(TASKS, "tasks with state: sub-topology N writes its changelog to topic `changelogN`"),
    stateless=Argument(TASKS, "tasks without state; every sub-topology N reads topic `sourceN`"),
    ends=Argument(ENDS, "end offset of each task's changelog partition"),
    epoch=Argument(WHOLE, "topology epoch; default: 0, then one above the last"),
    **TIME,
)
def tasks(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    stateful, stateless = _sizes(parsed, parsed.get("stateful", ()), "stateful"), _sizes(parsed, parsed.get("stateless", ()), "stateless")
    _declare(context, parsed, stateful, stateless, quiet=True)
    if parsed.has("ends"):
        _observe_ends(context, parsed.get("ends", {}), quiet=True)


def _observe_ends(context: Context, ends: dict[TaskId, int], *, quiet: bool) -> None:
    by_topic: dict[str, dict[int, int]] = {}
    for task, end in ends.items():
        by_topic.setdefault(changelog(task.subtopology), {})[task.partition] = end
    context.append(PartitionsObserved(end_offsets=by_topic), quiet=quiet)


@directive(
    "topology",
    "",
    "TopologyDeclared: number of partitions by sub-topology.",
    epoch=Argument(WHOLE, "topology epoch; default: 0, then one above the last"),
    stateful=Argument(SIZES, "sub-topologies with state"),
    stateless=Argument(SIZES, "sub-topologies without"),
    sources=Argument(TEXT, "sub-topology N reads topic `<sources>N`; source"),
    **TIME,
)
def topology(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    _declare(context, parsed, parsed.get("stateful", {}), parsed.get("stateless", {}), quiet=False)


@directive(
    "partitions",
    "",
    "PartitionsObserved ([D6](protocol.md#d6)): end offsets by task, or end offsets, racks, weights and source lags of one topic's partitions.",
    ends=Argument(ENDS, "end offset of each task's changelog partition"),
    topic=Argument(TEXT, "topic of `end_offsets=`, `racks=`, `weights=` and `source_lags=`"),
    end_offsets=Argument(PARTITIONS, "end offset by partition"),
    racks=Argument(RACKS, "racks of the replicas by partition"),
    weights=Argument(PARTITIONS, "traffic weight by partition; 1"),
    source_lags=Argument(PARTITIONS, "records that the group has not read yet, by partition"),
    **TIME,
)
def partitions(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    if parsed.has("ends"):
        _observe_ends(context, parsed.get("ends", {}), quiet=False)
        return
    if not parsed.has("topic"):
        raise parsed.error("name a topic=, or ends= by task")
    topic = parsed.get("topic", "")
    fields = ("end_offsets", "racks", "weights", "source_lags")
    observed: dict[str, object] = {name: {topic: parsed.get(name, {})} for name in fields if parsed.has(name)}
    context.append(context.make(parsed, PartitionsObserved, **observed))


@directive(
    "join",
    "MEMBER...",
    "MemberJoined, one for each member.",
    incarnation=Argument(WHOLE, "number of the incarnation; default: one above the member's last"),
    capacity=Argument(WHOLE, "number of threads; 1"),
    rack=Argument(TEXT, "rack of the member"),
    tags=Argument(PAIRS, "client tags"),
    session_timeout_ms=Argument(WHOLE, "see `group`"),
    lease_margin_ms=Argument(WHOLE, "see `group`"),
    epoch=Argument(WHOLE, "topology epoch that the member runs; default: the newest"),
    nonce=Argument(TEXT, "join nonce; default: a new one"),
    ended=Argument(WHOLE, "incarnation that the member proves dead ([M5](protocol.md#m5))"),
    lags=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "yes: the member revokes all its tasks before any change"),
    stateful=Argument(SIZES, "as of `topology`: the member says its topology ([D1](protocol.md#d1)); default: it does not"),
    stateless=Argument(SIZES, "the same"),
    sources=Argument(TEXT, "as of `topology`"),
    changelogs=Argument(TEXT, "sub-topology N writes topic `<changelogs>N`; changelog"),
    readiness=Argument(one_of(*READINESS), "rule by which the member's copies count as ready ([M2](protocol.md#m2)); word_or_lag"),
    ready_lag_records=Argument(WHOLE, "the member's own lag limit for `readiness=`"),
    **TIME,
)
def join(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    newest = context.state.topology
    for member_id in parsed.members():
        before = context.actors.get(member_id)
        fact = context.make(
            parsed,
            MemberJoined,
            member_id=member_id,
            incarnation=parsed.get("incarnation", 1 if before is None else before.incarnation + 1),
            session_timeout_ms=parsed.get("session_timeout_ms", context.defaults.session_timeout_ms),
            lease_margin_ms=parsed.get("lease_margin_ms", context.defaults.lease_margin_ms),
            topology_epoch=parsed.get("epoch", 0 if newest is None else newest.epoch),
            join_nonce=parsed.get("nonce", "") or context.next_nonce(),
            ended_incarnation=parsed.find("ended"),
            lags=parsed.get("lags", {}),
            subtopologies=tuple(_parts(context, parsed)) if parsed.has("stateful") or parsed.has("stateless") else None,
            **parsed.given("capacity", "rack", "tags", "eager", "readiness", "ready_lag_records"),
        )
        context.append(fact)


INCARNATION = Argument(WHOLE, "incarnation of the sender; default: the member's latest")
EPOCH = Argument(WHOLE, "assignment epoch that the member has applied; default: as last reported")


@directive(
    "report",
    "MEMBER...",
    "LagReported ([M2](protocol.md#m2)). Omitted fields repeat the member's last accepted report. A full report unless `base=` is given.",
    incarnation=INCARNATION,
    number=Argument(WHOLE, "number of the report; default: the next"),
    epoch=EPOCH,
    held=Argument(TASKS, "tasks that the member runs"),
    ready=Argument(TASKS, "copies that the member declares ready"),
    lags=Argument(LAGS, "lag of each copy; with `base=`, of each copy that changed"),
    base=Argument(WHOLE, "makes the report a delta on the report of this number"),
    forgotten=Argument(TASKS, "in a delta: copies that no longer exist"),
    leaving=Argument(YES_NO, "yes: the member wants to leave"),
    preparing=Argument(ENDS, "progress of each task that the application prepares, in thousandths; default: none"),
    failed=Argument(TASKS, "tasks whose last preparation failed; default: none"),
    restores_per_s=Argument(WHOLE, "measured restore rate, in records per second"),
    cpu_percent=Argument(WHOLE, "CPU utilisation in percent; this or `processes=` replaces the reported load"),
    processes=Argument(ENDS, "records processed per second, by task"),
    behind=Argument(ENDS, "source records not processed yet, by task"),
    **TIME,
)
def report(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in context.live_members(parsed):
        actor = context.actor(parsed, member_id)
        before = attrs.evolve(actor)
        actor.applied_epoch = parsed.get("epoch", actor.applied_epoch)
        actor.held = parsed.get("held", actor.held)
        actor.ready = parsed.get("ready", actor.ready)
        actor.leaving = parsed.get("leaving", actor.leaving)
        if parsed.has("restores_per_s"):
            actor.load = Load(restored_records_per_s=parsed.get("restores_per_s", 0))
        if parsed.has("cpu_percent") or parsed.has("processes"):
            speed = 0.0 if actor.load is None else actor.load.restored_records_per_s
            busy = parsed.get("cpu_percent", 0) / 100
            actor.load = context.make(parsed, Load, cpu=busy, restored_records_per_s=speed, tasks=dict(parsed.get("processes", {})))
        if parsed.has("behind"):
            actor.load = context.make(parsed, functools.partial(attrs.evolve, actor.load or Load()), behind=dict(parsed.get("behind", {})))
        lags = parsed.get("lags", actor.lags)
        rest: dict[str, object] = parsed.given("number", "preparing", "failed")
        if parsed.has("base"):
            rest |= {"base": parsed.get("base", 0), "lags": parsed.get("lags", {}), "forgotten": parsed.get("forgotten", ())}
            lags = {task: lag for task, lag in {**actor.lags, **parsed.get("lags", {})}.items() if task not in parsed.get("forgotten", ())}
        actor.lags = dict(lags)
        try:
            fact = actor.report(**rest)
        except FieldError as error:
            raise parsed.error(str(error)) from None
        if any(isinstance(record.decision, EventRejected) for record in context.append(fact)):
            actor.take_back(before)


@directive("ready", "MEMBER TASKS", "TaskReady: announces restored copies before the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME)
def ready(context: Context, parsed: ParsedDirective) -> None:
    _say_of_tasks(context, parsed, TaskReady)


@directive("revoked", "MEMBER TASKS", "TasksRevoked: announces revoked tasks before the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME)
def revoked(context: Context, parsed: ParsedDirective) -> None:
    _say_of_tasks(context, parsed, TasksRevoked)


def _say_of_tasks(context: Context, parsed: ParsedDirective, kind: type[TaskReady] | type[TasksRevoked]) -> None:
    context.move_clock(parsed)
    actor = context.actor(parsed, parsed.member)
    try:
        of = TASKS.read(parsed.directive.words[1])
    except InputError as error:
        raise parsed.error(str(error)) from None
    if kind is TasksRevoked:
        actor.held = tuple(task for task in actor.held if task not in of)
    else:
        actor.ready = tuple(sorted({*actor.ready, *of}))
    epoch = parsed.get("epoch", actor.granted.assignment_epoch if actor.granted else 0)
    context.append(kind(member_id=actor.member_id, incarnation=actor.incarnation, assignment_epoch=epoch, tasks=of))


@directive(
    "unchanged",
    "MEMBER...",
    "MemberUnchanged: the member's last report still says how it is ([M2](protocol.md#m2)).",
    incarnation=INCARNATION,
    number=Argument(WHOLE, "number of that report; default: the last one that was sent"),
    **TIME,
)
def unchanged(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in context.live_members(parsed):
        actor = context.actor(parsed, member_id)
        report = parsed.get("number", max(0, actor.report_number))
        context.append(MemberUnchanged(member_id=member_id, incarnation=actor.incarnation, report=report))


@directive(
    "parked",
    "MEMBER TASKS",
    "TaskParked, for each task: its member handles nothing more in it, or handles it again ([M10](protocol.md#m10)).",
    incarnation=INCARNATION,
    token=Argument(WHOLE, "fencing token of the grant; default: of the task's last grant"),
    error=Argument(TEXT, "the error, without spaces; empty: it is handled again"),
    **TIME,
)
def parked(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    actor = context.actor(parsed, parsed.member)
    try:
        of = TASKS.read(parsed.directive.words[1])
    except InputError as error:
        raise parsed.error(str(error)) from None
    for task in of:
        token = parsed.get("token", context.state.tokens.get(task, 0))
        place = {"topic": "in", "partition": task.partition, "offset": 0, "error": parsed.get("error", "ValueError")}
        context.append(TaskParked(member_id=actor.member_id, incarnation=actor.incarnation, task=task, token=token, **place))


@directive(
    "held-up",
    "MEMBER",
    "TroublesReported: something outside holds up the member, or nothing does any more ([M10](protocol.md#m10)).",
    incarnation=INCARNATION,
    by=Argument(TEXT, "a trouble, without spaces; default: none"),
    **TIME,
)
def held_up(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    actor = context.actor(parsed, parsed.member)
    by = parsed.get("by", "")
    context.append(TroublesReported(member_id=actor.member_id, incarnation=actor.incarnation, troubles=(by,) if by else ()))


@directive("leave-intent", "MEMBER...", "LeaveIntended: the member wants to leave once its tasks run elsewhere.", incarnation=INCARNATION, **TIME)
def leave_intent(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        actor = context.actor(parsed, member_id)
        actor.leaving = True
        context.append(LeaveIntended(member_id=member_id, incarnation=actor.incarnation))


@directive(
    "restart-intent",
    "MEMBER...",
    "RestartIntended: the member stops when it is released, and will be back ([M12](protocol.md#m12)).",
    incarnation=INCARNATION,
    back_within_ms=Argument(WHOLE, "how long after its MemberLeft, at most; default: not stated"),
    wait_turn=Argument(YES_NO, "no: also while other members restart; yes"),
    **TIME,
)
def restart_intent(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        context.append(
            RestartIntended(
                member_id=member_id,
                incarnation=context.actor(parsed, member_id).incarnation,
                back_within_ms=parsed.find("back_within_ms"),
                wait_turn=parsed.get("wait_turn", True),
            )
        )


@directive("leave-cancel", "MEMBER...", "LeaveCancelled: the member no longer wants to leave.", incarnation=INCARNATION, **TIME)
def leave_cancel(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        actor = context.actor(parsed, member_id)
        actor.leaving = False
        context.append(LeaveCancelled(member_id=member_id, incarnation=actor.incarnation))


@directive(
    "leave-request",
    "MEMBER...",
    "LeaveRequested: an operator asks these members to leave ([M8](protocol.md#m8)).",
    withdrawn=Argument(YES_NO, "yes: the operator withdraws the request"),
    incarnations=Argument(NUMBER_BY_MEMBER, "of each, when they were chosen; default: whichever they are"),
    staying=Argument(WHOLE, "so many members were to stay; default: however few"),
    **TIME,
)
def leave_request(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    members, chosen = tuple(sorted(parsed.members())), dict[str, int](parsed.get("incarnations", {}))
    incarnations = tuple(chosen[name] for name in members if name in chosen)
    withdrawn, staying = parsed.get("withdrawn", False), parsed.get("staying", None)
    context.append(LeaveRequested(members=members, withdrawn=withdrawn, incarnations=incarnations, staying=staying))


@directive("deal", "", "DealRequested: an operator asks for a new deal ([D11](protocol.md#d11)).", **TIME)
def deal(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(DealRequested())


@directive(
    "plan-change",
    "ID KIND",
    "ChangePlanned: the group is going to be changed ([D14](protocol.md#d14)).",
    most_unavailable_task_ms=Argument(WHOLE, "more is too much"),
    quiet_ms=Argument(WHOLE, "it is over after so long at rest; 15000"),
    or_undo=Argument(YES_NO, "yes: the settings of before come back when it costs too much"),
    made_from=MADE_FROM,
    judged_by=Argument(TEXT, "fold: as former builds did; observer"),
    **TIME,
)
def plan_change(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    change_id, kind = parsed.members()
    given = parsed.given("most_unavailable_task_ms", "quiet_ms", "or_undo", "made_from", "judged_by")
    try:
        context.append(ChangePlanned(change_id=change_id, kind=kind, what=f"{kind} {change_id}", **given))
    except FieldError as error:
        raise parsed.error(str(error)) from None


@directive(
    "measure-change",
    "ID OUTCOME",
    "ChangeMeasured: what a change cost, by who has watched it ([D14](protocol.md#d14)).",
    unavailable_task_ms=Argument(WHOLE, "0"),
    moves=Argument(WHOLE, "0"),
    rest_ms=Argument(WHOLE, "0"),
    **TIME,
)
def measure_change(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    change_id, outcome = parsed.members()
    context.append(ChangeMeasured(change_id=change_id, outcome=outcome, **dict.fromkeys(JUDGED_METRICS, 0) | parsed.given(*JUDGED_METRICS)))


@directive("left", "MEMBER...", "MemberLeft: the member has stopped everything.", incarnation=INCARNATION, **TIME)
def left(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        context.append(MemberLeft(member_id=member_id, incarnation=context.actor(parsed, member_id).incarnation))


@directive(
    "ended", "MEMBER...", "MemberEnded: a witness proves that the member's process is gone ([M11](protocol.md#m11)).", incarnation=INCARNATION, **TIME
)
def ended(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        context.append(MemberEnded(member_id=member_id, incarnation=context.actor(parsed, member_id).incarnation))


@directive(
    "tick",
    "",
    "ProbingTick, once or `n=` times. With `n=`, ticks that cause a decision are shown and the others counted.",
    n=Argument(WHOLE, "number of ticks; 1"),
    every_ms=Argument(WHOLE, "time before each tick; 0 without `n=`, 1000 with it"),
    **TIME,
)
def tick(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    count = parsed.get("n", 1)
    if not parsed.has("n"):
        context.group_harness.append_ms += parsed.get("every_ms", 0)
        context.append(ProbingTick())
        return
    silent = 0
    for _ in range(count):
        context.group_harness.append_ms += parsed.get("every_ms", 1_000)
        silent += not context.append(ProbingTick(), quiet=True)
    context.say(f"({silent} of {count} ticks decided nothing)")


@directive(
    "silence",
    "",
    "SilenceObserved: the worker says how long members have been silent ([L11](protocol.md#l11)).",
    ms=Argument(NUMBER_BY_MEMBER, "ms by member"),
    after=Argument(WHOLE, "offset of the group's last fact, as the worker knows it; default: the last"),
    **TIME,
)
def silence(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(SilenceObserved(silent_ms=parsed.get("ms", {}), after_offset=parsed.get("after", context.state.last_offset)))


@directive("base", "", "BaseRequested: the worker asks for the hash of the group's state ([L10](protocol.md#l10)).", **TIME)
def base(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(BaseRequested())


@directive(
    "observe",
    "",
    "AssignmentObserved: an assignment by the leader of a group with `led_by=external` ([D7](protocol.md#d7)).",
    generation=Argument(WHOLE, "generation of the assignment; default: the next"),
    active=Argument(BY_MEMBER, "active tasks by member; `m1:` for a member without tasks"),
    standby=Argument(BY_MEMBER, "standby tasks by member"),
    incarnation=Argument(WHOLE, "incarnation of every named member; default: its latest"),
    **TIME,
)
def observe(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    active: dict[str, tuple[TaskId, ...]] = parsed.get("active", {})
    standby: dict[str, tuple[TaskId, ...]] = parsed.get("standby", {})
    members = tuple(
        ObservedMember(
            member_id=name,
            incarnation=context.actor(parsed, name).incarnation,
            active=active.get(name, ()),
            standby=standby.get(name, ()),
        )
        for name in sorted(active.keys() | standby.keys())
    )
    context.append(AssignmentObserved(generation=parsed.get("generation", context.state.generation + 1), members=members))


@directive(
    "ask-round",
    "MEMBER...",
    "RoundAsked: the leader of a group with `led_by=external` asks who runs what ([D12](protocol.md#d12)); members it does not name are gone.",
    id=Argument(TEXT, "id of the round; default: `r` and the next generation"),
    carrier=Argument(one_of(*CARRIERS), "who carries the answer out; default: `kafka_streams`"),
    incarnation=INCARNATION,
    **TIME,
)
def ask_round(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    present = tuple(PresentMember(member_id=name, incarnation=context.actor(parsed, name).incarnation) for name in sorted(parsed.members()))
    context.append(RoundAsked(round_id=parsed.get("id", f"r{context.state.generation + 1}"), members=present, **parsed.given("carrier")))


@directive(
    "rejoin",
    "",
    "GroupRejoined: a generation of a classic consumer group that equipoise leads from its leader's seat ([D13](protocol.md#d13)).",
    held=Argument(BY_MEMBER, "what each member of the generation has; `m1:` for a member without tasks"),
    incarnations=Argument(NUMBER_BY_MEMBER, "incarnations other than 1, by member"),
    absent=Argument(NUMBER_BY_MEMBER, "members that are waited for, with their times in ms"),
    topology=Argument(SIZES, "new epochs of a topology, each with the number of partitions of sub-topology 0"),
    epoch=Argument(WHOLE, "topology epoch of all members; default: the newest"),
    **TIME,
)
def rejoin(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    held: dict[str, tuple[TaskId, ...]] = parsed.get("held", {})
    incarnations: dict[str, int] = parsed.get("incarnations", {})
    absent: dict[str, int] = parsed.get("absent", {})
    topologies: dict[int, int] = parsed.get("topology", {})
    declared = tuple(
        TopologyDeclared(epoch=epoch, subtopologies=(Subtopology(subtopology=0, partitions=partitions, stateful=False, source_topics=("in",)),))
        for epoch, partitions in topologies.items()
    )
    newest = declared[-1].epoch if declared else max(context.state.topologies, default=0)
    members = tuple(
        RejoinedMember(
            member_id=name, incarnation=incarnations.get(name, 1), client=f"{name}-id", topology_epoch=parsed.get("epoch", newest), held=held[name]
        )
        for name in sorted(held)
    )
    away = tuple(AbsentMember(member_id=name, back_within_ms=within_ms) for name, within_ms in sorted(absent.items()))
    context.append(GroupRejoined(generation=context.state.generation + 1, protocol="range", members=members, absent=away, topologies=declared))


@directive(
    "bytes",
    "HEX",
    "Appends raw bytes and decodes them as the codec does: a valid fact, Undecodable, or an unknown kind or version, "
    "which halts the group ([L6](protocol.md#l6)).",
    kind=Argument(WHOLE, "type code; 6"),
    version=Argument(WHOLE, "schema version; 1"),
    times=Argument(WHOLE, "how often the bytes are appended; 1"),
    **TIME,
)
def raw_bytes(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    try:
        payload = bytes.fromhex(parsed.directive.words[0]) * parsed.get("times", 1)
    except ValueError:
        raise parsed.error(f"{parsed.directive.words[0]!r} is not hexadecimal") from None
    kind, version = parsed.get("kind", 6), parsed.get("version", 1)
    try:
        fact = codec.decode_lenient(kind, version, payload)
    except UnknownEventError as error:
        context.say(f"!! halted unknown_event: {error}")
        return
    context.append(fact)


@directive(
    "undecodable",
    "[MEMBER]",
    "A fact of the member (default m1) with one damaged byte, which the codec decodes as Undecodable.",
    **TIME,
)
def undecodable(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    member_id = parsed.directive.words[0] if parsed.directive.words else "m1"
    kind, version, payload = codec.encode(LeaveIntended(member_id=member_id, incarnation=1))
    context.append(codec.decode_lenient(kind, version, payload[:-1] + b"\xc1"))
