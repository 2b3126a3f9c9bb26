"""`python -m bench.changes --wrong`: is every wrong change noticed, and is what can be undone back
in time?

Members and a worker as deployed, on simulated machines, disks and Kafka, in virtual time. Each
change is written down as `equipoise configure` writes it, with its own prediction or with a limit
(`--at-most`), and then made: settings, with what happens to every group some time (a member joins,
leaves, is killed); and changes of members that go otherwise than they were planned. A wrong change
is noticed when it is refused, or judged to cost more than expected. Right ones are made, too, and
must not be.
"""

from __future__ import annotations

import errno
import logging
import os
import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from equipoise import Record, TaskContext
from equipoise.assignors import registry
from equipoise.cli.params import check_live_settings
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import ChangePlanned, Fact, GroupConfigured
from equipoise.events.records import Entry
from equipoise.hosting.changed_settings import with_settings
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import group_key, pack_fact, read_fact
from equipoise.member.copies.stores import StateStore
from equipoise.operations.group_settings import check_configuration, preview, with_assignor
from equipoise.replay.known_changes import KnownChange, cost_text, settings_text, verdict_text
from equipoise.replay.parallel import in_processes
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.prediction.planned_change import JUDGED_AS, Configure, Join, Leave, PlannedChange, RestartAll
from equipoise.replay.prediction.predict import predict
from equipoise.replay.prediction.reading import read_present
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupState
from equipoise.testing.group import NAME, Group
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.machines import DiskStore, Machine

TASKS, KEYS = 6, 24_000
RESTORE_RECORDS_PER_S = 4_000
"""As `--restore-speed` says: simulated disks take no time, so members measure none."""
BATCH = 1_000
SESSION_MS = 10_000
BACK_S = 60.0
"""Goal: so soon after a wrong change the settings of before are in force."""
WATCHED_S = 400.0
"""For so long a change is followed."""
RUNS = 10
"""Simulated runs of a prediction."""
ALL = ("m1", "m2", "m3")
KILL_TASK_S = 45.0
"""More than it costs when a member dies: two tasks wait for its session, and are restored."""


def count(record: Record, context: TaskContext) -> None:
    """Counts records by key."""
    seen = int(context.state.get(record.key) or b"0")
    context.state.put(record.key, b"%d" % (seen + 1))


