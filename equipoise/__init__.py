"""equipoise: the leader of a stream-processing group, and everything its log can answer.

::

    from equipoise import GroupMachine, explain, open_log, parse_task, verify

    with open_log("group.db") as log:
        print(verify(log.read()).verdict)
        print(*explain(log.read(), parse_task("0_3")).why_here, sep="\\n")

Names are loaded when they are first used: the solver behind them takes longer to load than `equipoise --help` should.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assignors.problem import AssignmentProblem, Assignor, Plan
    from assignors.scale_down import ScaleDown, scale_down
    from equipoise.demo import run_demo
    from equipoise.member import Member, MemoryStore, PrepareContext, RocksStore, StateStore, SupersededError, TaskContext
    from events.errors import EquipoiseError
    from events.log import Log, open_log
    from events.records import DecisionRecord, Record
    from events.tasks import TaskId, parse_task
    from replay.advice import advise, front
    from replay.exogenous import read_exogenous
    from replay.explain import Explanation, explain
    from replay.kafka_streams import import_history
    from replay.recording import read_recording
    from replay.show import GroupView, show
    from replay.simulate import Simulation, SimulationResult, simulate
    from replay.sweep import grid
    from replay.timeline import Timeline, build_timeline, render_page
    from replay.verify import Verdict, Verification, verify
    from replay.what_if import Configuration, WhatIf, what_if, what_if_recorded
    from replay.what_if_picture import render_what_if
    from statemachine.machine import GroupMachine

_PLACES = {
    "AssignmentProblem": "assignors.problem",
    "Assignor": "assignors.problem",
    "Configuration": "replay.what_if",
    "DecisionRecord": "events.records",
    "EquipoiseError": "events.errors",
    "Explanation": "replay.explain",
    "GroupMachine": "statemachine.machine",
    "GroupView": "replay.show",
    "Log": "events.log",
    "Member": "equipoise.member",
    "MemoryStore": "equipoise.member",
    "Plan": "assignors.problem",
    "PrepareContext": "equipoise.member",
    "Record": "events.records",
    "RocksStore": "equipoise.member",
    "ScaleDown": "assignors.scale_down",
    "Simulation": "replay.simulate",
    "SimulationResult": "replay.simulate",
    "StateStore": "equipoise.member",
    "SupersededError": "equipoise.member",
    "TaskContext": "equipoise.member",
    "TaskId": "events.tasks",
    "Timeline": "replay.timeline",
    "Verdict": "replay.verify",
    "Verification": "replay.verify",
    "WhatIf": "replay.what_if",
    "advise": "replay.advice",
    "build_timeline": "replay.timeline",
    "explain": "replay.explain",
    "front": "replay.advice",
    "grid": "replay.sweep",
    "import_history": "replay.kafka_streams",
    "open_log": "events.log",
    "parse_task": "events.tasks",
    "read_exogenous": "replay.exogenous",
    "read_recording": "replay.recording",
    "render_page": "replay.timeline",
    "render_what_if": "replay.what_if_picture",
    "run_demo": "equipoise.demo",
    "scale_down": "assignors.scale_down",
    "show": "replay.show",
    "simulate": "replay.simulate",
    "verify": "replay.verify",
    "what_if": "replay.what_if",
    "what_if_recorded": "replay.what_if",
}

__all__ = [
    "AssignmentProblem",
    "Assignor",
    "Configuration",
    "DecisionRecord",
    "EquipoiseError",
    "Explanation",
    "GroupMachine",
    "GroupView",
    "Log",
    "Member",
    "MemoryStore",
    "Plan",
    "PrepareContext",
    "Record",
    "RocksStore",
    "ScaleDown",
    "Simulation",
    "SimulationResult",
    "StateStore",
    "SupersededError",
    "TaskContext",
    "TaskId",
    "Timeline",
    "Verdict",
    "Verification",
    "WhatIf",
    "advise",
    "build_timeline",
    "explain",
    "front",
    "grid",
    "import_history",
    "open_log",
    "parse_task",
    "read_exogenous",
    "read_recording",
    "render_page",
    "render_what_if",
    "run_demo",
    "scale_down",
    "show",
    "simulate",
    "verify",
    "what_if",
    "what_if_recorded",
]


def __getattr__(name: str) -> Any:
    if name == "replay":
        return importlib.import_module("equipoise.replay")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
