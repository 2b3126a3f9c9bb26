"""Types of command-line parameters: a LOG to read, a LOG to write, a task, group settings."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import click

from equipoise.cli.screen import Screen
from equipoise.events.errors import FieldError, InputError
from equipoise.events.log import Log, PartitionedLog, open_log
from equipoise.events.records import BaseState, Entry
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task


class _LogToRead(click.ParamType):
    """An existing LOG, opened for the command and closed when the command ends."""

    name = "log"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Log:
        log = open_log(value, "r")
        if ctx is not None:
            ctx.call_on_close(log.close)
        return log


class _Task(click.ParamType):
    """A task id in text form, ``0_3``."""

    name = "task"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TaskId:
        try:
            return parse_task(value)
        except FieldError as error:
            self.fail(error.problem, param, ctx)


LOG = _LogToRead()
"""``@click.argument("log", type=LOG)`` gives an open `equipoise.events.log.Log`."""

NEW_LOG = click.Path(writable=True)
"""``@click.option("--to", type=NEW_LOG)`` gives a location for `equipoise.output.new_log`, to be
opened after all other input is checked.
"""

TASK = _Task()
OFFSET = click.IntRange(min=0)
"""A fact's offset."""


def read(screen: Screen, log: Log, label: str, group: str | None = None) -> Iterator[Entry]:
    """Yields the records of `log` in stored order, with a progress bar. With `group`, of a log with
    several partitions: only the records of the group's partition.
    """
    records = log.read()
    if group is not None and isinstance(log, PartitionedLog):
        records = log.read_beside(group)
    return _remarked(screen, screen.track(records, label, log.count()))


def _remarked(screen: Screen, records: Iterator[Entry]) -> Iterator[Entry]:
    """The records; says when the log begins at a base."""
    is_said = False
    for entry in records:
        if isinstance(entry, BaseState) and not is_said:
            from equipoise.replay.wording import begins_text

            is_said = True
            screen.remark(begins_text(entry.begins_offset, entry.append_ms))
        yield entry


def with_settings(settings: GroupSettings, changes: Iterable[str]) -> GroupSettings:
    """Returns `settings` with ``name=value`` changes applied; later changes win.

    A list is written with commas (``rack_aware_tags=zone,host``). An assignor's option is written
    ``options.name=value``; its value is a number, true, false, or else text.

    Raises InputError when a setting does not exist or a value is out of bounds.
    """
    changed: dict[str, Any] = {}
    options = dict(settings.options)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"--set {change}: write it as name=value")
        if name.startswith("options."):
            options[name.removeprefix("options.")] = scalar(text)
        else:
            changed[name] = setting_value(name, text)
    try:
        return attrs.evolve(settings, **changed, options=options)
    except FieldError as error:
        raise InputError(f"--set {error.field.removeprefix('Knobs.')}: {error.problem}") from None


def setting_value(name: str, text: str, *, option: str = "--set") -> Any:
    """The value that `text` gives the setting `name`, or an assignor's option ``options.NAME``.
    Raises InputError, which begins with `option`, when the value is of the wrong kind.
    """
    if name.startswith("options."):
        return scalar(text)
    names = [field.name for field in attrs.fields(GroupSettings) if field.name != "options"]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise InputError(f"{option} {name}: no such setting; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"))
    default = getattr(attrs.fields(GroupSettings), name).default
    if isinstance(default, tuple):
        return tuple(part for part in text.split(",") if part)
    if isinstance(default, str):
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise InputError(f"{option} {name}: {text!r} is not a whole number") from None


def scalar(text: str) -> int | float | str | bool:
    """A number, true, false, or else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) else text
