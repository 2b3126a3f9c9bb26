"""The plan that equipoise hands to its assignor inside the brokers, as one line of text. It names
the partitions that change their owner.

::

    plan   = "equipoise/1" ";" number ";" flags ";" made-for *( ";" entry )
    flags  = "-" / "h" / "r" / "hr"
    entry  = ( member / "-" / "+" member / "~" member ) ":" topic "=" range *( "_" range )
    range  = partition / ( partition "-" partition )

`number`: of several plans the highest one counts, and the others not at all. `h`: what nobody has
stays with nobody, whoever the members are. `r`: topics go together (`range`), for the next seat.
`made-for`: `made_for` of all members but those that carry plans, and of the topics that they read.
An entry moves partitions to a member, holds them back from everybody (``-``), and in groups of
Kafka Streams gives a member a copy (``+``) or takes it away (``~``); there a topic is a
sub-topology, whose id is its name's UTF-8. Members and topics are positions in these lists, from 0:
members in the order of their ids' UTF-16, topics of their ids' bytes. Numbers are decimal, without
zeros before them. There is no comma and no blank, so that a plan can be an entry of a list setting.

The assignor ignores the whole plan when it is for other members or topics, has an entry that does
not fit, or names a partition twice. Only `h` counts then.

``tests/data/broker_plans.jsonl`` and ``broker_tasks.jsonl`` have vectors that Python and Java read.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs

MARK = "equipoise/"
"""Begins every plan of every version, and the rack id of each member that carries one."""
MOST_CHARS = 30_000
"""Of a plan: brokers take strings of 32,767 bytes."""
MOST_FOLLOWED = 10**17
"""Plans with a higher number are none of ours, and are not outnumbered: there would soon be no
higher number.
"""
MOST_NAMED = 200_000
"""Partitions that one plan may name."""

Kind = Literal["move", "hold", "copy", "drop"]
_SIGN_OF: Mapping[Kind, str] = {"move": "", "hold": "-", "copy": "+", "drop": "~"}
_KIND_OF: Mapping[str, Kind] = {sign: kind for kind, sign in _SIGN_OF.items()}
_POSITION = "(?:0|[1-9][0-9]{0,8})"
_RANGE = f"{_POSITION}(?:-{_POSITION})?"
_HEAD = re.compile(r"equipoise/1;(0|[1-9][0-9]{0,17});(-|h|r|hr);([0-9a-f]{16})")
_ENTRY = re.compile(f"(?:(-)|([+~]?)({_POSITION})):({_POSITION})=({_RANGE}(?:_{_RANGE})*)")


@attrs.frozen
class PlanEntry:
    """Partitions `first` to `last` of a topic, and what is to become of them. `member`, `topic`:
    positions; `member` is 0 where `kind` is ``hold``.
    """

    kind: Kind
    member: int
    topic: int
    first: int
    last: int


@attrs.frozen(kw_only=True)
class BrokerPlan:
    """See the module. `holds`: ``h``; `together`: ``r``."""

    number: int
    made_for: str
    holds: bool = False
    together: bool = False
    entries: tuple[PlanEntry, ...] = ()


def made_for(members: Sequence[str], topics: Sequence[bytes]) -> str:
    """The hash of sorted members and topics (ids of 16 bytes): the first eight bytes of SHA-256
    over each text after its length, as hex.
    """
    digest = hashlib.sha256()
    for texts in (members, [topic.hex() for topic in topics]):
        digest.update(f"{len(texts)};".encode())
        for text in texts:
            encoded = text.encode(errors="replace")
            digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()[:16]


def in_order(members: Iterable[str]) -> list[str]:
    """Member ids in the order of a plan's positions."""
    return sorted(members, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def entries_of(kind: Kind, member: int, topic: int, partitions: Iterable[int]) -> list[PlanEntry]:
    """The fewest entries for these partitions."""
    found: list[PlanEntry] = []
    for _, run in itertools.groupby(enumerate(sorted(partitions)), lambda each: each[1] - each[0]):
        numbers = [partition for _, partition in run]
        found.append(PlanEntry(kind, member, topic, numbers[0], numbers[-1]))
    return found


def write_plan(plan: BrokerPlan) -> str:
    """The plan as text. The longest number of entries whose text has at most MOST_CHARS is written:
    what does not fit stays as it is, until the next plan.
    """
    head = f"{MARK}1;{plan.number};{'h' * plan.holds + 'r' * plan.together or '-'};{plan.made_for}"
    parts, length, named = [head], len(head), 0
    for (kind, member, topic), of in itertools.groupby(plan.entries, lambda each: (each.kind, each.member, each.topic)):
        who = f";{_SIGN_OF[kind]}{'' if kind == 'hold' else member}:{topic}="
        for index, each in enumerate(of):
            text = str(each.first) if each.first == each.last else f"{each.first}-{each.last}"
            text = f"_{text}" if index else who + text
            length, named = length + len(text), named + each.last - each.first + 1
            if length > MOST_CHARS or named > MOST_NAMED:
                return "".join(parts)
            parts.append(text)
    return "".join(parts)


def read_plan(text: str) -> BrokerPlan | None:
    """The plan; None: the text is none of this version."""
    head, *written = text.split(";", 4)
    if len(written) < 3:
        return None
    found = _HEAD.fullmatch(";".join([head, *written[:3]]))
    if found is None:
        return None
    entries: list[PlanEntry] = []
    named = 0
    for each in written[3].split(";") if len(written) > 3 else []:
        entry = _ENTRY.fullmatch(each)
        if entry is None:
            return None
        hold, sign, member, topic, ranges = entry.groups()
        for one in ranges.split("_"):
            first, dash, last = one.partition("-")
            if dash and int(last) <= int(first):
                return None
            entries.append(PlanEntry(_KIND_OF[hold or sign], int(member or 0), int(topic), int(first), int(last or first)))
            named += entries[-1].last - entries[-1].first + 1
        if named > MOST_NAMED:
            return None
    flags = found[2]
    return BrokerPlan(number=int(found[1]), made_for=found[3], holds="h" in flags, together="r" in flags, entries=tuple(entries))


def newest(texts: Iterable[str]) -> BrokerPlan | None:
    """The plan with the highest number, the first of equals; None: none of the texts is a plan."""
    plans = [plan for plan in map(read_plan, texts) if plan is not None]
    return max(plans, key=lambda plan: plan.number, default=None)
