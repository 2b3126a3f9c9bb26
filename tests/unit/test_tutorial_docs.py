"""docs/tutorial.md up to the live group: its commands run in a fresh folder, and print what the
page shows. tests/live/test_quickstart.py runs the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.made import hold
from tests.typed import ROOT, Block, blocks, clone, run

PAGE = "docs/tutorial.md"
WITHOUT_KAFKA = ("Install", "Replay a recorded group")


def typed(*sections: str) -> list[Block]:
    """Blocks that a reader types."""
    return [block for block in blocks(PAGE) if block.kind == "sh" and block.section in sections]


def part(said: str, start: str, end: str) -> str:
    """What was printed from a line that begins with `start`, before one that begins with `end`."""
    found = re.search(rf"^{re.escape(start)}.*?(?=^{re.escape(end)}|\Z)", said, re.DOTALL | re.MULTILINE)
    assert found, said
    return "\n".join(line.rstrip() for line in found[0].strip().splitlines())


@pytest.mark.docs
def test_numbers_and_commands_of_the_replay(tmp_path: Path, rewrite: bool) -> None:
    folder = clone(tmp_path)
    said = []
    for block in typed(*WITHOUT_KAFKA):
        done = run(f"set -e; {block.text}", folder)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        said.append(done.stdout)
    _, simulated, verified, explained, drawn, asked = said
    made = {
        "simulated": part(simulated, "what each action cost", "members announce"),
        "verified": part(verified, "identical", "group "),
        "explained": part(explained, "Why is 0_1", "  which member"),
    }
    hold(ROOT / PAGE, {name: f"```text\n{text}\n```" for name, text in made.items()}, rewrite)
    assert (folder / "out" / "led.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "33 moves" in drawn
    assert "num_standbys=1" in asked


def test_every_section_with_commands_is_run_by_a_test() -> None:
    with_commands = {block.section for block in blocks(PAGE) if block.kind == "sh"}
    assert with_commands == {*WITHOUT_KAFKA, "A live group", "Kill a member", "Check everything"}


def test_container_of_the_page_is_the_broker_of_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    (docker,) = (block.text for block in blocks(PAGE) if block.text.startswith("docker "))
    assert docker.split()[-1] == compose["services"]["broker"]["image"]
