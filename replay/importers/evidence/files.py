"""Reads files of any kind that is known, in any mix: which group says what, and what was not
understood.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime as dt
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from equipoise.events.errors import InputError
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.evidence import broker_lines, java_clients, other_clients
from equipoise.replay.importers.evidence.dumped import read_dumped
from equipoise.replay.importers.evidence.lines import CHUNK_BYTES, Count, LogLine, chunks_of, read_lines, records_of, undressed
from equipoise.replay.importers.evidence.patterns import Found, match_line
from equipoise.replay.importers.evidence.statements import Detail, Said, Statements
from equipoise.replay.importers.evidence.tables import Look, header_of, read_tables
from equipoise.replay.importers.evidence.times import Clock, time_of_date
from equipoise.replay.importers.evidence.tool_documents import BurrowStatus, ConnectorStatus, read_document
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit

STDIN = "-"
DOCUMENT_BYTES = 32 * 1024 * 1024
"""A longer JSON document is read as lines: parsed, one may take forty times its bytes."""
_TABLE_LINES = 100_000
_TABLE_LINE_BYTES = 4_096
_MOST_SHAPES = 3
_LEAST_WRAPPED, _LEAST_WIDTH = 3, 60
_DOCUMENT = re.compile(rb"\s*(?:\{|\[\s*[{\]])")
_GZIP = b"\x1f\x8b"
_SETTING = re.compile(
    r"\b(session\.timeout\.ms|max\.poll\.interval\.ms|group\.instance\.id|client\.id|group\.id|partition\.assignment\.strategy"
    r"|group\.protocol|rebalance\.timeout\.ms|max\.poll\.records|auto\.commit\.interval\.ms|scheduled\.rebalance\.max\.delay\.ms"
    r"|num\.standby\.replicas|application\.id) = (\S*(?: \S+)*)"
)
SOURCES = {
    "broker": broker_lines.PATTERNS,
    "consumer": java_clients.CONSUMERS,
    "streams": java_clients.STREAMS,
    "connect": java_clients.CONNECT,
    "librdkafka": other_clients.LIBRDKAFKA,
    "python": other_clients.PYTHON,
    "go": other_clients.GO,
}
_BROKER_WORDS = (
    "GroupCoordinator",
    "GroupMetadataManager",
    "[GroupId ",
    "[GroupId=",
    "[Group ",
    "rebalance group",
    "Stabilized group",
    "has failed, removing",
    "has left, removing",
    "from leader",
    "who haven't joined",
    "with generation",
    "tatic member",
    "unknown member id",
    "egistered signal handlers",
)


@attrs.frozen(kw_only=True)
class BrokerStart:
    """A broker begins. `stopped_ms`: when it was told to stop before, -1: nothing says so.
    `goes_on`: its log tells of groups before that, too.
    """

    at_ms: int
    place: str
    stopped_ms: int
    goes_on: bool


@attrs.define(kw_only=True)
class ReadFile:
    """Says what a file was, and how much of it was understood. `shapes`: lines about groups that
    were not understood, in the forms that came most, each with how often and its first line.
    """

    name: str
    kinds: Counter[str] = attrs.field(factory=Counter)
    lines: int = 0
    understood: int = 0
    unknown: int = 0
    shapes: list[tuple[str, int, int]] = attrs.field(factory=list)
    has_time: bool = False
    has_date: bool = False
    has_zone: bool = False
    problem: str = ""
    shift_ms: int = 0
    dialect: str = ""
    """Of a Python or Go consumer: which."""
    starts: list[BrokerStart] = attrs.field(factory=list)
    """Of a broker's log: its beginnings, in order."""

    @property
    def kind(self) -> str:
        return ", ".join(kind for kind, _ in self.kinds.most_common())


