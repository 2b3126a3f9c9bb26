"""A third-party assignor, as in docs/assignors.md: installed as a package with an entry point, it
keeps the contract and leads groups. Each check of the contract finds its kind of defect."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import attrs
import pytest
from hypothesis import Phase, settings

from equipoise.assignors import AssignmentProblem, DelegatingAssignor, Plan, registry
from equipoise.assignors.high_availability import HighAvailability
from equipoise.testing import CONTRACT, Check, Subject, contract
from tests.support.scenarios import run_text

PAGE = Path(__file__).parents[2] / "docs" / "assignors.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def stay_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Installs the page's package on Python's path, as pip does."""
    (tmp_path / "stay_put.py").write_text(next(block for block in blocks("python") if "class StayPut" in block))
    entry_point = next(block for block in blocks("toml") if "stay_put" in block).splitlines()[1].replace('"', "")
    metadata = tmp_path / "stay_put-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stay-put\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{entry_point}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry.available.cache_clear()
    yield importlib.import_module("stay_put")
    sys.modules.pop("stay_put", None)
    registry.available.cache_clear()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_page_assignor_keeps_the_contract(stay_put: ModuleType, check: Check):
    check(stay_put.StayPut())


LIFE = """
group assignor=stay_put
tasks stateful=(0_0..3)
----

join m1
ack m1
join m2
ack m2
leave-intent m1
ack m1
----
"""


def test_third_party_assignor_leads_a_group_by_its_name(stay_put: ModuleType):
    outcome = run_text(LIFE, "x.txt")
    assert not outcome.disagreements
    last = outcome.text.strip().splitlines()[-2:]
    assert last == ["m1 gen=3 STABLE active=() released", "m2 gen=3 STABLE active=(0_0..3)"]


def test_page_names_every_check():
    section = PAGE.read_text(encoding="utf-8").partition("## Write your own")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [check.__name__ for check in CONTRACT]


# Teeth


class Defective(DelegatingAssignor):
    """high_availability with a defect."""

    def __init__(self) -> None:
        super().__init__(HighAvailability())


class Nameless(Defective):
    @property
    def version(self) -> int:
        return 0


class GivesTwice(Defective):
    """A task without an owner goes to every member."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = super().assign(problem)
        owned = {task for member in problem.members for task in member.active}
        free = [task for part in plan.members.values() for task in part.active if task not in owned]
        return attrs.evolve(
            plan, members={name: attrs.evolve(part, active=tuple(sorted({*part.active, *free[:1]}))) for name, part in plan.members.items()}
        )


class BreaksItsWord(Defective):
    """It exceeds the warm-up limit that it guarantees."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        return super().assign(attrs.evolve(problem, settings=attrs.evolve(problem.settings, max_warmups=1_000, max_warmups_per_member=1_000)))


class Remembers(Defective):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def assign(self, problem: AssignmentProblem) -> Plan:
        self.asked += 1
        return attrs.evolve(super().assign(problem), imbalance_now=self.asked)


class MindsTheOrder(Defective):
    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = super().assign(problem)
        return attrs.evolve(plan, unique=plan.unique and problem.members[0].id == min(plan.members))


class MindsNames(Defective):
    """Members whose name ends with an even digit cost more."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = super().assign(problem)
        more = sum(len(tasks) for name, tasks in plan.target.items() if name[-1] in "02468")
        return attrs.evolve(plan, cost=attrs.evolve(plan.cost, restore_records=plan.cost.restore_records + more))


class NeverContent(Defective):
    def assign(self, problem: AssignmentProblem) -> Plan:
        return attrs.evolve(super().assign(problem), probing=True)


class Nervous(Defective):
    """It drops the standbys of a settled group while some lag is odd."""

    def assign(self, problem: AssignmentProblem) -> Plan:
        plan = super().assign(problem)
        lags = any(isinstance(lag, int) and lag % 2 for member in problem.members for lag in member.lags.values())
        if not lags or plan.movements:
            return plan
        return attrs.evolve(plan, members={name: attrs.evolve(part, standby=()) for name, part in plan.members.items()})


class Hashes(Defective):
    def assign(self, problem: AssignmentProblem) -> Plan:
        return attrs.evolve(super().assign(problem), imbalance_now=hash("m0") % 1_000)


@pytest.mark.parametrize(
    ("defective", "check"),
    [
        (Nameless, contract.is_named),
        (GivesTwice, contract.plans_hold),
        (BreaksItsWord, contract.plans_hold),
        (Remembers, contract.has_no_memory),
        (MindsTheOrder, contract.order_plays_no_part),
        (MindsNames, contract.names_play_no_part),
        (NeverContent, contract.a_group_that_obeys_settles),
        (BreaksItsWord, contract.a_group_that_obeys_settles),
        (Nervous, contract.noise_moves_nothing),
        pytest.param(Hashes, contract.hash_seeds_play_no_part, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.__name__,
)
def test_check_finds_its_defect(defective: type[Defective], check: Check):
    hurried = settings(phases=[Phase.generate], database=None, max_examples=200, derandomize=True)  # no search for the smallest counterexample
    with pytest.raises(AssertionError):
        check(Subject(assignor=defective(), settings=hurried))
