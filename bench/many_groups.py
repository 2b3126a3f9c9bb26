"""An archive as a worker writes it: the facts and decisions of many groups, in turn, in few
partitions.

`python -m bench.many_groups FOLDER --groups 10000 --partitions 4 --records 1000000` writes one, a
process for each core. Equal arguments give equal records. `python -m bench.many_groups FOLDER
--copies 9`, of an archive that is there, adds each of its partitions nine times as partitions of
their own, under other names of groups: ten times the records in a tenth of the time.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path

import attrs
import click

from equipoise.assignors import registry
from equipoise.events import codec
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LagReported,
    LogOpened,
    MemberJoined,
    MemberUnchanged,
    PartitionsObserved,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import LagSentinel
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.archive_writing import Writer
from equipoise.log.parquet.files import make_archive
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.rows import BaseRow, DecisionRow, FactRow
from equipoise.statemachine.machine import GroupMachine

SPEAKS_EVERY_MS = 1_000
"""A group: one of its members, or the worker for it."""
TASKS = 4
MEMBERS = ("m1", "m2")
REPORT_EVERY = 8
"""Of so many words of a member one is a report with lags; the others say that nothing changed."""
JOIN_EVERY = 400
RECORDS_A_TRANSACTION = 200_000


@attrs.frozen(kw_only=True)
class ManyGroups:
    """`records`: facts and decisions of all groups together. `large`: the first group of each
    partition has half of its facts.
    """

    groups: int
    partitions: int
    records: int
    large: bool = False


@attrs.define
class _Group:
    """One group, which says one fact after the other."""

    name: str
    machine: GroupMachine = attrs.field(factory=GroupMachine)
    said: int = 0

    def fact(self) -> Fact:
        self.said += 1
        first: dict[int, Fact] = {
            1: GroupConfigured(solver=registry.load("high_availability", 1).solver, knobs=GroupSettings(num_standbys=1, initial_delay_ms=0)),
            2: TopologyDeclared(epoch=0, subtopologies=(Subtopology(subtopology=0, partitions=TASKS, stateful=True, changelog_topics=("c",)),)),
            3: PartitionsObserved(end_offsets={"c": dict.fromkeys(range(TASKS), 1_000)}),
            4: self._joined("m1"),
            5: self._joined("m2"),
        }
        if self.said in first:
            return first[self.said]
        member = self.machine.state.members[MEMBERS[self.said % 2]]
        if self.said % JOIN_EVERY == 0:
            return self._joined(member.member_id, member.incarnation)
        if member.report_number >= 0 and self.said // 2 % REPORT_EVERY:
            return MemberUnchanged(member_id=member.member_id, incarnation=member.incarnation, report=member.report_number)
        copies = sorted({*member.active, *member.standby, *member.warmup})
        return LagReported(
            member_id=member.member_id,
            incarnation=member.incarnation,
            number=member.report_number + 1,
            assignment_epoch=member.issued_epoch,
            held=tuple(sorted(member.active)),
            lags={task: LagSentinel.ACTIVE if task in member.active else 0 for task in copies},
        )

    def _joined(self, member: str, ended: int | None = None) -> MemberJoined:
        incarnation = (ended or 0) + 1
        return MemberJoined(member_id=member, incarnation=incarnation, join_nonce=f"{member}.{incarnation}", ended_incarnation=ended)


def make(many: ManyGroups, folder: Path) -> int:
    """Writes the archive, and returns its number of records."""
    make_archive(store_at(folder))
    with ProcessPoolExecutor(min(many.partitions, os.cpu_count() or 1)) as pool:
        return sum(pool.map(partial(_make_partition, many, folder), range(many.partitions)))


def _make_partition(many: ManyGroups, folder: Path, partition: int) -> int:
    groups = [_Group(f"orders-{each:05}") for each in range(partition, many.groups, many.partitions)]
    wanted = many.records // many.partitions
    records = facts = 0
    with ArchiveLog(f"{folder}?partition={partition}", "w") as log:
        with log.transaction():
            opened = log.append_fact("", 0, LogOpened(log_id="many"))
        for group in groups:
            group.machine.step(opened)
        turns = cycle([each for group in groups[1:] for each in (groups[0], group)] if many.large else groups)
        while records < wanted:
            end = min(wanted, records + RECORDS_A_TRANSACTION)
            with log.transaction():
                while records < end:
                    group = next(turns)
                    facts += 1
                    record = log.append_fact(group.name, facts * SPEAKS_EVERY_MS // len(groups), group.fact())
                    decided = group.machine.step(record)
                    log.append_decisions(decided)
                    records += 1 + len(decided)
    return records


def copy(folder: Path, copies: int) -> int:
    """Adds copies of each partition, and returns the number of records that were added."""
    with ArchiveLog(str(folder), "r") as log:
        partitions = log.partitions()
    jobs = [(partition, len(partitions) * number + partition, number) for number in range(1, copies + 1) for partition in partitions]
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        return sum(pool.map(partial(_copy_partition, folder), jobs))


def _copy_partition(folder: Path, job: tuple[int, int, int]) -> int:
    """`job`: a partition, that of its copy, and what is added to the names of its groups."""
    source, target, number = job
    fact_checksum = 0
    with ArchiveLog(str(folder), "r") as log:
        writer = Writer(log.store, target, first_row=0, first_offset=0, latest_ms=0, numbers={})
        for row, order in log.part(source).checked_rows():
            assert not isinstance(row, BaseRow), "only a log with a retention begins at states"
            group = row.group and f"{row.group}-{number}"
            place = (row.kind, row.version, row.payload)
            if isinstance(row, FactRow):
                fact_checksum = codec.fact_checksum(group, row.offset, row.append_ms, *place)
                writer.add(FactRow(group, row.offset, row.append_ms, *place, fact_checksum))
            else:
                cause = (row.number, row.caused_by, row.index)
                checksum = codec.decision_checksum(order.log_id, group, *cause, fact_checksum, *place)
                writer.add(DecisionRow(group, *cause, *place, checksum))
        writer.publish()
        return writer.next_row


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--groups", type=int, default=10_000, show_default=True)
@click.option("--partitions", type=int, default=1, show_default=True)
@click.option("--records", type=int, default=660_000, show_default=True)
@click.option("--large", is_flag=True, help="The first group of each partition has half of its facts.")
@click.option("--copies", type=int, default=0, help="Of each partition of an archive that is there.")
def main(folder: Path, groups: int, partitions: int, records: int, copies: int, *, large: bool) -> None:
    if copies:
        print(f"{copy(folder, copies):,} records added")
        return
    print(f"{make(ManyGroups(groups=groups, partitions=partitions, records=records, large=large), folder):,} records")


if __name__ == "__main__":
    main()
