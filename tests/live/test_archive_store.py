"""`equipoise archive` of a log in a real Kafka to a real S3 API, killed again and again while the
log grows: every record is in the archive once.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import all_parts
from tests.live.test_kafka_log import document
from tests.live.test_restore import rows_in
from tests.object_store import BUCKET, serving
from tests.spark.leading import GROUPS, Leader, facts_of

ROOT = Path(__file__).parents[2]
ARCHIVER = """
import sys
from equipoise.cli import archive
archive._FACTS_A_FILE = 10
archive._ROUND_S = 0.05
from equipoise.__main__ import run
sys.argv = ["equipoise", "archive", sys.argv[1], "--to", sys.argv[2], "--follow"]
run()
"""


@pytest.mark.slow
def test_archive_of_a_growing_log_killed_again_and_again_is_whole(bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, source, random_s = Leader(bootstrap, prefix), f"kafka://{bootstrap}/{prefix}", random.Random(3)
    leader.publish(facts_of(0, 20))
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        backup = f"s3://{BUCKET}/archive/"
        for kill in range(1, 6):
            process = subprocess.Popen([sys.executable, "-c", ARCHIVER, source, backup], cwd=ROOT, env=dict(os.environ))
            before = len(store_at(backup).names())
            leader.publish(facts_of(20 * kill, 20 * kill + 20))
            while process.poll() is None and len(store_at(backup).names()) < before + 3:
                time.sleep(0.005)
            time.sleep(random_s.random() * 0.1)
            process.kill()
            assert process.wait() == -9
        document("archive", source, "--to", backup, "--final")
        verified = document("verify", backup)
        assert verified["verdict"] == "identical"
        assert sum(each["facts"] for each in verified["groups"]) == 120 * len(GROUPS)
        assert rows_in(backup) == rows_in(source)
        parts = all_parts(store_at(backup))
        assert sum(part.rows for part in parts) == sum(map(len, rows_in(source).values())), "no row is stored twice"
