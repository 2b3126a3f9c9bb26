"""The simulation sees when a correction is switched off."""

from __future__ import annotations

import pytest

from tests.simulated.without import SWITCHES, Switch, search

TRIED = {each.name: each for each in SWITCHES if each.name in ("newer", "listed")}


@pytest.mark.parametrize("switch", [pytest.param(TRIED["newer"], marks=pytest.mark.slow), TRIED["listed"]], ids=["newer", "listed"])
def test_simulation_without_a_correction_finds_the_fault(switch: Switch) -> None:
    result, seeds, _ = search(switch, most_seeds=3)
    assert result is not None, f"not found in {seeds} seeds"
