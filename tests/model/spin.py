"""Runs SPIN over `model/*.pml`."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import attrs

from tests.model.configurations import CHANGELOG_RULES, RULES, Configuration, Owners, Process

MODELS = Path(__file__).resolve().parents[2] / "model"


@attrs.frozen(kw_only=True)
class Searched:
    """`states`: without SPIN's own, which comes before `init`. `path`: the actions to the shortest
    violation; None: there is none.
    """

    states: int
    seconds: float
    path: tuple[str, ...] | None


def _choice(name: str, processes: tuple[Process, ...], field: str) -> str:
    chosen = "0"
    for index, process in reversed(list(enumerate(processes))):
        chosen = f"(i == {index} -> {int(getattr(process, field))} : {chosen})"
    return f"#define {name}(i) {chosen}"


def defines(given: Configuration) -> str:
    """The configuration as preprocessor definitions."""
    processes = given.processes
    named = {"MEMBER": "member", "SESSION": "session", "MARGIN": "margin", "SUSPECT": "suspect", "PROOF": "proof", "STARTS": "starts"}
    values: dict[str, int] = {
        "NP": len(processes),
        "LONGEST": max(process.session for process in processes),
        "SHORTEST": min(process.session for process in processes),
        "STEP": given.step,
        "RAISED": given.raised,
        "JUMPS": given.jumps,
        "MOVES": given.moves,
        "LATE": given.late,
        "CONFIGURES": given.raised != given.step,
        "CRASHES": given.crashes,
        "CLOSES": given.closes,
        "WITNESS": given.witness,
        "RESTS": given.rests,
        "WAITED_FOR": not given.without,
        **{rule: given.on(rule) for rule in RULES},
    }
    lines = [f"#define {name} {int(value)}" for name, value in values.items()]
    return "\n".join([*lines, *(_choice(name, processes, field) for name, field in named.items())]) + "\n"


def search(model: str, definitions: str, folder: Path, *, quick: bool = False) -> Searched:
    """Searches `model/<model>` to its end, or to the first violation: breadth first, so the
    shortest one. `quick`: few states are expected, so compiling it well is not worth its time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "searched.pml"
    source.write_text(f'{definitions}#include "{MODELS / model}"\n')
    _run(["spin", "-a", source.name], folder)
    limits = "-DVECTORSZ=2048", "-DMEMLIM=16000"
    _run(["gcc", "-O0" if quick else "-O2", "-w", "-DSAFETY", "-DBFS", "-DNOREDUCE", *limits, "-o", "pan", "pan.c"], folder)
    begun = time.monotonic()
    said = _run(["./pan", "-m1000000"], folder)
    seconds = time.monotonic() - begun
    states = re.search(r"(\d+) states, stored", said)
    if states is None or ("not completed" in said and "errors: 0" in said) or "out of memory" in said or "max search depth too small" in said:
        raise RuntimeError(f"pan gave up:\n{said}")
    path = None
    if "errors: 0" not in said:
        path = tuple(line[2:] for line in _run(["spin", "-t", "-T", source.name], folder).splitlines() if line.startswith("> "))
    return Searched(states=int(states[1]) - 1, seconds=seconds, path=path)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or (command[0] == "gcc" and done.returncode):
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def lease(given: Configuration, folder: Path, *, quick: bool = False) -> Searched:
    return search("lease.pml", defines(given), folder, quick=quick or bool(given.without))


def changelog(given: Owners, folder: Path) -> Searched:
    values = {"OWNERS": len(given.grants), "MOST": given.most, **{rule: rule not in given.without for rule in CHANGELOG_RULES}}
    lines = [f"#define {name} {int(value)}" for name, value in values.items()]
    for name, index in (("LOG", 0), ("TOKEN", 1)):
        chosen = "0"
        for owner, grant in reversed(list(enumerate(given.grants))):
            chosen = f"(w == {owner} -> {grant[index]} : {chosen})"
        lines.append(f"#define {name}(w) {chosen}")
    return search("changelog.pml", "\n".join(lines) + "\n", folder, quick=True)
