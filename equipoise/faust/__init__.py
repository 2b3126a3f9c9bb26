"""Leads an application of Faust that nobody rewrites (docs/faust.md)::

    app = faust.App("orders", broker="kafka://...",
                    PartitionAssignor="equipoise.faust:FaustAssignor")

Needs the extra `kafka`, which has Faust.
"""

from __future__ import annotations

from equipoise.faust.assignor import FaustAssignor

__all__ = ["FaustAssignor"]
