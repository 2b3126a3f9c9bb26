"""Troubles beside views: whatever is wrong, no command, page or metric says that all is well, and
each says the trouble, or that it cannot know.

Each scenario begins well, which the views say; then something is broken, and they are asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiokafka.admin import NewTopic
from playwright.async_api import Browser, Error, Page

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import Topics
from equipoise.replay.all_clear import AllClear
from tests.live.builds import started
from tests.live.console import browser
from tests.live.cut import Relays
from tests.live.group_clients import GroupClient, aiokafka_command
from tests.live.kafka import admin_client, writer
from tests.live.seat_process import SeatProcess
from tests.live.secured import secured_broker
from tests.prometheus import Prometheus
from tools.brokers import Brokers, free_ports

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 60.0
SETTLES_S = 30.0
"""Within so long every view knows of what was broken: sessions of 6 s, looks of a few seconds."""
PARTITIONS = 4
WORKER_SESSION_MS = 6_000
ALL_CLEAR = re.compile(
    "|".join([*(re.escape(each) for each in AllClear), r"every task runs", r"(?<![\w-])balanced\b", r"nothing is wrong", r"at_rest"]), re.IGNORECASE
)
NOT_KNOWN = r"not known|cannot be read|not allowed|does not answer|do not answer|no broker answers|may not|this user|brokers know nothing of"

Text = Callable[["Scene"], Awaitable[str]]


@attrs.define(kw_only=True)
class Scene:
    """What is asked. `log`: location of the group's log. `environment`: of commands, beside that of
    the test. `http_port`: of the worker; 0: none.
    """

    folder: Path
    bootstrap: str
    prefix: str
    group: str
    log: str
    task: str = "0_0"
    http_port: int = 0
    environment: dict[str, str] = attrs.field(factory=dict)
    page: Page | None = None
    prometheus: Prometheus | None = None
    quiet: set[str] = attrs.field(factory=set)
    """Alerts that fired when all was well."""
    processes: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)


async def said_by(scene: Scene, *arguments: str) -> str:
    """What a command prints, on both streams."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **scene.environment}
    command = [sys.executable, "-m", "equipoise", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(MOST_S):
        out, _ = await process.communicate()
    return out.decode()


async def status(scene: Scene) -> str:
    return await said_by(scene, "status", scene.log, "--group", scene.group)


async def explain(scene: Scene) -> str:
    return await said_by(scene, "explain", scene.log, "--group", scene.group, "--task", scene.task)


async def cluster(scene: Scene) -> str:
    return await said_by(scene, "cluster", f"kafka://{scene.bootstrap}", "--group", scene.group)


async def doctor(scene: Scene) -> str:
    return await said_by(scene, "doctor", "--bootstrap", scene.bootstrap, "--prefix", scene.prefix, "--as", "reader")


async def size(scene: Scene) -> str:
    return await said_by(scene, "size", scene.log, "--group", scene.group, "--runs", "0")


async def console(scene: Scene) -> str:
    """The page that was opened when all was well."""
    assert scene.page is not None
    if scene.page.url.startswith("chrome-error:"):
        return await scene.page.content()
    return await scene.page.inner_text("body")


async def metrics(scene: Scene) -> str:
    """The alerts that fire, and whether a group is counted as at rest."""
    assert scene.prometheus is not None
    found = await asyncio.to_thread(scene.prometheus.ask, "alerts")
    firing = [each for each in found["alerts"] if each["state"] == "firing" and each["labels"]["alertname"] not in scene.quiet]
    texts = [f"{each['labels']['alertname']}: {each['annotations']['summary']}" for each in firing]
    rest = await asyncio.to_thread(scene.prometheus.query, 'sum(equipoise_groups{condition="at_rest"}) > 0')
    return "\n".join([*texts, *(f"{each['value'][1]} groups at_rest" for each in rest)])


VIEWS: Mapping[str, Text] = {each.__name__: each for each in (status, explain, cluster, doctor, size, console, metrics)}


async def is_open(port: int) -> bool:
    try:
        _, writing = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writing.close()
    return True


async def until(what: Callable[[], Awaitable[Any]], why: Callable[[], object], within_s: float = MOST_S) -> None:
    end_s = time.monotonic() + within_s
    while not await what():
        assert time.monotonic() < end_s, why()
        await asyncio.sleep(0.5)


async def send(bootstrap: str, topic: str, *values: bytes, partition: int = 0, **more: Any) -> None:
    async with writer(Connection(bootstrap=bootstrap, **more)) as producer:
        for value in values:
            await (await producer.send(topic, value, partition=partition))


@asynccontextmanager
async def deployed(
    bootstrap: str, prefix: str, folder: Path, *, of_worker: str = "", inside: str = "", environment: dict[str, str] | None = None
) -> AsyncIterator[Scene]:
    """A worker and two members that run, a page of the console, and a Prometheus. `of_worker`: the
    worker's way to the brokers; `inside`: that of everybody but the commands, without a password.
    """
    plain = inside or bootstrap
    port, *of_members = free_ports(3)
    scene = Scene(
        folder=folder,
        bootstrap=bootstrap,
        prefix=prefix,
        group=prefix,
        log=f"kafka://{bootstrap}/{prefix}",
        http_port=port,
        environment=environment or {},
    )
    async with admin_client(Connection(bootstrap=plain)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    async with AsyncExitStack() as stack:
        stack.callback(end, scene)
        scene.processes["worker"] = worker(scene, of_worker or plain)
        for name, http_port in zip(("m1", "m2"), of_members, strict=True):
            command = ["tests.live.faulty_member", plain, prefix, name, str(http_port)]
            scene.processes[name] = started(command, folder / f"{name}.out")
        targets = {"equipoise-worker": [f"127.0.0.1:{port}"], "equipoise-member": [f"127.0.0.1:{each}" for each in of_members]}
        for partition in range(PARTITIONS):
            await send(plain, prefix, b"good", partition=partition)
        reading = attrs.evolve(scene, log=f"kafka://{plain}/{prefix}", environment={})
        await until(lambda: says_all_is_well(status, reading), (folder / "worker.out").read_text)
        scene.page = await stack.enter_async_context(page_of(await stack.enter_async_context(browser()), scene))
        scene.prometheus = stack.enter_context(Prometheus(folder, targets))
        await until(lambda: says_all_is_well(console, scene), lambda: "the console is not calm")
        await until(lambda: says_all_is_well(metrics, scene), lambda: "the metrics are not calm")
        found = await asyncio.to_thread(scene.prometheus.ask, "alerts")
        scene.quiet = {each["labels"]["alertname"] for each in found["alerts"]}
        yield scene


def worker(scene: Scene, bootstrap: str) -> subprocess.Popen[bytes]:
    command = ["equipoise", "worker", "--bootstrap", bootstrap, "--prefix", scene.prefix, "--http-port", str(scene.http_port)]
    return started([*command, "--worker-session-timeout-ms", str(WORKER_SESSION_MS)], scene.folder / "worker.out")


def worker_as_commands(scene: Scene) -> subprocess.Popen[bytes]:
    """With the user of the commands."""
    command = [sys.executable, "-m", "equipoise", "worker", "--bootstrap", scene.bootstrap, "--prefix", scene.prefix]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **scene.environment}
    with open(scene.folder / "nobody.out", "wb") as out:
        return subprocess.Popen([*command, "--http-port", str(scene.http_port)], env=environment, stdout=out, stderr=out)


def end(scene: Scene) -> None:
    for process in scene.processes.values():
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@asynccontextmanager
async def page_of(opened: Browser, scene: Scene) -> AsyncIterator[Page]:
    context = await opened.new_context()
    page = await context.new_page()
    await page.goto(f"http://127.0.0.1:{scene.http_port}/console/#/g/{scene.group}")
    try:
        yield page
    finally:
        await context.close()


async def says_all_is_well(view: Text, scene: Scene) -> bool:
    return ALL_CLEAR.search(await view(scene)) is not None


async def check(scene: Scene, words: str, views: Mapping[str, str | None] = {}) -> None:
    """Asks every view until each says one of the words, and no all-clear. `views`: view -> words of
    its own; None: it has nothing to do with this scenario.
    """
    wanted = {name: views.get(name, words) for name in VIEWS}
    asked = {name: re.compile(f"{text}|{NOT_KNOWN}", re.IGNORECASE) for name, text in wanted.items() if text is not None}
    end_s, texts = time.monotonic() + SETTLES_S, dict.fromkeys(asked, "")
    while True:
        for name in [name for name, text in texts.items() if not text or not asked[name].search(text) or ALL_CLEAR.search(text)]:
            texts[name] = await VIEWS[name](scene)
        wrong = {name: text for name, text in texts.items() if not asked[name].search(text) or ALL_CLEAR.search(text)}
        if not wrong:
            return
        if time.monotonic() > end_s:
            report = "\n".join(f"=== {name}, for /{asked[name].pattern}/:\n{text}" for name, text in wrong.items())
            pytest.fail(report)
        await asyncio.sleep(1)


# Scenarios


async def test_worker_that_is_dead_is_said_in_every_view(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with deployed(bootstrap, prefix, tmp_path) as scene:
        scene.processes["worker"].kill()
        scene.processes["worker"].wait()
        scene.processes["m2"].kill()
        words = r"nobody has decided since|no worker runs"
        await check(scene, words, {"metrics": "EquipoiseNoWorker|EquipoiseWorkerDown"})


async def test_worker_that_is_paused_is_said_in_every_view(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with deployed(bootstrap, prefix, tmp_path) as scene:
        scene.processes["worker"].send_signal(signal.SIGSTOP)
        words = r"nobody has decided since|no worker runs"
        await check(scene, words, {"metrics": "EquipoiseNoWorker|EquipoiseWorkerDown"})


async def hand_over_to_a_worker_without_rights(scene: Scene) -> None:
    """The worker ends, and the next one has the user of the commands."""
    scene.processes["worker"].kill()
    scene.processes["worker"].wait()
    scene.processes["worker"] = worker_as_commands(scene)
    assert scene.page is not None
    await asyncio.sleep(3)
    with contextlib.suppress(Error):
        await scene.page.reload()


async def test_user_without_rights_hears_that_nothing_is_known(prefix: str, tmp_path: Path) -> None:
    with secured_broker(tmp_path, "nobody", "worker") as secured:
        settings = {f"EQUIPOISE_{name.upper()}": value for name, value in secured.settings("nobody").items()}
        async with deployed(secured.bootstrap, prefix, tmp_path, inside=secured.inside, environment=settings) as scene:
            await hand_over_to_a_worker_without_rights(scene)
            await check(scene, r"is missing; without it", {"console": "ERR_CONNECTION_REFUSED|not ready", "metrics": "EquipoiseWorkerDown"})


async def test_brokers_that_are_away_are_said_in_every_view(prefix: str, tmp_path: Path) -> None:
    with Brokers() as brokers:
        async with deployed(brokers.bootstrap, prefix, tmp_path) as scene:
            brokers.kill(0)
            await check(scene, r"refused|brokers have not answered|being taken over", {"metrics": "EquipoisePartitionNotLed"})
            brokers.start(0)


async def test_task_that_has_failed_is_said_in_every_view(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with deployed(bootstrap, prefix, tmp_path) as scene:
        await send(bootstrap, prefix, b"fail", *[b"good"] * 50)
        place = rf"{prefix}/0 offset 1\b.*a record that cannot be"
        await check(
            scene,
            place,
            {"metrics": rf"EquipoiseTaskParked: Task 0_0 of group {prefix} failed at {prefix}/0 offset 1\b"},
        )


async def test_handler_that_does_not_return_is_said_in_every_view(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with deployed(bootstrap, prefix, tmp_path) as scene:
        await send(bootstrap, prefix, b"hang", *[b"good"] * 50)
        words = rf"task 0_0 waits for its handler for over 4 s, with {prefix}/0 at offset 1\b"
        await check(scene, words, {"metrics": "EquipoiseMembersHeldUp"})


async def test_log_that_is_cut_is_said_in_every_view(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with deployed(bootstrap, prefix, tmp_path) as scene:
        scene.processes["worker"].kill()
        scene.processes["worker"].wait()
        topics = Topics(prefix)
        async with admin_client(Connection(bootstrap=bootstrap)) as admin:
            for topic in (topics.facts, topics.decisions):
                await admin.delete_records({TopicPartition(topic, partition): -1 for partition in range(1)})
        scene.processes["worker"] = worker(scene, bootstrap)
        words = r"deleted|missing|begins at|damaged|retention|being taken over|no worker runs"
        await check(scene, words, {"metrics": "EquipoisePartitionNotLed|EquipoiseTakeoversFail"})


async def test_metrics_of_a_worker_that_reads_no_more_are_not_taken_for_the_present(prefix: str, tmp_path: Path) -> None:
    relays = Relays(["worker", "others"])
    with Brokers(1, relays.listeners) as brokers:
        for relay in (*relays.of("worker"), *relays.of("others")):  # the broker opens them after its own
            await until(partial(is_open, relay.broker_port), lambda: brokers.log_of(0))
        async with relays.relaying(), deployed(relays.bootstrap("others"), prefix, tmp_path, of_worker=relays.bootstrap("worker")) as scene:
            relays.cut("worker")
            words = r"nobody has decided since|no worker runs|brokers have not answered|being taken over"
            await check(scene, words, {"metrics": "EquipoisePartitionNotLed"})


SEAT_WITHOUT: dict[str, str | None] = {"console": None, "doctor": "log is not read|is missing|has not|no such|there is no"}
"""A seat has no console, and its log is a file, which the doctor does not examine."""
NO_TASKS = "has none yet|nothing can be predicted"


@asynccontextmanager
async def other_group(bootstrap: str, prefix: str, folder: Path, *clients: str, **settings: str) -> AsyncIterator[tuple[Scene, list[GroupClient]]]:
    """A group of consumers that know nothing of equipoise, with a Prometheus that scrapes a seat."""
    (port,) = free_ports(1)
    scene = Scene(folder=folder, bootstrap=bootstrap, prefix=prefix, group=prefix, log=str(folder / "seat.db"), http_port=port)
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])
    each = {"heartbeat_interval_ms": "500", "session_timeout_ms": "6000", "auto_offset_reset": "earliest", **settings}
    run = [GroupClient(aiokafka_command(), prefix, bootstrap_servers=bootstrap, group_id=prefix, client_id=name, **each) for name in clients]
    with ExitStack() as stack:
        for client in run:
            stack.callback(client.close)
        scene.prometheus = stack.enter_context(Prometheus(folder, {"equipoise-lead": [f"127.0.0.1:{port}"]}))
        found = await asyncio.to_thread(scene.prometheus.ask, "alerts")
        scene.quiet = {each["labels"]["alertname"] for each in found["alerts"]} | {"EquipoiseNoWorker"}
        await until(lambda: _true(all(client.assigned for client in run)), lambda: "nothing is assigned")
        yield scene, run


async def _true(found: bool) -> bool:
    return found


@contextlib.contextmanager
def seat_of(scene: Scene, *options: str) -> Iterator[SeatProcess]:
    seat = SeatProcess(scene.bootstrap, scene.group, Path(scene.log), "--http-port", str(scene.http_port), *options)
    try:
        yield seat
    finally:
        seat.end(signal.SIGKILL)


async def test_seat_that_is_alone_hides_from_nobody_that_nobody_reads(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with other_group(bootstrap, prefix, tmp_path, "a") as (scene, (client,)):
        await send(bootstrap, prefix, *[b"x"] * 10)
        await until(lambda: _true(len(client.records) == 10), lambda: client.records)
        client.signal(signal.SIGTERM)  # it commits
        await asyncio.to_thread(client.ended)
        await send(bootstrap, prefix, *[b"x"] * 50)
        with seat_of(scene, "--evict") as seat:
            await until(lambda: _true(Path(scene.log).exists()), lambda: seat.said)
            words = rf"no member|nobody reads|{NO_TASKS}"
            await check(scene, words, {**SEAT_WITHOUT, "metrics": "EquipoiseLedGroupUnread"})


async def test_seat_that_stands_by_calls_the_group_neither_led_nor_well(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with other_group(bootstrap, prefix, tmp_path, "a", "b") as (scene, _):
        with seat_of(scene) as seat:
            await until(lambda: _true("standing by" in seat.said or "stands by" in seat.said), lambda: seat.said)
            words = rf"stands? by|standing by|its own leader decides|no member|led by [ab]\b|{NO_TASKS}"
            await check(scene, words, {**SEAT_WITHOUT, "metrics": "EquipoiseGroupNotLed"})


async def test_group_that_never_commits_is_not_called_caught_up(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with other_group(bootstrap, prefix, tmp_path, "a", enable_auto_commit="0") as (scene, (client,)):
        await send(bootstrap, prefix, *[b"x"] * 50)
        await until(lambda: _true(len(client.records) == 50), lambda: client.records)
        of_a_log = dict.fromkeys(("status", "explain", "size"), "no such file|does not exist|there is no")
        words = r"never committed|no commit|not committed|committed nothing|unknown"
        await check(scene, words, {**SEAT_WITHOUT, **of_a_log, "metrics": "EquipoiseLeadDown"})
