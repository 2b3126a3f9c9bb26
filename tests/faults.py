"""Faults that operators, upgrades and hostile senders cause: each as the facts or bytes that it
puts into the log.

Pure functions of what is in force and of a number, so that a plan of faults is data. The storms on
the simulated cluster (`tests.storm_faults`), the storms on real brokers (`tests.live.storm`), the
machine under arbitrary facts (`tests.properties`) and the exhaustive search (`tests.search`) carry
them out, each in its own way.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, cast

import attrs
import msgpack

from equipoise.assignors import registry
from equipoise.events import codec, facts, fields, upcasters, wire
from equipoise.events.facts import Fact, GroupConfigured, LagReported, MemberJoined, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings, Scalar
from equipoise.events.tasks import TaskId
from equipoise.log.kafka.envelope import group_key, pack_fact, pack_payload, read_fact
from equipoise.statemachine.member import MemberSession, MemberSettings

# Settings

OPTIONS: dict[str, tuple[dict[str, Scalar], ...]] = {
    "cooperative": ({}, {"scheduled_delay_ms": 20_000}, {"scheduled_delay_ms": 0}),
    "lag_aware": ({}, {"cross_topic": True}, {"deal_after_ms": 60_000, "deal_gain_records": 1}),
    "learner": ({}, {"strict": True}),
    "load_balanced": ({}, {"load_high_percent": 2, "load_low_percent": 1}),
}
"""Assignor -> options for it in a storm."""


def raised_and_lowered(attribute: attrs.Attribute[Any]) -> tuple[Any, ...]:
    """Values of a setting: a number's limits, a tenth and ten times its default; every allowed
    word; no tag and some. `options` are the assignor's: see OPTIONS.
    """
    validator = fields.validator_of(attribute)
    limits = dict(inspect.getclosurevars(validator).nonlocals)
    match validator.__qualname__.split(".")[0]:
        case "integer":
            least, most, default = limits["least"], limits["most"], cast(int, attribute.default)
            near = (max(least, default // 10), min(most, max(1, default) * 10))
            return tuple(dict.fromkeys((least, *near, most)))
        case "one_of":
            return tuple(limits["allowed"])
        case "tuple_of":
            return (), ("zone",), ("rack", "zone")
        case "mapping_of":
            return ()
    raise NotImplementedError(f"GroupSettings.{attribute.name}: no values for {validator.__qualname__}; add them here")


SETTINGS: tuple[tuple[str, Any], ...] = tuple((each.name, value) for each in attrs.fields(GroupSettings) for value in raised_and_lowered(each))
"""Every setting of a group with every value that a fault sets it to, derived from the class: a new
setting is included.
"""


def with_setting(config: GroupConfigured, which: int, *, least_step_ms: int = 1, most_step_ms: int | None = None) -> GroupConfigured:
    """`config` with one setting raised or lowered. `least_step_ms`: a lower `max_step_ms` becomes
    this, where ticks so close to each other would fill the log. `most_step_ms`: a higher one
    becomes this, where members with a smaller margin join later and would rightly be refused.
    """
    name, value = SETTINGS[which % len(SETTINGS)]
    if name == "max_step_ms":
        value = max(value, least_step_ms) if most_step_ms is None else min(max(value, least_step_ms), most_step_ms)
    return attrs.evolve(config, knobs=attrs.evolve(config.knobs, **{name: value}))


ASSIGNORS: tuple[tuple[str, dict[str, Scalar]], ...] = tuple(
    (name, options) for name in sorted({name for name, _ in registry.available()}) for options in OPTIONS.get(name, ({},))
)
"""Every assignor with each of its OPTIONS."""


def with_assignor(config: GroupConfigured, which: int) -> GroupConfigured:
    """`config` with another assignor, in its newest version."""
    name, options = ASSIGNORS[which % len(ASSIGNORS)]
    latest = registry.latest(name)
    settings = attrs.evolve(config.knobs, options=options)
    return attrs.evolve(config, assignor=latest.name, behaviour_version=latest.version, solver=latest.solver, knobs=settings)


def with_other_leader(config: GroupConfigured) -> GroupConfigured:
    """`config` led by something else if equipoise leads, and the other way round."""
    return attrs.evolve(config, led_by="external" if config.led_by == "equipoise" else "equipoise")


# Topologies

MOST_PARTITIONS = 16


def grown(topology: TopologyDeclared, which: int) -> TopologyDeclared:
    """The next epoch: one sub-topology has more partitions, up to MOST_PARTITIONS; or, when it has
    these, half as many.
    """
    parts = list(topology.subtopologies)
    at = which % len(parts)
    wanted = parts[at].partitions + 1 + which % 3
    parts[at] = attrs.evolve(parts[at], partitions=wanted if wanted <= MOST_PARTITIONS else MOST_PARTITIONS // 2)
    return TopologyDeclared(epoch=topology.epoch + 1, subtopologies=tuple(parts))


def renumbered(topology: TopologyDeclared, which: int) -> TopologyDeclared:
    """The next epoch: the sub-topologies have other numbers, as after a step was put before them.
    One number may now be another sub-topology's.
    """
    parts = topology.subtopologies
    turned = parts[1:] + parts[:1]
    first = 0 if len(parts) > 1 else which % 3
    moved = tuple(attrs.evolve(part, subtopology=first + index) for index, part in enumerate(turned))
    return TopologyDeclared(epoch=topology.epoch + 1, subtopologies=moved)


# Two builds


def older_payload(fact: Fact) -> tuple[int, int, bytes] | None:
    """Kind, version and payload of a fact as the build before the last change of its schema writes
    it; None: its schema never changed.
    """
    code = codec.kind_of(fact)
    version = codec.KINDS[code][0] - 1
    past = upcasters.PAST_SHAPES.get((code, version))
    return None if past is None else (code, version, msgpack.packb(_writer(code, version)(_narrowed(fact, past))))


def by_older_build(fact: Fact) -> Fact:
    """What is read of a fact that the build before the last change of its schema has written."""
    older = older_payload(fact)
    return fact if older is None else cast(Fact, codec.decode(*older))


@functools.cache
def _writer(code: int, version: int) -> Callable[[Any], list[Any]]:
    return wire.writer(upcasters.PAST_SHAPES[code, version])


def _narrowed(value: Any, past: type) -> Any:
    """The instance of an earlier class that has the same fields, as far as it has them."""
    kept: dict[str, Any] = {}
    for each in attrs.fields(past):
        found = getattr(value, each.name)
        inner = _class_of(fields.validator_of(each))
        kept[each.name] = _narrowed(found, inner) if inner is not None and found is not None else found
    return past(**kept)


def _class_of(validator: Any) -> type | None:
    """The class that a field's validator asks for; None: it asks for no class."""
    given = dict(inspect.getclosurevars(validator).nonlocals) if inspect.isfunction(validator) else {}
    inner = given.get("inner")
    return given.get("kind") if inner is None else _class_of(inner)


