"""KEDA's external scaler, asked over gRPC by a client that knows the protocol alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from equipoise.events.errors import InputError
from equipoise.replay.sizing.policy import FollowingPolicy
from equipoise.worker import keda_scaler
from equipoise.worker.group_sizes import NoAnswerError
from equipoise.worker.keda_messages import MESSAGES, SERVICE
from equipoise.worker.keda_scaler import KedaScaler

METADATA = {"group": "orders", "lag_s": "20", "least": "2", "scalerAddress": "equipoise-worker:8091"}


class Asked:
    """Answers with the next of `numbers`; a text is why there is none."""

    def __init__(self, *numbers: int | tuple[int, str]) -> None:
        self.numbers = list(numbers)
        self.questions: list[tuple[str, FollowingPolicy]] = []

    async def __call__(self, group: str, policy: FollowingPolicy) -> dict[str, Any]:
        self.questions.append((group, policy))
        found = self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]
        if isinstance(found, tuple):
            raise NoAnswerError(*found)
        return {"members": found}


@asynccontextmanager
async def serving(asked: Asked) -> AsyncIterator[grpc.aio.Channel]:
    scaler = KedaScaler(asked, "127.0.0.1", 0)
    port = await scaler.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await scaler.stop()


async def call(channel: grpc.aio.Channel, method: str, request: Any, reply: str) -> Any:
    ask = channel.unary_unary(
        f"/{SERVICE}/{method}", request_serializer=lambda each: each.SerializeToString(), response_deserializer=MESSAGES[reply].FromString
    )
    return await ask(request, timeout=10)


def ref(**metadata: str) -> Any:
    return MESSAGES["ScaledObjectRef"](name="orders", namespace="shop", scalerMetadata=metadata)


async def test_members_are_the_metric_and_one_is_its_target() -> None:
    asked = Asked(5)
    async with serving(asked) as channel:
        (spec,) = (await call(channel, "GetMetricSpec", ref(**METADATA), "GetMetricSpecResponse")).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("members", 1, 1.0)
        question = MESSAGES["GetMetricsRequest"](scaledObjectRef=ref(**METADATA), metricName="s0-members")
        (value,) = (await call(channel, "GetMetrics", question, "GetMetricsResponse")).metricValues
        assert (value.metricName, value.metricValue, value.metricValueFloat) == ("s0-members", 5, 5.0)
        assert (await call(channel, "IsActive", ref(**METADATA), "IsActiveResponse")).result is True
    assert set(asked.questions) == {(asked.questions[0][0], FollowingPolicy(lag_s=20.0, least=2))}


async def test_stream_says_at_once_that_the_group_is_active_and_when_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keda_scaler, "LOOK_S", 0.01)
    async with serving(Asked(3, 3, 0, 0, 2)) as channel:
        stream = channel.unary_stream(
            f"/{SERVICE}/StreamIsActive",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=MESSAGES["IsActiveResponse"].FromString,
        )(ref(**METADATA))
        said = [(await asyncio.wait_for(stream.read(), 10)).result for _ in range(3)]
        assert said == [True, False, True]
        stream.cancel()


@pytest.mark.parametrize(
    ("metadata", "problem", "code", "text"),
    [
        ({}, 5, grpc.StatusCode.INVALID_ARGUMENT, "metadata.group: name the group"),
        ({"group": "orders", "lag": "3"}, 5, grpc.StatusCode.INVALID_ARGUMENT, "lag: there is no such value"),
        ({"group": "orders"}, (503, "the loads of the last hours are being read"), grpc.StatusCode.UNAVAILABLE, "are being read"),
        ({"group": "orders"}, (404, "there is no group"), grpc.StatusCode.NOT_FOUND, "there is no group"),
    ],
)
async def test_question_without_an_answer_gets_a_status_and_the_reason(
    metadata: dict[str, str], problem: int | tuple[int, str], code: grpc.StatusCode, text: str
) -> None:
    async with serving(Asked(problem)) as channel:
        for method, reply in (("IsActive", "IsActiveResponse"), ("GetMetricSpec", "GetMetricSpecResponse")):
            if method == "GetMetricSpec" and code is not grpc.StatusCode.INVALID_ARGUMENT:
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, method, ref(**metadata), reply)
            assert caught.value.code() is code
            assert text in (caught.value.details() or "")


async def test_port_that_is_taken_is_named() -> None:
    first = KedaScaler(Asked(1), "127.0.0.1", 0)
    port = await first.start()
    try:
        with pytest.raises(InputError, match=f"scaler_port: cannot listen on 127.0.0.1:{port}"):
            await KedaScaler(Asked(1), "127.0.0.1", port).start()
    finally:
        await first.stop()
