"""Replay as a library, for notebooks and scripts: each function takes a log, or where one is, and returns what the command of that name prints.

::

    from equipoise import replay

    replay.verify("group.db").verdict                     # Verdict.IDENTICAL
    history = replay.timeline("archive/", group="orders")
    history.totals().stopped_ms
    costs = replay.what_if("group.db", [replay.Configuration(name="two slots", knobs={"max_warmups": 2})])
    costs.outcomes[0].metrics.unavailable_task_seconds
    replay.advise(costs).line                             # change max_warmups from 4 to 2 because ...

A LOG is ``group.db``, ``group.jsonl``, ``archive/``, ``kafka://host:port[/prefix]``, or an open `events.log.Log`. Over many groups of archives, on
Spark: `spark_verify`, `spark_timeline`, `spark_what_if`, which return DataFrames (docs/spark.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from events.log import Log, PartitionedLog, open_log
from events.records import Entry
from replay.advice import Advice, advise, front
from replay.sweep import grid, read_configurations
from replay.timeline import Timeline, build_timeline, render_page, render_picture
from replay.verify import Verdict, Verification
from replay.verify import verify as _verify
from replay.what_if import Configuration, WhatIf
from replay.what_if import what_if as _what_if
from replay.what_if_picture import render_what_if

__all__ = [
    "Advice",
    "Configuration",
    "Timeline",
    "Verdict",
    "Verification",
    "WhatIf",
    "advise",
    "front",
    "grid",
    "read_configurations",
    "render_page",
    "render_picture",
    "render_what_if",
    "spark_timeline",
    "spark_verify",
    "spark_what_if",
    "timeline",
    "verify",
    "what_if",
]

Location = str | PathLike[str] | Log


def verify(log: Location, *, group: str | None = None) -> Verification:
    """Does the log replay to the byte? `group`: that one alone; default: every group. Raises InputError; what damage the log has is in the answer."""
    with _open(log) as opened:
        return _verify(opened.read(group=group))


def timeline(log: Location, *, group: str | None = None, until_offset: int | None = None) -> Timeline:
    """The history of a group (needed when the log holds several), up to the fact at `until_offset`. Raises InputError, LogError."""
    with _open(log) as opened:
        return build_timeline(_entries(opened, group), group=group, until_offset=until_offset)


def what_if(
    log: Location,
    configurations: Sequence[Configuration] = (),
    *,
    group: str | None = None,
    seeds: Sequence[int] = (0,),
    restore_records_per_s: int | None = None,
) -> WhatIf:
    """What each configuration would have cost, beside the factual one. Raises InputError, LogError; see `replay.what_if.what_if`."""
    with _open(log) as opened:
        return _what_if(opened.read(group=group), configurations, group=group, seeds=seeds, restore_records_per_s=restore_records_per_s)


# ------------------------------------------------------------------------------------------------------------- many groups


def spark_verify(*archives: str, spark: Any = None) -> Any:
    """A DataFrame with a row for each group of the archives. `spark`: a session; default: the active one, else one on this machine."""
    from replay.spark.groups import units_of
    from replay.spark.session import session
    from replay.spark.verify import spark_verify

    return spark_verify(spark or session()[0], units_of(archives))


def spark_timeline(*archives: str, spark: Any = None) -> dict[str, Any]:
    """Table -> DataFrame; the tables are those of `replay.spark.timeline.TABLES`, and ``groups``."""
    from replay.spark.groups import units_of
    from replay.spark.session import session
    from replay.spark.timeline import spark_timeline

    return spark_timeline(spark or session()[0], units_of(archives))


def spark_what_if(*archives: str, configurations: Sequence[Configuration], seeds: Sequence[int] = (0,), spark: Any = None) -> Any:
    """A DataFrame with a row for each group and configuration, the factual one's among them."""
    from replay.spark.groups import units_of
    from replay.spark.session import session
    from replay.spark.what_if import spark_what_if

    return spark_what_if(spark or session()[0], units_of(archives), configurations, seeds=seeds)


# ------------------------------------------------------------------------------------------------------------------- logs


@contextlib.contextmanager
def _open(log: Location) -> Iterator[Log]:
    """A log that was given open stays open."""
    if isinstance(log, str | PathLike):
        with open_log(log) as opened:
            yield opened
    else:
        yield log


def _entries(log: Log, group: str | None) -> Iterator[Entry]:
    return log.read_beside(group) if group is not None and isinstance(log, PartitionedLog) else log.read()
