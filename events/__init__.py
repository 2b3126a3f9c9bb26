"""What happened: events, their wire form and schema versions; `events.log` has the logs to keep them in."""

from __future__ import annotations

from events.codec import Event, decode, decode_lenient, encode, from_json, make_record, to_json
from events.decisions import Decision
from events.errors import EquipoiseError, FieldError, GroupHalted, InputError, InvariantBroken, LogError
from events.facts import Fact
from events.knobs import Knobs
from events.records import DecisionRecord, Record
from events.tasks import Lag, LagSentinel, TaskId, parse_task

__all__ = [
    "Decision",
    "DecisionRecord",
    "EquipoiseError",
    "Event",
    "Fact",
    "FieldError",
    "GroupHalted",
    "InputError",
    "InvariantBroken",
    "Knobs",
    "Lag",
    "LagSentinel",
    "LogError",
    "Record",
    "TaskId",
    "decode",
    "decode_lenient",
    "encode",
    "from_json",
    "make_record",
    "parse_task",
    "to_json",
]
