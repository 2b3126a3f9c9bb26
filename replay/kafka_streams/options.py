"""What a dump cannot tell and somebody has to supply: the settings of an import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from events.errors import FieldError, InputError
from events.facts import GroupConfigured
from events.knobs import Knobs
from replay.kafka_streams.source import SETTINGS, Source


@attrs.frozen(kw_only=True)
class ImportOptions:
    """What is not on the wire and is therefore supplied. Defaults are Kafka's own. A SOURCE folder's ``settings.json`` may hold any of them."""

    group: str | None = None
    """Application id; None: the only one in the dump."""
    acceptable_recovery_lag: int = 10_000
    max_warmups: int = 2
    num_standbys: int = 0
    probing_interval_ms: int = 600_000
    lease_margin_ms: int = 3_000
    end_offsets_every_ms: int = 10_000
    """Wall time between two end-offset samples that are kept; at a generation they are always told."""
    assignor: str = "high_availability"
    """Whose proposals a shadow of this group computes."""
    behaviour_version: int = 1
    solver: str | None = None
    """Solver that the proposals are pinned to; None: the one this build's assignor has."""


def options_of(source: Source, given: Mapping[str, Any]) -> ImportOptions:
    """Options from SOURCE/settings.json, with `given` on top.

    Raises:
        InputError: a setting is unknown or not of its type.
    """
    merged = {**source.settings(), **given}
    known = {field.name: field.type for field in attrs.fields(ImportOptions)}
    for name, value in merged.items():
        if name not in known:
            raise InputError(f"{SETTINGS}: unknown setting {name!r}; known are {', '.join(sorted(known))}")
        right = isinstance(value, str) if "str" in str(known[name]) else value.__class__ is int
        if not right and not (value is None and "None" in str(known[name])):
            raise InputError(f"{SETTINGS}: setting {name!r} is {value!r:.40}, which is no {known[name]}")
    return ImportOptions(**merged)


def configuration(options: ImportOptions) -> GroupConfigured:
    """The group's configuration: something else leads, and `options.assignor` is who would propose."""
    try:
        knobs = Knobs(
            acceptable_recovery_lag=options.acceptable_recovery_lag,
            max_warmups=options.max_warmups,
            num_standbys=options.num_standbys,
            probing_interval_ms=options.probing_interval_ms,
        )
    except FieldError as error:
        raise InputError(f"{SETTINGS} or options: {error}") from None
    solver = options.solver
    if solver is None:
        from assignors import registry  # a solver takes a second to load

        solver = registry.load(options.assignor, options.behaviour_version).solver
    return GroupConfigured(assignor=options.assignor, behaviour_version=options.behaviour_version, solver=solver, led_by="external", knobs=knobs)
