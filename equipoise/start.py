"""`python -m equipoise.start app.py` runs the application in a file: its `member`, which is a
`Member` or a function that makes one. With ``--reload`` it starts again when a file beside it has
changed: for development. It is no command of `equipoise`: those are for whoever operates groups.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.member import Member

LOOK_S = 0.3
STOP_S = 20.0
"""For how long the former process may take to stop; then it is killed."""


def load(file: Path) -> Member:
    """The member of an application. Raises InputError when the file has none."""
    if not file.is_file():
        raise InputError(f"FILE: {file} is no file")
    sys.path.insert(0, str(file.resolve().parent))
    made = getattr(importlib.import_module(file.stem), "member", None)
    made = made() if callable(made) else made
    if not isinstance(made, Member):
        raise InputError(f"FILE: {file} has no `member`, a Member or a function that makes one")
    return made


def changed(folder: Path) -> Mapping[Path, int]:
    """Each file of Python in `folder` and below -> when it was changed."""
    found: dict[Path, int] = {}
    for path in folder.rglob("*.py"):
        try:
            found[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # an editor replaces it
            continue
    return found


def run_again(file: Path) -> int:
    """Runs the application in a process of its own, and again after each change, until SIGINT or
    SIGTERM.
    """
    ended = False

    def end(number: int, frame: object) -> None:
        nonlocal ended
        ended = True

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    folder = file.resolve().parent
    while not ended:
        seen = changed(folder)
        child = subprocess.Popen([sys.executable, "-m", "equipoise.start", str(file)], start_new_session=True)  # Ctrl-C reaches it through this one
        has_ended = False
        while not ended and changed(folder) == seen:
            if child.poll() is not None and not has_ended:
                has_ended = True
                _say(f"{file} has ended with status {child.returncode}; it starts again after a change")
            time.sleep(LOOK_S)
        if child.poll() is None:
            if not ended:
                _say(f"{file}: a file has changed, starting again")
            child.send_signal(signal.SIGINT)
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return 0


def _say(text: str) -> None:
    print(f"equipoise.start: {text}", file=sys.stderr, flush=True)  # noqa: T201  # it is a program


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--reload", "again", is_flag=True, help="Start again when a file beside it has changed.")
def main(file: Path, again: bool) -> None:
    """Runs the application in FILE."""
    try:
        sys.exit(run_again(file) if again else asyncio.run(load(file).run()))
    except EquipoiseError as error:
        _say(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
