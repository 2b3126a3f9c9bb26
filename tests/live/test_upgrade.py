"""The tool that replaces builds under load, with this build in both places. `make upgrade` takes
another one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.builds import THIS_BUILD, described, other_build
from tests.live.upgrade import upgraded

pytestmark = pytest.mark.slow


async def test_rolling_replacement_of_workers_and_members_with_a_retention_loses_nothing(bootstrap: str, tmp_path: Path) -> None:
    with other_build(str(THIS_BUILD)) as other:
        assert other.has_bases
        this = described("this build", THIS_BUILD)
        assert await upgraded(bootstrap, tmp_path, this, other, "workers", retention=True) == []
