"""The batch jobs over Spark Connect, as a notebook of a cloud has it: the client has no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.verify import verify_group

pytestmark = pytest.mark.xdist_group("spark")


def test_groups_are_verified_over_connect(fleet: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise", "spark", "verify", str(fleet), "--to", str(tmp_path / "rows"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=os.environ | {"SPARK_REMOTE": "local[2]"})
    assert done.returncode == 0, done.stderr
    rows = [verify_group(unit) for unit in units_of([str(fleet)])]
    assert json.loads(done.stdout)["groups"] == [{name: value for name, value in row.items() if name != "document"} for row in rows]
    assert (tmp_path / "rows" / "rows.parquet").is_file()
    assert "Failed to set" not in done.stderr, "nothing that the server does not let a client set"
