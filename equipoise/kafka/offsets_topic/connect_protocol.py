"""What Kafka Connect's workers and their leader say to each other (KIP-415, KIP-507; versions 0 to
2 of `ConnectProtocol` and `IncrementalCooperativeConnectProtocol`).
"""

from __future__ import annotations

import attrs

from equipoise.kafka.offsets_topic.byte_reader import ByteReader

NEWEST_VERSION = 2
CONNECTOR = -1
"""Number of the task that stands for the connector itself."""

Connectors = dict[str, tuple[int, ...]]
"""connector -> its tasks, CONNECTOR among them where the worker runs the connector itself."""


@attrs.frozen(kw_only=True)
class WorkerState:
    """What a worker joins with. `config_offset`: how far it has read the configuration. `owns`:
    what it runs, from version 1 on.
    """

    version: int
    url: str
    config_offset: int
    owns: Connectors


@attrs.frozen(kw_only=True)
class ConnectAssignment:
    """What the leader gave a worker. From version 1 on `assigned` is what it gets beside what it
    owns, `revoked` what it has to stop, and `delay_ms` after which it joins again, 0: not
    (`scheduled.rebalance.max.delay.ms`). In version 0 `assigned` is everything.
    """

    version: int
    error: int = 0
    leader: str = ""
    leader_url: str = ""
    config_offset: int = -1
    assigned: Connectors
    revoked: Connectors = attrs.field(factory=dict)
    delay_ms: int = 0


def read_worker_state(reader: ByteReader) -> WorkerState:
    """Raises WireError."""
    version = _version(reader, "worker's state")
    url, config_offset = reader.string("url"), reader.int64("offset of the configuration")
    owns: Connectors = {}
    if version >= 1:
        length = reader.int32("length of the previous assignment")
        owns = read_connect_assignment(reader.nested(max(0, length), "previous assignment")).assigned
    reader.finish("the worker's state")
    return WorkerState(version=version, url=url, config_offset=config_offset, owns=owns)


def read_connect_assignment(reader: ByteReader) -> ConnectAssignment:
    """Empty bytes are an assignment of nothing. Raises WireError."""
    if reader.position == reader.end:
        return ConnectAssignment(version=NEWEST_VERSION, assigned={})
    version = _version(reader, "assignment")
    error, leader, leader_url = reader.int16("error"), reader.string("leader"), reader.string("leader's url")
    config_offset = reader.int64("offset of the configuration")
    assigned = _connectors(reader, "assignment")
    revoked = _connectors(reader, "revocation") if version >= 1 else {}
    delay_ms = reader.int32("delay") if version >= 1 else 0
    reader.finish("the assignment")
    return ConnectAssignment(
        version=version,
        error=error,
        leader=leader,
        leader_url=leader_url,
        config_offset=config_offset,
        assigned=assigned,
        revoked=revoked,
        delay_ms=delay_ms,
    )


def _version(reader: ByteReader, what: str) -> int:
    version = reader.int16(f"version of the {what}")
    if not 0 <= version <= NEWEST_VERSION:
        raise reader.error(f"{what} of Connect's protocol version {version} is not known here (0-{NEWEST_VERSION} are)", reader.position - 2)
    return version


def _connectors(reader: ByteReader, what: str) -> Connectors:
    """Since version 1 the array may be null, which is as empty."""
    length = reader.int32(f"number of connectors of the {what}")
    found: Connectors = {}
    for _ in range(0 if length == -1 else reader.count(length, 6, "connectors")):
        name = reader.string("connector")
        found[name] = found.get(name, ()) + tuple(reader.array(4, "tasks", lambda each: each.int32("task")))
    return found
