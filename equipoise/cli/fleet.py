"""`equipoise fleet --to ARCHIVE`: many simulated groups in one archive."""

from __future__ import annotations

import os

import click

from equipoise.cli.command import command
from equipoise.cli.exit_codes import resumable
from equipoise.cli.screen import Screen
from equipoise.replay.wording import counted


@command("fleet", short_help="Write an archive of many simulated groups, to try jobs on.")
@click.option("--to", "location", required=True, metavar="ARCHIVE", help="The archive to write. The same fleet is continued, another one replaced.")
@click.option("--groups", type=click.IntRange(1), default=200, show_default=True, help="How many; their sizes fall as one over the rank.")
@click.option("--records", type=click.IntRange(1), default=5_000_000, show_default=True, help="Facts and decisions of all of them together.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything that happens.")
@click.option("--processes", type=click.IntRange(1), help="How many work at once; default: as many as there are cores.")
def fleet(screen: Screen, location: str, groups: int, records: int, seed: int, processes: int | None) -> None:
    """Lets groups live in simulated clusters, each in one of its own: members join, are killed,
    come back, leave and are added. What they do is decided by the real machine and done by real
    member code, so every log is complete and verifies. The same seed writes the same records.

    \b
    Examples:
      equipoise fleet --to fleet/ --groups 20 --records 100000
      equipoise fleet --to fleet/
    """
    from equipoise.replay.simulation.fleet import Fleet, check_location, groups_there, make_fleet

    wanted = Fleet(groups=groups, records=records, seed=seed)
    folder = check_location(location)

    def there() -> str:
        return f"{location} holds {len(groups_there(wanted, folder)):,} of {counted(groups, 'group')}; the same command makes the others"

    with resumable(location, there), screen.progress("simulating, in records", records) as advance:
        written = make_fleet(wanted, folder, processes=processes or os.cpu_count() or 1, advance=advance)
    screen.answer({"archive": location, "groups": groups, "records": written}, f"{counted(groups, 'group')}, {written:,} records -> {location}")
