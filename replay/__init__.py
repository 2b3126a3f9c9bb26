"""Questions about a log, answered by folding it: the library behind the commands of the same names.

::

    from equipoise import replay

    replay.verify("group.db").verdict             # Verdict.IDENTICAL
    replay.explain("group.db", "0_3").why_here    # sentences
    history = replay.timeline("archive/", group="orders")
    history.totals().stopped_ms
    costs = replay.what_if("group.db", replay.grid({"max_warmups": [2, 4]}))
    replay.advise(costs).line               # change max_warmups from 4 to 2 because ...

Each function takes the location of a log (``group.db``, ``group.jsonl``, ``archive/``,
``kafka://host:port[/prefix]``) or an open `equipoise.Log`. For many groups of archives there is
`equipoise.replay.spark` (docs/spark.md). Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._guard import check_package_name
from equipoise._lazy import lazy_names

check_package_name(__name__, "equipoise.replay")

if TYPE_CHECKING:
    from equipoise.replay.explanation import Explanation as Explanation
    from equipoise.replay.facade import explain as explain
    from equipoise.replay.facade import read_recorded_inputs as read_recorded_inputs
    from equipoise.replay.facade import read_recording as read_recording
    from equipoise.replay.facade import show as show
    from equipoise.replay.facade import simulate as simulate
    from equipoise.replay.facade import timeline as timeline
    from equipoise.replay.facade import verify as verify
    from equipoise.replay.facade import what_if as what_if
    from equipoise.replay.group_view import GroupView as GroupView
    from equipoise.replay.importers.kafka_streams import import_history as import_history
    from equipoise.replay.recorded_inputs import RecordedInputs as RecordedInputs
    from equipoise.replay.simulation.run import Simulation as Simulation
    from equipoise.replay.simulation.run import SimulationResult as SimulationResult
    from equipoise.replay.timelines import Timeline as Timeline
    from equipoise.replay.timelines import render_page as render_page
    from equipoise.replay.timelines import render_picture as render_picture
    from equipoise.replay.verification import Verdict as Verdict
    from equipoise.replay.verification import Verification as Verification
    from equipoise.replay.whatif.advice import Advice as Advice
    from equipoise.replay.whatif.advice import advise as advise
    from equipoise.replay.whatif.advice import pareto_front as pareto_front
    from equipoise.replay.whatif.evaluate import Configuration as Configuration
    from equipoise.replay.whatif.evaluate import WhatIf as WhatIf
    from equipoise.replay.whatif.recorded_costs import Recording as Recording
    from equipoise.replay.whatif.sweep import grid as grid
    from equipoise.replay.whatif.sweep import read_configurations as read_configurations

PUBLIC_NAMES = {
    "Advice": "equipoise.replay.whatif.advice",
    "Configuration": "equipoise.replay.whatif.evaluate",
    "Explanation": "equipoise.replay.explanation",
    "GroupView": "equipoise.replay.group_view",
    "RecordedInputs": "equipoise.replay.recorded_inputs",
    "Recording": "equipoise.replay.whatif.recorded_costs",
    "Simulation": "equipoise.replay.simulation.run",
    "SimulationResult": "equipoise.replay.simulation.run",
    "Timeline": "equipoise.replay.timelines",
    "Verdict": "equipoise.replay.verification",
    "Verification": "equipoise.replay.verification",
    "WhatIf": "equipoise.replay.whatif.evaluate",
    "advise": "equipoise.replay.whatif.advice",
    "explain": "equipoise.replay.facade",
    "pareto_front": "equipoise.replay.whatif.advice",
    "grid": "equipoise.replay.whatif.sweep",
    "import_history": "equipoise.replay.importers.kafka_streams",
    "read_configurations": "equipoise.replay.whatif.sweep",
    "read_recorded_inputs": "equipoise.replay.facade",
    "read_recording": "equipoise.replay.facade",
    "render_page": "equipoise.replay.timelines",
    "render_picture": "equipoise.replay.timelines",
    "show": "equipoise.replay.facade",
    "simulate": "equipoise.replay.facade",
    "timeline": "equipoise.replay.facade",
    "verify": "equipoise.replay.facade",
    "what_if": "equipoise.replay.facade",
}
"""Public name -> the module that defines it. The table in docs/architecture.md is made from this
one and that of `equipoise`.
"""

__all__ = list(PUBLIC_NAMES)

__getattr__ = lazy_names(__name__, PUBLIC_NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
