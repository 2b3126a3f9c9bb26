"""The context of a running scenario: its harnesses, the member models, what is shown, and the
output so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs

from equipoise.events.decisions import Decision, EventRejected, MemberAssigned
from equipoise.events.errors import FieldError, GroupHalted
from equipoise.events.facts import Fact, GroupConfigured, MemberJoined
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import TaskId
from equipoise.statemachine.state import GroupState
from tests.support.scenarios.actors import DEFAULT_END_OFFSET, Actor, joined
from tests.support.scenarios.cluster_harness import ClusterHarness
from tests.support.scenarios.group_harness import LOG_ID, GroupHarness
from tests.support.scenarios.parsed_directive import ParsedDirective
from tests.support.scenarios.render import Shown, concerned, decision_lines, fact_text, member_line
from tests.support.scenarios.session_harness import SessionHarness

T = TypeVar("T")


@attrs.define
class Defaults:
    """Defaults of the directive `join`."""

    session_timeout_ms: int = 30_000
    lease_margin_ms: int = 3_000


class Context:
    """`out`: output lines of the running case."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.expected_halt = False
        """Set by `expect-halt`; reset with each case."""
        self.past_disagreements: list[str] = []
        """Disagreements found before the last `reset`."""
        self.reset()

    def reset(self) -> None:
        """Starts over with an empty log."""
        self.group_harness = GroupHarness()
        self.shown = Shown()
        self.defaults = Defaults()
        self.actors: dict[str, Actor] = {}
        """Member -> its latest incarnation."""
        self.past_actors: dict[tuple[str, int], Actor] = {}
        self.marked: dict[TaskId, str] = {}
        """Owners at the last `mark`."""
        self.session_harness: SessionHarness | None = None
        """None until a directive opens a session."""
        self.cluster_harness: ClusterHarness | None = None
        """None until the directive `cluster`."""
        self.refused: dict[tuple[str, str], int] | None = None
        """During `pass`: (member, code) -> rejected reports; the first is shown, others counted."""
        self._joins = 0
        self._logs = 1

    def replace_log(self) -> None:
        """Starts an empty log with another id. Sessions and clocks continue."""
        self.close()
        self._logs += 1
        append_ms = self.group_harness.append_ms
        self.group_harness = GroupHarness(f"{LOG_ID}-{self._logs}")
        self.group_harness.append_ms = append_ms
        self.actors, self.past_actors, self.marked = {}, {}, {}

    def close(self) -> tuple[str, ...]:
        """Folds the log again from every split. Returns all disagreements of the whole scenario."""
        self.group_harness.check_every_split()
        self.past_disagreements += self.group_harness.disagreements
        return tuple(self.past_disagreements)

    @property
    def state(self) -> GroupState:
        return self.group_harness.machine.state

    @property
    def halted(self) -> GroupHalted | None:
        """Returns why the group is halted; None: it is not."""
        return self.group_harness.halted if self.cluster_harness is None else self.cluster_harness.halted

    def say(self, *lines: str) -> None:
        """Adds output lines, without blank ones: a blank line ends the golden text."""
        self.out.extend(line for line in lines if line.strip())

    def move_clock(self, parsed: ParsedDirective) -> None:
        """Applies ``at_ms`` and ``after_ms`` before the first fact of a directive."""
        if parsed.has("at_ms"):
            self.group_harness.append_ms = parsed.get("at_ms", 0)
        self.group_harness.append_ms += parsed.get("after_ms", 0)

    def append(self, fact: Fact, *, quiet: bool = False) -> list[DecisionRecord]:
        """Appends a fact and shows its decisions. `quiet`: shows nothing without a decision."""
        group_harness = self.group_harness
        if self.cluster_harness is not None:
            self.cluster_harness.cluster.append(fact)
            return []
        halted_before = group_harness.halted
        if halted_before is not None:
            self.say(f"!! the group is halted ({halted_before.code}); restart it first")
            return []
        shown = len(group_harness.disagreements)
        decisions = group_harness.append(fact)
        self.show_step(fact, decisions, shown, quiet=quiet)
        return decisions

    def show_step(self, fact: Fact, decisions: list[DecisionRecord], shown: int, *, quiet: bool) -> None:
        """Shows a fact, its decisions and new disagreements. `shown`: disagreements already shown."""
        group_harness = self.group_harness
        self._remember(fact, decisions)
        if self._refused_again(decisions):
            return
        lines = [line for record in decisions for line in decision_lines(record.decision, self.shown, fact)]
        halted = group_harness.halted
        if halted is not None:
            lines.append(f"!! halted {halted.code}: {halted.problem}")
        if lines or not quiet:
            when = f" now_ms={self.state.now_ms}" if self.shown.time else ""
            self.say(f"#{self.state.seq} {fact_text(fact)}{when}", *lines, *self.member_lines(concerned(record.decision for record in decisions)))
        self.say(*(f"!! {found}" for found in group_harness.disagreements[shown:]))

    def _refused_again(self, decisions: list[DecisionRecord]) -> bool:
        if self.refused is None or len(decisions) != 1 or not isinstance(decisions[0].decision, EventRejected):
            return False
        key = (decisions[0].decision.member_id or "", decisions[0].decision.code)
        self.refused[key] = self.refused.get(key, 0) + 1
        return self.refused[key] > 1

    def member_lines(self, names: Iterable[str]) -> list[str]:
        members = self.state.members
        return [member_line(self.state, members[name], self.shown) for name in sorted(names) if name in members]

    def _remember(self, fact: Fact, decisions: Iterable[DecisionRecord]) -> None:
        """Gives each assignment to the model of its member."""
        rejected = any(isinstance(record.decision, EventRejected) for record in decisions)
        if isinstance(fact, MemberJoined) and not rejected:
            before = self.actors.get(fact.member_id)
            if before is not None:
                self.past_actors[before.member_id, before.incarnation] = before
            self.actors[fact.member_id] = joined(fact)
        for decision in whole(record.decision for record in decisions):
            self._give(decision)

    def _give(self, decision: Decision) -> None:
        if isinstance(decision, MemberAssigned):
            actor = self.actors.get(decision.member_id)
            if actor is not None and actor.incarnation == decision.incarnation:
                actor.granted = decision

    # Members

    def next_nonce(self) -> str:
        self._joins += 1
        return f"join-{self._joins}"

    def actor(self, parsed: ParsedDirective, member_id: str) -> Actor:
        """The member's latest incarnation, or the one that ``incarnation=`` names; a new model for
        a member that never joined.
        """
        latest = self.actors.get(member_id)
        incarnation = parsed.get("incarnation", 1 if latest is None else latest.incarnation)
        if latest is not None and latest.incarnation == incarnation:
            return latest
        past = self.past_actors.get((member_id, incarnation))
        return past or Actor(member_id=member_id, incarnation=incarnation, session_timeout_ms=self.defaults.session_timeout_ms, lags={})

    def live_members(self, parsed: ParsedDirective) -> list[str]:
        """The members that a line names; ``all``: every member of the group."""
        return sorted(self.state.members) if parsed.directive.words == ("all",) else parsed.members()

    def apply(self, actor: Actor) -> None:
        """Lets the member apply its last assignment."""
        topology = self.state.topology
        stateful = frozenset(part.subtopology for part in topology.subtopologies if part.stateful) if topology else frozenset()
        whole = {task: self.state.end_offset(task, part) or DEFAULT_END_OFFSET for task, part in self.state.tasks().items()}
        actor.apply(self.state.now_ms, stateful, whole)

    def config(self, parsed: ParsedDirective) -> GroupConfigured:
        config = self.state.config
        if config is None:
            raise parsed.error("no group yet; begin with the directive `group`")
        return config

    def make(self, parsed: ParsedDirective, kind: Callable[..., T], **fields: object) -> T:
        """Constructs a fact or a part of one. Raises ScenarioError, which names the invalid field."""
        try:
            return kind(**fields)
        except FieldError as error:
            raise parsed.error(str(error)) from None
