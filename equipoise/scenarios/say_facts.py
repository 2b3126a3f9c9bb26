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
from equipoise.scenarios.play import Play
from equipoise.scenarios.registry import TIME, directive
from equipoise.scenarios.said import Argument, Said
from equipoise.scenarios.words import BY_MEMBER, ENDS, LAGS, NAMES, OPTIONS, PAIRS, PARTITIONS, RACKS, SIZES, TASKS, TEXT, WHOLE, YES_NO, Kind, one_of

_ALIASES = {"standbys": "num_standbys"}


def _setting_kind(attribute: attrs.Attribute[Any]) -> Kind:
    kinds: dict[Any, Kind] = {int: WHOLE, str: TEXT, tuple[str, ...]: NAMES}
    return kinds[attribute.type]


attrs.resolve_types(GroupSettings)
KNOBS = {
    attribute.name: Argument(_setting_kind(attribute), f"knob `{attribute.name}`")
    for attribute in attrs.fields(GroupSettings)
    if attribute.name != "options"
}
KNOBS["options"] = Argument(OPTIONS, "what the assignor wants to be told; those not named are as they were, another assignor begins with none")
KNOBS |= {alias: Argument(KNOBS[name].kind, f"the same as `{name}`") for alias, name in _ALIASES.items()}
CONFIG = {
    "assignor": Argument(TEXT, "name of the assignor"),
    "behaviour_version": Argument(WHOLE, "its behaviour version; default: the newest"),
    "solver": Argument(TEXT, "the solver it pins; default: this build's"),
    "led_by": Argument(one_of("equipoise", "external"), "who leads the group"),
}


def _settings(said: Said, base: GroupSettings) -> GroupSettings:
    changes = said.given(*KNOBS)
    for alias, name in _ALIASES.items():
        if alias in changes:
            changes[name] = changes.pop(alias)
    if "options" in changes:
        changes["options"] = {**base.options, **changes["options"]}
    try:
        return attrs.evolve(base, **changes)
    except FieldError as error:
        raise said.error(str(error)) from None


def _config(said: Said, before: GroupConfigured) -> GroupConfigured:
    changes = said.given(*CONFIG)
    base = before.knobs if changes.get("assignor", before.assignor) == before.assignor else attrs.evolve(before.knobs, options={})
    config = attrs.evolve(before, knobs=_settings(said, base), **changes)
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
    **KNOBS,
    **TIME,
)
def group(play: Play, said: Said) -> None:
    for name, value in said.given("session_timeout_ms", "lease_margin_ms").items():
        setattr(play.defaults, name, value)
    play.move_clock(said)
    play.append(_config(said, GroupConfigured(knobs=DEFAULT_KNOBS)), quiet=True)


@directive("configure", "", "GroupConfigured: the configuration as it is, with these changes (PROTOCOL D8).", **CONFIG, **KNOBS, **TIME)
def configure(play: Play, said: Said) -> None:
    play.move_clock(said)
    play.append(_config(said, play.config(said)))


