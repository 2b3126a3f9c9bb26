"""Valid facts with extreme values, drawn from a seed: each number is at or near an end of what its
field accepts, while members, incarnations, tasks and epochs are mostly those that the group knows.

The fields come from the classes of the events, so a new field is drawn, too.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.events import codec, facts, fields
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.state import GroupState

MEMBERS = ("m1", "m2", "m3", "ü" * 100, "x" * fields.MOST_TEXT_CHARS)
TOPICS = ("t", "u", "v")
LARGE = (0.0, 1e-320, 1.0, 1e15, 1e19, 1e300, 1.7976931348623157e308)
MOST_ITEMS = 5
USUAL = {"session_timeout_ms": 30_000, "lease_margin_ms": 3_000, "max_step_ms": 1_000}
"""Values with which most joins are accepted."""
_OFTEN = {
    facts.LagReported: 20,
    facts.MemberJoined: 12,
    facts.PartitionsObserved: 12,
    facts.ProbingTick: 6,
    facts.RestartIntended: 6,
    facts.TopologyDeclared: 2,
    facts.RoundAsked: 2,
    facts.GroupRejoined: 2,
}
KINDS = [
    kind
    for code, (_, kind) in codec.KINDS.items()
    if code < codec.FIRST_DECISION_KIND and kind not in (facts.LogOpened, facts.Undecodable)
    for _ in range(_OFTEN.get(kind, 1))
]
ASSIGNORS = sorted(registry.available())


class Extremes:
    """Draws facts for the group of `state`, which the caller folds them into."""

    def __init__(self, seed: int, state: Callable[[], GroupState]) -> None:
        self._dice = random.Random(seed)
        self._state = state
        self._kind: type = object

    def fact(self) -> Any:
        """One fact of any kind."""
        while True:
            try:
                return self.made(self._dice.choice(KINDS))
            except FieldError:  # fields that do not fit each other; others will
                continue

    def configuration(self) -> facts.GroupConfigured:
        """An assignor of this build, with settings at their ends, and a checkpoint at each fact."""
        name, version = self._dice.choice(ASSIGNORS)
        drawn = {field.name: self.of(fields.validator_of(field), field.name) for field in attrs.fields(GroupSettings) if field.name != "options"}
        kept = {name: value for name, value in drawn.items() if self._dice.random() < 0.3}
        return facts.GroupConfigured(
            assignor=name,
            behaviour_version=version,
            solver=registry.load(name, version).solver,
            led_by="external" if self._dice.random() < 0.1 else "equipoise",
            knobs=GroupSettings(**{**kept, "checkpoint_every_records": 1, "num_standbys": self._dice.choice((0, 1, 2, 1_000))}),
        )

    def step_ms(self) -> int:
        """How far the broker's clock moves until the next fact."""
        return self._dice.choice((0, 1, 500, 1_000, 10_000, 10**9, -(10**6), 2**61, 2**62))

    def made(self, kind: Any) -> Any:
        """An instance of an event class, or of a class that events are made of. Raises FieldError
        when its fields do not fit each other.
        """
        if kind is facts.GroupConfigured:
            return self.configuration()
        if kind is facts.Subtopology:
            return self._subtopology()
        drawn = {field.name: self.of(fields.validator_of(field), field.name) for field in attrs.fields(kind)}
        member = self._state().members.get(drawn.get("member_id", ""))
        if member is not None and self._dice.random() < 0.7:  # what a truthful member says
            copies = {task: self._dice.choice((0, self._number())) for task in (*member.standby, *member.warmup)}
            truth = {
                "incarnation": member.incarnation,
                "assignment_epoch": member.issued_epoch,
                "number": member.report_number + 1,
                "report": member.report_number,
                "base": None,
                "held": tuple(sorted(member.active)),
                "ready": (),
                "lags": copies,
                "preparing": {},
                "failed": (),
                "tasks": tuple(sorted(member.warmup or member.revoking)),
            }
            drawn |= {name: value for name, value in truth.items() if name in drawn and kind is not facts.MemberJoined}
        return kind(**drawn)

    def of(self, validator: Any, name: str) -> Any:
        """A value that `validator` accepts, for the field `name`."""
        known = self._known(name)
        if known is not None:
            return known
        if validator in (fields.boolean, fields.task, fields.task_set, fields.lags, fields.scalar):
            return {
                fields.boolean: lambda: self._dice.random() < 0.3,
                fields.task: self._task,
                fields.task_set: self._tasks,
                fields.lags: self._lags,
                fields.scalar: self._number,
            }[validator]()
        given = dict(inspect.getclosurevars(validator).nonlocals)
        match validator.__qualname__.split(".")[0]:
            case "integer":
                return self._number(given["least"], given["most"])
            case "number":
                return max(given["least"], self._dice.choice((*LARGE, self._dice.random())))
            case "text":
                return self._dice.choice(("a", "b", "é" * given["most_chars"]))[: given["most_chars"]] if given["most_chars"] else ""
            case "one_of":
                return self._dice.choice(sorted(given["allowed"]))
            case "optional":
                return None if self._dice.random() < 0.4 else self.of(given["inner"], name)
            case "tuple_of":
                most = min(MOST_ITEMS, MOST_ITEMS if given["most_items"] is None else given["most_items"])
                items = [self.of(given["item"], "") for _ in range(self._dice.randint(0, most))]
                return tuple(sorted({repr(each): each for each in items}.values(), key=_order))
            case "mapping_of":
                is_topic = given["key"].__qualname__.startswith("text")
                keys = [self._dice.choice(TOPICS) if is_topic else self._key(given["key"]) for _ in range(self._dice.randint(0, MOST_ITEMS))]
                return {key: self.of(given["item"], "") for key in keys}
            case "instance_of":
                return self.made(given["kind"])
        raise NotImplementedError(f"no extremes for {validator.__qualname__}; add them here")

    def _known(self, name: str) -> Any:
        """A value that the group knows, for a field of this name; None: any value will do."""
        state, dice = self._state(), self._dice
        if name in ("member_id", "topic"):
            return dice.choice(MEMBERS if name == "member_id" else TOPICS)
        if name in USUAL and dice.random() < 0.6:
            return USUAL[name]
        if name in ("incarnation", "assignment_epoch", "number", "topology_epoch", "epoch") and dice.random() < 0.8:
            members = list(state.members.values())
            epoch = 0 if state.topology is None else state.topology.epoch
            if name in ("topology_epoch", "epoch") or not members:
                return min(max(1, epoch + (name == "epoch")), fields.INT64_MAX)
            member = dice.choice(members)
            return {"incarnation": member.incarnation, "assignment_epoch": member.issued_epoch}.get(name, member.report_number + 1)
        return None

    def _number(self, least: int = 0, most: int = fields.INT64_MAX) -> int:
        near = (least, least + 1, most, most - 1, most // 2, least + self._dice.randint(0, 5), least + self._dice.randint(0, 100_000))
        return max(least, min(most, self._dice.choice(near)))

    def _key(self, validator: Any) -> Any:
        return self._dice.randint(0, 6) if validator.__qualname__.startswith("integer") and self._dice.random() < 0.8 else self.of(validator, "")

    def _task(self) -> TaskId:
        return TaskId(self._dice.choice((0, 0, 1, fields.MOST_TASK_NUMBER)), self._dice.choice((0, 1, 2, 3, fields.MOST_TASK_NUMBER)))

    def _tasks(self) -> tuple[TaskId, ...]:
        return tuple(sorted({self._task() for _ in range(self._dice.randint(0, MOST_ITEMS))}))

    def _lags(self) -> dict[TaskId, Any]:
        return {self._task(): self._dice.choice((self._number(), self._number(), *LagSentinel)) for _ in range(self._dice.randint(0, MOST_ITEMS))}

    def _subtopology(self) -> facts.Subtopology:
        topics = [tuple(self._dice.sample(TOPICS, self._dice.choice((0, 1, 3, 3)))) for _ in range(2)]
        return facts.Subtopology(
            subtopology=self._dice.choice((0, 0, 1, fields.MOST_TASK_NUMBER)),
            partitions=self._dice.choice((1, 3, 6)),
            stateful=self._dice.random() < 0.7,
            source_topics=topics[0],
            changelog_topics=topics[1],
        )


def _order(item: Any) -> Any:
    for name in ("member_id", "subtopology", "epoch"):
        if hasattr(item, name):
            return getattr(item, name)
    return item
