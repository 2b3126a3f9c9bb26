"""What the doctor says of what it has seen, without a broker. tests/live/test_doctor.py has one."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.kafka.asking import BrokerAddress, TopicFound
from equipoise.lead.broker_seat.ways import CLASS, SETTING, STREAMS_CLASS, STREAMS_SETTING
from equipoise.lead.migrating.verdict import POLICY
from equipoise.log.kafka.log_topics import MADE_WITH, MUST_BE, Topics
from equipoise.operations.doctor import brokers, directory_findings
from equipoise.operations.doctor.access import ROLES, Acl, Application, Need, needs
from equipoise.operations.doctor.finding import CHECKS, Finding
from equipoise.operations.doctor.group_findings import of_group, of_timeouts, of_workers, unknown_group
from equipoise.operations.doctor.protocol_findings import GroupProtocols, of_protocols
from equipoise.operations.doctor.topic_findings import LEAST_MESSAGE_BYTES, is_allowed, of_application, of_log, of_topology
from equipoise.replay.all_clear import AskedNow, Undecided, grounds_of
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupState, Parked
from tests.groups import Group, configured, joined
from tests.pages import rows_of
from tests.unit.replay.test_trouble import settled

ROOT = Path(__file__).parents[3]
TOPICS = Topics("p")
NAMES = {what: TOPICS.name_of(what) for what in MUST_BE}
AT = "b:9092"


def brief(findings: Any) -> list[tuple[str, str]]:
    """Status and check of each finding, all of which are one line, with a fix where it is due."""
    found = [findings] if isinstance(findings, Finding) else list(findings)
    for each in found:
        assert each.check in CHECKS
        assert "\n" not in each.text
        assert (each.fix is None) == (each.status == "fine") or each.status == "unknown"
    return [(each.status, each.check) for each in found]


def only(findings: Any) -> Finding:
    (found,) = findings
    brief(found)
    assert isinstance(found, Finding)
    return found


# Brokers


def address(node_id: int) -> BrokerAddress:
    return BrokerAddress(node_id, f"b{node_id}", 9092)


def test_three_brokers_that_answer_are_fine() -> None:
    found = only(brokers.of_brokers([address(1), address(2), address(3)], {}))
    assert (found.status, found.text) == ("fine", "3 of 3 brokers answer: b1:9092, b2:9092, b3:9092")


def test_broker_that_is_not_reached_where_it_advertises_itself_is_a_problem() -> None:
    away, fine = brokers.of_brokers([address(1), address(2), address(3)], {2: "no answer within 5 s"})
    assert (away.status, away.text) == ("problem", "broker 2 advertises b2:9092 and is not reached there: no answer within 5 s")
    assert "advertised.listeners" in (away.fix or "")
    assert fine.text == "2 of 3 brokers answer: b1:9092, b3:9092"


def test_fewer_than_three_brokers_are_a_warning() -> None:
    assert only(brokers.of_brokers([address(1), address(2)], {})).text.startswith("2 brokers (b1:9092, b2:9092): ")
    assert brief(brokers.of_brokers([address(1)], {})) == [("warning", "brokers")]


@pytest.mark.parametrize(
    ("requests", "status", "text"),
    [
        ({1: (4, 18), 3: (0, 13), 13: (0, 5)}, "fine", "brokers of Kafka 4.0 or later"),
        ({1: (0, 16), 3: (0, 12), 13: (0, 5)}, "fine", "brokers of Kafka 2.8 to 3.9"),
        ({1: (0, 12), 3: (0, 9), 13: (0, 4)}, "warning", "brokers before Kafka 2.8 give topics no ids"),
        ({1: (0, 11), 3: (0, 8), 13: (0, 2)}, "problem", "brokers before Kafka 2.4"),
        ({}, "problem", "brokers before Kafka 2.4"),
    ],
)
def test_versions_of_requests_say_how_old_brokers_are(requests: dict[int, tuple[int, int]], status: str, text: str) -> None:
    found = only(brokers.of_versions(requests))
    assert found.status == status
    assert found.text.startswith(text)
    assert "aiokafka 0." in found.text


def test_refused_connection_without_a_known_cause_has_the_general_fix() -> None:
    found = brokers.refused(AT, "no answer within 5 s")
    assert (found.status, found.fix) == ("problem", "start the broker, correct bootstrap, or open the way to it (firewall)")


NEEDED = Need(Acl("Topic", "t", "Read"), "nothing is read")
OPTIONAL = Need(Acl("TransactionalId", "g/", "Write", is_prefix=True), "little", is_optional=True)


def test_missing_right_comes_with_what_fails_and_the_command() -> None:
    first, second, third = brokers.of_rights(AT, "u", [(NEEDED, False), (OPTIONAL, False), (attrs.evolve(NEEDED, without="x"), None)])
    assert (first.status, first.text) == ("problem", "Read on Topic t is missing; without it: nothing is read")
    assert first.fix == "kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:u --operation Read --topic t"
    assert (second.status, second.text) == ("warning", "Write on TransactionalId g/* is missing; without it: little")
    assert (second.fix or "").endswith("User:u --operation Write --transactional-id g/ --resource-pattern-type prefixed")
    assert (third.status, third.text) == ("unknown", "Read on Topic t: cannot be seen")


def test_all_rights_are_one_line() -> None:
    assert only(brokers.of_rights(AT, None, [(NEEDED, True)])).text == "this user has what it needs: 1 ACLs, or it is a super user"


def test_times_are_fine_or_too_long() -> None:
    assert brief(brokers.of_times([0.001], None)) == [("fine", "times")]
    assert brief(brokers.of_times([0.001, 0.002, 5.0], 0.01)) == [("fine", "times")] * 2
    assert brief(brokers.of_times([0.2], 1.5)) == [("warning", "times")] * 2
    assert brief(brokers.of_times([0.1], "why")) == [("fine", "times"), ("problem", "times")]


@pytest.mark.parametrize(
    ("ms", "status", "text"), [(-3.0, "fine", "3 ms behind"), (5.0, "fine", "5 ms ahead of"), (-4_000.0, "warning", "4000 ms behind")]
)
def test_clock_difference_is_that_of_the_quickest_fact(ms: float, status: str, text: str) -> None:
    found = brokers.of_clock([ms - 500, ms, ms - 1])
    brief(found)
    assert found.status == status
    assert text in found.text


def test_clock_without_a_fact_is_unknown() -> None:
    assert brokers.of_clock([]).status == "unknown"


# Topics


def topic(replicas: int = 3, insync: int = 3, partitions: int = 2) -> TopicFound:
    return TopicFound(is_hidden=False, allowed=(), partitions=[(range(replicas), range(insync))] * partitions)


HIDDEN = TopicFound(is_hidden=True, allowed=None, partitions=[])
NOWHERE = TopicFound(is_hidden=False, allowed=(), partitions=[])
FOUND = dict.fromkeys(NAMES.values(), topic())
SOUND = {NAMES[what]: {"min.insync.replicas": "2", **MADE_WITH[what], **must} for what, must in MUST_BE.items()}


def log(found: Any = FOUND, settings: Any = SOUND, count: int = 3) -> list[Finding]:
    findings = list(of_log(TOPICS, found, settings, count, AT))
    brief(findings)
    return findings


def changed(what: str, **settings: str) -> dict[str, dict[str, str]]:
    return {**SOUND, NAMES[what]: {**SOUND[NAMES[what]], **{name.replace("_", "."): value for name, value in settings.items()}}}


def test_log_as_a_worker_makes_it_is_fine() -> None:
    assert only(log()).text == "p.facts, p.decisions, p.checkpoints: 2 partitions, settings as they must be"


@pytest.mark.parametrize("what", MUST_BE)
def test_setting_that_a_worker_refuses_is_a_problem_with_the_command(what: str) -> None:
    for key, value in MUST_BE[what].items():
        found = only(log(settings={**SOUND, NAMES[what]: {**SOUND[NAMES[what]], key: "other"}}))
        assert (found.status, found.text) == ("problem", f"{NAMES[what]} has {key}=other, and a worker refuses it")
        assert (found.fix or "").endswith(f"--entity-name {NAMES[what]} --add-config {key}={value}")


@pytest.mark.parametrize(
    ("found", "settings", "status", "text"),
    [
        (FOUND, changed("facts", retention_ms="604800000"), "warning", "p.facts has retention.ms=604800000"),
        (FOUND, changed("decisions", retention_bytes="9"), "warning", "p.decisions has retention.bytes=9"),
        (FOUND, changed("facts", max_message_bytes="1000"), "problem", "p.facts has max.message.bytes=1000"),
        (FOUND, changed("facts", min_insync_replicas="1"), "warning", "p.facts has min.insync.replicas=1"),
        (FOUND, changed("facts", min_insync_replicas="3"), "warning", "p.facts has min.insync.replicas=3 of 3 replicas"),
        ({**FOUND, "p.facts": topic(3, 2)}, SOUND, "warning", "p.facts: replicas of partitions 0, 1 are not in sync"),
        ({**FOUND, "p.facts": topic(1, 1)}, SOUND, "warning", "p.facts has 1 replica on 3 brokers"),
        ({**FOUND, "p.decisions": topic(partitions=1)}, SOUND, "problem", "p.decisions has 1 partition, and p.facts 2"),
        (
            {**FOUND, "p.checkpoints": NOWHERE},
            {name: each for name, each in SOUND.items() if name != "p.checkpoints"},
            "problem",
            "p.checkpoints: not",
        ),
    ],
)
def test_log_that_differs_is_named(found: Any, settings: Any, status: str, text: str) -> None:
    finding = only(log(found, settings))
    assert finding.status == status
    assert finding.text.startswith(text)


def test_log_of_one_broker_needs_no_more_replicas() -> None:
    one = dict.fromkeys(NAMES.values(), topic(1, 1))
    assert brief(log(one, {name: {**each, "min.insync.replicas": "1"} for name, each in SOUND.items()}, 1)) == [("fine", "topics")]


def test_limit_of_a_message_is_the_default_of_kafka() -> None:
    assert brief(log(settings=changed("facts", max_message_bytes=str(LEAST_MESSAGE_BYTES)))) == [("fine", "topics")]


def test_settings_that_may_not_be_read_are_unknown() -> None:
    found = only(log(settings={}))
    assert (found.status, found.text) == ("unknown", "settings of p.facts, p.decisions, p.checkpoints: this user may not read them")
    assert log(dict.fromkeys(NAMES.values(), HIDDEN), {}) == []


APPLICATION = Application(group="g", sources=("in",), changelogs=("log",), outputs=("out",))
THERE = dict.fromkeys(("in", "log", "out"), topic())
COMPACT = {"log": {"cleanup.policy": "compact", "min.insync.replicas": "2", "delete.retention.ms": "7200000"}}


def application(found: Any = THERE, settings: Any = COMPACT) -> list[Finding]:
    findings = list(of_application(APPLICATION, found, settings, 3, AT))
    brief(findings)
    return findings


def test_compacted_changelog_is_fine_and_says_how_long_deletions_are_kept() -> None:
    found = only(application())
    assert (found.status, found.check) == ("fine", "changelogs")
    assert found.text == "group g: log: compacted; a copy that was away for about 2 h 00 min is restored from scratch"


@pytest.mark.parametrize(
    ("found", "settings", "status", "check", "text"),
    [
        (THERE, {"log": {**COMPACT["log"], "cleanup.policy": "compact,delete"}}, "problem", "changelogs", "log has cleanup.policy=compact,delete"),
        ({**THERE, "log": NOWHERE}, {}, "problem", "changelogs", "log, of group g, is not there"),
        (THERE, {}, "unknown", "changelogs", "settings of log"),
        ({**THERE, "log": topic(1, 1)}, COMPACT, "warning", "changelogs", "log has 1 replica on 3 brokers"),
    ],
)
def test_changelog_that_differs_is_named(found: Any, settings: Any, status: str, check: str, text: str) -> None:
    finding = only(application(found, settings))
    assert (finding.status, finding.check) == (status, check)
    assert finding.text.startswith(text)


def test_changelog_that_may_not_be_described_is_left_to_the_rights() -> None:
    assert application({**THERE, "log": HIDDEN}, {}) == []


def test_source_that_is_not_there_is_a_problem_and_a_hidden_one_is_left_to_the_rights() -> None:
    missing, fine = application({**THERE, "in": NOWHERE, "out": HIDDEN})
    assert (missing.status, missing.check, missing.text) == ("problem", "topics", "in, of group g, is not there")
    assert fine.status == "fine"


@pytest.mark.parametrize(
    ("found", "operation", "has_settings", "allowed"),
    [
        (attrs.evolve(topic(), allowed={"Read"}), "Read", False, True),
        (attrs.evolve(topic(), allowed={"Read"}), "Write", False, False),
        (attrs.evolve(topic(), allowed=None), "Read", False, None),
        (HIDDEN, "Read", False, False),
        (HIDDEN, "DescribeConfigs", True, True),
        (HIDDEN, "DescribeConfigs", False, False),
        (HIDDEN, "Create", False, None),
    ],
)
def test_right_to_a_topic_by_what_the_broker_says(found: TopicFound, operation: str, has_settings: bool, allowed: bool | None) -> None:
    assert is_allowed(found, operation, has_settings=has_settings) is allowed


# Timeouts


def group(session_timeout_ms: int, lease_margin_ms: int = 3_000) -> GroupState:
    made = Group().starts()
    made.fact(joined("m1", session_timeout_ms=session_timeout_ms, lease_margin_ms=lease_margin_ms))
    return made.machine.state


BROKER = {
    "broker.session.timeout.ms": "6000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "300000",
    "transaction.max.timeout.ms": "900000",
}


@pytest.mark.parametrize(
    ("session_ms", "broker", "count", "status"),
    [
        (30_000, BROKER, 3, "fine"),
        (12_001, BROKER, 3, "fine"),
        (12_000, BROKER, 3, "problem"),
        (12_000, BROKER, 1, "warning"),
        (14_000, None, 3, "problem"),
    ],
)
def test_lease_must_outlast_a_failover(session_ms: int, broker: Any, count: int, status: str) -> None:
    first, *_ = of_timeouts(group(session_ms), broker, count, None)
    brief(first)
    assert first.status == status
    assert f"{session_ms - 3_000} ms (m1)" in first.text
    assert (", assumed" in first.text) is (broker is None)


@pytest.mark.parametrize(
    ("broker", "worker_ms", "found"),
    [
        (BROKER, None, []),
        (BROKER, 10_000, [("fine", "timeouts")]),
        (BROKER, 5_999, [("problem", "timeouts")]),
        (BROKER, 300_001, [("problem", "timeouts")]),
        ({**BROKER, "transaction.max.timeout.ms": "59999"}, None, [("problem", "timeouts")]),
        (None, 10_000, [("unknown", "timeouts")]),
    ],
)
def test_brokers_must_allow_sessions_and_transactions(broker: Any, worker_ms: int | None, found: Any) -> None:
    assert brief(of_timeouts(None, broker, 3, worker_ms)) == found


def test_group_without_members_has_no_timeouts_to_compare() -> None:
    assert brief(of_timeouts(Group().starts().machine.state, BROKER, 3, None)) == [("unknown", "timeouts")]


# The machine


def test_state_directory_on_a_disk_of_the_machine_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_findings, "file_system", lambda folder: "ext4")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 0, 10**11))
    (tmp_path / "store").write_bytes(b"x" * 2_000)
    assert only(directory_findings.of_state_directory(tmp_path)).text == f"{tmp_path}: 2.0 KB of state, 100 GB free of 1.0 TB"
    assert only(directory_findings.of_state_directory(tmp_path / "not" / "yet")).text.startswith(f"{tmp_path / 'not' / 'yet'}: 0 B of state")
    assert os.listdir(tmp_path) == ["store"]


Usage = namedtuple("Usage", "total used free")  # as shutil's


@pytest.mark.parametrize(("free", "used"), [(4_999, 0), (90_000, 90_001)])
def test_disk_without_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, used: int) -> None:
    monkeypatch.setattr(directory_findings, "file_system", lambda folder: "ext4")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(100_000, 0, free))
    (tmp_path / "store").write_bytes(b"x" * used)
    assert brief(directory_findings.of_state_directory(tmp_path)) == [("warning", "disk")]


@pytest.mark.parametrize(("kind", "status"), [("nfs4", "problem"), ("fuse.sshfs", "problem"), ("tmpfs", "warning")])
def test_file_system_that_does_not_hold_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str) -> None:
    monkeypatch.setattr(directory_findings, "file_system", lambda folder: kind)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 0, 10**11))
    first, *_ = directory_findings.of_state_directory(tmp_path)
    assert first.status == status
    assert f"({kind})" in first.text


def test_folder_that_is_a_file_or_not_writable_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    assert brief(directory_findings.of_state_directory(file)) == [("problem", "disk")]
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert brief(directory_findings.of_state_directory(tmp_path)) == [("problem", "disk")]


def test_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\nserver:/x /var/my\\040state nfs4 rw 0 0\n")
    assert directory_findings.file_system(Path("/var/my state/orders"), mounts) == "nfs4"
    assert directory_findings.file_system(Path("/var/lib"), mounts) == "ext4"
    assert directory_findings.file_system(Path("/var"), tmp_path / "none") == ""


# The page


PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_page_lists_the_acls_of_every_role() -> None:
    said = Application(group="GROUP", sources=("SOURCE",), changelogs=("CHANGELOG",), outputs=("OUTPUT",), deals_by_lag=True)
    wanted: dict[tuple[str, str], set[str]] = {}
    for role in ROLES:
        for need in needs(role, Topics("PREFIX"), said):
            place = f"{need.acl.resource} `{need.acl.name}{'*' if need.acl.is_prefix else ''}`"
            operation = f"({need.acl.operation})" if need.is_optional else need.acl.operation
            wanted.setdefault((role, place), set()).add(operation)
    rows = [row.cells for row in rows_of(PAGE) if row.cells[0] in ROLES]
    assert {(role, place): set(operations.split(", ")) for role, place, operations, *_ in rows} == wanted


def test_commands_of_the_script_allow_what_is_needed_and_no_more() -> None:
    lines = (ROOT / "deploy" / "kafka" / "acls.sh").read_text(encoding="utf-8").splitlines()
    said = Application(group="orders", sources=("orders.in",), changelogs=("orders.counts",), outputs=("orders.totals",))
    log = dict(line.split("=", 1) for line in lines if line.startswith("log="))["log"].strip('"')
    allowed = set()
    for line in lines:
        if not line.startswith("acl ") or "--operation" not in line:
            continue
        _, user, *options = line.replace("$log", log).split()
        pairs = list(zip(options[::2], options[1::2], strict=True))
        operations = [value for name, value in pairs if name == "--operation"]
        kinds = {"--topic": "Topic", "--group": "Group", "--transactional-id": "TransactionalId"}
        is_prefix = ("--resource-pattern-type", "prefixed") in pairs
        allowed |= {(user, Acl(kinds[name], value, each, is_prefix)) for name, value in pairs if name in kinds for each in operations}
    wanted = {(role, need.acl) for role in ROLES for need in needs(role, Topics(), said)}
    creates = {("member", Acl("Topic", name, "Create")) for name in ("orders.in", "orders.counts", "orders.totals")}
    assert allowed == wanted - creates


def test_group_that_the_log_does_not_have_is_a_problem() -> None:
    near = unknown_group("oders", ["clicks", "orders"])
    assert brief(near) == [("problem", "topics")]
    assert near.text == "the log holds no fact of group 'oders'; it holds 'clicks', 'orders'"
    assert near.fix == "did you mean --group orders?"
    assert "--source" in (unknown_group("nope", []).fix or "")


def test_partitions_that_nobody_reads_are_a_problem() -> None:
    group = Group()
    group.fact(TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=False, source_topics=("clicks",)),)))
    assert list(of_topology(group.state, {"clicks": topic(partitions=4)})) == [], "a group without a configuration is not looked at"
    group.fact(configured())
    assert list(of_topology(group.state, {"clicks": topic()})) == []
    found = only(of_topology(group.state, {"clicks": topic(partitions=4)}))
    assert (found.status, found.text) == ("problem", "group orders: 2 partitions of clicks are read by nobody: deploy with a higher topology_epoch")
    other = Subtopology(subtopology=0, partitions=2, stateful=True, source_topics=("clicks",))
    group.fact(joined("m2", topology_epoch=1, subtopologies=(other,)))
    assert only(of_topology(group.state, {"clicks": topic()})).text.startswith("group orders: m2 may not join, because it runs another topology")


def test_directory_in_which_no_file_can_be_made_is_a_problem() -> None:
    found = only(directory_findings.of_state_directory(Path("/proc")))
    assert (found.status, found.text.partition(":")[0]) == ("problem", "/proc")


# Groups that brokers assign


def protocols(node_id: int, **changed: Any) -> GroupProtocols:
    settings = {SETTING: "uniform,range", POLICY: "BIDIRECTIONAL", **changed.pop("settings", {})}
    return attrs.evolve(GroupProtocols(node_id=node_id, consumer=True, streams=True, settings=settings), **changed)


@pytest.mark.parametrize(
    ("brokers", "status", "text"),
    [
        ([protocols(1)], "fine", "assigned by uniform, range; for `equipoise lead` the brokers need equipoise's assignor"),
        ([protocols(1, settings={SETTING: f"uniform, {CLASS}"})], "fine", "equipoise's assignor is loaded in broker 1; the first one is uniform"),
        ([protocols(1, settings={SETTING: f"{CLASS},uniform"})], "warning", "is the first one in group.consumer.assignors of broker 1"),
        ([protocols(1, settings={SETTING: f"uniform,{CLASS}"}), protocols(2)], "warning", "of broker 1, and not of broker 2: no group is led"),
        ([protocols(1), protocols(2, consumer=False)], "warning", "groups of KIP-848 are assigned by broker 1, and not by broker 2"),
        ([protocols(1, consumer=False, streams=False)], "fine", "brokers assign no groups"),
        ([protocols(1, settings={POLICY: "disabled"})], "fine", "brokers take no classic group over"),
        ([protocols(1), protocols(2, settings={POLICY: "upgrade"})], "warning", "is bidirectional on broker 1, upgrade on broker 2"),
        ([protocols(1), protocols(2)], "fine", "groups of Kafka Streams (KIP-1071) are assigned by brokers 1, 2"),
        ([protocols(1, settings={STREAMS_SETTING: f"sticky,{STREAMS_CLASS}"})], "fine", "equipoise's assignor is loaded in all of them"),
        ([protocols(1, settings={STREAMS_SETTING: STREAMS_CLASS}), protocols(2)], "warning", "and not of broker 2"),
    ],
)
def test_assignors_and_policy_of_brokers_are_compared(brokers: list[GroupProtocols], status: str, text: str) -> None:
    found = list(of_protocols(brokers))
    brief(found)
    assert [each.status for each in found if text in each.text] == [status], found
    assert ("warning" in {each.status for each in found}) is (status == "warning")


def test_assignors_that_may_not_be_read_are_unknown() -> None:
    found = list(of_protocols([protocols(1), GroupProtocols(node_id=2, consumer=True, streams=False, settings=None)]))
    assert brief(found) == [("unknown", "groups"), ("fine", "groups")]
    assert "of broker 2: this user may not read them" in found[0].text
    assert list(of_protocols([])) == []


@pytest.mark.parametrize(
    ("workers", "members", "said"),
    [
        (1, 1, ("fine", "1 worker of the log")),
        (0, 1, ("problem", "no worker runs: nobody decides in 1 group (orders)")),
        (0, 0, ("warning", "no worker runs: nobody will decide")),
        (None, 1, ("unknown", "whether a worker runs is not known: no right")),
    ],
)
def test_doctor_says_whether_somebody_decides(workers: int | None, members: int, said: tuple[str, str]) -> None:
    group = Group().starts("m1", stateful=2)
    if not members:
        group.state.members.clear()
    found = of_workers(AskedNow(workers=workers, unknown="no right", now_ms=0), [GroupLead("orders", group.machine)])
    assert found.status == said[0]
    assert found.text.startswith(said[1])


def test_doctor_names_what_stands_still_and_what_nobody_has_decided() -> None:
    lead = GroupLead("orders", settled("m1").machine)
    state = lead.machine.state
    asked = AskedNow(workers=0, unknown="", now_ms=state.last_append_ms)
    assert list(of_group(lead, grounds_of(state, asked=asked))) == []
    task = next(iter(state.owner))
    state.parked[task] = Parked("m1", 0, "in", 1, 17, "ValueError")
    found = list(of_group(lead, grounds_of(state, asked=asked, undecided=Undecided(9, 0, 3))))
    assert [(each.status, each.text) for each in found] == [
        ("problem", "group orders: nobody has decided since 00:00:00.000: 3 decisions are not written; what follows is the state before"),
        ("warning", f"group orders: 1 task failed ({task}) at in/1 offset 17: ValueError"),
    ]
