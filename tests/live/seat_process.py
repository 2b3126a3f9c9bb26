"""`equipoise lead`, as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from equipoise.log import open_log
from equipoise.replay.known_changes import KnownChange, known_changes
from equipoise.replay.verification import Verdict, verify
from tests.live.group_clients import ROOT


def answer_of(url: str) -> tuple[int, str]:
    """Status and body; 0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metric_in(text: str, name: str, **labels: str) -> float | None:
    """The value of the first series of a metric with these labels; None: there is none."""
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{label}="{wanted}"' in series for label, wanted in labels.items()):
            return float(value)
    return None


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

    def asked(self, path: str) -> tuple[int, str]:
        """Status and body of a page that it serves; 0: it does not serve yet."""
        found = re.search(r"health and metrics: (http://\S+)", self.said)
        return (0, "") if found is None else answer_of(f"{found[1]}{path}")

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a metric of its group; None: there is none."""
        return metric_in(self.asked("/metrics")[1], name, **labels)

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
