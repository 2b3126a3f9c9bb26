"""Lines of logs as records: time, place and text, without the dress that containers, terminals and
JSON put around them. Lines that cannot be about a group are passed over before anything is parsed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from equipoise.replay.importers.evidence.times import Clock, time_of_value

NEEDLE = b"roup"
"""Nearly every line about a group has it."""
SELDOM = (
    b"poll",
    b"POLL",
    b"stream-",
    b"ession expired",
    b"member_id",
    b".ms = ",
    b"CONSUMER-ID",
    b"FencedInstance",
    b"nknown member",
    b"ommitFailed",
    b"WorkerS",
    b"SESSTMOUT",
    b"fresh process id",
    b"signal handlers",
    b"uncaught exception",
    b"is not known in",
)
"""The others have one of these."""
_NOISE = b" expired offsets in "
"""What every broker writes every ten minutes of its own work."""
_MOST_WRAPPED = 12
_MOST_BYTES = 16_384
CHUNK_BYTES = 1 << 20
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_STARTS = re.compile(
    rb"^(?:[\w./-]+ *\| *)?(?:[>|] ?)*(?:<[0-9]{1,3}>[0-9]? ?)?(?:\[?[\w./:-]+\]? ){0,3}?[\[(<\"']*"
    rb"(?:%[0-9]\||[0-9]{2,4}[-/.][0-9A-Za-z]{2,3}[-/.][0-9]{2,4}|[0-9]{2}:[0-9]{2}:[0-9]{2}"
    rb"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +[0-9]|[IWEF][0-9]{4} |[0-9]{1,2} [A-Z][a-z]{2} [0-9]{4}|1[0-9]{9}|20[0-9]{6}"
    rb"|(?:time|ts|timestamp|level)=|TRACE|DEBUG|INFO|WARN|ERROR|FATAL|CRITICAL|pod/|\{\"|(?:baseO|o)ffset: [0-9])"
)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_CSV = re.compile(r"([^\"{]{0,120},)\"(.*?)\"?$", re.DOTALL)
_LOGFMT = re.compile(r"(?:time|ts|timestamp|level)=")
_ESCAPED = re.compile(r"\b(?:msg|message)=\"((?:[^\"\\]|\\.)*)\"")
_MESSAGES = ("message", "msg", "log", "@message", "MESSAGE", "text", "body", "event", "textPayload", "line", "short_message")
_TIMES = (
    "@timestamp",
    "timestamp",
    "time",
    "ts",
    "t",
    "asctime",
    "timeMillis",
    "__REALTIME_TIMESTAMP",
    "date",
    "datetime",
    "instant",
    "timestamp_ms",
)
_NESTED = ("jsonPayload", "fields", "record", "_source", "result", "log")


@attrs.frozen
class LogLine:
    """`number`: of its first line, from 1. `at_ms` None: no line so far had a time."""

    number: int
    at_ms: int | None
    text: str


@attrs.define
class Count:
    """Lines of a file."""

    lines: int = 0


def read_lines(chunks: Iterable[bytes], clock: Clock, count: Count) -> Iterator[LogLine]:
    """Yields the lines that may be about a group, each with the lines that go on with it."""
    held: list[bytes] = []
    held_from = 0
    last_ms: int | None = None
    before = b""
    for lines, has_seldom in _blocks(chunks):
        place = 0
        while held and place < len(lines) and _goes_on(held, lines[place]):
            held.append(lines[place])
            place += 1
        for index in _wanted(lines, has_seldom=has_seldom):
            if index < place:
                continue
            if held:
                made = _made(held, held_from, clock, last_ms)
                last_ms = made.at_ms
                yield made
            line, above = lines[index], lines[index - 1] if index else before
            is_cut = not _starts(line) and not line.startswith((b"\t", b"    ")) and not _is_table(line)
            held = [above, line] if is_cut and place < index and _starts(above) else [line]
            held_from = count.lines + index + 2 - len(held)
            place = index + 1
            while place < len(lines) and _goes_on(held, lines[place]):
                held.append(lines[place])
                place += 1
        if held and place < len(lines):
            made = _made(held, held_from, clock, last_ms)
            last_ms = made.at_ms
            yield made
            held = []
        before = lines[-1][:_MOST_BYTES] if lines else before
        count.lines += len(lines)
    if held:
        yield _made(held, held_from, clock, last_ms)


def _starts(line: bytes) -> bool:
    """Returns whether a line begins as records of logs do."""
    return _STARTS.match(_COLOUR.sub(b"", line[:200]) if b"\x1b" in line[:200] else line) is not None


def _goes_on(held: list[bytes], line: bytes) -> bool:
    """Returns whether a line belongs to the ones before: it has no time, and is not empty."""
    return len(held) < _MOST_WRAPPED and len(line) < _MOST_BYTES and not _starts(line) and bool(line.strip()) and not _is_table(held[0])


def _wanted(lines: list[bytes], *, has_seldom: bool) -> list[int]:
    """Places of the lines that may be about a group."""
    if not has_seldom:
        return [index for index, line in enumerate(lines) if NEEDLE in line and _NOISE not in line]
    return [index for index, line in enumerate(lines) if (NEEDLE in line or any(each in line for each in SELDOM)) and _NOISE not in line]


def _blocks(chunks: Iterable[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    """Whole lines of each chunk, and whether one of them may have something of SELDOM."""
    rest = b""
    for chunk in chunks:
        block = rest + chunk
        end = block.rfind(b"\n")
        if end < 0 and len(block) < 1 << 24:
            rest = block
            continue
        if end < 0:  # no log: a file without lines
            block, end = block[:_MOST_BYTES], _MOST_BYTES
        rest = block[end + 1 :]
        block = block[:end]
        yield block.split(b"\n"), any(each in block for each in SELDOM)
    if rest:
        yield [rest], True


def _is_table(line: bytes) -> bool:
    return b"CONSUMER-ID" in line or b"CURRENT-OFFSET" in line or b"COORDINATOR (ID)" in line


def _made(held: list[bytes], number: int, clock: Clock, last_ms: int | None) -> LogLine:
    texts = [undressed(each) for each in held]
    first = texts[0]
    document = _document(first)
    if document is not None:
        at_ms, text = document
        if at_ms is None:
            at_ms = clock.read(text)
        else:
            clock.has_time = clock.has_date = clock.has_zone = True
        return LogLine(number, last_ms if at_ms is None else at_ms, text)
    at_ms = clock.read(first)
    text = first if len(texts) == 1 else "\n".join(texts)
    return LogLine(number, last_ms if at_ms is None else at_ms, text)


def undressed(line: bytes) -> str:
    """A line as text, without colours and quotation marks of mails and issues."""
    text = line[:_MOST_BYTES].decode("utf-8", "replace").rstrip("\r\n")
    if not text.isprintable():
        text = _ANSI.sub("", text)
    if "&" in text and ";" in text:
        text = html.unescape(text)
    return _unquoted(text.removeprefix("> "))


def _unquoted(text: str) -> str:
    """A line without the quotation marks of CSV and logfmt around its message."""
    if '"' not in text or text.startswith("{"):
        return text
    if _LOGFMT.match(text):
        return _ESCAPED.sub(lambda found: found[1].replace('\\"', '"').replace("\\n", "\n"), text, count=1)
    found = _CSV.match(text)
    return text if found is None else found[1] + found[2].replace('""', '"')


def _document(text: str) -> tuple[int | None, str] | None:
    """Time and message of a line of JSON; None: it is none."""
    begin = text.find("{")
    if begin < 0 or begin > 120 or '":' not in text[begin : begin + 200] or not text.rstrip().endswith("}"):
        return None
    try:
        read = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return None
    return _of_document(read)


def _of_document(read: Any, depth: int = 0) -> tuple[int | None, str] | None:
    if not isinstance(read, dict) or depth > 3:
        return None
    at_ms = next((found for key in _TIMES if key in read and (found := _time(read[key])) is not None), None)
    text = next((read[key] for key in _MESSAGES if isinstance(read.get(key), str)), None)
    if text is None:
        inner = next((one for key in _NESTED if (one := _of_document(read.get(key), depth + 1)) is not None), None)
        return None if inner is None else (inner[0] if at_ms is None else at_ms, inner[1])
    if text.lstrip().startswith("{"):
        try:
            inner = _of_document(json.loads(text), depth + 1)
        except (ValueError, RecursionError):
            inner = None
        if inner is not None:
            return (inner[0] if inner[0] is not None else at_ms), inner[1]
    extra = "".join(f", {key}: {value}" for key, value in read.items() if key in _KEYS and isinstance(value, str | int))
    exception = next((read[key] for key in ("exception", "stack_trace", "error", "err") if isinstance(read.get(key), str)), "")
    return at_ms, f"{text.rstrip()}{extra}{'; ' + exception[:400] if exception else ''}"


_KEYS = ("group", "member_id", "generation", "assigned", "added", "lost", "revoking")
"""What franz-go says beside its messages, where its logger writes JSON."""


def records_of(document: Any) -> list[Any]:
    """The records of a log that is one JSON document: a list, or one within it, as `gcloud logging
    read`, `aws logs filter-log-events` and searches of Elasticsearch give it; []: it is none.
    """
    for key in ("", "events", "hits", "hits", "results", "entries", "data", "logs"):
        inner = document.get(key) if isinstance(document, dict) and key else document
        document = inner if isinstance(inner, dict) else document
        if isinstance(inner, list) and any(_of_document(each) is not None for each in inner[:20]):
            return [each for each in inner if isinstance(each, dict)]
    return []


def _time(value: Any) -> int | None:
    if isinstance(value, dict):  # log4j's `instant`
        seconds, nanos = value.get("epochSecond"), value.get("nanoOfSecond", 0)
        return round(seconds * 1000 + nanos / 1_000_000) if isinstance(seconds, int) and isinstance(nanos, int) else None
    return time_of_value(value)


def chunks_of(file: Any) -> Iterator[bytes]:
    """A file in pieces."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
