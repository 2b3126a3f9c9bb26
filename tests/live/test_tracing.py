"""A real worker sends a rebalance as one trace to a receiver of OTLP over HTTP."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import Swarm, topology
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import until

MOST_S = 60.0


class Receiver:
    """Collects spans at `url`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                for resource in request.resource_spans:
                    receiver.services.add(values(resource.resource.attributes)["service.name"])
                    for scope in resource.scope_spans:
                        receiver.spans.extend(scope.spans)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def roots(self) -> list[Span]:
        """Spans of whole rebalances, by time."""
        return sorted((span for span in self.spans if not span.parent_span_id), key=lambda span: span.start_time_unix_nano)


def values(attributes: Any) -> dict[str, Any]:
    """Attributes of a span or a resource."""

    def value(each: KeyValue) -> Any:
        kind = each.value.WhichOneof("value")
        return [item.string_value for item in each.value.array_value.values] if kind == "array_value" else getattr(each.value, str(kind))

    return {each.key: value(each) for each in attributes}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


@pytest.mark.smoke
async def test_rebalance_is_one_trace_with_its_steps(bootstrap: str, prefix: str, receiver: Receiver) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, otlp_endpoint=receiver.url)
    application = Application(bootstrap, prefix)
    await application.make_topics()
    await application.order(300)
    began_ns = time.time_ns()
    options = {"group_config": application.config, "heartbeat_interval_ms": 500}
    async with Worker(settings), application.member("m1", None, "exactly_once", **options) as first:
        await until(lambda: len(first.running) == PARTITIONS)
        await application.until_counted(exactly=True)
        await until(lambda: len(receiver.roots()) == 1)
        async with application.member("m2", None, "exactly_once", **options) as second:
            await until(lambda: len(second.running) == 1)
            await until(lambda: len(receiver.roots()) == 2)
    assert receiver.services == {"equipoise-worker"}
    start, join = receiver.roots()[:2]
    assert {root.name for root in (start, join)} == {f"rebalance {prefix}"}
    told = values(join.attributes)
    assert (told["equipoise.group"], told["equipoise.changes_of_owner"]) == (prefix, 1)
    assert any("m2 joined" in event.name for event in join.events)
    steps = [span for span in receiver.spans if span.trace_id == join.trace_id and span.parent_span_id]
    assert {span.parent_span_id for span in steps} == {join.span_id}
    assert {span.name.rpartition(" ")[0] for span in steps} >= {"warm-up", "hand-over", "restore"}
    warmed = [values(span.attributes) for span in steps if span.name.startswith("warm-up ")]
    assert [each["equipoise.member"] for each in warmed] == ["m2"]
    assert warmed[0]["equipoise.task"] in {values(span.attributes)["equipoise.task"] for span in steps if span.name.startswith("hand-over ")}
    for span in (start, join, *steps):
        assert began_ns - 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano <= time.time_ns() + 10**9
    assert all(join.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= join.end_time_unix_nano for span in steps)


async def test_worker_whose_collector_never_answers_leads_and_stops_in_time(bootstrap: str, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, otlp_endpoint=url)
        worker = Worker(settings)
        await worker.start()
        try:
            async with Swarm(settings, settings.topics) as swarm:
                await swarm.configure(prefix, configured(initial_delay_ms=200), topology(2))
                swarm.add(prefix, ["m1"], heartbeat_interval_ms=200)
                swarm.start()
                await swarm.until_all_run(prefix, 2, ["m1"], timeout_s=MOST_S)
        finally:
            began_s = time.monotonic()
            await worker.stop()
        assert time.monotonic() - began_s < 5
