"""Operators that change the settings of a deployed group at once."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from equipoise.cli.configure import _Configure
from equipoise.cli.screen import Part, Screen
from equipoise.events.facts import ChangePlanned, GroupConfigured
from equipoise.hosting.changed_settings import with_settings
from equipoise.operations.live_group import AnsweredFact
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedSettings
from tests.json_schemas import check
from tests.simulated.deployment import GROUP, Deployment
from tests.simulated.faults import Fault
from tests.simulated.run import simulate

WISHES = {"max_warmups": 21, "max_warmups_per_member": 22, "rack_traffic_cost": 11, "balance_factor": 3}
LONG_S = 15.0


@attrs.frozen(kw_only=True)
class Answers(Screen):
    """Keeps the documents of a command."""

    documents: list[Any] = attrs.field(factory=list)

    def answer(self, document: Any, *parts: Part) -> None:
        if document is not None:
            self.documents.append(document)


@attrs.define
class Operator:
    """One `equipoise configure --set NAME=VALUE`. `rebases`: with --rebase; `judges`: with --judge,
    without simulated runs.
    """

    name: str
    value: int
    rebases: bool = False
    judges: bool = False
    code: int | None = None
    in_force: GroupConfigured | None = None
    screen: Answers = attrs.field(factory=lambda: Answers(json=True))

    def changed(self, before: GroupConfigured) -> GroupConfigured:
        return attrs.evolve(before, knobs=with_settings(before.knobs, [f"{self.name}={self.value}"]))

    async def work(self, settings: SimulatedSettings) -> None:
        run = _Configure(self.screen, settings, GROUP)
        while self.code is None:
            planned = None
            if self.judges:
                async with AnsweredFact(settings, GROUP) as live:
                    before = await live.configuration()
                plan = ChangePlanned(change_id=f"of-{self.name}-{before.made_from}", kind="configure", what=self.name, made_from=before.made_from)
                planned = plan, before
            self.code = await run.change(self.changed, 30, planned, rebases=self.rebases)
        async with AnsweredFact(settings, GROUP) as live:
            self.in_force = await live.configuration()


def at_once(operators: list[Operator], apart_s: float) -> Fault:
    begun: list[Deployment] = []

    def begin(deployment: Deployment, random: Random) -> float | None:
        if begun:
            return None
        begun.append(deployment)
        seat = next(iter(deployment.workers.values()))
        for number, operator in enumerate(operators):
            process = deployment._process(seat.machine, f"operator{number}", lambda error: deployment.say(f"operator ends: {error!r}"))
            settings = SimulatedSettings(made=SimulatedClients(deployment.cluster, process.name), prefix=deployment.prefix)
            deployment.later(apart_s * number, process.start, operator.work(settings))
        return LONG_S

    return Fault("operators", "test", begin)


@pytest.mark.parametrize("apart_s", [0.0, 0.03])
def test_operators_at_once_with_rebase_each_change_what_they_name(apart_s: float) -> None:
    """Each fact holds all settings: the last one took back what the others had set."""
    operators = [Operator(name, value, rebases=True, judges=name == "rack_traffic_cost") for name, value in WISHES.items()]
    simulate(1, "at_least_once", [at_once(operators, apart_s)], storm_s=4, every_s=0.5)
    assert [each.code for each in operators] == [0] * len(WISHES)
    for each in operators:
        (document,) = each.screen.documents
        check("configure", document)
        assert document["outcome"] == "in force"
    last = max((each.in_force for each in operators if each.in_force is not None), key=lambda config: config.made_from or 0)
    assert {name: getattr(last.knobs, name) for name in WISHES} == WISHES
    assert last.made_from == len(WISHES), "each change took effect once"


def test_operators_at_once_of_whom_one_is_late_is_rejected_and_says_who_was_first() -> None:
    operators = [Operator(name, value) for name, value in WISHES.items()]
    simulate(1, "at_least_once", [at_once(operators, 0.0)], storm_s=4, every_s=0.5)
    first = next(each for each in operators if each.code == 0)
    late = [each for each in operators if each.code == 1]
    assert len(late) == len(WISHES) - 1
    (won,) = first.screen.documents
    for each in late:
        (document,) = each.screen.documents
        check("configure", document)
        assert (document["outcome"], document["rejection"][:28]) == ("rejected", "it was made from settings th")
        (other,) = document["meanwhile"]
        assert "@" in other["by"]
        assert (other["offset"], [change["name"] for change in other["changes"]]) == (won["offset"], [first.name])
        assert other["at_ms"] > 0
        assert document["settings"][first.name] == first.value
        assert document["settings"][each.name] != each.value
