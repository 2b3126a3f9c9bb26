"""What `incident` says of logs: of real brokers and clients, beside what was done to them, and of
lines written after the source of clients and brokers that do not run here.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.incident import Cause, GroupHistory, Rebalance, incidents
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances, with_told
from tests.group_logs import OTHER_CLIENTS, VERSIONS, WITHOUT_REASONS, cause_of, faults_of, rebalance_of, unpack
from tests.json_schemas import check

JOINED, EXPIRED, LEFT, BACK, POLL, TWICE = Cause.JOINED, Cause.EXPIRED, Cause.LEFT, Cause.BACK, Cause.POLL_TIMEOUT, Cause.TWICE
FAULTS = {"join": JOINED, "leave": LEFT, "kill": EXPIRED, "back": BACK, "poll": POLL, "freeze": EXPIRED, "thaw": BACK}
CLASSIC = ("confluent", "java", "aiokafka", "kafka-python")


def histories(*paths: Path) -> dict[str, GroupHistory]:
    return histories_of(read_evidence([str(each) for each in paths]))


def told(tmp_path: Path, text: str, name: str = "server.log") -> GroupHistory:
    path = tmp_path / name
    path.write_text(text)
    (found,) = histories(path).values()
    return found


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(request.param, tmp_path_factory.mktemp("logs"))


def test_real_brokers_log_names_each_fault_or_says_that_it_cannot_decide(folder: Path) -> None:
    found = histories(folder / "server.log")
    wrong, undecided = [], set()
    for fault in faults_of(folder):
        expected = FAULTS.get(fault.fault)
        if expected is None or not fault.group.startswith("g-"):
            continue
        told = rebalance_of(fault, rebalances(found[fault.group]), faults_of(folder))
        if told is None or told.cause is not expected:
            if told is not None and expected in told.may_be and "log" in told.untold:
                undecided.add((fault.group.removeprefix("g-"), fault.fault))
            else:
                wrong.append((fault, told))
    assert wrong == []
    # only Java's classic consumer tells its broker why it leaves; ids of KIP-848 name no client
    assert undecided <= {
        ("aiokafka", "poll"),
        ("confluent", "poll"),
        ("kafka-python", "poll"),
        *((f"{one}-848", what) for one in ("java", "confluent") for what in ("poll", "back")),
    }


@pytest.mark.parametrize(("client", "pair"), [("confluent", ("leave", "poll")), ("java-848", ("leave", "poll")), ("java-848", ("join", "back"))])
def test_real_brokers_lines_of_two_faults_are_the_same(client: str, pair: tuple[str, str], tmp_path: Path) -> None:
    """What stays undecided is not in the file: but for ids and times, one says what the other does."""
    folder = unpack("4.3.1", tmp_path)
    found = rebalances(histories(folder / "server.log")[f"g-{client}"])
    lines = (folder / "server.log").read_text().splitlines()
    forms = []
    for fault in faults_of(folder):
        if fault.group == f"g-{client}" and fault.fault in pair:
            told = rebalance_of(fault, found, faults_of(folder))
            assert told is not None
            texts = [lines[int(place.partition(":")[2]) - 1].partition(" - ")[2] for place in told.places]
            forms.append(sorted(re.sub(r"[\w-]{22,}|[0-9]+", "N", text) for text in texts if "ember" in text))
    assert len(forms) == 2
    assert forms[0]
    assert forms[0] == forms[1]


def test_real_logs_of_broker_and_members_name_each_fault_and_member(folder: Path) -> None:
    faults = faults_of(folder)
    wrong = []
    for group in sorted({each.group for each in faults if each.group.startswith("g-")}):
        paths = [folder / "server.log", *sorted(folder.glob(f"{group}.*.log"))]
        found = histories_of(read_evidence([str(each) for each in paths]), asked=group)
        for fault in faults:
            expected = FAULTS.get(fault.fault)
            if fault.group == group and expected is not None:
                cause = cause_of(fault, rebalances(found[group]), faults)
                is_known = cause is expected or (group, fault.fault) == ("g-confluent-848", "back")  # librdkafka logs no id
                wrong += [] if is_known else [(fault, cause)]
    assert wrong == []


def test_real_logs_of_a_broker_before_2_2_have_the_reasons_of_their_members(tmp_path: Path) -> None:
    folder = unpack(WITHOUT_REASONS, tmp_path)
    faults = faults_of(folder)
    alone = histories(folder / "server.log")
    for client in ("aiokafka", "kafka-python", "confluent"):
        group = f"g-{client}"
        paths = [str(each) for each in (folder / "server.log", *sorted(folder.glob(f"{group}.*.log")))]
        both = histories_of(read_evidence(paths), asked=group)[group]
        told = {
            name: {each.fault: cause_of(each, rebalances(history), faults) for each in faults if each.group == group}
            for name, history in (("broker", alone[group]), ("both", both))
        }
        # it logs the end of a session, and that a rebalance begins
        assert told["broker"] == dict.fromkeys(FAULTS) | {"kill": EXPIRED, "freeze": EXPIRED}
        # librdkafka logs no join and no close
        assert told["both"] == FAULTS | (dict.fromkeys(("join", "leave", "back")) if client == "confluent" else {})


OTHER = {
    # group -> faults that the members' logs alone name, and that both do (Go's clients have no poll
    # interval)
    "g-franz-go": ("join leave kill back freeze thaw", "join leave kill back freeze thaw"),
    "g-franz-go-848": ("join leave kill back", "join leave kill freeze"),
    "g-sarama": ("", "join leave kill back freeze thaw"),
    "g-faust": ("join leave kill back", "join leave kill back freeze thaw"),
    "x-streams": ("join leave kill back freeze thaw", "join leave kill back freeze thaw"),
}


@pytest.mark.parametrize("group", sorted(OTHER))
def test_real_logs_of_other_clients(group: str, tmp_path: Path) -> None:
    folder = unpack(OTHER_CLIENTS, tmp_path)
    members = [str(each) for each in sorted(folder.glob(f"{group}.*.log"))]
    faults = [each for each in faults_of(folder) if each.group == group]
    for paths, named in zip((members, [str(folder / "server.log"), *members]), OTHER[group], strict=True):
        told = rebalances(histories_of(read_evidence(paths), asked=group)[group])
        found = {each.fault: rebalance_of(each, told, faults) for each in faults}
        assert [fault for fault, one in found.items() if one is not None and one.cause is FAULTS[fault]] == named.split()
        for fault, one in found.items():  # what it does not know is open, or a part of it
            partly = (*one.may_be, LEFT, EXPIRED) if one is not None else ()
            assert one is None or one.cause is FAULTS[fault] or FAULTS[fault] in partly or one.cause in partly, fault


def test_real_logs_of_members_alone(folder: Path) -> None:
    """Of those clients that were tried with this broker."""
    tried = {client: sorted(folder.glob(f"g-{client}.*.log")) for client in ("java", "aiokafka", "kafka-python")}
    assert tried["java"]
    assert tried["aiokafka"]
    wrong = []
    for client, logs in tried.items():
        for found in histories(*logs).values() if logs else ():
            for fault in faults_of(folder):
                expected = FAULTS.get(fault.fault)
                if fault.group == f"g-{client}" and expected is not None:
                    cause = cause_of(fault, rebalances(found), faults_of(folder))
                    wrong += [] if cause is expected else [(fault, cause)]
            assert any("server.log of the broker" in each for each in found.missing)
    assert wrong == []


def test_real_instance_id_of_two_processes(folder: Path) -> None:
    for client in ("java", "aiokafka"):
        logs = sorted(folder.glob(f"s-{client}.*.log"))
        (found,) = histories(*logs).values()
        named = [each for each in incidents(found) if each.cause is TWICE]
        assert named, client
        assert named[0].members == ("app-0",)
        assert any("of its own" in text for text in named[0].advice)


def test_real_client_of_kip_848_says_that_its_instance_id_is_taken(tmp_path: Path) -> None:
    """That is its only line about it: ``failed due to unreleased instance id``."""
    (found,) = histories(unpack("4.3.1", tmp_path) / "s-java-848.p2.log").values()
    (named,) = incidents(found)
    assert (named.cause, named.members) == (TWICE, ("app-0",))


def test_log_that_names_no_group_is_of_the_group_that_is_asked_for(tmp_path: Path) -> None:
    """All groups of this log have a client m2, and three of them lost it within 10 s."""
    folder = unpack("4.3.1", tmp_path)
    paths = [str(folder / name) for name in ("server.log", "g-confluent-848.m2.log")]
    asked = histories_of(read_evidence(paths), asked="g-confluent-848")
    assert [each.members for each in rebalances(asked["g-confluent-848"]) if each.cause is POLL] == [("m2",)]
    for group, history in histories_of(read_evidence(paths)).items():
        assert [each for each in rebalances(history) if each.cause is POLL and group != "g-java" and "confluent" in str(each.places)] == []


# -- what files cannot decide


def test_member_that_left_without_a_reason_may_not_have_polled(tmp_path: Path) -> None:
    text = rebalance(0, 4, f"Adding new member {B} with group instance id None") + rebalance(60, 5, f"removing member {B} on LeaveGroup")
    (_, left) = rebalances(told(tmp_path, text))
    assert (left.cause, left.may_be) == (LEFT, (POLL,))
    assert "the log of b can" in left.untold
    said = CliRunner().invoke(main, ["incident", str(tmp_path / "server.log")])
    assert "these files cannot tell whether it was closed or did not poll" in said.output


def test_member_that_gave_its_reason_leaves_nothing_open(tmp_path: Path) -> None:
    reason = f"Removing member {B} on LeaveGroup; client reason: the consumer is being closed"
    (_, left) = rebalances(told(tmp_path, rebalance(0, 4, f"Adding new member {B} with group instance id None") + rebalance(60, 5, reason)))
    assert (left.cause, left.may_be, left.untold) == (LEFT, (), "")


def test_process_of_kip_848_that_joins_again_had_not_ended(tmp_path: Path) -> None:
    folder = unpack("4.3.1", tmp_path)
    found = rebalances(histories(folder / "server.log")["g-java-848"])
    (left,) = [each for each in found if each.members == ("JbCMnaCaTiK8DVpyQkQDUQ",) and each.cause is LEFT and "joined again" in each.untold]
    assert "8.5 s later, so it had not ended" in left.untold


def test_coordinator_that_is_loaded_long_after_an_epoch_is_another_event(tmp_path: Path) -> None:
    line = "[2026-03-01 10:{:02}:00,000] INFO [GroupCoordinator id=0 topic=__consumer_offsets partition=0] {} (org.apache.kafka.coordinator.group.GroupMetadataManager)\n"
    text = line.format(0, "[GroupId g] Member JbCMnaCaTiK8DVpyQkQDUQ left the consumer group.")
    text += line.format(0, "[GroupId g] Bumped group epoch to 7 with metadata hash 0.")
    text += line.format(3, "Loaded consumer group g with 0 members.")
    found = rebalances(told(tmp_path, text))
    assert [(each.cause, each.took_ms) for each in found] == [(LEFT, 0), (Cause.COORDINATOR, 0)]


def test_member_that_was_slow_does_not_explain_who_left(tmp_path: Path) -> None:
    """A step names the slow member, and must not come before the one that says what is open."""
    line = "[2026-03-01 10:00:{:02},000] INFO [GroupCoordinator id=0] [GroupId g] {} (org.apache.kafka.coordinator.group.GroupMetadataManager)\n"
    server = line.format(0, "Member JbCMnaCaTiK8DVpyQkQDUQ left the consumer group.") + line.format(
        0, "Bumped group epoch to 7 with metadata hash 0."
    )
    who = "INFO [Consumer clientId=m1, groupId=g] Member j-g6mj9uSVuBBJTqfMYy9w with epoch 7 transitioned from {} to {}."
    states = ((1, "STABLE", "RECONCILING"), (9, "RECONCILING", "STABLE"))
    (tmp_path / "server.log").write_text(server)
    (tmp_path / "m1.log").write_text("".join(f"2026-03-01 10:00:0{second},000 {who.format(*change)}\n" for second, *change in states))
    (left,) = rebalances(histories(tmp_path / "server.log", tmp_path / "m1.log")["g"])
    assert (left.cause, left.detail) == (LEFT, "m1 took 8.0 s to give up and take over its work")
    assert "these files cannot tell whether it was closed" in left.untold


def test_departure_that_comes_after_a_rebalance_did_not_begin_it(tmp_path: Path) -> None:
    who = "INFO org.apache.kafka.clients.consumer.internals.ConsumerCoordinator - [Consumer clientId={}, groupId=g]"

    def round_of(client: str, second: int, number: int) -> str:
        said = f"2026-03-01 10:00:{second:02},000 [main] {who.format(client)}"
        generation = f"Generation{{generationId={number}, memberId='{client}-00000001-1111-4222-8333-444444444444', protocol='range'}}"
        texts = (
            "Request joining group due to: group is already rebalancing",
            f"Successfully joined group with generation {generation}",
            f"Successfully synced group in generation {generation}",
        )
        return "".join(f"{said} {text}\n" for text in texts)

    for client in ("a", "b"):
        lines = round_of(client, 1, 4) + round_of(client, 10, 5)
        if client == "a":
            lines += f"2026-03-01 10:00:20,000 [main] {who.format('a')} Member a-00000001-1111-4222-8333-444444444444 sending LeaveGroup request to coordinator h:1 (id: 1) due to the consumer is being closed\n"
        (tmp_path / f"{client}.log").write_text(lines)
    (found,) = histories(tmp_path / "a.log", tmp_path / "b.log").values()
    assert [(each.number, each.cause) for each in rebalances(found) if each.number == 5 and each.begin_ms < 1_772_359_215_000] == [(5, Cause.UNSEEN)]


def frozen(said: str) -> str:
    """Lines of a Java consumer of KIP-848 (4.3.1) that stood still and goes on; `said`: what its
    coordinator answered to the first heartbeat.
    """
    who = "[consumer_background_thread] INFO org.apache.kafka.clients.consumer.internals.{} - [Consumer clientId=m1, groupId=g]"
    manager, beats = who.format("ConsumerMembershipManager"), who.format("ConsumerHeartbeatRequestManager")
    member = "Member j-g6mj9uSVuBBJTqfMYy9w with epoch {} transitioned from {} to {}."
    lines = (
        f"10:00:00,000 {manager} {member.format(0, 'JOINING', 'RECONCILING')}",
        f"10:00:00,100 {manager} {member.format(6, 'RECONCILING', 'STABLE')}",
        f"10:01:00,358 {beats} Consumer poll timeout has expired. This means the time between subsequent calls to poll() was longer than",
        f"10:01:00,360 {manager} {member.format(-1, 'LEAVING', 'STALE')}",
        f"10:01:00,363 {manager} {member.format(0, 'STALE', 'JOINING')}",
        *([f"10:01:00,410 {beats} ConsumerGroupHeartbeatRequest failed because of {said}: ClientResponse(latencyMs=22)"] if said else []),
        f"10:01:00,475 {manager} {member.format(9, 'JOINING', 'RECONCILING')}",
        f"10:01:00,564 {manager} {member.format(9, 'RECONCILING', 'STABLE')}",
    )
    return "".join(f"2026-03-01 {line}\n" for line in lines)


@pytest.mark.parametrize(("said", "cause"), [("UNKNOWN_MEMBER_ID", EXPIRED), ("FENCED_MEMBER_EPOCH", EXPIRED), ("", POLL)])
def test_process_whose_heartbeats_were_missing_too_stood_still(said: str, cause: Cause, tmp_path: Path) -> None:
    found = [each for each in rebalances(told(tmp_path, frozen(said), "m1.log")) if each.cause in (EXPIRED, POLL, TWICE)]
    assert [each.cause for each in found] == [cause]
    assert ("it sent no heartbeat either" in found[0].detail) == (cause is EXPIRED)


def test_recording_names_the_clients_of_kip_848_whose_brokers_log_ids() -> None:
    ids = ("E2IqTNwiQbW7TsQ+iAmdTA",)
    stored = Rebalance(number=11, begin_ms=5_000, end_ms=6_000, cause=BACK, members=("m1",), joined=("m1",))
    said = Rebalance(number=11, begin_ms=5_000, end_ms=5_000, cause=BACK, members=ids, joined=ids, places=("server.log:3",))
    (both,) = with_told([stored], [said])
    assert (both.cause, both.members, both.places) == (BACK, ("m1",), ("server.log:3",))
    left = attrs.evolve(stored, cause=Cause.GONE, joined=(), gone=("m1",))
    (both,) = with_told([left], [attrs.evolve(said, cause=LEFT, joined=(), gone=ids)])
    assert (both.cause, both.members) == (LEFT, ("m1",))


def test_instance_of_kafka_streams_that_is_back_with_an_empty_state_directory(tmp_path: Path) -> None:
    """Lines of Kafka Streams 4.3.1: a process, and the next one in the same log."""
    member = "i2-StreamThread-1-consumer-0000000{}-1111-4222-8333-444444444444"
    coordinator = "[i2-StreamThread-1] INFO org.apache.kafka.clients.consumer.internals.ConsumerCoordinator - [Consumer clientId=i2-StreamThread-1-consumer, groupId=counts]"
    text = ""
    for process, (minute, generation) in enumerate(((0, 3), (5, 5)), 1):
        stamp = f"2026-03-01 10:0{minute}"
        text += f"{stamp}:01,000 [main] INFO org.apache.kafka.streams.processor.internals.StateDirectory - No process id found on disk, got fresh process id 48aa0b7b-145a-44f2-9fd4-0a2d691931ef\n"
        text += f"{stamp}:02,000 {coordinator} Discovered group coordinator 127.0.0.1:34779 (id: 2147483647 rack: null)\n"
        text += f"{stamp}:03,000 {coordinator} Request joining group due to: need to re-join with the given member-id: {member.format(process)}\n"
        joined = f"Generation{{generationId={generation}, memberId='{member.format(process)}', protocol='stream'}}"
        text += f"{stamp}:04,000 {coordinator} Successfully joined group with generation {joined}\n"
        text += f"{stamp}:04,100 {coordinator} Successfully synced group in generation {joined}\n"
    found = rebalances(told(tmp_path, text, "i2.log"))
    assert [each.lost_state for each in found if each.number == 3] == [()], "the first process of a log may be new"
    (back,) = [each for each in found if each.number == 5]
    assert (back.cause, back.lost_state, "its state directory was empty" in back.detail) == (BACK, ("i2",), True)
    assert "i2.log:6" in back.places


# -- lines written after the source


def at(second: int, text: str) -> str:
    return f"[2026-03-01 10:{second // 60:02}:{second % 60:02},000] INFO [GroupCoordinator 0]: {text} (kafka.coordinator.group.GroupCoordinator)\n"


A, B, C = (f"{name}-{number:08x}-1111-4222-8333-444444444444" for number, name in enumerate("abc", 1))


def rebalance(second: int, old: int, reason: str, *, took_s: int = 1, before: str = "") -> str:
    return (
        (at(second, before) if before else "")
        + at(
            second,
            f"Preparing to rebalance group orders in state PreparingRebalance with old generation {old} (__consumer_offsets-7) (reason: {reason})",
        )
        + at(second + took_s, f"Stabilized group orders generation {old + 1} (__consumer_offsets-7) with 2 members")
        + at(
            second + took_s,
            f"Assignment received from leader for group orders for generation {old + 1}. The group has 2 members, 0 of which are static.",
        )
    )


REASONS = [
    # (reason, cause, members): Kafka 2.2 on
    (f"Adding new member {C} with group instanceid None", JOINED, ("c",)),
    (f"Adding new member {C} with group instance id None; client reason: not provided", JOINED, ("c",)),
    (f"removing member {B} on LeaveGroup", LEFT, ("b",)),
    (f"Removing member {B} on LeaveGroup; client reason: the consumer is being closed", LEFT, ("b",)),
    (f"Removing member {B} on LeaveGroup; client reason: consumer poll timeout has expired.", POLL, ("b",)),
    (f"explicit `LeaveGroup` request for ({B}) members.", LEFT, ("b",)),
    (f"removing member {B} on heartbeat expiration", EXPIRED, ("b",)),
    (
        f"Updating metadata for member {B} during Stable; client reason: cached metadata has changed from (version5: {{t=1}}) at the beginning",
        Cause.PARTITIONS,
        ("b",),
    ),
    (f"Leader {A} re-joining group during Stable; client reason: cached metadata has changed from (v1) to (v2)", Cause.PARTITIONS, ("a",)),
    (f"Leader {A} re-joining group during Stable; client reason: rebalance enforced by user", Cause.ASKED, ("a",)),
    (f"Updating metadata for member {B} during Stable; client reason: need to revoke partitions [t-1] and re-join", Cause.FOLLOW_UP, ("b",)),
    (f"Updating metadata for member {B} during Stable; client reason: the subscription has changed", Cause.SUBSCRIBED, ("b",)),
    (f"Removing Set({B}) on pending sync request expiration", Cause.LATE, ()),
]


@pytest.mark.parametrize(("reason", "cause", "members"), REASONS, ids=[reason[:40] for reason, _, _ in REASONS])
def test_brokers_reason_is_the_cause(reason: str, cause: Cause, members: tuple[str, ...], tmp_path: Path) -> None:
    (_, found) = rebalances(told(tmp_path, rebalance(0, 4, f"removing member {A} on LeaveGroup") + rebalance(60, 5, reason)))
    assert (found.cause, found.number, found.took_ms) == (cause, 6, 1_000)
    if members:
        assert found.members == members
    assert found.places[0] == "server.log:4"


def test_broker_before_reasons_tells_who_failed_and_else_that_it_does_not_know(tmp_path: Path) -> None:
    plain = "Preparing to rebalance group orders with old generation {} (__consumer_offsets-7)"
    text = at(0, plain.format(3)) + at(1, "Stabilized group orders generation 4 (__consumer_offsets-7)")
    text += at(1, "Assignment received from leader for group orders for generation 4")
    text += at(90, f"Member {B} in group orders has failed, removing it from the group") + at(90, plain.format(4))
    text += at(91, "Stabilized group orders generation 5 (__consumer_offsets-7)")
    first, second = rebalances(told(tmp_path, text))
    assert (first.cause, second.cause, second.members) == (Cause.UNSEEN, EXPIRED, ("b",))
    assert "2.2" in first.detail


def test_rebalance_that_waits_a_whole_poll_interval_is_a_poll_timeout(tmp_path: Path) -> None:
    (found,) = rebalances(told(tmp_path, rebalance(0, 63, f"Adding new member {C} with group instanceid None", took_s=300)))
    assert (found.cause, found.took_ms, found.joined) == (POLL, 300_000, ("c",))
    named = at(
        0,
        f"Preparing to rebalance group orders in state PreparingRebalance with old generation 4 (reason: Adding new member {C} with group instance id None)",
    )
    named += at(
        60,
        f"Group orders removed dynamic members who haven't joined: Set({B})",
    ) + at(60, "Stabilized group orders generation 5 with 2 members")
    (found,) = rebalances(told(tmp_path, named))
    assert (found.cause, found.members, found.gone) == (POLL, ("b",), ("b",))
    (slow,) = rebalances(told(tmp_path, rebalance(0, 63, f"Adding new member {C} with group instanceid None", took_s=25)))
    assert slow.cause is Cause.LATE


def test_rebalance_that_is_not_over_at_the_end_is_told(tmp_path: Path) -> None:
    text = rebalance(0, 3, f"removing member {B} on LeaveGroup")
    text += at(
        60,
        f"Preparing to rebalance group orders in state PreparingRebalance with old generation 4 (reason: Adding new member {C} with group instanceid None)",
    )
    text += at(
        160,
        "Dynamic Member with unknown member id joins group orders in PreparingRebalance state. Created a new member id"
        f" {A} for this member and add to the group.",
    )
    found = rebalances(told(tmp_path, text))[-1]
    assert (found.cause, "not over" in found.detail) == (Cause.LATE, True)


def test_storm_in_a_log_is_one_incident_with_its_period(tmp_path: Path) -> None:
    text = "".join(
        rebalance(
            12 * turn,
            turn,
            (
                f"removing member {B} on heartbeat expiration",
                f"Adding new member {B} with group instanceid None",
            )[turn % 2],
            took_s=0,
        )
        for turn in range(20)
    )
    (loop,) = incidents(told(tmp_path, text))
    assert loop.loop is not None
    assert (loop.cause, loop.members, len(loop.chain), loop.loop.times, loop.loop.period_ms) == (EXPIRED, ("b",), 20, 10, 24_000)
    shown = CliRunner().invoke(main, ["incident", str(tmp_path / "server.log")]).stdout
    assert "20 rebalances in 3 min 48 s: a member was not heard of for its session timeout (b), 10 times, each 24.0 s" in shown


def test_poll_timeouts_that_come_back_are_a_loop(tmp_path: Path) -> None:
    texts = (
        f"Removing member {B} on LeaveGroup; client reason: consumer poll timeout has expired.",
        f"Adding new member {B} with group instance id None",
    )
    text = "".join(rebalance(300 * (turn // 2) + 30 * (turn % 2), turn, texts[turn % 2], took_s=0) for turn in range(8))
    (loop,) = incidents(told(tmp_path, text))
    assert loop.loop is not None
    assert (loop.cause, loop.loop.times, loop.loop.period_ms) == (POLL, 4, 300_000)


def test_static_member_that_is_replaced_again_and_again_is_two_processes(tmp_path: Path) -> None:
    line = "Static member with groupInstanceId=app-0 and unknown member id joins group orders in Stable state. Replacing previously mapped member {} with this groupInstanceId."
    text = "".join(at(4 * turn, line.format(f"app-0-{turn:08x}-1111-4222-8333-444444444444")) for turn in range(9))
    (loop,) = incidents(told(tmp_path, text))
    assert (loop.cause, loop.members, loop.moves) == (TWICE, ("app-0",), 0)
    (once,) = incidents(told(tmp_path, at(0, line.format(A))))
    assert once.cause is Cause.STATIC_BACK


DRESSES = {
    "log4j": "[2026-03-01 10:00:00,000] INFO {} (kafka.coordinator.group.GroupCoordinator)",
    "logback": "10:00:00.000 [group-metadata-manager-0] INFO  k.c.g.GroupCoordinator - {}",
    "iso": "2026-03-01T10:00:00.000Z INFO {}",
    "zone": "2026-03-01T12:00:00.000+0200 INFO {}",
    "docker": "2026-03-01T10:00:00.000000000Z [2026-03-01 12:00:00,000] INFO {}",
    "compose": "broker-1  | [2026-03-01 10:00:00,000] INFO {}",
    "kubectl": "[pod/kafka-0/kafka] 2026-03-01 10:00:00,000 INFO {}",
    "cri": "2026-03-01T10:00:00.000000000Z stdout F [2026-03-01 10:00:00,000] INFO {}",
    "journald": "Mar 01 10:00:00 host-1 kafka[812]: INFO {}",
    "day first": "01 Mar 2026 10:00:00,000 INFO {}",
    "colours": "\x1b[36m[2026-03-01 10:00:00,000]\x1b[0m \x1b[32mINFO\x1b[0m {}",
    "quoted": "> [2026-03-01 10:00:00,000] INFO {}",
    "json": '{{"@timestamp":"2026-03-01T10:00:00.000Z","level":"INFO","message":"{}"}}',
    "json of docker": '{{"log":"[2026-03-01 10:00:00,000] INFO {}\\n","stream":"stdout","time":"2026-03-01T10:00:00.000Z"}}',
    "epoch": "1772359200.000 INFO {}",
}


@pytest.mark.parametrize("dress", sorted(DRESSES))
def test_dress_of_lines_does_not_matter(dress: str, tmp_path: Path) -> None:
    lines = [
        f"[GroupCoordinator 0]: Preparing to rebalance group orders in state PreparingRebalance with old generation 4 (reason: removing member {B} on heartbeat expiration)",
        "[GroupCoordinator 0]: Stabilized group orders generation 5 (__consumer_offsets-7) with 2 members",
    ]
    found = told(tmp_path, "".join(DRESSES[dress].format(line) + "\n" for line in lines))
    (one,) = rebalances(found)
    assert (one.cause, one.members, one.number, one.places) == (EXPIRED, ("b",), 5, ("server.log:1", "server.log:2"))
    if dress not in ("logback", "journald"):
        assert one.begin_ms == 1_772_359_200_000


def test_wrapped_cut_and_packed_lines(tmp_path: Path) -> None:
    line = at(
        0,
        f"Preparing to rebalance group orders in state PreparingRebalance with old generation 4 (__consumer_offsets-7) (reason: removing member {B} on heartbeat expiration)",
    )
    wrapped = "\n".join(line[begin : begin + 72] for begin in range(0, len(line.rstrip()), 72)) + "\n"
    stable = at(1, "Stabilized group orders generation 5 (__consumer_offsets-7) with 2 members")
    (one,) = rebalances(told(tmp_path, wrapped + stable))
    assert (one.cause, one.members) == (EXPIRED, ("b",))
    (cut,) = rebalances(told(tmp_path, line[:110] + "\n" + stable))
    assert (cut.number, cut.cause) == (5, Cause.UNSEEN)
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress((line + stable).encode()))
    (history,) = histories(packed).values()
    assert rebalances(history)[0].places == ("server.log.gz:1", "server.log.gz:2")


def test_clock_of_a_member_in_another_zone_is_moved(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "".join(rebalance(60 * turn, 4 + turn, f"Leader {A} re-joining group during Stable; client reason: x") for turn in range(3))
    )
    line = "2026-03-01 12:{:02}:01,000 INFO [Consumer clientId=b, groupId=orders] Successfully synced group in generation Generation{{generationId={}, memberId='{}'}}\n"
    (tmp_path / "b.log").write_text("".join(line.format(turn, 5 + turn, B) for turn in range(3)))
    found = histories(tmp_path / "server.log", tmp_path / "b.log")["orders"]
    assert found.notes == ["clock of b.log: 2 h 00 min ahead of the broker's; its times are moved"]


WORKER = "[2026-03-01 10:{},000] INFO [Worker clientId=connect-1, groupId=connect-cluster] {} (org.apache.kafka.connect.runtime.distributed.X:1)\n"
ASSIGNMENT = (
    "Joined group at generation {} with protocol version 2 and got assignment: Assignment{{error=0, leader='connect-1-x', leaderUrl='http://w1:8083/', offset=12,"
    " connectorIds=[sink], taskIds=[{}], revokedConnectorIds=[], revokedTaskIds=[], delay={}}} with rebalance delay: {}"
)


def test_worker_of_connect_that_is_lost_and_a_connector_that_is_changed(tmp_path: Path) -> None:
    text = WORKER.format("00:00", "Rebalance started") + WORKER.format("00:03", ASSIGNMENT.format(7, "sink-0", 300000, 300000))
    text += WORKER.format("05:03", "Rebalance started") + WORKER.format("05:05", ASSIGNMENT.format(8, "sink-0, sink-1", 0, 0))
    text += WORKER.format("09:00", "Connector other config updated") + WORKER.format("09:01", "Rebalance started")
    text += WORKER.format("09:02", ASSIGNMENT.format(9, "sink-0, sink-1", 0, 0))
    text += "[2026-03-01 10:12:00,000] ERROR WorkerSinkTask{id=sink-1} Task threw an uncaught and unrecoverable exception. Task is being killed\n"
    found = told(tmp_path, text, "connect.log")
    lost, changed = incidents(found)
    assert [(each.cause, each.number) for each in lost.chain] == [(Cause.GONE, 7), (Cause.DELAY_OVER, 8)]
    assert "waits for up to 5 min 00 s" in lost.chain[0].detail
    assert any("scheduled.rebalance.max.delay.ms" in text for text in lost.advice)
    assert (changed.cause, changed.chain[0].detail) == (Cause.CONNECTORS, "other config updated")
    assert any("sink-1 went to FAILED (connect.log:8)" in note for note in found.notes)
    assert any("/connectors?expand=status" in each for each in found.missing)


def test_log_that_begins_in_the_middle_does_not_say_that_its_client_joined(tmp_path: Path) -> None:
    who = "[Consumer clientId=app-1-StreamThread-1-consumer, groupId=app]"
    text = f"2026-03-01 10:00:00,100 INFO {who} Request joining group due to: group is already rebalancing\n"
    text += (
        f"2026-03-01 10:00:00,200 INFO {who} Successfully synced group in generation Generation{{generationId=12, memberId='x', protocol='stream'}}\n"
    )
    text += "2026-03-01 10:00:40,000 INFO stream-thread [app-1-StreamThread-1] Restoration took 39800 ms for all active tasks [0_1]\n"
    found = told(tmp_path, text, "app.log")
    assert [(each.cause, each.members) for each in incidents(found)] == [(Cause.UNSEEN, ())]
    assert found.states[-1].group.kind.value == "classic streams"
    assert any("39.8 s to restore" in note for note in found.notes)


def test_go_client_that_joins_and_rebalances(tmp_path: Path) -> None:
    key = "member_id: kgo-0000000a-1111-4222-8333-444444444444, instance_id: <nil>, generation: {}, leader: false"
    lines = [
        ("00:00", "beginning to manage the group lifecycle; group: orders"),
        ("00:00", "joining group; group: orders"),
        ("00:03", f"joined; group: orders, {key.format(4)}"),
        ("00:03", "synced; group: orders, assigned: orders[0 1 2]"),
        ("02:03", "heartbeat errored; group: orders, err: REBALANCE_IN_PROGRESS: The group is rebalancing, so a rejoin is needed."),
        ("02:03", "joining group; group: orders"),
        ("02:05", f"joined; group: orders, {key.format(5)}"),
        ("02:05", "synced; group: orders, assigned: orders[0 1]"),
        ("04:00", "leaving group; group: orders, member_id: kgo-0000000a-1111-4222-8333-444444444444, instance_id: <nil>"),
    ]
    found = rebalances(told(tmp_path, "".join(f"2026-03-01 10:{time} [INFO] {text}\n" for time, text in lines), "go.log"))
    assert [(each.cause, each.number) for each in found] == [(JOINED, 4), (Cause.UNSEEN, 5), (LEFT, 5)]
    logged = "".join(
        json.dumps(
            {
                "time": f"2026-03-01T10:{time}Z",
                "msg": text.partition("; ")[0],
                **dict(pair.split(": ", 1) for pair in text.partition("; ")[2].split(", ") if ": " in pair),
            }
        )
        + "\n"
        for time, text in lines
    )
    assert [each.cause for each in rebalances(told(tmp_path, logged, "go.json"))] == [JOINED, Cause.UNSEEN, LEFT]


def test_excerpt_without_anything_says_so(tmp_path: Path) -> None:
    for text in ("hello\nworld\n", "\x00\xff\x00", "[2026-03-01 10:00:00,000] INFO [Log partition=a-0] Rolled new log segment\n"):
        (tmp_path / "x.log").write_bytes(text.encode("latin-1"))
        shown = CliRunner().invoke(main, ["incident", str(tmp_path / "x.log")])
        assert (shown.exit_code, "nothing was found about a group" in shown.stdout) == (0, True), shown.output


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").touch()
    shown = CliRunner().invoke(main, ["incident", str(tmp_path / "x.log")])
    assert shown.exit_code == 2
    assert "x.log: there is no line in it; name a log of a broker or a client" in shown.output


def test_lines_that_are_not_understood_are_counted_and_shown(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(at(0, "The group orders rebalanced itself in 3 ways") + at(1, "Stabilized group orders generation 5"))
    read = json.loads(CliRunner().invoke(main, ["incident", str(tmp_path / "x.log"), "--json"]).stdout)
    check("incident", read)
    assert [(each["understood"], each["not_understood"]) for each in read["files"]] == [(1, 1)]
    assert "N ways" in read["files"][0]["examples"][0]["form"]


def test_redacted_report_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        rebalance(0, 4, f"removing member {B.replace('b-', 'secret-', 1)} on heartbeat expiration").replace("orders", "payments")
    )
    for options in ([], ["--json"], ["--markdown"]):
        shown = CliRunner().invoke(main, ["incident", str(tmp_path / "server.log"), "--redact", *options]).stdout
        assert "payments" not in shown
        assert "secret" not in shown
        assert "group-1" in shown.replace("\\", "")
        assert "member-1" in shown.replace("\\", "")
