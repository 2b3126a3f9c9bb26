"""What the Spark commands share: arguments, options and the session."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from equipoise.cli.answer_page import render_parts
from equipoise.cli.output import Kind, write_file
from equipoise.cli.params import TIME
from equipoise.cli.screen import Part, Screen
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted, groups_text

if TYPE_CHECKING:
    from equipoise.replay.spark.groups import Unit

F = TypeVar("F", bound=Callable[..., Any])


def archives(run: F) -> F:
    """Arguments and options of a job over archives: ``locations``, ``patterns``, ``master``,
    ``settings``.
    """
    run = click.argument("locations", metavar="ARCHIVE...", nargs=-1, required=True)(group_option(run))
    return spark_options(run)


def group_option(run: F) -> F:
    """Option ``patterns``."""
    return click.option("--group", "patterns", multiple=True, metavar="PATTERN", help="These groups only, as 'orders-*'; may be given again.")(run)


def span_options(run: F) -> F:
    """Options that name a span of time: ``from_``, ``until``."""
    run = click.option("--until", metavar="TIME", type=TIME, help="Leave out what began later.")(run)
    return click.option("--from", "from_", metavar="TIME", type=TIME, help="Leave out what was over before, as 2026-11-23T09:30 (UTC).")(run)


html_option = click.option(
    "--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write the answer as an HTML page to FILE."
)
"""Decorator: ``html_path``."""


def write_page(screen: Screen, path: Path | None, title: str, parts: Sequence[Part]) -> None:
    """Writes the parts of an answer as a page, if one is wanted."""
    if path is not None:
        write_file("--html", path, Kind.PAGE, render_parts(title, parts))
        screen.remark(f"wrote {path}")


def spark_options(run: F) -> F:
    """Options that say where Spark runs."""
    run = click.option("--master", metavar="URL", help="Spark's master. Default: spark-submit's, else local[*].")(run)
    return click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")(run)


def _is_of_others(record: logging.LogRecord) -> bool:
    """False: py4j logs, by the root logger, the traceback of what its caller gets too, as of an
    interrupt.
    """
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def spark_session(master: str | None, settings: Sequence[str], job: str) -> Iterator[Any]:
    """The running session, or a new one that ends with the block. `job`: what Spark's page shows of
    its jobs. Raises InputError for a `--conf` without a value, and for a failure of Spark itself.
    """
    from equipoise.replay.spark.session import session

    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--conf {setting}: write it as name=value")
        given[name] = value
    logging.getLogger().addFilter(_is_of_others)
    spark, is_ours = session(master, given)
    try:
        with _described(spark, job):
            yield spark
    except Exception as error:
        reason = _failure_of_spark(error)
        if reason is None:
            raise
        raise InputError(f"Spark has failed: {reason}; its log says more. Run it again, with more memory or fewer cores if it is that") from None
    finally:
        if is_ours:
            spark.stop()


@contextlib.contextmanager
def _described(spark: Any, job: str) -> Iterator[None]:
    """Over Spark Connect jobs have no description."""
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - PySparkAttributeError or PySparkNotImplementedError, by version
        yield
        return
    former = context.getLocalProperty("spark.job.description")
    context.setJobDescription(f"equipoise {job}")
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", former)


def _failure_of_spark(error: Exception) -> str | None:
    """The first line of a failure of Spark itself, as of a worker that was killed; None: it is none.
    An exception of Python in a worker is ours.
    """
    if not type(error).__module__.startswith(("py4j.", "pyspark.")) or "Traceback (most recent call last)" in str(error):
        return None
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def job_text(what: str, units: Sequence[Unit], locations: Sequence[str]) -> str:
    """Says what a job does, for Spark's page."""
    return f"{what}: {counted(sum(bool(unit.group) for unit in units), 'group')} of {', '.join(locations)}"


def units(locations: Sequence[str], patterns: Sequence[str] = ()) -> list[Unit]:
    """Every group of the archives whose name fits one of the patterns, if there are some, and the
    partitions of these that have a problem. Raises InputError, also for a pattern that no group
    fits.
    """
    from equipoise.replay.spark.groups import units_of

    found = units_of(locations)
    if not patterns:
        return found
    for pattern in patterns:
        if not any(fnmatchcase(unit.group, pattern) for unit in found):
            raise InputError(f"--group {pattern}: fits no group; {groups_text({unit.group for unit in found if unit.group})}")
    chosen = {unit.location for unit in found if any(fnmatchcase(unit.group, pattern) for pattern in patterns)}
    return [unit for unit in found if any(fnmatchcase(unit.group, pattern) for pattern in patterns) or (not unit.group and unit.location in chosen)]
