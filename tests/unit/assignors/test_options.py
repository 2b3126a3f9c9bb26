"""An option that an assignor does not have is refused by every one of them, with the names that it
does have.
"""

from __future__ import annotations

import pytest

from equipoise.assignors import check_settings, registry
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings

HAS = {
    "cooperative": "revocation_backoff_ms, revocations_per_round, scheduled_delay_ms",
    "high_availability": "max_standby_steps",
    "kafka_connect": "connect_protocol, connectors, scheduled_delay_ms",
    "kafka_streams": "none",
    "lag_aware": "auto_offset_reset, cross_topic, deal_after_ms, deal_gain_records, rack_lag_tolerance",
    "learner": "max_standby_steps, strict",
    "load_balanced": "load_cpu, load_disk, load_high_percent, load_low_percent, load_memory, load_throughput, max_standby_steps",
}


def test_cases_cover_assignors():
    assert sorted({name for name, _ in registry.available()}) == sorted(HAS)


@pytest.mark.parametrize("name", HAS)
def test_unknown_option_error_lists_known_ones(name: str):
    with pytest.raises(FieldError) as refused:
        check_settings(registry.latest(name), GroupSettings(options={"scheduled_dely_ms": 0, "zero": 0}))
    assert str(refused.value) == f"config.options.scheduled_dely_ms: {name} has no such option; it has {HAS[name]}"


@pytest.mark.parametrize("name", [name for name, options in HAS.items() if options != "none"])
def test_listed_options_are_known(name: str):
    """Given something that is no value for any of them, each complains of the value and not of the
    name.
    """
    for option in HAS[name].split(", "):
        with pytest.raises(FieldError, match=rf"config\.options\.{option}: 'perhaps' is ") as refused:
            check_settings(registry.latest(name), GroupSettings(options={option: "perhaps"}))
        assert "no such option" not in str(refused.value)
