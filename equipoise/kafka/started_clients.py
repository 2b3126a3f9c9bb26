"""Clients of Kafka, started for as long as a block runs. Errors of the client become one line that
says what to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from equipoise.events.errors import InputError
from equipoise.kafka.client import Admin, Consumer, Producer
from equipoise.kafka.connection import MISSING, Connection

NOT_ALLOWED = 29  # Kafka's error TOPIC_AUTHORIZATION_FAILED
NOT_SEEN = "this user may not see it; `equipoise doctor` names the ACLs that are missing"
OFFSETS_TOPIC = "__consumer_offsets"


def not_seen(topic: str) -> str:
    """That this user may not see a topic, and what it needs: `NOT_SEEN`, but for the topic of
    groups, which no deployment of equipoise needs.
    """
    return f"this user may not see it; it needs READ and DESCRIBE on topic {topic}" if topic == OFFSETS_TOPIC else NOT_SEEN


class NotNowError(InputError):
    """A broker could not answer but may soon: a broker is away, or a takeover is in progress."""


class UnreachableError(InputError):
    """No broker answers."""


class NotAllowedError(InputError):
    """This user may not do that: an ACL is missing."""


@contextlib.contextmanager
def reaching(connection: Connection) -> Any:
    """Turns connection errors of the client into InputError with one line."""
    try:
        from aiokafka.errors import (
            KafkaConnectionError,
            KafkaError,
            KafkaTimeoutError,
            NodeNotReadyError,
            RequestTimedOutError,
            TopicAuthorizationFailedError,
        )
    except ImportError:
        raise InputError(MISSING) from None
    try:
        yield
    except KafkaConnectionError as error:
        raise _unreachable(connection, f" ({error})") from None
    except TopicAuthorizationFailedError as error:
        topics = ", ".join(sorted(error.args[0])) if error.args and isinstance(error.args[0], set | list | tuple) else str(error)
        raise NotAllowedError(f"topic {topics}: {NOT_SEEN}") from None
    except (KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError) as error:
        raise NotNowError(f"{connection.bootstrap}: {error.__class__.__name__} {error}") from None
    except KafkaError as error:
        kind = NotNowError if error.retriable else InputError
        raise kind(f"{connection.bootstrap} refuses: {error.__class__.__name__} {error}") from None


def _unreachable(connection: Connection, why: str) -> UnreachableError:
    return UnreachableError(f"bootstrap: no broker answers at {connection.bootstrap}{why}; start it, or correct the address")


@contextlib.contextmanager
def starting(connection: Connection) -> Any:
    """`reaching`, around the start of a client: when no broker can be connected to, the error says
    why, and the client library does not log it beside. Raises InputError.
    """
    try:
        from aiokafka.errors import KafkaConnectionError

        from equipoise.kafka.aiokafka_log import FailedConnections, hold_back_log
    except ImportError:
        raise InputError(MISSING) from None
    failed = FailedConnections()
    with reaching(connection), hold_back_log(failed):
        try:
            yield
        except KafkaConnectionError:
            raise _unreachable(connection, failed.text()) from None


@contextlib.asynccontextmanager
async def admin_client(connection: Connection) -> AsyncIterator[Admin]:
    """A started admin client."""
    admin = connection.clients.admin()
    with starting(connection):
        await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()


@contextlib.asynccontextmanager
async def reader(connection: Connection, **options: Any) -> AsyncIterator[Consumer]:
    """A started consumer without a group. The caller assigns partitions and positions it.
    `options`: of `Clients.consumer`.
    """
    consumer = connection.clients.consumer(**options)
    with starting(connection):
        await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def writer(connection: Connection, **options: Any) -> AsyncIterator[Producer]:
    """A started producer. At the end of the block it waits for everything sent, as the futures of
    `send` report; not when an exception leaves the block. `options`: of `Clients.producer`.
    """
    producer = connection.clients.producer(**options)
    with starting(connection):
        await producer.start()
    try:
        yield producer
        await producer.flush()
    finally:
        await producer.stop()
