"""No class name stands for two things: a reader who meets `Plan` knows which one it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("assignors", "equipoise", "events", "replay", "statemachine")


def test_each_class_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if any(parent.is_symlink() for parent in path.parents):
                continue  # the pure packages, met by themselves
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 900
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