@attrs.define
class Evidence:
    """Says what all files say. `groups`: group -> statements; "": of lines that name none."""

    files: list[ReadFile] = attrs.field(factory=list)
    groups: dict[str, Statements] = attrs.field(factory=dict)
    looks: list[Look] = attrs.field(factory=list)
    documents: list[tuple[int, ConnectorStatus | BurrowStatus]] = attrs.field(factory=list)
    """File, and what it says."""
    generations: dict[str, list[RawRecord]] = attrs.field(factory=dict)
    """Group -> records of its generations, from kafka-dump-log."""
    commits: dict[str, list[RecordedCommit]] = attrs.field(factory=dict)
    backwards: set[int] = attrs.field(factory=set)
    """Files whose newest lines come first."""

    def statements(self) -> Statements:
        """Statements about another group, with none so far."""
        return Statements([each.name for each in self.files], self.backwards)


def read_evidence(paths: Sequence[str]) -> Evidence:
    """Reads files; ``-`` is standard input. Raises InputError for one that cannot be read."""
    found = Evidence()
    names = short_names(paths)
    found.files = [ReadFile(name=name) for name in names]
    for number, path in enumerate(paths):
        try:
            with contextlib.ExitStack() as stack:
                file: IO[bytes] = sys.stdin.buffer if path == STDIN else stack.enter_context(open(path, "rb"))
                year = dt.datetime.now(dt.UTC).year if path == STDIN else dt.datetime.fromtimestamp(Path(path).stat().st_mtime, dt.UTC).year
                read_file(found, number, _unpacked(file, found.files[number]), year)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return found


