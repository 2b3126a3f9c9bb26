"""A file's name says what is in it without its folder, so a search for a name finds one file.

A command is in the file of its name (`equipoise/cli`), whatever else is called so.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("assignors", "equipoise", "events", "replay", "statemachine")
SHARED = {"__init__.py", "__main__.py"}
DOUBLES = {
    "assignor.py": "the class of each assignor, in its package",
    "options.py": "the options of each assignor, in its package",
    "movements.py": "as in all assignors, and as Kafka Streams has them",
    "racks.py": "as in all assignors, and as Kafka Streams has them",
    "standbys.py": "as in all assignors, and as Kafka Streams has them",
}


def test_each_file_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if path.name not in SHARED and not name.startswith("equipoise/cli/") and not any(parent.is_symlink() for parent in path.parents):
                found[path.name].append(name)
    assert len(found) > 350
    doubles = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in doubles.items() if name not in DOUBLES} == {}
    assert sorted(doubles) == sorted(DOUBLES), "a name that is no double any more"
    assert not any(not place.startswith("assignors/") for places in doubles.values() for place in places)
