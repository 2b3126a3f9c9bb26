"""A number and the noun behind it agree: sentences take `counted`, which says ``1 task``."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOUN = re.compile(
    r" (?:(?:live|active|other|input|stateful|different) )?"
    r"(?:tasks|members|groups|partitions|records|brokers|copies|workers|clients|rounds|rows|standbys|warm-ups|rebalances"
    r"|topics|times|settings|sub-topologies|decisions|facts|processes|threads|connectors)\b(?!/s)"
)
FOLDERS = ("replay", *map("equipoise/{}".format, ("cli", "console", "faust", "hosting", "lead", "member", "operations", "witness", "worker")))
"""Without those below the words of replay: `equipoise.log` and `equipoise.kafka`."""
MANY = {
    ("equipoise/cli/incident_text.py", "len(each.groups)"),  # several at once
    ("equipoise/console/recent.py", "len(tasks)"),
    ("replay/importers/kafka_streams/topology.py", "count"),
    ("replay/importers/kafka_streams/topology.py", "len(owners)"),
    ("replay/incident/from_tables.py", "count"),
    ("replay/verification.py", "self._digests.maxlen"),
    ("replay/differences.py", "decision.restore_records"),  # fields, as the log has them
    ("replay/spark/incremental.py", "end"),
    ("replay/importers/groups/polled.py", "group"),  # no numbers
    ("equipoise/cli/configure.py", "stay"),
    ("equipoise/member/topics.py", "has"),
}
"""What is never 1."""


def bare(source: str) -> Iterator[str]:
    """Numbers in f-strings with a plural behind them: names and constants in capitals are none."""
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for number, text in itertools.pairwise(parts):
            if isinstance(number, ast.FormattedValue) and isinstance(text, ast.Constant) and _NOUN.match(str(text.value)):
                name = ast.unparse(number.value)
                if not re.search(r"\b_?[A-Z_]+$", name):
                    yield name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{len(tasks)} tasks move"', ["len(tasks)"]),
        ('f"{n:,} live members"', ["n"]),
        ("f\"{counted(n, 'task')} to move\"", []),
        ('f"{speed} records/s"', []),
    ],
)
def test_bare_plural_is_found(source: str, found: list[str]) -> None:
    assert list(bare(source)) == found


def test_no_number_has_a_bare_plural_behind_it() -> None:
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            found += [f"{place}: {each}" for each in bare(path.read_text(encoding="utf-8")) if (place, each) not in MANY]
    assert found == []
