"""Runs the published Kafka Streams jar: fetches it with Maven, compiles the driver in
``bench/java`` and sends it problems.

Needs a JDK 17 or later and Maven on the path. Jars and classes are kept under ``.venv/java``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.events.errors import InputError

SOURCES = Path(__file__).parent / "java"
BUILT = Path(__file__).parent.parent / ".venv" / "java"
DRIVER = "HighAvailabilityDriver"


def available() -> bool:
    """Whether the tools to build and run the driver are installed."""
    return all(shutil.which(tool) for tool in ("java", "javac", "mvn"))


def classpath(sources: Path = SOURCES, driver: str = DRIVER, into: Path = BUILT) -> str:
    """The class path of the driver, which is rebuilt when its sources have changed. Raises
    InputError when it cannot be built.
    """
    if not available():
        raise InputError("java, javac and mvn: one of them is not installed; apt-get install -y default-jdk-headless maven")
    jars, classes = into / "jars", into / "classes"
    wanted = "".join((sources / name).read_text() for name in ("pom.xml", f"{driver}.java"))
    built = into / "built.txt"
    if not built.exists() or built.read_text() != wanted:
        shutil.rmtree(into, ignore_errors=True)
        classes.mkdir(parents=True)
        _run("mvn", "-q", "-B", "-f", str(sources / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={jars}")
        _run("javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(sources / f"{driver}.java"))
        built.write_text(wanted)
    return f"{jars}/*:{classes}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise InputError(f"{command[0]}: {said[-1]}")


def assigned(
    problems: Iterable[Mapping[str, Any]], *, turns: int = 1, most_s: int | None = None, timeout_s: float | None = None
) -> list[dict[str, Any]]:
    """Kafka's answers to problems in the form of `tests.support.assign_json`, in their order; what
    is in one stands in the driver.

    `turns`: how often each is assigned in one JVM; `most_s`: none is begun anew after that many
    seconds. Raises subprocess.TimeoutExpired when all took longer than `timeout_s`.
    """
    lines = "".join(json.dumps(problem) + "\n" for problem in problems)
    arguments = [str(turns)] if most_s is None else [str(turns), str(most_s)]
    done = subprocess.run(
        ["java", "-Xmx2g", "-cp", classpath(), DRIVER, *arguments], input=lines, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode:
        raise InputError(f"{DRIVER}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
