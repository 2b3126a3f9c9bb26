"""`python -m equipoise.start app.py` runs the application in a file: its `member`, which is a
`Member` or a function that makes one. It is no command of `equipoise`: those are for whoever
operates groups.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import click

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.member import Member


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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def main(file: Path) -> None:
    """Runs the application in FILE."""
    try:
        sys.exit(asyncio.run(load(file).run()))
    except EquipoiseError as error:
        print(f"equipoise.start: {error}", file=sys.stderr)  # noqa: T201  # it is a program
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
