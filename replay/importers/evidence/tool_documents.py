"""JSON that tools answer with: the status of connectors (Kafka Connect's REST), and Burrow's status
of groups.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.replay.importers.evidence.times import time_of_value


@attrs.frozen(kw_only=True)
class ConnectorStatus:
    """`tasks`: number of a task -> its state, worker and the first line of its trace."""

    connector: str
    state: str
    worker: str
    kind: str
    tasks: tuple[tuple[int, str, str, str], ...]
    trace: str = ""


@attrs.frozen(kw_only=True)
class BurrowPartition:
    topic: str
    partition: int
    status: str
    owner: str
    client: str
    lag: int
    first_ms: int
    first_offset: int
    last_ms: int
    last_offset: int


@attrs.frozen(kw_only=True)
class BurrowStatus:
    group: str
    cluster: str
    status: str
    total_lag: int
    partitions: tuple[BurrowPartition, ...]


def read_document(read: Any) -> list[ConnectorStatus | BurrowStatus]:
    """Returns what a JSON document says; nothing: it is of no known kind."""
    if isinstance(read, list):
        return [found for each in read[:100_000] for found in read_document(each)]
    if not isinstance(read, dict):
        return []
    burrow = _burrow(read)
    if burrow is not None:
        return [burrow]
    status = _connector(read)
    if status is not None:
        return [status]
    found: list[ConnectorStatus | BurrowStatus] = []
    for each in read.values():  # GET /connectors?expand=status
        inner = each.get("status") if isinstance(each, dict) else None
        if isinstance(inner, dict):
            one = _connector(inner)
            found += [] if one is None else [one]
    return found


def _connector(read: dict[str, Any]) -> ConnectorStatus | None:
    connector, tasks = read.get("connector"), read.get("tasks")
    if not isinstance(connector, dict) or not isinstance(tasks, list) or not isinstance(read.get("name"), str):
        return None
    listed = [each for each in tasks if isinstance(each, dict) and isinstance(each.get("id"), int)]
    return ConnectorStatus(
        connector=read["name"],
        state=_str(connector.get("state")),
        worker=_str(connector.get("worker_id")),
        kind=_str(read.get("type")),
        trace=_first(connector.get("trace")),
        tasks=tuple((each["id"], _str(each.get("state")), _str(each.get("worker_id")), _first(each.get("trace"))) for each in listed),
    )


def _burrow(read: dict[str, Any]) -> BurrowStatus | None:
    status = read.get("status") if isinstance(read.get("status"), dict) else read
    assert isinstance(status, dict)
    if not isinstance(status.get("group"), str) or not isinstance(status.get("partitions"), list) or "status" not in status:
        return None
    rows = []
    for each in status["partitions"] or []:
        if not isinstance(each, dict) or not isinstance(each.get("topic"), str) or not isinstance(each.get("partition"), int):
            continue
        start, end = _dict(each.get("start")), _dict(each.get("end"))
        rows.append(
            BurrowPartition(
                topic=each["topic"],
                partition=each["partition"],
                status=_str(each.get("status")),
                owner=_str(each.get("owner")),
                client=_str(each.get("client_id")),
                lag=_int(each.get("current_lag", end.get("lag"))),
                first_ms=time_of_value(start.get("timestamp")) or 0,
                first_offset=_int(start.get("offset")),
                last_ms=time_of_value(end.get("timestamp")) or 0,
                last_offset=_int(end.get("offset")),
            )
        )
    return BurrowStatus(
        group=status["group"],
        cluster=_str(status.get("cluster")),
        status=_str(status.get("status")),
        total_lag=_int(status.get("totallag")),
        partitions=tuple(rows),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else -1


def _first(trace: Any) -> str:
    return _str(trace).strip().partition("\n")[0][:300]
