"""`python -m equipoise.new NAME` writes an application with its test, settings and a Dockerfile
into the folder NAME. It is no command of `equipoise`: those are for whoever operates groups.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from equipoise.events.errors import EquipoiseError, InputError

NAME = re.compile(r"[a-z][a-z0-9-]{0,40}")

APPLICATION = '''"""Counts the events of each key by minute."""

import logging
import os
from typing import Any

from equipoise import ErrorPolicy, JsonSerde, Member, Processor, Record, StringSerde, TaskContext
from equipoise.streams import count, tumbling

per_minute = tumbling("per-minute", count(), size_ms=60_000, grace_ms=10_000, emit="final")


def handle(record: Record, context: TaskContext) -> None:
    for each in per_minute.add(context, record.key, record.value, record.timestamp_ms):
        context.send("@NAME@-counts", {"minute": each.start_ms, "count": each.value}, key=each.key)


PROCESSOR = Processor(handle, sources="@NAME@-events", state="@NAME@-state", outputs="@NAME@-counts")
SERDES: dict[str, Any] = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


def member() -> Member:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("equipoise").setLevel(logging.INFO)
    return Member(
        "@NAME@",
        processors=[PROCESSOR],
        create_topics=True,
        guarantee="exactly_once",
        on_error=ErrorPolicy.dead_letter("@NAME@-dead"),
        state_directory=os.environ.get("STATE_DIRECTORY", "state"),
        instance=os.environ.get("INSTANCE", ""),
        lead=os.environ.get("LEAD") == "1",
        http_host=os.environ.get("HTTP_HOST", "127.0.0.1"),
        http_port=int(os.environ.get("HTTP_PORT", "0")),
        **SERDES,
    )
'''

TEST = """import asyncio

from app import PROCESSOR, SERDES, handle

from equipoise.testing import TaskDriver

MINUTE_MS = 60_000


def test_events_of_a_key_are_counted_by_minute() -> None:
    async def run() -> None:
        driver = TaskDriver(handle, sources=PROCESSOR.sources, state=PROCESSOR.state, **SERDES)
        for at_ms in (0, 1_000, 59_999, 61_000):
            assert await driver.send({}, key="a", timestamp_ms=at_ms) == []
        (sent,) = await driver.send({}, key="b", timestamp_ms=2 * MINUTE_MS)
        assert (sent.topic, sent.key, sent.value) == ("@NAME@-counts", "a", {"minute": 0, "count": 3})

    asyncio.run(run())
"""

FILES = {
    "app.py": APPLICATION,
    "test_app.py": TEST,
    "settings.env": """# As environment variables: `set -a; . ./settings.env; set +a`, or `docker run --env-file settings.env`.
# EQUIPOISE_... also has TLS and SASL: see docs/deploy.md.
EQUIPOISE_BOOTSTRAP=127.0.0.1:9092
# The member leads groups, too. Empty where `equipoise worker` runs.
LEAD=1
STATE_DIRECTORY=state
HTTP_HOST=127.0.0.1
HTTP_PORT=8080
# Of several members on one host each has its own.
INSTANCE=
""",
    "Dockerfile": """FROM python:3.13-slim
WORKDIR /app
# There is no release of equipoise yet. This makes the wheel, from a clone of its repository:
#   pip wheel --no-deps --wheel-dir . FOLDER_OF_THE_CLONE
COPY app.py equipoise-*.whl .
# [member] is enough, and smaller, where LEAD is empty.
RUN pip install --no-cache-dir "$(ls equipoise-*.whl)[kafka]" && rm equipoise-*.whl
RUN useradd --create-home app && mkdir /state && chown app /state
USER app
ENV STATE_DIRECTORY=/state HTTP_HOST=0.0.0.0 HTTP_PORT=8080 PYTHONUNBUFFERED=1
VOLUME /state
EXPOSE 8080
CMD ["python", "-m", "equipoise.start", "app.py"]
""",
    ".dockerignore": "state\n__pycache__\n",
    ".gitignore": "state/\n__pycache__/\n",
}


def write(name: str, parent: Path) -> list[Path]:
    """Writes the application `name` into its folder in `parent`. Returns the files. Raises
    InputError when the name is none, or the folder holds something.
    """
    if NAME.fullmatch(name) is None:
        raise InputError(f"NAME: {name!r} is none; write lower-case letters, digits and hyphens, as in page-views")
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"NAME: {folder} is there already; take another name, or remove it")
    folder.mkdir(exist_ok=True)
    for file, text in FILES.items():
        (folder / file).write_text(text.replace("@NAME@", name), encoding="utf-8")
    return [folder / file for file in FILES]


@click.command()
@click.argument("name")
def main(name: str) -> None:
    """Writes the application NAME into a folder of that name."""
    try:
        files = write(name, Path())
    except (EquipoiseError, OSError) as error:
        print(f"equipoise.new: {error}", file=sys.stderr)  # noqa: T201  # it is a program
        sys.exit(2)
    print(*files, sep="\n")  # noqa: T201
    print(f"\ncd {name}\npython -m pytest\nset -a; . ./settings.env; set +a\npython -m equipoise.start app.py")  # noqa: T201


if __name__ == "__main__":
    main()
