"""Writes the table of directives into the docs: `python -m tools.directives_page
docs/scenarios.md`. A test checks that the page is current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from equipoise.testing.scenarios import reference

BEGIN, END = "<!-- directives -->\n", "\n<!-- /directives -->"


def with_reference(page: str) -> str:
    """The page with a new table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + reference() + END + after


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_reference(target.read_text(encoding="utf-8")), encoding="utf-8")
