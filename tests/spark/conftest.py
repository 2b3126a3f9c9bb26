"""One Spark session for all tests here, and a small fleet for them to read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.replay.spark.session import NO_JAVA, session
from examples.fleet.many_groups import Fleet, make_fleet
from tests.live.conftest import bootstrap
from tools.brokers import jars

__all__ = ["bootstrap", "fleet", "spark"]
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # soon there; the tests ask nothing of their speed
CONNECTORS = {"4.0": "4.0.2", "4.1": "4.1.1"}
"""Release of Spark -> version of its Kafka connector."""
GROUPS = 4
FLEET = Fleet(groups=GROUPS, records=4_000, seed=5)


def connector_version() -> dict[str, str]:
    """Which Kafka connector goes with the Spark that is installed; empty: the pom's own."""
    import pyspark

    return {"connector": version} if (version := CONNECTORS.get(pyspark.__version__[:3])) is not None else {}


def settings(warehouse: Path) -> dict[str, str]:
    """Settings of every session here, including those in child processes."""
    connector = jars(Path(__file__).with_name("pom.xml"), **connector_version())
    return {
        "spark.jars": ",".join(str(jar) for jar in sorted(connector.glob("*.jar"))),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes its time to begin a worker
        "spark.sql.warehouse.dir": str(warehouse),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real session on two cores. Fails without Java, and names what to install."""
    if shutil.which("java") is None:
        raise pytest.UsageError(NO_JAVA)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made, _ = session("local[2,4]", settings(tmp_path_factory.mktemp("warehouse")))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of four simulated groups, read only."""
    path = tmp_path_factory.mktemp("fleet") / "archive"
    make_fleet(FLEET, path)
    return path
