"""`python -m examples.fleet --to ARCHIVE`: writes an archive of many simulated groups."""

from __future__ import annotations

import os

import click

from equipoise.cli.command import command
from equipoise.cli.exit_codes import resumable
from equipoise.cli.params import WholeNumber
from equipoise.cli.screen import Screen
from equipoise.replay.wording import counted


@command("fleet", json=False, short_help="Write an archive of many simulated groups, to try Spark jobs on.")
@click.option("--to", "location", required=True, metavar="ARCHIVE", help="Archive to write. The same fleet is resumed; another fleet is replaced.")
@click.option("--groups", type=WholeNumber(1), default=200, show_default=True, help="Number of groups; sizes fall as 1/rank.")
@click.option("--records", type=WholeNumber(1), default=5_000_000, show_default=True, help="Facts and decisions of all groups together.")
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Random seed.")
@click.option("--processes", type=WholeNumber(1), help="Parallel processes. Default: one for each core.")
def fleet(screen: Screen, location: str, groups: int, records: int, seed: int, processes: int | None) -> None:
    """Simulate groups, each in a cluster of its own: members join, are killed, come back, leave and
    are added. The real state machine decides and real member code obeys, so every log is complete
    and verifies. The same seed writes the same records.

    \b
    Examples:
      python -m examples.fleet --to fleet/ --groups 20 --records 100000
      python -m examples.fleet --to fleet/
    """
    from examples.fleet.many_groups import Fleet, check_location, groups_there, make_fleet

    wanted = Fleet(groups=groups, records=records, seed=seed)
    folder = check_location(location)

    def there() -> str:
        return f"{location} holds {len(groups_there(wanted, folder)):,} of {counted(groups, 'group')}; the same command makes the others"

    with resumable(location, there), screen.progress("simulating, in records", records) as advance:
        written = make_fleet(wanted, folder, processes=processes or os.cpu_count() or 1, advance=advance)
    screen.answer(None, f"{counted(groups, 'group')}, {written:,} records -> {location}")


if __name__ == "__main__":
    fleet(prog_name="python -m examples.fleet")