def short_names(paths: Sequence[str]) -> list[str]:
    """Names of files, each with as much of its path as tells it from the others."""
    parts = [("<stdin>",) if each == STDIN else Path(each).parts for each in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _unpacked(file: IO[bytes], into: ReadFile) -> Iterator[bytes]:
    """The file in pieces of at most `CHUNK_BYTES`, also where it is packed."""
    first = file.read(2)
    if first != _GZIP:
        yield first
        yield from chunks_of(file)
        return
    unpacking = zlib.decompressobj(wbits=31)
    packed = first
    try:
        while True:
            if unpacking.eof and packed:  # logs that were appended to each other
                unpacking = zlib.decompressobj(wbits=31)
            piece = unpacking.decompress(packed, CHUNK_BYTES)
            packed = unpacking.unconsumed_tail or unpacking.unused_data
            if piece:
                yield piece
            elif not packed:
                packed = file.read(1 << 18)
                if not packed:
                    break
    except zlib.error as error:
        into.problem = f"its compression is damaged, what comes after is not read: {error}"


def read_file(found: Evidence, number: int, chunks: Iterable[bytes], year: int = 1970) -> None:
    """Reads one file, in pieces, into `found`."""
    into = found.files[number]
    pieces = iter(chunks)
    begin = b""
    for piece in pieces:
        begin += piece
        if len(begin) >= 4_096:
            break
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        pieces = _decoded(_chain(begin, pieces))
        begin = next(pieces, b"")
    if _DOCUMENT.match(begin):
        whole = _whole_document(begin, pieces)
        is_read = len(whole) <= DOCUMENT_BYTES
        if not is_read:
            into.problem = f"it is a JSON document of more than {DOCUMENT_BYTES >> 20} MiB: its lines are read, divide it to have it read whole"
        read = _parsed(whole) if is_read else None
        if read is not None:
            documents = read_document(read)
            found.documents += [(number, each) for each in documents]
            into.lines = whole.count(b"\n") + 1
            into.understood = into.lines if documents else 0
            for each in documents:
                into.kinds["Kafka Connect's REST status" if isinstance(each, ConnectorStatus) else "Burrow's status"] += 1
            if documents:
                return
            records = records_of(read)
            whole = b"\n".join(json.dumps(each).encode() for each in records) or whole
        begin = whole
    _read_log(found, number, _chain(begin, pieces), year)


def _decoded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 with its mark as UTF-8, piece by piece."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _chain(begin: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield begin
    yield from pieces


def _whole_document(begin: bytes, pieces: Iterator[bytes]) -> bytes:
    """The file, if it is one JSON document and not JSON lines; else its beginning."""
    first = begin.lstrip().partition(b"\n")[0].strip()
    if first.endswith(b"}") and len(first) > 2 and begin.lstrip()[:1] == b"{" and _parsed(first) is not None and begin.strip() != first:
        return begin  # JSON lines
    parts, size = [begin], len(begin)
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > DOCUMENT_BYTES:
            break
    return b"".join(parts)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@attrs.define
class _Reader:
    """One log. `last_group`: of the line before, for lines of the same process that name none."""

    found: Evidence
    number: int
    into: ReadFile
    groups: set[str] = attrs.field(factory=set)
    client: str = ""
    sources: list[str] = attrs.field(factory=lambda: list(SOURCES))
    shapes: Counter[str] = attrs.field(factory=Counter)
    places: dict[str, int] = attrs.field(factory=dict)
    config: dict[str, str] = attrs.field(factory=dict)
    stopped_ms: int = -1
    """When the broker was told to stop; -1: it runs, or was not."""
    last_ms: int = 0
    steps: int = 0
    """Lines that are later than the one before, less those that are earlier."""
    widths: Counter[int] = attrs.field(factory=Counter)
    """Of the first lines of those that go on, how many have which length."""
    has_said: bool = False
    """The broker has told of groups since it began."""

    def take(self, line: LogLine) -> None:
        if ".ms = " in line.text or ".id = " in line.text:
            self._settings(line)
            return
        text = line.text
        if line.at_ms is not None:
            self.steps += (line.at_ms > self.last_ms) - (line.at_ms < self.last_ms)
            self.last_ms = line.at_ms
        if "CreateTime: " in text and self._dumped(text):
            return
        if "\n" in text and self._is_wrapped(text):
            text = text.replace("\n", "")
        found, source = self._match(text)
        if found is None and "\n" in text:
            for joint in (" ", ""):
                found, source = self._match(text.replace("\n", joint))
                if found is not None:
                    break
        if found is None:
            if _is_about_groups(text):
                self.into.unknown += 1
                shape = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27,}|[0-9]+", "N", text.partition("\n")[0][:300])
                if len(self.shapes) < 1_000 or shape in self.shapes:
                    self.shapes[shape] += 1
                    self.places.setdefault(shape, line.number)
            return
        self.into.understood += 1
        if found.said is None:
            return
        self.into.kinds[_SOURCE_NAMES[source]] += 1
        if source in ("python", "go") and not self.into.dialect:
            self.into.dialect = _dialect(text, source)
        self._add(line, found, source)

    def _is_wrapped(self, text: str) -> bool:
        """Returns whether a terminal broke a line: many are as long, and none is longer."""
        lines = text.split("\n")
        self.widths[len(lines[0])] += 1
        width = max(self.widths)
        return self.widths[width] >= _LEAST_WRAPPED and width >= _LEAST_WIDTH and all(len(each) == width for each in lines[:-1])

    def _dumped(self, text: str) -> bool:
        """Takes a record that kafka-dump-log printed; whether the line is one."""
        read = read_dumped(text)
        if read is None:
            return False
        if isinstance(read, RecordedCommit):
            self.found.commits.setdefault(read.group, []).append(read)
        else:
            records = self.found.generations.setdefault(read[0], [])
            after_ms = records[-1].timestamp_ms if records else 0
            records.append(read[1]._replace(timestamp_ms=max(after_ms, read[1].timestamp_ms)))  # as a coordinator writes them
        self.into.kinds["what kafka-dump-log printed"] += 1
        self.into.understood += 1
        return True

    def _match(self, text: str) -> tuple[Found | None, str]:
        order = self.sources
        is_of_broker = any(word in text for word in _BROKER_WORDS)
        if is_of_broker and order[0] != "broker":
            order = ["broker", *(each for each in order if each != "broker")]
        for each in order:
            if each == "broker" and not is_of_broker and "eader" not in text and "roup" not in text:
                continue
            found = match_line(text, SOURCES[each])
            if found is not None:
                if found.said is not None and self.sources[0] != each:
                    self.sources.remove(each)
                    self.sources.insert(0, each)
                return found, each
        return None, ""

    def _broker_itself(self, line: LogLine, said: Said) -> None:
        at_ms = 0 if line.at_ms is None else line.at_ms
        if said is Said.BROKER_DOWN:
            self.stopped_ms = at_ms
        elif self.has_said or not self.into.starts:  # it says twice that it begins
            place = f"{self.into.name}:{line.number}"
            self.into.starts.append(BrokerStart(at_ms=at_ms, place=place, stopped_ms=self.stopped_ms, goes_on=self.has_said))
            self.stopped_ms, self.has_said = -1, False

    def _add(self, line: LogLine, found: Found, source: str) -> None:
        if found.said in (Said.BROKER_UP, Said.BROKER_DOWN):
            self._broker_itself(line, found.said)
            return
        self.has_said = True
        group, detail = found.group, found.detail
        number = found.number
        if source == "python":
            if found.said is Said.SYNCED and number < 0:
                number = detail.count
            if found.said is Said.REBALANCING and not group:
                group = detail.other
        if source == "consumer" and number < 0 and detail.count >= 0 and found.said in (Said.JOINED, Said.SYNCED):
            number = detail.count
        if group:
            self.groups.add(group)
        statements = self.found.groups.get(group)
        if statements is None:
            statements = self.found.groups[group] = self.found.statements()
        statements.append(0 if line.at_ms is None else line.at_ms, found.said or Said.STATE, number, self.number, line.number, detail)

    def _settings(self, line: LogLine) -> None:
        """The values that a Java client prints when it begins."""
        read = dict(_SETTING.findall(line.text))
        if not read:
            return
        self.into.understood += 1
        self.config.update(read)
        group = self.config.get("group.id", "")
        if "session.timeout.ms" in read and group not in ("", "null"):
            statements = self.found.groups.setdefault(group, self.found.statements())
            client = self.config.get("client.id", "")
            for name, value in self.config.items():
                if name not in ("group.id", "client.id") and value not in ("null", ""):
                    detail = Detail(client=client, state=name, text=value)
                    statements.append(0 if line.at_ms is None else line.at_ms, Said.SETTING, -1, self.number, line.number, detail)
            self.config = {}


