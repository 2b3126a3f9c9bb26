"""The interface of a running scenario that its harnesses use."""

from __future__ import annotations

from typing import Protocol

from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord
from tests.support.scenarios.group_harness import GroupHarness


class Transcript(Protocol):
    """The output of a running scenario, and the group that its facts go to. `Context` is one."""

    out: list[str]
    group_harness: GroupHarness

    def say(self, *lines: str) -> None: ...

    def append(self, fact: Fact, *, quiet: bool = False) -> list[DecisionRecord]: ...

    def show_step(self, fact: Fact, decisions: list[DecisionRecord], shown: int, *, quiet: bool) -> None: ...
