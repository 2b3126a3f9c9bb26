"""`what_if`: one pass over the log, the factual configuration beside the others, its distance from
the recording, and errors before any simulation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, Plan, registry
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured, LogOpened, TopologyDeclared
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.recorded_inputs import ProcessEnded
from equipoise.replay.whatif.evaluate import FACTUAL, Configuration, Outcome, WhatIf, what_if, what_if_recorded
from equipoise.replay.whatif.recorded_costs import METRICS, Metrics, read_recording
from tests.unit.replay.lived import END_MS, START_MS, lived

FOUR = Configuration(name="four", settings={"max_warmups": 4, "max_warmups_per_member": 4})
STANDBY = Configuration(name="standby", settings={"num_standbys": 1})


def metrics(outcome: Outcome) -> Metrics:
    assert outcome.metrics is not None, outcome.error
    return outcome.metrics


@functools.cache
def answer() -> WhatIf:
    return what_if(lived(), [FOUR, STANDBY, Configuration(name="learner", assignor="learner")])


def test_what_if_factual_configuration_is_near_the_recording() -> None:
    found = answer()
    assert found.factual.configuration.name == FACTUAL
    assert found.metrics_source == "log"
    deviations = {each.metric: each for each in found.fidelity}
    assert list(deviations) == list(METRICS)
    for metric in ("unavailable_task_seconds", "rebalances", "moves"):
        each = deviations[metric]
        assert each.recorded
        assert each.error is not None
        assert abs(each.error) <= 0.2, each
        assert (each.low or 0) <= (each.simulated or 0) <= (each.high or 0)
    assert deviations["records_restored_before_running"].error is None  # a log does not tell


def test_what_if_costs_follow_the_settings() -> None:
    found = answer()
    four, standby, learner = found.outcomes
    assert [each.configuration.name for each in found.outcomes] == ["four", "standby", "learner"]
    assert four.settings == attrs.evolve(found.factual.settings, max_warmups=4, max_warmups_per_member=4)
    assert learner.assignor == "learner"
    factual = metrics(found.factual)
    assert metrics(standby).unavailable_task_seconds < factual.unavailable_task_seconds
    assert (metrics(standby).records_restored or 0) > 1.5 * (factual.records_restored or 0) > 0
    assert metrics(four).rebalances < factual.rebalances


def test_what_if_reads_the_log_once() -> None:
    taken = 0

    def once() -> Iterator[Entry]:
        nonlocal taken
        for entry in lived():
            taken += 1
            yield entry

    entries = once()
    found = what_if(entries, [FOUR])
    assert taken == len(list(lived()))
    assert next(entries, None) is None
    assert found.outcomes == answer().outcomes[:1]


def test_whatif_recording_answers_again_without_reading() -> None:
    recording = read_recording(lived())
    assert what_if_recorded(recording, [STANDBY]).outcomes == answer().outcomes[1:2]
    faster = what_if_recorded(recording, [], restore_records_per_s=10 * recording.fit.records_per_s)
    assert faster.restore_basis == "given"
    assert metrics(faster.factual).unavailable_task_seconds < metrics(answer().factual).unavailable_task_seconds


def test_what_if_seeds_are_runs_and_progress_ends() -> None:
    told: list[tuple[int, int]] = []
    found = what_if(lived(), [FOUR], seeds=(3, 4), progress=lambda done, total: told.append((done, total)))
    assert [len(each.runs) for each in (found.factual, *found.outcomes)] == [2, 2]
    assert metrics(found.outcomes[0]).moves == sum(run.moves for run in found.outcomes[0].runs) / 2
    span_ms = END_MS - START_MS
    assert abs(found.span_ms - span_ms) < 1_000
    assert told[-1] == (8 * found.span_ms, 8 * found.span_ms)  # as it is, the same at both ends of the restore speed, and four; each with two seeds
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("configurations", "error", "told"),
    [
        ([Configuration(name="a", settings={"max_warmup": 1})], InputError, "setting 'max_warmup'"),
        ([Configuration(name="a", settings={"max_warmups": 0})], FieldError, "max_warmups"),
        ([Configuration(name="a", assignor="nobody")], InputError, "nobody"),
        ([FOUR, FOUR], InputError, "two of that name"),
        ([Configuration(name=FACTUAL)], InputError, "two of that name"),
    ],
)
def test_whatif_bad_configuration_is_refused_before_any_simulation(configurations: list[Configuration], error: type[Exception], told: str) -> None:
    simulated: list[int] = []
    with pytest.raises(error, match=told):
        what_if(lived(), configurations, progress=lambda done, total: simulated.append(done))
    assert not simulated


def test_what_if_members_of_equipoise_have_no_other_carrier() -> None:
    with pytest.raises(InputError, match=r"carrier kafka_streams: the group's members embed equipoise"):
        what_if(lived(), [Configuration(name="rounds", carrier="kafka_streams")])
    with pytest.raises(FieldError, match=r"carrier"):
        Configuration(name="no", carrier="pigeons")


def test_what_if_failing_configuration_has_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.latest("learner")

    class BrokenAssignor(DelegatingAssignor):
        def assign(self, problem: AssignmentProblem) -> Plan:
            return attrs.evolve(self.wrapped.assign(problem), members={})

    there = {**registry.available(), ("learner", real.version): BrokenAssignor(real)}
    monkeypatch.setattr(registry, "available", lambda: there)
    found = what_if(lived(), [Configuration(name="broken", assignor="learner"), FOUR])
    broken, four = found.outcomes
    assert "does not hold" in broken.error
    assert broken.metrics is None
    assert not broken.runs
    assert four == answer().outcomes[0]


def test_what_if_many_groups_need_name() -> None:
    two: list[Entry] = []
    for entry in lived():
        two.append(entry)
        if isinstance(entry, FactRecord) and isinstance(entry.event, GroupConfigured):
            two.append(attrs.evolve(entry, group="other"))
    with pytest.raises(InputError, match="--group"):
        what_if(two)
    group = next(entry.group for entry in lived() if isinstance(entry, FactRecord) and not isinstance(entry.event, LogOpened))
    alone = what_if(two, group=group)
    assert alone.factual == answer().factual
    with pytest.raises(InputError, match="no fact of group 'nobody'"):
        what_if(two, group="nobody")


def test_whatif_of_a_momentary_log_is_refused() -> None:
    start = [entry for entry in lived() if isinstance(entry, FactRecord) and entry.offset <= 2]
    assert isinstance(start[-1].event, TopologyDeclared)
    with pytest.raises(InputError, match="spans 0 ms; there is nothing to play"):
        what_if(start)


def test_equal_arguments_give_equal_answers() -> None:
    assert what_if(lived(), [FOUR]).as_json() == what_if(lived(), [FOUR]).as_json()


def test_recorded_closes_stay_without_announce_closes() -> None:
    as_it_was = read_recorded_inputs(lived(), announce_closes=None)
    assert [each.how for each in as_it_was.happenings if isinstance(each, ProcessEnded)] == ["killed"]
    assert as_it_was.with_closes(None) is as_it_was
    assert not any(isinstance(entry, DecisionRecord) for entry in as_it_was.happenings)
