"""Each topic of a log is made again, deleted, or loses its end or its beginning: the group goes on,
and the log can be recomputed; or `status` says first what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from equipoise.cli.configure import _Configure
from equipoise.events.errors import EquipoiseError
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.log_topics import BASES_MUST_BE, MADE_AGAIN, MUST_BE, NEW_LOG, Topics
from equipoise.operations.follower import Follower
from equipoise.replay.trouble import UNCONFIGURED, wrong
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection, SimulatedSettings
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.worker import SimulatedWorker
from equipoise.worker.group_readings import GroupCondition, read
from tests.simulated.judge import verify_log
from tests.simulated.test_operators import Answers
from tests.simulated.test_positions import Deploys, every, one
from tests.support.cluster_faults import delete_topic, lose_tail

FAR = 30
"""More records than the checkpoint is old."""


class Led(Deploys):
    """A group whose worker stores checkpoints often, and `retains` facts and decisions: for ever,
    or bases, and what is behind the last two of them.
    """

    retains: Mapping[str, Any] = {}

    def restart_worker(self) -> None:
        self._worker.process.kill()
        self._processes += 1
        settings = SimulatedSettings(
            made=SimulatedClients(self._cluster, f"worker{self._processes}"),
            prefix=self._options.prefix,
            partitions=1,
            observe_interval_ms=1_000,
            checkpoint_facts=5,
            **self.retains,
        )
        process = self._process("worker", lambda error: None)
        self._worker = SimulatedWorker(settings, process)
        process.start(self._lead())

    @property
    def _topics(self) -> Topics:
        return Topics(self._options.prefix)

    @property
    def connection(self) -> SimulatedConnection:
        return SimulatedConnection(made=SimulatedClients(self._cluster, "reader"))

    def ask(self, question: Any) -> Any:
        """Runs a coroutine beside the group."""
        process = self._process("reader", lambda error: None)
        found: list[Any] = []

        async def asked() -> None:
            try:
                found.append(await question())
            except EquipoiseError as error:
                found.append(error)
            await asyncio.get_running_loop().create_future()

        process.start(asked())
        self._until(lambda: bool(found), 120.0)
        process.kill()
        return found[0]

    def status(self) -> str:
        """What `equipoise status` says first; "": nothing is wrong."""

        async def question() -> str:
            follower = Follower(self.connection, self._topics, "test")
            await follower.catch_up()
            return "; ".join(str(lead.halted) for _, lead in follower.groups() if lead.halted is not None)

        return str(self.ask(question))

    def troubles(self) -> list[str]:
        """What `equipoise status` says first."""

        async def question() -> list[str]:
            follower = Follower(self.connection, self._topics, "test")
            await follower.catch_up()
            leads = [lead for _, lead in follower.groups()]
            return [text for lead in leads for text in wrong(lead.machine.state, None if lead.halted is None else str(lead.halted))]

        found: list[str] = self.ask(question)
        return found

    def configure(self) -> int | None:
        """`equipoise configure --group test --assignor high_availability`: its exit code."""
        made = SimulatedClients(self._cluster, "operator")
        settings = SimulatedSettings(made=made, prefix=self._options.prefix)
        code: int | None = self.ask(lambda: _Configure(Answers(json=True), settings, "test").change(lambda before: before, 30))
        return code

    def cut(self, kept: Mapping[str, int]) -> None:
        """Topics lose all but so many records."""
        for what, records in kept.items():
            place = self.place(what)
            lose_tail(self._cluster, place, max(0, self._log(*place).end - records))

    def verify(self) -> list[str]:
        """Folds the whole log."""
        found: list[str] = self.ask(lambda: verify_log(self.connection, self._topics))
        return found

    def place(self, what: str) -> TopicPartition:
        return TopicPartition(self._topics.name_of(what), 0)

    def stray(self) -> None:
        """Appends a record that belongs to no group."""
        facts = self._cluster.partition(self.place("facts"))
        assert facts is not None
        self._cluster.append(facts, Batch(-1, -1, -1, False, [(None, b"stray", (), 0)], 100))

    def take(self, topic: str, what: str) -> None:
        place = self.place(topic)
        if what == "loses its beginning":
            self._cluster.delete_records(place, 1 if topic in ("facts", "decisions") else self._log(*place).end)
            return
        if what == "loses its end":
            lose_tail(self._cluster, place, 1)
            return
        delete_topic(self._cluster, place.topic)
        if what == "made again":
            self._cluster.create_topic(place.topic, 1, 1, {**MUST_BE, "bases": BASES_MUST_BE}[topic])


def led() -> Led:
    return Led(one(), guarantee="exactly_once")


def begin(group: Led, when: str, first: tuple[str, ...] = ("m1", "m2"), later: tuple[str, ...] = ("m3",)) -> None:
    group.restart_worker()
    group.join(*first)
    group.advance(10)
    group.write(20)
    group.settle()
    group.join(*later)
    group.advance(20)
    if when != "lives":
        group._worker.process.kill()


def go_on(group: Led, when: str, joins: str = "m4") -> None:
    """The worker goes on, or another one; then the group has something to decide, a worker fails,
    and records come.
    """
    if when == "restarts later":
        group.advance(15)
    if when != "lives":
        group.restart_worker()
    group.advance(20)
    group.join(joins)
    group.advance(10)
    group.restart_worker()
    group.advance(70)
    group.write(20)
    group.advance(10)


LOST = [(2, "restarts"), (FAR, "lives"), (FAR, "restarts later")]
"""Records, and what the worker does."""


@pytest.mark.parametrize(("count", "when"), LOST)
@pytest.mark.parametrize("topics", [("decisions",), ("checkpoints",), ("facts", "decisions"), ("facts", "decisions", "checkpoints")], ids="+".join)
def test_group_goes_on_when_topics_lose_their_ends(topics: tuple[str, ...], count: int, when: str) -> None:
    with led() as group:
        begin(group, when)
        for topic in topics:
            lose_tail(group._cluster, group.place(topic), count)
        go_on(group, when)
        assert group.status() == ""
        assert group.verify() == []
        group.settle()
        assert group.sent() == every("a", 40)


@pytest.mark.parametrize(("count", "when"), LOST)
def test_facts_without_end_go_on_or_halt_the_groups_that_decided_on_them(count: int, when: str) -> None:
    with led() as group:
        begin(group, when)
        lose_tail(group._cluster, group.place("facts"), count)
        go_on(group, when)
        assert (NEW_LOG in group.status()) == (count == FAR)
        assert bool(group.verify()) == (count == FAR)
        group.settle()
        assert group.sent() == every("a", 40), "members run on"


@pytest.mark.parametrize("when", ["lives", "restarts", "restarts later"])
@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("later", [(), ("m3",)])
def test_members_go_on_when_the_log_has_lost_its_configuration(
    later: tuple[str, ...], kept: int, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`kept`: facts. `later`: members that have never sent a configuration."""
    with led() as group:
        begin(group, when, ("m1",), later)
        group.cut({"facts": kept, "decisions": 0})
        go_on(group, when)
        assert group.troubles() == []
        assert group.verify() == []
        group.settle()
        assert group.sent() == every("a", 40)
        assert group.error is None
        assert any("its log has lost the configuration: member m" in each for each in caplog.messages)


