"""Every scenario under this folder prints its golden text, and every shadow replica agrees.

`pytest --rewrite` replaces the golden texts. Further tests: an invalid scenario's error names file
and line, the shadow replicas find injected defects, and the folders are complete: one file for each
rule of the protocol, one case for each rejection.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.statemachine import leader
from equipoise.statemachine.rejections import REJECTIONS
from equipoise.statemachine.step_context import StepContext
from tests.support.scenarios import ScenarioError, reference, run_file, run_text
from tests.support.scenarios.directives import DIRECTIVES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(HERE.rglob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_scenario(path: Path, rewrite: bool) -> None:
    outcome = run_file(path)
    assert outcome.disagreements == ()
    if rewrite and not outcome.matches:
        path.write_text(outcome.text, encoding="utf-8")
    else:
        assert outcome.matches, "\n" + outcome.diff()


EXAMPLE = (HERE / "high_availability" / "cold_joiner.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("jion m1\n----\n", "x.txt:1: unknown directive 'jion'"),
        ("group\n\njoin m1 colour=red\n----\n", "x.txt:3: join has no argument 'colour'"),
        ("join m1 capacity=two\n----\n", "x.txt:1: capacity: 'two' is not a whole number"),
        ("join m1 capacity=0\n----\n", "x.txt:1: MemberJoined.capacity"),
        ("join\n----\n", "x.txt:1: write join MEMBER..."),
        ("group\njoin m1 capacity=1 capacity=2\n----\n", "x.txt:2: argument 'capacity' is given twice"),
        ("tasks stateful=(0_0,0_2)\n----\n", "x.txt:1: stateful: sub-topology 0 has no task 0_1"),
        ("tasks stateful=(0_0\n----\n", "x.txt:1: a ( without its )"),
        ("group balance_factor=0\n----\n", "x.txt:1: Knobs.balance_factor"),
        ("group\n", "x.txt:1: directive 'group' has no ----"),
        ("# nothing\n", "x.txt:1: no directive"),
        ("group\n----\njoin m1\n----\n", "x.txt:2: golden text with a ----"),
        ("----\nok\n", "x.txt:1: ---- without a directive"),
        ("group\ntasks stateful=0_0\nbuild defect=gives_up\njoin m1\n----\n", "x.txt:4: the group halted (assignor_failed"),
        ("group\nexpect-halt assignor_failed\n----\n", "x.txt:2: expected the group to be halted"),
    ],
)
def test_scenario_invalid_line_error_names_the_line(text: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run_text(text, "x.txt")
    assert str(caught.value).startswith(problem)


def test_scenario_changed_golden_text_gives_a_diff() -> None:
    changed = EXAMPLE.replace("m2 gen=2 STABLE active=() warmup=(0_1)", "m2 gen=2 STABLE active=(0_1)")
    outcome = run_text(changed, "x.txt")
    assert not outcome.holds
    assert "-m2 gen=2 STABLE active=(0_1)\n+m2 gen=2 STABLE active=() warmup=(0_1)" in outcome.diff()
    assert outcome.text == EXAMPLE


def test_machine_depending_on_member_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    issue = leader.issue

    def in_order_of_joining(context: StepContext) -> None:
        context.state.generation += next(iter(context.state.members), "m1") != "m1"
        issue(context)

    monkeypatch.setattr(leader, "issue", in_order_of_joining)
    found = run_text(EXAMPLE + "\njoin m3 m4 m5\n----\n", "x.txt").disagreements
    assert any("shuffled: " in text for text in found), found


def test_state_missing_in_the_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    issue = leader.issue

    def from_memory(context: StepContext) -> None:
        context.deadlines.rounds = getattr(context.deadlines, "rounds", 0) + 1  # type: ignore[attr-defined]
        context.state.generation = context.deadlines.rounds - 1  # type: ignore[attr-defined]
        issue(context)

    monkeypatch.setattr(leader, "issue", from_memory)
    found = run_text(EXAMPLE, "x.txt").disagreements
    assert any("restored: " in text for text in found), found


def test_broken_invariant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    issue = leader.issue

    def without_the_last_task(context: StepContext) -> None:
        for member in context.state.members.values():
            if len(member.active) > 1:
                member.active.pop(max(member.active))
        issue(context)

    monkeypatch.setattr(leader, "issue", without_the_last_task)
    assert any("invariant" in text for text in run_text(EXAMPLE, "x.txt").disagreements)


def test_reference_lists_every_directive() -> None:
    page = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    listed = [line.split()[0] for line in reference().split("\n") if line and not line.startswith((" ", "Each "))]
    assert listed == sorted(DIRECTIVES)
    assert len(DIRECTIVES) > 30
    assert EXAMPLE in page


RULES = [*(f"l{number}" for number in range(1, 8)), *(f"m{number}" for number in range(1, 9)), *(f"d{number}" for number in range(1, 13))]


@pytest.mark.parametrize("rule", RULES)
def test_protocol_rule_has_its_scenario(rule: str) -> None:
    found = sorted((HERE / "protocol").glob(f"{rule}_*.txt"))
    assert found, f"tests/scenarios/protocol/{rule}_*.txt plays the sequence that breaks the simpler design"
    assert all(path.read_text(encoding="utf-8").startswith(f"# {rule.upper()} ") for path in found)


def test_rejections_are_all_played() -> None:
    played = {
        code
        for path in (HERE / "rejections").glob("*.txt")
        for code in re.findall(r"^-> EventRejected (\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert played == set(REJECTIONS)
