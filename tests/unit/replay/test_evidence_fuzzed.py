"""Files that were cut and changed at random: nothing fails, and an excerpt that has nothing left to
say is not taken for anything.
"""

from __future__ import annotations

import pytest

from equipoise.replay.incident import incidents
from equipoise.replay.incident.from_logs import histories_of
from tests.evidence_fuzz import check_files, sources_in, told_of

FILES = 400


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return sources_in(tmp_path_factory.mktemp("logs"))


def test_changed_files_are_read_without_a_failure(sources: list[bytes]) -> None:
    check_files(sources, FILES, seed=1)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"group",
        b"rebalance",
        b"Preparing to rebalance group",
        b"member left the group",
        b"{}",
        b"[]",
        b"[1, 2]",
        b'{"group": 1}',
        b"null",
        b"GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID\n",
        b"2026-03-01 10:00:00 INFO our poll of group members left early and rebalanced the budget\n",
        b'{"message": "the group poll was a success", "group": "board"}\n',
    ],
)
def test_excerpt_that_says_nothing_is_taken_for_nothing(text: bytes) -> None:
    found = told_of(text)
    assert [each for history in histories_of(found).values() for each in incidents(history)] == []
