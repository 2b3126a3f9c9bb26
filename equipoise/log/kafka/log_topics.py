"""The topics of a log and the configuration that the log's promises require."""

from __future__ import annotations

import re

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.client import Consumer, TopicPartition

DEFAULT_PREFIX = "equipoise"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")  # what Kafka allows, with room for what is put behind it

_ALWAYS = {"unclean.leader.election.enable": "false", "message.timestamp.type": "LogAppendTime"}
MUST_BE = {
    "facts": {**_ALWAYS, "cleanup.policy": "delete"},
    "decisions": {**_ALWAYS, "cleanup.policy": "delete"},
    "checkpoints": {**_ALWAYS, "cleanup.policy": "compact"},
}
"""Required settings. LogAppendTime: group time is the broker's, not the sender's
(docs/protocol.md#l2). No unclean election: an acknowledged record stays. No compaction of facts and
decisions: it would leave gaps.
"""
BASES_MUST_BE = {**_ALWAYS, "cleanup.policy": "compact"}
"""Required settings of the topic of bases, which only a log with retention has."""
MADE_WITH = {
    "facts": {"retention.ms": "-1", "retention.bytes": "-1"},
    "decisions": {"retention.ms": "-1", "retention.bytes": "-1"},
    "checkpoints": {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"},
    "bases": {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"},
}
"""Further settings of topics that a worker makes. Operators may change them
(docs/logs.md#retention).
"""
MOST_BYTES = "max.message.bytes"
KAFKAS_BYTES = 1_048_588
"""Kafka's own default of `max.message.bytes`. A log's topics are made with it, because a broker may
have a lower `message.max.bytes`.
"""
NEEDED_BYTES = 1_008_200
"""The lowest `max.message.bytes` of a log's topics: a record of the longest event
(docs/protocol.md#l8), and the head of its batch.
"""
SEGMENTS_WITH_RETENTION = {"segment.bytes": str(128 * 2**20), "segment.ms": str(6 * 3_600_000)}
"""The same, of facts and decisions whose records are deleted: brokers free whole segments only."""


NEW_LOG = (
    "begin a new log: stop the members, start `equipoise worker --prefix OTHER`, and the members with that prefix (docs/logs.md#begin-a-new-log)"
)
"""Resumes the groups of a log that has lost what nobody can make again."""
MADE_AGAIN = "no group is led until a worker starts, which makes it again: restart `equipoise worker`"
"""Resumes the groups of a log of which another topic than that of facts was deleted."""


def _sound_prefix(_: object, field: object, value: object) -> None:
    if not isinstance(value, str) or _PREFIX.fullmatch(value) is None:
        raise InputError(f"prefix: {value!r:.80} cannot begin the name of a topic; use letters, digits, '.', '_' and '-'")


@attrs.frozen
class Topics:
    """The names of a log's topics: ``<prefix>.facts`` and so on."""

    prefix: str = attrs.field(default=DEFAULT_PREFIX, validator=_sound_prefix)

    @property
    def facts(self) -> str:
        return f"{self.prefix}.facts"

    @property
    def decisions(self) -> str:
        """Has as many partitions as `facts`. A group's decisions are in the partition of its facts."""
        return f"{self.prefix}.decisions"

    @property
    def checkpoints(self) -> str:
        """Compacted, with as many partitions as `facts`."""
        return f"{self.prefix}.checkpoints"

    @property
    def bases(self) -> str:
        """Compacted, with as many partitions as `facts`: see
        `equipoise.log.kafka.bases_topic`. A log without retention has none.
        """
        return f"{self.prefix}.bases"

    def name_of(self, what: str) -> str:
        """Returns the topic for a key of MUST_BE."""
        return f"{self.prefix}.{what}"

    async def ids(self, consumer: Consumer, partition: int = 0) -> tuple[str, ...] | None:
        """Returns the ids of the topics for facts, decisions and checkpoints, from the leader of
        `partition` of the facts; None: the brokers have no topic ids. Raises KafkaError.
        """
        return await consumer.topic_ids((self.facts, self.decisions, self.checkpoints), TopicPartition(self.facts, partition))
