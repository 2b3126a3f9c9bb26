"""Clients of Kafka, started for as long as a block runs. Errors of the client become one line that
says what to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.client import FIRST_ANSWER_S, NO_ANSWER, Admin, Consumer, Producer
from equipoise.kafka.connection import MISSING, Connection
from equipoise.kafka.declared_settings import variable

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
    """Turns errors of the client into InputError with one line. All commands use it."""
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
        raise unreachable(connection, str(error.args[0] if error.args else error)) from None
    except TopicAuthorizationFailedError as error:
        topics = ", ".join(sorted(error.args[0])) if error.args and isinstance(error.args[0], set | list | tuple) else str(error)
        raise NotAllowedError(f"topic {topics}: {NOT_SEEN}") from None
    except (KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError) as error:
        raise NotNowError(f"{connection.bootstrap}: {error.__class__.__name__} {error}") from None
    except KafkaError as error:
        kind = NotNowError if error.retriable else InputError
        raise kind(f"{connection.bootstrap} refuses: {error.__class__.__name__} {error}") from None


def unreachable(connection: Connection, why: str) -> InputError:
    """Returns the error for brokers that cannot be reached. `why`: the reasons of all of them, by
    which the fix is chosen.
    """
    place = connection.bootstrap
    if "sasl" in why.lower():
        user = f"correct {variable('sasl_username')} and {variable('sasl_password')}, or sasl_mechanism ({connection.sasl_mechanism})"
        return InputError(f"sasl_username, sasl_password: the brokers at {place} refuse them ({why}); {user}")
    if "SSL" in why:
        return InputError(f"ssl_ca_file: no TLS connection to {place} ({why}); correct it, security_protocol, or the brokers' certificates")
    fix = "start it, or correct the address"
    if place == attrs.fields(Connection).bootstrap.default:
        fix = f"start it, or name another: this is the default address, and --bootstrap or {variable('bootstrap')} sets it"
    kind = NotNowError if NO_ANSWER in why else UnreachableError
    return kind(f"bootstrap: no broker answers at {place} ({why}); {fix}")


@contextlib.asynccontextmanager
async def admin_client(connection: Connection) -> AsyncIterator[Admin]:
    """A started admin client."""
    admin = connection.clients.admin()
    with reaching(connection):
        await admin.start(within_s=FIRST_ANSWER_S)
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
    with reaching(connection):
        await consumer.start(within_s=FIRST_ANSWER_S)
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
    with reaching(connection):
        await producer.start(within_s=FIRST_ANSWER_S)
    try:
        yield producer
        await producer.flush()
    finally:
        await producer.stop()