class ChangedGroup(Group):
    """A group that lives for a while, and is changed then."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        assignor = registry.latest("high_availability")
        knobs = with_settings(GroupConfigured().knobs, ["acceptable_recovery_lag=1000", "initial_delay_ms=1000"])
        given = {
            "session_timeout_ms": SESSION_MS,
            "lease_margin_ms": 2_000,
            "heartbeat_interval_ms": 1_000,
            "restore_records_per_s": RESTORE_RECORDS_PER_S,
            "commit_interval_ms": 500,
            "group_config": GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=knobs),
        }
        super().__init__(count, partitions=TASKS, seed=seed, **{**given, **options})
        self.full: set[str] = set()
        """Members whose disks are full."""

    def live(self) -> None:
        """Members join where much was counted before, and their tasks run."""
        for partition in range(TASKS):
            place = self._cluster.partition(TopicPartition("state", partition))
            assert place is not None, "the changelog is there"
            for first in range(0, KEYS, BATCH):
                counts = [(b"%d" % key, b"1", (), self._cluster.now_ms()) for key in range(first, first + BATCH)]
                self._cluster.append(place, Batch(-1, -1, -1, False, counts, 100 * BATCH))
        self.join(*ALL)
        self.settle()
        self.advance(30)

    @property
    def lead(self) -> GroupLead:
        """The group as its worker leads it."""
        return next(lead for _, lead in self._worker.groups() if lead.name == NAME)

    @property
    def now(self) -> GroupState:
        """The group's state, as its worker has it."""
        return self.lead.machine.state

    def write(self, *facts: Fact) -> None:
        """Appends facts, as a command does."""
        place = self._cluster.partition(TopicPartition(f"{self._options.prefix}.facts", 0))
        assert place is not None, "the worker has made the log"
        for fact in facts:
            self._cluster.append(place, Batch(-1, -1, -1, False, [(group_key(NAME), pack_fact(fact), (), self._cluster.now_ms())], 100))

    def entries(self) -> Iterator[Entry]:
        """Yields the group's log: its facts, with the decisions on them."""
        machine, log = GroupMachine(), self._log(f"{self._options.prefix}.facts", 0)
        for each in log.read(0, log.end, committed=True, max_bytes=2**40)[0]:
            record = read_fact(each.key, each.value, each.offset, each.timestamp_ms)
            yield record
            yield from machine.step(record)

    def config(self) -> GroupConfigured:
        """Returns the configuration in force."""
        found = self.now.config
        assert found is not None, "the group lives"
        return found

    def change(self) -> KnownChange | None:
        """Returns the last change as the worker's console has it; None: there was none."""
        recent = self._worker.recent.groups.get(NAME)
        found = [] if recent is None else [each for each in recent.changes.changes() if each.planned is not None]
        return found[-1] if found else None

    # What happens to members

    def start(self, member_id: str, **options: Any) -> None:
        """Starts a member with other options than the others."""
        before, self._given = self._given, {**self._given, **options}  # type: ignore[typeddict-item]
        self.join(member_id)
        self._given = before

    def ask_to_leave(self, *member_ids: str) -> None:
        """Members leave by themselves, without anybody waiting for it."""
        for member_id in member_ids:
            member, process = self._running(member_id)
            process.app.create_task(member.leave())

    def restart(self, *member_ids: str, away_s: float = 2.0, keeps_disk: bool = True, **options: Any) -> None:
        """Kills the members, and starts them again."""
        for member_id in member_ids:
            self.crash(member_id)
        self.advance(away_s)
        for member_id in member_ids:
            if not keeps_disk:
                self._seats[member_id].machine = self._machine(f"{member_id} {self.now_s:.0f}")
            self.start(member_id, **options)

    def deploy(self, handler: Callable[[Record, TaskContext], Awaitable[None] | None], *member_ids: str) -> None:
        """Restarts members with other code, one after the other, and records come."""
        self._deployed = [attrs.evolve(each, handler=handler) for each in self._deployed]
        for member_id in member_ids:
            self.leave_to_restart(member_id)
            self.join(member_id)
            self.advance(5)
        for partition in range(TASKS):
            self.send(b"", key=b"new", partition=partition)

    def leave_to_restart(self, member_id: str) -> None:
        """The member stops, and says that it will be back."""
        member, process = self._running(member_id)
        process.app.create_task(member.leave(will_be_back=True))
        self._until(lambda: self._seats[member_id].process is None, 120)

    def _open_store(self, machine: Machine, folder: Path) -> StateStore:
        return FullDisk(machine, folder) if machine.name in self.full else super()._open_store(machine, folder)


class FullDisk(DiskStore):
    """A disk on which nothing fits."""

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def broken(record: Record, context: TaskContext) -> None:
    """A handler with a defect."""
    raise ValueError("no such customer")


def nothing(group: ChangedGroup) -> None:
    """Nothing happens beside the change."""


@attrs.frozen(kw_only=True)
class Tried:
    """A change. `change`: makes the settings, or is what the author plans to make himself.
    `before`: happens just before, so that the change meets it. `makes`: happens with it; of a plan,
    what is made in its place. `limit_task_s`: of `--at-most`; None: it is predicted instead.
    """

    name: str
    change: Callable[[GroupConfigured], GroupConfigured] | PlannedChange
    before: Callable[[ChangedGroup], object] = nothing
    makes: Callable[[ChangedGroup], object] = nothing
    limit_task_s: float | None = None
    is_wrong: bool = True

    @property
    def is_undoable(self) -> bool:
        """Returns whether it is one of settings."""
        return callable(self.change)


