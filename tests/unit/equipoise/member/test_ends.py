"""The ends of changelogs: when they are known, and when they become unknown."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from equipoise.member.copies import changelog_ends as module
from equipoise.member.copies.changelog_ends import ChangelogEnds

ONE, OTHER = TopicPartition("log", 0), TopicPartition("log", 1)


async def learned(ends: ChangelogEnds, answer: dict[Any, int], *, meanwhile: Any = None) -> ChangelogEnds:
    """Requests every partition in `answer`; `meanwhile` runs before the answer arrives."""

    async def ask(partitions: list[Any]) -> dict[Any, int]:
        found = {tp: answer[tp] for tp in partitions}
        if meanwhile is not None:
            meanwhile()
        return found

    await ends.learn(ask, answer)
    return ends


async def test_behind_is_a_number_only_when_the_end_is_known_and_not_passed() -> None:
    ends = await learned(ChangelogEnds(), {ONE: 10})
    assert [ends.behind(ONE, position) for position in (0, 4, 10, 11)] == [10, 6, 0, None]
    assert ends.behind(OTHER, 0) is None


async def test_fetched_end_only_raises_the_known_end() -> None:
    """The fetch may be old or from a replica; a position beyond its end proves that it is."""
    ends = await learned(ChangelogEnds(), {ONE: 3_000})
    for position, fetched_end in ((40, 40), (50, 40), (60, -1), (70, None)):
        ends.read(ONE, position, fetched_end)
        assert ends.behind(ONE, position) == 3_000 - position
    ends.read(ONE, 80, 3_500)
    assert ends.behind(ONE, 80) == 3_420


async def test_read_makes_no_unknown_end_known() -> None:
    ends = ChangelogEnds()
    ends.read(ONE, 40, 40)
    assert ends.behind(ONE, 40) is None


async def test_leaders_end_may_be_lower() -> None:
    """A changelog that lost records: its copies are ahead of it until they are wiped."""
    ends = await learned(await learned(ChangelogEnds(), {ONE: 500}), {ONE: 100})
    assert (ends.behind(ONE, 90), ends.behind(ONE, 200)) == (10, None)


async def test_end_learned_during_a_request_is_newer_than_its_answer() -> None:
    ends = await learned(ChangelogEnds(), {ONE: 16, OTHER: 16})
    await learned(ends, {ONE: 16, OTHER: 20}, meanwhile=lambda: ends.answered({ONE: 3_016}))
    assert (ends.behind(ONE, 16), ends.behind(OTHER, 16)) == (3_000, 4)


async def test_answer_to_a_request_from_before_forget_does_not_count() -> None:
    """The task ran and stopped here during the request."""
    ends = await learned(ChangelogEnds(), {ONE: 10, OTHER: 10})
    await learned(ends, {ONE: 10, OTHER: 12}, meanwhile=lambda: ends.forget([ONE]))
    assert (ends.behind(ONE, 10), ends.behind(OTHER, 10)) == (None, 2)


@pytest.mark.parametrize("error", [KafkaConnectionError(), TimeoutError()])
async def test_leader_that_does_not_answer_hides_only_its_own_ends(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.01)
    ends = await learned(ChangelogEnds(), {ONE: 10, OTHER: 10})

    async def ask(partitions: list[Any]) -> dict[Any, int]:
        if OTHER in partitions:
            raise error
        return dict.fromkeys(partitions, 30)

    await ends.learn(ask, [ONE, OTHER])
    assert (ends.behind(ONE, 10), ends.behind(OTHER, 10)) == (20, None)
