"""Logs of real brokers and clients that were made to misbehave, and what was done to them.

``tests/data/group_logs/VERSION.tar.gz``: a broker's server.log, shortened to what it said of these
groups; a log of each member (``g-java.m2.log``: member m2 of group g-java); and truth.json: time,
group, fault, and who. ``1.0.2.tar.gz`` is of a broker that gives no reasons, with ZooKeeper 3.4.10
and members of librdkafka 2.16.1, kafka-python 3.0.12 and aiokafka 0.14.0. ``other_clients.tar.gz``:
a broker of Kafka 4.3.1 with members of franz-go 1.22.3 (classic and KIP-848), sarama 1.61.1, Faust
(faust-streaming 0.15.3) and Kafka Streams 4.3.1.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import attrs

from equipoise.replay.incident.causes import Cause, Rebalance

DATA = Path(__file__).with_name("data") / "group_logs"
EXAMPLE = DATA / "example.log"
"""A member that is lost again and again, a line in an unknown form, and a table."""
VERSIONS = ("3.9.1", "4.3.1")
OTHER_CLIENTS = "other_clients"
WITHOUT_REASONS = "1.0.2"
"""Brokers before Kafka 2.2 do not log why a rebalance begins."""
_EARLIEST_MS = 1_100
"""A process that stands still was heard of a heartbeat interval before."""
_LATEST_MS = 24_000
"""From a fault to the rebalance that it makes necessary: a session and a poll interval."""


@attrs.frozen(order=True)
class Fault:
    at_ms: int
    group: str
    fault: str
    who: str


def unpack(version: str, folder: Path) -> Path:
    """Unpacks the logs of a version into `folder`, and returns where they are."""
    found = folder / version
    with tarfile.open(DATA / f"{version}.tar.gz") as packed:
        packed.extractall(found, filter="data")
    return found


def faults_of(folder: Path) -> list[Fault]:
    """What was done, in order."""
    read: list[dict[str, Any]] = json.loads((folder / "truth.json").read_text())
    return [Fault(**each) for each in read]


def cause_of(fault: Fault, told: list[Rebalance], faults: list[Fault]) -> Cause | None:
    """What the first rebalance after a fault, and before the next, is said to have begun with."""
    found = rebalance_of(fault, told, faults)
    return None if found is None else found.cause


def rebalance_of(fault: Fault, told: list[Rebalance], faults: list[Fault]) -> Rebalance | None:
    """The first rebalance after a fault, and before the next."""
    later = [each.at_ms for each in faults if each.group == fault.group and each.at_ms > fault.at_ms]
    until_ms = min([fault.at_ms + _LATEST_MS, *(at_ms - 300 for at_ms in later)])
    after = [each for each in told if fault.at_ms - _EARLIEST_MS <= each.begin_ms <= until_ms and each.cause is not Cause.UNSEEN]
    about = [each for each in after if fault.who in each.members or not each.members]
    return (about or after)[0] if after else None
