"""The list of mutants that survive names code that is there, and says why of each."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.mutation.__main__ import BEGIN, END
from tests.mutation.modules import MODULES

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads((ROOT / "tests" / "mutation" / "survivors.toml").read_text(encoding="utf-8")).get("survivor", [])
KINDS = ("equivalent: ", "unreachable: ", "internal: ", "untried: ")


def functions(module: str) -> dict[str, str]:
    """Qualified name -> source on one line, without indentation."""
    text = (ROOT / module).read_text(encoding="utf-8")
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], inside: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                source = ast.get_source_segment(text, node)
                assert source is not None
                found[inside + node.name] = " ".join(line.strip() for line in source.splitlines())
                visit(node.body, f"{inside}{node.name}.")

    visit(ast.parse(text).body, "")
    return found


def test_survivors_are_of_code_that_is_there() -> None:
    sources = {name: functions(name) for name in {each["module"] for each in LISTED}}
    gone = [each for each in LISTED if each["before"] not in sources[each["module"]].get(each["function"], "")]
    assert gone == []
    assert {each["module"] for each in LISTED} <= set(MODULES)


def test_survivors_have_a_reason_each() -> None:
    assert [each for each in LISTED if not re.match(rf"({'|'.join(KINDS)})\w.{{15,}}", each["reason"])] == []
    keys = [(each["module"], each["function"], each["before"], each["after"], each.get("nth", 1)) for each in LISTED]
    assert len(keys) == len(set(keys))


def test_page_has_scores_of_modules_that_are_there() -> None:
    page = (ROOT / "tests" / "mutation" / "scores.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \|", page.partition(BEGIN)[2].partition(END)[0], re.MULTILINE)
    assert rows == [name for name in MODULES if name in rows] != []
