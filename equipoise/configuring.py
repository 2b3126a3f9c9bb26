"""Changes the configuration of a live group: what `equipoise configure` does.

A configuration is a fact (docs/protocol.md#d8). It is appended here, and a worker answers it: it is in force, or it is rejected and the one before
stays in force.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from assignors import registry
from assignors.problem import check_knobs
from equipoise.live import LiveSettings
from equipoise.live_group import LiveGroup
from events import codec
from events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, Move
from events.errors import InputError
from events.facts import GroupConfigured, ProbingTick
from events.knobs import Knobs
from events.records import DecisionRecord, Record
from statemachine.machine import GroupMachine
from statemachine.rejections import rejection_text


@attrs.frozen(kw_only=True)
class Change:
    """One setting that differs between two configurations. `name`: of a knob, ``options.NAME``, ``assignor``, ``solver`` or ``led_by``.

    None: the setting is absent.
    """

    name: str
    before: Any
    after: Any


@attrs.frozen(kw_only=True)
class Preview:
    """What the group would decide at once if the configuration were appended now.

    `rejection`: why it would be rejected; None: it would not. `moves`: what the first round would begin. `planned_movements`: movements until the new
    target is reached, in tasks; None: the evaluation would not change.
    """

    rejection: str | None
    moves: tuple[Move, ...]
    planned_movements: int | None


def settings_of(config: GroupConfigured) -> dict[str, Any]:
    """Every setting of a configuration by name, as `Change` names them."""
    knobs = attrs.asdict(config.knobs)
    options = knobs.pop("options")
    head = {"assignor": f"{config.assignor}@{config.behaviour_version}", "solver": config.solver, "led_by": config.led_by}
    return {**head, **knobs, **{f"options.{name}": value for name, value in options.items()}}


def changes_between(before: GroupConfigured, after: GroupConfigured) -> list[Change]:
    """What differs, in the order of `settings_of`."""
    old, new = settings_of(before), settings_of(after)
    return [Change(name=name, before=old.get(name), after=new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def with_assignor(config: GroupConfigured, text: str) -> GroupConfigured:
    """`config` with another assignor: ``NAME``, in its latest version, or ``NAME@VERSION``. Options belong to an assignor: another one has none.

    Raises InputError when this installation has no such assignor.
    """
    name, at, version = text.partition("@")
    if at and not (version.isascii() and version.isdigit()):
        raise InputError(f"--assignor {text}: write it as NAME or NAME@VERSION, as high_availability@1")
    try:
        assignor = registry.load(name, int(version)) if at else registry.latest(name)
    except InputError as error:
        raise InputError(f"--{error}") from None
    knobs = config.knobs if assignor.name == config.assignor else attrs.evolve(config.knobs, options={})
    return attrs.evolve(config, assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=knobs)


def with_defaults(knobs: Knobs, names: Iterable[str]) -> Knobs:
    """`knobs` with the named settings at their defaults; an option (``options.NAME``) is removed. Raises InputError for a name that is none."""
    defaults: Mapping[str, Any] = attrs.asdict(Knobs(), recurse=False)
    options = dict(knobs.options)
    changes = {}
    for name in names:
        if name.removeprefix("options.") in options and name.startswith("options."):
            del options[name.removeprefix("options.")]
        elif name in defaults and name != "options":
            changes[name] = defaults[name]
        else:
            raise InputError(f"--default {name}: the group has no such setting; `equipoise configure --group GROUP` lists them")
    return attrs.evolve(knobs, **changes, options=options)


def check_configuration(config: GroupConfigured) -> None:
    """Raises InputError when this installation has the assignor and the assignor does not take the settings, or when it lacks the assignor."""
    check_knobs(registry.load(config.assignor, config.behaviour_version), config.knobs)


def way_back(group: str, before: GroupConfigured, after: GroupConfigured) -> str:
    """The command that restores `before` once `after` is in force."""
    words = ["equipoise", "configure", "--group", group]
    for change in changes_between(after, before):
        if change.name == "solver":
            continue  # it follows from the assignor
        if change.name in ("assignor", "led_by"):
            words += [f"--{change.name.replace('_', '-')}", str(change.after)]
        elif change.after is None:
            words += ["--default", change.name]
        else:
            words += ["--set", f"{change.name}={_text(change.after)}"]
    return shlex.join(words)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def preview(machine: GroupMachine, config: GroupConfigured) -> Preview:
    """What the machine would decide if `config` were the next fact, at once. The machine itself stays as it is."""
    state = machine.state
    copy = GroupMachine.restore(machine.snapshot())
    decisions = [each.decision for each in copy.step(Record(state.group, state.last_offset + 1, state.last_append_ms or 0, config))]
    rejected = next((each for each in decisions if isinstance(each, EventRejected)), None)
    evaluated = next((each for each in decisions if isinstance(each, BalanceEvaluated)), None)
    return Preview(
        rejection=None if rejected is None else rejection_text(rejected, config),
        moves=tuple(move for each in decisions if isinstance(each, AssignmentIssued) for move in each.moves),
        planned_movements=None if evaluated is None else evaluated.planned_movements,
    )


class Configuring(LiveGroup):
    """Appends one configuration and finds the answer to it."""

    def __init__(self, settings: LiveSettings, group: str) -> None:
        super().__init__(settings, group, folded=self._note)
        self.offset: int | None = None
        """Of the configuration that was appended; None: none was."""
        self._is_folded = self._is_led = False
        self._rejected: EventRejected | None = None

    def _note(self, record: Record, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        if self.offset is None or record.group != self.group or record.offset < self.offset:
            return
        if record.offset == self.offset:
            self._is_folded = True
            self._rejected = next((each.decision for each in decisions if isinstance(each.decision, EventRejected)), None)
        self._is_led = self._is_led or isinstance(record.event, ProbingTick) or (bool(decisions) and record.offset == self.offset)

    async def configuration(self) -> GroupConfigured:
        """The configuration in force. Raises InputError when the group has none."""
        config = (await self.state()).config
        if config is None:
            raise InputError(f"--group: group {self.group!r} has no configuration yet; its first member brings one")
        return config

    async def configure(self, config: GroupConfigured) -> None:
        """Appends the configuration. Raises InputError for one that is too large."""
        codec.encode(config)
        self.offset = await self.append(config)

    async def look(self) -> bool:
        """Whether a worker has answered. A group without members needs none: whoever leads it next finds the fact."""
        state = await self.state()
        if not self._is_folded or not await self.is_answered():
            return False
        state = await self.state()  # once more: the answer was read, and it may be another than this build gives
        return self._is_led or not state.members

    def rejection(self, config: GroupConfigured) -> str | None:
        """Why the configuration was rejected, when `look` has found an answer; None: it is in force."""
        return None if self._rejected is None else rejection_text(self._rejected, config)
