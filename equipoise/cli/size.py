"""`equipoise size LOG`: how many members a group needs, and what it costs to get there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.params import Number, WholeNumber, groups_of, log_argument
from equipoise.cli.predicted import interval_text, read_to_end
from equipoise.cli.screen import Line, Part, Screen, Styled, Table, bold
from equipoise.events.errors import InputError
from equipoise.log import Log
from equipoise.replay.numbers import UNAVAILABLE_TASK_S
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.replay.prediction.predict import Prediction
    from equipoise.replay.sizing.size import Sizing

EXIT_NONE = 1


@command("size", short_help="Say how many members a group needs, and what a change costs.")
@log_argument
@click.option("--group", metavar="GROUP", help="Group; required only if LOG holds several.")
@click.option(
    "--lag", "lag_s", type=Number(min=0.001), default=30.0, show_default=True, metavar="SECONDS", help="Longest time that a record may wait."
)
@click.option(
    "--member-records-per-s", "per_s", type=Number(min=0.001), metavar="N", help="Records a second that a member can process. Default: as LOG shows."
)
@click.option("--restore-speed", type=WholeNumber(min=1), metavar="N", help="Records a second that a member restores. Default: fitted from LOG.")
@click.option("--runs", type=WholeNumber(0, 10_000), default=20, show_default=True, help="Simulated runs of each change; 0: predict none.")
def size(screen: Screen, log: Log, group: str | None, lag_s: float, per_s: float | None, restore_speed: int | None, runs: int) -> int:
    """Say how many members the group needs so that no record waits longer than --lag. The members'
    reports in LOG tell what arrived for each task, and what members did while they were busy. What
    a member can do and what arrives next are drawn 100 times; the recommendation does in most
    draws. For each number of members: lag, utilisation, and what it costs to get there and back, as
    simulated from the group as it is.

    Exit code 1: no number of members does; it says which tasks get more than one member can do, or
    have failed.

    \b
    Examples:
      equipoise size group.db --lag 10
      equipoise size kafka://broker1:9092 --group orders --lag 60 --json | jq .recommended
    """
    from equipoise.replay.all_clear import grounds_of
    from equipoise.replay.sizing.size import read_sizable  # loads the solver
    from equipoise.replay.sizing.size import size as sized
    from equipoise.replay.trouble import wrong

    names = [group] if group is not None else groups_of(log)
    if len(names) != 1:
        raise InputError(f"--group: the log holds {counted(len(names), 'group')}; name one of {', '.join(names[:10])}")
    (name,) = names
    entries, known = read_to_end(screen, log, name)
    state = None if known is None else known.lead.machine.state
    found = read_sizable(entries, group=name, restore_records_per_s=restore_speed, state=state)
    grounds = grounds_of(found.state) if known is None else known.grounds
    trouble = [each.text for each in grounds.missing] + wrong(found.state)
    try:
        with screen.progress(f"{name}: simulated runs") as advance:
            answer = sized(
                found,
                target_lag_s=lag_s,
                member_records_per_s=per_s,
                costs=runs > 0,
                runs=max(1, runs),
                processes=os.cpu_count() or 1,
                progress=lambda done, of: advance(1),
            )
    except InputError as error:
        raise InputError("; ".join([*trouble, str(error)])) from None
    document = {**answer.as_json(), "trouble": trouble, "grounds": grounds.document()}
    screen.answer(document, *(Line(Styled(each, colour="red")) for each in trouble), *size_parts(answer))
    return EXIT_NONE if answer.recommended is None else 0


def size_parts(answer: Sizing) -> list[Part]:
    """The table of member counts, and the recommendation."""
    trend = "" if answer.trend is None else f", {answer.trend - 1:+.0%} from the day before"
    rows = [
        (
            "*" if each.members == answer.recommended else "now" if each.members == answer.now else "",
            f"{each.members}",
            interval_text(each.lag_s),
            f"{each.utilisation:.0%}",
            f"{each.mean_utilisation:.0%}",
            f"{each.met:.0%}",
            *_cost(each.there),
            *_cost(each.back),
        )
        for each in answer.options
    ]
    costs = (UNAVAILABLE_TASK_S, "at rest, s")
    columns = ("", "members", "longest lag, s", "busiest", "all", "does in", *(f"{way}: {each}" for way in ("there", "back") for each in costs))
    title = "the median of the draws, and between which 95 % of them lie; busiest: utilisation of a member; does in: so many draws"
    parts: list[Part] = [
        Line(
            bold(answer.group),
            f"  {counted(answer.now, 'member')}, {counted(answer.tasks, 'task')}; loads of {answer.hours:.1f} h{trend}; "
            f"a member does {answer.per_s:,.0f} records/s ({answer.basis})",
        ),
        Table(columns=columns, rows=rows, title=title),
        Line(bold(answer.line())),
    ]
    if answer.unpredicted:
        parts.append(f"what a change costs is not known: {answer.unpredicted}")
    if answer.hold_s is not None:
        often = span_text(round(answer.hold_s * 1_000))
        parts.append(f"change it at most once in {often}: then changes cost no more than a thousandth of the availability")
    return parts


def _cost(prediction: Prediction | None) -> tuple[str, str]:
    if prediction is None:
        return "", ""
    return interval_text(prediction.intervals["unavailable_task_seconds"]), interval_text(prediction.intervals["rest_s"])
