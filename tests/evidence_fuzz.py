"""Changes files about groups at random, and reads them: nothing may fail.

``python -m tests.evidence_fuzz --files 100000 --first 1`` reads so many changed files, and prints
how many it has read; a failure prints the file.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import click

from equipoise.cli.incident_text import document, group_parts
from equipoise.events.errors import EquipoiseError
from equipoise.replay.importers.evidence.files import Evidence, ReadFile, read_file
from equipoise.replay.incident import incidents
from equipoise.replay.incident.from_logs import histories_of
from tests.group_logs import EXAMPLE, VERSIONS, unpack

A_PIECE = 1_000
HOSTILE = (
    b"\x00",
    b"\xff\xfe",
    b"\x1b[31m",
    b"{",
    b"}",
    b'"',
    b"[" * 50,
    b"9" * 30,
    b"\n",
    b"\r\n",
    b"(reason: ",
    b"GROUP  TOPIC  PARTITION\n",
    b"<script>",
    b"%s%n",
    b"|*_",
)
_TASK = {"id": 0, "state": "FAILED", "worker_id": "w", "trace": "a\nb"}
_PARTITION = {
    "topic": "t",
    "partition": 0,
    "owner": "/10.0.0.1",
    "client_id": "a",
    "status": "STOP",
    "current_lag": 9,
    "start": {"offset": 1, "timestamp": 1772359200000, "lag": 5},
    "end": {"offset": 1, "timestamp": 1772359260000, "lag": 9},
}
DOCUMENTS = tuple(
    json.dumps(each).encode()
    for each in (
        {"name": "sink", "connector": {"state": "RUNNING", "worker_id": "10.0.0.1:8083"}, "tasks": [_TASK], "type": "sink"},
        {"error": False, "status": {"cluster": "c", "group": "g", "status": "ERR", "complete": 1.0, "partitions": [_PARTITION], "totallag": 9}},
    )
)


_KEYS = ({"type": "1", "data": {"group": "g", "topic": "t", "partition": 0}}, {"type": "2", "data": {"group": "g"}})
_VALUES = (
    {"version": "3", "data": {"offset": 5}},
    {
        "version": "3",
        "data": {
            "protocolType": "consumer",
            "generation": 3,
            "protocol": "range",
            "leader": "a-1",
            "currentStateTimestamp": 1,
            "members": [
                {
                    "memberId": "a-1",
                    "groupInstanceId": None,
                    "clientId": "a",
                    "clientHost": "/10.0.0.1",
                    "rebalanceTimeout": 300000,
                    "sessionTimeout": 45000,
                    "subscription": "AAEAAAABAAZvcmRlcnP/////AAAAAA==",
                    "assignment": "AAEAAAABAAZvcmRlcnMAAAACAAAAAAAAAAH/////",
                },
            ],
        },
    },
)
DUMP = "".join(
    f"| offset: {number} CreateTime: {1_772_359_200_000 + number} keySize: 20 valueSize: 20 sequence: -1 headerKeys: []"
    f" key: {json.dumps(_KEYS[number % 2])} payload: {json.dumps(_VALUES[number % 2])}\n"
    for number in range(20)
).encode()


def told_of(raw: bytes) -> Evidence:
    found = Evidence(files=[ReadFile(name="x.log")])
    read_file(found, 0, [raw[begin : begin + 700] for begin in range(0, len(raw), 700)])
    return found


def changed(raw: bytes, chance: random.Random) -> bytes:
    """A piece of a file with some bytes cut, doubled, exchanged, or put in."""
    begin = chance.randrange(max(1, len(raw) - 100))
    piece = bytearray(raw[begin : begin + chance.randrange(10, 4_000)])
    for _ in range(chance.randrange(1, 9)):
        at = chance.randrange(len(piece) + 1)
        match chance.randrange(4):
            case 0:
                del piece[at : at + chance.randrange(1, 40)]
            case 1:
                piece[at:at] = chance.choice(HOSTILE)
            case 2:
                piece[at:at] = piece[at : at + chance.randrange(1, 200)]
            case _:
                if piece:
                    piece[at % len(piece)] = chance.randrange(256)
    return bytes(piece)


def sources_in(folder: Path) -> list[bytes]:
    """Files of each kind: logs of real brokers and clients, documents, and a dump."""
    folders = [unpack(version, folder) for version in VERSIONS]
    logs: list[Path] = [path for folder in folders for path in sorted(folder.glob("*.log"))]
    return [path.read_bytes() for path in [*logs, EXAMPLE, EXAMPLE.with_name("dumped_kip_848.txt")] if path.stat().st_size > 200] + [*DOCUMENTS, DUMP]


def check_files(sources: list[bytes], files: int, *, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(files):
        raw = changed(chance.choice(sources), chance)
        try:
            found = told_of(raw)
            for history in histories_of(found).values():
                for each in incidents(history):
                    assert document(each, None)["cause"]
                    assert each.end_ms >= each.begin_ms
                assert group_parts(history, "", incidents(history), {})
        except EquipoiseError:
            raise
        except Exception as error:
            error.add_note(f"file {number}: {raw!r}")
            raise


@click.command()
@click.option("--files", default=100_000, show_default=True)
@click.option("--first", default=1, show_default=True, help="Seed of the first thousand; the next has the next.")
def main(files: int, first: int) -> None:
    """Reads changed files, a thousand of each seed."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = sources_in(Path(scratch))
        for number in range(0, files, A_PIECE):
            check_files(sources, A_PIECE, seed=first + number // A_PIECE)
            click.echo(f"{number + A_PIECE:,} files, seed {first + number // A_PIECE}")


if __name__ == "__main__":
    main()
