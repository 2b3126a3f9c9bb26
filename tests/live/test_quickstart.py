"""The README's live quickstart, as it is typed there, on the broker that its first command starts.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.events.facts import LeaveRequested, MemberJoined, MemberLeft
from equipoise.events.log import open_log
from equipoise.events.records import Record
from tests.live.brokers import free_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_S = 400


def blocks() -> list[str]:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Live, in two minutes")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.mark.docs
def test_live_quickstart_runs_as_documented(tmp_path: Path) -> None:
    make, commands = blocks()
    assert make.split("#")[0].strip() == "make broker"
    assert "$(BIN)/python -m tests.live.brokers" in (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbroker:")[2].partition("\n\n")[0]
    (port,) = free_ports(1)
    broker = subprocess.Popen([sys.executable, "-m", "tests.live.brokers", str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    try:
        assert f"127.0.0.1:{port}" in broker.stdout.readline()
        log = f"kafka://127.0.0.1:{port}"
        environment = {
            **os.environ, "EQUIPOISE_BOOTSTRAP": f"127.0.0.1:{port}", "EQUIPOISE_HTTP_PORT": "0", "NO_COLOR": "1", "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        typed = "sleep() { command sleep $((2 * $1)); }\n" + commands.replace("127.0.0.1:9092", f"127.0.0.1:{port}")  # the machine may be busy
        done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=MOST_S)
        said = done.stdout
        assert done.returncode == 0, said + done.stderr
        assert [int(count) for count in re.findall(r"^(\d) members$", said, re.MULTILINE)] == [3, 4, 3], said
        assert "m4 runs 0_" in said
        assert "1 member gone after" in said
        assert re.search(r"m[123] is asked to leave", said)
        assert "Why is 0_3 on m" in said
        assert "40000 orders of 100 customers" in said
        assert "it holds" in said.splitlines()
        assert "identical" in said
        with open_log(log) as read:
            facts = [entry.event for entry in read.read() if isinstance(entry, Record)]
        assert {fact.member_id for fact in facts if isinstance(fact, MemberJoined)} == {"m1", "m2", "m3", "m4"}
        asked = [fact.members for fact in facts if isinstance(fact, LeaveRequested)]
        left = [fact.member_id for fact in facts if isinstance(fact, MemberLeft)]
        assert asked == [(left[0],)]
        assert "m4" not in left, "it was killed"
    finally:
        broker.stdout.close()
        broker.send_signal(signal.SIGINT)
        assert broker.wait(60) == 0
