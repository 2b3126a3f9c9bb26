"""Scenarios: text files of events that run on the real state machine, with the expected output
below each event (docs/scenarios.md).
"""

from __future__ import annotations

from tests.support.scenarios.directives import reference
from tests.support.scenarios.scenario_runner import ScenarioResult, run_file, run_text
from tests.support.scenarios.text import ScenarioError

__all__ = ["ScenarioError", "ScenarioResult", "reference", "run_file", "run_text"]
