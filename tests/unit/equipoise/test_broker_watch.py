"""A broker that is away is one line, one more each 10 s, and one when it is back; and what aiokafka
logs meanwhile is held back.
"""

from __future__ import annotations

import ast
import importlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
)

from equipoise.kafka.aiokafka_log import CONSEQUENCES, FAILURES, LOGGERS, FailedConnections, hold_back_log
from equipoise.kafka.broker_watch import AGAIN_S, CALM_S, BrokerWatch

NO_NODE = "Unable connect to node with id %s: %s"


class Watch(BrokerWatch):
    def __init__(self) -> None:
        super().__init__("group g: member m1", lambda: self.now_s)
        self.now_s = 100.0


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO)
    for logger in LOGGERS:
        logger.setLevel(logging.NOTSET)  # whatever the tests before have set
        logger.disabled = False
    yield caplog
    for logger in LOGGERS:
        assert not logger.filters
        logger.setLevel(logging.NOTSET)


def test_broker_that_is_away_is_one_line_and_one_each_ten_seconds(lines: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    for _ in range(250):
        watch.failed("no connection")
        watch.now_s += 0.1
    watch.answered(watch.now_s)
    assert watch.is_away  # other connections may fail yet
    watch.now_s += CALM_S
    watch.answered(watch.now_s)
    watch.answered(watch.now_s)
    assert [record.getMessage() for record in lines.records] == [
        "group g: member m1: a broker does not answer: no connection",
        f"group g: member m1: a broker has not answered for {AGAIN_S:.0f} s: no connection",
        f"group g: member m1: a broker has not answered for {2 * AGAIN_S:.0f} s: no connection",
        "group g: member m1: the brokers answer again, after 26.0 s",
    ]
    lines.clear()
    for _ in range(3):  # one connection after the other fails once more
        watch.failed("no connection")
        assert watch.is_away
        watch.now_s += CALM_S
        watch.answered(watch.now_s)
        assert not watch.is_away
    for _ in range(80):
        watch.failed("no connection")
        watch.now_s += 0.1
    watch.now_s += CALM_S
    watch.answered(watch.now_s)
    watch.now_s += AGAIN_S
    watch.failed("no connection")
    assert [record.getMessage() for record in lines.records] == [
        "group g: member m1: a broker has not answered for 7 s: no connection",
        "group g: member m1: the brokers answer again, after 9.0 s",
        "group g: member m1: a broker does not answer: no connection",
    ]


def test_lines_of_aiokafka_are_held_back_while_a_member_runs(lines: pytest.LogCaptureFixture) -> None:
    client, group, other = (logging.getLogger(name) for name in ("aiokafka", "aiokafka.consumer.group_coordinator", "aiokafka.consumer.fetcher"))
    watch, second = Watch(), Watch()
    client.error(NO_NODE, 1, "before")
    with hold_back_log(watch):
        group.error("LeaveGroup request failed: %s", "a broker answers")
        with hold_back_log(second):
            client.error(NO_NODE, 1, "refused")
            client.error(NO_NODE, 1, "refused")
        group.error("LeaveGroup request failed: %s", "held back")
        other.warning("Fetch offset out of range")
        assert (watch.is_away, second.is_away) == (True, True)
    client.error(NO_NODE, 1, "after")
    assert [record.getMessage() for record in lines.records] == [
        "Unable connect to node with id 1: before",
        "LeaveGroup request failed: a broker answers",
        *["group g: member m1: a broker does not answer: Unable connect to node with id 1: refused"] * 2,
        "Fetch offset out of range",
        "Unable connect to node with id 1: after",
    ]


def test_line_that_aiokafka_repeats_comes_once_each_ten_seconds(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, said = logging.getLogger("aiokafka.cluster"), "Topic %s is not authorized for this client"
    now_s = time.time()
    with hold_back_log(Watch()):
        for tenth in range(250):
            monkeypatch.setattr(time, "time", lambda tenth=tenth: now_s + tenth / 10)
            monkeypatch.setattr(time, "time_ns", lambda tenth=tenth: int((now_s + tenth / 10) * 1e9))
            cluster.error(said, "facts")
            if not tenth:
                cluster.error(said, "decisions")
    texts = [record.getMessage() for record in lines.records]
    assert texts == [said % "facts", said % "decisions", said % "facts", said % "facts"]


def test_line_about_a_coordinator_that_is_not_there_yet_comes_only_when_it_lasts(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group of a new broker has none for a moment."""
    group, said = logging.getLogger("aiokafka.consumer.group_coordinator"), "Group Coordinator Request failed: %s"
    now_s = time.time()
    with hold_back_log(Watch()):
        for tenth in range(150):
            monkeypatch.setattr(time, "time", lambda tenth=tenth: now_s + tenth / 10)
            monkeypatch.setattr(time, "time_ns", lambda tenth=tenth: int((now_s + tenth / 10) * 1e9))
            group.error(said, GroupCoordinatorNotAvailableError())
            assert len(lines.records) == (tenth >= 100)
        group.error(said, NotCoordinatorForGroupError())
    assert len(lines.records) == 2, "another error is said at once"


def test_reasons_why_no_broker_answers_are_collected_and_not_logged(lines: pytest.LogCaptureFixture) -> None:
    client, failed = logging.getLogger("aiokafka"), FailedConnections()
    with hold_back_log(failed):
        client.error('Unable connect to "%s:%s": %s', "a", 1, ConnectionRefusedError(111, "Connect call failed ('a', 1)"))
        client.error('Unable connect to "%s:%s": %s', "a", 1, ConnectionRefusedError(111, "Connect call failed ('a', 1)"))
        client.error('Unable connect to "%s:%s": %s', "b", 2, socket.gaierror(-2, "Name or service not known"))
        client.warning('Unable to request metadata from "%s:%s": %s', "c", 3, "RequestTimedOutError")
    assert failed.text() == "a:1: Connection refused; b:2: Name or service not known; c:3: RequestTimedOutError"
    assert lines.records == []


@pytest.mark.parametrize("debugged", ["aiokafka", "equipoise"])
def test_lines_of_aiokafka_are_there_at_debug(lines: pytest.LogCaptureFixture, debugged: str) -> None:
    with lines.at_level(logging.DEBUG, debugged), hold_back_log(Watch()):
        logging.getLogger("aiokafka").error(NO_NODE, 1, "refused")
    assert "Unable connect to node with id 1: refused" in [record.getMessage() for record in lines.records]


def test_formats_that_are_held_back_are_those_of_the_installed_aiokafka() -> None:
    folder, found = Path(aiokafka.__file__).parent, set()
    for path in folder.rglob("*.py"):
        texts = {node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)}
        if texts & (FAILURES | CONSEQUENCES):
            found |= texts & (FAILURES | CONSEQUENCES)
            module: Any = importlib.import_module(".".join(("aiokafka", *path.relative_to(folder).with_suffix("").parts)))
            assert module.log in LOGGERS
    assert found == FAILURES | CONSEQUENCES


def test_errors_of_requests_that_are_wrong_mean_no_broker_that_is_away(lines: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    assert not any(watch.noted("restoring", error) for error in (UnknownTopicOrPartitionError(), MessageSizeTooLargeError(), ValueError()))
    assert not watch.is_away
    assert all(watch.noted("restoring", error) for error in (KafkaConnectionError(), KafkaTimeoutError(), TimeoutError("late")))
    assert [record.getMessage() for record in lines.records] == ["group g: member m1: a broker does not answer: restoring: KafkaConnectionError()"]