_SOURCE_NAMES = {
    "broker": "a broker's log",
    "consumer": "a Java consumer's log",
    "streams": "Kafka Streams' log",
    "connect": "Kafka Connect's log",
    "librdkafka": "librdkafka's log",
    "python": "a Python consumer's log",
    "go": "a Go consumer's log",
}


def _dialect(text: str, source: str) -> str:
    if source == "go":
        return "sarama" if "consumergroup/" in text or "JoinGroup failed" in text else "franz-go"
    return "faust" if "[^" in text else "aiokafka" if "aiokafka" in text else "kafka-python"


def client_of(member: str) -> str:
    """The client id that begins a member id; "": members of KIP-848 choose ids without."""
    found = re.fullmatch(r"(.*)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", member)
    return "" if found is None else found[1]


_ABOUT = re.compile(r"\bgroup\b|ebalanc|\bmember\b|[cC]oordinator", re.IGNORECASE)
_NOT_ABOUT = re.compile(
    r"group '[^']+' (?:is rebalancing|has no active)|transaction|TransactionCoordinator|ThreadGroup|controller|NetworkClient|QuorumController"
    r"|share group|group\.[a-z.]+ = |-group\.|kafka\.consumer_offsets"
)


def _is_about_groups(text: str) -> bool:
    return _ABOUT.search(text) is not None and _NOT_ABOUT.search(text) is None