@pytest.mark.parametrize("when", ["lives", "restarts"])
def test_status_names_first_the_command_that_configures_a_group(when: str) -> None:
    """The members are away, and come after it."""
    with led() as group:
        begin(group, when, ("m1",), ())
        group.crash("m1")
        group.cut({"facts": 3, "decisions": 0})
        if when == "restarts":
            group.restart_worker()
        group.advance(20)
        assert group.troubles() == [UNCONFIGURED]
        assert [read(lead).condition for _, lead in group._worker.groups()] == [GroupCondition.TROUBLE]
        assert group.configure() == 0
        assert "configuration" not in " ".join(group.troubles())
        group.join("m1")
        go_on(group, "lives")
        assert group.troubles() == []
        assert group.verify() == []
        group.settle()
        assert group.sent() == every("a", 40)


@pytest.mark.parametrize("member", ["lives", "is away"])
def test_log_whose_facts_and_decisions_are_all_lost_begins_again_or_says_what_to_do(member: str) -> None:
    """Where a member is faster than the worker, its fact is the first one."""
    with led() as group:
        begin(group, "lives", ("m1",), ())
        if member == "is away":
            group.crash("m1")
        group.cut({"facts": 0, "decisions": 0})
        group.advance(30)
        if member == "lives":
            assert "does not begin with LogOpened" in group._worker.unready()
            assert "delete them again" in group._worker.unready()
            return
        group.join("m1")
        go_on(group, "lives")
        assert group.troubles() == []
        assert group.verify() == []
        group.settle()
        assert group.sent() == every("a", 40)


