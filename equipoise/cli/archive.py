"""`equipoise archive LOG --to FILE`: a log in Kafka copied into a file, resumable, no record twice."""

from __future__ import annotations

import time
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.params import LOG
from equipoise.cli.screen import Screen
from events.errors import InputError
from events.log import Log, open_log
from replay.wording import counted

_ROUND_S = 2.0


@command("archive", short_help="Copy a log in Kafka into a file, going on where the last run ended.")
@click.argument("log", type=LOG)
@click.option("--to", "location", required=True, metavar="LOG2", help="The file (group.db); one that holds the beginning of LOG is continued.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
def archive(screen: Screen, log: Log, location: str, follow: bool) -> None:
    """Copies facts and decisions of LOG (kafka://host:port[/prefix][?partition=N]) into a file that every other command reads. It may be killed at
    any moment; the next run goes on from there. Facts whose decisions may not all be written yet wait for the next run.

    \b
    Examples:
      equipoise archive kafka://127.0.0.1:9092 --to groups.db
      equipoise archive 'kafka://127.0.0.1:9092/equipoise?partition=3' --to groups.p3.db --follow
    """
    from events.log.kafka.archive import archive
    from events.log.kafka.log import KafkaLog

    if not isinstance(log, KafkaLog):
        raise InputError(f"{log.location}: is a file already; archive copies kafka://host:port[/prefix]")
    if location.startswith("kafka://"):
        raise InputError("--to: name a file, as group.db")
    facts = decisions = 0
    with open_log(Path(location) if "://" not in location else location, "a") as target, screen.progress("copying") as advance:
        while True:
            done = archive(log, target, advance=advance)
            facts, decisions = facts + done.facts, decisions + done.decisions
            if not follow:
                break
            time.sleep(_ROUND_S)
    told = f"{counted(facts, 'fact')} and {counted(decisions, 'decision')} copied to {location}, up to offset {done.position}"
    waiting = f"; {counted(done.waiting, 'fact')} behind the last decision wait for the next run" if done.waiting else ""
    document = {"facts": facts, "decisions": decisions, "next_offset": done.position, "waiting": done.waiting}
    screen.answer(document, told + waiting)
