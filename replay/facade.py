"""The functions of `equipoise.replay`: each opens the log, and calls what the command of its name
calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from equipoise.events.log import Log, PartitionedLog, open_log
from equipoise.events.records import Entry
from equipoise.replay.timelines import Timeline, build_timeline, render_page, render_picture
from equipoise.replay.verification import Verdict, Verification
from equipoise.replay.verification import verify as _verify
from equipoise.replay.whatif.advice import Advice, advise, pareto_front
from equipoise.replay.whatif.evaluate import Configuration, WhatIf
from equipoise.replay.whatif.evaluate import what_if as _what_if
from equipoise.replay.whatif.picture import render_what_if
from equipoise.replay.whatif.sweep import grid, read_configurations

__all__ = [
    "Advice",
    "Configuration",
    "Timeline",
    "Verdict",
    "Verification",
    "WhatIf",
    "advise",
    "grid",
    "pareto_front",
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
    """Does the log replay to the byte? `group`: that one alone; default: every group. Raises
    InputError; what damage the log has is in the answer.
    """
    with _open(log) as opened:
        return _verify(opened.read(group=group))


def timeline(log: Location, *, group: str | None = None, until_offset: int | None = None) -> Timeline:
    """The history of a group (needed when the log holds several), up to the fact at `until_offset`.
    Raises InputError, LogError.
    """
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
    """What each configuration would have cost, beside the factual one. Raises InputError, LogError;
    see `equipoise.replay.whatif.evaluate.what_if`."""
    with _open(log) as opened:
        return _what_if(opened.read(group=group), configurations, group=group, seeds=seeds, restore_records_per_s=restore_records_per_s)


# -------------------------------------------------------------------------------------- many groups


def spark_verify(*archives: str, spark: Any = None) -> Any:
    """A DataFrame with a row for each group of the archives. `spark`: a session; default: the
    active one, else one on this machine.
    """
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.verify import spark_verify

    return spark_verify(spark or session()[0], units_of(archives))


def spark_timeline(*archives: str, spark: Any = None) -> dict[str, Any]:
    """Table -> DataFrame; the tables are those of `equipoise.replay.spark.timeline.TABLES`, and
    ``groups``.
    """
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.timeline import spark_timeline

    return spark_timeline(spark or session()[0], units_of(archives))


def spark_what_if(*archives: str, configurations: Sequence[Configuration], seeds: Sequence[int] = (0,), spark: Any = None) -> Any:
    """A DataFrame with a row for each group and configuration, the factual one's among them."""
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.what_if import spark_what_if

    return spark_what_if(spark or session()[0], units_of(archives), configurations, seeds=seeds)


# --------------------------------------------------------------------------------------------- logs


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
