"""Nothing is called well without its grounds: the sentences that say so are in one module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from equipoise.replay.all_clear import AllClear, AsOf, FromWhom, Grounds, HowComplete

ROOT = Path(__file__).parents[2]
WORDS = re.compile(
    "|".join(
        [
            r"every task runs",
            r"(?<![\w-])balanced\b",
            r"nothing is wrong",
            r"(?<![\w-])identical\b",
            r"\b0 incidents",
            *(re.escape(each) for each in AllClear),
        ]
    ),
    re.IGNORECASE,
)
REASONS = {
    "equipoise/cli/demo.py": "the key `identical` of a document",
    "equipoise/cli/spark/verify.py": "verdicts of a verification, counted and sorted",
    "equipoise/cli/verify.py": "the column that counts decisions",
    "equipoise/worker/group_metrics.py": "a balanced target, in the description of a metric",
    "events/decisions.py": "the verdict of a round, as it is stored; `under_way_text` shows it as nothing",
    "replay/all_clear.py": "they are made here",
    "replay/verification.py": "the verdict of a verification, which says what was compared",
}
"""File -> why such a word is no statement about a group."""
FOLDERS = ("events", "statemachine", "assignors", "replay", "equipoise")


def python_texts(path: Path) -> Iterator[str]:
    """The literals of a module but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose)


def script_texts(path: Path) -> Iterator[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL) if path.suffix == ".js" else path.read_text()
    yield from re.findall(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", text) if path.suffix == ".js" else [text]


def said() -> dict[str, list[str]]:
    """File -> its texts that call something well."""
    found: dict[str, list[str]] = {}
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".js", ".html")]
    assert len(files) > 500
    for path in files:
        if any(part.is_symlink() for part in (path, *path.parents)):
            continue
        texts = [text for text in (python_texts(path) if path.suffix == ".py" else script_texts(path)) if WORDS.search(text)]
        if texts:
            found[path.relative_to(ROOT).as_posix()] = texts
    return found


def test_only_one_module_says_that_all_is_well() -> None:
    found = said()
    assert {path: texts for path, texts in found.items() if path not in REASONS} == {}
    assert set(REASONS) - set(found) == set(), "a reason without its text"


@pytest.mark.parametrize("text", ["The group is balanced.", "Every task runs", "✓ nothing is wrong", "verdict: identical", "0 incidents"])
def test_statement_that_all_is_well_is_found(text: str) -> None:
    assert WORDS.search(text)


@pytest.mark.parametrize("text", ["rebalanced", "load_balanced", "equipoise-balanced", "10 incidents", "balanced_min_cost"])
def test_other_word_is_not_taken_for_one(text: str) -> None:
    assert not WORDS.search(text)


@pytest.mark.parametrize("kind", [AsOf, FromWhom, HowComplete, Grounds])
def test_grounds_cannot_be_made_without_each_of_their_parts(kind: type) -> None:
    assert [field.name for field in attrs.fields(kind) if field.default is not attrs.NOTHING] == []
    with pytest.raises(TypeError, match="missing"):
        kind()
