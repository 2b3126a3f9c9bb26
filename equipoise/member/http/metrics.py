"""Metrics of a member, named by the conventions of Prometheus. All are read off the member at each
scrape, so that a record costs nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.member.http.measurements import MemberFigures
from equipoise.member.tasks.failures import SECONDS

F = TypeVar("F", bound=Metric)


def _named(kind: Callable[..., F], name: str, text: str, *labels: str) -> F:
    """A metric of a member, with these labels beside its own."""
    return kind(f"equipoise_member_{name}", text, labels=["group", "member", *labels])


class MemberCollector(Collector):
    """Metrics of the member `member_id`. `figures`: returns what to report; None: the member has
    not joined yet, and reports nothing.
    """

    def __init__(self, group: str, member_id: str, figures: Callable[[], MemberFigures | None]) -> None:
        self._labels = [group, member_id]
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        figures = self._figures()
        counters = {
            "records": "Records that were handled.",
            "busy_seconds": "Time in handlers, waits included, of all tasks.",
            "out_of_order_records": "Records that came behind later ones of another source of their task.",
            "commits": "Commits, each of one task.",
            "fenced_commits": "Commits that were refused or overtaken, because a later owner of the task had begun.",
            "restored_records": "Records of changelogs that were applied to copies and opening tasks.",
            "throttled_seconds": "Time for which quotas of the brokers have held back the member's process.",
            "damaged_copies": "Local copies that were given up because they were damaged, and are restored from their changelogs.",
        }
        of_member = {name: _named(CounterMetricFamily, name, text) for name, text in counters.items()}
        failures = _named(
            CounterMetricFamily, "failures", "Failures of handlers, serdes and timers, by source topic and what was done then.", "topic", "outcome"
        )
        drops = _named(
            CounterMetricFamily,
            "dropped_records",
            "Records that were dropped, by processor, who did, and why: again when a task has to repeat them.",
            *("processor", "by", "reason"),
        )
        times = _named(HistogramMetricFamily, "handler_seconds", "Calls of handlers: the first of those that a task makes one after the other.")
        tasks = _named(GaugeMetricFamily, "tasks", "Tasks here, by role; opening: granted, and not running yet.", "role")
        parked = _named(GaugeMetricFamily, "parked_tasks", "Tasks that handle nothing more, because of a record or of refusals.")
        lease = _named(GaugeMetricFamily, "lease_left_seconds", "Time until the lease is over, unless it is renewed; 0: it is.")
        source_lag = _named(GaugeMetricFamily, "source_lag_records", "Source records still to be processed, by running task.", "task")
        restore_lag = _named(GaugeMetricFamily, "restore_lag_records", "Records still to be restored, by copy or opening task.", "task")
        if figures is not None:
            done = figures.done
            values = (
                done.records,
                done.busy_s,
                done.out_of_order,
                done.commits,
                figures.fenced,
                figures.restored,
                figures.throttled_s,
                figures.damaged,
            )
            for metric, value in zip(of_member.values(), values, strict=True):
                metric.add_metric(self._labels, value)
            for (topic, outcome), count in sorted(figures.failures.items()):
                failures.add_metric([*self._labels, topic, outcome], count)
            for labels, count in sorted(figures.drops.items()):
                drops.add_metric([*self._labels, *labels], count)
            counts, seconds = figures.handler_times
            bounds = [*map(str, SECONDS), "+Inf"]
            times.add_metric(self._labels, list(zip(bounds, accumulate(counts), strict=True)), seconds)
            for role, count in figures.tasks.items():
                tasks.add_metric([*self._labels, role], count)
            parked.add_metric(self._labels, figures.parked)
            lease.add_metric(self._labels, figures.lease_left_s)
            for gauge, lags in ((source_lag, figures.source_lags), (restore_lag, figures.restore_lags)):
                for task, lag in lags.items():
                    gauge.add_metric([*self._labels, str(task)], lag)
        yield from (*of_member.values(), failures, drops, times, tasks, parked, lease, source_lag, restore_lag)
