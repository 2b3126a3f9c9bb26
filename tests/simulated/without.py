"""Switches off, one by one, what was mended after an attack, so that one sees whether the
simulation would have found it. Run `python -m tests.simulated.without` for the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import click

from equipoise.events import codec
from equipoise.events.errors import InputError
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka import envelope
from equipoise.member.copies import fencing
from equipoise.member.copies.checks import CopyChecks
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.fencing import SOURCES_KEY
from equipoise.member.copies.origin import Origin
from equipoise.member.session import link
from equipoise.member.session.host import MemberHost
from equipoise.member.session.link import Link
from equipoise.member.tasks import context as task_context
from equipoise.member.tasks import open_task, placing
from equipoise.member.tasks.open_task import OpenTask
from equipoise.member.tasks.opening import TaskOpening
from equipoise.member.tasks.placing import SourcePlacing
from equipoise.member.tasks.positions import Positions
from equipoise.member.tasks.runner import TaskRunner
from equipoise.member.tasks.sources import SourceReader
from equipoise.member.tasks.writer import TaskWriter
from equipoise.statemachine import transitions
from equipoise.statemachine.member import MemberSession, MemberSettings
from equipoise.statemachine.state import GroupState
from equipoise.worker.log_identity import LogIdentity
from tests.simulated import broker_faults, upgrade_faults  # noqa: F401  # they add their faults
from tests.simulated.deploys import DeployStorm, run_deploys
from tests.simulated.faults import chosen
from tests.simulated.run import Result, simulate

PAGE = Path("docs/faults.md")
BEGIN, END = "<!-- made by `python -m tests.simulated.without --write` -->", "<!-- end -->"
MOST_SEEDS = 60
DEPLOYS = "deploys"
Off = Callable[[], contextlib.AbstractContextManager[Any]]


@attrs.frozen
class Switch:
    """`what`: what holds no longer. `faults`, `guarantee`: of the simulations; DEPLOYS: storms of
    deploys. `off`: switches it off as long as its context is entered.
    """

    name: str
    finding: str
    what: str
    faults: str
    guarantee: str
    off: Off


def _tokens_alone() -> Any:
    return mock.patch.object(Origin, "__lt__", lambda self, other: self.token < other.token)


@contextlib.contextmanager
def _sub_topologies_alone() -> Iterator[None]:
    def runnable(state: GroupState, member: Any) -> Mapping[int, int] | None:
        known = runs(state, member)
        return known and dict.fromkeys(known, 1_000_000)

    runs = GroupState.runnable
    with mock.patch.object(GroupState, "runnable", runnable), mock.patch.object(MemberSettings, "knows", return_value=True):
        yield


@contextlib.contextmanager
def _log_by_its_end() -> Iterator[None]:
    async def no_ids(self: Link, *how: object) -> None:
        return None

    begins = Link.__init__

    def begin(self: Link, *arguments: Any, **callbacks: Any) -> None:
        begins(self, *arguments, **{**callbacks, "went_back": callbacks["read_up_to_end"]})

    with (
        mock.patch.object(Link, "_ask_topic_ids", no_ids),
        mock.patch.object(Link, "__init__", begin),
        mock.patch.object(MemberSession, "_heeds_log_id", return_value=False),
    ):
        yield


def _any_free_lock() -> Any:
    return mock.patch.object(StateDirectory, "_why_unproven", return_value="")


@contextlib.contextmanager
def _sources_of_at_least_once() -> Iterator[None]:
    """With exactly_once: source positions neither in changelogs nor believed there."""
    transactional: ContextVar[bool] = ContextVar("transactional", default=False)
    opens, commits, queues, reads = TaskRunner._open, OpenTask._queue_changes, TaskWriter.queue_changes, task_context.read_sources
    commits_in_transaction = False

    async def opened(self: TaskRunner) -> None:
        transactional.set(self._options.transactional)
        await opens(self)

    def commit(self: OpenTask, *arguments: Any) -> Any:
        nonlocal commits_in_transaction
        commits_in_transaction = True
        try:
            return commits(self, *arguments)
        finally:
            commits_in_transaction = False

    def queue(self: TaskWriter, changes: Mapping[str, Any]) -> Any:
        off = b"-off" if commits_in_transaction else b""
        named = {topic: {key + off if key == SOURCES_KEY else key: value for key, value in each.items()} for topic, each in changes.items()}
        return queues(self, named)

    with (
        mock.patch.object(TaskRunner, "_open", opened),
        mock.patch.object(OpenTask, "_queue_changes", commit),
        mock.patch.object(TaskWriter, "queue_changes", queue),
        mock.patch.object(placing, "read_sources", lambda state: ({}, {}) if transactional.get() else reads(state)),
    ):
        yield


@contextlib.contextmanager
def _known_decisions_alone() -> Iterator[None]:
    """A field that a newer build has appended ends the member, as any unreadable decision did."""
    reads = envelope.member_decision

    def read(stored: Any) -> Any:
        if codec.has_appended_fields(stored.row.kind, stored.row.version, stored.row.payload):
            raise InputError("a decision has more fields than this build knows")
        return reads(stored)

    async def keep_going(self: MemberHost, job: Any) -> None:
        await job()

    with mock.patch.object(link, "member_decision", read), mock.patch.object(MemberHost, "_keep_going", keep_going):
        yield


@contextlib.contextmanager
def _no_fence() -> Iterator[None]:
    async def take(self: TaskOpening, clients: Any, writer: TaskWriter) -> Any:
        owners, _ = await self._permit.restore(self._task, lambda _: False)
        writer.origins = {topic: fencing.claim(owner, self._origin) for topic, owner in owners.items()}
        return await self._permit.take_stores(self._task, {}), None

    with mock.patch.object(TaskOpening, "_take_stores", take), mock.patch.object(OpenTask, "_check_followed"):
        yield


@contextlib.contextmanager
def _first_unchecked() -> Iterator[None]:
    checks = OpenTask._check_followed

    def check(self: OpenTask, written: Any) -> None:
        if not self._transactional:
            checks(self, written)

    with mock.patch.object(OpenTask, "_check_followed", check):
        yield


@contextlib.contextmanager
def _reader_goes_on() -> Iterator[None]:
    forgets = Link.forget

    def forget(self: Link) -> None:
        was_placed = self._placed.is_set()
        forgets(self)
        if was_placed:
            self._placed.set()

    with mock.patch.object(Link, "forget", forget):
        yield


def _unwatched_log() -> Any:
    async def wait(self: LogIdentity, facts: Any) -> None:
        await asyncio.get_running_loop().create_future()

    return mock.patch.object(LogIdentity, "watch", wait)


@contextlib.contextmanager
def _committed_offsets() -> Iterator[None]:
    async def take(self: SourcePlacing, clients: Any, writer: TaskWriter) -> dict[TopicPartition, int]:
        found = {source: await clients.sources.reader.consumer.committed(source) for source in clients.sources.partitions}
        return {source: await self._reset(clients, source) if offset is None else offset for source, offset in found.items()}

    with mock.patch.object(SourcePlacing, "take", take):
        yield


@contextlib.contextmanager
def _all_changelogs_count() -> Iterator[None]:
    def all_of(stored: Any, source: TopicPartition, otherwise: int | None) -> int | None:
        known = [each.get(source) for each in stored]
        return None if None in known else min(known)

    with mock.patch.object(placing, "continued", all_of), mock.patch.object(Positions, "find", return_value=None):
        yield


@contextlib.contextmanager
def _topics_by_name() -> Iterator[None]:
    async def no_ids(*_: object) -> dict[str, str]:
        return {}

    with mock.patch.object(SourceReader, "topic_ids", no_ids), mock.patch.object(CopyChecks, "ask_ids", no_ids):
        yield


def _leader_epochs_unknown() -> Any:
    async def none(*_: object) -> dict[TopicPartition, int]:
        return {}

    return mock.patch.object(CopyChecks, "forked", none)


@contextlib.contextmanager
def _positions_without_epochs() -> Iterator[None]:
    pack, records = task_context.pack_sources, SourcePlacing.records

    def no_epochs(self: SourcePlacing, positions: Any, epochs: Any, transactional_id: str) -> Any:
        return records(self, positions, {}, transactional_id)

    with (
        mock.patch.object(open_task, "pack_sources", lambda positions, epochs: pack(positions, {})),
        mock.patch.object(SourcePlacing, "records", no_epochs),
    ):
        yield


def _any_topology() -> Any:
    return mock.patch.object(transitions, "difference", return_value=None)


SWITCHES = (
    Switch("tokens", "1", "Origins are compared by their tokens alone.", "log_created_again,kill_member", "both", _tokens_alone),
    Switch("partitions", "3", "A member may be given every partition of its sub-topologies.", "more_partitions", "both", _sub_topologies_alone),
    Switch("log_id", "5", "A member knows its log by the end of its decisions alone.", "log_created_again,kill_member", "both", _log_by_its_end),
    Switch("lock", "6", "Any free lock proves a former process dead.", "disks", "both", _any_free_lock),
    Switch("sources", "7", "Source positions are in changelogs with *at least once* alone.", "operators", "both", _sources_of_at_least_once),
    Switch("newer", "13", "A decision with an appended field ends a member.", "newer_worker", "both", _known_decisions_alone),
    Switch("fence", "15", "A new owner writes no fence.", "kill_in_commit", "at_least_once", _no_fence),
    Switch("reader", "new", "Decisions are read between two incarnations.", "network,brokers", "both", _reader_goes_on),
    Switch("watch", "new", "A worker does not look at its log while a send waits.", "log_created_again", "both", _unwatched_log),
    Switch("topology", "new", "A join is taken whatever topology it says.", "forgotten_epoch", "both", _any_topology),
    Switch("positions", "new", "A task without state continues at the group's committed offset.", DEPLOYS, "both", _committed_offsets),
    Switch("listed", "new", "All changelogs of a task say where it continues.", DEPLOYS, "both", _all_changelogs_count),
    Switch("topic ids", "new", "Members know the application's topics by name.", DEPLOYS, "both", _topics_by_name),
    Switch("epochs", "new", "A copy is one of any changelog that is as long.", DEPLOYS, "both", _leader_epochs_unknown),
    Switch("source epochs", "new", "A position is stored without the leader epoch that it was read in.", DEPLOYS, "both", _positions_without_epochs),
    Switch("stale", "new", "A transaction need not follow what is known of a changelog.", "members,brokers", "exactly_once", _first_unchecked),
)


def search(switch: Switch, most_seeds: int = MOST_SEEDS, storm_s: float = 20.0, every_s: float = 0.6) -> tuple[Result | DeployStorm | None, int, int]:
    """Simulates with the switch off until something does not hold. Returns that result, and how
    many seeds and steps it took.
    """
    steps = 0
    for seed in range(1, most_seeds + 1):
        guarantee = ("at_least_once", "exactly_once")[seed % 2] if switch.guarantee == "both" else switch.guarantee
        with switch.off():
            result: Result | DeployStorm
            if switch.faults == DEPLOYS:
                result = run_deploys(seed)
            else:
                result = simulate(seed, guarantee, chosen(switch.faults), storm_s=storm_s, every_s=every_s)
        steps += result.steps
        if result.problems:
            return result, seed, steps
    return None, most_seeds, steps


def row(switch: Switch, result: Result | DeployStorm | None, seeds: int, steps: int) -> str:
    """A row of the table in docs/faults.md."""
    seed, until = ("-", f"not in {seeds} seeds") if result is None else (f"{result.seed}", f"{steps:,}")
    return f"| {switch.what} | {switch.faults.replace(',', ', ')} | {seed} | {until} |"


@click.command()
@click.option("--only", default="", help="Names of switches, with commas between.")
@click.option("--most-seeds", default=MOST_SEEDS, show_default=True)
@click.option("--write", is_flag=True, help="Write the table to docs/faults.md.")
def main(only: str, most_seeds: int, write: bool) -> None:
    """Looks for each switched-off mend. Exit code 1: one was not found."""
    rows, missing = [], 0
    for switch in SWITCHES:
        if only and switch.name not in only.split(","):
            continue
        began_s = time.perf_counter()
        result, seeds, steps = search(switch, most_seeds)
        missing += result is None
        rows.append(row(switch, result, seeds, steps))
        click.echo(f"{switch.name} ({switch.finding}), {time.perf_counter() - began_s:.0f} s: {rows[-1]} {result.problems[0] if result else ''}")
    if write:
        text = PAGE.read_text()
        head, _, rest = text.partition(BEGIN)
        table = ["| without it | faults | seed | steps until found |", "|---|---|---|---|", *rows]
        PAGE.write_text("\n".join([head + BEGIN, "", *table, "", END]) + rest.partition(END)[2])
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
