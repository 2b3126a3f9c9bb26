"""Replaces names in what `equipoise incident --redact` says.

What is known as a name (of a group, topic, member, host or file) is replaced by the same word
everywhere. Of all else only words are left that this package says itself or that the known forms of
lines have: a line that was not understood may have names anywhere.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.cli.screen import Line, Styled, Table

if TYPE_CHECKING:
    from equipoise.replay.importers.evidence.files import Evidence
    from equipoise.replay.incident import GroupHistory, Incident

_SAID_BY = (
    ("equipoise.replay", ("incident", "importers/groups", "importers/evidence", "wording.py", "known_changes.py")),
    ("equipoise.cli", ("incident.py", "incident_text.py")),
)
"""Who says what is shown, and which forms of lines are known."""
_CODES = frozenset({"kind", "cause", "may_be"})
"""Fields of the document that have words of a list of ours."""
_HIDDEN = "\ue000"
_NAMES_OF_A_ROW = ("group", "file", "topic", "member", "instance", "host", "client", "connector", "worker", "cluster")
_ADDRESS = re.compile(
    r"/?\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{2,5})?\b|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}:[0-9]{2,5}\b"
)
_CHUNK = re.compile(r"[^\s,;()\[\]{}<>\"'`|=]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_ALIAS = re.compile(r"(?:group|topic|member|host|file|address|name)-[0-9]+")
_MEASURE = re.compile(r"[+-]?[0-9][0-9,.:+-]*(?:ms|s|min|h|d|%|kB|MB|MiB|Z|T[0-9:.]+Z?)?")
_EXCEPTION = re.compile(r"(?:java\.[a-z.]+|org\.apache\.[a-z.]+)?\w*(?:Exception|Error)")
_BETWEEN = re.compile(
    r"(?i)an?|and|any|are|as|be|been|but|can|for|from|had|has|have|if|in|is|its?|may|not?|of|on|or|so|than|that|the|then|there|this|to|was|when|will|with"
)
_NAME_FOLLOWS = re.compile(
    r"(?i)(?:[=:]|\b(?:groups?|(?:group|client|member|consumer|instance)\W?id|topics?|members?|clients?|consumers?|instances?|hosts?|nodes?|brokers?"
    r"|applications?|connectors?|workers?|for|of|from|by|to|in|on|at|with|named?)\W{0,3})[\s\"'`(\[{<]*$"
)


@functools.cache
def known_words() -> frozenset[str]:
    """Returns the words, in lower case, of the strings of those who say what is shown. Samples of
    lines are left out: they have names.
    """
    found = {"a", "s", "h", "n", "group", "topic", "member", "host", "file", "address", "name"}
    for package, names in _SAID_BY:
        for source in _sources(resources.files(package), names):
            for text in _strings(ast.parse(source.read_text(encoding="utf-8"))):
                plain = re.sub(r"\(\?P<\w+>|\\[a-zA-Z]", " ", text)
                found.update(word.lower() for word in _LETTERS.findall(plain) if len(word) > 1)
    return frozenset(found)


def _sources(folder: Traversable, names: Iterable[str]) -> Iterator[Traversable]:
    for name in names:
        place = folder.joinpath(name)
        if place.is_dir():
            yield from (each for each in place.iterdir() if each.name.endswith(".py"))
        else:
            yield place


def _strings(tree: ast.AST) -> Iterator[str]:
    """Strings of a module that are neither docstrings nor samples."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    is_pattern = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "pattern"
    sample = tree.args[3] if is_pattern and isinstance(tree, ast.Call) else None
    for each in ast.iter_child_nodes(tree):
        is_docstring = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if each is not sample and not is_docstring:
            yield from _strings(each)


