"""Waits for brokers that are away, in commands that follow a log in Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from equipoise.cli.screen import Screen
from equipoise.kafka.aiokafka_log import hold_back_log
from equipoise.kafka.broker_watch import BrokerWatch


@contextmanager
def outages(screen: Screen, who: str, *, say: Callable[[str], None] | None = None) -> Iterator[BrokerWatch]:
    """While entered, an outage is remarks: one, one more each 10 s, and one when it is over; what
    the client library would log is held back. `who`: their beginning. `say`: takes the remarks;
    None: `screen` does.
    """
    brokers = BrokerWatch(who, time.monotonic, say=say or screen.remark)
    with hold_back_log(brokers):
        yield brokers
