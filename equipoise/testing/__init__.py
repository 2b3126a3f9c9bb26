"""For authors of assignors: the contract that every assignor keeps, and a simulated group to try
one in.

::

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_contract(check):
        check(MyAssignor())

`equipoise.testing.contract` has the checks, `problems` the hypothesis strategies, `loop` the group.
Needs hypothesis: install ``equipoise[testing]``.
"""

from __future__ import annotations

from equipoise.testing.contract import CONTRACT, Check, Subject
from equipoise.testing.loop import Group, stateful, stateless
from equipoise.testing.problems import group_settings, problems, tasks

__all__ = ["CONTRACT", "Check", "Group", "Subject", "group_settings", "problems", "stateful", "stateless", "tasks"]