class Redactor:
    """Replaces names in texts, each by the same word everywhere. Of an exception only its kind is
    left: its text may be of a record.
    """

    def __init__(
        self,
        histories: Sequence[GroupHistory],
        found: Mapping[str, Sequence[Incident]],
        evidence: Evidence | None = None,
        hidden: Mapping[str, str] | None = None,
        files: Sequence[str] = (),
    ) -> None:
        from equipoise.replay.incident.named_causes import THREAD_DIED

        self._exception = re.compile(rf"({THREAD_DIED}: [\w$]+).*?( \[[^\[\]]*:[0-9]+\])?$", re.MULTILINE)
        self._aliases: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._others: dict[str, str] = {}
        for name, kind in (*(() if evidence is None else _names_in(evidence)), *((each, "file") for each in files), *_names(histories, found)):
            if name and name not in self._aliases and not (name.isdecimal() and len(name) < 3):
                self._aliases[name] = self._next(kind)
        self._known = _any_of(self._aliases)
        of_lines = {**self._aliases, **{name: self._aliases[new] for name, new in (hidden or {}).items() if new in self._aliases}}
        self._aliases |= {re.sub("[0-9]+", "N", name): alias for name, alias in of_lines.items()} | of_lines
        self._known_in_lines = _any_of(self._aliases)

    def _next(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]}"

    def _other(self, text: str, kind: str) -> str:
        if text not in self._others:
            self._others[text] = self._next(kind)
        return self._others[text]

    def names(self, text: str) -> str:
        """The text without what is known as a name, and without addresses."""
        text = self._known.sub(lambda match: self._aliases[match[0]], self._exception.sub(r"\1\2", text))
        return _ADDRESS.sub(lambda match: self._other(match[0], "address"), text)

    def text(self, text: str) -> str:
        """The text with known words alone."""
        return _CHUNK.sub(lambda match: self._chunk(match[0]), self.names(text))

    def form(self, text: str) -> str:
        """A line that was not understood, with words of known forms alone, and of these none in a
        place in which a name may be.
        """
        text = self.names(self._known_in_lines.sub(lambda match: self._aliases[match[0]], text))

        def chunk(match: re.Match[str]) -> str:
            before = text[max(0, match.start() - 40) : match.start()]
            is_alias = _ALIAS.match(match[0]) is not None
            is_between = _BETWEEN.fullmatch(match[0]) is not None
            return match[0] if is_between else self._chunk(match[0], is_name=not is_alias and _NAME_FOLLOWS.search(before) is not None)

        return _CHUNK.sub(chunk, text)

    def _chunk(self, chunk: str, *, is_name: bool = False) -> str:
        core = chunk.strip(".:!?*_-/\\·#")
        if not _LETTERS.search(core.replace("N", "")) or _MEASURE.fullmatch(core) or _EXCEPTION.fullmatch(core):
            return chunk
        rest = _ALIAS.sub("", core)
        is_whole = not _LETTERS.search(rest.replace("N", "")) if rest != core else not _is_id(core) and all(map(_is_known, _LETTERS.findall(core)))
        if is_whole and not is_name:
            return chunk
        return chunk.replace(core, self._other(core, "name"), 1)

    def document(self, value: Any, text: Callable[[str], str] | None = None) -> Any:
        """A document or a part without names. `text`: what replaces them; None: `self.text`."""
        replace = text or self.text
        if isinstance(value, str):
            return replace(value)
        if isinstance(value, Line):
            return Line(
                *(replace(span) if isinstance(span, str) else Styled(replace(span.text), bold=span.bold, colour=span.colour) for span in value.spans)
            )
        if isinstance(value, Table):
            rows = [[replace(cell) if isinstance(cell, str) else cell for cell in row] for row in value.rows]
            return Table(columns=value.columns, rows=rows, title=value.title)
        if isinstance(value, dict):
            return {key: each if key in _CODES else self.document(each, text) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(each, text) for each in value]
        return value


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    every = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{every or '(?!)'})(?!\w)")


