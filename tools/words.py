"""`python -m tools.words [WORD ...]`: where a word that was retired still occurs, and the sentences
that are too long.

The repository once used private words for what the field has a name for. This list holds them, each
with the word to use instead, so that none comes back. A sentence of more than MOST_WORDS words has
to be read twice.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]

ANYWHERE = {
    "rooms": "packages",
    "house": "codebase",
    "doors": "import contracts",
    "walls": "import contracts",
    "haunt": "fence",
    "haunting": "fenced members",
    "ghost": "fenced incarnation",
    "ghosts": "fenced incarnations",
    "has_waited": "clear_hold",
    "regains": "eager_regrants",
    "theatre": "session harness",
    "arena": "cluster harness",
    "chronicle": "history",
    "refold": "replayer",
    "refolds": "replayer",
    "exogenous": "recorded inputs",
    "situation": "IndexedProblem",
    "dislike": "preference cost",
    "near_hands": "rack-aware bundles",
    "near_levels": "rack-aware swaps",
    "wrappedassignor": "DelegatingAssignor",
    "_listening": "RecordingAssignor",
    "doubts": "warnings",
    "endings": "exit codes",
    "knobs": "settings",
    "knob": "setting",
    "reminder": "timer",
    "reminders": "timers",
}
"""Word -> what to write. Found in code and prose, alone or as a part of a name, in any case."""

NAMES = {
    "assignors": {
        "alike": "equivalence class",
        "hands": "bundles",
        "suit": "equivalence class",
        "grain": "tolerance",
        "pace": "restore rate",
        "span": "restore time",
        "merging": "node aggregation",
        "home": "previous owner",
        "guest": "displaced",
    },
    "tests/support/reference_model": {"books": "reference model", "account": "member record", "heading": "hand-overs in progress"},
    "tests/support/scenarios": {"stage": "single-group harness", "play": "context", "mirror": "shadow replica", "said": "ParsedDirective"},
    "statemachine": {"lay": "unfence", "arrive": "complete_handover", "heading": "hand-overs in progress"},
    "replay": {"front": "pareto_front"},
}
"""Folder -> word -> what to write. Ordinary elsewhere and in a sentence; there not as a whole name.
"""

PHRASES = {
    r"\bdef test_(?:who|nobody)_": "test_<unit>_<condition>_<expected>",
}
EXCEPTIONS = (
    ("", "knobs", "a stored field name and key, spelled so wherever the bytes or documents are"),
    ("changes/", "exogenous", "names what went"),
    ("changes/", "reminders", "names what went"),
    ("equipoise/streams/", "reminders", "the stored kind of timers"),
    ("tests/unit/equipoise/streams/", "reminders", "the stored kind of timers"),
    ("changes/", "wrappedassignor", "names what went"),
    ("tests/unit/log/test_log.py", "dislike", "parsers dislike a line"),
    ("equipoise/member/copies/stores.py", "arena", "RocksDB's name of an option"),
)
"""Start of a path, word, reason."""
MOST_WORDS = 25
"""Of a sentence. A piece of code is one word."""
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ""}
_PARTS = re.compile(r"[a-z]+(?:_[a-z]+)*", re.IGNORECASE)

_ANYWHERE = re.compile(rf"(?<![a-z])(?:{'|'.join(sorted(ANYWHERE, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)


@attrs.frozen
class Found:
    path: str
    line: int
    word: str
    instead: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r} (write: {self.instead}): {self.text.strip()[:120]}"


def files() -> list[Path]:
    """Every text file that git has, but stored data."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    left_out = ("tests/data/", "replay/data/", "CHANGELOG", "tools/words.py", "tests/unit/test_words.py")
    paths = [ROOT / name for name in listed if not name.startswith(left_out)]
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink()]


def search(path: Path) -> Iterator[Found]:
    text, name = path.read_text(encoding="utf-8", errors="replace"), str(path.relative_to(ROOT))
    for number, line in enumerate(text.splitlines(), 1):
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", line)  # TwoWords as two_words
        for word in dict.fromkeys(found.lower() for text_of in (snake, line) for found in _ANYWHERE.findall(text_of)):
            yield Found(name, number, word, ANYWHERE[word], line)
        for pattern, instead in PHRASES.items():
            for match in re.findall(pattern, line):
                yield Found(name, number, match, instead, line)
    if path.suffix == ".py":
        retired = {word: instead for folder, words in NAMES.items() if name.startswith(f"{folder}/") for word, instead in words.items()}
        yield from _names(name, text, retired)


def _names(name: str, text: str, retired: dict[str, str]) -> Iterator[Found]:
    lines = text.splitlines()
    seen = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word = token.string.strip("_").lower()
        if token.type == tokenize.NAME and word in retired and (token.start[0], word) not in seen:
            seen.add((token.start[0], word))
            yield Found(name, token.start[0], token.string, retired[word], lines[token.start[0] - 1])


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page, of a command's help or of an alert. A heading, an item of a list and
    a cell of a table begin one. A block of code and a comment are none.
    """
    text = re.sub(r"<!--.*?-->|^```.*?^```$", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", re.sub(r"`[^`]*`|{{.*?}}", "CODE", text))
    text = re.sub(r"^\s*(?:[-*]|\d+\.|#+|>)\s", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\|.*\|$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?])[\"*)]*\s+", " ".join(paragraph.split()))


def long_sentences(text: str) -> list[str]:
    """Sentences of more than MOST_WORDS words."""
    return [each for each in sentences(text) if sum(bool(re.search(r"\w", word)) for word in each.split()) > MOST_WORDS]


def unexpected() -> list[Found]:
    """Every occurrence that no exception explains."""
    found = [each for path in files() for each in search(path)]
    return [each for each in found if not any(each.path.startswith(start) and each.word.lower() == word for start, word, _ in EXCEPTIONS)]


def main(words: list[str]) -> int:
    found = [each for path in files() for each in search(path) if not words or each.word.lower().strip("_") in words]
    counts: dict[str, int] = {}
    for each in found:
        counts[each.word.lower().strip("_")] = counts.get(each.word.lower().strip("_"), 0) + 1
        if words:
            print(each)
    for word, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6d} {word}")
    if not words:
        for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
            for sentence in long_sentences(path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(ROOT)}: {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
