"""Two processes never run one task at one time, in any interleaving of a small group; and every
rule of PROTOCOL's last table is needed for that.

The real GroupMachine and the real MemberSession are driven; see `tests.search.world` for what is
one step and what is as dangerous as can be.
"""

from __future__ import annotations

import pytest

from tests.search.catalogue import BROKEN, WHOLE, run
from tests.search.search import FAULTS


@pytest.mark.parametrize("name", WHOLE)
def test_no_interleaving_has_two_owners(name: str):
    planned = WHOLE[name]
    assert planned.faults <= FAULTS.keys()
    found = run(planned)
    assert found.path is None, f"two owners of {found.task}: {', '.join(found.path)}"
    assert found.states > 1_000, "the search reaches next to nothing"


@pytest.mark.parametrize("rule", BROKEN)
def test_without_any_one_rule_there_are_two_owners(rule: str):
    found = run(BROKEN[rule])
    assert found.path is not None
    print(f'without "{rule}": {", ".join(found.path)}')