GONE = [("made again", "lives"), ("made again", "restarts"), ("deleted", "lives"), ("loses its beginning", "restarts")]


@pytest.mark.parametrize(("what", "when"), GONE)
@pytest.mark.parametrize("topic", ["decisions", "checkpoints"])
def test_group_goes_on_when_decisions_or_checkpoints_are_gone(topic: str, what: str, when: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who begins with the log's first record misses deleted decisions."""
    with led() as group:
        begin(group, when)
        group.take(topic, what)
        if what == "deleted":
            group.advance(40)
            assert MADE_AGAIN in group.status()
            assert 1 <= sum(MADE_AGAIN in each for each in caplog.messages) <= 2
        go_on(group, when)
        assert group.status() == ""
        is_whole = (topic, what) != ("decisions", "loses its beginning")
        assert (group.verify() == []) == is_whole
        group.settle()
        assert group.sent() == every("a", 40)
        if not is_whole:
            lose_tail(group._cluster, group.place("checkpoints"), 10_000)
            assert NEW_LOG in group.status()


@pytest.mark.parametrize(("what", "when"), GONE)
def test_status_says_first_how_to_go_on_without_facts(what: str, when: str) -> None:
    with led() as group:
        begin(group, when)
        group.take("facts", what)
        go_on(group, when)
        assert NEW_LOG in group.status()
        assert group.sent().keys() <= every("a", 40).keys()
        assert set(group.sent().values()) == {1}


def test_records_without_a_group_end_no_session(caplog: pytest.LogCaptureFixture) -> None:
    with led() as group:
        begin(group, "lives")
        for member in ("m4", "m5"):
            group.stray()
            group.advance(1)
            group.join(member)
            group.advance(15)
            assert not group._worker.unready()
            assert [member in lead.machine.state.members for _, lead in group._worker.groups()] == [True]
        assert sum("belongs to no group: no_group" in each for each in caplog.messages) == 1, "one line a minute"
        go_on(group, "lives", "m6")
        group.stray()
        group.settle()
        assert group.status() == ""
        assert group.verify() == []
        assert group.sent() == every("a", 40)


@pytest.mark.parametrize("when", ["lives", "restarts"])
@pytest.mark.parametrize("what", ["made again", "deleted", "loses its beginning", "loses its end"])
def test_log_of_which_no_record_was_deleted_needs_no_base(what: str, when: str) -> None:
    with led() as group:
        group.retains = {"retention_ms": 86_400_000, "base_interval_ms": 2_000}
        begin(group, when)
        group.take("bases", what)
        go_on(group, when)
        group.settle()
        assert group.status() == ""
        assert group.verify() == []
        assert group.sent() == every("a", 40)


@pytest.mark.parametrize("what", ["made again", "loses its beginning"])
def test_status_says_first_how_to_go_on_without_the_bases_of_deleted_records(what: str) -> None:
    with led() as group:
        group.retains = {"retention_ms": 5_000, "base_interval_ms": 2_000}
        begin(group, "lives")
        group.advance(30)
        group._worker.process.kill()
        assert group._log(*group.place("facts")).start > 0
        for topic in ("checkpoints", "bases"):
            group.take(topic, what)
        group.restart_worker()
        group.advance(30)
        assert NEW_LOG in group.status()
