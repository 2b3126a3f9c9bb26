"""`make upgrade OTHER=REF`: a deployment goes from another build to this one and back, under load.

Two workers lead two groups of the sample application, one with each guarantee and three members;
each is a process. All run the other build first. Then one by one is replaced by this build, workers
before members or members before workers, and then back. With a retention, workers get it behind the
upgrade. From there nothing goes back to a build that does not know bases (docs/restarts.md,
"Upgrade"): its processes must refuse to start, while this build runs on.

In the end every record must be counted as an independent recount says, and both builds must verify
the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from equipoise.events.decisions import MemberExpired
from equipoise.kafka.started_clients import writer
from equipoise.log.kafka.envelope import group_key, partition_of
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.copies.fencing import AT_LEAST_ONCE, EXACTLY_ONCE
from examples.orders.recount import Recount, recount
from tests.live.builds import THIS_BUILD, Build, described, other_build, run_in, started
from tests.live.orders import Orders
from tests.live.storm import checks
from tests.live.storm.watch import Watch
from tools.brokers import Brokers

GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)
ORDERS = {"workers": ("workers", "members"), "members": ("members", "workers")}
WORKERS, MEMBERS = ("w1", "w2"), ("m1", "m2", "m3")
TASKS, LOG_PARTITIONS = 4, 2  # of a group; a group in each
SESSION_MS, LEASE_MARGIN_MS = 20_000, 4_000
PER_S, ORDERS_AT_ONCE = 40.0, 1_000
BACK_WITHIN_MS = 60_000
RETENTION = ("--retention-ms", "8000", "--base-interval-ms", "2000")
REFUSAL = "its first records are gone"
"""What a build without bases says of a log whose records were deleted."""
QUIET_S, PATIENCE_S, LOOK_S = 1.0, 240.0, 0.2


class Deployment:
    """A log, its workers and the members of both groups. `faults`: what did not hold."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path) -> None:
        self.bootstrap, self.topics, self._folder = bootstrap, Topics(prefix), folder
        self.faults: list[str] = []
        self._began_s = time.monotonic()
        self._workers: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._members: dict[tuple[str, str], str] = {}
        self.groups: dict[str, Orders] = {}
        for place, guarantee in enumerate(GUARANTEES):
            names = (f"{prefix}-{guarantee}-{number}" for number in itertools.count())
            (folder / guarantee).mkdir(parents=True)
            self.groups[guarantee] = Orders(
                bootstrap,
                prefix,
                folder / guarantee,
                guarantee,
                partitions=TASKS,
                session_ms=SESSION_MS,
                lease_margin_ms=LEASE_MARGIN_MS,
                heartbeat_ms=1_500,
                name=next(name for name in names if partition_of(name, LOG_PARTITIONS) == place),
            )
        self._watches = {name: Watch(orders.connection, self.topics, orders.group) for name, orders in self.groups.items()}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {self.topics.prefix}: {text}", file=sys.stderr, flush=True)

    def _fault(self, text: str) -> None:
        self.faults.append(text)
        self.say(f"! {text}")

    async def start(self, build: Build) -> None:
        connection = self.groups[GUARANTEES[0]].connection
        for orders in self.groups.values():
            await orders.make_topics()
        for name in WORKERS:
            await self._start_worker(name, build)
        await read_opening(connection, self.topics, timeout_s=PATIENCE_S)
        async with writer(connection) as producer:
            for orders in self.groups.values():
                place = partition_of(orders.group, LOG_PARTITIONS)
                await producer.send_and_wait(self.topics.facts, build.config, key=group_key(orders.group), partition=place)
        for watch in self._watches.values():
            watch.start()
        await asyncio.gather(*(self._start_member(guarantee, member_id, build) for member_id in MEMBERS for guarantee in GUARANTEES))
        await self.settled()

    # Processes

    async def _start_worker(self, name: str, build: Build, retention: Sequence[str] = ()) -> None:
        out = self._folder / f"{name}.{len(list(self._folder.glob(f'{name}.*')))}.out"
        command = ["equipoise", "worker", "--bootstrap", self.bootstrap, "--prefix", self.topics.prefix, "--http-port", "0"]
        command += ["--partitions", str(LOG_PARTITIONS), "--observe-interval-ms", "2000", *retention]
        process = started(command, out, build.folder)
        self._workers[name] = process, out
        await self._until(lambda: " taken over at offset " in out.read_text() or process.poll() is not None, f"{name} leads a partition")

    async def _stop_worker(self, name: str) -> None:
        process, out = self._workers.pop(name)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, PATIENCE_S)
        if code:
            self._fault(f"worker {out.stem} ended with {code}: {_last_line(out)}")

    async def _start_member(self, guarantee: str, member_id: str, build: Build) -> None:
        orders = self.groups[guarantee]
        back_within_ms = None if member_id == MEMBERS[0] else BACK_WITHIN_MS  # the first one leaves, so its tasks move
        name = orders.start(member_id, build=build.folder, back_within_ms=back_within_ms)
        self._members[guarantee, member_id] = name
        await self._until(lambda: "joined, incarnation" in orders.said(name) or orders.ended(name) is not None, f"{name} joins")

    async def _stop_member(self, guarantee: str, member_id: str, how: signal.Signals = signal.SIGTERM) -> None:
        orders, name = self.groups[guarantee], self._members.pop((guarantee, member_id))
        if orders.ended(name) is None:
            orders.signal(name, how)
        code = await orders.gone(name)
        if code:
            self._fault(f"member {name} of {guarantee} ended with {code}")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > end_s:
                self._fault(f"not within {PATIENCE_S:.0f} s: {what}")
                return
            await asyncio.sleep(LOOK_S)

    # What is done to them

    async def roll(self, part: str, build: Build, retention: Sequence[str] = ()) -> None:
        """Replaces all workers, or all members, one after the other."""
        for name in WORKERS if part == "workers" else ():
            await self._stop_worker(name)
            await self._start_worker(name, build, retention)
            await self.settled()
        for member_id in MEMBERS if part == "members" else ():
            await asyncio.gather(*(self._stop_member(guarantee, member_id) for guarantee in GUARANTEES))
            await asyncio.gather(*(self._start_member(guarantee, member_id, build) for guarantee in GUARANTEES))
            await self.settled()
        self.say(f"{part} run {build.name}{' with a retention' if retention else ''}")

    async def settled(self) -> None:
        """Until all members are there, all tasks run and nothing more is to be moved."""
        waits = [watch.until_settled(set(MEMBERS), TASKS, quiet_s=QUIET_S, most_s=PATIENCE_S) for watch in self._watches.values()]
        for guarantee, wrong in zip(self._watches, await asyncio.gather(*waits), strict=True):
            if wrong:
                self._fault(f"{guarantee}: not settled: {wrong}")

    async def records_deleted(self) -> None:
        """Until workers have deleted records of each partition."""
        for partition in range(LOG_PARTITIONS):
            text = f"partition {partition}: deleted facts before"
            await self._until(partial(self._a_worker_said, text), text)

    def _a_worker_said(self, text: str) -> bool:
        return any(text in out.read_text() for out in self._folder.glob("w*.out"))

    async def refuses(self, other: Build, this: Build) -> None:
        """A worker and a member of each group of a build without bases must refuse to start, and
        say why.
        """
        await self._stop_worker(WORKERS[0])
        await self._start_worker(WORKERS[0], other)
        self._must_refuse(*self._workers.pop(WORKERS[0]))
        await self._start_worker(WORKERS[0], this, RETENTION)
        for guarantee, orders in self.groups.items():
            await self._stop_member(guarantee, MEMBERS[0])
            await self._start_member(guarantee, MEMBERS[0], other)
            name = self._members.pop((guarantee, MEMBERS[0]))
            self._must_refuse(orders.process(name), self._folder / guarantee / f"{name}.out")
            await self._start_member(guarantee, MEMBERS[0], this)
        await self.settled()

    def _must_refuse(self, process: subprocess.Popen[bytes], out: Path) -> None:
        code = process.poll()
        process.kill()
        process.wait()
        why = next((line for line in out.read_text().splitlines() if REFUSAL in line), "")
        said = f"{out.stem} of a build without bases, exit code {code}: {why or _last_line(out)}"
        (self.say if code and why else self._fault)(said)

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        async def send(orders: Orders) -> None:
            while True:
                await orders.produce(ORDERS_AT_ONCE, per_second=PER_S)

        sending = [asyncio.create_task(send(orders)) for orders in self.groups.values()]
        try:
            yield
        finally:
            for each in sending:
                if each.done():
                    self._fault(f"the load ended: {each.exception()!r}")
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    # Judgement

    async def judged(self, verifiers: Sequence[Build]) -> tuple[dict[str, Recount], int]:
        """Waits until all is counted, stops everything, and judges what is in Kafka. Returns the
        recounts, and how many members were put out, as the decisions say that are left.
        """
        found = {}
        for guarantee, orders in self.groups.items():
            try:
                counted = await orders.until_counted()
            except TimeoutError:
                counted = await recount(orders.connection.options(), orders.topic, exactly_once=guarantee == EXACTLY_ONCE)
            found[guarantee] = counted
            changelog = await checks.read_changelog(orders.connection, f"{orders.topic}-state")
            late = counted.late + changelog.late
            self.faults += [f"{guarantee}: {each}" for each in counted.faults[:10]]
            self.faults += [f"{guarantee}: {count} records of {grant} behind a later owner's" for grant, count in late.items()]
        await self.settled()
        self.faults += [f"{name}: halted: {watch.halted}" for name, watch in self._watches.items() if watch.halted]
        await asyncio.gather(*(self._stop_member(*each, signal.SIGINT) for each in list(self._members)))
        for name in list(self._workers):
            await self._stop_worker(name)
        for out in sorted(self._folder.rglob("*.out")):
            lines = out.read_text(errors="replace").splitlines()
            self.faults += [f"{out.name}: {line}" for line in lines if " halted at offset " in line or line.startswith("Traceback")]
        connection = self.groups[GUARANTEES[0]].connection
        for check in (await checks.rejections(connection, self.topics), await checks.rejected_records(connection, self.topics)):
            self.faults += [] if check.holds else [f"{check.name}: {', '.join(check.more)}"]
        log = f"kafka://{self.bootstrap}/{self.topics.prefix}"
        answers = {build.name: await asyncio.to_thread(run_in, build.folder, "-m", "equipoise", "verify", log) for build in verifiers}
        verdicts = {name: (done.stdout + done.stderr).strip().partition("\n")[0] for name, done in answers.items()}
        self.say(f"verified: {verdicts}")
        if any(done.returncode for done in answers.values()) or len(set(verdicts.values())) != 1:
            self.faults.append(f"verify: {verdicts}")
        return found, len([each async for each in checks.decisions(connection, self.topics) if isinstance(each, MemberExpired)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches.values():
            await watch.stop()
        for orders in self.groups.values():
            orders.__exit__(None, None, None)
        for process, _out in self._workers.values():
            process.kill()
            process.wait()


def _last_line(out: Path) -> str:
    lines = out.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


async def upgraded(bootstrap: str, folder: Path, this: Build, other: Build, first: str, *, retention: bool) -> list[str]:
    """One run; prints its rows, and returns what did not hold."""
    prefix = f"{first}-{'bounded' if retention else 'whole'}"
    async with Deployment(bootstrap, prefix, folder / prefix) as deployment:
        await deployment.start(other)
        deployment.say(f"all run {other.name}")
        async with deployment.load():
            for part in ORDERS[first]:
                await deployment.roll(part, this)
            goes_back = other.has_bases or not retention
            given = RETENTION if retention else ()
            if retention:
                await deployment.roll("workers", this, given)
                await deployment.records_deleted()
            if goes_back:
                for part in ORDERS[first]:
                    await deployment.roll(part, other, given)
            else:
                await deployment.refuses(other, this)
                await deployment.roll("workers", this)
        counted, expired = await deployment.judged([this, other] if goes_back else [this])
        for guarantee, each in counted.items():
            grants = len(checks.grants((folder / prefix / guarantee).glob("*.out")))
            run = (f"{first} first", "yes" if retention else "no", guarantee, "yes" if goes_back else "refused")
            counts = (grants, f"{each.orders:,}", f"{each.counts:,}", each.repeated, each.overtaken, expired, len(deployment.faults))
            print("|", *(f"{cell} |" for cell in (*run, *counts)), flush=True)
        return deployment.faults


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.upgrade", description="From another build to this one and back, under load.")
    parser.add_argument("--other", required=True, help="the other build: a git ref, or the folder of a repository")
    parser.add_argument("--first", choices=tuple(ORDERS), help="what is replaced first (each in a run of its own)")
    parser.add_argument("--retention", choices=("yes", "no"), help="whether workers get a retention after the upgrade (each in a run of its own)")
    parser.add_argument("--folder", type=Path, help="for what processes print; kept when something does not hold (a new one)")
    given = parser.parse_args()
    running = asyncio.current_task()
    assert running is not None, "this coroutine runs"
    for which in (signal.SIGINT, signal.SIGTERM):  # what was started is ended, and the work tree removed
        asyncio.get_running_loop().add_signal_handler(which, running.cancel)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="equipoise-upgrade-"))).resolve()
    faults: list[str] = []
    with other_build(given.other) as other, Brokers() as brokers:
        this = described("this build", THIS_BUILD)
        print("| replaced | retention | guarantee | back | owners | orders | counted | again | late | expired | faults |")
        print("|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
        for retention in ("no", "yes") if given.retention is None else (given.retention,):
            for first in ORDERS if given.first is None else (given.first,):
                faults += await upgraded(brokers.bootstrap, folder, this, other, first, retention=retention == "yes")
    print(*faults, sep="\n", end="\n" if faults else "")
    if faults:
        print(f"what the processes printed: {folder}")
    elif given.folder is None:
        shutil.rmtree(folder)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
