"""Continuous verification: takes the records of one partition of a live log as they arrive, in any
order and possibly twice, and returns problems at once.

Kafka delivers complete and in order; a reader of many partitions may not. So each record is held
back until its offset is due, and repeated records are dropped. Nothing here waits for time. The
state can be saved at any point and restored elsewhere with the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import attrs
import msgpack

from equipoise.assignors import registry
from equipoise.events.errors import EquipoiseError, InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.log.kafka.bases_topic import BaseStart
from equipoise.log.kafka.envelope import StoredDecision, decision_record, fact_row, stored_decision
from equipoise.log.rows import FactRow, Order
from equipoise.replay.verification import GroupVerifier, Verdict
from equipoise.statemachine.machine import AssignorLoader

MOST_REMEMBERED = 4_096
"""Number of latest decisions with which a duplicate is compared: more than a worker publishes again
when it takes over several times.
"""
_SAVED = 1


@attrs.frozen
class Arrived:
    """A record of one of the two topics as Kafka stores it. `append_ms`: its time by the broker's
    clock.
    """

    is_fact: bool
    offset: int
    key: bytes | None
    value: bytes | None
    append_ms: int


@attrs.frozen(kw_only=True)
class Alert:
    """One problem. `group` "": a problem of the partition. `offset`: of the fact; -1: unknown.
    `document`: of a `GroupVerification`.
    """

    group: str
    verdict: Verdict
    offset: int
    problem: str
    document: dict[str, Any] | None = None


class InOrder:
    """Puts the facts and decisions of one partition into log order: each fact, then its decisions.

    A decision may arrive far behind its fact. It is returned after that fact.
    """

    def __init__(self, next_fact: int = 0, next_decision: int = 0) -> None:
        self.next_fact, self.next_decision = next_fact, next_decision
        self._facts: dict[int, Arrived] = {}
        self._decisions: dict[int, Arrived] = {}

    def add(self, arrived: Arrived) -> None:
        """Takes a record. Drops it if it was already taken."""
        due, held = (self.next_fact, self._facts) if arrived.is_fact else (self.next_decision, self._decisions)
        if arrived.offset >= due:
            held[arrived.offset] = arrived

    def due(self) -> Iterator[FactRow | StoredDecision]:
        """Yields every record that is due. Raises DamagedError for bytes that are not a decision."""
        yield from self._due_decisions()
        while (arrived := self._facts.pop(self.next_fact, None)) is not None:
            self.next_fact += 1
            yield fact_row(arrived.key, arrived.value, arrived.offset, arrived.append_ms)
            yield from self._due_decisions()

    def _due_decisions(self) -> Iterator[StoredDecision]:
        while (arrived := self._decisions.get(self.next_decision)) is not None:
            stored = stored_decision(arrived.key, arrived.value, f"decisions@{arrived.offset}")
            if stored.row.caused_by >= self.next_fact:
                return
            del self._decisions[self.next_decision]
            self.next_decision += 1
            yield stored

    @property
    def missing(self) -> list[str]:
        """Offsets that held records wait for, as text. They were deleted from the topic, or the
        topic was read from the middle.
        """
        topics = (("facts", self.next_fact, self._facts), ("decisions", self.next_decision, self._decisions))
        return [f"{topic}@{due}" for topic, due, held in topics if held and due not in held]

    def save(self) -> list[Any]:
        held = [[attrs.astuple(each) for _, each in sorted(of.items())] for of in (self._facts, self._decisions)]
        return [self.next_fact, self.next_decision, *held]

    @classmethod
    def restore(cls, saved: list[Any]) -> InOrder:
        order = cls()
        order.next_fact, order.next_decision, *held = saved
        order._facts, order._decisions = ({form[1]: Arrived(*form) for form in of} for of in held)
        return order


class Watch:
    """Watches one partition. `groups`: saved verifications by group, kept by the caller between
    calls of `feed`.

    `start`: the base at which the partition begins; None: its first record. `facts`, `decisions`:
    numbers verified so far.
    """

    def __init__(self, groups: MutableMapping[str, bytes], *, start: BaseStart | None = None, load: AssignorLoader = registry.load) -> None:
        self._groups = groups
        self._load = load
        self._order = InOrder()
        self._opened: FactRow | None = None
        self._told_missing: list[str] = []
        self._broken = False
        self.facts = self.decisions = 0
        if start is not None:
            self._order = InOrder(start.facts_offset, start.decisions_offset)
            self._opened = start.opened
            for state in start.states:
                group = self._begin(state.group)
                group.take(state.entry())
                groups[state.group] = group.save()

    def feed(self, arrived: Iterable[Arrived]) -> list[Alert]:
        """Takes records and returns new problems. Each group is reported once, with its first
        problem.
        """
        for each in arrived:
            self._order.add(each)
        open_groups: dict[str, GroupVerifier] = {}
        alerts: list[Alert] = []
        try:
            for row in () if self._broken else self._order.due():
                if isinstance(row, FactRow):
                    self._fact(row, open_groups)
                else:
                    self._decision(row, open_groups)
        except LogError as error:
            self._broken = True
            alerts.append(Alert(group="", verdict=Verdict.CANNOT_VERIFY, offset=error.offset, problem=str(error)))
        for name, group in sorted(open_groups.items()):
            if group.is_over:
                alerts.append(_alert(group))
            self._groups[name] = group.save()
        missing = self._order.missing
        for place in missing:
            if place not in self._told_missing:
                problem = f"{place} has not come, and records behind it wait; from here on nothing is verified until it does"
                alerts.append(Alert(group="", verdict=Verdict.CANNOT_VERIFY, offset=self._order.next_fact, problem=problem))
        self._told_missing = missing
        return alerts

    def _fact(self, row: FactRow, open_groups: dict[str, GroupVerifier]) -> None:
        self.facts += 1
        if row.offset == 0:
            Order().take(row)  # it is a sound LogOpened
            self._opened = row
        elif not row.belongs_to_no_group:
            self._with_group(row.group, row.offset, open_groups, lambda group: group.take(row.record()))

    def _decision(self, stored: StoredDecision, open_groups: dict[str, GroupVerifier]) -> None:
        self.decisions += 1
        row = stored.row
        self._with_group(row.group, row.caused_by, open_groups, lambda group: group.take(decision_record(stored)))

    def _with_group(self, name: str, offset: int, open_groups: dict[str, GroupVerifier], do: Callable[[GroupVerifier], None]) -> None:
        group = open_groups.get(name)
        if group is None:
            saved = self._groups.get(name)
            group = self._begin(name) if saved is None else GroupVerifier.restore(saved, self._load, remembered=MOST_REMEMBERED)
            if group.is_over:
                return  # already reported
            open_groups[name] = group
        try:
            do(group)
        except LogError as error:
            group.cannot_go_on(error.offset, str(error))
        except EquipoiseError:
            raise
        except Exception as error:  # noqa: BLE001 - one group's defect stops that group alone
            group.cannot_go_on(offset, f"offset {offset}: {error.__class__.__name__}: {error} (a defect of equipoise)")

    def _begin(self, name: str) -> GroupVerifier:
        group = GroupVerifier(name, self._load, remembered=MOST_REMEMBERED)
        if self._opened is not None:
            group.machine.step(self._opened.record())
        return group

    @property
    def log_id(self) -> str:
        """Id of the log; "" before its first record arrived."""
        if self._opened is None:
            return ""
        event = self._opened.record().event
        return event.log_id if isinstance(event, LogOpened) else ""

    def save(self) -> bytes:
        """Returns the state without the groups, which are in `groups`."""
        opened = None if self._opened is None else attrs.astuple(self._opened)
        saved: bytes = msgpack.packb([_SAVED, self._order.save(), opened, self._told_missing, self._broken, self.facts, self.decisions])
        return saved

    @classmethod
    def restore(cls, saved: bytes, groups: MutableMapping[str, bytes], *, load: AssignorLoader = registry.load) -> Watch:
        """Continues a watch that `save` returned. Raises InputError for bytes of another build."""
        form = msgpack.unpackb(saved)
        if form[0] != _SAVED:
            raise InputError(f"the saved state of the stream has form {form[0]}, this build reads {_SAVED}; start it again, with another checkpoint")
        watch = cls(groups, load=load)
        _, order, opened, watch._told_missing, watch._broken, watch.facts, watch.decisions = form
        watch._order = InOrder.restore(order)
        watch._opened = None if opened is None else FactRow(*opened)
        return watch


def _alert(group: GroupVerifier) -> Alert:
    answer = group.answer()
    problem = answer.problem or (answer.divergence.problem if answer.divergence is not None else "")
    return Alert(
        group=group.name, verdict=answer.verdict, offset=-1 if answer.offset is None else answer.offset, problem=problem, document=answer.document()
    )
