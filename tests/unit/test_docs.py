"""The written pages: every link resolves, every command they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
COMMENT_OR_CODE = re.compile(r"<!--.*?-->|```.*?```", re.DOTALL)


def anchor(heading: str) -> str:
    """The anchor GitHub gives a heading: lower case, spaces to hyphens, anything else but letters,
    digits, _ and - dropped.
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = COMMENT_OR_CODE.sub("", page.read_text())
    return {anchor(heading) for heading in HEADING.findall(text)} | set(re.findall(r'<a id="([^"]+)"></a>', text))


def test_anchors_are_as_github_makes_them() -> None:
    assert anchor("D9 A movement is carried to its end") == "d9-a-movement-is-carried-to-its-end"
    assert anchor("L5 Re-emission is compared, `x_y`") == "l5-re-emission-is-compared-x_y"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_links_resolve(page: Path) -> None:
    dead = []
    for link in LINK.findall(COMMENT_OR_CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_anchors_named_in_code_exist() -> None:
    """For example `docs/protocol.md#m5` in a docstring."""
    code = [path for name in ("assignors", "equipoise", "events", "replay", "statemachine", "tests", "tools") for path in (ROOT / name).rglob("*.py")]
    named = {found for path in code for found in re.findall(r"(docs/[a-z-]+\.md)#([a-z0-9-]+)", path.read_text())}
    assert ("docs/protocol.md", "m5") in named
    assert sorted(f"{page}#{name}" for page, name in named if name not in anchors(ROOT / page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_commands_exist(page: Path) -> None:
    text = COMMENT.sub("", page.read_text())
    targets = set(re.findall(r"^([a-z.]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?\bmake ([a-z]+)`", text)) <= targets
    assert set(re.findall(r"`equipoise ([a-z][a-z-]*)", text)) <= set(COMMANDS)


@pytest.mark.parametrize("line", ["cannot read its assignment", "another owner has begun", "was replaced by another log", "has replaced log"])
def test_log_lines_that_pages_quote_are_logged(line: str) -> None:
    pages = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("operations", "logs", "restarts"))
    assert line in " ".join(pages.split())
    assert any(line in path.read_text(encoding="utf-8") for path in (ROOT / "equipoise" / "member").rglob("*.py"))
