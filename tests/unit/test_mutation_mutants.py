"""Mutants: each of a function or property is made, compiled and put in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.events.codec import make_record
from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import Rejected
from tests.groups import configured
from tests.mutation.modules import MODULES
from tests.mutation.mutants import Module, function_named
from tests.mutation.trials import moved_lines

ROOT = Path(__file__).parents[2]
MODULE = Module("events/tasks.py")


def test_mutants_have_keys_of_their_own_and_change_something() -> None:
    mutants = MODULE.mutants
    assert len({each.key for each in mutants}) == len(mutants) > 50
    assert all(each.before != each.after for each in mutants)
    assert {"parse_task", "ranges", "_TaskTexts.__missing__"} <= {each.function for each in mutants}


def test_mutant_replaces_the_function_where_it_is_used() -> None:
    (mutant,) = [each for each in MODULE.mutants if each.function == "ranges" and each.after == "texts.append(str(None))"]
    function = function_named(mutant.module, mutant.function)
    original = function.__code__
    try:
        mutant.apply()
        assert function([TaskId(0, 3)]) == "None"
    finally:
        function.__code__ = original
    assert function([TaskId(0, 3)]) == "0_3"


def deals_by_lag() -> bool:
    machine = GroupMachine()
    machine.step(make_record("orders", 0, 0, configured("lag_aware")))
    return machine.deals_by_lag


@pytest.mark.parametrize(
    ("module", "before", "after", "call", "expected"),
    [
        ("statemachine/rejections.py", "super().__init__(code)", "super().__init__(None)", lambda: str(Rejected("code")), ("code", "None")),
        ("statemachine/rejections.py", "super().__init__(code)", "pass", lambda: str(Rejected("code", 3)), ("code", "('code', 3)")),
        (
            "statemachine/machine.py",
            "return self._assignor is not None and deals_by_lag(self._assignor)",
            "return self._assignor is not None and deals_by_lag(None)",
            deals_by_lag,
            (True, False),
        ),
    ],
)
def test_mutant_calls_what_its_function_calls(
    module: str, before: str, after: str, call: Callable[[], object], expected: tuple[object, object]
) -> None:
    """`super`, and a function of the module that has the name of the property."""
    (mutant,) = [each for each in Module(module).mutants if (each.before, each.after) == (before, after)]
    function = function_named(mutant.module, mutant.function)
    original = function.__code__
    results = [call()]
    try:
        mutant.apply()
        results.append(call())
    finally:
        function.__code__ = original
    assert tuple(results) == expected


def test_what_states_that_something_cannot_happen_has_no_mutants(tmp_path: Path) -> None:
    """An assertion, and `strict` of zip."""
    path = tmp_path / "module.py"
    path.write_text("def function(a, b):\n    assert len(a) == 2\n    return zip(a, b, strict=True)\n")
    assert {each.after for each in Module(str(path)).mutants} == {
        f"return zip({arguments}strict=True)" for arguments in ("None, b, ", "a, None, ", "b, ", "a, ")
    }


def test_lines_that_a_test_ran_move_with_the_text() -> None:
    assert moved_lines("a\nb\nc\nd\n", "a\nnew\nb\nC\nd\n") == {1: 1, 2: 3, 4: 5}


def test_modules_and_the_tests_that_judge_them_are_where_they_are_named() -> None:
    named = {*MODULES, *(test for judged in MODULES.values() for test in judged.tests)}
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []
