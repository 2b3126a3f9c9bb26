"""What must hold when a storm is over. Each check reads what is in Kafka, or what processes have
printed, and asks nothing of who wrote it.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.decisions import Decision, EventRejected, MemberExpired
from equipoise.events.facts import Undecodable
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import decision_record, fact_row, stored_decision
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.copies.fencing import AT_LEAST_ONCE, FENCE_KEY, SOURCES_KEY
from equipoise.member.copies.origin import Origin, read_origin
from examples.orders.count import MOST_UNCOMMITTED_RECORDS
from examples.orders.recount import Recount, everything
from tests.live.storm.stands import MOST_S, Stand

EXPLAINED = {
    "topology_not_newer": "every process declares its topology when it starts; the join of one that differs is refused, which nothing here explains",
    "unknown_member": "a member that was put out, or has left, says something before it reads that",
    "stale_incarnation": "a former process of a member says something before it reads that it is out",
    "incarnation_too_low": "two processes with a member's id start at the same moment, and the one that began first joins last",
    "not_waited_for": "a witness proves the end of a process whose successor has done so by its lock",
    "report_base_unknown": "the report before was lost with a broker, or not read yet by whoever leads now",
    "report_repeated": "a report that the broker had already was sent again",
    "epoch_went_back": "a report that was under way when a broker died arrives behind a later one",
    "already_released": "a member that was let go says something before it reads that",
    "not_a_copy": "TaskReady crosses a change of what the member is to keep",
    "not_revoking": "TasksRevoked crosses the leader's change of mind",
    "epoch_too_low": "TasksRevoked crosses a change of what the member is to run",
    "join_repeated": "a join that the broker had already was sent again",
    "undecodable": "a record that is no sound fact",
    "step_exceeds_margin": "an operator raised max_step_ms above a member's margin",
    "configuration_changed": "two operators configure at the same moment, and the second one changes what is not in force any more",
    "knobs_refused": "an operator set options that the assignor does not have",
    "unknown_members": "an operator asks members to leave that are not there",
    "not_external": "somebody writes the assignment of another leader",
    "leader_change": "an operator hands the group to another leader while a stranger is a member",
    "margin_too_small": "max_step_ms was raised when a member with less margin joined",
}
"""What a member's words may be rejected for under these faults, and why that is as it should be."""
EXPLAINED_OF_STRANGERS = {"external": "a fact of no process of the storm arrives while another leader leads"}
"""The same of what only members that no process runs may say."""
EXPLAINED_RECORDS = {"opened_again": "both workers opened the log at once, and one came second"}
_FENCED = re.compile(r"task \S+, token \d+: another owner has begun: .*")
_PROCESS = re.compile(r"m\d+")
"""A member that a process runs."""
_RUNS = re.compile(r"^m\d+ runs (\S+), token (\d+)$", re.MULTILINE)


@attrs.frozen
class Check:
    """`found` in one line, `more` below it."""

    name: str
    holds: bool
    found: str
    more: tuple[str, ...] = ()


def counts(found: Recount, guarantee: str) -> Check:
    """The recount of the sample application."""
    name = "every count equals an independent recount" if guarantee == "exactly_once" else "nothing is lost"
    told = f"{found.orders:,} orders of {found.customers} customers, {found.counts:,} counts, {found.repeated} of them again, {found.overtaken} late"
    return Check(name, not found.faults and found.orders > 0, told, tuple(found.faults[:20]))


@attrs.define
class Changelog:
    """What the records of a changelog say of those who wrote them."""

    records: int = 0
    commits: int = 0
    late: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """``<log id>/<group>/<task>/<token>`` -> records behind one of a later owner."""
    late_commits: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """The same -> ends of commits among them."""
    at_least_once: set[str] = attrs.field(factory=set)
    """Grants that commit so, by their fences."""