@attrs.frozen(kw_only=True)
class Seen:
    """What became of a change. `noticed_s`, `back_s`: after the change; None: it was not."""

    name: str
    said: str
    noticed_s: float | None
    back_s: float | None
    is_wrong: bool
    is_undoable: bool
    is_refused: bool = False

    @property
    def is_as_it_should_be(self) -> bool:
        """Returns whether a wrong change was noticed, and is back in time if it can be; and a right
        one was not.
        """
        if not self.is_wrong:
            return self.noticed_s is None
        return self.is_refused or (self.noticed_s is not None and (not self.is_undoable or (self.back_s is not None and self.back_s <= BACK_S)))


def settings(*texts: str, assignor: str | None = None, led_by: str | None = None) -> Callable[[GroupConfigured], GroupConfigured]:
    """Changes settings as `configure --set` does."""

    def changed(before: GroupConfigured) -> GroupConfigured:
        config = before if assignor is None else with_assignor(before, assignor)
        knobs = with_settings(config.knobs, texts)
        config = attrs.evolve(config, knobs=knobs, led_by=led_by or config.led_by)
        check_configuration(config)
        check_live_settings(knobs, before.knobs)
        return config

    return changed


def tried(each: Tried) -> Seen:
    """Makes the change in a group of its own."""
    with ChangedGroup() as group:
        group.live()
        each.before(group)
        try:
            planned, after = _planned(group, each)
        except EquipoiseError as error:
            return Seen(
                name=each.name,
                said=f"refused: {error}",
                noticed_s=0.0,
                back_s=None,
                is_wrong=each.is_wrong,
                is_undoable=each.is_undoable,
                is_refused=True,
            )
        before, began_s = group.config(), group.now_s
        group.write(planned, *([] if after is None else [after]))
        group.advance(0.5)
        each.makes(group)
        noticed_s = back_s = None
        while group.now_s < began_s + WATCHED_S:
            group.advance(0.5)
            known = group.change()
            if known is not None and known.judged is not None and noticed_s is None:
                if not known.is_bad:
                    break
                noticed_s = group.now_s - began_s
            if noticed_s is not None and (not each.is_undoable or group.config() == before):
                back_s = group.now_s - began_s if each.is_undoable else None
                break
        known = group.change()
        said = "not judged" if known is None else f"{verdict_text(known)}; {cost_text(known)}"
        return Seen(name=each.name, said=said, noticed_s=noticed_s, back_s=back_s, is_wrong=each.is_wrong, is_undoable=each.is_undoable)


def _planned(group: ChangedGroup, each: Tried) -> tuple[ChangePlanned, GroupConfigured | None]:
    """Returns what is written before the change, and new settings. Raises EquipoiseError where the
    command refuses it.
    """
    state, before = group.now, group.config()
    if isinstance(each.change, PlannedChange):
        after, kind, what, change = None, JUDGED_AS[type(each.change)], each.change.text(), each.change
    else:
        after = each.change(before)
        found = preview(group.lead.machine, after)
        if found.rejection is not None:
            raise InputError(found.rejection)
        kind, what, change = "configure", settings_text(before, after), Configure(config=after)
    predicted = None
    if each.limit_task_s is None:
        present, habits = read_present(group.entries(), group=NAME, restore_records_per_s=RESTORE_RECORDS_PER_S)
        predicted = predict(present, habits, change, runs=RUNS)
    wish = ChangeWish(or_undo=each.is_undoable, at_most_task_s=each.limit_task_s)
    return wish.planned(kind, what, state.last_offset, predicted), after


def _joins(member_id: str = "m4", **options: Any) -> Callable[[ChangedGroup], object]:
    return lambda group: group.start(member_id, **options)


def _kills(*member_ids: str) -> Callable[[ChangedGroup], object]:
    def crash(group: ChangedGroup) -> None:
        for each in member_ids:
            group.crash(each)

    return crash


def _leaves(*member_ids: str) -> Callable[[ChangedGroup], object]:
    return lambda group: group.ask_to_leave(*member_ids)


