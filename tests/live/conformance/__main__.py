"""`make conformance`: runs Kafka Streams' own integration tests as they are, and then led by a
worker. Prints a table; ends with 1 when fewer tests pass led.

`Led` becomes the default of `task.assignor.class`, so that applications are led that name no
assignor. Worker and tests have brokers of their own, as tests delete all topics of theirs. So the
worker sees no end offsets: it decides by what the application says.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.streams import assignor_classes
from tools import brokers

HERE = Path(__file__).parent
PACKAGE = "org.apache.kafka.streams.integration"
CLASSES = (
    "RebalanceTaskClosureIntegrationTest",
    "TaskAssignorIntegrationTest",
    "StandbyTaskCreationIntegrationTest",
    "AdjustStreamThreadCountTest",
    "StandbyTaskEOSMultiRebalanceIntegrationTest",
    "StandbyTaskEOSIntegrationTest",
    "SmokeTestDriverIntegrationTest",
    "KafkaStreamsCloseOptionsIntegrationTest",
    "PauseResumeIntegrationTest",
    "RestoreIntegrationTest",
    "HighAvailabilityTaskAssignorIntegrationTest",
    "EosIntegrationTest",
)
MOST_S = 1_500
JAVA = ("-Xmx2g", "-Dorg.apache.logging.log4j.level=INFO")
"""Some of the tests read what Kafka Streams logs at level INFO."""
_COUNT = re.compile(r"\[ +(\d+) tests (successful|failed) +\]")
_DECIDED, _NOT_DECIDED = "equipoise decided the round", "equipoise did not decide this round"


@attrs.frozen
class Outcome:
    """A class has ended so. `took_s`: None: it was stopped after MOST_S."""

    passed: int
    failed: int
    took_s: float | None
    decided: int
    not_decided: int

    def __str__(self) -> str:
        return f"{self.passed} of {self.passed + self.failed} in {self.took_s:.0f} s" if self.took_s is not None else f"not over after {MOST_S} s"


def classpath() -> str:
    """Of the tests and of `Led`, fetched and compiled at the first call on this machine."""
    libraries = f"{brokers.jars(HERE / 'pom.xml')}/*:{assignor_classes()}"
    return f"{brokers.classes(HERE / 'Led.java', libraries)}:{libraries}"


def run(name: str, every: str, log: Path, url: str = "") -> Outcome:
    """Runs a class of tests; its output goes to `log`. `url`: of the worker that leads; "": none
    does.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, open(log, "wb") as out:
        if url:
            listeners = Path(folder, "META-INF", "services", "org.junit.platform.launcher.LauncherSessionListener")
            listeners.parent.mkdir(parents=True)
            listeners.write_text("Led\n")
        command = [
            "java",
            *JAVA,
            f"-Dequipoise.url={url}",
            "-cp",
            f"{folder}:{every}",
            "org.junit.platform.console.ConsoleLauncher",
            "execute",
            "-c",
            f"{PACKAGE}.{name}",
            "--details=tree",
            "--disable-ansi-colors",
        ]
        began_s = time.monotonic()
        took_s: float | None = None
        try:
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=MOST_S, check=False)
            took_s = time.monotonic() - began_s
        except subprocess.TimeoutExpired:
            pass
    text = log.read_text(errors="replace")
    counts = {what: int(count) for count, what in _COUNT.findall(text)}
    return Outcome(counts.get("successful", 0), counts.get("failed", 0), took_s, text.count(_DECIDED), text.count(_NOT_DECIDED))


async def main(names: Sequence[str], logs: Path) -> int:
    """Returns the exit code."""
    every, worse = classpath(), 0
    print("| Kafka's test | stock | led | rounds decided, by Kafka Streams |\n|---|---|---|---|", flush=True)
    with brokers.Brokers() as cluster:
        async with Worker(WorkerSettings(bootstrap=cluster.bootstrap, http_port=0)) as worker:
            while worker.unready():  # noqa: ASYNC110  # of the brokers
                await asyncio.sleep(0.1)
            for name in names:
                stock = await asyncio.to_thread(run, name, every, logs / f"{name}-stock.log")
                led = await asyncio.to_thread(run, name, every, logs / f"{name}-led.log", f"http://127.0.0.1:{worker.http_port}")
                print(f"| `{name}` | {stock} | {led} | {led.decided}, {led.not_decided} |", flush=True)
                worse |= led.passed < max(1, stock.passed)
    return worse


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.live.conformance", description="Kafka Streams' own integration tests, stock and led.")
    parser.add_argument("names", nargs="*", help=f"classes of {PACKAGE} ({', '.join(CLASSES)})")
    parser.add_argument("--logs", type=Path, default=Path("out/conformance"), help="folder for what they print (out/conformance)")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.names or CLASSES, options.logs)))