class OlderBuild(MemberSession):
    """A member's session whose facts have the schemas before the last change."""

    def join(self, now_ms: int) -> MemberJoined:
        return cast(MemberJoined, by_older_build(super().join(now_ms)))

    def poll(self, now_ms: int) -> list[Fact]:
        return [by_older_build(fact) for fact in super().poll(now_ms)]


class Builds:
    """Which members run the older build: a session factory."""

    def __init__(self) -> None:
        self.older: set[str] = set()

    def __call__(self, settings: MemberSettings) -> MemberSession:
        return OlderBuild(settings) if settings.member_id in self.older else MemberSession(settings)


# Hostile and giant

LONG_ID_CHARS = 200


def long_id(member_id: str) -> str:
    """A member id of LONG_ID_CHARS characters."""
    return f"{member_id}-".ljust(LONG_ID_CHARS, "x")


STRANGER = long_id("a stranger")


def hostile_values() -> tuple[bytes, ...]:
    """Values of records that are no sound fact, whatever this build reads."""
    report = pack_fact(LagReported(STRANGER, 1, 1, 1))
    kind, version, payload = codec.encode(LagReported(STRANGER, 1, 1, 1))
    return (
        b"",
        b"\xc1",
        report[: len(report) // 2],
        report + b"\x00",
        pack_payload(kind, version, b"\x91" * 100_000),  # nested too deeply
        pack_payload(kind, version, b"\xdd\xff\xff\xff\xff"),  # claims four thousand million items
        pack_payload(kind, version, b"\xdc\x00\x01" + payload[1:]),  # a length in more bytes than it needs
        pack_payload(kind, version, b"\xc4\xff" + bytes(255)),
        pack_payload(kind, version, bytes(codec.MOST_EVENT_BYTES + 1)),
        pack_payload(kind, version, msgpack.packb(["\x00" * 1_001, 1, 1, 1, [], [], {}, None, [], False, None, [], []])),
        pack_payload(kind, version, msgpack.packb(["m", -1, 2**63, 1, [], [], {}, None, [], False, None, [], []])),
        pack_payload(103, 1, payload),  # a decision among the facts
        pack_fact(facts.LogOpened(log_id="another", partitions=1)),
    )


HOSTILE = hostile_values()


def hostile(which: int, group: str) -> Fact:
    """What is folded of one of HOSTILE."""
    return read_fact(group_key(group), HOSTILE[which % len(HOSTILE)], 1, 0).event


def giant(which: int) -> Fact:
    """A sound fact that is very long, or has fields at their limits, and that must change nothing
    that anybody relies on.
    """
    made = _giants()
    return made[which % len(made)]


@functools.cache
def _giants() -> tuple[Fact, ...]:
    top = fields.INT64_MAX
    furthest = fields.MOST_TASK_NUMBER
    return (
        facts.PartitionsObserved(end_offsets={"t" * 249: dict.fromkeys(range(40), top)}, weights={"t" * 249: {1_000_000: 0}}),
        LagReported(STRANGER, top, top, top, lags=dict.fromkeys((TaskId(furthest, number) for number in range(3_000)), top)),
        facts.LeaveRequested(members=tuple(sorted(long_id(f"nobody {number}") for number in range(1_000)))),
        facts.AssignmentObserved(
            generation=top,
            members=tuple(facts.ObservedMember(member_id=long_id(f"nobody {number}"), incarnation=top) for number in range(500)),
        ),
        TopologyDeclared(epoch=0, subtopologies=(Subtopology(subtopology=furthest, partitions=facts.MOST_TASKS, stateful=True),)),
        facts.TaskReady(member_id=STRANGER, incarnation=top, assignment_epoch=top, tasks=tuple(TaskId(furthest, number) for number in range(3_000))),
    )


def stranger(which: int, nonce: str) -> MemberJoined:
    """A member joins whose id and fields are at their limits, and which never says anything more.
    Its session is short, so that it goes.
    """
    top = fields.INT64_MAX
    return MemberJoined(
        member_id=STRANGER,
        incarnation=which,
        capacity=(1, 1_000_000)[which % 2],
        rack=(None, "r" * fields.MOST_TEXT_CHARS)[which // 2 % 2],
        session_timeout_ms=6_000,
        lease_margin_ms=5_999,
        topology_epoch=(0, 1, top)[which % 3],
        join_nonce=nonce,
        ended_incarnation=(None, top)[which // 3 % 2],
        lags={} if which % 5 else dict.fromkeys((TaskId(0, number) for number in range(1_000)), top),
        eager=which % 4 == 0,
        readiness=facts.READINESS[which % len(facts.READINESS)],
        ready_lag_records=(None, 0, top)[which % 3],
        advertised=(None, "a" * fields.MOST_TEXT_CHARS)[which % 2],
    )


# Redeployed


def redeployed_settings(which: int, most_session_ms: int, *, least_margin_ms: int) -> tuple[int, int]:
    """Session timeout and lease margin of a process that is started with others, both in ms."""
    session_ms = (most_session_ms * 3 // 5, most_session_ms * 4 // 5, most_session_ms)[which % 3]
    return session_ms, (least_margin_ms, math.isqrt(least_margin_ms * session_ms), session_ms // 2)[which // 3 % 3]
