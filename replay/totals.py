"""What several windows of a run cost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def in_all(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The windows' totals added up, of the longest the longest. What would count the same task
    twice is left out.
    """
    names = [name for name in (windows[0] if windows else ()) if all(name in totals for totals in windows) and not name.startswith("tasks_")]
    return {name: (max if name.startswith("longest_") else sum)(totals[name] for totals in windows) for name in names}
