"""The command: runs the systems in turn on one broker and prints one table."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from bench.__main__ import environment
from bench.peers.actions import ACTIONS, Run, run
from bench.peers.feed import Load
from bench.peers.systems import HEARTBEAT_INTERVAL_MS, OTHERS, SESSION_TIMEOUT_MS, SYSTEMS
from bench.peers.table import rows_of, summary_of
from bench.results import conditions, write_csv
from equipoise.cli.command import command
from equipoise.cli.output import Kind, check_files, write_file
from equipoise.cli.screen import Screen, Table
from tools.brokers import FAST_JAVA, Brokers


def _listed(known: Mapping[str, Any] | tuple[str, ...], default: Mapping[str, Any] | None = None) -> Any:
    def split(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
        names = list(known if default is None else default) if value is None else value.split(",")
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
        return names

    return split


@contextlib.contextmanager
def one_broker(bootstrap: str | None) -> Iterator[str]:
    """The given broker, or one that is started here and ended at the end."""
    if bootstrap is not None:
        yield bootstrap
        return
    with Brokers(java=FAST_JAVA, **{"group.initial.rebalance.delay.ms": "3000"}) as brokers:  # Kafka's default
        yield brokers.bootstrap


@command("peers", short_help="equipoise beside Kafka Streams, Faust and a plain consumer group.")
@click.option(
    "--only",
    callback=_listed({**SYSTEMS, **OTHERS}, SYSTEMS),
    metavar="NAMES",
    help=f"Some of {','.join(SYSTEMS)} (the default), {','.join(OTHERS)}.",
)
@click.option("--actions", callback=_listed(ACTIONS), metavar="NAMES", help=f"Some of {','.join(ACTIONS)}, in the order of execution.")
@click.option("--tasks", default=26, show_default=True, type=click.IntRange(1, 99), help="Partitions of the input.")
@click.option("--state-mb", default=100, show_default=True, type=click.IntRange(0), help="State of all tasks, loaded before the first member starts.")
@click.option("--per-second", default=10.0, show_default=True, help="Records per second for each task.")
@click.option("--members", default=3, show_default=True, type=click.IntRange(1), help="Members at the start.")
@click.option("--standbys", default=0, show_default=True, type=click.IntRange(0), help="Standbys of each task, in systems that have them.")
@click.option("--most-s", default=75.0, show_default=True, help="Time after which an unsettled action is cut off.")
@click.option("--rest-s", default=5.0, show_default=True, help="Time without changes after which an action is over.")
@click.option("--warm-s", default=0.0, show_default=True, help="Time after the start, for standbys to be restored.")
@click.option("--bootstrap", envvar="KAFKA_BOOTSTRAP", help="A running broker; default: starts one.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder for logs and states; default: they are removed.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File for all measurements, as JSON.")
@click.option("--csv", "table", type=click.Path(path_type=Path, dir_okay=False), help="File for the table, as CSV, with the settings of each system.")
@click.option("--beside", multiple=True, type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Earlier --out file for the table.")
def peers(
    screen: Screen,
    only: list[str],
    actions: list[str],
    bootstrap: str | None,
    keep: Path | None,
    out: Path | None,
    table: Path | None,
    beside: tuple[Path, ...],
    most_s: float,
    rest_s: float,
    warm_s: float,
    members: int,
    standbys: int,
    **load: Any,
) -> None:
    """Runs the same application, a count per key with a changelog, on four systems in turn on one
    broker. Members are restarted one by one, one joins, one leaves, one is killed, while every task
    receives records. Measures how long the records wait.

    \b
    Examples:
      python -m bench.peers
      python -m bench.peers --only equipoise,streams --actions join,kill --tasks 12 --state-mb 20
      # how a member may be restarted:
      python -m bench.peers --only equipoise,restarts,static --actions restart --standbys 1
      # 500 MB of state for the fourth member:
      python -m bench.peers --only equipoise --actions join --state-mb 2000
    """
    logging.getLogger("aiokafka").setLevel(logging.ERROR)  # a new topic answers that it has no leader yet
    under = conditions("bench.peers")
    given = Load(**{("per_s" if name == "per_second" else name): value for name, value in load.items()})
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    check_files(("--out", out, Kind.RESULTS))
    home = Path(tempfile.mkdtemp(prefix="equipoise-peers-")) if keep is None else keep
    runs: list[dict[str, Any]] = [each for path in beside for each in json.loads(path.read_text())["runs"]]
    try:
        with one_broker(bootstrap) as reached:
            for key in screen.track(only, "measuring", len(only)):
                name = f"peers-{key}-{time.time_ns() // 1_000_000}"
                system = {**SYSTEMS, **OTHERS}[key](reached, name, home / name, given, standbys)
                begun_s = time.monotonic()

                def report(line: str, begun_s: float = begun_s) -> None:
                    screen.remark(f"{time.monotonic() - begun_s:5.0f} s  {line}")

                done: Run = asyncio.run(run(system, given, actions, members=members, rest_s=rest_s, most_s=most_s, warm_s=warm_s, report=report))
                runs.append({**attrs.asdict(done), "standbys": standbys, "members": members, **attrs.asdict(given)})
    except BaseException:
        if keep is None:
            screen.remark(f"logs of the processes: {home}")
        raise
    if keep is None:
        shutil.rmtree(home, ignore_errors=True)
    document = {"environment": environment(), "session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS, "runs": runs}
    if out is not None:
        write_file("--out", out, Kind.RESULTS, json.dumps({"made_by": "equipoise", **document}, indent=2) + "\n")
    if table is not None:
        columns, rows = rows_of(runs)
        of_systems = {run["system"]: {name: run[name] for name in ("wait_median_ms", "wait_p99_ms", "started_s", "settings")} for run in runs}
        write_csv(table, [{**dict(zip(columns, row, strict=True)), **of_systems[str(row[0])], **under} for row in rows])
    tables = [Table(columns=columns, rows=rows) for columns, rows in (summary_of(runs), rows_of(runs))]
    about = (
        f"{environment()}; {given.tasks} tasks, {given.state_mb} MB of state, {given.per_s:g} records/s for each task, {standbys} standbys; "
        f"session timeout {SESSION_TIMEOUT_MS / 1_000:g} s, heartbeats each {HEARTBEAT_INTERVAL_MS / 1_000:g} s"
    )
    screen.answer(document, about, tables[0], "", tables[1])


if __name__ == "__main__":
    peers.main(prog_name="python -m bench.peers")
