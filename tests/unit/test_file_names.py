"""A file's name says what is in it within its folder, which it does not repeat.

Siblings may use the same name: `consumer/core.py` and `producer/core.py` are alike.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("assignors", "equipoise", "events", "replay", "statemachine")
REPEATS = {
    "equipoise/member/member.py": "`Member`",
    "equipoise/lead/seat/seat.py": "`Seat`",
    "equipoise/lead/broker_seat/broker_seat.py": "`BrokerSeat`",
    "equipoise/member/tasks/open_task.py": "a task that is open, beside those that open and run it",
    "equipoise/streams/stream_time.py": "stream time is a word of the field",
    "replay/importers/groups/recorded_group.py": "one group of a recording, among the readers of many",
}


def repeats(folder: str, name: str) -> bool:
    """Returns whether a file's name says its folder's again."""
    word = folder.removesuffix("s")
    return name in {folder, word} or name.startswith((f"{folder}_", f"{word}_")) or name.endswith((f"_{folder}", f"_{word}"))


def test_no_file_repeats_the_name_of_its_folder() -> None:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if not any(each.is_symlink() for each in path.parents)]
    assert len(files) > 350
    found = [str(path.relative_to(ROOT)) for path in files if not path.name.startswith("_") and repeats(path.parent.name, path.stem)]
    assert sorted(found) == sorted(REPEATS)