def _read_log(found: Evidence, number: int, chunks: Iterable[bytes], year: int) -> None:
    into = found.files[number]
    clock, count = Clock(year), Count()
    reader = _Reader(found, number, into)
    tables = _Tables(found, number, into)
    for line in read_lines(tables.watched(chunks), clock, count):
        if tables.is_header(line.text):
            tables.at(line)
            continue
        reader.take(line)
    if reader.steps < -1:
        found.backwards.add(number)
        into.starts.clear()  # a broker that begins is told by what comes before
    tables.finish(clock)
    into.lines = count.lines
    into.has_time, into.has_date, into.has_zone = clock.has_time, clock.has_date, clock.has_zone
    into.shapes = [(shape, times, reader.places[shape]) for shape, times in reader.shapes.most_common(_MOST_SHAPES)]
    _name_groups(found, number, reader)


_TABLE_WORDS = (b"CONSUMER-ID", b"COORDINATOR (ID)", b"OFFSET", b" group '", b"#PARTITIONS")
"""A header of a table, or what is printed above one, has one of these."""


_TIME = re.compile(rb"(?:> )?[A-Z12]")
"""What a line that is a time begins with."""


class _Tables:
    """Tables within a file: their text is kept while the lines go by."""

    def __init__(self, found: Evidence, number: int, into: ReadFile) -> None:
        self._found, self._number, self._into = found, number, into
        self._kept: list[tuple[int, str]] = []
        self._times: list[tuple[int, int]] = []
        """Line and time of what came before tables."""

    def watched(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks; lines of tables are kept on the way."""
        line, is_table, rest = 0, False, b""
        for chunk in chunks:
            if not is_table and not rest and not any(word in chunk for word in _TABLE_WORDS):
                line += chunk.count(b"\n")
                cut = chunk.rfind(b"\n")
                rest = chunk[cut + 1 :] if cut >= 0 else b""
                rest = rest if len(rest) < _TABLE_LINE_BYTES and (b"GROUP" in rest or b"TOPIC" in rest) else b""
                if not rest or cut < 0:
                    rest = b""
                yield chunk
                continue
            yield chunk
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()[: _TABLE_LINE_BYTES + 1]  # a longer one is none of a table
            for each in lines:
                line += 1
                is_table = self._keep(line, each, is_table=is_table)
        if rest:
            self._keep(line + 1, rest, is_table=is_table)

    def _keep(self, line: int, raw: bytes, *, is_table: bool) -> bool:
        if len(raw) > _TABLE_LINE_BYTES or len(self._kept) > _TABLE_LINES:
            return False
        if not is_table and not any(word in raw for word in _TABLE_WORDS):
            if len(raw) < 80 and _TIME.match(raw) is not None and time_of_date(undressed(raw)) is not None:
                self._kept.append((line, undressed(raw)))
            return False
        text = undressed(raw)
        if header_of(text) is not None:
            is_table = True
        self._kept.append((line, text))
        return is_table and bool(text.strip())

    def is_header(self, text: str) -> bool:
        return header_of(text.partition("\n")[0]) is not None

    def at(self, line: LogLine) -> None:
        if line.at_ms is not None:
            self._times.append((line.number, line.at_ms))

    def finish(self, clock: Clock) -> None:
        looks = read_tables(self._kept, self._into.name)
        for look in looks:
            before = [at_ms for number, at_ms in self._times if number <= look.line]
            look.at_ms = before[-1] if look.at_ms is None and before and clock.has_date else look.at_ms
            clock.has_time = clock.has_time or look.at_ms is not None
        rows = sum(len(each.partitions) + len(each.members) for each in looks)
        if looks:
            self._into.kinds["what kafka-consumer-groups printed"] += max(1, rows)
            self._into.understood += rows
        self._found.looks += looks


def _name_groups(found: Evidence, number: int, reader: _Reader) -> None:
    """Lines that name no group are of the only one that their file names."""
    nameless = found.groups.get("")
    if nameless is None or len(reader.groups) != 1:
        return
    (group,) = reader.groups
    into = found.groups[group]
    rest = found.statements()
    nameless.move(number, into, rest)
    found.groups[""] = rest
