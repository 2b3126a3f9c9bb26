"""The configuration of a group that nobody has configured. Members name its assignor, and have no
solver: so that is written down, and a test compares it with the registry.
"""

from __future__ import annotations

from equipoise.events.facts import GroupConfigured

ASSIGNOR = "high_availability"
BEHAVIOUR_VERSION = 3
SOLVER = "ortools-9.15.6755"


def default_configuration() -> GroupConfigured:
    return GroupConfigured(assignor=ASSIGNOR, behaviour_version=BEHAVIOUR_VERSION, solver=SOLVER)
