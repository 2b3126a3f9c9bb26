"""`Member.run` ends with an exit status, whatever ends it, and restores the signals' handlers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Unpack

import pytest

from equipoise import Connection, Member, Record, SupersededError, TaskContext
from equipoise.events.errors import FieldError
from equipoise.member.options import MemberKeywords, RestartIntent


def handle(record: Record, context: TaskContext) -> None: ...


class Host:
    """What `run` uses of a host that has joined."""

    is_leaving = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self, restart: RestartIntent | None = None) -> None:
        self.calls.append(f"restart within {restart.back_within_ms} ms{', in turn' * restart.wait_turn}" if restart else "leave")
        self.is_leaving = True

    def close(self) -> None:
        self.calls.append("close")
        if not self.over.done():
            self.over.set_result(None)

    async def end(self) -> None:
        pass


class Joined(Member):
    """A member that joins without brokers."""

    async def __aenter__(self) -> Any:
        self._host: Any = Host()
        return self


def member(kind: type[Member] = Joined, **options: Unpack[MemberKeywords]) -> Member:
    return kind("g", handle, sources="in", member_id="m1", connection=Connection(bootstrap="127.0.0.1:1"), **options)


async def run_and(made: Member, *numbers: int) -> tuple[int, list[str]]:
    """Status, and what `run` called at these signals, one after the other."""
    running = asyncio.ensure_future(made.run())
    for number in numbers:
        await asyncio.sleep(0.02)
        os.kill(os.getpid(), number)
    status = await asyncio.wait_for(running, 10)
    return status, [] if made._host is None else made._host.calls  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("signals", "calls"),
    [
        ([signal.SIGINT], ["close", "close"]),  # once more when the context is exited
        ([signal.SIGTERM, signal.SIGTERM], ["leave", "close", "close"]),
        ([signal.SIGTERM, signal.SIGINT], ["leave", "close", "close"]),
    ],
)
async def test_sigterm_leaves_and_sigint_or_a_second_signal_closes(signals: list[int], calls: list[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert await run_and(member(), *signals) == (0, calls)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"on_sigterm": "restart"}, "restart within None ms, in turn"),
        ({"on_sigterm": "restart", "back_within_ms": 30_000}, "restart within 30000 ms, in turn"),
        ({"on_sigterm": "restart", "back_within_ms": 30_000, "wait_turn": False}, "restart within 30000 ms"),
    ],
)
async def test_sigterm_of_a_member_that_restarts_says_what_its_options_say(options: MemberKeywords, call: str) -> None:
    assert await run_and(member(**options), signal.SIGTERM, signal.SIGTERM) == (0, [call, "close", "close"])


@pytest.mark.parametrize("back_within_s", [0, -1, 86_400.5, float("nan")])
async def test_leave_refuses_a_time_that_no_restart_can_take(back_within_s: float) -> None:
    with pytest.raises(FieldError, match=r"^back_within_s: .*over 0 and at most 86400"):
        await member().leave(back_within_s=back_within_s)


async def test_leave_for_less_than_a_millisecond_states_a_whole_one() -> None:
    made = member()
    async with made:
        leaving = asyncio.ensure_future(made.leave(back_within_s=0.000_1, wait_turn=False))
        await asyncio.sleep(0)
        assert made._host.calls == ["restart within 1 ms"]  # type: ignore[union-attr]
        made.close()
        await leaving


async def test_signal_before_the_member_has_joined_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(self: Member) -> Any:
        await asyncio.sleep(600)

    monkeypatch.setattr(Member, "_find_topology", wait)
    assert await run_and(member(Member), signal.SIGTERM) == (0, [])


async def test_member_that_finds_no_broker_ends_with_2_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert await run_and(member(Member)) == (2, [])
    assert "member m1 of group g has ended: bootstrap: no broker answers at 127.0.0.1:1" in caplog.text


async def test_superseded_member_ends_with_3_and_other_errors_are_raised() -> None:
    for error, status in ((SupersededError("another process"), 3), (RuntimeError("a callback"), None)):
        made = member()
        running = asyncio.ensure_future(made.run())
        await asyncio.sleep(0.02)
        made._host.over.set_exception(error)  # type: ignore[union-attr]
        if status is None:
            with pytest.raises(RuntimeError, match="a callback"):
                await running
        else:
            assert await running == status
