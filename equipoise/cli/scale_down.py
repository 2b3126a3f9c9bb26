"""`equipoise scale-down LOG --percent 80`: whom to ask to leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import LOG, OFFSET, read
from equipoise.cli.screen import Screen, Table
from events.log import Log
from replay.wording import counted

if TYPE_CHECKING:
    from assignors.scale_down import ScaleDown


class _Percent(click.ParamType):
    """``80`` or ``80%``."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            percent = int(str(value).removesuffix("%"))
        except ValueError:
            percent = 0
        if not 1 <= percent <= 100:
            self.fail(f"{value} is not from 1 to 100", param, ctx)
        return percent


@command("scale-down", short_help="Whom to ask to leave: the least state to move, evenly from the racks.")
@click.argument("log", type=LOG)
@click.option("--percent", "--to", "percent", type=_Percent(), required=True, metavar="N", help="How many of 100 members are to stay, rounded up.")
@click.option("--at", "at_offset", type=OFFSET, metavar="OFFSET", help="As the group was after this fact; default: the last.")
@click.option("--group", metavar="GROUP", help="Which group; needed when the log holds several.")
def scale_down(screen: Screen, log: Log, percent: int, at_offset: int | None, group: str | None) -> None:
    """Folds LOG up to an offset and picks the members whose leaving costs the others the fewest records to restore; each rack gives up its share.
    Members that are leaving already count. Nobody is told anything: who is picked is to say that it intends to leave.

    \b
    Examples:
      equipoise scale-down group.db --percent 80
      equipoise scale-down --json group.db --percent 50% | jq -r '.asked[].member'
    """
    from assignors.scale_down import scale_down  # loads the solver
    from replay.refold import Refold
    from statemachine.leader import build_problem

    refold = Refold(group)
    for _ in refold.follow(read(screen, log, "folding", group), until_offset=at_offset):
        pass
    found = scale_down(build_problem(refold.machine.state), percent)
    document = {
        "group": refold.group,
        "offset": refold.machine.state.last_offset,
        "percent": percent,
        "keep": found.keep,
        "leaving": list(found.leaving),
        "asked": [attrs.asdict(each) for each in found.asked],
        "restore_records": found.restore_records,
        "racks": {rack: {"members": size, "stay": stay} for rack, (size, stay) in found.racks.items()},
    }
    screen.answer(document, *scale_down_parts(found, refold.group))


def scale_down_parts(found: ScaleDown, group: str) -> list[str | Table]:
    """Whom to ask, and what it costs."""
    racked = found.racks.keys() != {""}
    rows: list[list[str | int]] = [[each.member, *([each.rack] if racked else []), each.active, each.records] for each in found.asked]
    columns = ("ask", *(["rack"] if racked else []), "active tasks", "records to restore for it")
    already = f"; leaving already: {', '.join(found.leaving)}" if found.leaving else ""
    staying = f"{click.style(group, bold=True)}  {counted(found.keep, 'member')} stay{'s' if found.keep == 1 else ''}"
    head = f"{staying}, {counted(found.restore_records, 'record')} to restore in all{already}"
    if not rows:
        return [head, "nobody is to be asked"]
    parts: list[str | Table] = [head, "", Table(columns=columns, rows=rows, title=f"{counted(len(rows), 'member')} to ask")]
    if racked:
        parts.append(f"racks: {', '.join(f'{rack or chr(45)} {stay} of {size} stay' for rack, (size, stay) in found.racks.items())}")
    return parts
