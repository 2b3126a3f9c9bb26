"""Scenarios: text files of events that run on the real state machine, with the expected output
below each event (docs/scenarios.md).
"""

from __future__ import annotations

from equipoise.testing.scenarios.directives import reference
from equipoise.testing.scenarios.scenario_runner import ScenarioResult, run_file, run_text
from equipoise.testing.scenarios.text import ScenarioError

__all__ = ["ScenarioError", "ScenarioResult", "reference", "run_file", "run_text"]
