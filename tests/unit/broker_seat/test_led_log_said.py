"""What is said of the log of a group that equipoise leads in another way than its own members."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.bridge.mapping import facts_of
from equipoise.bridge.question import AskedPartition, AskedProcess, AskedTask, Question
from equipoise.cli import main
from equipoise.cli.lead import configuration
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.lead.seat.log import SeatLog

TASKS = tuple(TaskId(0, number) for number in range(4))


@pytest.fixture
def streams_log(tmp_path: Path) -> str:
    """The log of `equipoise lead` of a KIP-1071 group, after one round."""
    place = tmp_path / "st.db"
    with SeatLog(place, "st") as log:
        log.configure(configuration((), streams=True))
        tasks = [
            AskedTask(
                id=each,
                stateful=True,
                source=(AskedPartition(topic="in", partition=each.partition),),
                changelog=(AskedPartition(topic="log", partition=each.partition),),
                records=9,
            )
            for each in TASKS
        ]
        process = AskedProcess(
            id="3f2a9c01-0000-0000-0000-000000000001",
            consumers=("i1-StreamThread-1-consumer-1",),
            threads=1,
            rack=None,
            tags={},
            active=TASKS,
            standby=(),
            lags=dict.fromkeys(TASKS, LagSentinel.ACTIVE),
        )
        question = Question(round_id="r1", settings={}, tasks=tuple(tasks), processes=(process,))
        log.append(*facts_of(question, log.state, 0))
    return str(place)


def said(*words: str) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_group_that_equipoise_decides_for_is_not_said_to_decide_itself(streams_log: str) -> None:
    shown = said("status", streams_log)
    assert "equipoise decides, and the group carries it out; 4 of 4 tasks have an owner by the last round" in shown
    for words in (("status", streams_log), ("status", streams_log, "--all"), ("timeline", streams_log), ("tail", streams_log)):
        text = said(*words)
        assert "its own leader" not in text, words
        assert "asked for by the application" not in text, words
    assert "led by its own leader" not in said("timeline", streams_log)
    assert "It stays where it is" in said("explain", streams_log, "--task", "0_1")


def test_log_of_a_seat_that_stands_by_says_that_nothing_is_in_it(tmp_path: Path) -> None:
    place = tmp_path / "cl.db"
    with SeatLog(place, "cl") as log:
        log.configure(configuration(()))
    shown = said("status", str(place))
    assert "every task runs" not in shown
    assert "no member is in this log; a seat that stands by writes none" in shown
