"""Scenarios: event sequences as text, played on the real machine, with what they give beneath them
(docs/scenarios.md).
"""

from __future__ import annotations

from equipoise.scenarios.registry import reference
from equipoise.scenarios.runner import Outcome, play_file, play_text
from equipoise.scenarios.text import ScenarioError

__all__ = ["Outcome", "ScenarioError", "play_file", "play_text", "reference"]
