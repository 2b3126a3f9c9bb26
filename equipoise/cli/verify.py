"""`equipoise verify LOG`: recomputes every decision of a log and compares it with the stored one."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.params import log_argument
from equipoise.cli.screen import Line, Part, Screen, Styled, Table, bold
from equipoise.events import codec
from equipoise.events.errors import InputError
from equipoise.log import Log, open_log
from equipoise.replay.wording import begins_text, clock_text, counted, extent_text, groups_text

if TYPE_CHECKING:
    from equipoise.replay.verification import Divergence, Verification

_COLOURS = {0: "green", 1: "red", 2: "yellow"}
"""By exit code."""
_MOST_CHARS = 600


@command("verify", short_help="Recompute every decision, and show the first that differs.")
@log_argument
@click.option("--group", "names", metavar="GROUP", multiple=True, help="Verify only this group; may be repeated. Default: every group.")
@click.option("--archive", metavar="ARCHIVE", help="An archive of LOG, which is in Kafka: both are verified as one, so also what LOG no longer has.")
def verify(screen: Screen, log: Log, names: tuple[str, ...], archive: str | None) -> int:
    """Recompute each decision of LOG with the machine that decides live, and compare it with the
    stored one, byte for byte. A Kafka Streams group is imported first (`equipoise import`).

    Exit code 0: identical. 1: the first divergence is shown, with the fact, both decisions and what
    differs. 2: the log cannot be verified (a damaged record, or another build's assignor, solver or
    events). The offset is on stderr, and other groups are still verified.

    A log in Kafka whose first records were deleted is verified from its oldest base on.

    \b
    Examples:
      equipoise verify group.db
      equipoise verify archive/ --group orders --group clicks
      equipoise verify --json group.jsonl | jq .verdict
      equipoise verify kafka://127.0.0.1:9092 --archive archive/
    """
    from equipoise.replay.bases import read_as_one, stored_bases
    from equipoise.replay.verification import verify, verify_log  # loads the solver

    with open_log(log.location, check_structure=True) as checked, screen.progress("verifying", checked.count()) as advance:
        bases = stored_bases(checked)
        if archive is None:
            verification = verify_log(checked, names, advance=advance, bases=bases)
        else:
            as_one = (read_as_one(archive, checked, name) for name in (dict.fromkeys(names) or (None,)))
            verification = verify(chain.from_iterable(as_one), advance=advance, bases=bases)
        missing = sorted(set(names) - {each.group for each in verification.groups}) if not verification.problem else []
        if missing:
            there = {entry.group for entry in checked.read() if entry.group}
            raise InputError(f"--group: the log holds no fact of group {missing[0]!r}; {groups_text(there)}")
    screen.answer(verification.document(), *verification_parts(verification))
    problems = verification.problems
    if problems and verification.verdict.exit_code != 1:
        raise InputError(problems[0] + (f" (and {counted(len(problems) - 1, 'other group')})" if len(problems) > 1 else ""))
    return verification.verdict.exit_code


def verification_parts(verification: Verification) -> list[Part]:
    """The answer as text and tables."""
    groups = verification.groups
    compared = sum(group.compared for group in groups)
    facts = sum(group.facts for group in groups)
    verdict = Styled(verification.verdict.value, bold=True, colour=_COLOURS[verification.verdict.exit_code])
    unwritten = sum(group.not_yet_written for group in groups)
    summary = f"{counted(compared, 'decision')} of {counted(facts, 'fact')} recomputed and compared byte for byte"
    summary += f"; {counted(unwritten, 'decision')} that should follow {'is' if unwritten == 1 else 'are'} not written" if unwritten else ""
    parts: list[Part] = [Line(verdict, f": {summary}" if verification.verdict.exit_code == 0 else f", after {summary}")]
    if verification.begins is not None:
        parts.append(begins_text(*verification.begins))
    parts += [] if verification.extent is None else [extent_text(verification.extent)]
    bases = sum(group.bases for group in groups)
    parts += [f"{counted(bases, 'state')} in bases equal the recomputed ones"] if bases else []
    columns = ("group", "verdict", "facts", "decisions identical", "state hashes", "repeated", "not yet written")
    rows = [(each.group, each.verdict.value, each.facts, each.compared, each.checkpoints, each.repeated, each.not_yet_written) for each in groups]
    parts += [Table(columns=columns, rows=rows)] if rows else []
    not_compared = sum(group.not_compared for group in groups)
    if not_compared:
        parts.append(f"not compared: {counted(not_compared, 'state hash', 'state hashes')} in a form of the state that this build does not write")
    parts += dict.fromkeys(f"not verified from offset {group.offset} on: {group.problem}" for group in groups if group.problem)
    for group in groups:
        if group.divergence is not None:
            parts += divergence_parts(group.group, group.divergence)
    return parts


def divergence_parts(group: str, divergence: Divergence) -> list[Part]:
    """The first divergence of a group: the fact, both decisions, what differs."""
    parts: list[Part] = ["", Line(bold(f"first divergence of group {group}, at offset {divergence.offset}: {divergence.problem}"))]
    fact = divergence.fact
    if fact is not None:
        parts.append(f"  fact        offset {fact.offset}, {clock_text(fact.append_ms)}: {_said(fact.event)}")
    for label, record in (("in the log ", divergence.stored), ("recomputed ", divergence.recomputed)):
        found = "nothing" if record is None else f"number {record.number}, index {record.index}: {_said(record.decision)}"
        parts.append(f"  {label} {found}")
    if divergence.differences:
        rows = [(each.place, each.stored, each.recomputed) for each in divergence.differences]
        parts += ["", Table(columns=("what", "in the log", "recomputed"), rows=rows, title="what differs")]
    return parts


def _said(event: codec.Event) -> str:
    """The event on one line, at most _MOST_CHARS characters."""
    form = codec.to_json(event)
    text = f"{form['kind']} {json.dumps(form['event'], ensure_ascii=False)}"
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]} ... ({len(text):,} characters; --json has all)"
