"""``python -m tools.packages``: counts the packages of the product, the arrows between them, circles,
lines, and how much the import of a member reaches.

A package is one of `equipoise`; of `equipoise.replay` each, and its modules as one. An arrow is a
pair of packages of which one imports the other, once or often, for types too. Faces count as none:
they hand on the public names of others. So do the private modules at the top, on which all stand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = "equipoise"
FACES = {"equipoise", "equipoise.__main__", "equipoise.replay", "equipoise.replay.facade"}
LINKED = ("assignors", "events", "replay", "statemachine")


def graph(*, types: bool = True) -> grimp.ImportGraph:
    """The imports of the product. `types`: also those for type checkers alone."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return grimp.build_graph(PACKAGE, exclude_type_checking_imports=not types, cache_dir=None)


def package_of(module: str) -> str | None:
    """Returns the package of a module; None: it is in none."""
    parts = module.split(".")
    if module in FACES or len(parts) < 2 or parts[1].startswith("_"):
        return None
    if parts[1] == "replay":
        return f"replay.{parts[2]}" if (ROOT / "replay" / parts[2]).is_dir() else "replay"
    return parts[1]


def arrows(imports: grimp.ImportGraph) -> set[tuple[str, str]]:
    """Pairs of packages: the first imports the second."""
    found = ((package_of(module), package_of(other)) for module in imports.modules for other in imports.find_modules_directly_imported_by(module))
    return {(one, other) for one, other in found if one is not None and other is not None and one != other}


def circles(pairs: set[tuple[str, str]]) -> list[list[str]]:
    """Groups of names each of which leads to all others, in order."""
    after: dict[str, set[str]] = {}
    for one, other in pairs:
        after.setdefault(one, set()).add(other)

    def reached(start: str) -> set[str]:
        found, todo = set[str](), [start]
        while todo:
            for each in after.get(todo.pop(), ()):
                if each not in found:
                    found.add(each)
                    todo.append(each)
        return found

    reach = {name: reached(name) for name in after}
    groups = {tuple(sorted(each for each in reach[name] if name in reach.get(each, ()))) for name in reach if name in reach[name]}
    return [list(group) for group in sorted(groups)]


def file_circles(imports: grimp.ImportGraph) -> list[list[str]]:
    """Modules that import each other in a circle. A package's face counts as none of them."""
    pairs = {
        (module, other)
        for module in imports.modules
        for other in imports.find_modules_directly_imported_by(module)
        if not any(each in FACES or path_of(each).name == "__init__.py" for each in (module, other))
    }
    return circles(pairs)


def path_of(module: str) -> Path:
    parts = module.split(".")
    base = ROOT.joinpath(*(parts[1:] if parts[1:2] and parts[1] in LINKED else parts))
    return base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"


def lines_of(module: str) -> int:
    return len(path_of(module).read_text().splitlines())


def reached_lines(imports: grimp.ImportGraph, module: str) -> int:
    """Lines of the module and of all that it imports, at whatever time."""
    return sum(map(lines_of, {module, *imports.find_upstream_modules(module)}))


def main() -> None:
    imports = graph()
    pairs = arrows(imports)
    names = sorted({name for module in imports.modules if (name := package_of(module)) is not None})
    for name in names:
        print(f"{name:22} -> {', '.join(sorted(other for one, other in pairs if one == name))}")
    print(f"{len(names)} packages, {len(pairs)} arrows")
    print(f"circles of packages: {circles(pairs)}; of files: {file_circles(imports)}")
    print(f"equipoise.member reaches {reached_lines(graph(types=False), 'equipoise.member'):,} lines")
    product = [module for module in imports.modules if not module.startswith("equipoise.testing")]
    print(f"{sum(map(lines_of, product)):,} lines, {len(product)} files; with equipoise.testing {sum(map(lines_of, imports.modules)):,} lines")


if __name__ == "__main__":
    main()
