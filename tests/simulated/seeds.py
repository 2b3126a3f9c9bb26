"""One simulation by its seed and the options of the command line, in a process of its own too."""

from __future__ import annotations

import traceback

from tests.simulated import broker_faults, operator_faults, upgrade_faults, wire_faults  # noqa: F401  # they add their faults
from tests.simulated.faults import chosen
from tests.simulated.run import Result, simulate


def run_seed(seed: int, *, guarantee: str, faults: str, storm_s: float, every_s: float) -> Result:
    """`guarantee` "both": even seeds run with at_least_once, odd ones with exactly_once."""
    if guarantee == "both":
        guarantee = ("at_least_once", "exactly_once")[seed % 2]
    wanted = chosen(faults)
    try:
        return simulate(seed, guarantee, wanted, storm_s=storm_s, every_s=every_s)
    except Exception:  # noqa: BLE001  # the other seeds go on
        return Result(
            seed=seed,
            guarantee=guarantee,
            faults=0,
            steps=0,
            virtual_s=0.0,
            took_s=0.0,
            orders=0,
            repeated=0,
            problems=(f"the simulation itself fails:\n{traceback.format_exc()}",),
            trace=(),
            trace_hash="none",
        )
