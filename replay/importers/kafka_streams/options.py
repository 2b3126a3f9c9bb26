"""The settings of an import: what a dump cannot tell and somebody has to supply, and what it tells
only between the lines.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.replay.importers.kafka_streams.scan import ObservedRound
from equipoise.replay.importers.kafka_streams.source import SETTINGS, Source

DEFAULT_PROBING_INTERVAL_MS = 600_000
"""Kafka: probing.rebalance.interval.ms."""


@attrs.frozen(kw_only=True)
class ImportOptions:
    """What is not on the wire and is therefore supplied. Defaults are Kafka's own. A SOURCE
    folder's ``settings.json`` may hold any of them.
    """

    group: str | None = None
    """Application id; None: the only one in the dump."""
    acceptable_recovery_lag: int = 10_000
    max_warmups: int = 2
    num_standbys: int | None = None
    """None: inferred, see `infer`."""
    probing_interval_ms: int | None = None
    """None: inferred, see `infer`."""
    lease_margin_ms: int = 3_000
    heartbeat_interval_ms: int = 3_000
    commit_interval_ms: int = 30_000
    """Of the application; both matter to `equipoise.replay.simulation.run_kafka`, and the latter to
    what a first commit tells of a restore.
    """
    end_offsets_every_ms: int = 10_000
    """Wall time between two end-offset samples that are kept; at a generation they are always told.
    """
    assignor: str = "high_availability"
    """Whose proposals a shadow of this group computes."""
    behaviour_version: int | None = None
    """None: the newest."""
    solver: str | None = None
    """Solver that the proposals are pinned to; None: the one this build's assignor has."""


def options_of(source: Source, given: Mapping[str, Any]) -> ImportOptions:
    """Options from SOURCE/settings.json, with `given` on top.

    Raises:
        InputError: a setting is unknown or not of its type; it names settings.json, or --set for
        one that was `given`.
    """
    merged = {**source.settings(), **given}
    known = {field.name: field.type for field in attrs.fields(ImportOptions)}
    for name, value in merged.items():
        where = "--set" if name in given else SETTINGS
        if name not in known:
            raise InputError(f"{where}: unknown setting {name!r}; known are {', '.join(sorted(known))}")
        is_text = "str" in str(known[name])
        right = isinstance(value, str) if is_text else value.__class__ is int
        if not right and not (value is None and "None" in str(known[name])):
            raise InputError(f"{where}: setting {name!r} is {value!r:.40}, which is no {'text' if is_text else 'whole number'}")
    return ImportOptions(**merged)


def infer(options: ImportOptions, rounds: Sequence[ObservedRound], stateful_tasks: int) -> tuple[ImportOptions, dict[str, str]]:
    """The options with nothing left open, and setting -> how it was inferred.

    * num_standbys: copies for each stateful task in the rounds of two or more processes that
      scheduled no other round, so that none of the copies was a warm-up; in all such rounds but for
      that when there is none. The median, so that a few odd rounds do not count.
    * probing_interval_ms: how far ahead of a round its probing rebalance was scheduled, to the
      second; the median. Kafka's default when none was.
    """
    inferred: dict[str, str] = {}
    standbys, interval_ms = options.num_standbys, options.probing_interval_ms
    if standbys is None:
        shared = [each for each in rounds if each.processes > 1]
        settled = [each for each in shared if not each.next_rebalance_ms]
        standbys = statistics.median_low([each.standby_copies // stateful_tasks for each in settled or shared]) if shared and stateful_tasks else 0
        inferred["num_standbys"] = f"{standbys}: copies for each stateful task in {len(settled or shared)} rounds"
    if interval_ms is None:
        ahead_ms = [next_ms - each.at_ms for each in rounds for next_ms in each.next_rebalance_ms if next_ms > 0]
        interval_ms = max(1, round(statistics.median_low(ahead_ms) / 1_000)) * 1_000 if ahead_ms else DEFAULT_PROBING_INTERVAL_MS
        inferred["probing_interval_ms"] = f"{interval_ms}: how far ahead {len(ahead_ms)} probing rebalances were scheduled"
    return attrs.evolve(options, num_standbys=standbys, probing_interval_ms=interval_ms), inferred


def configuration(options: ImportOptions) -> GroupConfigured:
    """The group's configuration: something else leads, and `options.assignor` is who would propose.
    Nothing in `options` is left open.
    """
    assert options.num_standbys is not None, "`infer` fills it in"
    assert options.probing_interval_ms is not None, "`infer` fills it in"
    try:
        settings = GroupSettings(
            acceptable_recovery_lag=options.acceptable_recovery_lag,
            max_warmups=options.max_warmups,
            num_standbys=options.num_standbys,
            probing_interval_ms=options.probing_interval_ms,
        )
    except FieldError as error:
        raise InputError(f"{SETTINGS} or --set: {error.field.removeprefix('Knobs.')}: {error.problem}") from None
    version, solver = options.behaviour_version, options.solver
    if version is None or solver is None:
        from equipoise.assignors import registry  # a solver takes a second to load

        assignor = registry.latest(options.assignor) if version is None else registry.load(options.assignor, version)
        version, solver = assignor.version, assignor.solver if solver is None else solver
    return GroupConfigured(assignor=options.assignor, behaviour_version=version, solver=solver, led_by="external", knobs=settings)
