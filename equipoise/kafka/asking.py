"""What only the doctor asks brokers: whether each one answers, which versions of requests it knows,
what the user may do (KIP-430), settings of brokers, and how long a transaction takes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
from aiokafka import errors
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import ApiVersionRequest, DescribeConfigsRequest

from equipoise.kafka.admin.shell import BROKER
from equipoise.kafka.client import FIRST_ANSWER_S, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import classic_groups, repeated
from equipoise.kafka.described_groups import read_streams_groups
from equipoise.kafka.group_requests import ConsumerGroupDescribe, DescribeGroups, StreamsGroupDescribe
from equipoise.kafka.metadata_requests import NOT_TOLD, TOPIC

OPERATIONS = {3: "Read", 4: "Write", 5: "Create", 6: "Delete", 8: "Describe", 10: "DescribeConfigs"}
"""Kafka's codes of operations, by which bits of an answer are numbered."""
_COORDINATOR_S = 30.0
_TOPIC_FORBIDDEN, _UNKNOWN_TOPIC = 29, 3
_UNSUPPORTED_VERSION = 35
_NO_GROUP = "equipoise.doctor"


@attrs.frozen(order=True)
class BrokerAddress:
    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@attrs.frozen(kw_only=True)
class TopicFound:
    """`allowed`: operations; None: the broker does not say. `partitions`: of each the replicas and
    those in sync; empty: there is no such topic, or the user may not see it.
    """

    is_hidden: bool
    allowed: Collection[str] | None
    partitions: Sequence[tuple[Sequence[int], Sequence[int]]]


async def refusal(connection: Connection, host: str, port: int, within_s: float) -> str | None:
    """Returns why no connection is made to a broker; None: it is made, with TLS and SASL as set."""
    options = connection.options()
    del options["bootstrap_servers"]
    try:
        made = await asyncio.wait_for(create_conn(host, port, request_timeout_ms=int(within_s * 1_000), **options), within_s)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except errors.KafkaError as error:
        return f"{type(error).__name__} {error}".strip()
    except TimeoutError:
        return f"no answer within {within_s:.0f} s"
    except OSError as error:  # ssl.SSLError is one
        return f"{type(error).__name__}: {error}"
    made.close()
    return None


class Asking:
    """A client of `connection`. An asynchronous context manager. Methods raise KafkaError."""

    def __init__(self, connection: Connection, *, request_timeout_ms: int = 40_000) -> None:
        self.admin = connection.clients.admin(request_timeout_ms=request_timeout_ms)

    async def __aenter__(self) -> Self:
        await self.admin.start(within_s=FIRST_ANSWER_S)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.admin.stop()

    def brokers(self) -> list[BrokerAddress]:
        """All brokers, as they advertise themselves."""
        return [BrokerAddress(node_id, *address) for node_id in self.admin.nodes() if (address := self.admin.address(node_id)) is not None]

    async def versions(self, node_id: int) -> dict[int, tuple[int, int]]:
        """Key of a request -> its lowest and highest version."""
        answer = await self.admin.ask(ApiVersionRequest(), node_id)
        return {key: (lowest, highest) for key, lowest, highest in answer.api_versions}

    async def topics(self, names: Sequence[str]) -> dict[str, TopicFound]:
        found = {}
        for each in await self.admin.describe_topics(names, operations=True):
            code, partitions = each["error_code"], [(part["replicas"], part["isr"]) for part in each["partitions"]]
            if code not in (0, _TOPIC_FORBIDDEN, _UNKNOWN_TOPIC):
                raise errors.for_code(code)(each["topic"])
            found[each["topic"]] = TopicFound(
                is_hidden=code == _TOPIC_FORBIDDEN, allowed=_named(each.get("operations", NOT_TOLD)), partitions=partitions
            )
        return found

    async def group_operations(self, group: str) -> Collection[str] | None:
        """Returns what the user may do with a consumer group; None: the broker does not say."""

        def described(answer: Any) -> Collection[str] | None:
            (found,) = classic_groups(answer)
            if found.error_code:
                raise errors.for_code(found.error_code)(group)
            return _named(found.operations)

        try:  # a new cluster makes the topic of groups at the first question, and its leaders read it first
            return await repeated(lambda: self.admin.ask_group(group, DescribeGroups(group, operations=True), described), _COORDINATOR_S)
        except errors.GroupAuthorizationFailedError:
            return ()

    async def settings(
        self, topics: Sequence[str] = (), broker: int | None = None, *, names: Sequence[str] | None = None
    ) -> dict[str, Mapping[str, str]]:
        """Settings of topics, or of one broker, by name, defaults included; `names`: of these
        alone. Topics, or a broker, whose settings the user may not read are absent.
        """
        kind, places = (TOPIC, list(topics)) if broker is None else (BROKER, [str(broker)])
        answer = await self.admin.ask(DescribeConfigsRequest([(kind, place, names) for place in places]), broker)
        return {name: {entry[0]: entry[1] for entry in entries} for code, _, _, name, entries in answer.resources if not code}

    async def assigns(self, node_id: int, kind: type[ConsumerGroupDescribe | StreamsGroupDescribe]) -> bool:
        """Returns whether a broker assigns groups of KIP-848, or of KIP-1071: asks it for one that
        does not exist.
        """
        try:
            answer = await self.admin.ask(kind(_NO_GROUP), node_id)
        except (errors.IncompatibleBrokerVersion, NotImplementedError):
            return False
        if kind is StreamsGroupDescribe:
            return all(each.error_code != _UNSUPPORTED_VERSION for each in read_streams_groups(answer.body))
        return all(each["error_code"] != _UNSUPPORTED_VERSION for each in answer.to_object()["groups"])


async def transaction_s(connection: Connection, transactional_id: str, group: str, place: TopicPartition, within_s: float) -> float:
    """Seconds for a transaction that commits an offset of `place` for `group`, and is aborted, so
    that nothing remains of it. Raises KafkaError, TimeoutError.
    """
    producer: Any = connection.clients.producer(transactional_id=transactional_id, request_timeout_ms=int(within_s * 1_000))
    try:
        async with asyncio.timeout(within_s):
            await producer.start()
            began_s = time.monotonic()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: 0}, group)
            await producer.abort_transaction()
            return time.monotonic() - began_s
    finally:
        await producer.abandon()


def _named(operations: int) -> Collection[str] | None:
    return None if operations == NOT_TOLD else {name for bit, name in OPERATIONS.items() if operations >> bit & 1}
