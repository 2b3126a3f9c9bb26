"""Verification that never ends: records of one partition of a live log as they arrive, in any order
and perhaps twice, and what is wrong at once.

What Kafka gives is complete and in order; what a reader of many partitions hands on need not be. So
everything is held back until its offset is the next one, and dropped when it was before. Nothing
here waits for time to pass. All of it can be saved at any moment and goes on elsewhere; then the
answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import attrs
import msgpack

from equipoise.assignors import registry
from equipoise.events.errors import EquipoiseError, InputError, LogError
from equipoise.events.facts import LogOpened
from equipoise.events.log.kafka.envelope import StoredDecision, decision_record, fact_record, fact_row, stored_decision
from equipoise.events.log.rows import FactRow, Order
from equipoise.replay.verification import GroupVerifier, Verdict
from equipoise.statemachine.machine import Load

MOST_REMEMBERED = 4_096
"""Decisions back to which a duplicate is compared: what a worker that takes over may publish again,
several times over.
"""
_SAVED = 1


@attrs.frozen
class Arrived:
    """A record of one of the two topics, as Kafka has it. `append_ms`: its time, by the broker's
    clock.
    """

    is_fact: bool
    offset: int
    key: bytes | None
    value: bytes | None
    append_ms: int


@attrs.frozen(kw_only=True)
class Alert:
    """One thing that is wrong. `group` "": with the partition itself. `offset`: of the fact, -1:
    unknown. `document`: of a `GroupVerification`.
    """

    group: str
    verdict: Verdict
    offset: int
    problem: str
    document: dict[str, Any] | None = None


class InOrder:
    """Facts and decisions of one partition put into the order of the log: each fact, then what it
    caused.

    A decision stands in the topic behind its fact, perhaps far behind; it is given out once that
    fact was.
    """

    def __init__(self) -> None:
        self.next_fact = self.next_decision = 0
        self._facts: dict[int, Arrived] = {}
        self._decisions: dict[int, Arrived] = {}

    def add(self, arrived: Arrived) -> None:
        """Takes what arrived; what was here before is dropped."""
        due, held = (self.next_fact, self._facts) if arrived.is_fact else (self.next_decision, self._decisions)
        if arrived.offset >= due:
            held[arrived.offset] = arrived

    def due(self) -> Iterator[FactRow | StoredDecision]:
        """All that can be given out now. Raises DamagedError for what is no decision."""
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
        """Offsets that others wait for: of a topic from which records are gone, or that was read
        from the middle.
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
    """One partition. `groups`: where the groups' saved verifications are kept between calls of
    `feed`, by name.

    `facts`, `decisions`: how many were given out so far.
    """

    def __init__(self, groups: MutableMapping[str, bytes], *, load: Load = registry.load) -> None:
        self._groups = groups
        self._load = load
        self._order = InOrder()
        self._opened: FactRow | None = None
        self._told_missing: list[str] = []
        self._broken = False
        self.facts = self.decisions = 0

    def feed(self, arrived: Iterable[Arrived]) -> list[Alert]:
        """Takes what arrived and returns what is wrong now and was not before. Of each group only
        the first thing is told.
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
            Order().take(row)  # that it is LogOpened, and sound
            self._opened = row
        elif not row.belongs_to_no_group:
            self._with_group(row.group, row.offset, open_groups, lambda group: group.take(fact_record(row)))

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
                return  # it was told
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
            group.machine.step(fact_record(self._opened))
        return group

    @property
    def log_id(self) -> str:
        """Of the log; "" before its first record was here."""
        if self._opened is None:
            return ""
        event = fact_record(self._opened).event
        return event.log_id if isinstance(event, LogOpened) else ""

    def save(self) -> bytes:
        """All of it but the groups, which `groups` holds."""
        opened = None if self._opened is None else attrs.astuple(self._opened)
        saved: bytes = msgpack.packb([_SAVED, self._order.save(), opened, self._told_missing, self._broken, self.facts, self.decisions])
        return saved

    @classmethod
    def restore(cls, saved: bytes, groups: MutableMapping[str, bytes], *, load: Load = registry.load) -> Watch:
        """One that goes on where `save` was called. Raises InputError for bytes of another build.
        """
        form = msgpack.unpackb(saved)
        if form[0] != _SAVED:
            raise InputError(f"the saved state of the stream has form {form[0]}, this build reads {_SAVED}; begin it anew, with another checkpoint")
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
