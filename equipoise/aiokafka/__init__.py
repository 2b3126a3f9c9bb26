"""Strategies of equipoise for ordinary consumer groups of aiokafka (docs/adopt-aiokafka.md)::

    from equipoise.aiokafka import BalancedAssignor

They need the extra `kafka`, and are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.aiokafka.strategies import BalancedAssignor as BalancedAssignor
    from equipoise.aiokafka.strategies import LagAwareAssignor as LagAwareAssignor
    from equipoise.aiokafka.strategies import LoadBalancedAssignor as LoadBalancedAssignor
    from equipoise.hosting.lag_fetching import LagFetcher as LagFetcher
    from equipoise.hosting.lag_fetching import LoadFetcher as LoadFetcher
    from equipoise.hosting.lag_fetching import PartitionLags as PartitionLags

__all__ = ["BalancedAssignor", "LagAwareAssignor", "LagFetcher", "LoadBalancedAssignor", "LoadFetcher", "PartitionLags"]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("LagFetcher", "LoadFetcher", "PartitionLags"), "equipoise.hosting.lag_fetching"),
        **dict.fromkeys(("BalancedAssignor", "LagAwareAssignor", "LoadBalancedAssignor"), "equipoise.aiokafka.strategies"),
    },
)