def hide_words(evidence: Evidence) -> dict[str, str]:
    """Gives each name that consists of known words another one, so that a report can be told from
    the names in it. Returns what each such name is now.
    """
    words = {name for name, _ in _names_in(evidence) if _LETTERS.search(name) and all(map(_is_known, _LETTERS.findall(name)))}
    new = {name: f"{_HIDDEN}{number}{_HIDDEN}" for number, name in enumerate(sorted(words))}

    def name(old: str) -> str:
        topic, dash, number = old.rpartition("-")
        return new.get(old) or (f"{new[topic]}-{number}" if dash and number.isdecimal() and topic in new else old)

    def named(row: Any) -> Any:
        fields = {field.name: getattr(row, field.name) for field in attrs.fields(type(row))}
        changed = {field: name(value) for field, value in fields.items() if field in _NAMES_OF_A_ROW and isinstance(value, str)}
        changed |= {field: tuple(map(name, value)) for field, value in fields.items() if field in ("work", "target") and value is not None}
        changed |= {field: type(value)(map(named, value)) for field, value in fields.items() if field in ("partitions", "members")}
        return attrs.evolve(row, **changed)

    for each in evidence.files:
        each.name = name(each.name)
    evidence.groups = {name(group): statements for group, statements in evidence.groups.items()}
    for statements in evidence.groups.values():
        statements.rename(name)
    evidence.looks = [named(each) for each in evidence.looks]
    evidence.documents = [(file, named(each)) for file, each in evidence.documents]
    evidence.generations = {name(group): records for group, records in evidence.generations.items()}
    evidence.commits = {name(group): records for group, records in evidence.commits.items()}
    return new


def _is_known(word: str) -> bool:
    return word.lower() in known_words()


def _is_id(text: str) -> bool:
    """Words with a number, as ``consumer-7f``: most likely a name."""
    return re.search(r"[A-Za-z]\w*[-_.](?:[0-9]|N\b)|[0-9][A-Za-z]", text) is not None


def _names(histories: Sequence[GroupHistory], found: Mapping[str, Sequence[Incident]]) -> Iterator[tuple[str, str]]:
    for history in histories:
        yield history.group, "group"
        for incident in found.get(history.group, ()):
            for rebalance in incident.chain:
                for name in (*rebalance.members, *rebalance.joined, *rebalance.gone, *rebalance.lost_state, *rebalance.told_by):
                    yield name, "member"
                for work in (*rebalance.moved, *rebalance.unowned, *rebalance.given):
                    yield work.rpartition("-")[0], "topic"
            for gap in incident.gaps:
                yield gap.partition.rpartition(":")[2].rpartition("-")[0], "topic"
            for name in (*incident.members, *incident.whose):
                yield name, "member"
        for state in history.states:
            for member in state.group.members.values():
                yield member.host.lstrip("/"), "host"
                for own in (member.client_id, member.instance_id or "", member.member_id):
                    yield own, "member"
                for work in member.active:
                    yield work.rpartition("-")[0], "topic"
        for topic in history.commits:
            yield topic.rpartition(":")[2].rpartition("-")[0], "topic"


def _names_in(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for each in evidence.files:
        yield each.name, "file"
    for group, statements in evidence.groups.items():
        yield group, "group"
        for detail in statements.details():
            for name in (detail.member, detail.instance, detail.client, *detail.members, *([] if " " in detail.other else [detail.other])):
                yield name, "member"
            for work in detail.work:
                yield work.rpartition("-")[0] or work, "topic"
    for look in evidence.looks:
        yield look.group, "group"
        for row in look.partitions:
            yield from ((row.topic, "topic"), (row.member, "member"), (row.client, "member"), (row.host.lstrip("/"), "host"))
        for member in look.members:
            yield from ((member.member, "member"), (member.instance, "member"), (member.client, "member"), (member.host.lstrip("/"), "host"))
            for work in member.work or ():
                yield work.rpartition("-")[0], "topic"
    for _, document in evidence.documents:
        for field, kind in (("group", "group"), ("connector", "group"), ("worker", "host"), ("cluster", "name")):
            yield getattr(document, field, ""), kind
