"""The cost of the codec: decoding through constructor and validators, over a bare `msgpack.unpackb`
of the same bytes in the same run.

The bare unpack is a floor: it checks nothing, names nothing and makes no task. The two take turns,
and each is judged by its best turn, so that a busy machine slows both or neither.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import msgpack

from equipoise.events import codec
from equipoise.events.decisions import MemberAssigned
from equipoise.events.facts import LagReported, Load
from equipoise.events.tasks import Lag, LagSentinel, TaskId

CALLS = 2_000
TURNS = 40

LAGS: dict[TaskId, Lag] = {TaskId(0, partition): partition * 1_000 for partition in range(20)}
HELD = tuple(LAGS)[:5]
LOAD = Load(cpu=0.5, memory=0.25, disk=0.1, records_per_s=1_234.5, restored_records_per_s=50_000.0)

EVENTS: tuple[tuple[str, codec.Event, str], ...] = (
    ("a report of 20 lags", LagReported("member-1", 1_795_149_198_066, 17, 16, lags=LAGS), "goal: at most 4"),
    ("a report of 20 lags that holds 5 tasks", LagReported("member-1", 1_795_149_198_066, 17, 16, HELD, lags=LAGS), "what a running member sends"),
    ("the same with its load", LagReported("member-1", 1_795_149_198_066, 17, 16, HELD, lags=LAGS, load=LOAD), "5 floats, in a class of their own"),
    (
        "the same with 5 of the lags 'active'",
        LagReported("member-1", 1_795_149_198_066, 17, 16, HELD, lags={**LAGS, **dict.fromkeys(HELD, LagSentinel.ACTIVE)}),
        "",
    ),
    ("an assignment of 20 tasks", MemberAssigned(member_id="member-1", incarnation=1, assignment_epoch=9, active=tuple(LAGS), tokens=(7,) * 20), ""),
)


def best_us(turns: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds a call of each, best of TURNS turns, taken in turn."""
    best = dict.fromkeys(turns, float("inf"))
    gc.disable()
    try:
        for _ in range(TURNS):
            for name, call in turns.items():
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                best[name] = min(best[name], (time.perf_counter() - begin) / CALLS * 1e6)
    finally:
        gc.enable()
    return best


def run() -> list[tuple[str, float, str]]:
    """Name, ratio, and the times it is made of."""
    rows = []
    for name, event, note in EVENTS:
        kind, version, payload = codec.encode(event)
        us = best_us({"bare": lambda payload=payload: msgpack.unpackb(payload), "codec": lambda args=(kind, version, payload): codec.decode(*args)})  # type: ignore[misc]
        text = f"{us['codec']:.1f} us over {us['bare']:.1f} us, {len(payload)} bytes" + (f"; {note}" if note else "")
        rows.append((f"decode {name} / bare unpackb", us["codec"] / us["bare"], text))
    return rows
