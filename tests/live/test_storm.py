"""Short storms on a real deployment: one fault of each kind, but for those that restart every
member; and ten of members' connections. `make storm` runs the long ones.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.live.storm.faults import WIRE, Kind, draw
from tests.live.storm.run import Storm, run_storm

pytestmark = pytest.mark.slow
EVERY_S = 3.0
KINDS = tuple(kind for kind in Kind if kind not in (Kind.GUARANTEE, Kind.PARTITIONS, Kind.LED_BY, *WIRE))


async def test_storm_loses_no_record_and_has_no_late_write(tmp_path: Path) -> None:
    await _holds(Storm(seed=14, faults=len(KINDS), guarantee="exactly_once", every_s=EVERY_S, folder=tmp_path, kinds=KINDS))


async def test_storm_of_connections_loses_and_doubles_nothing(tmp_path: Path) -> None:
    await _holds(Storm(seed=3, faults=10, guarantee="exactly_once", every_s=1.0, folder=tmp_path, kinds=WIRE))


async def _holds(storm: Storm) -> None:
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
        brokers = [fault for fault in faults if fault.kind in (Kind.KILL_BROKER, Kind.PAUSE_BROKER)]
        assert all(later.at_s >= earlier.at_s + earlier.length_s + 10 for earlier, later in pairwise(brokers))
