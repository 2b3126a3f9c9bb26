"""Builds of equipoise as processes: this one, and others, each from its repository."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

THIS_BUILD = Path(__file__).parents[2]
ENDS_WITH_ITS_STARTER = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Linux: even a starter that is killed leaves nothing behind."""
SETTINGS = {
    "acceptable_recovery_lag": 200,
    "num_standbys": 1,
    "initial_delay_ms": 2_000,
    "probing_interval_ms": 2_000,
    "revocation_timeout_ms": 60_000,
    "drain_timeout_ms": 60_000,
    "checkpoint_every_records": 200,
}
_DESCRIBE = f"""
import attrs, json, equipoise.events
from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings
try:
    from equipoise.log.kafka.envelope import pack_fact
except ModuleNotFoundError:  # builds of November 2026 and before
    from equipoise.events.log.kafka.envelope import pack_fact
from equipoise.worker.settings import WorkerSettings
best = registry.latest("high_availability")
config = GroupConfigured(assignor=best.name, behaviour_version=best.version, solver=best.solver, knobs=GroupSettings(**{SETTINGS}))
has_bases = "retention_ms" in attrs.fields_dict(WorkerSettings)
print(json.dumps(dict(at=equipoise.events.__file__, has_bases=has_bases, config=pack_fact(config).hex())))
"""


def started(command: Sequence[str], out: Path, build: Path = THIS_BUILD, clock: Path | None = None) -> subprocess.Popen[bytes]:
    """A process of ``python -m COMMAND``, with the modules of the repository `build`; it ends with
    this one. What it prints is appended to `out`. `clock`: file that says how many seconds its wall
    clock is off.
    """
    environment = {**os.environ, "LOG_LEVEL": "INFO", "PYTHONPATH": str(build)}
    if clock is not None:
        environment |= {"STORM_CLOCK": str(clock), "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "storm" / "clock"), str(build)))}
    with open(out, "ab") as file:
        return subprocess.Popen([*ENDS_WITH_ITS_STARTER, sys.executable, "-m", *command], stdout=file, stderr=file, env=environment, cwd=build)


@attrs.frozen
class Build:
    """A repository, and what its code says: whether it knows bases, and a configuration as it
    writes one.
    """

    name: str
    folder: Path
    has_bases: bool
    config: bytes


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python with the modules of a repository, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)


def described(name: str, folder: Path) -> Build:
    done = run_in(folder, "-c", _DESCRIBE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["at"]).is_relative_to(folder), f"{folder} runs the code of {said['at']}"
    return Build(name, folder, said["has_bases"], bytes.fromhex(said["config"]))


@contextlib.contextmanager
def other_build(given: str) -> Iterator[Build]:
    """The build in a folder, or of a git ref in a work tree until the end of the block."""
    if Path(given).is_dir():
        yield described(given, Path(given).resolve())
        return
    folder = Path(tempfile.mkdtemp(prefix="equipoise-other-")).resolve() / "build"
    git = ("git", "-C", str(THIS_BUILD), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), given], check=True)
    try:
        yield described(given, folder)
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)
        folder.parent.rmdir()
