"""What a worker adds to the metadata that Faust's workers send when they join, and what the leader
adds to an assignment: one more field of Faust's own JSON, which the stock assignor passes over.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import attrs

FIELD = "equipoise"
VERSION = 1
Offsets = Mapping[str, Mapping[int, int]]
"""Changelog topic -> partition -> offset of the last record that a copy on the disk has."""


@attrs.frozen(kw_only=True)
class Report:
    """What a worker says about itself. `worker`: its name, which is on its disk. `generation`: of
    the group, in which it was assigned what it has; -1: it has nothing. `group`: the workers that
    were in that generation, or expected back in it. `asked`: how often it has asked for a
    rebalance; the broker begins one only for a member whose metadata has changed. `is_current`:
    whether `offsets` are of now, or of an earlier report.
    """

    worker: str
    generation: int = -1
    group: tuple[str, ...] = ()
    asked: int = 0
    is_current: bool = True
    offsets: Offsets = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Told:
    """What the leader tells a worker. `group`: see `Report`. `warmups`: changelog partitions whose
    tasks the worker gets once its copies are caught up. `acceptable_lag`: in records, of each.
    """

    group: tuple[str, ...] = ()
    warmups: tuple[tuple[str, int], ...] = ()
    acceptable_lag: int = 0


def with_report(metadata: bytes, report: Report) -> bytes:
    """Faust's metadata and the report."""
    return _with(metadata, attrs.asdict(report))


def with_told(metadata: bytes, told: Told) -> bytes:
    return _with(metadata, attrs.asdict(told))


def report_in(metadata: bytes | None) -> Report | None:
    """The report in a worker's metadata; None: its assignor is another one. Raises ValueError or
    KeyError or TypeError when it cannot be read.
    """
    found = _found(metadata)
    if found is None:
        return None
    offsets = {str(topic): {int(number): int(offset) for number, offset in of.items()} for topic, of in found["offsets"].items()}
    group = tuple(map(str, found["group"]))
    return Report(
        worker=str(found["worker"]),
        generation=int(found["generation"]),
        group=group,
        asked=int(found["asked"]),
        is_current=bool(found["is_current"]),
        offsets=offsets,
    )


def told_in(metadata: bytes | None) -> Told | None:
    """Returns what the leader told; None: the leader has another assignor. Raises as `report_in`."""
    found = _found(metadata)
    if found is None:
        return None
    warmups = tuple((str(topic), int(number)) for topic, number in found["warmups"])
    return Told(group=tuple(map(str, found["group"])), warmups=warmups, acceptable_lag=int(found["acceptable_lag"]))


def _with(metadata: bytes, said: Any) -> bytes:
    document = json.loads(metadata)
    packed = zlib.compress(json.dumps({"version": VERSION, **said}, separators=(",", ":")).encode())
    document[FIELD] = base64.b64encode(packed).decode()
    return json.dumps(document, separators=(",", ":")).encode()


def _found(metadata: bytes | None) -> Any:
    document = json.loads(metadata or b"{}")
    if FIELD not in document:
        return None
    found = json.loads(zlib.decompress(base64.b64decode(document[FIELD])))
    if found["version"] != VERSION:
        raise ValueError(f"the worker reports in version {found['version']!r}, this one reads {VERSION}")
    return found
