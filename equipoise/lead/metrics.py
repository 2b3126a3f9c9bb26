"""Metrics of the groups of others in which a process has seats, and the HTTP port of `equipoise
lead`, besides the pages of `equipoise.hosting.serving`. It is ready when each seat is in its group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.hosting.serving import MetricsServer
from equipoise.lead.seat_status import SeatState, SeatStatus

_GAUGES: tuple[tuple[str, str, Callable[[SeatStatus], float | None]], ...] = (
    ("equipoise_lead_state_seconds", "How long the seat has been in its state.", lambda each: each.age_s(each.since_s)),
    (
        "equipoise_lead_answer_age_seconds",
        "Since the last question to the group's coordinator that was answered: what the others say is as of then.",
        lambda each: each.age_s(each.answered_s),
    ),
    ("equipoise_lead_decision_age_seconds", "Since the seat's last decision; absent before the first one.", lambda each: each.age_s(each.decided_s)),
    (
        "equipoise_lead_rebalance_wait_seconds",
        "How long the seat has waited for others to join a generation; 0: no rebalance is under way.",
        lambda each: each.age_s(each.waits_since_s) or 0.0,
    ),
    ("equipoise_lead_pending_moves", "Partitions or tasks that members do not have yet as was decided last.", lambda each: each.pending),
    ("equipoise_lead_members", "Members of the group without seats; processes of Kafka Streams.", lambda each: each.members),
    ("equipoise_lead_seats", "Seats in the group, this one included.", lambda each: None if each.members is None else each.seats),
    ("equipoise_lead_lag_records", "Records behind the group's commits; absent: not known.", lambda each: each.lag_records),
    (
        "equipoise_lead_uncommitted_partitions",
        "Partitions that members read and the group has not committed: their lag is not known.",
        lambda each: each.uncommitted,
    ),
)


class LeadCollector(Collector):
    """Reads the seats at each scrape. `statuses`: returns those of the process now."""

    def __init__(self, statuses: Callable[[], Iterable[SeatStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        statuses = sorted(self._statuses(), key=lambda each: each.group)
        seat = GaugeMetricFamily("equipoise_lead_seat", "1: the state of the seat in the group.", labels=["group", "state"])
        for each in statuses:
            for state in SeatState:
                seat.add_metric([each.group, state.value], float(each.state is state))
        yield seat
        for name, about, value in _GAUGES:
            gauge = GaugeMetricFamily(name, about, labels=["group"])
            for each in statuses:
                if (found := value(each)) is not None:
                    gauge.add_metric([each.group], found)
            yield gauge
        silent = CounterMetricFamily(
            "equipoise_lead_silent_seats",
            "Seats, this one or another, that did not answer for their session; rebalances waited.",
            labels=["group"],
        )
        for each in statuses:
            silent.add_metric([each.group], each.silent_seats)
        yield silent


def lead_server(group: str, statuses: Callable[[], Iterable[SeatStatus]], unready: Callable[[], str], host: str, port: int) -> MetricsServer:
    """Returns what serves `equipoise lead` of `group`. `unready`: why not every seat is in its
    group; "": each is.
    """
    registry = CollectorRegistry()
    registry.register(LeadCollector(statuses))
    means = "whether each of its seats is in its group, to lead it or to stand by"
    return MetricsServer(f"equipoise lead of group {group}", registry, host, port, unready, means)
