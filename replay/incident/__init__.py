"""Tells what happened to a group that anything may lead: its rebalances, their causes, what they
cost. From a recording alone (`equipoise record`).
"""

from __future__ import annotations

from equipoise.replay.incident.across_groups import AtOnce, at_once
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_history import GroupHistory, history_of
from equipoise.replay.incident.counterfactuals import Counterfactual, Otherwise, counterfactual
from equipoise.replay.incident.incidents import incidents
from equipoise.replay.incident.rebalances import rebalances
from equipoise.replay.incident.unavailable import Gap, gaps
from equipoise.replay.incident.values import Incident

__all__ = [
    "AtOnce",
    "Cause",
    "Counterfactual",
    "Gap",
    "GroupHistory",
    "Incident",
    "Otherwise",
    "Rebalance",
    "at_once",
    "counterfactual",
    "gaps",
    "history_of",
    "incidents",
    "rebalances",
]
