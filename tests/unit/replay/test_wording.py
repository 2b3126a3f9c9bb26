"""Wording: every reason is a clause with its numbers, in singular and plural; an unknown code is
printed as it is.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from equipoise import assignors, statemachine
from equipoise.assignors import REASONS
from equipoise.events.decisions import EventRejected, MemberWarned
from equipoise.replay import history, wording
from equipoise.replay.importers.kafka_streams import scan
from equipoise.replay.wording import MACHINE_REASONS, cause_text, counted, reason_text
from equipoise.statemachine import step_context
from equipoise.statemachine.rejections import REJECTIONS, rejection_text

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CODES = sorted({*REASONS, *MACHINE_REASONS})


@pytest.mark.parametrize("code", CODES)
def test_reason_text_is_a_clause(code: str) -> None:
    for records in (None, 0, 1, 2, 20_001):
        for source in (None, "m1"):
            text = reason_text(code, source=source, destination="m2", lag_records=records)
            assert "{" not in text
            assert not text.endswith(".")
            assert "None" not in text
            assert not re.search(r"\b1 records\b|\b(?:0|2|20,001) record\b", text)


def test_reason_text_includes_the_lag() -> None:
    telling = [code for code in CODES if "1 record" in reason_text(code, destination="m2", lag_records=1)]
    cold = ["unowned_cold", *(f"unowned_cold_{kind}" for kind in ("balance", "equal", "near", "nearest", "queue"))]
    assert telling == ["lent", "next_probing", "ready", "ready_in_time", "stand_in", *cold, "warming"]
    assert reason_text("warming", destination="m2", lag_records=20_001) == "m2 restores 20,001 records"
    assert reason_text("ready", destination="m2") == "m2 is caught up (an unknown number of records behind)"


def test_reason_text_of_unknown_code_is_the_code() -> None:
    assert reason_text("their {own}") == "their {own}"


def test_reason_code_has_one_text() -> None:
    assert not REASONS.keys() & MACHINE_REASONS.keys()


def test_counts() -> None:
    assert [counted(number, "task") for number in (0, 1, 1_204)] == ["0 tasks", "1 task", "1,204 tasks"]
    assert counted(2, "stretch", "stretches") == "2 stretches"


def code_texts() -> dict[str, set[str]]:
    """Returns the codes that have a text, by the name of the call that takes them."""
    reasons = {*REASONS, *MACHINE_REASONS}
    ends = ("cancel", "_never_told", "drop_eager_regrant", "_stalled", "_end", "Move.reason", "Reason.code")
    refusals = {call: set(REJECTIONS) for call in ("Rejected", "_reject")}
    return {**dict.fromkeys(ends, reasons), **refusals, "causes.add": set(wording.CAUSES)}


def codes_in(path: Path) -> set[tuple[str, str]]:
    """Returns (call, code) for every literal code in a module's calls."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "add" and ast.unparse(node.func).endswith("causes.add"):
            name = "causes.add"
        arguments = [(name, each) for each in node.args] + [(f"{name}.{each.arg}", each.value) for each in node.keywords]
        for call, argument in arguments:
            literals = [each.value for each in ast.walk(argument) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            found |= {(call, literal) for literal in literals if call in code_texts()}
    return found


SOURCES = [path for package in (statemachine, assignors) for path in sorted(Path(package.__path__[0]).rglob("*.py"))]


def test_literal_codes_have_a_text() -> None:
    found = {each for path in SOURCES for each in codes_in(path)}
    assert {call for call, _ in found} == set(code_texts()), "a call in code_texts is not there any more"
    assert {(call, code) for call, code in found if code not in code_texts()[call]} == set()


def test_texts_are_of_codes_that_exist() -> None:
    """A text whose code is never produced is unreachable."""
    constants = {
        node.value
        for path in (*SOURCES, Path(history.__file__), Path(scan.__file__))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    defined = {*wording.CAUSES, *MACHINE_REASONS, *wording.WARNING_TEXTS}
    assert defined - constants == set()


def test_codes_in_golden_scenarios_have_a_text() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SCENARIOS.rglob("*.txt")))
    causes = set(re.findall(r"cause=([a-z_-]+)", text))
    reasons = set(re.findall(r"^ +[0-9]+_[0-9]+ \S+ -> \S+ (?:waiting|warming|revoking|granted|cancelled) ([a-z_]+)", text, re.MULTILINE))
    rejections = set(re.findall(r"^-> EventRejected ([a-z_]+):", text, re.MULTILINE))
    assert min(len(causes), len(reasons), len(rejections)) > 20
    assert causes - wording.CAUSES.keys() == set()
    assert reasons - {*REASONS, *MACHINE_REASONS} == set()
    assert rejections - REJECTIONS.keys() == set()


@pytest.mark.parametrize("cause", [*step_context.CAUSES, "follow-up", "unknown"])
def test_cause_text_is_a_clause(cause: str) -> None:
    assert cause_text(cause) == wording.CAUSES[cause]
    assert " " in cause_text(cause)
    assert not cause_text(cause).endswith(".")


@pytest.mark.parametrize("code", sorted(REJECTIONS))
def test_rejection_text_is_a_clause_with_its_numbers(code: str) -> None:
    numbers = tuple(range(1 + max([int(each) for each in re.findall(r"{([0-9])}", REJECTIONS[code])], default=-1)))
    text = rejection_text(EventRejected(kind=1, code=code, numbers=numbers))
    assert " " in text
    assert "{" not in text
    assert not text.endswith(".")
    assert not text.startswith(code)


@pytest.mark.parametrize("code", sorted(wording.WARNING_TEXTS))
def test_warning_text_names_the_rack(code: str) -> None:
    text = wording.warning_text(MemberWarned(member_id="m1", incarnation=1, code=code, said="eu", tag="us"))
    assert "rack" in text
    assert "{" not in text
