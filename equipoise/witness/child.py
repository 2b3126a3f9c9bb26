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


async def tell(said: dict[str, Any], by_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> str:
    """Tells the brokers. Returns why they have not taken it before `by_s`; "": they have."""
    import asyncio
    import logging

    from aiokafka.errors import KafkaError

    from equipoise.kafka.aiokafka_wire import DeployedClients
    from equipoise.kafka.prepared_append import request_timeout_ms

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # one line says how it went
    clients, timeout_ms = DeployedClients(_options(said["connection"])), request_timeout_ms(said["within_s"])
    while True:
        try:
            if "append" in said:
                return await append(clients.producer(request_timeout_ms=timeout_ms), **said["append"])
            await leave(clients.admin(request_timeout_ms=timeout_ms), **said["leave"])
            return ""
        except (KafkaError, OSError) as error:
            if monotonic_s() >= by_s:
                return f"no broker took the proof within {said['within_s']:.0f} s: {error!r}"
        await asyncio.sleep(RETRY_S)


async def append(producer: Any, topic: str, partition: int, key: str, facts: list[str]) -> str:
    """Starts a producer, appends the facts, which leave the list, and stops it. `key`, `facts`: in
    hexadecimal. Returns why not; "": they are appended.

    Nothing is appended to a topic that was made again and has no log yet (docs/protocol.md#l9): its
    first record would be none of a log.
    """
    from equipoise.kafka.client import TopicPartition

    place = TopicPartition(topic, partition)
    try:
        await producer.start()
        if not (await producer.leader_ends([place]))[place].offset:
            return f"nothing is proven, because {topic} was made again"
        for fact in list(facts):
            await producer.send_and_wait(topic, bytes.fromhex(fact), key=bytes.fromhex(key), partition=partition)
            facts.remove(fact)
        return ""
    finally:
        await producer.stop()


async def leave(admin: Any, group: str, member_id: str) -> None:
    """Starts an admin client, takes a member out of its consumer group, unless it is out already,
    and stops the client. Raises KafkaError.
    """
    from aiokafka import errors

    from equipoise.kafka.group_requests import LeaveGroup

    def check(answer: Any) -> None:
        error = errors.for_code(answer.error_code or answer.members[0][2])
        if error not in (errors.NoError, errors.UnknownMemberIdError):
            raise error(f"LeaveGroup of {member_id}")

    try:
        await admin.start()
        await admin.ask_group(group, LeaveGroup(group, [(member_id, None)], "its process has ended"), check)
    finally:
        await admin.stop()


def _options(connection: dict[str, Any]) -> dict[str, Any]:
    if connection["security_protocol"] == "PLAINTEXT":
        return {"bootstrap_servers": connection["bootstrap"]}
    from equipoise.kafka.connection import Connection

    return Connection(**connection).options()


if __name__ == "__main__":
    sys.exit(main())
