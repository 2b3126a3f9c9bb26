"""`equipoise scenario`: event sequences as text, played on the real machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.output import rewrite_file


@command("scenario", short_help="Plays scenario text files and prints what they give.")
@click.argument("files", metavar="FILE...", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--rewrite", is_flag=True, help="Write the golden text of each FILE anew from what it gives now. Refused when CI is set.")
def scenario(screen: Screen, files: tuple[Path, ...], rewrite: bool) -> int:
    """Plays each FILE (of a folder: every .txt in it) and prints it with what it gives now.

    Where other golden text stands in the file, a diff follows and the exit code is 1. So it is when
    a self-check fails: after each fact the log is encoded, decoded and folded again, the state
    restored from a snapshot, all shuffled that has no order, and the invariants judged. What a
    directive does stands in docs/scenarios.md.

    \b
    Examples:
      equipoise scenario tests/scenarios/high_availability/cold_joiner.txt
      equipoise scenario tests/scenarios && echo all of them hold
      equipoise scenario --rewrite new.txt
    """
    from equipoise.scenarios import run_file  # the solver; a second that --help need not wait for

    if rewrite and os.environ.get("CI"):
        raise InputError("--rewrite: refused when CI is set; golden text is rewritten by people, who read the diff")
    paths = [path for file in files for path in (sorted(file.rglob("*.txt")) if file.is_dir() else [file])]
    if not paths:
        raise InputError(f"{' '.join(map(str, files))}: no .txt file in there; name a scenario, or a folder that holds some")
    documents: list[dict[str, object]] = []
    parts: list[str] = []
    for path in screen.track(paths, "playing", len(paths)):
        outcome = run_file(path)
        if rewrite and not outcome.disagreements and not outcome.matches:
            rewrite_file("--rewrite", path, outcome.text)
        holds = outcome.holds or (rewrite and not outcome.disagreements)
        found = list(outcome.disagreements)
        documents.append({"file": str(path), "holds": holds, "diff": outcome.diff(), "disagreements": found, "text": outcome.text})
        parts += outcome.text.rstrip("\n").split("\n")
        parts += [] if holds else outcome.diff().split("\n")
        parts += [f"{path}: {text}" for text in found]
    failed = [document["file"] for document in documents if not document["holds"]]
    screen.answer(documents, *parts)
    screen.remark(f"{len(paths) - len(failed)} of {len(paths)} scenarios hold")
    return 1 if failed else 0
