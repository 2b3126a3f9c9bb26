"""Lines of logs as records: time, place and text, without the dress that containers, terminals and
JSON put around them. Lines that cannot be about a group are passed over before anything is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from equipoise.replay.importers.evidence.times import Clock, time_of_value

NEEDLES = tuple(
    each.encode() for each in (
        "roup", "oll timeout", "poll interval", "poll()", "oll expired", "assigned partitions", "stream-", "SESSTMOUT", "MAXPOLL",
        "ssion expired", "member_id", "CONSUMER-ID", "CURRENT-OFFSET", "livelock", "FencedInstance", "FENCED_INSTANCE", "oordinator",
        "WorkerS", "ommitFailed", "onsumer poll", ".timeout.ms = ", ".interval.ms = ", "instance.id", "tatic member", "is fenced",
        "tatic consumer fenced", "nknown member",
    )
)  # fmt: skip
"""A line about a group has one of these."""
_MOST_WRAPPED = 12
_MOST_BYTES = 16_384
_CHUNK = 1 << 20
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_STARTS = re.compile(
    rb"^(?:\x1b\[[0-9;]*m)*(?:[\w./-]+ *\| *)?(?:[>|] ?)*[\[(<\"']*"
    rb"(?:%[0-9]\||[0-9]{2,4}[-/.][0-9A-Za-z]{2,3}[-/.][0-9]{2,4}|[0-9]{2}:[0-9]{2}:[0-9]{2}"
    rb"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +[0-9]|[IWEF][0-9]{4} |[0-9]{1,2} [A-Z][a-z]{2} [0-9]{4}|1[0-9]{9}|20[0-9]{6}"
    rb"|TRACE|DEBUG|INFO|WARN|ERROR|FATAL|CRITICAL|pod/|\{\")"
)
_MESSAGES = ("message", "msg", "log", "@message", "MESSAGE", "text", "body", "event", "textPayload", "line", "short_message")
_TIMES = (
    "@timestamp", "timestamp", "time", "ts", "t", "asctime", "timeMillis", "__REALTIME_TIMESTAMP", "date", "datetime", "instant", "timestamp_ms",
)  # fmt: skip
_NESTED = ("jsonPayload", "fields", "record", "_source", "result", "log")


@attrs.frozen
class LogLine:
    """`number`: of its first line, from 1. `at_ms` None: no line so far had a time."""

    number: int
    at_ms: int | None
    text: str


@attrs.define
class Count:
    """Lines of a file, and those that may be about a group."""

    lines: int = 0
    considered: int = 0


def read_lines(chunks: Iterable[bytes], clock: Clock, count: Count) -> Iterator[LogLine]:
    """Yields the lines that may be about a group, each with the lines that go on with it."""
    held: list[bytes] = []
    held_from, held_size = 0, 0
    before = b""
    last_ms: int | None = None
    is_wanted = _wanted
    number = 0
    for line in _split(chunks):
        number += 1
        if held:
            if len(held) < _MOST_WRAPPED and held_size < _MOST_BYTES and not _STARTS.match(line) and line.strip() and not _is_table(held[0]):
                held.append(line)
                held_size += len(line)
                continue
            made = _made(held, held_from, clock, last_ms)
            last_ms = made.at_ms
            yield made
            held = []
        if is_wanted(line):
            count.considered += 1
            goes_on = not _STARTS.match(line) and not line.startswith((b"\t", b"    ")) and not _is_table(line)
            joins = goes_on and _STARTS.match(before) and not is_wanted(before)
            held = [before, line] if joins else [line]
            held_from, held_size = number - len(held) + 1, len(line)
        before = line[:_MOST_BYTES]
    if held:
        yield _made(held, held_from, clock, last_ms)
    count.lines += number


def _wanted(line: bytes) -> bool:
    if len(line) > _MOST_BYTES:
        line = line[:_MOST_BYTES]
    for needle in NEEDLES:  # noqa: SIM110  # twice as fast as any(), and called for each line
        if needle in line:
            return True
    return False


def _is_table(line: bytes) -> bool:
    return b"CONSUMER-ID" in line or b"CURRENT-OFFSET" in line or b"COORDINATOR (ID)" in line


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > 1 << 24:  # no log: a file without lines
            yield rest[:_MOST_BYTES]
            rest = b""
        yield from lines
    if rest:
        yield rest


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
    if "\x1b" in text or any(each < " " and each != "\t" for each in text[:200]):
        text = _ANSI.sub("", text)
    return text.removeprefix("> ")


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


def _time(value: Any) -> int | None:
    if isinstance(value, dict):  # log4j's `instant`
        seconds, nanos = value.get("epochSecond"), value.get("nanoOfSecond", 0)
        return round(seconds * 1000 + nanos / 1_000_000) if isinstance(seconds, int) and isinstance(nanos, int) else None
    return time_of_value(value)


def chunks_of(file: Any) -> Iterator[bytes]:
    """A file in pieces."""
    while chunk := file.read(_CHUNK):
        yield chunk
