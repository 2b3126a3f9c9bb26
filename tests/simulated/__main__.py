"""The command line of the simulation."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from functools import partial

import click

from tests.simulated.faults import kinds
from tests.simulated.run import describe
from tests.simulated.seeds import run_seed


@click.command()
@click.option("--seeds", default="1..10", show_default=True, help="A..B, or one seed.")
@click.option("--guarantee", type=click.Choice(["both", "at_least_once", "exactly_once"]), default="both", show_default=True)
@click.option("--faults", default="all", show_default=True, help=f"Kinds or names, with commas between. Kinds: {', '.join(kinds())}.")
@click.option("--storm-s", default=30.0, show_default=True, help="Virtual seconds with faults.")
@click.option("--every-s", default=1.5, show_default=True, help="Mean virtual seconds between two faults.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("-v", "--verbose", is_flag=True, help="Print what was done, and what the hosts log.")
def main(seeds: str, jobs: int, verbose: bool, **options: object) -> None:
    """Simulates the deployed hosts. Exit code 1: something does not hold."""
    first, _, last = seeds.partition("..")
    run = partial(run_seed, **options)  # type: ignore[arg-type]
    wanted = range(int(first), int(last or first) + 1)
    if verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s", stream=sys.stderr)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
    began_s, steps, virtual_s, failed = time.perf_counter(), 0, 0.0, []
    # ProcessPoolExecutor hangs when all its processes are to be replaced at once (CPython 115634).
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) if jobs > 1 else _Here() as pool:
        for result in pool.imap(run, wanted):
            steps, virtual_s = steps + result.steps, virtual_s + result.virtual_s
            click.echo(describe(result, 10_000 if verbose else 60) if result.problems or verbose else str(result))
            if result.problems:
                failed.append(result.seed)
    took_s = time.perf_counter() - began_s
    click.echo(
        f"{len(wanted)} seeds, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}; {steps:,} steps, "
        f"{virtual_s:,.0f} virtual s in {took_s:.0f} s: {steps / took_s:,.0f} steps/s, {virtual_s / took_s:.0f} times real time"
    )
    sys.exit(1 if failed else 0)


class _Here:
    """Runs everything in this process."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap = staticmethod(map)


if __name__ == "__main__":
    main()
