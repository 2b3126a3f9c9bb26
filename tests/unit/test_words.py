"""No retired word is used, and sentences are short; see tools/words.py."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus import rules
from tools import words

ALERTS = rules()
FOLDERS = ("assignors", "events", "replay", "statemachine", "equipoise")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def test_code_and_pages_have_no_retired_word() -> None:
    assert [str(each) for each in words.unexpected()] == []


@pytest.mark.parametrize(("line", "word"), [("the ghost of m1", "ghost"), ("def refold(log): ...", "refold"), ("class TheatreStage: ...", "theatre")])
def test_retired_word_is_found(line: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(line)
    assert [each.word for each in words.search(page)] == [word]


# Sentences

READ_ONCE = [
    "CONTRIBUTING",
    "README",
    *(
        f"docs/{name}"
        for name in ("applications", "architecture", "commands", "deploy", "incidents", "index", "logs", "metrics", "operations", "restarts", "seat")
    ),
]
"""README, the four ways in with the pages of operators, and the help texts of all commands."""
LONG_ELSEWHERE = 290
"""Sentences of more than words.MOST_WORDS words on the other pages. The number only falls."""


@pytest.mark.parametrize("page", READ_ONCE)
def test_sentences_of_pages_and_help_texts_are_read_once(page: str) -> None:
    assert words.long_sentences((words.ROOT / f"{page}.md").read_text(encoding="utf-8")) == []


def test_long_sentences_elsewhere_only_get_fewer() -> None:
    pages = [path for path in [*words.ROOT.glob("*.md"), *(words.ROOT / "docs").rglob("*.md")] if path.name != "CHANGELOG.md"]
    others = [path for path in pages if str(path.relative_to(words.ROOT).with_suffix("")) not in READ_ONCE]
    assert sum(len(words.long_sentences(path.read_text(encoding="utf-8"))) for path in others) <= LONG_ELSEWHERE


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_sentences_of_alerts_are_read_once(alert: dict[str, Any]) -> None:
    told = alert["annotations"]
    assert [*words.long_sentences(told["summary"]), *words.long_sentences(told["description"])] == []


def test_sentences_of_log_lines_are_read_once() -> None:
    logged = [text for folder in FOLDERS for path in sorted((words.ROOT / folder).rglob("*.py")) for text in logged_in(path)]
    assert len(logged) > 150
    assert [each for text in logged for each in words.long_sentences(text)] == []


def logged_in(path: Path) -> list[str]:
    """The texts that a module logs, with their places for values."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    texts = [node.args[0] for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS and node.args]
    return [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{'word ' * 25}end.", 1),
        (f"{'word ' * 24}end. Another one.", 0),
        (f"{'word ' * 20}`a b c` [two words](page.md) end.", 0),
        (f"- {'word ' * 20}\n- {'word ' * 20}\n", 0),
        (f"- {'word ' * 20}\n  {'word ' * 20}\n", 1),
        (f"| {'word ' * 20} | {'word ' * 20} |\n", 0),
        (f"| short | {'word ' * 26} |\n", 1),
        (f"```sh\n{'word ' * 30}\n```\n", 0),
    ],
)
def test_long_sentence_is_found_and_no_other(text: str, count: int) -> None:
    assert len(words.long_sentences(text)) == count
