"""`equipoise doctor`: whether brokers, topics, rights and the machine are as they must be."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.screen import Line, Screen, Styled
from equipoise.cli.settings_options import settings_options
from equipoise.events.errors import InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.connection import MISSING
from equipoise.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from equipoise.operations.doctor.finding import Finding

EXIT_PROBLEM = 1
_COLOURS = {"fine": "green", "warning": "yellow", "problem": "red", "unknown": None}
_OPTIONS = (*(field.name for field in attrs.fields(LiveSettings)), "worker_session_timeout_ms")


@command("doctor", short_help="Check brokers, topics, ACLs, times and disks of a deployment.")
@settings_options(WorkerSettings, table="worker", options=_OPTIONS)
@click.option("--as", "role", type=click.Choice(("worker", "member", "reader")), default="worker", show_default=True, help="Whose user this is.")
@click.option("--group", metavar="GROUP", help="Look at this group only; a member needs it.")
@click.option("--source", "sources", multiple=True, metavar="TOPIC", help="A source topic of the group, if the log does not name it yet; repeatable.")
@click.option("--changelog", "changelogs", multiple=True, metavar="TOPIC", help="The same for a changelog.")
@click.option("--output", "outputs", multiple=True, metavar="TOPIC", help="An output topic of the group, which no log names; repeatable.")
@click.option(
    "--state-directory", "folders", multiple=True, metavar="DIR", type=click.Path(path_type=Path), help="A member's state directory on this machine."
)
def doctor(
    screen: Screen,
    settings: WorkerSettings,
    role: str,
    group: str | None,
    sources: tuple[str, ...],
    changelogs: tuple[str, ...],
    outputs: tuple[str, ...],
    folders: tuple[Path, ...],
) -> int:
    """Check a deployment with the settings, the user and the machine of a worker, a member or a
    reader. It looks at brokers and their versions, ACLs, the topics of the log and of the group,
    and clocks. It measures a round trip and a transaction, compares session timeouts with a
    broker's failover, and looks at the disks of state directories.

    Each line is fine, or comes with its fix. It changes nothing: a member's transaction is aborted.
    Exit code 1: there is a problem.

    \b
    Examples:
      equipoise doctor --settings worker.toml
      equipoise doctor --as member --group orders --output totals --state-directory /var/lib/orders
      equipoise doctor --as reader --json | jq '.findings[] | select(.status == "problem")'
    """
    if group is None and (role == "member" or sources or changelogs or outputs):
        raise InputError("--group: name the group of the member, or of the topics")
    try:
        from equipoise.operations.doctor.examination import Examined, examine
    except ModuleNotFoundError:
        raise InputError(MISSING) from None

    examined = Examined(settings=settings, role=role, group=group, sources=sources, changelogs=changelogs, outputs=outputs, state_directories=folders)
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a finding says in one line what failed
    try:
        findings = asyncio.run(examine(examined))
    finally:
        logger.setLevel(level)
    problems = sum(each.status == "problem" for each in findings)
    document = {"role": role, "group": group, "problems": problems, "findings": [each.document() for each in findings]}
    screen.answer(document, *(line for each in findings for line in _lines(each)))
    return EXIT_PROBLEM if problems else 0


def _lines(finding: Finding) -> list[Line]:
    status = Styled(f"{finding.status:8}", colour=_COLOURS[finding.status])
    lines = [Line(status, f" {finding.check:10} {finding.text}")]
    if finding.fix is not None:
        lines.append(Line(f"{'':19} fix: {finding.fix}"))
    return lines
