"""Tells what Kafka's tools print about groups: ``kafka-consumer-groups --describe``, with
``--members --verbose`` and ``--state``, ``kafka-streams-groups``, of Kafka 1.0 to 4.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from equipoise.replay.importers.evidence.times import time_of_date

_COLUMNS = {
    "GROUP": "group", "TOPIC": "topic", "PARTITION": "partition", "CURRENT-OFFSET": "committed", "LOG-END-OFFSET": "end", "OFFSET-LAG": "lag",
    "LAG": "lag", "CONSUMER-ID": "member", "HOST": "host", "CLIENT-ID": "client", "GROUP-INSTANCE-ID": "instance", "#PARTITIONS": "partitions",
    "ASSIGNMENT": "assignment", "CURRENT-ASSIGNMENT": "assignment", "TARGET-ASSIGNMENT": "target", "COORDINATOR (ID)": "coordinator",
    "ASSIGNMENT-STRATEGY": "assignor", "STATE": "state", "#MEMBERS": "members", "GROUP-EPOCH": "epoch", "TARGET-ASSIGNMENT-EPOCH": "target_epoch",
    "CURRENT-EPOCH": "member_epoch", "TARGET-EPOCH": "member_target", "LEADER-EPOCH": "leader_epoch", "MEMBER": "member", "MEMBER-ID": "member",
    "PROCESS": "process", "PROCESS-ID": "process", "UPGRADE": "upgrade", "MEMBER-PROTOCOL": "protocol", "TOPOLOGY-EPOCH": "topology_epoch",
    "ASSIGNMENTS": "assignment", "UPGRADED": "upgraded", "UPGRADE-STATUS": "upgraded", "TARGET-ACTIVE": "target", "CLIENT": "client",
    "LOG-START-OFFSET": "start", "MEMBER-EPOCH": "member_epoch",
}  # fmt: skip # a table: one row a line
"""Words of a header -> what the column has."""
_HEADER = re.compile("|".join(re.escape(each) for each in sorted(_COLUMNS, key=len, reverse=True)))
_ASSIGNED = re.compile(r"([A-Za-z0-9._-]*)[(:]([0-9]+(?:,[0-9]+)*)\)?")
_NO_MEMBER = re.compile(r"(?:Consumer|Streams) group '(?P<group>[^']+)' has no active members")
_REBALANCING = re.compile(r"(?:Consumer|Streams) group '(?P<group>[^']+)' is rebalancing")


@attrs.frozen(kw_only=True)
class PartitionRow:
    """None: a dash."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str
    host: str
    client: str
    line: int

    @property
    def work(self) -> str:
        return f"{self.topic}-{self.partition}"


@attrs.frozen(kw_only=True)
class MemberRow:
    """`work` None: the table does not name it (``--members`` without ``--verbose``)."""

    member: str
    instance: str
    host: str
    client: str
    count: int
    work: tuple[str, ...] | None
    target: tuple[str, ...] | None
    line: int


@attrs.define(kw_only=True)
class Look:
    """One look at a group. `at_ms` None: the text does not tell when."""

    group: str
    file: str
    line: int
    at_ms: int | None = None
    state: str = ""
    assignor: str = ""
    coordinator: str = ""
    epoch: int = -1
    partitions: list[PartitionRow] = attrs.field(factory=list)
    members: list[MemberRow] = attrs.field(factory=list)


def header_of(line: str) -> list[tuple[str, int]] | None:
    """Columns of a table and where each begins; None: no header of a table about groups."""
    words = line.split()
    if (
        not words
        or words[0] not in ("GROUP", "TOPIC", "CONSUMER-ID", "MEMBER")
        or not re.search(r"CONSUMER-ID|COORDINATOR \(ID\)|CURRENT-OFFSET|OFFSET-LAG|#PARTITIONS", line)
    ):
        return None
    found = [(_COLUMNS[each[0]], each.start()) for each in _HEADER.finditer(line)]
    return found if len(found) > 2 else None


def read_tables(lines: Iterable[tuple[int, str]], file: str, at_ms: int | None = None) -> list[Look]:
    """Reads all tables in numbered lines. Rows that follow each other about one group are one look,
    until a partition or a member comes again. A line that is nothing but a time is when the tables
    below it were printed.
    """
    looks: list[Look] = []
    header: list[tuple[str, int]] | None = None
    noted: dict[str, str] = {}
    open_looks: dict[str, Look] = {}
    for number, line in lines:
        for expression, state in ((_NO_MEMBER, "empty"), (_REBALANCING, "rebalancing")):
            told = expression.search(line)
            if told is not None:
                noted[told["group"]] = state
                header = None
        printed_ms = time_of_date(line)
        if printed_ms is not None:
            at_ms, header = printed_ms, None
            open_looks.clear()
            continue
        found = header_of(line)
        if found is not None:
            header = found
            continue
        if not line.strip():
            header = None
            continue
        if header is None:
            continue
        row = _cells(line, header)
        if row is None:
            header = None
            continue
        group = row.get("group", "")
        look = open_looks.get(group)
        if look is None or _comes_again(look, row):
            look = Look(group=group, file=file, line=number, at_ms=at_ms, state=noted.pop(group, ""))
            open_looks[group] = look
            looks.append(look)
        look.state = noted.pop(group, "") or look.state
        _add(look, row, number)
    for group, state in noted.items():
        last = open_looks.get(group)
        if last is not None:
            last.state = state
        else:
            looks.append(Look(group=group, file=file, line=1, at_ms=at_ms, state=state))
    return looks


