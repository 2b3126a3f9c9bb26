"""Verifying a long log: memory must not grow with it, and time must not grow faster than it.

Two logs of one group, the second ten times the first, each verified by the command line in a
process of its own; peak memory is the process's own (`bench.memory`). Their members report twenty
lags each time. A third log is that of members at rest, which say that nothing has changed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from equipoise.assignors import registry
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
from equipoise.log import Log, open_log
from equipoise.statemachine.machine import GroupMachine

SHORT_RECORDS = 100_000
LONG_RECORDS = 1_000_000
MEMBERS = 6
TASKS = 60
STEP_MS = 100
FACTS_A_TRANSACTION = 5_000
JOIN_AGAIN_EVERY = 20_000  # so that decisions go on to the end of the log
REPORTS_AFTER_JOIN = 100  # of members at rest: they report only then


class _Writer:
    """Appends facts and what the machine decides on them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.machine = GroupMachine()
        self.records = 0

    def say(self, event: Fact, group: str = "bench") -> None:
        record = self.log.append_fact(group, self.records * STEP_MS, event)
        decided = self.machine.step(record)
        self.log.append_decisions(decided)
        self.records += 1 + len(decided)


def _facts(machine: GroupMachine, turn: int, at_rest: bool) -> Fact:
    """What the member whose turn it is says truthfully: a report, or that nothing has changed.
    Every so often one restarts instead.
    """
    name = f"m{turn % MEMBERS}"
    member = machine.state.members[name]
    if turn % JOIN_AGAIN_EVERY == JOIN_AGAIN_EVERY - 1:
        return _joined(turn % MEMBERS, member.incarnation + 1, ended=member.incarnation)
    if at_rest and turn % JOIN_AGAIN_EVERY >= REPORTS_AFTER_JOIN:
        return MemberUnchanged(member_id=name, incarnation=member.incarnation, report=member.report_number)
    return LagReported(
        member_id=name,
        incarnation=member.incarnation,
        number=member.report_number + 1,
        assignment_epoch=member.issued_epoch,
        held=tuple(sorted(member.active)),
        lags={task: LagSentinel.ACTIVE if task in member.active else 0 for task in sorted({*member.active, *member.standby, *member.warmup})},
    )


def _joined(index: int, incarnation: int, ended: int | None = None) -> MemberJoined:
    return MemberJoined(member_id=f"m{index}", incarnation=incarnation, join_nonce=f"m{index}.{incarnation}", ended_incarnation=ended)


def write_log(path: Path, records: int, *, at_rest: bool = False) -> None:
    """A log of about `records` records: a group of MEMBERS members and TASKS tasks with a standby
    each, heard in turn. `at_rest`: they report only after somebody has joined.
    """
    with open_log(str(path), mode="w") as log:
        writer = _Writer(log)
        with log.transaction():
            writer.say(LogOpened(log_id="bench"), group="")
            writer.say(GroupConfigured(solver=registry.load("high_availability", 1).solver, knobs=GroupSettings(num_standbys=1, initial_delay_ms=0)))
            writer.say(
                TopologyDeclared(epoch=0, subtopologies=(Subtopology(subtopology=0, partitions=TASKS, stateful=True, changelog_topics=("c",)),))
            )
            writer.say(PartitionsObserved(end_offsets={"c": dict.fromkeys(range(TASKS), 1_000_000)}))
            for index in range(MEMBERS):
                writer.say(_joined(index, 1))
        turn = 0
        while writer.records < records:
            with log.transaction():
                for turn in range(turn, turn + FACTS_A_TRANSACTION):  # noqa: B020  (goes on where it was)
                    writer.say(_facts(writer.machine, turn, at_rest))
            turn += 1


def _verified(path: Path) -> tuple[float, float]:
    """-> seconds, peak memory in MiB of one `equipoise verify` that found the log identical."""
    code = (
        "import sys\n"
        "from bench.memory import peak_mb\n"
        "from equipoise.cli import main\n"
        f"sys.argv = ['equipoise', '--quiet', 'verify', {str(path)!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print(peak_mb(), file=sys.stderr)\n"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode != 0 or "identical" not in done.stdout:
        raise RuntimeError(f"verify of {path} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return seconds, float(done.stderr.split()[-1])


def run() -> list[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory() as folder:
        measured = []
        for records in (SHORT_RECORDS, LONG_RECORDS):
            path = Path(folder) / f"{records}.db"
            write_log(path, records)
            measured.append(_verified(path))
            path.unlink()
        path = Path(folder) / "rest.db"
        write_log(path, LONG_RECORDS, at_rest=True)
        rest_s, _ = _verified(path)
    (short_s, short_mb), (long_s, long_mb) = measured
    tenfold = LONG_RECORDS / SHORT_RECORDS
    return [
        (
            f"peak memory to verify {LONG_RECORDS:,} records / {SHORT_RECORDS:,}",
            long_mb / short_mb,
            f"{long_mb:.0f} MB over {short_mb:.0f} MB; goal: at most 1.1",
        ),
        (
            f"time to verify {LONG_RECORDS:,} records / {tenfold:.0f} times {SHORT_RECORDS:,}",
            long_s / short_s / tenfold,
            f"{long_s:.1f} s, {LONG_RECORDS / long_s:,.0f} records/s; goal: at most 1",
        ),
        (
            f"time to verify {LONG_RECORDS:,} records of members at rest / {LONG_RECORDS:,} reports of 20 lags",
            rest_s / long_s,
            f"{rest_s:.1f} s, {LONG_RECORDS / rest_s:,.0f} records/s; goal: at most 0.5",
        ),
    ]
