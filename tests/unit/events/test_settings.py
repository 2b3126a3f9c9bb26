"""Settings have the defaults and the bounds that their design documents give them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from equipoise.events.errors import FieldError
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings


@pytest.mark.parametrize(
    ("name", "default", "least"),
    [
        ("balance_factor", 1, 1),  # KIP-441, "Parameters", as the next two
        ("acceptable_recovery_lag", 10_000, 0),
        ("num_standbys", 0, 0),
        ("probing_interval_ms", 600_000, 1),  # Apache Kafka's; KIP-441 asks for a minute at least, and less is a warning
        ("max_warmups", 2, 1),  # Apache Kafka's
        ("rack_traffic_cost", 10, 0),  # KIP-925, 4.B.III, as the next one
        ("rack_non_overlap_cost", 1, 0),
    ],
)
def test_parameters_have_the_defaults_and_the_least_values_of_their_documents(name: str, default: int, least: int) -> None:
    def settings(value: int) -> GroupSettings:
        given: dict[str, Any] = {name: value}
        return GroupSettings(**given)

    assert getattr(GroupSettings(), name) == default
    assert getattr(settings(least), name) == least
    with pytest.raises(FieldError, match=re.escape(name)):
        settings(least - 1)


def test_strategies_have_the_defaults_of_their_documents() -> None:
    """KIP-925: off unless asked for, as built; standbys by 4.C.II."""
    settings = GroupSettings()
    assert (settings.rack_aware_strategy, settings.rack_standby_strategy) == ("none", "balance")
    assert (settings.rack_standbys_apart, settings.rack_aware_tags) == (1, ())


def test_default_assignor_is_high_availability() -> None:
    """KIP-169: nothing changes for users who name no assignor."""
    assert GroupConfigured().assignor == "high_availability"
