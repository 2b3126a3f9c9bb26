"""The log of a simulation as runs of the model (`tests.model.trace`)."""

from __future__ import annotations

from equipoise.events.records import DecisionRecord
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import member_decision, partition_of, read_fact, stored_decision
from equipoise.log.kafka.log_topics import Topics
from equipoise.testing.simulated.kafka.partition_log import StoredRecord
from tests.model.trace import Followed, Happened, follow
from tests.simulated.deployment import GROUP, LOG_PARTITIONS, Deployment


def followed(deployment: Deployment, topics: Topics) -> Followed:
    """Follows the group's log in these topics with the model. Raises `tests.model.trace.Refused`.

    Of a log whose topics were created again the last one: the model has no other log
    (docs/protocol.md#l9).
    """
    happened: list[tuple[int, Happened]] = []
    records = []
    for stored in _of_group(deployment, topics.facts):
        records.append(read_fact(stored.key, stored.value, stored.offset, stored.timestamp_ms))
        happened.append((stored.batch.appended_us, Happened(stored.batch.appended_us // 1_000, offset=stored.offset)))
    decisions: dict[int, DecisionRecord] = {}
    for stored in _of_group(deployment, topics.decisions):
        decided = member_decision(stored_decision(stored.key, stored.value, ""))
        if isinstance(decided, DecisionRecord) and decisions.setdefault(decided.number, decided) is decided:
            happened.append((stored.batch.appended_us, Happened(stored.batch.appended_us // 1_000, number=decided.number)))
    if topics != deployment.topics:  # its workers were stopped: the decisions of its last facts are not published
        last = max((decided.caused_by for decided in decisions.values()), default=-1)
        records = [record for record in records if record.offset < last]
        decisions = {number: decided for number, decided in decisions.items() if decided.caused_by < last}
        happened = [(time_us, each) for time_us, each in happened if each.offset < last and (each.number < 0 or each.number in decisions)]
    happened.sort(key=lambda each: each[0])
    return follow(records, decisions.values(), [each for _, each in happened])


def _of_group(deployment: Deployment, topic: str) -> list[StoredRecord]:
    partition = deployment.cluster.partition(TopicPartition(topic, partition_of(GROUP, LOG_PARTITIONS)))
    return [] if partition is None else [record for record in partition.log.records if record.key == GROUP.encode()]
