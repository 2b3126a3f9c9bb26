"""A real broker for the tests here: `KAFKA_BOOTSTRAP` of the environment, or one that each test process starts for itself at its first live test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.live.brokers import Brokers

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """``host:port`` of a real Kafka. Without Java or Maven this fails, and says what to install: a test that is passed over holds nothing."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    with Brokers() as brokers:
        yield brokers.bootstrap


@pytest.fixture
def prefix() -> str:
    """A prefix for topics, and for names of groups, that no other test has."""
    return f"t{os.getpid()}x{next(_NUMBERS)}"
