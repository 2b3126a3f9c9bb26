"""The Spark session: the user's own, or one on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from equipoise.events.errors import InputError

MISSING = "Spark needs the extra: pip install 'equipoise[spark]'"
NO_JAVA = "Spark needs Java 17 or later: install one (apt-get install default-jre-headless), or set JAVA_HOME"
LOCAL = "local[*,4]"
"""All cores of this machine. A task whose worker dies is tried four times, as on a cluster."""
_QUIET = Path(__file__).with_name("log4j2.properties")


def session(master: str | None = None, settings: Mapping[str, str] | None = None, *, app_name: str = "equipoise") -> tuple[Any, bool]:
    """Returns a SparkSession, and whether this call created it, in which case the caller stops it.

    An active session (of a notebook or spark-submit) is used as it is; `master` and `settings` are
    then ignored. Otherwise a new one is created, on `master`, or what the environment names, or by
    default `local[*]`. Raises InputError that names what to install.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise InputError(MISSING) from None
    there = SparkSession.getActiveSession()
    if there is not None:
        return there, False
    remote = "SPARK_REMOTE" in os.environ  # Spark Connect
    if not remote and not _has_java():
        raise InputError(NO_JAVA)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are whatever python3 the path has, without equipoise
    builder = SparkSession.builder.appName(app_name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # under spark-submit the JVM is there already, with a master of its own
    if master is not None:
        builder = builder.master(master)
    elif not submitted and not remote and "MASTER" not in os.environ:
        builder = builder.master(LOCAL)
    for name, value in {**({} if submitted or remote else _own_settings()), **(settings or {})}.items():
        builder = builder.config(name, value)
    return _started(builder), True


def _started(builder: Any) -> Any:
    """The session. An interrupt while Java starts ends that, too: it ignores interrupts, and would
    live on, with this command's output in its hands. pyspark turns some interrupts into errors of
    its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return builder.getOrCreate()
    others, came = _children(), []
    former = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def end_java() -> None:
        for pid in _children() - others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def interrupted(number: int, frame: FrameType | None) -> None:
        end_java()
        handler = former[signal.Signals(number)]
        assert callable(handler), "only signals with a handler of Python's are caught"
        try:
            handler(number, frame)
        except BaseException as interrupt:
            came.append(interrupt)
            raise

    for each in [each for each, handler in former.items() if callable(handler)]:
        signal.signal(each, interrupted)
    try:
        return builder.getOrCreate()
    except BaseException:
        end_java()
        if came:
            raise came[0] from None
        raise
    finally:
        for each in [each for each, handler in former.items() if callable(handler)]:
            signal.signal(each, former[each])


def _children() -> set[int]:
    """Processes that this one has started and that run, on Linux; elsewhere none are known."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found.update(map(int, file.read_text().split()))
    return found


def _own_settings() -> dict[str, str]:
    """Settings of a session on this machine: no web page, only errors on stderr, no compilation of
    plans that run once.
    """
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={_QUIET.as_uri()}",
    }


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (home is not None and (Path(home) / "bin" / "java").exists())
