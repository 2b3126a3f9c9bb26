"""Scenarios: event sequences as text, played on the real machine, with what they give beneath them
(docs/scenarios.md).
"""

from __future__ import annotations

from equipoise.scenarios.registry import reference
from equipoise.scenarios.runner import ScenarioResult, run_file, run_text
from equipoise.scenarios.text import ScenarioError

__all__ = ["ScenarioError", "ScenarioResult", "reference", "run_file", "run_text"]
