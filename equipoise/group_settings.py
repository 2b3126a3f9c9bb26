"""Settings of a group as operators see them: by name, compared, changed, and what a change would do
at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.assignors import check_settings, registry
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, Move
from equipoise.events.errors import InputError
from equipoise.events.facts import DealRequested, GroupConfigured
from equipoise.events.records import Record
from equipoise.events.settings import GroupSettings
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import rejection_text


@attrs.frozen(kw_only=True)
class Change:
    """One setting that differs between two configurations. `name`: of a knob, ``options.NAME``,
    ``assignor``, ``solver`` or ``led_by``.

    None: the setting is absent.
    """

    name: str
    before: Any
    after: Any


@attrs.frozen(kw_only=True)
class Preview:
    """What the group would decide at once if a fact were appended now.

    `rejection`: why it would be rejected; None: it would not. `moves`: what the first round would
    begin. `planned_movements`: movements until the new target is reached, in tasks; None: the
    evaluation would not change.
    """

    rejection: str | None
    moves: tuple[Move, ...]
    planned_movements: int | None


def settings_of(config: GroupConfigured) -> dict[str, Any]:
    """Every setting of a configuration by name, as `Change` names them."""
    settings = attrs.asdict(config.knobs)
    options = settings.pop("options")
    head = {"assignor": f"{config.assignor}@{config.behaviour_version}", "solver": config.solver, "led_by": config.led_by}
    return {**head, **settings, **{f"options.{name}": value for name, value in options.items()}}


def changes_between(before: GroupConfigured, after: GroupConfigured) -> list[Change]:
    """What differs, in the order of `settings_of`."""
    old, new = settings_of(before), settings_of(after)
    return [Change(name=name, before=old.get(name), after=new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def with_assignor(config: GroupConfigured, text: str) -> GroupConfigured:
    """`config` with another assignor: ``NAME``, in its latest version, or ``NAME@VERSION``. Options
    belong to an assignor: another one has none.

    Raises InputError when this installation has no such assignor.
    """
    name, at, version = text.partition("@")
    if at and not (version.isascii() and version.isdigit()):
        raise InputError(f"--assignor {text}: write it as NAME or NAME@VERSION, as high_availability@1")
    try:
        assignor = registry.load(name, int(version)) if at else registry.latest(name)
    except InputError as error:
        raise InputError(f"--{error}") from None
    settings = config.knobs if assignor.name == config.assignor else attrs.evolve(config.knobs, options={})
    return attrs.evolve(config, assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=settings)


def with_defaults(settings: GroupSettings, names: Iterable[str]) -> GroupSettings:
    """`knobs` with the named settings at their defaults; an option (``options.NAME``) is removed.
    Raises InputError for a name that is none.
    """
    defaults: Mapping[str, Any] = attrs.asdict(GroupSettings(), recurse=False)
    options = dict(settings.options)
    changes = {}
    for name in names:
        if name.removeprefix("options.") in options and name.startswith("options."):
            del options[name.removeprefix("options.")]
        elif name in defaults and name != "options":
            changes[name] = defaults[name]
        else:
            raise InputError(f"--default {name}: the group has no such setting; `equipoise configure --group GROUP` lists them")
    return attrs.evolve(settings, **changes, options=options)


def check_configuration(config: GroupConfigured) -> None:
    """Raises InputError when this installation has the assignor and the assignor does not take the
    settings, or when it lacks the assignor.
    """
    check_settings(registry.load(config.assignor, config.behaviour_version), config.knobs)


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
            words += ["--set", f"{change.name}={setting_text(change.after)}"]
    return shlex.join(words)


def setting_text(value: Any) -> str:
    """The value of a setting as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def preview(machine: GroupMachine, fact: GroupConfigured | DealRequested) -> Preview:
    """What the machine would decide if `fact` were the next one, at once. The machine itself stays
    as it is.
    """
    state = machine.state
    copy = GroupMachine.restore(machine.snapshot())
    decisions = [each.decision for each in copy.step(Record(state.group, state.last_offset + 1, state.last_append_ms or 0, fact))]
    rejected = next((each for each in decisions if isinstance(each, EventRejected)), None)
    evaluated = next((each for each in decisions if isinstance(each, BalanceEvaluated)), None)
    return Preview(
        rejection=None if rejected is None else rejection_text(rejected, fact),
        moves=tuple(move for each in decisions if isinstance(each, AssignmentIssued) for move in each.moves),
        planned_movements=None if evaluated is None else evaluated.planned_movements,
    )
