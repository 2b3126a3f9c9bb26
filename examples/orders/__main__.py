"""The command line of the example."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from equipoise import Connection, EquipoiseError, JsonFormatter
from examples.orders.count import run_member
from examples.orders.produce import make_topics, produce
from examples.orders.recount import recount


@click.group()
@click.option(
    "--bootstrap",
    envvar="EQUIPOISE_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    help="A broker: host:port. TLS and SASL: EQUIPOISE_... variables.",
)
@click.option("--topic", default="orders", show_default=True)
@click.pass_context
def main(context: click.Context, bootstrap: str, topic: str) -> None:
    """Orders, counted per customer, led by equipoise."""
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "WARNING"), stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    context.obj = Connection.from_environment(bootstrap=bootstrap), topic


@main.command()
@click.option("--partitions", default=6, show_default=True)
@click.pass_obj
def topics(obj: Any, partitions: int) -> None:
    """Makes the topics of the application."""
    connection, topic = obj
    for name in asyncio.run(make_topics(connection, topic, partitions)):
        click.echo(name)


@main.command()
@click.option("--member", "member_id", required=True, help="Member id: keep it across restarts; one process at a time.")
@click.option("--group", default="orders", show_default=True)
@click.option("--state", type=click.Path(path_type=Path), help="Folder for state. Default: in memory.")
@click.option("--guarantee", type=click.Choice(["at_least_once", "exactly_once"]), default="exactly_once", show_default=True)
@click.option("--prefix", default="equipoise", show_default=True, help="Prefix of the log's topics.")
@click.option("--topology-epoch", default=0, show_default=True, help="One higher once partitions were added.")
@click.option("--session-timeout-ms", default=30_000, show_default=True)
@click.option("--lease-margin-ms", default=3_000, show_default=True)
@click.option("--heartbeat-interval-ms", default=3_000, show_default=True)
@click.option("--commit-interval-ms", default=100, show_default=True)
@click.option("--restore-records-per-s", type=float, help="Limit of restores.")
@click.option("--witness", is_flag=True, help="A small process proves the end of this one, when it is killed.")
@click.option("--on-sigterm", type=click.Choice(["leave", "restart", "close"]), default="leave", show_default=True, help="What SIGTERM means.")
@click.option("--back-within-ms", type=int, help="With restart: how long a restart takes at most.")
@click.option("--lead", is_flag=True, help="Also run a worker in this process.")
@click.option("--http-port", type=int, help="Port of /health, /ready and /metrics; 0: any free one. Default: none.")
@click.option("--http-host", default="127.0.0.1", show_default=True, help="Address of that port.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: one JSON document a line.")
@click.pass_obj
def count(obj: Any, /, member_id: str, group: str, state: Path | None, log_format: str, **options: Any) -> None:
    """Runs one member. SIGTERM: it leaves once its tasks run elsewhere, or restarts. SIGINT: it
    stops at once.
    """
    connection, topic = obj
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
        logging.getLogger("orders").setLevel(logging.INFO)
        options["say"] = logging.getLogger("orders").info
    sys.exit(asyncio.run(run_member(connection, topic, group, member_id, state_directory=state, **options)))


@main.command("produce")
@click.option("--orders", default=10_000, show_default=True)
@click.option("--per-second", default=1_000.0, show_default=True)
@click.option("--customers", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.pass_obj
def produce_(obj: Any, /, **options: Any) -> None:
    """Sends orders."""
    connection, topic = obj
    click.echo(f"{asyncio.run(produce(connection, topic, **options))} orders sent")


@main.command("recount")
@click.option("--guarantee", type=click.Choice(["at_least_once", "exactly_once"]), default="exactly_once", show_default=True)
@click.pass_obj
def recount_(obj: Any, guarantee: str) -> None:
    """Compares all counts with all orders. Exit code 1: an order was lost or, with exactly_once,
    counted twice. While orders arrive, the newest may still be uncounted, and it says so.
    """
    connection, topic = obj
    found = asyncio.run(recount(connection.options(), topic, exactly_once=guarantee == "exactly_once"))
    click.echo(f"{found.orders} orders of {found.customers} customers, {found.counts} counts, {found.repeated} of them again, {found.overtaken} late")
    for fault in found.faults[:20]:
        click.echo(fault)
    if found.is_arriving:
        click.echo(f"orders are still arriving: {found.not_yet_counted} are not counted yet; run this again when nobody sends any")
    click.echo("it does not hold" if found.faults else "it holds so far" if found.is_arriving else "it holds")
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    try:
        main()
    except EquipoiseError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
