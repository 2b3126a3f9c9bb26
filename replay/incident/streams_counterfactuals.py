"""Tells what incidents of a Kafka Streams application (classic protocol) would have cost under
other settings, or with equipoise as the leader: its recorded history imported, simulated as it was,
and then otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from equipoise.assignors.common.carrier import KAFKA_STREAMS
from equipoise.replay.importers.kafka_streams.import_options import options_of
from equipoise.replay.importers.kafka_streams.importer import import_history
from equipoise.replay.importers.kafka_streams.source import StreamsSource
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.counterfactuals import GAIN, SEEDS, SHORT_SESSION_MS, Counterfactual, Otherwise
from equipoise.replay.incident.values import Incident
from equipoise.replay.recorded_inputs import ProcessEnded, ProcessStarted, RecordedInputs, Window
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.whatif.evaluate import FACTUAL, Configuration, run_configuration
from equipoise.replay.whatif.recorded_costs import read_recording

_TOTAL = "unavailable_task_seconds"
_AFTER_MS = 60_000


@attrs.frozen
class _Change:
    """`change`: as it is told. `session_timeout_ms`: of all processes, None: their own."""

    change: str
    configuration: Configuration
    session_timeout_ms: int | None = None


def streams_counterfactuals(source: StreamsSource, history: GroupHistory, found: Sequence[Incident]) -> dict[Incident, Counterfactual]:
    """Simulates the whole history once for each change and seed. An incident where nothing stood
    still, in the group and in the simulation, is left out. Raises as `import_history` does.
    """
    sink = MemorySink()
    import_history(source, sink, options=options_of(source, {"group": history.group}))
    recording = read_recording(sink.entries, group=history.group)
    begins = [each.begin_ms for each in found]
    ends = [min([later for later in begins if later > each.begin_ms], default=each.end_ms + _AFTER_MS) for each in found]
    windows = tuple(Window(label="", start_ms=begin_ms, end_ms=end_ms, measured=None) for begin_ms, end_ms in zip(begins, ends, strict=True))
    inputs = attrs.evolve(recording.inputs, windows=windows)

    def costs_ms(change: _Change) -> list[int]:
        chosen = inputs if change.session_timeout_ms is None else _with_session(inputs, change.session_timeout_ms)
        runs = [run_configuration(chosen, change.configuration, seed=seed, speed=recording.fit.records_per_s).windows for seed in SEEDS]
        return [round(sum(run[number].totals[_TOTAL] for run in runs) * 1000 / len(runs)) for number in range(len(windows))]

    was = costs_ms(_Change("", Configuration(name=FACTUAL)))
    tried = [(each.change, costs_ms(each)) for each in _changes(inputs)]
    answers: dict[Incident, Counterfactual] = {}
    for number, each in enumerate(found):
        if not each.chain or not (each.unavailable_ms or was[number]):
            continue
        better = [Otherwise(change=change, unavailable_ms=costs[number]) for change, costs in tried if costs[number] <= (1 - GAIN) * was[number]]
        answers[each] = Counterfactual(
            measured_ms=_measured_ms(history, each), as_it_was_ms=was[number], otherwise=tuple(sorted(better, key=lambda one: one.unavailable_ms))
        )
    return answers


def _measured_ms(history: GroupHistory, incident: Incident) -> int:
    """Returns what an incident cost, summed over tasks: a task stands still while one of its
    partitions does.
    """
    tasks: dict[str, dict[int, int]] = {}
    for gap in incident.gaps:
        group = history.state_at(gap.until_ms) or history.state_at(gap.from_ms)
        assert group is not None, "a gap has a group"
        task = next((work for work in group.owners if gap.partition in group.partitions_of(work)), gap.partition)
        spans = tasks.setdefault(task, {})
        spans[gap.from_ms] = max(spans.get(gap.from_ms, 0), gap.unavailable_ms)
    return sum(sum(spans.values()) for spans in tasks.values())


def _with_session(inputs: RecordedInputs, session_timeout_ms: int) -> RecordedInputs:
    changed = (attrs.evolve(each, session_timeout_ms=session_timeout_ms) if isinstance(each, ProcessStarted) else each for each in inputs.happenings)
    return attrs.evolve(inputs, happenings=tuple(changed))


def _changes(inputs: RecordedInputs) -> list[_Change]:
    own = inputs.start.config.knobs
    found = []
    if max((each.session_timeout_ms for each in inputs.happenings if isinstance(each, ProcessStarted)), default=0) > SHORT_SESSION_MS:
        found.append(_Change(f"session.timeout.ms={SHORT_SESSION_MS}", Configuration(name="session"), SHORT_SESSION_MS))
    if any(isinstance(each, ProcessEnded) and each.how == "silent" for each in inputs.happenings):
        found.append(_Change("KafkaStreams.close(CloseOptions.leaveGroup(true))", Configuration(name="leave", announce_closes=True)))
    standbys = Configuration(name="standbys", settings={"num_standbys": own.num_standbys + 1})
    found.append(_Change(f"num.standby.replicas={own.num_standbys + 1}", standbys))
    led = Configuration(name="led", assignor="high_availability", carrier=KAFKA_STREAMS.name)
    found.append(_Change("equipoise as the leader of its rounds (docs/streams.md)", led))
    return found
