"""What docstrings of the product leave out: `python -m tools.docstrings` lists it.

A headless docstring begins with What, Who, Why, How, Whether, When, As, Of or Those: it lacks a
subject and a verb. A public function that raises an error names it, so that a caller knows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PACKAGES = ("assignors", "equipoise", "events", "replay", "statemachine")
ELSEWHERE = re.compile(r"See `|Raises (what|as)\b|\berrors of\b")
"""The docstring leads to that of another function."""
HEADLESS = re.compile(r"(What|Who|Why|How|Whether|When|As|Of|Those)\b")
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@attrs.frozen(order=True)
class Lack:
    package: str
    place: str
    """``statemachine/due.py:12``."""
    what: str
    """``headless``, or ``raises``: it raises errors that it does not name."""
    text: str
    """Its beginning, or the errors."""


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def lacks() -> list[Lack]:
    """Everything, by package and place."""
    return sorted(lack for path in sources() for lack in _lacks_of(path))


def _lacks_of(path: Path) -> Iterator[Lack]:
    name = str(path.relative_to(ROOT))
    parts = name.split("/")
    package = parts[1] if parts[0] == "equipoise" and len(parts) > 2 else parts[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, text in _docstrings(tree):
        if HEADLESS.match(text):
            yield Lack(package, f"{name}:{getattr(node, 'lineno', 1)}", "headless", text.splitlines()[0])
    for function, around in _public_functions(tree, ast.get_docstring(tree) or ""):
        about = ast.get_docstring(function) or ""
        missing = sorted(_raised(function) - set(re.findall(r"\w+", f"{around} {about}")))
        if missing and not ELSEWHERE.search(about) and not _is_command(function):
            yield Lack(package, f"{name}:{function.lineno}", "raises", f"{function.name}: {', '.join(missing)}")


def _docstrings(tree: ast.Module) -> Iterator[tuple[_Documented, str]]:
    """Those of modules, classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, _Documented):
            text = ast.get_docstring(node)
            if text:
                yield node, text


def _public_functions(tree: ast.Module | ast.ClassDef, around: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Functions and methods that a caller may name, and what module and class say of all of them."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node, f"{around} {ast.get_docstring(node) or ''}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node, around


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether its docstring is the help of a command, which names exit codes."""
    return any("command" in ast.unparse(each) for each in function.decorator_list)


def _raised(function: ast.AST) -> set[str]:
    """Names of the errors that its own body raises and does not catch by that name."""
    found: set[str] = set()
    for node in _own(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = error.attr if isinstance(error, ast.Attribute) else error.id if isinstance(error, ast.Name) else ""
            if name[:1].isupper() and not name.startswith("_") and name != "AssertionError":
                found.add(name)
    return found


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own(child)


def main() -> None:
    found = lacks()
    wanted = sys.argv[1:]
    for lack in found:
        if not wanted or lack.package in wanted or lack.what in wanted:
            print(f"{lack.place}: {lack.what}: {lack.text}")
    for what in ("headless", "raises"):
        by_package = Counter(lack.package for lack in found if lack.what == what)
        print(f"{what}: {sum(by_package.values())}: {', '.join(f'{name} {count}' for name, count in sorted(by_package.items()))}")


if __name__ == "__main__":
    main()
