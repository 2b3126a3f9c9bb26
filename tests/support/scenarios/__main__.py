"""`python -m tests.support.scenarios FILE...`: runs scenarios on the real state machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.output import rewrite_file
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError


@command("scenario", json=False, short_help="Run scenario files (events as text) and print what they give.")
@click.argument("files", metavar="FILE...", type=click.Path(exists=True, path_type=Path), nargs=-1)
@click.option("--directives", is_flag=True, help="Print every directive with its arguments, and run nothing.")
@click.option("--rewrite", is_flag=True, help="Replace the golden text of each FILE by what it gives now. Refused when CI is set.")
def scenario(screen: Screen, files: tuple[Path, ...], directives: bool, rewrite: bool) -> int:
    """Run each FILE (of a folder: every .txt file in it) and print it with what it gives now.

    Exit code 1: a file's golden text differs (a diff follows), or a self-check failed. The
    self-checks, after each fact: the log is encoded, decoded and folded again, the state is
    restored from a snapshot, everything without an order is shuffled, and the invariants are
    checked.

    \b
    Examples:
      python -m tests.support.scenarios tests/scenarios/high_availability/cold_joiner.txt
      python -m tests.support.scenarios tests/scenarios && echo all of them hold
      python -m tests.support.scenarios --rewrite new.txt
      python -m tests.support.scenarios --directives
    """
    from tests.support.scenarios import reference, run_file  # loads the solver, which takes a second

    if directives:
        screen.answer(None, *reference().split("\n"))
        return 0
    if not files:
        raise InputError("name a scenario, or a folder with scenarios; --directives lists what they may contain")
    if rewrite and os.environ.get("CI"):
        raise InputError("--rewrite: refused when CI is set; rewrite golden text by hand and read the diff")
    paths = [path for file in files for path in (sorted(file.rglob("*.txt")) if file.is_dir() else [file])]
    if not paths:
        raise InputError(f"{' '.join(map(str, files))}: no .txt file in there; name a scenario, or a folder with scenarios")
    failed: list[Path] = []
    parts: list[str] = []
    for path in screen.track(paths, "running", len(paths)):
        outcome = run_file(path)
        if rewrite and not outcome.disagreements and not outcome.matches:
            rewrite_file("--rewrite", path, outcome.text)
        holds = outcome.holds or (rewrite and not outcome.disagreements)
        parts += outcome.text.rstrip("\n").split("\n")
        if not holds:
            failed.append(path)
            parts += outcome.diff().split("\n")
        parts += [f"{path}: {text}" for text in outcome.disagreements]
    screen.answer(None, *parts)
    screen.remark(f"{len(paths) - len(failed)} of {len(paths)} scenarios hold")
    return 1 if failed else 0


if __name__ == "__main__":
    scenario(prog_name="python -m tests.support.scenarios")
