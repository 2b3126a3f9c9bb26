"""The leader hears of a failed task, also when the first fact that says so is lost."""

from __future__ import annotations

from unittest import mock

from aiokafka.errors import RequestTimedOutError

from equipoise import Record, TaskContext
from equipoise.events.facts import Fact, TaskParked
from equipoise.log.kafka.envelope import pack_fact
from equipoise.member.session import link
from equipoise.member.tasks.sources import ENDS_EVERY_S, SET_ASIDE
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.virtual_loops import S_US
from tests.simulated.test_start import NewGroup, group

__all__ = ["group"]


def poisoned(record: Record, context: TaskContext) -> None:
    raise ValueError("poison")


def append(group: NewGroup, records: int) -> None:
    group.cluster.append(group.cluster.topics["in"].partitions[2], Batch(-1, -1, -1, False, [(b"k", b"v", (), 0)] * records, 100))


def test_failed_task_is_said_again_until_the_brokers_have_it(group: NewGroup) -> None:
    said: list[Fact] = []

    def packed(fact: Fact) -> bytes:
        if isinstance(fact, TaskParked):
            said.append(fact)
            if len(said) == 1:
                raise RequestTimedOutError
        return pack_fact(fact)

    with mock.patch.object(link, "pack_fact", packed):
        group.start("m1", handler=poisoned)
        group.runs_all_after_s()
        append(group, 1)
        group.scheduler.run(group.scheduler.now_us + 30 * S_US)
    ((_, lead),) = group.worker.groups()
    ((task, parked),) = lead.machine.state.parked.items()
    assert (task.partition, parked.offset, parked.error) == (2, 0, "ValueError: poison")
    assert len(said) == 2


def test_lag_of_a_failed_task_grows_although_it_fetches_nothing(group: NewGroup) -> None:
    group.start("m1", handler=poisoned)
    group.runs_all_after_s()
    for _ in range(3):
        append(group, 2 * SET_ASIDE)
        group.scheduler.run(group.scheduler.now_us + int((ENDS_EVERY_S + 30) * S_US))
    ((_, lead),) = group.worker.groups()
    ((task, _),) = lead.machine.state.parked.items()
    assert lead.machine.state.behind == {each: 3 * 2 * SET_ASIDE if each == task else 0 for each in lead.machine.state.tasks()}
