"""A real broker loses the end of a topic of a group, as after a loss of power or an unclean election:
the table in docs/logs.md#lost-topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.started_clients import admin_client
from equipoise.log.kafka.log_topics import NEW_LOG
from equipoise.member import Member
from equipoise.operations.doctor.open_transactions import of_sources
from equipoise.replay.trouble import UNCONFIGURED
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.builds import THIS_BUILD, run_in
from tests.live.chains import TOPICS, Chain, side_by_side, until
from tests.live.led_logs import LedLog
from tools.brokers import Brokers, classes, jars, run

pytestmark = pytest.mark.slow
RUNS = pytest.mark.parametrize("runs", [True, False], ids=["runs", "is away"])
MANY = 1_000
"""More batches than a topic has."""
FIRST_FACTS = 2
"""Batches of facts before the group is configured."""
ABORT = Path(__file__).with_name("java") / "AbortTransaction.java"
COMMIT = 2
"""Batches of a transaction in a partition: the second one is its marker."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Brokers]:
    with Brokers() as running:
        yield running


@RUNS
@pytest.mark.parametrize(("guarantee", "batches"), [("at_least_once", 2), ("exactly_once", 2 * COMMIT), ("exactly_once", COMMIT + 1)])
async def test_group_whose_topic_has_lost_its_end_keeps_its_promise(
    broker: Brokers, prefix: str, tmp_path: Path, guarantee: str, runs: bool, batches: int
) -> None:
    """Topics lose two commits, or an odd number of batches. `runs`: the members, meanwhile."""
    bootstrap = broker.bootstrap
    chains = [Chain(bootstrap, prefix, lost, guarantee, tmp_path) for lost in TOPICS]
    async with Worker(WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)), contextlib.AsyncExitStack() as stack:

        async def begin(chain: Chain) -> None:
            await chain.make(*(what for what in TOPICS if what != "positions"))
            await stack.enter_async_context(chain.member())
            await chain.write(10)
            await chain.judge()

        async def go_on(chain: Chain) -> None:
            old = [*chain.sent]
            if not runs:
                await stack.enter_async_context(chain.member())
            await chain.write(5)
            if chain.lost == "s1" and batches % COMMIT and not runs:
                await abort_as_doctor_says(chain)
            await chain.judge(again=old if chain.lost == "s1" else (), lost=old)

        await side_by_side(chains, begin)
        if not runs:
            await stack.aclose()
        await asyncio.to_thread(lose_ends, broker, [(each.lost, each.topic) for each in chains], batches)
        await side_by_side(chains, go_on)


async def abort_as_doctor_says(chain: Chain) -> None:
    """The end of a transaction is lost, whose producer is gone: brokers never end it, and nobody
    restores the changelog. `status` and `doctor` name it, and doctor's command ends it.
    """
    named = f"changelog {chain.topic}/0: records from offset"

    async def is_named() -> bool:
        return any(named in each for each in await chain.troubles())

    await until(is_named)
    async with admin_client(chain.connection) as admin:
        (found,) = await of_sources(chain.connection, admin, [TopicPartition(chain.topic, 0)], 5_000)
    assert found.fix is not None
    script, *words = found.fix.split()
    assert script == "kafka-transactions.sh"
    _, bootstrap, _, _, topic, _, partition, _, offset = words
    libraries = f"{jars()}/*"
    place = f"{classes(ABORT, libraries)}:{libraries}"
    await asyncio.to_thread(run, "java", "-cp", place, ABORT.stem, bootstrap, topic, partition, offset)


def lose_ends(broker: Brokers, topics: Sequence[tuple[str, str]], batches: int, facts: int = FIRST_FACTS) -> None:
    """`topics`: what each is, and its name. `facts`: so many batches of facts are left."""
    broker.kill(0)
    for what, topic in topics:
        broker.lose_tail(topic, 0, batches, facts if what == "facts" else 0)
    broker.start(0)


@pytest.mark.parametrize(("batches", "runs"), [(2, True), (2, False), (30, False), (MANY, True)])
async def test_group_goes_on_exactly_when_topics_of_its_log_have_lost_their_ends(
    broker: Brokers, prefix: str, tmp_path: Path, runs: bool, batches: int
) -> None:
    """`runs`: its member, which leads the log, meanwhile. Of MANY facts the first two batches are
    left, which do not configure the group.
    """
    kinds = ("decisions", "checkpoints", "bases", "facts+decisions", "facts+decisions+checkpoints")
    logs = [LedLog(broker.bootstrap, prefix, lost, tmp_path) for lost in kinds]
    async with contextlib.AsyncExitStack() as stack:
        members: dict[str, Member] = {}

        async def begin(log: LedLog) -> None:
            await log.application.make_topics()
            members[log.lost] = await stack.enter_async_context(log.member("m1"))
            await log.process(members[log.lost])
            await log.stray()

        async def go_on(log: LedLog) -> None:
            if runs:
                await log.process(members[log.lost])

        await side_by_side(logs, begin)
        if not runs:
            await stack.aclose()
        topics = [(what, name) for log in logs for what, name in zip(log.lost.split("+"), log.names, strict=True)]
        await asyncio.to_thread(lose_ends, broker, topics, batches)
        await side_by_side(logs, go_on)

    async def again(log: LedLog) -> None:
        for member_id in ("m1", "m2"):
            async with log.member(member_id) as member:
                await log.stray()
                await log.process(member)
                await log.until_said("")
        assert await log.verify() == []

    await side_by_side(logs, again)


@RUNS
async def test_status_names_first_the_way_on_when_facts_are_lost_that_decided(broker: Brokers, prefix: str, tmp_path: Path, runs: bool) -> None:
    """Members run on where they are, and with another prefix go on exactly."""
    log = LedLog(broker.bootstrap, prefix, "facts", tmp_path)
    await log.application.make_topics()
    async with contextlib.AsyncExitStack() as stack:
        member = await stack.enter_async_context(log.member("m1"))
        await log.process(member)
        if not runs:
            await stack.aclose()
        await asyncio.to_thread(lose_ends, broker, [("facts", log.names[0])], MANY, 3)
        if runs:
            await log.process(member)
        await log.until_said(NEW_LOG)
    async with log.member("m1", f"{prefix}-other") as member:
        await log.process(member)


async def test_status_names_first_the_command_that_configures_a_group_whose_log_has_lost_that(broker: Brokers, prefix: str, tmp_path: Path) -> None:
    """Its member is away, and goes on exactly when it comes."""
    log = LedLog(broker.bootstrap, prefix, "facts+decisions", tmp_path)
    await log.application.make_topics()
    async with log.member("m1") as member:
        await log.process(member)
    await asyncio.to_thread(lose_ends, broker, list(zip(log.lost.split("+"), log.names, strict=True)), MANY)
    to = ("--bootstrap", broker.bootstrap, "--prefix", log.topics.prefix, "--group", log.application.prefix)
    async with Worker(WorkerSettings(bootstrap=broker.bootstrap, prefix=log.topics.prefix, http_port=0)):
        await log.until_said(UNCONFIGURED)
        said = await asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", "status", *to)
        assert UNCONFIGURED in " ".join(said.stdout.split())
        done = await asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", "configure", "--assignor", "high_availability", *to)
        assert done.returncode == 0, done.stdout + done.stderr
    async with log.member("m1") as member:
        await log.process(member)
        await log.until_said("")
    assert await log.verify() == []