async def read_changelog(connection: Connection, topic: str) -> Changelog:
    """Origins of a changelog's committed records, partition by partition."""
    found = Changelog()
    highest: dict[int, Origin] = {}
    async for record in everything(connection.options(), topic, "read_committed"):
        origin = read_origin(record.headers)
        assert origin is not None, f"{topic}/{record.partition}@{record.offset} has no origin"
        found.records += 1
        found.commits += record.key == SOURCES_KEY
        grant = f"{origin.log_id}/{origin.group}/{origin.task}/{origin.token}"
        if record.key == FENCE_KEY and record.value == AT_LEAST_ONCE.encode():
            found.at_least_once.add(grant)
        if origin < highest.setdefault(record.partition, origin):
            found.late[grant] += 1
            found.late_commits[grant] += record.key == SOURCES_KEY
        highest[record.partition] = max(highest[record.partition], origin)
    return found


def tokens_never_fall(recount: Recount, changelog: Changelog) -> Check:
    """With exactly_once: of no task an output or a change with a smaller token behind a larger.
    Grants that commit at least once meanwhile are judged by `overlap`.
    """
    told = f"{recount.counts:,} outputs and {changelog.records:,} records of changelogs"
    wrong = [f"{grant}: {count} outputs" for grant, count in recount.late.items() if grant not in changelog.at_least_once]
    wrong += [f"{grant}: {count} records of the changelog" for grant, count in changelog.late.items() if grant not in changelog.at_least_once]
    return Check("no smaller fencing token follows a larger", not wrong and changelog.records > 0, told, tuple(wrong))


def overlap(recount: Recount, changelog: Changelog, commits_overtaken: list[str]) -> Check:
    """With at_least_once: a former owner's late records are one commit at most, and so is what a
    grant counts again (docs/protocol.md, M6).
    """
    most_late, most_again = max(recount.late.values(), default=0), max(recount.again.values(), default=0)
    wrong = [f"{grant}: {count} commits behind a larger token" for grant, count in changelog.late_commits.items() if count > 1]
    wrong += [f"{grant}: {count} late outputs" for grant, count in recount.late.items() if count > MOST_UNCOMMITTED_RECORDS]
    wrong += [f"{grant}: {count} orders counted again" for grant, count in recount.again.items() if count > MOST_UNCOMMITTED_RECORDS]
    most_commits = max(changelog.late_commits.values(), default=0)
    told = (
        f"late: {recount.overtaken} outputs of {len(recount.late)} grants, at most {most_late} of one, in at most {most_commits} commits (bound: 1); "
        f"again: {recount.repeated} orders by {len(recount.again)} grants, at most {most_again} by one (bound: {MOST_UNCOMMITTED_RECORDS}); "
        f"{changelog.commits:,} commits in all, {len(commits_overtaken)} were noticed to be overtaken"
    )
    return Check("overlaps keep within the bound", not wrong, told, tuple(wrong))


def grants(outputs: Iterable[Path]) -> dict[str, str]:
    """``<task>/<token>`` -> the process that said it runs that, from what members printed."""
    return {f"{task}/{token}": path.stem for path in outputs for task, token in _RUNS.findall(path.read_text(errors="replace"))}


def refused(outputs: Iterable[Path]) -> list[str]:
    """Commits that were refused, or overtaken, because somebody else had begun the task, as members
    have logged them.
    """
    return [f"{path.name}: {line}" for path in sorted(outputs) for line in _FENCED.findall(path.read_text(errors="replace"))]


async def cut_off(connection: Connection, topic: str) -> list[str]:
    """``<task>/<token>`` of each grant whose last transaction was never committed, by the outputs
    that were written in it.
    """
    ends: dict[tuple[int, str], list[int]] = {}
    for place, isolation_level in enumerate(("read_uncommitted", "read_committed")):
        async for record in everything(connection.options(), topic, isolation_level):
            origin = read_origin(record.headers)
            assert origin is not None, f"{topic}/{record.partition}@{record.offset} has no origin"
            ends.setdefault((record.partition, f"{origin.task}/{origin.token}"), [-1, -1])[place] = record.offset
    return [grant for (_, grant), (written, committed) in sorted(ends.items()) if written > committed]


