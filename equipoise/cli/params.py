"""Types of command-line parameters: a LOG to read, a LOG to write, a task, group settings."""

from __future__ import annotations

import datetime as dt
import difflib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import attrs
import click

from equipoise.cli.screen import Screen
from equipoise.events.errors import FieldError, InputError
from equipoise.events.records import BaseState, Entry, FactRecord
from equipoise.events.settings import LEAST_PROBING_INTERVAL_MS, GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from equipoise.kafka.declared_settings import variable
from equipoise.log import Log, PartitionedLog, open_log

F = TypeVar("F", bound=Callable[..., Any])
SCHEME = "kafka://"
BROKERS = variable("bootstrap")
"""Environment variable with the brokers to begin with."""


def _its_log() -> str | None:
    """The log at the brokers of the environment, which stands for a LOG that is left out; None:
    none is named there.
    """
    brokers, prefix = os.environ.get(BROKERS), os.environ.get(variable("prefix"))
    return f"{SCHEME}{brokers}" + (f"/{quote(prefix)}" if prefix else "") if brokers else None


def _its_brokers() -> str | None:
    brokers = os.environ.get(BROKERS)
    return f"{SCHEME}{brokers}" if brokers else None


def _given(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """`value`; without one, and without a default from the environment, the argument is missing.
    click does not ask for an argument that has a default.
    """
    if value is None:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


class _LogToRead(click.ParamType):
    """An existing LOG, opened for the command and closed when the command ends."""

    name = "log"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return f"Name a file, an archive or kafka://host:port, or set {BROKERS}=host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Log:
        log = open_log(value, "r")
        if ctx is not None:
            ctx.call_on_close(log.close)
        return log


class WholeNumber(click.IntRange):
    """A whole number within bounds, as click's, which says how to write one."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r:.80} is not a whole number{_bounds(self)}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds, as click's, which says how to write one. Neither nan nor inf."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            is_number = math.isfinite(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r:.80} is not a number{_bounds(self)}; write one as 2.5", param, ctx)
        return super().convert(value, param, ctx)


def _bounds(kind: WholeNumber | Number) -> str:
    least, most = kind.min, kind.max
    if least is None or most is None:
        return "" if least is None else f" above {least}" if kind.min_open else f" from {least} on"
    return f" from {least} to {most}"


class _Task(click.ParamType):
    """A task id in text form, ``0_3``."""

    name = "task"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TaskId:
        try:
            return parse_task(value)
        except FieldError as error:
            self.fail(error.problem, param, ctx)


if TYPE_CHECKING:
    from equipoise.kafka.connection import Connection

LOG = _LogToRead()
"""``@click.argument("archive", type=LOG)`` gives an open `equipoise.log.Log`."""

log_argument = click.argument("log", type=LOG, metavar="[LOG]", default=_its_log, required=False, callback=_given)
"""Decorator: the argument LOG. Left out, it is the log at the brokers of EQUIPOISE_BOOTSTRAP."""


class _Brokers(click.ParamType):
    """Text that names brokers, or with some commands a file."""

    name = "brokers"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return f"Name it, as kafka://host:port, or set {BROKERS}=host:port"


def brokers_argument(name: str, metavar: str) -> Callable[[F], F]:
    """Decorator: an argument that names brokers. Left out, they are those of EQUIPOISE_BOOTSTRAP."""
    return click.argument(name, metavar=f"[{metavar}]", type=_Brokers(), default=_its_brokers, required=False, callback=_given)


NEW_LOG = click.Path(writable=True)
"""``@click.option("--to", type=NEW_LOG)`` gives a location for `equipoise.cli.output.new_log`, to be
opened after all other input is checked.
"""

TASK = _Task()


@attrs.frozen
class Moment:
    """A time that the user named."""

    ms: int


class _OffsetOrTime(WholeNumber):
    """A fact's offset, or a time, which stands for the last fact until then."""

    name = "offset or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Moment:
        if isinstance(value, Moment) or not isinstance(value, str) or value.removeprefix("-").isdecimal():
            return cast(int, value if isinstance(value, Moment) else super().convert(value, param, ctx))
        moment = TIME.convert(value, param, ctx)
        return Moment(moment)


class _Time(click.ParamType):
    """A time, in UTC unless it has a time zone, as ms since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            moment = dt.datetime.fromisoformat(value)
        except ValueError:
            offset = "an offset, or " if param is not None and isinstance(param.type, _OffsetOrTime) else ""
            self.fail(f"{value!r:.80} is not {offset}a time with its date; write it as 2026-11-23T09:30 (UTC) or 2026-11-23T09:30+01:00", param, ctx)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


TIME = _Time()
"""``@click.option("--from", type=TIME)`` gives ms since 1970."""
OFFSET = _OffsetOrTime(min=0)
"""``--at`` of a command on a LOG. `offset_of` gives the offset of what it gives."""
AT_HELP = "or a time, as 2026-11-23T09:30 (UTC). Default: the last."


def offset_of(log: Log, at: int | Moment | None, group: str | None) -> int | None:
    """Returns the offset that ``--at`` stands for: of a time, that of the last fact until then.

    Raises InputError when the log begins later.
    """
    if not isinstance(at, Moment):
        return at
    found = None
    records = log.read_beside(group) if group is not None and isinstance(log, PartitionedLog) else log.read()
    for entry in records:
        if isinstance(entry, FactRecord):
            if entry.append_ms > at.ms:
                if found is None:
                    from equipoise.replay.wording import day_text

                    raise InputError(f"--at: the log begins later, at {day_text(entry.append_ms)}; name a time from then on")
                break
            found = entry.offset
    return found


def brokers_of(location: str) -> Connection:
    """Returns how to reach the brokers that ``kafka://host:port`` names. Raises InputError for any
    other text.
    """
    from equipoise.replay.importers.kafka_streams.broker_reading import connection_of

    if not location.startswith(SCHEME):
        raise InputError(f"{location}: not a place of brokers; write {SCHEME}{location if is_address(location) else 'host:port'}")
    return connection_of(location)


def check_recording(place: str, *names: str) -> None:
    """Raises InputError when `place` is no file, no folder and none of `names`, recorded runs that
    come with equipoise, with what was probably meant.
    """
    if Path(place).exists() or place in names:
        return
    if is_address(place):
        raise InputError(f"{place}: there is no such recording; for a broker write kafka://{place}")
    near = difflib.get_close_matches(place, names, n=1)
    if not near and Path(place).suffix not in ("", ".db"):
        raise InputError(f"{place}: no such file; correct the path")
    known = f" Recorded runs that come with equipoise: {', '.join(names)}" if names else ""
    fix = f"did you mean {near[0]}?" if near else f"make one with `equipoise record kafka://host:port --to FILE`, or correct the path.{known}"
    raise InputError(f"{place}: there is no such recording; {fix}")


def is_address(text: str) -> bool:
    """Whether `text` looks like a broker's address, host:port."""
    host, _, port = text.partition(",")[0].rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in text


def read(screen: Screen, log: Log, label: str, group: str | None = None, *, alone: bool = False) -> Iterator[Entry]:
    """Yields the records of `log` in stored order, with a progress bar. With `group`, of a log with
    several partitions: only the records of the group's partition; `alone`: only those of the group,
    which is there.
    """
    records = log.read(group=group) if alone else log.read()
    if group is not None and not alone and isinstance(log, PartitionedLog):
        records = _known(log, group, log.read_beside(group))
    return _remarked(screen, screen.track(records, label, log.count()))


def _known(log: Log, group: str, records: Iterator[Entry]) -> Iterator[Entry]:
    """The records of one partition. When none is of `group`: raises InputError, with the groups of
    all partitions.
    """
    is_there = False
    for entry in records:
        is_there = is_there or entry.group == group
        yield entry
    if not is_there:
        from equipoise.replay.wording import groups_text

        raise InputError(f"--group: the log holds no fact of group {group!r}; {groups_text(log.group_names())}")


def _remarked(screen: Screen, records: Iterator[Entry]) -> Iterator[Entry]:
    """The records; says when the log begins at a base."""
    is_said = False
    for entry in records:
        if isinstance(entry, BaseState) and not is_said:
            from equipoise.replay.wording import begins_text

            is_said = True
            screen.remark(begins_text(entry.begins_offset, entry.append_ms))
        yield entry


def groups_of(log: Log) -> list[str]:
    """Every group of the log, in rising order. Raises InputError for a group that the log does not
    have.
    """
    names = log.group_names()
    if not names:
        raise InputError("the log holds no fact of any group; import or simulate one")
    return sorted(names)


def check_live_settings(settings: GroupSettings, before: GroupSettings | None = None) -> None:
    """Raises InputError for a value that a running group must not be given, by its source. One
    that it has already (`before`) stays.
    """
    found = [each for each in settings.warnings() if before is None or each not in before.warnings()]
    if found:
        raise InputError(f"--set {found[0]}; write {LEAST_PROBING_INTERVAL_MS} or more")
