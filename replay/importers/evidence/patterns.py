"""A form of line: a literal that each such line has, and the expression that reads it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from equipoise.replay.importers.evidence.statements import Detail, Said

_NUMBERS = ("number", "count")
_MOST_CHARS = 4_096
"""Of one line, wrapped ones included: a table of all members may be longer, and is cut."""


@attrs.frozen
class Pattern:
    """`expression`: its named groups are fields of a statement: group, number, member, members,
    instance, other, client, text, state, count, work. `sample`: a line that it is the first of its
    table to read. `kind`: of the group, where the line says it.
    """

    literal: str
    said: Said | None
    expression: re.Pattern[str]
    sample: str
    kind: str = ""
    state: str = ""
    text: str = ""
    refine: Callable[[dict[str, str]], Said] | None = None
    """The statement, where it depends on what the line says."""


@attrs.frozen
class Found:
    """Says what one line says. `said` None: nothing of interest, in a known form."""

    said: Said | None
    group: str
    number: int
    detail: Detail


def pattern(literal: str, said: Said | None, expression: str, sample: str, **more: Any) -> Pattern:
    return Pattern(literal, said, re.compile(expression), sample, **more)


NOTHING = Found(None, "", -1, Detail())


def match_line(text: str, patterns: Sequence[Pattern]) -> Found | None:
    """Returns what the first fitting pattern reads in a line; None: none fits."""
    for each in patterns:
        if each.literal in text:
            match = each.expression.search(text, 0, _MOST_CHARS)
            if match is not None:
                return NOTHING if each.said is None and each.refine is None else _found(each, match.groupdict(default=""))
    return None


def _found(form: Pattern, read: dict[str, str]) -> Found:
    said = form.said if form.refine is None else form.refine(read)
    group = read.get("group", "")
    number = _number(read.get("number", ""))
    return Found(
        said,
        group,
        number,
        _detail(
            read.get("member", ""),
            _instance(read.get("instance", "")),
            read.get("other", ""),
            read.get("client", ""),
            read.get("text", "") or form.text,
            read.get("state", "") or form.state,
            form.kind,
            _number(read.get("count", "")),
            read.get("work", ""),
            read.get("members", ""),
        ),
    )


@functools.lru_cache(maxsize=4_096)
def _detail(member: str, instance: str, other: str, client: str, text: str, state: str, kind: str, count: int, work: str, members: str) -> Detail:
    return Detail(
        member=member,
        instance=instance,
        other=other,
        client=client,
        text=text.strip(),
        state=state,
        kind=kind,
        count=count,
        work=partitions(work),
        members=tuple(re.findall(r"[^\s,()\[\]{}]+", members)) if members else (),
    )


def _instance(text: str) -> str:
    """``None``, ``Some(a)``, ``Optional[a]``, ``null``, or the id itself."""
    found = re.fullmatch(r"(?:Some\((.*)\)|Optional\[(.*)\])", text)
    name = text if found is None else found[1] or found[2] or ""
    return "" if name in ("None", "null", "Optional.empty", "not provided") else name


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else -1


_TOPIC_PARTITION = re.compile(r"TopicPartition\(topic='([^']*)', partition=([0-9]+)\)")
_GO = re.compile(r"([A-Za-z0-9._-]+)(?:\[|:\[|: \[)([0-9, ]+)\]")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+-[0-9]+")
_MOST_WORK = 10_000


def partitions(text: str) -> tuple[str, ...]:
    """Partitions as clients write them: ``[t-0, t-1]``, ``TopicPartition(topic='t', partition=0)``,
    ``t[0 1]``, ``map[t:[0 1]]``.
    """
    if not text:
        return ()
    if "TopicPartition(" in text:
        return tuple(sorted({f"{topic}-{number}" for topic, number in _TOPIC_PARTITION.findall(text)}))[:_MOST_WORK]
    dealt = {f"{topic}-{number}" for topic, numbers in _GO.findall(text) for number in re.findall("[0-9]+", numbers)}
    return tuple(sorted(dealt or set(_PLAIN.findall(text))))[:_MOST_WORK]


def one_of(words: Mapping[str, Said], otherwise: Said) -> Callable[[dict[str, str]], Said]:
    """Chooses a statement by what its text has."""

    def refine(read: dict[str, str]) -> Said:
        text = read.get("text", "").lower()
        return next((said for word, said in words.items() if word in text), otherwise)

    return refine
