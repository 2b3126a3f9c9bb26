"""Another behaviour version is asked each question of a log: it differs where its plans do, and one
that decides the same differs nowhere, whatever it remembers.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from equipoise.assignors import AssignmentProblem, Assignor, DelegatingAssignor, Plan, registry
from equipoise.cli import main
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.records import DecisionRecord, Entry
from equipoise.log import open_log
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.timelines import build_timeline
from equipoise.replay.whatif.drift import Drift, difference
from equipoise.replay.whatif.evaluate import FACTUAL, Configuration, what_if
from equipoise.replay.whatif.recorded_costs import read_recording
from tests.json_schemas import check
from tests.unit.replay.lived import START_MS, TOPOLOGY, lived, write


@functools.cache
def led_by(name: str, version: int, seed: int = 4) -> tuple[Entry, ...]:
    """A group of five members of which one dies and one joins."""
    assignor = registry.load(name, version)
    sink = MemorySink()
    config = ClusterConfig(
        group="orders",
        log_id="led",
        configured=attrs.evolve(GroupConfigured(), assignor=name, behaviour_version=version, solver=assignor.solver),
        topology=TOPOLOGY,
        growth={("store", partition): steady(records=200_000, records_per_s=50, start_ms=START_MS) for partition in range(12)},
        start_ms=START_MS,
    )
    cluster = SimulatedCluster(config, seed=seed, sink=sink)
    cluster.start_worker()
    for number in range(1, 5):
        cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=number))
    cluster.run_for(60_000)
    cluster.start_process(ProcessSettings(member_id="m5", capacity=2))
    cluster.run_for(60_000)
    cluster.last_process("m2").kill()
    cluster.run_for(90_000)
    return tuple(sink.entries)


def drift(entries: tuple[Entry, ...], behaviour_version: int | str = "latest") -> Drift:
    (found,) = read_recording(entries, behaviour_versions=[behaviour_version]).drifts
    return found


class Renamed(DelegatingAssignor):
    """Decides as the one that it wraps, under another version."""

    @property
    def version(self) -> int:
        return self.wrapped.version + 1


def with_one_more(monkeypatch: pytest.MonkeyPatch, assignor: Assignor) -> None:
    there = {**registry.available(), (assignor.name, assignor.version): assignor}
    monkeypatch.setattr(registry, "available", lambda: there)


@pytest.mark.parametrize("name", [each.name for each in registry.NEWEST])
def test_version_that_decides_the_same_differs_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = registry.latest(name)
    entries = led_by(name, newest.version)
    same = drift(entries)
    assert (same.differing, same.offset, same.difference) == (0, None, None)
    with_one_more(monkeypatch, Renamed(newest))
    renamed = drift(entries)
    assert renamed == same
    assert renamed.rounds > 1


def test_version_that_decides_otherwise_differs_where_its_plans_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its third answer on, two members have each other's tasks."""
    newest = registry.latest("high_availability")
    entries = led_by(newest.name, newest.version)
    asked: list[AssignmentProblem] = []

    class Other(Renamed):
        def assign(self, problem: AssignmentProblem) -> Plan:
            plan = self.wrapped.assign(problem)
            asked.append(problem)
            if len(asked) < 3:
                return plan
            (first, its), *_, (last, others) = plan.members.items()
            swapped = {first: attrs.evolve(its, active=others.active), last: attrs.evolve(others, active=its.active)}
            return attrs.evolve(plan, members={**plan.members, **swapped})

    with_one_more(monkeypatch, Other(newest))
    found = drift(entries)
    assert len(asked) == found.rounds > 3
    assert found.differing == found.rounds - 2
    assert found.failed == 0
    assert found.offset is not None
    assert found.difference is not None
    assert " runs on " in found.difference
    assert found.append_ms == next(each.append_ms for each in entries if not isinstance(each, DecisionRecord) and each.offset == found.offset)  # type: ignore[union-attr] # no UnreadRecord


def test_version_that_cannot_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = registry.latest("high_availability")

    class Broken(Renamed):
        def assign(self, problem: AssignmentProblem) -> Plan:
            raise ZeroDivisionError("no\nmembers of that kind")

    with_one_more(monkeypatch, Broken(newest))
    found = drift(led_by(newest.name, newest.version))
    assert found.failed == found.differing == found.rounds > 1
    assert found.difference == "it cannot answer: no members of that kind"


def test_former_version_is_simulated_as_it_is_and_compared_with_the_latest() -> None:
    entries = led_by("learner", 1)
    newest = registry.latest("learner").version
    found = what_if(entries, [Configuration(name="latest", behaviour_version="latest"), Configuration(name="four", settings={"max_warmups": 4})])
    assert found.factual.configuration.name == FACTUAL
    assert [found.factual.behaviour_version, *(each.behaviour_version for each in found.outcomes)] == [1, newest, newest]
    (compared,) = found.drifts
    assert compared == drift(entries)
    assert compared.differing > 0
    own = what_if(entries, [Configuration(name="own", behaviour_version=1), Configuration(name="recorded", behaviour_version="recorded")])
    assert {each.metrics for each in own.outcomes} == {own.factual.metrics} == {found.factual.metrics}
    assert [each.behaviour_version for each in own.drifts] == [1]
    assert own.drifts[0].differing == 0


def test_behaviour_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="version 77 is not installed"):
        what_if(lived(), [Configuration(name="far", behaviour_version=77)])
    for wrong in (0, "newest", True):
        with pytest.raises(FieldError, match="behaviour_version"):
            Configuration(name="wrong", behaviour_version=wrong)


def test_difference_is_of_places_and_movements_alone() -> None:
    plan = read_plan()
    assert difference(plan, attrs.evolve(plan, reasons={}, unique=not plan.unique, imbalance_now=99)) is None
    assert plan.movements
    first = plan.movements[0]
    told = difference(plan, attrs.evolve(plan, movements=plan.movements[1:]))
    assert told == f"{first.task} does not move to {first.destination} ({first.state.value})"


def read_plan() -> Plan:
    """A plan with movements."""
    plans: list[Plan] = []
    newest = registry.latest("high_availability")

    class Kept(DelegatingAssignor):
        def assign(self, problem: AssignmentProblem) -> Plan:
            plans.append(self.wrapped.assign(problem))
            return plans[-1]

    build_timeline(lived(), load=lambda *_: Kept(newest))
    return next(plan for plan in plans if plan.movements)


def test_command_shows_what_another_version_decides(tmp_path: Path) -> None:
    file = tmp_path / "group.db"
    with open_log(file, "w") as log:
        write(log, led_by("learner", 1))
    wanted = ["what-if", str(file), "--sweep", "behaviour_version=latest", "--seeds", "1"]
    text = CliRunner().invoke(main, wanted)
    assert text.exit_code == 0, text.output
    assert "rounds of the log decided otherwise; the first at offset " in text.stdout
    document = json.loads(CliRunner().invoke(main, [*wanted, "--json"]).stdout)
    check("what-if", document)
    (group,) = document["groups"]
    assert group["drifts"] == [drift(led_by("learner", 1)).as_json()]
    assert [each["behaviour_version"] for each in (group["factual"], *group["outcomes"])] == [1, registry.latest("learner").version]
    refused = CliRunner().invoke(main, ["what-if", str(file), "--sweep", "behaviour_version=old"])
    assert refused.exit_code == 2
    assert "behaviour_version" in refused.stderr
