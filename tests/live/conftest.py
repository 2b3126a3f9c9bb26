"""A real broker for the tests here: `KAFKA_BOOTSTRAP` of the environment, or one that all test
processes share, started at the first live test.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
from collections.abc import Iterator

import pytest
from aiokafka.conn import AIOKafkaConnection

from tools.brokers import shared_broker

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a real Kafka. Without Java or Maven this fails, and says what to install: a
    test that is passed over holds nothing.
    """
    folder = tmp_path_factory.getbasetemp()
    with shared_broker(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as address:
        yield address


@pytest.fixture(autouse=True)
def no_connection_stays_open() -> Iterator[None]:
    """Whatever a test does to brokers: the clients in this process close all their connections. One
    that stays open would be an error of whichever test comes later, when it is collected."""
    before = {id(each) for each in open_connections()}
    yield
    left = [each for each in open_connections() if id(each) not in before]
    assert not left, f"left open: {left}"


@pytest.fixture(autouse=True)
def log_of_aiokafka() -> None:
    """Lines of aiokafka are seen again after a test whose `ConsumerGroup` has switched them off, as
    it does for its whole process.
    """
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)


@pytest.fixture
def no_error_unseen() -> Iterator[None]:
    """Every error of a future or task of the test is looked at by somebody: asyncio logs those that
    are not, from whichever thread's loop.
    """
    unseen: list[str] = []

    class Unseen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            unseen.append(record.getMessage())

    gc.collect()  # what an earlier test has left is not this one's
    handler = Unseen(logging.ERROR)
    logging.getLogger("asyncio").addHandler(handler)
    try:
        yield
        gc.collect()
    finally:
        logging.getLogger("asyncio").removeHandler(handler)
    assert not unseen, unseen


def open_connections() -> list[AIOKafkaConnection]:
    """Of every client in this process, whether anybody still knows it or not."""
    every = [each for each in gc.get_objects() if isinstance(each, AIOKafkaConnection)]
    return [each for each in every if each._writer is not None and not each._writer.is_closing()]


@pytest.fixture
def prefix() -> str:
    """A prefix for topics, and for names of groups, that no other test has."""
    return f"t{os.getpid()}x{next(_NUMBERS)}"
