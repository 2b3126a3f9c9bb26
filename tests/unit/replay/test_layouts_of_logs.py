"""Real logs of a broker and of members (`tests.group_logs`) in the layouts that loggers,
containers, collectors and exports write: the report is the same, to the second.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances
from tests.group_logs import unpack

GROUP = "g-aiokafka"
FORMS = (re.compile(r"(\S+) (\S+),(\d{3}) \[([^\]]*)\] (\w+) (\S+) - (.*)"), re.compile(r"(\S+) (\S+),(\d{3})()( \w+) ([\w.]+): (.*)"))


@attrs.frozen
class Record:
    """`raw`: its lines, as they were. `text`: its message."""

    date: str
    time: str
    ms: str
    thread: str
    level: str
    logger: str
    text: str
    raw: str

    @property
    def iso(self) -> str:
        return f"{self.date}T{self.time}.{self.ms}"

    @property
    def at(self) -> dt.datetime:
        return dt.datetime.fromisoformat(f"{self.iso}+00:00")

    @property
    def abbreviated(self) -> str:
        *packages, name = self.logger.split(".")
        return ".".join([*(each[:1] for each in packages), name])

    @property
    def log4j(self) -> str:
        return f"[{self.date} {self.time},{self.ms}] {self.level} {self.text} ({self.logger})"


def records_of(path: Path) -> list[Record]:
    found: list[Record] = []
    for line in path.read_text().splitlines():
        read = next((match for form in FORMS if (match := form.fullmatch(line)) is not None), None)
        if read is not None:
            date, time, ms, thread, level, logger, text = (each.strip() for each in read.groups())
            found.append(Record(date, time, ms, thread, level, logger, text, line))
        elif found:
            found[-1] = attrs.evolve(found[-1], text=f"{found[-1].text}\n{line}", raw=f"{found[-1].raw}\n{line}")
    return found


def each_record(form: Callable[[Record], str]) -> Callable[[Sequence[Record]], str]:
    return lambda records: "".join(f"{form(each)}\n" for each in records)


def each_line(form: Callable[[Record, str], str]) -> Callable[[Sequence[Record]], str]:
    return lambda records: "".join(f"{form(each, line)}\n" for each in records for line in each.raw.split("\n"))


def as_csv(records: Sequence[Record]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([("_time", "host", "_raw"), *((f"{each.iso}Z", "h1", each.raw) for each in records)])
    return file.getvalue()


def wrapped(records: Sequence[Record]) -> str:
    texts = [each.log4j.partition("\n")[0] for each in records]
    return "".join(f"{text[begin : begin + 118]}\n" for text in texts for begin in range(0, len(text), 118))


def in_entities(record: Record) -> str:
    return record.log4j.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;").replace('"', "&quot;")


LAYOUTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "Spring Boot": each_record(lambda each: f"{each.iso}Z  INFO 1 --- [app] [{each.thread[:15]:>15}] {each.abbreviated:40} : {each.text}"),
    "AM and PM": each_record(lambda each: f"{each.at:%m/%d/%Y %I:%M:%S}.{each.ms} {each.at:%p} {each.level} {each.logger}: {each.text}"),
    "another zone": each_record(
        lambda each: f"{(each.at + dt.timedelta(hours=2)).isoformat(timespec='milliseconds')[:-6]}+02:00 {each.level} {each.text}"
    ),
    "pipes": each_record(lambda each: f"{each.date} {each.time}.{each.ms} UTC | ORDERS | {each.level} | ({each.logger}) | {each.text}"),
    "logfmt": each_record(lambda each: f"time={each.iso}Z level=info logger={each.logger} msg={json.dumps(each.text)}"),
    "logstash": each_record(
        lambda each: json.dumps({"@timestamp": f"{each.iso}Z", "message": each.text, "logger_name": each.logger, "level": each.level})
    ),
    "log4j's JSON": each_record(
        lambda each: json.dumps(
            {
                "instant": {"epochSecond": int(each.at.timestamp()), "nanoOfSecond": int(each.ms) * 1_000_000},
                "level": each.level,
                "message": each.text,
            }
        )
    ),
    "syslog": each_record(lambda each: f"<134>1 {each.iso}Z host-1 kafka 812 - - {each.level} {each.text}"),
    "journald": each_line(lambda each, line: f"{each.at:%b %d %H:%M:%S} host-1 kafka[812]: {line}"),
    "journald's JSON": each_record(lambda each: json.dumps({"__REALTIME_TIMESTAMP": str(round(each.at.timestamp() * 1e6)), "MESSAGE": each.text})),
    "docker's JSON": each_line(lambda each, line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": f"{each.iso}Z"})),
    "docker compose": each_line(lambda _, line: f"\x1b[36mkafka-1  |\x1b[0m {line}"),
    "kubectl": each_line(lambda each, line: f"[pod/kafka-0/kafka] {each.iso}000000Z {line}"),
    "stern": each_line(lambda _, line: f"\x1b[95mkafka-0\x1b[0m \x1b[36mkafka\x1b[0m {line}"),
    "CloudWatch": each_record(lambda each: f"{round(each.at.timestamp() * 1000)} {each.level} {each.text}"),
    "aws logs tail": each_record(lambda each: f"{each.iso}000+00:00 app/orders/1 {each.level} {each.text}"),
    "gcloud logging read": lambda records: json.dumps([{"textPayload": each.raw, "timestamp": f"{each.iso}Z"} for each in reversed(records)]),
    "Elasticsearch": lambda records: json.dumps(
        {"hits": {"total": 9, "hits": [{"_source": {"@timestamp": f"{each.iso}Z", "message": each.text}} for each in records]}}
    ),
    "Loki": each_line(lambda each, line: f'{each.iso}Z {{app="orders", pod="orders-0"}} {line}'),
    "CSV": as_csv,
    "newest first": lambda records: "".join(f"{each.raw}\n" for each in reversed(records)),
    "CRLF": lambda records: "\ufeff" + "".join(f"{each.log4j}\r\n" for each in records),
    "quoted": lambda records: "we see this:\n\n```\n" + "".join(f"> {each.log4j}\n" for each in records) + "```\nany ideas?\n",
    "wrapped": wrapped,
    "a web page": each_record(in_entities),
}


def report(where: Path, logs: dict[str, list[Record]], layout: Callable[[Sequence[Record]], str]) -> list[tuple[object, ...]]:
    paths = [where / f"{name}.log" for name in logs]
    for path, records in zip(paths, logs.values(), strict=True):
        path.write_text(layout(records), newline="")
    found = histories_of(read_evidence([str(each) for each in paths]), asked=GROUP)
    return [(each.number, each.cause, each.members, each.begin_ms // 1000) for each in rebalances(found[GROUP])]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    folder = unpack("4.3.1", tmp_path_factory.mktemp("logs"))
    return {path.stem: records_of(path) for path in [folder / "server.log", *sorted(folder.glob(f"{GROUP}.*.log"))]}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layout_of_a_log_does_not_change_its_report(layout: str, logs: dict[str, list[Record]], tmp_path: Path) -> None:
    expected = report(tmp_path, logs, each_record(lambda each: each.raw))
    assert len(expected) > 10
    assert report(tmp_path, logs, LAYOUTS[layout]) == expected