def _restarts(*member_ids: str, **how: Any) -> Callable[[ChangedGroup], object]:
    return lambda group: group.restart(*member_ids, **how)


def _joined(group: ChangedGroup) -> None:
    group.start("m4")
    group.advance(3)


def _joins_full(group: ChangedGroup) -> None:
    group.full.add("m4")
    group.start("m4")


def _crashes_again_and_again(group: ChangedGroup) -> None:
    for _ in range(6):
        group.start("m4")
        group.advance(4)
        group.crash("m4")


def _rolls(group: ChangedGroup) -> None:
    group.deploy(count, *ALL)


TRIED = (
    # settings that cost much once something happens to the group
    Tried(name="acceptable lag 1,000,000 times too large", change=settings("acceptable_recovery_lag=1000000000"), before=_joins(), limit_task_s=2),
    Tried(name="the same, and one leaves", change=settings("acceptable_recovery_lag=1000000000"), makes=_leaves("m2"), limit_task_s=2),
    Tried(name="assignor of partitions without state", change=settings(assignor="lag_aware"), makes=_joins(), limit_task_s=2),
    Tried(name="cooperative assignor, and one joins", change=settings(assignor="cooperative"), makes=_joins(), limit_task_s=2),
    Tried(name="cooperative assignor, and one dies", change=settings(assignor="cooperative"), makes=_kills("m2"), limit_task_s=KILL_TASK_S),
    Tried(name="assignor of Kafka Connect, and one joins", change=settings(assignor="kafka_connect"), makes=_joins(), limit_task_s=2),
    Tried(name="assignor of Kafka Connect, and one dies", change=settings(assignor="kafka_connect"), makes=_kills("m2"), limit_task_s=KILL_TASK_S),
    Tried(name="1 ms to give up a task", change=settings("revocation_timeout_ms=1"), before=_joins(), limit_task_s=2),
    Tried(name="no time to drain", change=settings("drain_timeout_ms=0"), before=_leaves("m2"), limit_task_s=2),
    Tried(name="warm-ups stall after 1 ms", change=settings("warmup_stall_ms=1"), before=_joins(), limit_task_s=0.5),
    # settings that are refused
    Tried(name="no warm-ups", change=settings("max_warmups=0"), limit_task_s=2),
    Tried(name="a probing interval of 1 ms", change=settings("probing_interval_ms=1"), limit_task_s=2),
    Tried(name="steps longer than members allow", change=settings("max_step_ms=40000"), limit_task_s=2),
    Tried(name="an option of another assignor", change=settings("options.deal_after_ms=1"), limit_task_s=2),
    Tried(name="led by something else", change=settings(led_by="external"), limit_task_s=2),
    # members: what is made in place of what was planned
    Tried(name="one joins, with a slow disk", change=Join(members=1), makes=_joins(restore_records_per_s=80.0)),
    Tried(name="one joins, with a full disk", change=Join(members=1), makes=_joins_full),
    Tried(name="one joins, with 100 times the capacity", change=Join(members=1), makes=_joins(capacity=100)),
    Tried(name="one joins, and dies again and again", change=Join(members=1), makes=_crashes_again_and_again),
    Tried(name="ten join in place of one", change=Join(members=1), makes=lambda group: group.join(*(f"n{number}" for number in range(10)))),
    Tried(name="all restart at once, for 20 s", change=RestartAll(), makes=_restarts(*ALL, away_s=20.0)),
    Tried(name="all restart, without their disks", change=RestartAll(), makes=_restarts(*ALL, keeps_disk=False)),
    Tried(name="one restarts, and is away for a minute", change=RestartAll(), makes=_restarts("m1", away_s=60.0)),
    Tried(name="all restart, with broken code", change=RestartAll(), makes=lambda group: group.deploy(broken, *ALL)),
    Tried(name="one is killed in place of leaving", change=Leave(members=("m2",)), makes=_kills("m2")),
    Tried(name="two are killed in place of one leaving", change=Leave(members=("m2",)), makes=_kills("m2", "m3")),
    Tried(name="two leave in place of one", change=Leave(members=("m2",)), makes=_leaves("m2", "m3")),
    # settings that cost nothing here, whatever the number
    Tried(
        name="warm-ups 100 times too many",
        change=settings("max_warmups=200", "max_warmups_per_member=200"),
        before=_joins(),
        is_wrong=False,
        limit_task_s=2,
    ),
    Tried(name="a probing interval of a day", change=settings("probing_interval_ms=86400000"), before=_joins(), is_wrong=False, limit_task_s=2),
    Tried(name="a standby for every member and more", change=settings("num_standbys=100"), is_wrong=False, limit_task_s=2),
    Tried(name="the assignor by load", change=settings(assignor="load_balanced"), makes=_joins(), is_wrong=False, limit_task_s=2),
    # right ones, with the same limits
    Tried(name="right: more warm-ups while one joins", change=settings("max_warmups=4"), before=_joined, is_wrong=False),
    Tried(name="right: a standby", change=settings("num_standbys=1"), is_wrong=False),
    Tried(name="right: more warm-ups, and one joins", change=settings("max_warmups=4"), makes=_joins(), is_wrong=False, limit_task_s=2),
    Tried(name="right: more warm-ups, and one leaves", change=settings("max_warmups=4"), makes=_leaves("m2"), is_wrong=False, limit_task_s=2),
    Tried(
        name="right: more warm-ups, and one dies",
        change=settings("max_warmups=4"),
        makes=_kills("m2"),
        is_wrong=False,
        limit_task_s=KILL_TASK_S,
    ),
    Tried(name="right: one joins", change=Join(members=1), makes=_joins(), is_wrong=False),
    Tried(name="right: one leaves", change=Leave(members=("m2",)), makes=_leaves("m2"), is_wrong=False),
    Tried(name="right: all restart, one after the other", change=RestartAll(), makes=_rolls, is_wrong=False),
)


