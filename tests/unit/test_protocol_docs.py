"""docs/protocol.md: every rule has a section that says what breaks without it, and scenarios that
exist; every scenario belongs to a rule.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
SCENARIOS = ROOT / "tests" / "scenarios" / "protocol"

RULES = [*(f"L{n}" for n in range(1, 12)), *(f"M{n}" for n in range(1, 13)), *(f"D{n}" for n in range(1, 15))]
LISTED = re.findall(r"\[([LMD]\d+)\]\(#[^)]*\)\s\w", PAGE.partition("\n## All rules\n")[2].partition("\n## ")[0])
SECTIONS = dict(re.findall(r"^### ([LMD]\d+) [^\n]+\n(.*?)(?=^##|^<a |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_list_and_sections_name_the_rules_in_order() -> None:
    assert LISTED == RULES
    assert list(SECTIONS) == RULES


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_statement_and_one_breaking_sequence(rule: str) -> None:
    statement, *sequences = re.split(r"^> \*Breaks without it[^*]*:\*", SECTIONS[rule], flags=re.MULTILINE)
    assert statement.rstrip().endswith((".", "|", "```")), "a rule ends as a sentence, a table or a block"
    assert [sequence.strip()[-1] for sequence in sequences] == ["."]


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_scenarios(rule: str) -> None:
    assert any(path.stat().st_size for path in SCENARIOS.glob(f"{rule.lower()}_*.txt"))


def test_protocol_scenarios_belong_to_a_rule() -> None:
    strays = [path.name for path in SCENARIOS.glob("*.txt") if path.name.split("_")[0].upper() not in RULES]
    assert strays == []
