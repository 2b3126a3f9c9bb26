"""The assignor inside the brokers stays small: operators read it before they install it."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "java" / "broker-assignor" / "src" / "main"
MOST_LINES = 500


def test_assignor_has_few_lines_of_code() -> None:
    texts = [re.sub(r"/\*.*?\*/", "", source.read_text(encoding="utf-8"), flags=re.DOTALL) for source in SOURCES.rglob("*.java")]
    lines = [line for text in texts for line in text.splitlines() if line.strip() and not line.strip().startswith("//")]
    assert 100 < len(lines) <= MOST_LINES
