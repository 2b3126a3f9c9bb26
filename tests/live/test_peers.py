"""The comparison with peers, small: its harness runs against two of them, and what it says of them
can be true.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.systems import SESSION_TIMEOUT_MS

TASKS = 4


@pytest.mark.slow
def test_comparison_measures_two_systems_through_a_join_and_a_kill(bootstrap: str, tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    command = [sys.executable, "-m", "bench.peers", "--only", "equipoise,group", "--actions", "join,kill", "--tasks", str(TASKS), "--state-mb", "1"]
    command += ["--members", "1", "--rest-s", "2", "--bootstrap", bootstrap, "--out", str(out), "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    ours, group = document["runs"]
    assert (ours["system"], group["system"]) == ("equipoise", "consumer group")
    for run in document["runs"]:
        join, kill = (step["cost"] for step in run["steps"])
        assert run["keys"] == 1_000_000 // 161 // TASKS * TASKS
        assert join["settled"]
        assert kill["settled"]
        assert join["moves"] == TASKS // 2
        assert kill["moves"] == TASKS // 2
        assert run["unanswered"] == 0
        # The killed one ran half of them. Without a witness it is missed after its session.
        if run is ours:
            assert kill["longest_still_ms"] < SESSION_TIMEOUT_MS / 2
        else:
            assert kill["tasks_still"] >= TASKS // 2
            assert SESSION_TIMEOUT_MS / 2 < kill["longest_still_ms"] < kill["lasts_ms"]
            assert kill["unavailable_ms"] >= (TASKS // 2) * SESSION_TIMEOUT_MS / 2
        assert 0 < run["wait_median_ms"] <= run["wait_p99_ms"]
        assert join["moved_wait_ms"] >= join["moved_wait_median_ms"] > 0
    assert "one joins" in done.stdout
    assert "kill -9" in done.stdout
