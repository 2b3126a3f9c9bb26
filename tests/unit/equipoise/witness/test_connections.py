"""Which processes of this machine are connected to a broker. Real sockets and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from equipoise.witness.member_watch import are_only_clients, own_addresses

CONNECT = "import socket, sys; each = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print('connected', flush=True); each.recv(1)"
PATIENCE_S = 20.0


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        try:
            server.bind((request.param, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        yield request.param, server.getsockname()[1]


@contextlib.contextmanager
def started(*command: str, endpoint: tuple[str, int]) -> Iterator[None]:
    """A process that is connected to the endpoint within the block, and its parents' ends."""
    process = subprocess.Popen([*command, *map(str, endpoint)], stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "connected\n"
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


CHILD = (sys.executable, "-c", CONNECT)
GRANDCHILD = ("sh", "-c", f'{sys.executable} -c "$0" "$@"; true', CONNECT)
NEIGHBOUR = ("sh", "-c", f'{sys.executable} -c "$0" "$@" & ', CONNECT)
"""Its parent has ended at once, so it is no process that this one has started."""


def test_own_addresses_are_those_towards_the_broker(listening: tuple[str, int]) -> None:
    assert own_addresses([listening]) == {listening[0]}


def test_started_process_that_is_connected_is_the_only_client(listening: tuple[str, int]) -> None:
    assert not are_only_clients([listening])
    for command in (CHILD, GRANDCHILD):
        with started(*command, endpoint=listening):
            assert are_only_clients([listening])
            assert not are_only_clients([(listening[0], 1)])
            with contextlib.closing(socket.create_connection(listening)):
                assert are_only_clients([listening]), "this process does not count"
        until_nobody_is_connected(listening)


def test_neighbour_that_is_connected_is_another_client(listening: tuple[str, int]) -> None:
    with started(*NEIGHBOUR, endpoint=listening):
        assert not are_only_clients([listening])
        with started(*CHILD, endpoint=listening):
            assert not are_only_clients([listening])


def until_nobody_is_connected(endpoint: tuple[str, int]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while are_only_clients([endpoint]):
        assert time.monotonic() < end_s
        time.sleep(0.02)
