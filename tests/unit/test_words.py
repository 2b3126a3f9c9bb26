"""No retired word is used; see tools/words.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words


def test_code_and_pages_have_no_retired_word() -> None:
    assert [str(each) for each in words.unexpected()] == []


@pytest.mark.parametrize(("line", "word"), [("the ghost of m1", "ghost"), ("def refold(log): ...", "refold"), ("class TheatreStage: ...", "theatre")])
def test_retired_word_is_found(line: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(line)
    assert [each.word for each in words.search(page)] == [word]
