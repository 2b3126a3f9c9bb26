"""What `incident` says of clients' logs: lines of the forms that Kafka, Kafka Streams and Connect
4.3.1, aiokafka 0.14.0 and a broker of Kafka 1.0.2 wrote when members were made to misbehave.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.incident import Cause, GroupHistory, Rebalance, incidents
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalance_loops import loop_of
from equipoise.replay.incident.rebalances import rebalances

BACK, EXPIRED, GONE, JOINED, LATE, LEFT, POLL, UNSEEN = (
    Cause.BACK,
    Cause.EXPIRED,
    Cause.GONE,
    Cause.JOINED,
    Cause.LATE,
    Cause.LEFT,
    Cause.POLL_TIMEOUT,
    Cause.UNSEEN,
)
MEMBERS = {f"m{number}": f"m{number}-{number:08x}-1111-4222-8333-444444444444" for number in range(1, 10)}


def told(folder: Path, **files: str) -> GroupHistory:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    (found,) = histories_of(read_evidence([str(folder / f"{name}.log") for name in sorted(files)])).values()
    return found


def said(client: str, *lines: tuple[str, str]) -> str:
    who = f"INFO org.apache.kafka.clients.consumer.internals.ConsumerCoordinator - [Consumer clientId={client}, groupId=g]"
    return "".join(f"2026-03-01 10:{time} [main] {who} {text}\n" for time, text in lines)


def begun(time: str) -> tuple[tuple[str, str], ...]:
    return ((time, "Discovered group coordinator h:1 (id: 2147483647 rack: null)"), (time, "(Re-)joining group"))


def generation(time: str, member: str, number: int, work: str = "t-0") -> tuple[tuple[str, str], ...]:
    of = f"Generation{{generationId={number}, memberId='{member}', protocol='range'}}"
    return (
        (time, f"Successfully joined group with generation {of}"),
        (time, f"Successfully synced group in generation {of}"),
        (time, f"Adding newly assigned partitions: [{work}]"),
    )


def rebalancing(time: str) -> tuple[tuple[str, str], ...]:
    return ((time, "Request joining group due to: group is already rebalancing"), (time, "(Re-)joining group"))


def closing(time: str, member: str) -> tuple[tuple[str, str], ...]:
    return (
        (time, f"Member {member} sending LeaveGroup request to coordinator h:1 (id: 1 rack: null) due to the consumer is being closed"),
        (time, "Resetting generation and member id due to: consumer pro-actively leaving the group"),
        (time, "Request joining group due to: consumer pro-actively leaving the group"),
    )


def test_process_that_closed_and_the_next_one_of_its_log_are_two_events(tmp_path: Path) -> None:
    """A deployment: the next process says how it joins, which does not belong to the closing."""
    text = said("m2", *begun("00:00,000"), *generation("00:03,000", MEMBERS["m2"], 4), *closing("05:00,000", MEMBERS["m2"]), *begun("05:02,000"))
    text += said("m2", *generation("05:04,000", MEMBERS["m9"], 6))
    found = rebalances(told(tmp_path, m2=text))[1:]
    assert [(each.cause, each.number, each.members, each.took_ms) for each in found] == [(LEFT, 4, ("m2",), 0), (BACK, 6, ("m2",), 2_000)]


def test_member_that_leaves_and_is_not_in_again_is_told_once(tmp_path: Path) -> None:
    text = said("m2", *begun("00:00,000"), *generation("00:03,000", MEMBERS["m2"], 4), *closing("05:00,000", MEMBERS["m2"]))
    other = said("m1", *generation("00:03,000", MEMBERS["m1"], 4), *rebalancing("05:00,500"), *generation("05:01,000", MEMBERS["m1"], 5))
    other += said("m1", *rebalancing("09:00,500"), *generation("09:01,000", MEMBERS["m1"], 6))
    found = [each for each in rebalances(told(tmp_path, m1=other, m2=text)) if each.number > 4]
    assert [(each.cause, each.number, each.gone) for each in found] == [(LEFT, 5, ("m2",)), (UNSEEN, 6, ())]


def test_member_is_out_by_a_rebalance_in_which_it_took_no_part(tmp_path: Path) -> None:
    """A member that stood still says it when it is back. It was in generation 4 until 00:03, so its
    session was not over at 00:04.
    """
    out = (
        "05:00,000",
        f"Attempt to heartbeat with Generation{{generationId=4, memberId='{MEMBERS['m2']}', protocol='range'}} and group instance id Optional.empty failed due to UNKNOWN_MEMBER_ID, resetting generation",
    )
    text = said("m2", *generation("00:03,000", MEMBERS["m2"], 4), out)
    for second, cause in (("00:04", UNSEEN), ("00:14", EXPIRED)):
        other = said("m1", *generation("00:03,000", MEMBERS["m1"], 4), *rebalancing(f"{second},500"), *generation(f"{second},900", MEMBERS["m1"], 5))
        assert [each.cause for each in rebalances(told(tmp_path, m1=other, m2=text)) if each.number == 5] == [cause]


def test_member_that_was_long_in_joining_is_named(tmp_path: Path) -> None:
    """It gave up its work for 14 s before it asked to join."""
    new = said("m3", *begun("05:00,000"), *generation("05:14,300", MEMBERS["m3"], 5, "t-2"))
    quick = said(
        "m2", *generation("00:03,000", MEMBERS["m2"], 4, "t-1"), *rebalancing("05:00,600"), *generation("05:14,300", MEMBERS["m2"], 5, "t-1")
    )
    slow = said(
        "m1",
        *generation("00:03,000", MEMBERS["m1"], 4),
        ("05:00,500", "Request joining group due to: group is already rebalancing"),
        ("05:00,500", "Revoke previously assigned partitions [t-0]"),
        ("05:14,200", "(Re-)joining group"),
        *generation("05:14,300", MEMBERS["m1"], 5),
    )
    (waited,) = [each for each in rebalances(told(tmp_path, m1=slow, m2=quick, m3=new)) if each.number == 5]
    assert (waited.cause, waited.members, waited.joined) == (LATE, ("m1",), ("m3",))
    assert waited.detail == "the rebalance waited 14.2 s for m1, which was busy; it began when a member joined (m3)"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("rebalance enforced by user", Cause.ASKED),
        ("asked on standard input", Cause.ASKED),
        ("rebalance failed due to 'x' (RebalanceInProgressException)", UNSEEN),
        ("encountered X from SYNC_GROUP response", UNSEEN),
    ],
)
def test_application_that_asks_for_a_rebalance(reason: str, cause: Cause, tmp_path: Path) -> None:
    text = said(
        "m1",
        *generation("00:03,000", MEMBERS["m1"], 4),
        ("05:00,000", f"Request joining group due to: {reason}"),
        *generation("05:01,000", MEMBERS["m1"], 5),
    )
    (asked,) = [each for each in rebalances(told(tmp_path, m1=text)) if each.number == 5]
    assert (asked.cause, asked.detail) == (cause, reason)


# -- Kafka Streams

THREAD = "[i1-StreamThread-1] {} org.apache.kafka.streams.KafkaStreams - "
DIED = {
    "replaced": "stream-client [i1] Replacing thread in the streams uncaught exception handler",
    "shut down": "stream-client [i1] Encountered the following exception during processing and the registered exception handler opted to SHUTDOWN_CLIENT. The streams client is going to shut down now. ",
    "before 2.8": "stream-thread [i1-StreamThread-1] Encountered the following exception during processing and the thread is going to shut down: ",
}
EXCEPTION = "org.apache.kafka.streams.errors.StreamsException: Exception caught in process. taskId=0_2, processor=count, topic=t, partition=2, offset=71\n\tat org.apache.kafka.streams.processor.internals.StreamTask.handleException(StreamTask.java:858)\nCaused by: java.lang.NullPointerException: key cannot be null\n"


@pytest.mark.parametrize("how", sorted(DIED))
def test_thread_of_kafka_streams_that_dies_of_a_record_names_it(how: str, tmp_path: Path) -> None:
    consumer, member = "i1-StreamThread-1-consumer", "i1-StreamThread-1-consumer-00000001-1111-4222-8333-444444444444"
    text = said(consumer, *begun("00:00,000"), *generation("00:03,000", member, 4))
    text += f"2026-03-01 10:05:00,000 {THREAD.format('ERROR')}{DIED[how]}\n{EXCEPTION}"
    text += f"2026-03-01 10:05:00,100 {THREAD.format('INFO')}stream-thread [i1-StreamThread-1] Shutdown complete\n"
    found = rebalances(told(tmp_path, i1=text))[1:]
    assert [(each.cause, each.gone) for each in found] == [(EXPIRED, ("i1",))]
    assert found[0].detail == "its thread died of an exception: NullPointerException: key cannot be null, at t-2 offset 71"
    lost = incidents(told(tmp_path, i1=text))[-1]
    assert "processing.exception.handler" in lost.advice[0]


def test_broker_that_lost_the_thread_says_why(tmp_path: Path) -> None:
    member = "i1-StreamThread-1-consumer-00000001-1111-4222-8333-444444444444"
    text = said("i1-StreamThread-1-consumer", *begun("00:00,000"), *generation("00:03,000", member, 4))
    text += f"2026-03-01 10:05:00,000 {THREAD.format('ERROR')}{DIED['replaced']}\n{EXCEPTION}"
    server = f"[2026-03-01 10:05:06,000] INFO [GroupCoordinator 0]: Preparing to rebalance group g in state PreparingRebalance with old generation 4 (reason: removing member {member} on heartbeat expiration)\n"
    server += "[2026-03-01 10:05:06,500] INFO [GroupCoordinator 0]: Stabilized group g generation 5 (__consumer_offsets-7) with 1 members\n"
    (lost,) = [each for each in rebalances(told(tmp_path, i1=text, server=server)) if each.number == 5]
    assert (lost.cause, lost.members, "NullPointerException" in lost.detail) == (EXPIRED, ("i1",), True)


# -- Kafka Connect


def worker(client: str, time: str, number: int, tasks: str) -> str:
    who = f"INFO [Worker clientId={client}, groupId=c]"
    return (
        f"[2026-03-01 10:{time},000] {who} Rebalance started\n"
        f"[2026-03-01 10:{time},000] {who} Successfully joined group with generation Generation{{generationId={number}, memberId='{client}-00000001-1111-4222-8333-444444444444', protocol='sessioned'}}\n"
        f"[2026-03-01 10:{time},100] {who} Joined group at generation {number} with protocol version 2 and got assignment: Assignment{{error=0, leader='w1-x', leaderUrl='http://w1:8083/', offset=7, connectorIds=[], taskIds=[{tasks}], revokedConnectorIds=[], revokedTaskIds=[], delay=0}} with rebalance delay: 0\n"
    )


def test_worker_whose_tasks_went_to_others_is_gone_and_may_have_been_killed(tmp_path: Path) -> None:
    w1 = worker("w1", "00:00", 4, "s-0, s-2") + worker("w1", "05:00", 5, "s-0, s-1, s-2, s-3")
    w2 = worker("w2", "00:00", 4, "s-1, s-3")
    (lost,) = [each for each in rebalances(told(tmp_path, w1=w1, w2=w2)) if each.number == 5]
    assert (lost.cause, lost.gone, lost.may_be) == (GONE, ("w2",), (EXPIRED, LEFT))
    assert "the log of the broker can" in lost.untold
    # it has its part in the next generation, so its log was not cut, and nobody is gone
    later = w2 + worker("w2", "05:00", 5, "s-1")
    assert [each.cause for each in rebalances(told(tmp_path, w1=w1, w2=later)) if each.number == 5] == [UNSEEN]


# -- brokers before Kafka 2.2, which give no reason


def at(second: int, text: str) -> str:
    return f"[2026-03-01 10:{second // 60:02}:{second % 60:02},000] INFO [GroupCoordinator 0]: {text} (kafka.coordinator.group.GroupCoordinator)\n"


def old_broker(second: int, number: int) -> str:
    return (
        at(second, f"Preparing to rebalance group g with old generation {number - 1} (__consumer_offsets-3)")
        + at(second + 1, f"Stabilized group g generation {number} (__consumer_offsets-3)")
        + at(second + 1, f"Assignment received from leader for group g for generation {number}")
    )


def aiokafka(*lines: tuple[str, str]) -> str:
    return "".join(f"2026-03-01 10:{time} INFO aiokafka.consumer.group_coordinator: {text}\n" for time, text in lines)


def aiokafka_generation(second: int, client: str, number: int) -> tuple[tuple[str, str], ...]:
    time = f"{second // 60:02}:{second % 60:02},000"
    return (
        (time, "Discovered coordinator 0 for group g"),
        (time, "(Re-)joining group g"),
        (time, f"Joined group 'g' (generation {number}) with member_id {MEMBERS[client]}"),
        (time, f"Successfully synced group g with generation {number}"),
    )


def test_old_brokers_rebalances_have_the_reasons_of_their_clients(tmp_path: Path) -> None:
    server = old_broker(0, 1) + old_broker(60, 2) + at(120, "Group g with generation 3 is now empty (__consumer_offsets-3)")
    alone = rebalances(told(tmp_path, server=server))
    assert [(each.cause, each.number) for each in alone] == [(UNSEEN, 1), (UNSEEN, 2), (UNSEEN, 3)]
    assert "before Kafka 2.2" in alone[0].detail
    m1 = aiokafka(*aiokafka_generation(1, "m1", 1), *aiokafka_generation(61, "m1", 2)[1:], ("02:00,000", "LeaveGroup request succeeded"))
    m2 = aiokafka(*aiokafka_generation(61, "m2", 2), ("01:59,900", "LeaveGroup request succeeded"))
    both = rebalances(told(tmp_path, server=server, m1=m1, m2=m2))
    assert [(each.cause, each.members) for each in both] == [(Cause.FIRST, ("m1",)), (JOINED, ("m2",)), (LEFT, ("m1", "m2"))]


def test_redacted_report_has_no_text_of_an_exception(tmp_path: Path) -> None:
    """It may be of a record."""
    member = "i1-StreamThread-1-consumer-00000001-1111-4222-8333-444444444444"
    text = said("i1-StreamThread-1-consumer", *begun("00:00,000"), *generation("00:03,000", member, 4))
    text += (
        f"2026-03-01 10:05:00,000 {THREAD.format('ERROR')}{DIED['replaced']}\n{EXCEPTION.replace('key cannot be null', 'no customer [42:7] Smith')}"
    )
    (tmp_path / "i1.log").write_text(text)
    plain = CliRunner().invoke(main, ["incident", str(tmp_path / "i1.log")]).stdout
    assert "Smith, at t-2 offset 71" in " ".join(plain.split())
    for options in ([], ["--json"], ["--markdown"]):
        shown = CliRunner().invoke(main, ["incident", str(tmp_path / "i1.log"), "--redact", *options])
        assert "NullPointerException" in shown.stdout, shown.output
        assert "Smith" not in shown.stdout
        assert "offset 71" not in shown.stdout


def test_loop_is_named_after_what_is_known_of_it() -> None:
    """Members of KIP-848 that are deployed again and again: rebalances in which they take over work
    have no cause in their logs.
    """
    flat = [
        Rebalance(
            number=number,
            begin_ms=3_000 * number,
            end_ms=3_000 * number,
            cause=cause,
            members=names,
            gone=names if cause is LEFT else (),
            joined=names if cause is BACK else (),
        )
        for number, (cause, names) in enumerate(
            (one, (f"m{turn % 3}",) if one is not UNSEEN else ()) for turn in range(12) for one in (LEFT, BACK, UNSEEN)
        )
    ]
    loop = loop_of(flat)
    assert loop is not None
    assert (loop.cause, loop.times) == (LEFT, 12)
