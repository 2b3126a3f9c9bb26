"""An answer as a page: what is printed, with bars, without a script and without anything loaded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from equipoise.cli.answer_page import render_parts
from equipoise.cli.output import Kind, write_file
from equipoise.cli.screen import Line, Part, Table, bold

NASTY = "<script>alert(1)</script> & \x1b[2J"
TABLE = Table(columns=("group", "task-s saved", "advice"), rows=[("a", 1_234.5, "x" * 70), (NASTY, -617.25, None), ("c", None, "y")], title="ranked")
PARTS: list[Part] = [Line(bold("3 groups"), " in all"), TABLE, Table(columns=("none", "here"), rows=[]), f"and {NASTY}"]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.bars: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.cells += [""] if tag == "td" else []
        self.bars += [value or "" for name, value in attributes if name == "style"]
        assert not {name for name, _ in attributes} & {"src", "href", "action", "srcset", "onclick"}

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")


def test_page_has_what_is_printed() -> None:
    text = render_parts("archive/: costs", PARTS)
    page = Page(text)
    assert page.cells == [cell for row in TABLE.cells() for cell in row]
    assert "<p>3 groups in all</p>" in text
    assert "<h2>ranked</h2>" in text
    assert "<title>archive/: costs</title>" in text
    assert page.tags.count("table") == 2
    assert [re.findall(r"var\((.*?)\) (\d+)%", bar) for bar in page.bars] == [[("--new", "100")], [("--alarm-soft", "50")]]
    assert render_parts("archive/: costs", PARTS) == text


def test_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    text = render_parts(NASTY, PARTS)
    assert "script" not in Page(text).tags
    assert "default-src 'none'" in text
    assert "\x1b" not in text
    assert not re.search(r"@import|url\(|https?:", text)
    write_file("--html", tmp_path / "page.html", Kind.PAGE, text)
    write_file("--html", tmp_path / "page.html", Kind.PAGE, render_parts("again", []))  # one of its own is replaced