def _cells(line: str, header: Sequence[tuple[str, int]]) -> dict[str, str] | None:
    """The cells of a row, by words: columns that are wider than their header move those behind."""
    words = line.split()
    names = [name for name, _ in header]
    if "assignment" in names:
        return _with_assignment(words, names)
    if "coordinator" in names:  # "host:9092 (1)", and an assignor that may be empty
        match = re.search(r"(?P<before>\S+)\s+(?P<coordinator>\S+:[0-9]+\s+\([0-9-]+\))\s*(?P<rest>.*)", line)
        if match is None:
            return None
        rest = match["rest"].split()
        behind = names[names.index("coordinator") + 1 :]
        if len(rest) == len(behind) - 1 and "assignor" in behind:
            behind.remove("assignor")
        if len(rest) < len(behind) - 1:
            return None
        return {"group": match["before"], "coordinator": match["coordinator"], **dict(zip(behind, rest, strict=False))}
    if len(words) > len(names) or len(words) < min(3, len(names)):
        return None
    return dict(zip(names, words, strict=False))


def _with_assignment(words: list[str], names: list[str]) -> dict[str, str] | None:
    """Returns, of a member: assignments may have blanks, and epochs stand between them."""
    if len(words) < names.index("assignment"):
        return None
    cells: dict[str, str] = {}
    place = 0
    for number, name in enumerate(names):
        end = place + 1
        if name in ("assignment", "target"):
            end = len(words)
            if number + 1 < len(names):
                end = next((index for index in range(place + 1, len(words)) if words[index] == "-" or words[index].isdecimal()), len(words))
        cells[name] = " ".join(words[place:end])
        place = end
    return cells


def _comes_again(look: Look, row: dict[str, str]) -> bool:
    if "partition" in row and row["partition"].isdecimal():
        work = f"{row.get('topic', '')}-{int(row['partition'][:9])}"
        return any(each.work == work for each in look.partitions)
    if "partitions" in row:
        return any(each.member == row.get("member") for each in look.members)
    return "coordinator" in row and bool(look.coordinator)


def _add(look: Look, row: dict[str, str], line: int) -> None:
    member = _text(row.get("member", ""))
    if "coordinator" in row:
        look.coordinator, look.assignor = row["coordinator"], _text(row.get("assignor", ""))
        look.state = row.get("state", "").lower()
        look.epoch = _whole(row.get("epoch", "")) or -1
    elif "partitions" in row or "assignment" in row:
        works = partitions_of(row["assignment"]) if "assignment" in row else None
        count = _whole(row.get("partitions", ""))
        look.members.append(
            MemberRow(
                member=member, instance=_text(row.get("instance", "")), host=_text(row.get("host", "")), client=_text(row.get("client", "")),
                count=len(works or ()) if count is None else count, work=works,
                target=partitions_of(row["target"]) if "target" in row else None, line=line,
            )
        )  # fmt: skip # a table: one row a line
    elif "topic" in row:
        partition = _whole(row.get("partition", ""))
        if partition is None or row["topic"] == "-":
            if member:
                look.members.append(
                    MemberRow(
                        member=member,
                        instance="",
                        host=_text(row.get("host", "")),
                        client=_text(row.get("client", "")),
                        count=0,
                        work=(),
                        target=None,
                        line=line,
                    )
                )
            return
        committed, end, lag = (_whole(row.get(each, "")) for each in ("committed", "end", "lag"))
        look.partitions.append(
            PartitionRow(
                topic=row["topic"], partition=partition, committed=committed, end=end, lag=lag, member=member,
                host=_text(row.get("host", "")), client=_text(row.get("client", "")), line=line,
            )
        )  # fmt: skip # a table: one row a line


def partitions_of(text: str) -> tuple[str, ...]:
    """``orders(0,1), stock(2)`` of Kafka to 3, ``orders:0,1;stock:2`` of Kafka 4."""
    return tuple(sorted(f"{topic}-{number}" for topic, numbers in _ASSIGNED.findall(text) if topic for number in numbers.split(",")))


def _text(cell: str) -> str:
    return "" if cell == "-" else cell


def _whole(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdecimal() and len(cell) < 20 else None
