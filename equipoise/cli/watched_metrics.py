"""Metrics of groups that `equipoise record` watches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.replay.incident.watched_groups import WatchedGroups


class WatchedCollector(Collector):
    """Reads the counts at each scrape."""

    def __init__(self, watched: WatchedGroups) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        watched = self._watched
        yield _counter("equipoise_rebalances", "Rebalances of a group that is watched, by what began them.", watched.rebalances)
        yield _counter(
            "equipoise_rebalance_unavailable_partition_seconds",
            "Partition-seconds in which work of the group stood still, by cause, counted when they are over.",
            watched.unavailable_s,
        )
        gauge = GaugeMetricFamily("equipoise_rebalances_counted_to_timestamp_seconds", "Time to which rebalances are counted.")
        gauge.add_metric([], watched.counted_to_ms / 1_000)
        yield gauge


def _counter(name: str, about: str, counts: Mapping[tuple[str, str], float]) -> CounterMetricFamily:
    counter = CounterMetricFamily(name, about, labels=["group", "cause"])
    for (group, cause), count in sorted(counts.items()):
        counter.add_metric([group, cause], count)
    return counter
