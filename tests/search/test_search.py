"""Two processes never run one task at the same time, in any interleaving of a small group, and
every rule of the table in docs/protocol.md is needed for that.

Drives the real GroupMachine and the real MemberSession; `tests.search.world` says what one step is,
and what is assumed to be as dangerous as possible.
"""

from __future__ import annotations

import pytest

from tests.search.catalogue import BROKEN, WHOLE, run
from tests.search.search import FAULTS

LARGEST = (
    "max_step_ms raised, superseded, with a clock jump",
    "expelled, and the revocation timeout is raised",
    "another assignor and back",
    "another assignor, with a clock jump",
    "another assignor, superseded",
    "tasks removed and back, superseded",
    "asked to leave and to stay",
    "asked to leave, and the drain timeout is raised",
    "superseded, and closed all the same",
    "superseded, with a clock jump",
    "expelled, and the next owner restarts",
    "expelled, with a clock jump",
    "leaving, with a clock jump",
    "both step by step, one superseded",
    "both step by step, with a clock jump",
)
"""Two to 26 s of CPU each."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGEST else name for name in WHOLE])
def test_search_with_all_rules_finds_no_two_owners(name: str):
    planned = WHOLE[name]
    assert planned.faults <= FAULTS.keys()
    found = run(planned)
    assert found.path is None, f"two owners of {found.task}: {', '.join(found.path)}"
    assert found.states > 1_000, "the search reaches too few states"


@pytest.mark.parametrize("rule", BROKEN)
def test_search_without_a_rule_finds_two_owners(rule: str):
    found = run(BROKEN[rule])
    assert found.path is not None
    print(f'without "{rule}": {", ".join(found.path)}')
