"""Sends each rebalance as one trace over OTLP/HTTP (setting `otlp_endpoint`, extra `otel`): a span
for the rebalance, and one below it for each warm-up, hand-over, restore and task without an owner.
Times are those of the log. A rebalance is sent when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from equipoise.events.errors import InputError
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.wording import cause_text
from equipoise.statemachine.state import GroupState
from equipoise.worker.traced_rebalances import MOST_STEPS, RebalanceFollower, WorkerRebalance

_SEND_S = 2
"""Longest time for one request to the collector, retries included."""
_NS = 1_000_000
"""Nanoseconds in a millisecond."""


class Tracing:
    """Sends the rebalances of all groups that this worker leads. `endpoint`: URL of the collector.
    Other options of the exporter, such as headers, come from its variables, OTEL_EXPORTER_OTLP_...
    Raises InputError when the extra is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise InputError("otlp_endpoint: needs the extra: pip install 'equipoise[otel]'") from None
        version = metadata.version("equipoise")
        resource = Resource.create({"service.name": "equipoise-worker", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint, timeout=_SEND_S),
                max_queue_size=4 * MOST_STEPS,
                schedule_delay_millis=1_000,
            )
        )
        self._tracer = self._provider.get_tracer("equipoise", version)
        self._groups: dict[str, RebalanceFollower] = {}
        self._last_ms: dict[str, int] = {}

    def folded(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState) -> None:
        """Takes a fact that no worker had answered before, with its decisions. `state`: after it."""
        if not record.group:
            return
        follower = self._groups.get(record.group)
        if follower is None:
            follower = self._groups[record.group] = RebalanceFollower()
        self._last_ms[record.group] = record.append_ms
        if (ended := follower.fold(record, decisions, state)) is not None:
            self._send(ended)

    def forget(self, groups: Iterable[str]) -> None:
        """Another worker leads these groups now: sends what is known of their rebalances."""
        for group in groups:
            follower = self._groups.pop(group, None)
            if follower is not None and (ended := follower.abandon(self._last_ms.pop(group))) is not None:
                self._send(ended)

    def close(self) -> None:
        """Sends what waits. Blocks, for a few seconds where the collector does not answer."""
        self._provider.shutdown()

    def _send(self, rebalance: WorkerRebalance) -> None:
        from opentelemetry import trace

        known: dict[str, Any] = {
            "equipoise.group": rebalance.group,
            "equipoise.log_id": rebalance.log_id,
            "equipoise.offset": rebalance.offset,
            "equipoise.cause": cause_text(rebalance.cause) or "no round was needed",
            "equipoise.generation.first": rebalance.first_generation,
            "equipoise.generation.last": rebalance.last_generation,
            "equipoise.changes_of_owner": rebalance.changes_of_owner,
            "equipoise.expired": rebalance.expired or None,
            "equipoise.steps_left_out": rebalance.steps_left_out or None,
            "equipoise.taken_over": rebalance.taken_over or None,
            "equipoise.unfinished": not rebalance.is_finished or None,
        }
        attributes = {name: value for name, value in known.items() if value is not None}
        root = self._tracer.start_span(f"rebalance {rebalance.group}", start_time=rebalance.begin_ms * _NS, attributes=attributes)
        for at_ms, text in rebalance.said:
            root.add_event(text, timestamp=at_ms * _NS)
        context = trace.set_span_in_context(root)
        for timed in rebalance.steps:
            step = timed.step
            of_step = {
                "equipoise.group": rebalance.group,
                "equipoise.task": str(step.task),
                "equipoise.member": step.member,
                "equipoise.source": step.source,
                "equipoise.lag_records": timed.lag_records,
            }
            span = self._tracer.start_span(
                f"{step.kind} {step.task}",
                context,
                start_time=timed.begin_ms * _NS,
                attributes={name: value for name, value in of_step.items() if value is not None},
            )
            span.end(timed.end_ms * _NS)
        root.end(rebalance.end_ms * _NS)
