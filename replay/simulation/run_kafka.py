"""`simulate_kafka`: the recorded inputs in a Kafka Streams application, with its coordinator and
its threads (`equipoise.replay.simulation.kafka`), led by its own assignor or by equipoise, in
rounds.

What-if uses it for an imported group as it is, for other settings of Kafka Streams, and for an
application whose rounds equipoise decides.
"""

from __future__ import annotations

import attrs

from equipoise.assignors import check_settings, registry
from equipoise.bridge.mapping import with_own_warmups
from equipoise.events.facts import GroupConfigured
from equipoise.replay.recorded_inputs import ConfigurationChanged, Happening, ProcessEnded, ProcessStarted, RecordedInputs, TopologyChanged
from equipoise.replay.simulation.kafka import InstanceSettings, KafkaGroup, KafkaProtocol
from equipoise.replay.simulation.kafka.streams_rounds import SimulatedRounds
from equipoise.replay.simulation.measures import ProcessLifetime
from equipoise.replay.simulation.run import (
    PROGRESS_EVERY_MS,
    Progress,
    Simulation,
    SimulationResult,
    configuration,
    log_id_of,
    override,
    result_of,
)

ASSIGNOR = "kafka_streams"
LEADS_ROUNDS = "high_availability"
"""The assignor of an application that asks for rounds, if none is named (docs/streams.md)."""
FIRST_BY_MS = 100
"""The group's first leader began to join this much before the others."""
TOGETHER_MS = 30_000
"""With `rounds`, what happens after a longer pause is moved by a random part of a heartbeat
interval: where in it something happens decides how many rebalances it takes. The recorded place
says nothing of a group whose rebalances are at other times.
"""
MOST_SESSION_MS = 45_000
"""Kafka's default. Members of an application that asked for rounds do not say theirs."""


def kafka_configuration(recorded: GroupConfigured, simulation: Simulation) -> GroupConfigured:
    """Returns the recorded configuration with the simulation's settings, led by Kafka Streams.
    Raises as `equipoise.replay.simulation.run.configuration` does.
    """
    assignor = registry.latest(ASSIGNOR)
    settings = override(recorded.knobs, simulation.overrides)
    check_settings(assignor, settings)
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, led_by="external", knobs=settings)


def rounds_configuration(recorded: GroupConfigured, simulation: Simulation) -> GroupConfigured:
    """Returns the recorded configuration with the simulation's assignor and settings, for an
    application that asks for rounds. As there, Kafka's default of ``max.warmup.replicas`` counts as
    not chosen. Raises as `equipoise.replay.simulation.run.configuration` does.
    """
    named = simulation.assignor or (LEADS_ROUNDS if recorded.assignor == ASSIGNOR else recorded.assignor)
    configured = attrs.evolve(configuration(recorded, attrs.evolve(simulation, assignor=named)), led_by="external")
    return configured if "max_warmups" in simulation.overrides else attrs.evolve(configured, knobs=with_own_warmups(configured.knobs))


def simulate_kafka(
    inputs: RecordedInputs,
    simulation: Simulation,
    *,
    rounds: bool = False,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulates a Kafka Streams application on the recorded `inputs` and returns what it cost. Of
    `simulation`, `overrides`, `seed`, `restore` and `start_ms` are used, and `assignor` with
    `rounds`.

    `rounds`: equipoise decides each rebalance, instead of Kafka's assignor. No log is written.
    Raises as `kafka_configuration` or `rounds_configuration` does, and GroupHalted.
    """
    start, end_ms = inputs.start, inputs.end_ms
    configured = (rounds_configuration if rounds else kafka_configuration)(start.config, simulation)
    log_id = log_id_of(inputs, attrs.evolve(simulation, assignor=configured.assignor), configured)
    asked = SimulatedRounds(start.group, log_id, configured, start.at_ms) if rounds else None
    given = protocol_of(inputs, configured)
    group = KafkaGroup(
        settings=configured.knobs,
        topology=start.topology,
        growth={key: curve.filled() for key, curve in start.curves.items()},
        protocol=given,
        seed=simulation.seed,
        start_ms=start.at_ms,
        rounds=asked,
    )
    shift_ms, last_ms = 0, start.at_ms
    for happening in inputs.happenings:
        if rounds and happening.at_ms - last_ms > TOGETHER_MS:
            shift_ms = group.engine.between(0, given.heartbeat_interval_ms)
        last_ms = happening.at_ms
        group.engine.at(happening.at_ms + shift_ms, _happens, group, happening, simulation, inputs.first_leader)
    for now_ms in range(start.at_ms, end_ms, PROGRESS_EVERY_MS):
        group.engine.run_until(min(end_ms, now_ms + PROGRESS_EVERY_MS))
        if progress is not None:
            progress(group.engine.now_ms - start.at_ms, end_ms - start.at_ms)
    return result_of(
        inputs,
        group.world,
        group.notes,
        tuple(
            ProcessLifetime(member_id=each.member_id, capacity=each.settings.threads, start_ms=each.started_ms, end_ms=each.ended_ms)
            for each in group.instances
        ),
        configured=configured,
        log_id=log_id,
        seed=simulation.seed,
        facts=0 if asked is None else asked.facts,
        decisions=0 if asked is None else asked.decisions,
    )


def protocol_of(inputs: RecordedInputs, configured: GroupConfigured) -> KafkaProtocol:
    """Returns the timing of this group's rebalances, where the import supplied it; else Kafka's
    defaults.
    """
    known = {name: inputs.settings[name] for name in ("heartbeat_interval_ms", "commit_interval_ms") if name in inputs.settings}
    return KafkaProtocol(initial_delay_ms=configured.knobs.initial_delay_ms, **known)


def _happens(group: KafkaGroup, happening: Happening, simulation: Simulation, first_leader: str) -> None:
    if isinstance(happening, ProcessStarted):
        leads = happening.identity == first_leader and group.last(happening.member_id) is None
        group.start(
            InstanceSettings(
                member_id=happening.member_id,
                identity=happening.identity,
                threads=happening.capacity,
                rack=happening.rack,
                tags=dict(happening.tags),
                session_timeout_ms=min(happening.session_timeout_ms, MOST_SESSION_MS) if group.asks else happening.session_timeout_ms,
                restore=simulation.restore,
                start_ms=simulation.start_ms - (FIRST_BY_MS if leads else 0),
            ),
            state_kept=happening.state_kept,
        )
    elif isinstance(happening, ProcessEnded):
        instance = group.last(happening.member_id)
        if instance is not None and instance.alive:
            if happening.how in ("killed", "witnessed"):
                instance.kill()
            elif happening.how == "silent":
                instance.close_silently()
            else:
                instance.leave(None if happening.done_ms is None else happening.done_ms - happening.at_ms)
    elif isinstance(happening, ConfigurationChanged):
        group.configure(rounds_configuration(happening.config, simulation) if group.asks else kafka_configuration(happening.config, simulation))
    elif isinstance(happening, TopologyChanged):
        group.declare(happening.topology)
    else:
        group.place(happening.observed.racks)
