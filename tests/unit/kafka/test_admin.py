"""The admin client, answer by answer, without a network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest

from equipoise.kafka.admin import broker_choice
from equipoise.kafka.admin import shell as admin_shell
from equipoise.kafka.admin.broker_choice import REACHED_S, ControllerAlone
from equipoise.kafka.admin.shell import WireAdmin
from equipoise.kafka.client import NewTopic

AWAY = errors.NodeNotReadyError("away")
SILENCE = object()


class AdminWire:
    """`answers`: broker -> what it answers or raises, one after the other. `controllers`: as each
    metadata names them.
    """

    def __init__(self, answers: dict[int, list[Any]], controllers: tuple[int | None, ...] = (0,)) -> None:
        self.answers, self.controllers = answers, list(controllers)
        self.asked: list[tuple[int, Any]] = []

    def nodes(self) -> list[int]:
        return list(self.answers)

    def controller(self) -> int | None:
        return self.controllers[0]

    def refresh(self) -> asyncio.Future[Any]:
        if len(self.controllers) > 1:
            del self.controllers[0]
        heard = asyncio.get_running_loop().create_future()
        heard.set_result(True)
        return heard

    async def send(self, node: int, request: Any) -> Any:
        self.asked.append((node, request))
        answer = self.answers[node].pop(0)
        if answer is SILENCE:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


def made(*topics: tuple[str, int, str | None]) -> SimpleNamespace:
    return SimpleNamespace(topic_errors=topics)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_shell, "_AGAIN_S", 0.0)


async def test_question_goes_to_the_next_broker_when_one_is_away() -> None:
    wire: Any = AdminWire({3: [AWAY], 1: [errors.KafkaConnectionError("gone")], 2: ["answer"]})
    assert await WireAdmin(wire).ask("request") == "answer"
    assert [node for node, _ in wire.asked] == [3, 1, 2]


async def test_question_goes_to_the_next_broker_when_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_choice, "SILENT_S", 0.05)
    wire: Any = AdminWire({3: [SILENCE], 1: [errors.RequestTimedOutError("late")], 2: ["answer"]})
    assert await WireAdmin(wire).ask("request") == "answer"
    assert [node for node, _ in wire.asked] == [3, 1, 2]


async def test_last_broker_that_is_asked_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_choice, "SILENT_S", 0.05)
    wire: Any = AdminWire({3: [SILENCE], 1: [SILENCE]})
    asked = asyncio.ensure_future(WireAdmin(wire).ask("request"))
    await asyncio.wait((asked,), timeout=0.3)
    assert not asked.done()
    asked.cancel()


async def test_question_fails_when_no_broker_is_left_or_one_refuses() -> None:
    wire: Any = AdminWire({1: [AWAY], 2: [AWAY]})
    with pytest.raises(errors.NodeNotReadyError):
        await WireAdmin(wire).ask("request")
    wire = AdminWire({1: [errors.TopicAuthorizationFailedError("t")], 2: ["answer"]})
    with pytest.raises(errors.TopicAuthorizationFailedError):
        await WireAdmin(wire).ask("request")
    wire = AdminWire({})
    with pytest.raises(errors.KafkaConnectionError, match="no broker is known"):
        await WireAdmin(wire).ask("request")


async def test_topic_is_made_by_the_controller_whichever_broker_that_is_by_now() -> None:
    not_controller = made(("t", errors.NotControllerError.errno, None))
    wire: Any = AdminWire({0: [AWAY], 1: [not_controller], 2: [made(("t", 0, None))]}, controllers=(None, 0, 1, 2))
    assert await WireAdmin(wire).create_topics([NewTopic("t", 3, 2, {"cleanup.policy": "compact"})]) == {}
    assert [node for node, _ in wire.asked] == [0, 1, 2]
    built = wire.asked[-1][1].prepare({CreateTopicsRequest.API_KEY: (0, 3)})
    assert built.create_topic_requests == [("t", 3, 2, [], [("cleanup.policy", "compact")])]


async def test_admin_whose_brokers_name_no_controller_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_choice, "NAMED_S", -1.0)
    wire: Any = AdminWire({0: []}, controllers=(None,))
    with pytest.raises(errors.NodeNotReadyError, match="no controller yet"):
        await WireAdmin(wire).create_topics([NewTopic("t", 1, 1)])


def test_controller_that_stays_away_is_given_up() -> None:
    choice = ControllerAlone(100.0)
    assert choice.choose(4, 100.0) == 4
    choice.failed(AWAY, 100.0 + REACHED_S)
    with pytest.raises(errors.NodeNotReadyError):
        choice.failed(AWAY, 100.1 + REACHED_S)
    with pytest.raises(errors.RequestTimedOutError):
        choice.failed(errors.RequestTimedOutError(), 100.0)


async def test_topic_that_cannot_be_made_has_a_reason_and_one_that_is_there_none() -> None:
    wire: Any = AdminWire({0: [made(("a", 0, None), ("there", 36, "exists"), ("wide", 38, "too many"), ("bad", 17, None))]})
    assert await WireAdmin(wire).create_topics([]) == {"wide": "too many", "bad": "17"}
    wire = AdminWire({0: [made(("a", errors.RequestTimedOutError.errno, "no time"))]})
    with pytest.raises(errors.RequestTimedOutError, match="topic a cannot be made now: no time"):
        await WireAdmin(wire).create_topics([])


async def test_settings_that_may_not_be_read_are_an_error_that_names_the_topic() -> None:
    entries: list[Any] = [("cleanup.policy", "compact", False, 1, False, [])]
    wire: Any = AdminWire({0: [SimpleNamespace(resources=[(0, None, 2, "t", entries)]), SimpleNamespace(resources=[(29, None, 2, "u", [])])]})
    assert await WireAdmin(wire).topic_configs(["t"]) == {"t": {"cleanup.policy": "compact"}}
    with pytest.raises(errors.TopicAuthorizationFailedError, match="settings of topic u"):
        await WireAdmin(wire).topic_configs(["u"])
    assert wire.asked[0][1].prepare({DescribeConfigsRequest.API_KEY: (0, 2)}).resources == [(2, "t", None)]