def _sizes(said: Said, tasks: tuple[TaskId, ...], name: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for task in tasks:
        if task.partition != sizes.get(task.subtopology, 0):
            raise said.error(f"{name}: sub-topology {task.subtopology} has no task {task.subtopology}_{sizes.get(task.subtopology, 0)} but {task}")
        sizes[task.subtopology] = task.partition + 1
    return sizes


def _declare(play: Play, said: Said, stateful: dict[int, int], stateless: dict[int, int], *, quiet: bool) -> None:
    before = play.state.topology
    parts = [
        play.make(
            said,
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
        raise said.error(f"sub-topology {number} is either stateful or stateless")
    epoch = said.get("epoch", 0 if before is None else before.epoch + 1)
    play.append(TopologyDeclared(epoch=epoch, subtopologies=tuple(parts)), quiet=quiet)


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
def tasks(play: Play, said: Said) -> None:
    play.move_clock(said)
    stateful, stateless = _sizes(said, said.get("stateful", ()), "stateful"), _sizes(said, said.get("stateless", ()), "stateless")
    _declare(play, said, stateful, stateless, quiet=True)
    if said.has("ends"):
        _observe_ends(play, said.get("ends", {}), quiet=True)


def _observe_ends(play: Play, ends: dict[TaskId, int], *, quiet: bool) -> None:
    by_topic: dict[str, dict[int, int]] = {}
    for task, end in ends.items():
        by_topic.setdefault(changelog(task.subtopology), {})[task.partition] = end
    play.append(PartitionsObserved(end_offsets=by_topic), quiet=quiet)


@directive(
    "topology",
    "",
    "TopologyDeclared, by sub-topology: number and count of partitions.",
    epoch=Argument(WHOLE, "topology epoch; default: 0, then one more each time"),
    stateful=Argument(SIZES, "sub-topologies with state"),
    stateless=Argument(SIZES, "sub-topologies without"),
    **TIME,
)
def topology(play: Play, said: Said) -> None:
    play.move_clock(said)
    _declare(play, said, said.get("stateful", {}), said.get("stateless", {}), quiet=False)


@directive(
    "partitions",
    "",
    "PartitionsObserved (PROTOCOL D6): end offsets by task, or end offsets, racks, weights and source lags of one topic's partitions.",
    ends=Argument(ENDS, "end offset of each task's changelog partition"),
    topic=Argument(TEXT, "the topic that `end_offsets=`, `racks=`, `weights=` and `source_lags=` are of"),
    end_offsets=Argument(PARTITIONS, "partition: end offset"),
    racks=Argument(RACKS, "partition: racks of its replicas"),
    weights=Argument(PARTITIONS, "partition: its traffic; 1 where nothing is said"),
    source_lags=Argument(PARTITIONS, "partition: records that the group has still to read"),
    **TIME,
)
def partitions(play: Play, said: Said) -> None:
    play.move_clock(said)
    if said.has("ends"):
        _observe_ends(play, said.get("ends", {}), quiet=False)
        return
    if not said.has("topic"):
        raise said.error("name a topic=, or ends= by task")
    topic = said.get("topic", "")
    told: dict[str, object] = {name: {topic: said.get(name, {})} for name in ("end_offsets", "racks", "weights", "source_lags") if said.has(name)}
    play.append(play.make(said, PartitionsObserved, **told))


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
    ended=Argument(WHOLE, "the incarnation it proves dead (PROTOCOL M5)"),
    lags=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "yes: it gives up everything before any change of what it runs"),
    readiness=Argument(one_of(*READINESS), "what makes a copy of it ready (PROTOCOL M2); word_or_lag"),
    ready_lag_records=Argument(WHOLE, "a limit of its own for that"),
    **TIME,
)
def join(play: Play, said: Said) -> None:
    play.move_clock(said)
    newest = play.state.topology
    for member_id in said.members():
        before = play.actors.get(member_id)
        fact = play.make(
            said,
            MemberJoined,
            member_id=member_id,
            incarnation=said.get("incarnation", 1 if before is None else before.incarnation + 1),
            session_timeout_ms=said.get("session_timeout_ms", play.defaults.session_timeout_ms),
            lease_margin_ms=said.get("lease_margin_ms", play.defaults.lease_margin_ms),
            topology_epoch=said.get("epoch", 0 if newest is None else newest.epoch),
            join_nonce=said.get("nonce", "") or play.next_nonce(),
            ended_incarnation=said.find("ended"),
            lags=said.get("lags", {}),
            **said.given("capacity", "rack", "tags", "eager", "readiness", "ready_lag_records"),
        )
        play.append(fact)


INCARNATION = Argument(WHOLE, "which one speaks; default: its latest")
EPOCH = Argument(WHOLE, "the assignment epoch it has applied; default: the one it said last")


@directive(
    "report",
    "MEMBER...",
    "LagReported, word for word (PROTOCOL M2): what is not given is as in its last report that was not refused. A full one unless `base=` is given.",
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
def report(play: Play, said: Said) -> None:
    play.move_clock(said)
    for member_id in play.live_members(said):
        actor = play.actor(said, member_id)
        before = attrs.evolve(actor)
        actor.applied_epoch = said.get("epoch", actor.applied_epoch)
        actor.held = said.get("held", actor.held)
        actor.ready = said.get("ready", actor.ready)
        actor.leaving = said.get("leaving", actor.leaving)
        if said.has("restores_per_s"):
            actor.load = Load(restored_records_per_s=said.get("restores_per_s", 0))
        if said.has("cpu_percent") or said.has("processes"):
            speed = 0.0 if actor.load is None else actor.load.restored_records_per_s
            busy = said.get("cpu_percent", 0) / 100
            actor.load = play.make(said, Load, cpu=busy, restored_records_per_s=speed, tasks=dict(said.get("processes", {})))
        if said.has("behind"):
            actor.load = play.make(said, functools.partial(attrs.evolve, actor.load or Load()), behind=dict(said.get("behind", {})))
        lags = said.get("lags", actor.lags)
        rest: dict[str, object] = said.given("number", "preparing", "failed")
        if said.has("base"):
            rest |= {"base": said.get("base", 0), "lags": said.get("lags", {}), "forgotten": said.get("forgotten", ())}
            lags = {task: lag for task, lag in {**actor.lags, **said.get("lags", {})}.items() if task not in said.get("forgotten", ())}
        actor.lags = dict(lags)
        try:
            fact = actor.report(**rest)
        except FieldError as error:
            raise said.error(str(error)) from None
        if any(isinstance(record.decision, EventRejected) for record in play.append(fact)):
            actor.take_back(before)


@directive(
    "ready", "MEMBER TASKS", "TaskReady: copies are restored; says it sooner than the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME
)
def ready(play: Play, said: Said) -> None:
    _say_of_tasks(play, said, TaskReady)


@directive(
    "revoked", "MEMBER TASKS", "TasksRevoked: tasks are given up; says it sooner than the next report.", incarnation=INCARNATION, epoch=EPOCH, **TIME
)
def revoked(play: Play, said: Said) -> None:
    _say_of_tasks(play, said, TasksRevoked)


def _say_of_tasks(play: Play, said: Said, kind: type[TaskReady] | type[TasksRevoked]) -> None:
    play.move_clock(said)
    actor = play.actor(said, said.member)
    try:
        of = TASKS.read(said.directive.words[1])
    except InputError as error:
        raise said.error(str(error)) from None
    if kind is TasksRevoked:
        actor.held = tuple(task for task in actor.held if task not in of)
    else:
        actor.ready = tuple(sorted({*actor.ready, *of}))
    epoch = said.get("epoch", actor.granted.assignment_epoch if actor.granted else 0)
    play.append(kind(member_id=actor.member_id, incarnation=actor.incarnation, assignment_epoch=epoch, tasks=of))


@directive("leave-intent", "MEMBER...", "LeaveIntended: it wants to leave once its tasks run elsewhere.", incarnation=INCARNATION, **TIME)
def leave_intent(play: Play, said: Said) -> None:
    play.move_clock(said)
    for member_id in said.members():
        actor = play.actor(said, member_id)
        actor.leaving = True
        play.append(LeaveIntended(member_id=member_id, incarnation=actor.incarnation))


@directive("leave-cancel", "MEMBER...", "LeaveCancelled: it stays after all.", incarnation=INCARNATION, **TIME)
def leave_cancel(play: Play, said: Said) -> None:
    play.move_clock(said)
    for member_id in said.members():
        actor = play.actor(said, member_id)
        actor.leaving = False
        play.append(LeaveCancelled(member_id=member_id, incarnation=actor.incarnation))


@directive(
    "leave-request", "MEMBER...", "LeaveRequested: an operator asks them all to leave (PROTOCOL M8).",
    withdrawn=Argument(YES_NO, "yes: they are to stay after all"), **TIME,
)  # fmt: skip
def leave_request(play: Play, said: Said) -> None:
    play.move_clock(said)
    play.append(LeaveRequested(members=tuple(sorted(said.members())), withdrawn=said.get("withdrawn", False)))


@directive("deal", "", "DealRequested: an operator asks for a new deal (PROTOCOL D11).", **TIME)
def deal(play: Play, said: Said) -> None:
    play.move_clock(said)
    play.append(DealRequested())


@directive("left", "MEMBER...", "MemberLeft: its own word that it has stopped everything.", incarnation=INCARNATION, **TIME)
def left(play: Play, said: Said) -> None:
    play.move_clock(said)
    for member_id in said.members():
        play.append(MemberLeft(member_id=member_id, incarnation=play.actor(said, member_id).incarnation))


@directive(
    "tick",
    "",
    "ProbingTick, once or `n=` times. Of several, those that decide something are told and the others counted.",
    n=Argument(WHOLE, "how many; 1"),
    every_ms=Argument(WHOLE, "time before each; 0 for one, 1000 for several"),
    **TIME,
)
def tick(play: Play, said: Said) -> None:
    play.move_clock(said)
    count = said.get("n", 1)
    if not said.has("n"):
        play.stage.append_ms += said.get("every_ms", 0)
        play.append(ProbingTick())
        return
    silent = 0
    for _ in range(count):
        play.stage.append_ms += said.get("every_ms", 1_000)
        silent += not play.append(ProbingTick(), quiet=True)
    play.say(f"({silent} of {count} ticks decided nothing)")


@directive(
    "observe",
    "",
    "AssignmentObserved: what the leader of a group `led_by=external` decided (PROTOCOL D7).",
    generation=Argument(WHOLE, "its generation; default: the next"),
    active=Argument(BY_MEMBER, "what each member runs; a member without tasks as `m1:`"),
    standby=Argument(BY_MEMBER, "copies"),
    incarnation=Argument(WHOLE, "of every member named; default: its latest"),
    **TIME,
)
def observe(play: Play, said: Said) -> None:
    play.move_clock(said)
    active: dict[str, tuple[TaskId, ...]] = said.get("active", {})
    standby: dict[str, tuple[TaskId, ...]] = said.get("standby", {})
    members = tuple(
        ObservedMember(member_id=name, incarnation=play.actor(said, name).incarnation, active=active.get(name, ()), standby=standby.get(name, ()))
        for name in sorted(active.keys() | standby.keys())
    )
    play.append(AssignmentObserved(generation=said.get("generation", play.state.generation + 1), members=members))


@directive(
    "bytes",
    "HEX",
    "Bytes that a sender appended, read as the codec reads them: a sound fact, Undecodable, or a kind or version that halts the group (PROTOCOL L6).",
    kind=Argument(WHOLE, "type code"),
    version=Argument(WHOLE, "schema version; 1"),
    times=Argument(WHOLE, "they stand there so many times; 1"),
    **TIME,
)
def raw_bytes(play: Play, said: Said) -> None:
    play.move_clock(said)
    try:
        payload = bytes.fromhex(said.directive.words[0]) * said.get("times", 1)
    except ValueError:
        raise said.error(f"{said.directive.words[0]!r} is not hexadecimal") from None
    kind, version = said.get("kind", 6), said.get("version", 1)
    try:
        fact = codec.decode_lenient(kind, version, payload)
    except UnknownEventError as error:
        play.say(f"!! halted unknown_event: {error}")
        return
    play.append(fact)


@directive(
    "undecodable",
    "[MEMBER]",
    "The fact of a member (default m1) with one byte damaged on its way, as the codec reads it: Undecodable.",
    **TIME,
)
def undecodable(play: Play, said: Said) -> None:
    play.move_clock(said)
    member_id = said.directive.words[0] if said.directive.words else "m1"
    kind, version, payload = codec.encode(LeaveIntended(member_id=member_id, incarnation=1))
    play.append(codec.decode_lenient(kind, version, payload[:-1] + b"\xc1"))
