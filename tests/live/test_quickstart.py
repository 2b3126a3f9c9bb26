"""The README's live quickstart and the live half of docs/tutorial.md, as they are typed there, on
the broker that `make broker` starts.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equipoise.events.facts import LeaveRequested, MemberJoined, MemberLeft
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from tests.typed import Block, blocks, clone, run
from tools.brokers import free_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_S = 400
SLOWLY = "sleep() { command sleep $((2 * $1)); }\n"
"""The machine may be busy."""


@contextmanager
def make_broker(commands: Block) -> Iterator[str]:
    """What `make broker` starts, on another port: its address."""
    assert commands.text.split("#")[0].strip() == "make broker"
    assert "$(BIN)/python -m tools.brokers" in (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbroker:")[2].partition("\n\n")[0]
    (port,) = free_ports(1)
    broker = subprocess.Popen([sys.executable, "-m", "tools.brokers", str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    try:
        assert f"127.0.0.1:{port}" in broker.stdout.readline()
        yield f"127.0.0.1:{port}"
    finally:
        broker.stdout.close()
        broker.send_signal(signal.SIGINT)
        assert broker.wait(60) == 0


def run_on(broker: str, commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    typed = SLOWLY + commands.replace("127.0.0.1:9092", broker)
    return run(typed, folder, MOST_S, EQUIPOISE_BOOTSTRAP=broker, EQUIPOISE_HTTP_PORT="0")


@pytest.mark.docs
def test_live_quickstart_runs_as_documented(tmp_path: Path) -> None:
    make, commands = (block for block in blocks("README.md") if block.section == "Live, in two minutes")
    with make_broker(make) as broker:
        done = run_on(broker, commands.text, tmp_path)
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
        with open_log(f"kafka://{broker}") as read:
            facts = [entry.event for entry in read.read() if isinstance(entry, FactRecord)]
        assert {fact.member_id for fact in facts if isinstance(fact, MemberJoined)} == {"m1", "m2", "m3", "m4"}
        asked = [fact.members for fact in facts if isinstance(fact, LeaveRequested)]
        left = [fact.member_id for fact in facts if isinstance(fact, MemberLeft)]
        assert asked == [(left[0],)]
        assert "m4" not in left, "it was killed"


CONSUMER = """
import asyncio
from aiokafka import AIOKafkaConsumer

async def run():
    consumer = AIOKafkaConsumer("payments-in", bootstrap_servers="127.0.0.1:9092", group_id="payments", client_id="payments-1")
    await consumer.start()
    print("assigned", len(consumer.assignment()), flush=True)
    await asyncio.sleep(300)

asyncio.run(run())
"""


@pytest.mark.docs
def test_commands_for_groups_that_nobody_rewrites_answer_about_one(tmp_path: Path) -> None:
    make, _commands = (block for block in blocks("README.md") if block.section == "Live, in two minutes")
    (commands,) = (block for block in blocks("README.md") if block.section == "Groups that nobody rewrites")
    log = (ROOT / "tests" / "data" / "group_logs" / "example.log").read_text(encoding="utf-8")
    (tmp_path / "server.log").write_text(log.replace("orders", "payments"), encoding="utf-8")
    with make_broker(make) as broker:
        script = CONSUMER.replace("127.0.0.1:9092", broker)
        consumer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert consumer.stdout is not None
        try:
            assert consumer.stdout.readline().startswith("assigned")
            done = run_on(broker, f"set -e; {commands.text}", tmp_path)
        finally:
            consumer.kill()
            consumer.wait()
            consumer.stdout.close()
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^payments +", done.stdout, re.MULTILINE), done.stdout
        assert "what began it" in done.stdout
        assert "payments-1" in done.stdout + done.stderr
        assert not (tmp_path / "out").exists()


TASK_OF_M2 = """$(equipoise status --group orders --json | python -c '
import json, sys
print(next(each["active"][0] for each in json.load(sys.stdin)["state"]["members"] if each["member_id"] == "m2"))')"""


@pytest.mark.docs
def test_live_half_of_the_tutorial_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = [block for block in blocks("docs/tutorial.md") if block.section in ("A live group", "Kill a member", "Check everything")]
    make, _docker, *commands = (block for block in page if block.kind == "sh")
    folder = clone(tmp_path)
    (folder / "out" / "live").mkdir(parents=True)
    with make_broker(make) as broker:
        done = run_on(broker, "".join(block.text for block in commands).replace("--task 0_1", f"--task {TASK_OF_M2}"), folder)
        said = done.stdout
        assert [int(count) for count in re.findall(r"^(\d) members$", said, re.MULTILINE)] == [3, 2, 3], said + done.stderr
        assert "it holds" in said.splitlines()
        assert "identical: " in said
        printed = {words(line) for line in said.splitlines()}
        shown = [line for block in page if block.kind == "text" for line in block.text.splitlines()]
        assert [line for line in shown if not any(words(line) <= each for each in printed)] == []


def words(line: str) -> frozenset[str]:
    """What is the same in each run: no numbers, ids and tasks."""
    return frozenset(re.findall(r"\b[A-Za-z_]{2,}\b", line)) - {"ms"}
