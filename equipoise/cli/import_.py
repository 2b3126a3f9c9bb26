"""`equipoise import kafka-streams SOURCE --to LOG`: reads the history of a real group into facts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.output import IMPORTED, new_log
from equipoise.cli.params import NEW_LOG, check_recording
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted, day_text, span_text

if TYPE_CHECKING:
    from equipoise.replay.importers.kafka_streams import ImportSummary, StreamsSource


@command("import", short_help="Import the history of a Kafka Streams group into a log.")
@click.argument("kind", type=click.Choice(["kafka-streams"]))
@click.argument("source", metavar="SOURCE")
@click.option("--to", "location", type=NEW_LOG, required=True, metavar="LOG", help="Log to write. One that holds an earlier import is replaced.")
@click.option("--force", is_flag=True, help="Replace whatever log is there.")
@click.option("--group", metavar="GROUP", help="Application id; required with a broker, or if the dump holds several groups.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting that Kafka does not record, as acceptable_recovery_lag=1000.")
def import_(screen: Screen, kind: str, source: str, location: str, group: str | None, settings: tuple[str, ...], force: bool) -> None:
    """Read the dump of `__consumer_offsets` and the end-offset samples of SOURCE. Write membership,
    lags, end offsets and the decisions of the group's own leader to LOG, as facts.

    SOURCE is a folder, or the name of a recorded run that comes with equipoise (scale-out,
    rolling). With --group it is a file of `equipoise record`, or a broker (kafka://host:port). From
    a broker it reads the records that are left, and end offsets by the changelogs' timestamps.

    It reads Kafka Streams groups with the classic protocol (group.protocol=classic).

    The manifest, in the log's first record and in --json, says what is observed, what is inferred
    and how, and what was supplied. Settings that no record holds come from SOURCE/settings.json or
    --set, else they are Kafka's defaults.

    \b
    Examples:
      equipoise import kafka-streams scale-out --to recorded.db
      equipoise import kafka-streams dump/ --to group.db --set acceptable_recovery_lag=1000
      equipoise import kafka-streams kafka://127.0.0.1:9092 --group orders --to orders.db
    """
    from equipoise.replay.importers.groups.cluster_recording import open_recording
    from equipoise.replay.importers.groups.recorded_group import recorded_source
    from equipoise.replay.importers.kafka_streams import StreamsSource, import_history, options_of, shipped_runs

    given: dict[str, Any] = given_settings(settings)
    if group is not None:
        given["group"] = group
    if source.startswith("kafka://"):
        if group is None:
            raise InputError("--group: name the application id of one of the broker's groups")
        files: StreamsSource = asyncio.run(_read(source, group))
    elif Path(source).is_file():
        with open_recording(source) as recording:
            if group is None:
                raise InputError("--group: name the application id of one of the recording's groups")
            files = recorded_source(recording, group)
    else:
        check_recording(source, *shipped_runs())
        folder = Path(source)
        files = StreamsSource(folder if folder.exists() else shipped_runs().get(source, folder))
    options = options_of(files, given)
    with new_log(location, replaces=IMPORTED, force=force) as log, screen.progress(f"importing {source}") as advance:
        done_before = 0

        def progress(done: int, total: int | None) -> None:
            nonlocal done_before
            advance(max(0, done - done_before))
            done_before = done

        summary = import_history(files, log, progress, options=options)
    screen.answer({**attrs.asdict(summary), "log": location}, *import_parts(summary, location))


async def _read(location: str, group: str) -> StreamsSource:
    from equipoise.replay.importers.kafka_streams.broker_reading import StreamsGroup

    async with StreamsGroup(location, group) as read:
        await read.catch_up()
        return read.source


def given_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """``name=value`` settings by name; whole numbers as int. Raises InputError for a setting that
    cannot be read.
    """
    given: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write it as name=value")
        given[name] = int(text) if text.isascii() and text.isdecimal() else text
    return given


def import_parts(summary: ImportSummary, location: str) -> list[Part]:
    """The summary as text and tables."""
    span = f"{day_text(summary.first_ms)}, {span_text(summary.length_ms)}"
    members = f"{counted(summary.members, 'member')} in {counted(summary.processes, 'process', 'processes')}"
    head = Line(bold(summary.group), f" -> {location}  {span}: {counted(summary.generations, 'generation')}, {members}")
    facts = Table(columns=("fact", "how many"), rows=sorted(summary.facts.items() - {("LogOpened", 1)}), title=counted(summary.group_facts, "fact"))
    rows = [
        (part, name.replace("_", " "), each.get("count"), each["how"])
        for part in ("observed", "inferred", "supplied")
        for name, each in summary.manifest[part].items()
        if isinstance(each, dict) and isinstance(each.get("how"), str)
    ]
    manifest = Table(columns=("", "what", "how many", "how it is known"), rows=rows, title="sources")
    return [head, "", facts, "", manifest]