def answer(found: Iterable[Seen]) -> bool:
    """Prints the changes as a table, and returns whether all were as they should be."""
    done = list(found)
    click.echo(f"{'':4}{'change':46}{'noticed':>9}{'back':>8}  verdict")
    for each in done:
        noticed = "refused" if each.is_refused else "" if each.noticed_s is None else f"{each.noticed_s:.1f} s"
        back = "" if each.back_s is None else f"{each.back_s:.1f} s"
        click.echo(f"{'' if each.is_as_it_should_be else 'NOT':4}{each.name:46}{noticed:>9}{back:>8}  {each.said:.110}")
    wrong = [each for each in done if each.is_wrong]
    undone = [each.back_s for each in wrong if each.back_s is not None]
    noticed_s = [each.noticed_s for each in wrong if each.noticed_s is not None and not each.is_refused]
    refused = sum(each.is_refused for each in wrong)
    click.echo(
        f"{sum(each.noticed_s is not None for each in wrong)} of {len(wrong)} wrong changes noticed, {refused} of them refused, the others after "
        f"{statistics.median(noticed_s):.0f} s at the median and {max(noticed_s):.0f} s at most; "
        f"{len(undone)} of {sum(each.is_undoable and not each.is_refused for each in wrong)} that can be undone are back, "
        f"after {max(undone):.0f} s at most; goal: all, within {BACK_S:.0f} s"
    )
    click.echo(f"{sum(each.noticed_s is None for each in done if not each.is_wrong)} of {len(done) - len(wrong)} right or harmless ones let be")
    return all(each.is_as_it_should_be for each in done)


def main() -> bool:
    """Tries all changes."""
    logging.disable(logging.CRITICAL)  # of the groups
    return answer(in_processes(tried_at, range(len(TRIED)), os.cpu_count() or 1))


def tried_at(number: int) -> Seen:
    """Makes the change of that number."""
    logging.disable(logging.CRITICAL)
    return tried(TRIED[number])
