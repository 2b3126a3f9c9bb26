"""Settings of a group for operators: compared by name, changed, and previewed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.assignors import check_settings, registry
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected, Move
from equipoise.events.errors import InputError
from equipoise.events.facts import DealRequested, GroupConfigured
from equipoise.events.records import FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.replay.wording import setting_text, setting_values
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import rejection_text


@attrs.frozen(kw_only=True)
class SettingChange:
    """One setting that differs between two configurations. `name`: as in
    `equipoise.replay.wording.setting_values`. `before`, `after`: its values; None: the setting is
    absent.
    """

    name: str
    before: Any
    after: Any


@attrs.frozen(kw_only=True)
class OtherChange:
    """A change of somebody else. `by`, `change_id`: as in `GroupConfigured`. `offset`,
    `at_ms`: of its fact; None: it was not read here.
    """

    by: str = ""
    offset: int | None = None
    at_ms: int | None = None
    change_id: str = ""
    changes: list[SettingChange]


@attrs.frozen(kw_only=True)
class Preview:
    """What the group would decide at once if a fact were appended now.

    `rejection`: why the fact would be rejected; None: it would be accepted. `moves`: movements that
    the first round would begin. `planned_movements`: tasks to move until the new target is reached;
    None: the evaluation would not change.
    """

    rejection: str | None
    moves: tuple[Move, ...]
    planned_movements: int | None


def changes_between(before: GroupConfigured, after: GroupConfigured) -> list[SettingChange]:
    """The settings that differ, in the order of `equipoise.replay.wording.setting_values`."""
    old, new = setting_values(before), setting_values(after)
    return [SettingChange(name=name, before=old.get(name), after=new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def with_assignor(config: GroupConfigured, text: str) -> GroupConfigured:
    """`config` with the assignor ``NAME``, in its latest version, or ``NAME@VERSION``. The options
    are dropped when the name changes, because they belong to the assignor.

    Raises InputError when `text` is malformed or this installation has no such assignor.
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
    """`settings` with the named ones at their defaults; an option (``options.NAME``) is removed.
    Raises InputError when the group has no setting of that name.
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
    """Raises InputError when this installation lacks the assignor, or the assignor rejects the
    settings.
    """
    check_settings(registry.load(config.assignor, config.behaviour_version), config.knobs)


def way_back(group: str, before: GroupConfigured, after: GroupConfigured) -> str:
    """The command that restores `before` once `after` is in force."""
    words = ["equipoise", "configure", "--group", group]
    for change in changes_between(after, before):
        if change.name == "solver":
            continue  # the assignor decides it
        if change.name in ("assignor", "led_by"):
            words += [f"--{change.name.replace('_', '-')}", str(change.after)]
        elif change.after is None:
            words += ["--default", change.name]
        else:
            words += ["--set", f"{change.name}={setting_text(change.after)}"]
    return shlex.join(words)


def preview(machine: GroupMachine, fact: GroupConfigured | DealRequested) -> Preview:
    """Returns what the machine would decide at once if `fact` were the next one. Changes a copy of
    the machine only.
    """
    state = machine.state
    copy = GroupMachine.restore(machine.snapshot())
    decisions = [each.decision for each in copy.step(FactRecord(state.group, state.last_offset + 1, state.last_append_ms or 0, fact))]
    rejected = next((each for each in decisions if isinstance(each, EventRejected)), None)
    evaluated = next((each for each in decisions if isinstance(each, BalanceEvaluated)), None)
    return Preview(
        rejection=None if rejected is None else rejection_text(rejected, fact),
        moves=tuple(move for each in decisions if isinstance(each, AssignmentIssued) for move in each.moves),
        planned_movements=None if evaluated is None else evaluated.planned_movements,
    )
