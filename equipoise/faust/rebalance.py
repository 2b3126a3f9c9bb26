"""One rebalance, without Kafka: from what the workers report to what each is assigned. The
decisions are the machine's (docs/protocol.md#d12); here are the facts for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import attrs

from equipoise.assignors import registry
from equipoise.assignors.common.carrier import FAUST
from equipoise.bridge.mapping import ALL_AT_ONCE, facts_of
from equipoise.bridge.question import AskedProcess, Question
from equipoise.events.decisions import EventRejected, RoundPlanned
from equipoise.events.errors import EquipoiseError
from equipoise.events.fact_parts import observed_in_parts
from equipoise.events.facts import Fact, GroupConfigured, MemberJoined, PartitionsObserved, RoundAsked
from equipoise.events.parts import whole
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.faust.layout import Ends, Layout
from equipoise.faust.report import Report
from equipoise.lead.group_log import GroupLog
from equipoise.statemachine.absences import absent_members

PROBING_MS = 600_000
"""When copies are looked at that never got ready."""
_HOUR_MS = 3_600_000
"""Only rebalances are records of such a log, so time passes with them alone."""


@attrs.frozen(kw_only=True)
class FaustWorker:
    """A member of the group. `active`: topic -> partitions that it had before this rebalance."""

    member_id: str
    report: Report
    active: Mapping[str, Iterable[int]]


@attrs.frozen(kw_only=True)
class FaustDeal:
    """What one worker gets. `warmups`: standbys whose tasks it will get."""

    active: tuple[TaskId, ...]
    standby: tuple[TaskId, ...]
    warmups: tuple[TaskId, ...]


@attrs.frozen(kw_only=True)
class FaustAnswer:
    """`dealt`: by the broker's member id. `group`: names of workers, for the next leader.
    `follow_up_ms`: when the leader asks for a rebalance, if nobody did before; None: it does not.
    `moves`: tasks that get another worker.
    """

    dealt: Mapping[str, FaustDeal]
    group: tuple[str, ...]
    follow_up_ms: int | None
    moves: int


def configuration(standbys: int, acceptable_lag: int) -> GroupConfigured:
    assignor = registry.latest("high_availability")
    settings = GroupSettings(
        num_standbys=standbys,
        acceptable_recovery_lag=acceptable_lag,
        max_warmups=ALL_AT_ONCE,
        max_warmups_per_member=ALL_AT_ONCE,
        probing_interval_ms=PROBING_MS,
        max_step_ms=_HOUR_MS,
    )
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, led_by="external", knobs=settings)


def answer(log: GroupLog, workers: Iterable[FaustWorker], layout: Layout, ends: Ends, *, passed_ms: int) -> FaustAnswer:
    """Appends the rebalance to the log and returns what was decided. `passed_ms`: since the last
    one that was decided here; 0: not known. Raises EquipoiseError when the log cannot be written,
    or the machine halts or rejects a fact; `log` must not be used any more then.
    """
    named = names_of(workers)
    acceptable = log.state.settings.acceptable_recovery_lag
    processes = _processes(named, layout, ends, acceptable)
    question = Question(round_id=uuid.uuid4().hex, settings={}, tasks=layout.asked(), processes=processes)
    *said, asked = facts_of(question, log.state, passed_ms)
    assert isinstance(asked, RoundAsked), "the question comes last"
    changed = _changed_ends(log, ends)
    if changed:
        said += observed_in_parts(PartitionsObserved(end_offsets=changed))
    said += _gone_before(log, named, question.round_id)
    planned = _planned(log, [*said, attrs.evolve(asked, carrier=FAUST.name)])
    state = log.state
    lags = {process.id: process.lags for process in processes}
    planned_moves = [(task, movement.destination) for task, movement in sorted(state.in_flight.items())]
    waiting = [(task, name) for task, name in planned_moves if not _is_near(lags[name].get(task), acceptable)]
    dealt = {}
    for each in planned.members:
        dealt[named[each.member_id].member_id] = FaustDeal(
            active=each.active,
            standby=tuple(sorted({*each.standby, *each.warmup})),
            warmups=tuple(task for task, destination in waiting if destination == each.member_id),
        )
    moves = sum(move.state == "granted" and move.source is not None for move in planned.moves)
    return FaustAnswer(dealt=dealt, group=tuple(sorted({*named, *absent_members(state)})), follow_up_ms=planned.follow_up_ms, moves=moves)


def names_of(workers: Iterable[FaustWorker]) -> dict[str, FaustWorker]:
    """Name -> worker. Of several with one name, as with one data directory, all but the first get a
    number.
    """
    named: dict[str, FaustWorker] = {}
    for worker in sorted(workers, key=lambda each: each.member_id):
        name, number = worker.report.worker, 1
        while name in named:
            number += 1
            name = f"{worker.report.worker}/{number}"
        named[name] = worker
    return named


def _processes(named: Mapping[str, FaustWorker], layout: Layout, ends: Ends, acceptable: int) -> tuple[AskedProcess, ...]:
    """Returns what each worker runs, and how far its copies are. A worker runs a task if it was
    assigned to it and its copy is complete: until then it restores, and processes nothing. A claim
    of an older generation does not count beside a newer one.
    """
    newest: dict[TaskId, int] = {}
    had: dict[str, set[TaskId]] = {}
    for name, worker in named.items():
        had[name] = {group.task(number) for group in layout.groups for number in group.partitions_in(worker.active) if number < group.partitions}
        for task in had[name]:
            newest[task] = max(worker.report.generation, newest.get(task, worker.report.generation))
    found = []
    for name, worker in named.items():
        active: list[TaskId] = []
        lags: dict[TaskId, Lag] = {}
        for group in layout.groups:
            for number in range(group.partitions):
                task = group.task(number)
                lag: Lag | None = layout.lag(group, number, worker.report.offsets, ends) if group.changelogs else None
                is_its_own = task in had[name] and newest[task] == worker.report.generation
                lacks = layout.records(group, number, ends) if lag is None else lag
                if is_its_own and (_is_near(lacks, acceptable) or not worker.report.is_current):
                    active.append(task)
                    lag = LagSentinel.ACTIVE if group.changelogs else None
                if lag is not None:
                    lags[task] = lag
        found.append(AskedProcess(id=name, consumers=(), threads=1, rack=None, tags={}, active=tuple(active), standby=(), lags=lags))
    return tuple(found)


def _is_near(lag: Lag | None, acceptable: int) -> bool:
    return isinstance(lag, int) and lag <= acceptable


def _changed_ends(log: GroupLog, ends: Ends) -> dict[str, dict[int, int]]:
    """Topic -> partition -> end offset, where the log has another one."""
    changed: dict[str, dict[int, int]] = {}
    for (topic, partition), end in sorted(ends.items()):
        if log.state.end_offsets.get(topic, {}).get(partition) != end:
            changed.setdefault(topic, {})[partition] = end
    return changed


def _gone_before(log: GroupLog, named: Mapping[str, FaustWorker], round_id: str) -> list[Fact]:
    """The joins of workers that the present ones have been with, and that this leader has not led:
    the round does not name them, so they are known to be gone.
    """
    newest = max((worker.report for worker in named.values()), key=lambda report: report.generation)
    known = {*named, *log.state.members, *absent_members(log.state)}
    return [
        MemberJoined(
            member_id=name,
            incarnation=log.state.generation + 1,
            session_timeout_ms=2 * _HOUR_MS,
            lease_margin_ms=_HOUR_MS,
            topology_epoch=0,
            join_nonce=f"{name}@{round_id}",
        )
        for name in newest.group
        if name not in known
    ]


def _planned(log: GroupLog, facts: Iterable[Fact]) -> RoundPlanned:
    decisions = [each.decision for each in log.append(*facts)]
    rejected = [each for each in decisions if isinstance(each, EventRejected)]
    if rejected:
        raise EquipoiseError(f"the log rejected {rejected[0].kind}: {rejected[0].code}")
    for each in whole(decisions):
        if isinstance(each, RoundPlanned):
            return each
    raise EquipoiseError("the group decided nothing")
