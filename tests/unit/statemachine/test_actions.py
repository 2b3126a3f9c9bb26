"""State is written in one place: no module of the leader but `actions` assigns to what `GroupState`
holds.
"""

from __future__ import annotations

import ast
from pathlib import Path

import attrs
import pytest

from equipoise.statemachine import state

FOLDER = Path(__file__).parents[3] / "statemachine"
WRITERS = {"actions.py"}
STATES_OF_THEIR_OWN = {"member.py", "session_state.py"}
"""A member's session has its own state, whose fields have some of the same names."""
MODULES = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in WRITERS | STATES_OF_THEIR_OWN)
HELD = [each for each in vars(state).values() if isinstance(each, type) and each.__module__ == state.__name__ and attrs.has(each)]
FIELDS = frozenset(field.name for each in HELD for field in attrs.fields(each))
MUTATORS = frozenset({"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort", "update"})
"""Methods that change a dict, list or set."""


def reads_state(node: ast.AST, aliases: set[str]) -> bool:
    """Whether the expression is a part of the state: it names one of its fields, or a local name
    for one.
    """
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr in FIELDS and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "group"}):
                return True
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"get", "setdefault"}:
            node = node.func.value
        else:
            return isinstance(node, ast.Name) and node.id in aliases


def writes(source: str) -> list[str]:
    """Statements that change the state, as "line: source"."""
    tree = ast.parse(source)
    found: list[tuple[int, str]] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        aliases: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and reads_state(node.value, set()):
                aliases.update(target.id for target in node.targets if isinstance(target, ast.Name))
        for node in ast.walk(function):
            changed: list[ast.expr] = []
            if isinstance(node, ast.Assign | ast.Delete):
                changed = [each for target in node.targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                changed = [node.target]
            changed = [each for each in changed if not isinstance(each, ast.Name)]  # binding a local name changes nothing
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                changed = [node.func.value]
            found += [(each.lineno, ast.unparse(node)) for each in changed if reads_state(each, aliases)]
    return [f"{line}: {text}" for line, text in sorted(set(found))]


@pytest.mark.parametrize("module", MODULES)
def test_module_does_not_write_to_the_state(module: str) -> None:
    assert writes((FOLDER / module).read_text()) == [], "state is changed by a function of statemachine/actions.py"


@pytest.mark.parametrize(
    "statement",
    [
        "member.leaving = True",
        "state.number += 1",
        "del state.owner[task]",
        "state.crashes[name].until_ms = None",
        "member.warmup.pop(task)",
        "state.racks.setdefault(topic, {}).update(racks)",
        "backoff, backoff.over = backoff, True",
        "holds = state.holds\n    del holds[task]",
        "known = state.end_offsets[topic]\n    known.update(ends)",
    ],
)
def test_write_is_found(statement: str) -> None:
    assert len(writes(f"def function(state, member, backoff, task, name, topic, racks, ends):\n    {statement}\n")) >= 1


def test_actions_is_where_the_state_is_written() -> None:
    assert len(writes((FOLDER / "actions.py").read_text())) > 80
