"""A group under another behaviour version of its assignor, simulated."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from equipoise.assignors import registry
from equipoise.cli import main
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.records import Entry
from equipoise.log import open_log
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.whatif.evaluate import FACTUAL, Configuration, what_if
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


def test_former_version_is_simulated_as_it_is_beside_the_latest() -> None:
    entries = led_by("learner", 1)
    newest = registry.latest("learner").version
    found = what_if(entries, [Configuration(name="latest", behaviour_version="latest"), Configuration(name="four", settings={"max_warmups": 4})])
    assert found.factual.configuration.name == FACTUAL
    assert [found.factual.behaviour_version, *(each.behaviour_version for each in found.outcomes)] == [1, newest, newest]
    own = what_if(entries, [Configuration(name="own", behaviour_version=1), Configuration(name="recorded", behaviour_version="recorded")])
    assert {each.metrics for each in own.outcomes} == {own.factual.metrics} == {found.factual.metrics}


def test_behaviour_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="version 77 is not installed"):
        what_if(lived(), [Configuration(name="far", behaviour_version=77)])
    for wrong in (0, "newest", True):
        with pytest.raises(FieldError, match="behaviour_version"):
            Configuration(name="wrong", behaviour_version=wrong)


def test_command_simulates_another_version(tmp_path: Path) -> None:
    file = tmp_path / "group.db"
    with open_log(file, "w") as log:
        write(log, led_by("learner", 1))
    wanted = ["what-if", str(file), "--sweep", "behaviour_version=latest", "--seeds", "1"]
    text = CliRunner().invoke(main, wanted)
    assert text.exit_code == 0, text.output
    document = json.loads(CliRunner().invoke(main, [*wanted, "--json"]).stdout)
    check("what-if", document)
    (group,) = document["groups"]
    assert [each["behaviour_version"] for each in (group["factual"], *group["outcomes"])] == [1, registry.latest("learner").version]
    refused = CliRunner().invoke(main, ["what-if", str(file), "--sweep", "behaviour_version=old"])
    assert refused.exit_code == 2
    assert "behaviour_version" in refused.stderr
