"""equipoise: the leader of a stream-processing group, and everything its log can answer.

::

    from equipoise import GroupMachine, explain, open_log, parse_task, verify

    with open_log("group.db") as log:
        print(verify(log.read()).verdict)
        print(*explain(log.read(), parse_task("0_3")).why_here, sep="\\n")

Names are loaded when they are first used: the solver behind them takes longer to load than
`equipoise --help` should.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.assignors import AssignmentProblem, Assignor, Plan
    from equipoise.assignors.scale_down import ScaleDown, scale_down
    from equipoise.demo import run_demo
    from equipoise.events.errors import EquipoiseError
    from equipoise.events.log import Log, open_log
    from equipoise.events.records import DecisionRecord, Record
    from equipoise.events.tasks import TaskId, parse_task
    from equipoise.member import Member, MemoryStore, PrepareContext, RocksStore, StateStore, SupersededError, TaskContext
    from equipoise.replay.explanation import Explanation, explain
    from equipoise.replay.group_view import GroupView, show
    from equipoise.replay.importers.kafka_streams import import_history
    from equipoise.replay.recorded_inputs import read_recorded_inputs
    from equipoise.replay.simulation.run import Simulation, SimulationResult, simulate
    from equipoise.replay.timelines import Timeline, build_timeline, render_page
    from equipoise.replay.verification import Verdict, Verification, verify
    from equipoise.replay.whatif.advice import advise, pareto_front
    from equipoise.replay.whatif.evaluate import Configuration, WhatIf, what_if, what_if_recorded
    from equipoise.replay.whatif.picture import render_what_if
    from equipoise.replay.whatif.recording import read_recording
    from equipoise.replay.whatif.sweep import grid
    from equipoise.statemachine.machine import GroupMachine

    __version__: str

_PLACES = {
    "AssignmentProblem": "equipoise.assignors",
    "Assignor": "equipoise.assignors",
    "Configuration": "equipoise.replay.whatif.evaluate",
    "DecisionRecord": "equipoise.events.records",
    "EquipoiseError": "equipoise.events.errors",
    "Explanation": "equipoise.replay.explanation",
    "GroupMachine": "equipoise.statemachine.machine",
    "GroupView": "equipoise.replay.group_view",
    "Log": "equipoise.events.log",
    "Member": "equipoise.member",
    "MemoryStore": "equipoise.member",
    "Plan": "equipoise.assignors",
    "PrepareContext": "equipoise.member",
    "Record": "equipoise.events.records",
    "RocksStore": "equipoise.member",
    "ScaleDown": "equipoise.assignors.scale_down",
    "Simulation": "equipoise.replay.simulation.run",
    "SimulationResult": "equipoise.replay.simulation.run",
    "StateStore": "equipoise.member",
    "SupersededError": "equipoise.member",
    "TaskContext": "equipoise.member",
    "TaskId": "equipoise.events.tasks",
    "Timeline": "equipoise.replay.timelines",
    "Verdict": "equipoise.replay.verification",
    "Verification": "equipoise.replay.verification",
    "WhatIf": "equipoise.replay.whatif.evaluate",
    "advise": "equipoise.replay.whatif.advice",
    "build_timeline": "equipoise.replay.timelines",
    "explain": "equipoise.replay.explanation",
    "grid": "equipoise.replay.whatif.sweep",
    "import_history": "equipoise.replay.importers.kafka_streams",
    "open_log": "equipoise.events.log",
    "pareto_front": "equipoise.replay.whatif.advice",
    "parse_task": "equipoise.events.tasks",
    "read_recorded_inputs": "equipoise.replay.recorded_inputs",
    "read_recording": "equipoise.replay.whatif.recording",
    "render_page": "equipoise.replay.timelines",
    "render_what_if": "equipoise.replay.whatif.picture",
    "run_demo": "equipoise.demo",
    "scale_down": "equipoise.assignors.scale_down",
    "show": "equipoise.replay.group_view",
    "simulate": "equipoise.replay.simulation.run",
    "verify": "equipoise.replay.verification",
    "what_if": "equipoise.replay.whatif.evaluate",
    "what_if_recorded": "equipoise.replay.whatif.evaluate",
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
    "grid",
    "import_history",
    "open_log",
    "pareto_front",
    "parse_task",
    "read_recorded_inputs",
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
    if name == "__version__":
        from importlib.metadata import version

        return version("equipoise")
    if name == "replay":
        return importlib.import_module("equipoise.replay")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
