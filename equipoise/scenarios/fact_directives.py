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
    READINESS,
    AssignmentObserved,
    DealRequested,
    GroupConfigured,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    Load,
    MemberJoined,
    MemberLeft,
    ObservedMember,
    PartitionsObserved,
    ProbingTick,
    Subtopology,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.scenarios.context import Context
from equipoise.scenarios.parsed_directive import Argument, ParsedDirective
from equipoise.scenarios.registry import TIME, directive
from equipoise.scenarios.values import (
    BY_MEMBER,
    ENDS,
    LAGS,
    NAMES,
    OPTIONS,
    PAIRS,
    PARTITIONS,
    RACKS,
    SIZES,
    TASKS,
    TEXT,
    WHOLE,
    YES_NO,
    Kind,
    one_of,
)

_ALIASES = {"standbys": "num_standbys"}


def _setting_kind(attribute: attrs.Attribute[Any]) -> Kind:
    kinds: dict[Any, Kind] = {int: WHOLE, str: TEXT, tuple[str, ...]: NAMES}
    return kinds[attribute.type]


attrs.resolve_types(GroupSettings)
SETTINGS = {
    attribute.name: Argument(_setting_kind(attribute), f"setting `{attribute.name}`")
    for attribute in attrs.fields(GroupSettings)
    if attribute.name != "options"
}
SETTINGS["options"] = Argument(OPTIONS, "what the assignor wants to be told; those not named are as they were, another assignor begins with none")
SETTINGS |= {alias: Argument(SETTINGS[name].kind, f"the same as `{name}`") for alias, name in _ALIASES.items()}
CONFIG = {
    "assignor": Argument(TEXT, "name of the assignor"),
    "behaviour_version": Argument(WHOLE, "its behaviour version; default: the newest"),
    "solver": Argument(TEXT, "the solver it pins; default: this build's"),
    "led_by": Argument(one_of("equipoise", "external"), "who leads the group"),
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
"""A scenario's group decides at once, and writes no checkpoint, unless it says otherwise."""


@directive(
    "group",
    "",
    "GroupConfigured: the group begins. `initial_delay_ms` and `checkpoint_every_records` are 0 unless given. Told only when it decides something.",
    session_timeout_ms=Argument(WHOLE, "what `join` says when its line does not; 30000"),
    lease_margin_ms=Argument(WHOLE, "what `join` says when its line does not; 3000"),
    **CONFIG,
    **SETTINGS,
    **TIME,
)
def group(context: Context, parsed: ParsedDirective) -> None:
    for name, value in parsed.given("session_timeout_ms", "lease_margin_ms").items():
        setattr(context.defaults, name, value)
    context.move_clock(parsed)
    context.append(_config(parsed, GroupConfigured(knobs=DEFAULT_KNOBS)), quiet=True)


@directive(
    "configure",
    "",
    "GroupConfigured: the configuration as it is, with these changes ([D8](protocol.md#d8)).",
    **CONFIG,
    **SETTINGS,
    **TIME,
)
def configure(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(_config(parsed, context.config(parsed)))


def _sizes(parsed: ParsedDirective, tasks: tuple[TaskId, ...], name: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for task in tasks:
        if task.partition != sizes.get(task.subtopology, 0):
            raise parsed.error(f"{name}: sub-topology {task.subtopology} has no task {task.subtopology}_{sizes.get(task.subtopology, 0)} but {task}")
        sizes[task.subtopology] = task.partition + 1
    return sizes


def _declare(context: Context, parsed: ParsedDirective, stateful: dict[int, int], stateless: dict[int, int], *, quiet: bool) -> None:
    before = context.state.topology
    parts = [
        context.make(
            parsed,
            Subtopology,
            subtopology=number,
            partitions=(stateful | stateless)[number],
            stateful=number in stateful,
            source_topics=(f"source{number}",),
            changelog_topics=(changelog(number),) if number in stateful else (),
        )
        for number in sorted(stateful | stateless)
    ]
    for number in sorted(stateful.keys() & stateless.keys()):
        raise parsed.error(f"sub-topology {number} is either stateful or stateless")
    epoch = parsed.get("epoch", 0 if before is None else before.epoch + 1)
    context.append(TopologyDeclared(epoch=epoch, subtopologies=tuple(parts)), quiet=quiet)


def changelog(subtopology: int) -> str:
    """The one changelog topic of a stateful sub-topology."""
    return f"changelog{subtopology}"


@directive(
    "tasks",
    "",
    "TopologyDeclared: the tasks there are; with `ends=`, PartitionsObserved after it. Told only when it decides something.",
    stateful=Argument(TASKS, "tasks with state: sub-topology N logs to topic `changelogN`"),
    stateless=Argument(TASKS, "tasks without; all read topic `sourceN`"),
    ends=Argument(ENDS, "end offsets of their changelogs"),
    epoch=Argument(WHOLE, "topology epoch; default: 0, then one more each time"),
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
    "TopologyDeclared, by sub-topology: number and count of partitions.",
    epoch=Argument(WHOLE, "topology epoch; default: 0, then one more each time"),
    stateful=Argument(SIZES, "sub-topologies with state"),
    stateless=Argument(SIZES, "sub-topologies without"),
    **TIME,
)
def topology(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    _declare(context, parsed, parsed.get("stateful", {}), parsed.get("stateless", {}), quiet=False)


@directive(
    "partitions",
    "",
    "PartitionsObserved ([D6](protocol.md#d6)): end offsets by task, or end offsets, racks, "
    "weights and source lags of one topic's partitions.",
    ends=Argument(ENDS, "end offset of each task's changelog partition"),
    topic=Argument(TEXT, "the topic that `end_offsets=`, `racks=`, `weights=` and `source_lags=` are of"),
    end_offsets=Argument(PARTITIONS, "partition: end offset"),
    racks=Argument(RACKS, "partition: racks of its replicas"),
    weights=Argument(PARTITIONS, "partition: its traffic; 1 where nothing is said"),
    source_lags=Argument(PARTITIONS, "partition: records that the group has still to read"),
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
    told: dict[str, object] = {name: {topic: parsed.get(name, {})} for name in ("end_offsets", "racks", "weights", "source_lags") if parsed.has(name)}
    context.append(context.make(parsed, PartitionsObserved, **told))


@directive(
    "join",
    "MEMBER...",
    "MemberJoined, one for each member. The incarnation is one above the member's last.",
    incarnation=Argument(WHOLE, "its number"),
    capacity=Argument(WHOLE, "threads; 1"),
    rack=Argument(TEXT, "its rack"),
    tags=Argument(PAIRS, "client tags"),
    session_timeout_ms=Argument(WHOLE, "see `group`"),
    lease_margin_ms=Argument(WHOLE, "see `group`"),
    epoch=Argument(WHOLE, "the topology epoch it runs; default: the newest"),
    nonce=Argument(TEXT, "join nonce; default: a new one"),
    ended=Argument(WHOLE, "the incarnation it proves dead ([M5](protocol.md#m5))"),
    lags=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "yes: it gives up everything before any change of what it runs"),
    readiness=Argument(one_of(*READINESS), "what makes a copy of it ready ([M2](protocol.md#m2)); word_or_lag"),
    ready_lag_records=Argument(WHOLE, "a limit of its own for that"),
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
            **parsed.given("capacity", "rack", "tags", "eager", "readiness", "ready_lag_records"),
        )
        context.append(fact)


INCARNATION = Argument(WHOLE, "which one speaks; default: its latest")
EPOCH = Argument(WHOLE, "the assignment epoch it has applied; default: the one it said last")


@directive(
    "report",
    "MEMBER...",
    "LagReported, word for word ([M2](protocol.md#m2)): what is not given is as in its "
    "last report that was not refused. A full one unless `base=` is given.",
    incarnation=INCARNATION,
    number=Argument(WHOLE, "number of the report; default: the next"),
    epoch=EPOCH,
    held=Argument(TASKS, "tasks it runs"),
    ready=Argument(TASKS, "copies it declares ready"),
    lags=Argument(LAGS, "its copies; with `base=` those that changed"),
    base=Argument(WHOLE, "a delta on that report"),
    forgotten=Argument(TASKS, "copies that are gone, in a delta"),
    leaving=Argument(YES_NO, "it wants to leave"),
    preparing=Argument(ENDS, "tasks its application prepares, in thousandths; default: none"),
    failed=Argument(TASKS, "tasks whose last preparation failed; default: none"),
    restores_per_s=Argument(WHOLE, "restore speed it measured, in records per second"),
    cpu_percent=Argument(WHOLE, "how busy its processors are; with this or `processes=` all that it says of its load is said anew"),
    processes=Argument(ENDS, "records it processes a second, by task"),
    behind=Argument(ENDS, "records of sources that are still to be processed, by task"),
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


@directive(
    "ready", "MEMBER TASKS", "TaskReady: copies are restored; says it sooner than the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME
)
def ready(context: Context, parsed: ParsedDirective) -> None:
    _say_of_tasks(context, parsed, TaskReady)


@directive(
    "revoked", "MEMBER TASKS", "TasksRevoked: tasks are given up; says it sooner than the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME
)
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


@directive("leave-intent", "MEMBER...", "LeaveIntended: it wants to leave once its tasks run elsewhere.", incarnation=INCARNATION, **TIME)
def leave_intent(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        actor = context.actor(parsed, member_id)
        actor.leaving = True
        context.append(LeaveIntended(member_id=member_id, incarnation=actor.incarnation))


@directive("leave-cancel", "MEMBER...", "LeaveCancelled: it stays after all.", incarnation=INCARNATION, **TIME)
def leave_cancel(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        actor = context.actor(parsed, member_id)
        actor.leaving = False
        context.append(LeaveCancelled(member_id=member_id, incarnation=actor.incarnation))


@directive(
    "leave-request", "MEMBER...", "LeaveRequested: an operator asks them all to leave ([M8](protocol.md#m8)).",
    withdrawn=Argument(YES_NO, "yes: they are to stay after all"), **TIME,
)  # fmt: skip
def leave_request(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(LeaveRequested(members=tuple(sorted(parsed.members())), withdrawn=parsed.get("withdrawn", False)))


@directive("deal", "", "DealRequested: an operator asks for a new deal ([D11](protocol.md#d11)).", **TIME)
def deal(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    context.append(DealRequested())


@directive("left", "MEMBER...", "MemberLeft: its own word that it has stopped everything.", incarnation=INCARNATION, **TIME)
def left(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    for member_id in parsed.members():
        context.append(MemberLeft(member_id=member_id, incarnation=context.actor(parsed, member_id).incarnation))


@directive(
    "tick",
    "",
    "ProbingTick, once or `n=` times. Of several, those that decide something are told and the others counted.",
    n=Argument(WHOLE, "how many; 1"),
    every_ms=Argument(WHOLE, "time before each; 0 for one, 1000 for several"),
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
    "observe",
    "",
    "AssignmentObserved: what the leader of a group `led_by=external` decided ([D7](protocol.md#d7)).",
    generation=Argument(WHOLE, "its generation; default: the next"),
    active=Argument(BY_MEMBER, "what each member runs; a member without tasks as `m1:`"),
    standby=Argument(BY_MEMBER, "copies"),
    incarnation=Argument(WHOLE, "of every member named; default: its latest"),
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
    "bytes",
    "HEX",
    "Bytes that a sender appended, read as the codec reads them: a sound fact, Undecodable, or a kind or version "
    "that halts the group ([L6](protocol.md#l6)).",
    kind=Argument(WHOLE, "type code"),
    version=Argument(WHOLE, "schema version; 1"),
    times=Argument(WHOLE, "they stand there so many times; 1"),
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
    "The fact of a member (default m1) with one byte damaged on its way, as the codec reads it: Undecodable.",
    **TIME,
)
def undecodable(context: Context, parsed: ParsedDirective) -> None:
    context.move_clock(parsed)
    member_id = parsed.directive.words[0] if parsed.directive.words else "m1"
    kind, version, payload = codec.encode(LeaveIntended(member_id=member_id, incarnation=1))
    context.append(codec.decode_lenient(kind, version, payload[:-1] + b"\xc1"))
