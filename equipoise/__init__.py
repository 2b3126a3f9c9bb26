"""equipoise: the leader of a stream-processing group.

::

    from equipoise import open_log, replay

    print(replay.verify("group.db").verdict)
    print(*replay.explain("group.db", "0_3").why_here, sep="\\n")
    with open_log("group.db") as log:
        print(log.count())

`equipoise.replay` answers questions about a log. `equipoise.testing` tests assignors of your own.
Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.assignors import AssignmentProblem as AssignmentProblem
    from equipoise.assignors import Assignor as Assignor
    from equipoise.assignors import Plan as Plan
    from equipoise.assignors.scale_down import Keep as Keep
    from equipoise.assignors.scale_down import ScaleDown as ScaleDown
    from equipoise.assignors.scale_down import scale_down as scale_down
    from equipoise.events.errors import EquipoiseError as EquipoiseError
    from equipoise.events.facts import GroupConfigured as GroupConfigured
    from equipoise.events.records import DecisionRecord as DecisionRecord
    from equipoise.events.settings import GroupSettings as GroupSettings
    from equipoise.events.tasks import TaskId as TaskId
    from equipoise.events.tasks import parse_task as parse_task
    from equipoise.hosting.json_logging import JsonFormatter as JsonFormatter
    from equipoise.kafka.connection import Connection as Connection
    from equipoise.log import Log as Log
    from equipoise.log import open_log as open_log
    from equipoise.member import BatchHandler as BatchHandler
    from equipoise.member import BytesSerde as BytesSerde
    from equipoise.member import CopyLocation as CopyLocation
    from equipoise.member import ErrorPolicy as ErrorPolicy
    from equipoise.member import FailedTask as FailedTask
    from equipoise.member import Handler as Handler
    from equipoise.member import JsonSerde as JsonSerde
    from equipoise.member import KeyLocation as KeyLocation
    from equipoise.member import Member as Member
    from equipoise.member import MemberKeywords as MemberKeywords
    from equipoise.member import MemberOptions as MemberOptions
    from equipoise.member import MemoryStore as MemoryStore
    from equipoise.member import MsgpackSerde as MsgpackSerde
    from equipoise.member import PrepareContext as PrepareContext
    from equipoise.member import Processor as Processor
    from equipoise.member import QueryError as QueryError
    from equipoise.member import Record as Record
    from equipoise.member import RocksMemory as RocksMemory
    from equipoise.member import RocksStore as RocksStore
    from equipoise.member import Serde as Serde
    from equipoise.member import Source as Source
    from equipoise.member import State as State
    from equipoise.member import StateStore as StateStore
    from equipoise.member import StringSerde as StringSerde
    from equipoise.member import SupersededError as SupersededError
    from equipoise.member import TaskContext as TaskContext
    from equipoise.statemachine.machine import GroupMachine as GroupMachine

    __version__: str

PUBLIC_NAMES = {
    "AssignmentProblem": "equipoise.assignors",
    "Assignor": "equipoise.assignors",
    "BatchHandler": "equipoise.member",
    "BytesSerde": "equipoise.member",
    "Connection": "equipoise.kafka.connection",
    "CopyLocation": "equipoise.member",
    "DecisionRecord": "equipoise.events.records",
    "EquipoiseError": "equipoise.events.errors",
    "ErrorPolicy": "equipoise.member",
    "FailedTask": "equipoise.member",
    "GroupConfigured": "equipoise.events.facts",
    "GroupMachine": "equipoise.statemachine.machine",
    "GroupSettings": "equipoise.events.settings",
    "Handler": "equipoise.member",
    "JsonFormatter": "equipoise.hosting.json_logging",
    "JsonSerde": "equipoise.member",
    "KeyLocation": "equipoise.member",
    "Log": "equipoise.log",
    "Member": "equipoise.member",
    "MemberKeywords": "equipoise.member",
    "MemberOptions": "equipoise.member",
    "MemoryStore": "equipoise.member",
    "MsgpackSerde": "equipoise.member",
    "Plan": "equipoise.assignors",
    "PrepareContext": "equipoise.member",
    "Processor": "equipoise.member",
    "QueryError": "equipoise.member",
    "Record": "equipoise.member",
    "RocksMemory": "equipoise.member",
    "RocksStore": "equipoise.member",
    "Keep": "equipoise.assignors.scale_down",
    "ScaleDown": "equipoise.assignors.scale_down",
    "Serde": "equipoise.member",
    "Source": "equipoise.member",
    "State": "equipoise.member",
    "StateStore": "equipoise.member",
    "StringSerde": "equipoise.member",
    "SupersededError": "equipoise.member",
    "TaskContext": "equipoise.member",
    "TaskId": "equipoise.events.tasks",
    "open_log": "equipoise.log",
    "parse_task": "equipoise.events.tasks",
    "scale_down": "equipoise.assignors.scale_down",
}
"""Public name -> the module that defines it. The table in docs/architecture.md is made from this
one and that of `equipoise.replay`.
"""

__all__ = list(PUBLIC_NAMES)

_load = lazy_names(__name__, PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("equipoise")
    if name == "replay":
        import equipoise.replay

        return equipoise.replay
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
