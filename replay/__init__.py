"""Replay as a library, for notebooks and scripts: each function takes a log, or where one is, and
returns what the command of that name prints.

::

    from equipoise import replay

    equipoise.replay.verification("group.db").verdict                     # Verdict.IDENTICAL
    history = equipoise.replay.timelines("archive/", group="orders")
    history.totals().stopped_ms
    costs = equipoise.replay.whatif.evaluate("group.db", [replay.Configuration(name="two slots", settings={"max_warmups": 2})])
    costs.outcomes[0].metrics.unavailable_task_seconds
    replay.advise(costs).line                             # change max_warmups from 4 to 2 because ...

A LOG is ``group.db``, ``group.jsonl``, ``archive/``, ``kafka://host:port[/prefix]``, or an open
`equipoise.events.log.Log`. Over many groups of archives, on Spark: `spark_verify`,
`spark_timeline`, `spark_what_if`, which return DataFrames (docs/spark.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise._guard import check_package_name

check_package_name(__name__, "equipoise.replay")

if TYPE_CHECKING:
    from equipoise.replay.facade import spark_timeline, spark_verify, spark_what_if, timeline, verify, what_if
    from equipoise.replay.timelines import Timeline, render_page, render_picture
    from equipoise.replay.verification import Verdict, Verification
    from equipoise.replay.whatif.advice import Advice, advise, pareto_front
    from equipoise.replay.whatif.evaluate import Configuration, WhatIf
    from equipoise.replay.whatif.picture import render_what_if
    from equipoise.replay.whatif.sweep import grid, read_configurations

__all__ = [
    "Advice",
    "Configuration",
    "Timeline",
    "Verdict",
    "Verification",
    "WhatIf",
    "advise",
    "grid",
    "pareto_front",
    "read_configurations",
    "render_page",
    "render_picture",
    "render_what_if",
    "spark_timeline",
    "spark_verify",
    "spark_what_if",
    "timeline",
    "verify",
    "what_if",
]


def __getattr__(name: str) -> Any:
    """Loaded when first used: whoever imports one module of this package does not wait for the
    solver and for Spark.
    """
    if name in __all__:
        return getattr(importlib.import_module("equipoise.replay.facade"), name)
    raise AttributeError(f"module 'equipoise.replay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
