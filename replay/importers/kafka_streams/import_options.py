"""Settings of an import: those that the dump does not hold, and those inferred from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.replay.importers.kafka_streams.scan import ObservedRound
from equipoise.replay.importers.kafka_streams.source import SETTINGS, StreamsSource
from equipoise.replay.wording import counted

DEFAULT_PROBING_INTERVAL_MS = 600_000
"""Kafka: probing.rebalance.interval.ms."""


@attrs.frozen(kw_only=True)
class ImportOptions:
    """Settings that are not on the wire and have to be supplied. Defaults are Kafka's own. A SOURCE
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
    """The application's ``commit.interval.ms``. `equipoise.replay.simulation.run_kafka` uses it,
    and the fit of restore speeds, to read a first commit after a restore.
    """
    end_offsets_every_ms: int = 10_000
    """Wall time between two end-offset samples that are kept. A generation always has one."""
    assignor: str = "high_availability"
    """Assignor whose proposals a shadow of this group computes."""
    behaviour_version: int | None = None
    """None: the newest."""
    solver: str | None = None
    """Solver that the proposals are pinned to. None: that of this build's assignor."""


def options_of(source: StreamsSource, given: Mapping[str, Any]) -> ImportOptions:
    """Returns the options of SOURCE/settings.json, overridden by `given`.

    Raises InputError when a setting is unknown or of the wrong type; the text names settings.json,
    or --set for a given one.
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
    """Returns complete options, and setting -> how it was inferred.

    * num_standbys: the median of the copies for each stateful task, over rounds of two or more
      processes that scheduled no further round, so that no copy was a warm-up; over all rounds of
      two or more processes when there is none.
    * probing_interval_ms: the median time from a round to its scheduled probing rebalance, to the
      second; Kafka's default when none was scheduled.
    """
    inferred: dict[str, str] = {}
    standbys, interval_ms = options.num_standbys, options.probing_interval_ms
    if standbys is None:
        shared = [each for each in rounds if each.processes > 1]
        settled = [each for each in shared if not each.next_rebalance_ms]
        standbys = statistics.median_low([each.standby_copies // stateful_tasks for each in settled or shared]) if shared and stateful_tasks else 0
        inferred["num_standbys"] = f"{standbys}: copies for each stateful task in {counted(len(settled or shared), 'round')}"
    if interval_ms is None:
        ahead_ms = [next_ms - each.at_ms for each in rounds for next_ms in each.next_rebalance_ms if next_ms > 0]
        interval_ms = max(1, round(statistics.median_low(ahead_ms) / 1_000)) * 1_000 if ahead_ms else DEFAULT_PROBING_INTERVAL_MS
        inferred["probing_interval_ms"] = f"{interval_ms}: how far ahead probing rebalances were scheduled, {counted(len(ahead_ms), 'time')}"
    return attrs.evolve(options, num_standbys=standbys, probing_interval_ms=interval_ms), inferred


def configuration(options: ImportOptions) -> GroupConfigured:
    """Returns the group's configuration: led by other software, with `options.assignor` as the
    proposing assignor. `options` must be complete, as `infer` returns them. Raises InputError for a
    setting that the group cannot have.
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
        raise InputError(f"{SETTINGS} or --set: {error.name}: {error.problem}") from None
    version, solver = options.behaviour_version, options.solver
    if version is None or solver is None:
        from equipoise.assignors import registry  # a solver takes a second to load

        assignor = registry.latest(options.assignor) if version is None else registry.load(options.assignor, version)
        version, solver = assignor.version, assignor.solver if solver is None else solver
    return GroupConfigured(assignor=options.assignor, behaviour_version=version, solver=solver, led_by="external", knobs=settings)