def fenced(commits_refused: list[str], grants_cut_off: list[str], processes: dict[str, str], killed: set[str], *, must: bool) -> Check:
    """With exactly_once. A former owner that lives on and was writing when another began: there
    `must` be some after many pauses.
    """
    lived = [grant for grant in grants_cut_off if processes.get(grant) not in killed]
    told = (
        f"{len(lived)} transactions of processes that lived on were cut off by the next owner, {len(commits_refused)} commits refused after that; "
        f"{len(grants_cut_off) - len(lived)} of killed ones were cut off"
    )
    shown = [f"{grant} of {processes.get(grant)}" for grant in lived[:4]] + commits_refused[:4]
    return Check("writes of former owners were fenced", bool(lived or commits_refused) or not must, told, tuple(shown))


def verifies(bootstrap: str, prefix: str) -> Check:
    """By the command that anybody would use."""
    command = [sys.executable, "-m", "equipoise", "verify", f"kafka://{bootstrap.split(',', maxsplit=1)[0]}/{prefix}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return Check("the log verifies to the byte", done.returncode == 0, lines[0] if lines else "", () if done.returncode == 0 else tuple(lines[1:]))


async def rejected_records(connection: Connection, topics: Topics) -> Check:
    """Records that belong to no group."""
    reasons: collections.Counter[str] = collections.Counter()
    async for record in everything(connection.options(), topics.facts, "read_uncommitted"):
        found = fact_row(record.key, record.value, record.offset, record.timestamp).record()
        if not found.group and isinstance(found.event, Undecodable):
            reasons[found.event.code] += 1
    unexplained = [f"{code}: {count}" for code, count in sorted(reasons.items()) if code not in EXPLAINED_RECORDS]
    return Check(f"{topics.facts} has no unexplained record without a group", not unexplained, _told(reasons) or "it is empty", tuple(unexplained))


async def decisions(connection: Connection, topics: Topics) -> AsyncIterator[Decision]:
    """Each once, group by group."""
    known: set[tuple[str, int]] = set()
    async for record in everything(connection.options(), topics.decisions, "read_uncommitted"):
        decided = decision_record(stored_decision(record.key, record.value, f"{record.topic}/{record.partition}@{record.offset}"))
        if (decided.group, decided.number) not in known:
            known.add((decided.group, decided.number))
            yield decided.decision


async def rejections(connection: Connection, topics: Topics) -> Check:
    """What members said and the leader did not believe; and, for the reader, why members were put
    out.
    """
    codes: collections.Counter[str] = collections.Counter()
    unexplained: collections.Counter[str] = collections.Counter()
    causes: collections.Counter[str] = collections.Counter()
    async for decision in decisions(connection, topics):
        if isinstance(decision, EventRejected):
            codes[decision.code] += 1
            is_stranger = decision.member_id is not None and _PROCESS.fullmatch(decision.member_id) is None
            if decision.code not in EXPLAINED and not (is_stranger and decision.code in EXPLAINED_OF_STRANGERS):
                unexplained[f"{decision.code} to {decision.member_id}"] += 1
        elif isinstance(decision, MemberExpired):
            causes[decision.cause] += 1
    told = f"{_told(codes) or 'none'}; members put out: {_told(causes) or 'none'}"
    wrong = tuple(f"{what}: {count}" for what, count in sorted(unexplained.items()))
    return Check("facts were rejected only for what the faults explain", not wrong, told, wrong)


def _told(counted: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


def stood(stands: list[Stand], looks: int) -> Check:
    """Whatever stands for longer than a request may take is in a log."""
    silent = [each for each in stands if not each.said]
    longest = max((each.end_s - each.begin_s for each in stands), default=0.0)
    told = (
        f"{looks} looks; {len(stands)} times a task stood for more than {MOST_S:.0f} s, at most {longest:.0f} s; {len(silent)} times without a line"
    )
    more = tuple(f"{each}{f'; {len(each.said)} lines, the last: {each.said[-1]}' if each.said else ''}" for each in stands)
    return Check("nothing stands without a word", not silent and looks > 0, told, more)


def nothing_else(incidents: list[str]) -> Check:
    """No process ended by itself, and all members asked to leave have left."""
    return Check("nothing ended or stayed that should not", not incidents, f"{len(incidents)} incidents", tuple(incidents))


def settled(wrong: str, took_s: float, state: Any) -> Check:
    """All tasks run, all members are there, nothing is wanted and nothing decided."""
    return Check("the group is at rest", not wrong, wrong or f"{state}, {took_s:.0f} s after the last fault had ended")
