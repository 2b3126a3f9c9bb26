"""`equipoise lead`, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from equipoise.log import open_log
from equipoise.replay.known_changes import KnownChange, known_changes
from equipoise.replay.verification import Verdict, verify
from tests.live.group_clients import ROOT


class SeatProcess:
    """`equipoise lead`, started."""

    def __init__(self, bootstrap: str, group: str, log: Path, *options: str, **environment: str) -> None:
        self.log, self._errors = log, log.with_suffix(".err")
        command = [sys.executable, "-m", "equipoise", "lead", "--bootstrap", bootstrap, "--group", group, "--to", str(log), *options]
        variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        with open(self._errors, "w") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stderr=errors)

    @property
    def said(self) -> str:
        return self._errors.read_text()

    @property
    def leads(self) -> bool:
        return ", assigned in" in self.said

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(90)

    def changes(self) -> list[KnownChange]:
        """Returns the changes in its log."""
        with open_log(self.log) as log:
            return known_changes(log.read())

    def verified(self) -> bool:
        with open_log(self.log) as log:
            return verify(log.read()).verdict is Verdict.IDENTICAL
