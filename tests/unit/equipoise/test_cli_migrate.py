"""`equipoise migrate` without a broker: what it refuses, and what it tells of clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.held_group import Holders
from equipoise.operations.adopting import Adopting


@pytest.mark.parametrize("back", [[], ["--back"]])
def test_one_name_for_both_groups_is_refused(back: list[str]) -> None:
    done = CliRunner().invoke(main, ["migrate", "--to", "members", "--group", "g", "--consumers", "g", *back])
    assert done.exit_code == 2
    assert "--group: the members' group and the consumers' are both 'g'" in done.stderr


@pytest.mark.parametrize("back", [[], ["--back"]])
def test_no_broker_is_said_in_one_line(back: list[str]) -> None:
    done = CliRunner().invoke(main, ["migrate", "--to", "members", "--bootstrap", "127.0.0.1:1", "--group", "g", "--consumers", "c", *back])
    assert done.exit_code == 2
    assert "no broker answers at 127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("holders", [0, 1])
@pytest.mark.parametrize("move", [Adopting.to_members, Adopting.to_consumers])
async def test_consumer_group_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch, move: Any, holders: int) -> None:
    """Else it waits for ever, and offsets are committed for a group that never was."""
    moving = Adopting(LiveSettings(), "g", "never", lambda line: None)

    async def state() -> SimpleNamespace:
        part = SimpleNamespace(source_topics=("in",))
        return SimpleNamespace(owner={}, members={}, tasks=lambda: {TaskId(0, 0): part, TaskId(0, 1): part})

    async def look() -> Holders:
        return Holders(members=frozenset(), releasing=frozenset(), others=frozenset(["c"] * holders))

    async def committed(group: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert places == [("in", 0), ("in", 1)]
        return {}

    async def wait() -> None:
        raise RuntimeError("it goes on")

    async def plan(*_: Any, **__: Any) -> None:
        return

    monkeypatch.setattr(moving, "_committed", committed)
    monkeypatch.setattr(moving, "_plan", plan)
    monkeypatch.setattr(moving, "_live", SimpleNamespace(state=state, until_next_look=wait))
    monkeypatch.setattr(moving, "_held", SimpleNamespace(look=look, enter_and_stay=lambda said: wait(), leave=wait))
    monkeypatch.setattr(moving, "_members_left", lambda holding: wait())
    with pytest.raises(RuntimeError if holders else InputError) as caught:
        await move(moving, wait)
    if not holders:
        assert "--consumers never: there is no such consumer group: it has no members, and no committed offsets of in" in str(caught.value)
