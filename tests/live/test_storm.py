"""A short storm: one fault of each kind on a real deployment, but for those that restart every
member. `make storm` is the long one, with all kinds.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.live.storm.faults import Kind, draw
from tests.live.storm.run import Storm, run_storm

pytestmark = pytest.mark.slow
EVERY_S = 3.0
KINDS = tuple(kind for kind in Kind if kind not in (Kind.GUARANTEE, Kind.PARTITIONS, Kind.LED_BY))


async def test_storm_loses_no_record_and_has_no_late_write(tmp_path: Path) -> None:
    storm = Storm(seed=14, faults=len(KINDS), guarantee="exactly_once", every_s=EVERY_S, folder=tmp_path, kinds=KINDS)
    found = await run_storm(storm)
    print(*found, sep="\n")
    assert [check for check in found if not check.holds] == []


def test_storm_seed_determines_its_faults_in_equal_numbers_of_each_kind() -> None:
    assert draw(7, 50, 5.0) == draw(7, 50, 5.0) != draw(8, 50, 5.0)
    for seed in range(20):
        faults = draw(seed, 3 * len(Kind) + 4, 5.0)
        counted = [sum(fault.kind is kind for fault in faults) for kind in Kind]
        assert (min(counted), sum(counted)) == (3, len(faults))
        assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
        brokers = [fault for fault in faults if fault.kind is Kind.KILL_BROKER]
        assert all(later.at_s >= earlier.at_s + earlier.length_s + 10 for earlier, later in pairwise(brokers))
