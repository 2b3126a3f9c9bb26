"""The witness of its parent: reads from standard input what to prove, and proves it when the parent
has ended (docs/protocol.md#m11): by facts, or by taking it out of its consumer group.
``python -m equipoise.witness.child PID``

It has requests that the parent has prepared, and loads Kafka's client when they do not do: where
connections are encrypted, or the partition has another leader now. Until then it takes 10 MB. It is
started with the signals blocked that end a whole group of processes: it ends when it has nothing
left to prove.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import IO, Any

LOOK_S = 0.02
RETRY_S = 0.2
PREPARED_S = 1.0
"""Longest wait for each answer to a prepared request."""


def main() -> int:
    pid = int(sys.argv[1])
    try:
        process = [os.pidfd_open(pid)]
    except ProcessLookupError:
        process = []
    if os.getppid() != pid:
        process = []  # the parent has ended already; who has its id is another process
    said = last_line(sys.stdin.buffer)
    if not said:
        return 0
    if process:
        select.select(process, [], [])
    return prove(said)


def last_line(lines: IO[bytes]) -> dict[str, Any]:
    """Returns what the parent has said last, when all copies of its end of the pipe are closed: by
    its end, and that of every process that it forked.
    """
    last = b"{}"
    for line in lines:
        if line.endswith(b"\n"):  # else it was killed within the line
            last = line
    found: dict[str, Any] = json.loads(last)
    return found


def prove(said: dict[str, Any]) -> int:
    """Proves what a process that has ended has said."""
    began_s = time.monotonic()
    by_s = began_s + said["within_s"]
    problem = why_unproven(said, by_s)
    if not problem and not was_appended(said):
        import asyncio

        problem = asyncio.run(tell(said, by_s))
    say_how_it_went(said, time.monotonic() - began_s, problem)
    return bool(problem)


def say_how_it_went(said: dict[str, Any], took_s: float, problem: str) -> None:
    """One line on standard error. `took_s`: since the end was seen; `problem`: "" when it was
    proven.
    """
    say(f"{said['who']} has ended; {problem or f'proven after {took_s:.2f} s'}")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def why_unproven(said: dict[str, Any], by_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> str:
    """Takes the lock of the process for a moment. Returns why its end is not proven; "": it is."""
    if said.get("lock") is None:
        return ""
    file, identity = said["lock"]
    return "" if was_free(file, identity, by_s, monotonic_s) else f"nothing is proven, because {file} is locked or another file"


def was_free(file: str, identity: list[int], by_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> bool:
    """Returns whether nobody held the lock at one moment until `by_s`. It is released at once: the
    next process of the member may take it.
    """
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if [status.st_dev, status.st_ino] != identity:
            return False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if monotonic_s() >= by_s:
                    return False
            time.sleep(LOOK_S)
    finally:
        os.close(descriptor)


def was_appended(said: dict[str, Any]) -> bool:
    """Sends the prepared requests, if there are any. False: the records may or may not be appended;
    the leader takes no notice of a second one.
    """
    prepared = said.get("prepared")
    if prepared is None:
        return False
    try:
        with socket.create_connection((prepared["host"], prepared["port"]), timeout=PREPARED_S) as broker:
            if bytes.fromhex(prepared["topic_id"]) not in _answer(broker, prepared["ask"]):
                return False  # made again, or this broker does not know it yet
            at = prepared["error_at"]
            return _answer(broker, prepared["append"])[at : at + 2] == bytes(2)
    except OSError:
        return False


def _answer(broker: socket.socket, request: str) -> bytes:
    """The answer without its length. `request`: in hexadecimal. Raises OSError."""
    body = bytes.fromhex(request)
    broker.sendall(len(body).to_bytes(4, "big") + body)
    return _received(broker, int.from_bytes(_received(broker, 4), "big"))


def _received(broker: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = broker.recv(size - len(received))
        if not more:
            raise ConnectionResetError
        received += more
    return received


def request_timeout_ms(within_s: float) -> int:
    """Returns how long a broker may take, when the proof is of use `within_s`."""
    return max(1_000, int(within_s * 250))


async def tell(said: dict[str, Any], by_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> str:
    """Tells the brokers. Returns why they have not taken it before `by_s`; "": they have."""
    import asyncio
    import logging

    from aiokafka.errors import KafkaError

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # one line says how it went
    options = _options(said["connection"]) | {"request_timeout_ms": request_timeout_ms(said["within_s"])}
    while True:
        try:
            if "append" in said:
                return await append(options, **said["append"])
            await leave(options, **said["leave"])
            return ""
        except (KafkaError, OSError) as error:
            if monotonic_s() >= by_s:
                return f"no broker took the proof within {said['within_s']:.0f} s: {error!r}"
        await asyncio.sleep(RETRY_S)


async def append(options: dict[str, Any], topic: str, partition: int, key: str, facts: list[str]) -> str:
    """Appends the facts, which leave the list. Returns why not; "": they are appended."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    from equipoise.kafka.aiokafka_metadata import forbid_topic_creation

    consumer, producer = AIOKafkaConsumer(**options), AIOKafkaProducer(**options, acks="all")
    forbid_topic_creation(consumer._client)
    forbid_topic_creation(producer.client)
    return await append_with(consumer, producer, TopicPartition(topic, partition), bytes.fromhex(key), facts)


async def append_with(consumer: Any, producer: Any, place: Any, key: bytes, facts: list[str]) -> str:
    """The same with these clients, which are started and stopped. `place`: topic and partition.
    `facts`: in hexadecimal.

    Nothing is appended to a topic that was made again and has no log yet (docs/protocol.md#l9): its
    first record would be none of a log.
    """
    try:
        await consumer.start()
        await producer.start()
        if not (await consumer.end_offsets([place]))[place]:
            return f"nothing is proven, because {place.topic} was made again"
        while facts:
            await producer.send_and_wait(place.topic, bytes.fromhex(facts[0]), key=key, partition=place.partition)
            del facts[0]
        return ""
    finally:
        await producer.stop()
        await consumer.stop()


async def leave(options: dict[str, Any], group: str, member_id: str) -> None:
    """Takes a member out of its consumer group, unless it is out already. Raises KafkaError,
    KafkaConnectionError when the coordinator cannot be reached.
    """
    from aiokafka import errors
    from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
    from aiokafka.protocol.group import LeaveGroupRequest

    client: Any = AIOKafkaClient(**options)
    try:
        await client.bootstrap()
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        if not await client.ready(node, group=ConnectionGroup.COORDINATION):
            raise errors.KafkaConnectionError(f"cannot connect to broker {node}")
        answer = await client.send(node, LeaveGroupRequest(group, member_id), group=ConnectionGroup.COORDINATION)
        error = errors.for_code(answer.error_code)
        if error not in (errors.NoError, errors.UnknownMemberIdError):
            raise error(f"LeaveGroup of {member_id}")
    finally:
        await client.close()


def _options(connection: dict[str, Any]) -> dict[str, Any]:
    if connection["security_protocol"] == "PLAINTEXT":
        return {"bootstrap_servers": connection["bootstrap"]}
    from equipoise.kafka.connection import Connection

    return Connection(**connection).options()


if __name__ == "__main__":
    sys.exit(main())
