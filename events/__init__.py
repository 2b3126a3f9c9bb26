"""Events: facts, decisions, their wire form and schema versions. `equipoise.log` stores
them.
"""

from __future__ import annotations

from equipoise._guard import check_package_name
from equipoise.events.codec import Event, decode, decode_lenient, encode, from_json, make_record, to_json
from equipoise.events.decisions import Decision
from equipoise.events.errors import EquipoiseError, FieldError, GroupHalted, InputError, InvariantBroken, LogError
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId, parse_task

check_package_name(__name__, "equipoise.events")

__all__ = [
    "Decision",
    "DecisionRecord",
    "EquipoiseError",
    "Event",
    "Fact",
    "FactRecord",
    "FieldError",
    "GroupHalted",
    "GroupSettings",
    "InputError",
    "InvariantBroken",
    "Lag",
    "LagSentinel",
    "LogError",
    "TaskId",
    "decode",
    "decode_lenient",
    "encode",
    "from_json",
    "make_record",
    "parse_task",
    "to_json",
]
