"""What `incident` says of a coordinator that was away: lines of the forms that Kafka 4.3.1, its
clients and librdkafka 2.16.1 wrote when their only broker was killed and started again.
"""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.incident import Cause, GroupHistory, Rebalance
from equipoise.replay.incident.coordinator_outages import Outage, with_outages
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances

AWAY, EXPIRED, LEFT = Cause.COORDINATOR, Cause.EXPIRED, Cause.LEFT
M = "0f9ee0fa-0000-4111-8222-333333333333"
HEARTBEATS = "[kafka-coordinator-heartbeat-thread | g] INFO org.apache.kafka.clients.consumer.internals.ConsumerCoordinator - [Consumer clientId={}, groupId=g]"
MANAGER = "[event-0] INFO org.apache.kafka.coordinator.group.GroupMetadataManager - [GroupCoordinator id=0 topic=__consumer_offsets partition=4]"
BEGINS = "[main] INFO org.apache.kafka.common.utils.LoggingSignalHandler - Registered signal handlers for TERM, INT, HUP"
STOPS = "[main] INFO org.apache.kafka.coordinator.group.GroupCoordinatorService - [GroupCoordinator id=0] Shutting down."


def lines(*said: tuple[str, str]) -> str:
    return "".join(f"2026-03-01 10:{time} {text}\n" for time, text in said)


def told(folder: Path, **files: str) -> GroupHistory:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    (found,) = histories_of(read_evidence([str(folder / f"{name}.log") for name in sorted(files)])).values()
    return found


def generation(time: str, client: str, number: int) -> tuple[tuple[str, str], ...]:
    of = f"Generation{{generationId={number}, memberId='{client}-{M}', protocol='range'}}"
    who = HEARTBEATS.format(client)
    return (
        (time, f"{who} (Re-)joining group"),
        (time, f"{who} Successfully joined group with generation {of}"),
        (time, f"{who} Successfully synced group in generation {of}"),
    )


def away(time: str, client: str = "m1") -> tuple[str, str]:
    return (
        time,
        f"{HEARTBEATS.format(client)} Group coordinator h:1 (id: 2147483647 rack: null) is unavailable or invalid due to cause: null. isDisconnected: true. Rediscovery will be attempted.",
    )


def found(time: str, client: str = "m1") -> tuple[str, str]:
    return time, f"{HEARTBEATS.format(client)} Discovered group coordinator h:1 (id: 2147483647 rack: null)"


def server(*, stopped: bool = False) -> str:
    return lines(
        (
            "00:00,000",
            f"{MANAGER} Preparing to rebalance group g in state PreparingRebalance with old generation 3 (reason: Removing member m2-{M} on LeaveGroup; client reason: the consumer is being closed).",
        ),
        (
            "00:01,000",
            f"{MANAGER} Assignment received from leader m1-{M} for group g for generation 4. The group has 1 members, 0 of which are static.",
        ),
        *([("07:00,000", STOPS)] if stopped else []),
        ("07:10,000", BEGINS),
        ("07:15,000", "[main] INFO org.apache.kafka.coordinator.group.GroupCoordinatorService - [GroupCoordinator id=0] Starting up."),
        ("07:32,000", f"{MANAGER} Loaded classic group g with 1 members."),
        ("09:00,000", f"{MANAGER} Loaded classic group g with 1 members."),
    )


def test_broker_that_was_killed_was_away_from_its_next_beginning_on(tmp_path: Path) -> None:
    left, was_away, again = rebalances(told(tmp_path, server=server()))
    assert (left.cause, left.took_ms) == (LEFT, 1_000)
    assert (was_away.cause, was_away.took_ms, was_away.places) == (AWAY, 22_000, ("server.log:3", "server.log:5"))
    assert "had the group 22.0 s later; its log does not say that it was stopped before: it was killed, or its machine failed" in was_away.detail
    assert (again.cause, again.took_ms, again.detail) == (AWAY, 0, "")  # it came back to this broker, which had not begun then


def test_broker_that_begins_may_let_a_group_go_before_it_has_it(tmp_path: Path) -> None:
    """Kafka 4.3.1 does, when the leadership of the offsets topic changes while it begins."""
    early = lines(("07:30,000", f"{MANAGER} [GroupId=g] Unloading group metadata for generation 4."))
    text = server().replace(
        lines(("07:32,000", f"{MANAGER} Loaded classic group g with 1 members.")),
        early + lines(("07:32,000", f"{MANAGER} Loaded classic group g with 1 members.")),
    )
    was_away = rebalances(told(tmp_path, server=text))[1]
    assert (was_away.cause, was_away.took_ms, "it was killed" in was_away.detail) == (AWAY, 22_000, True)


def test_broker_that_was_stopped_was_away_from_then_on(tmp_path: Path) -> None:
    was_away = rebalances(told(tmp_path, server=server(stopped=True)))[1]
    assert (was_away.cause, was_away.took_ms, was_away.detail) == (
        AWAY,
        32_000,
        "the broker was stopped and started again, and had the group 32.0 s later",
    )


def test_log_that_begins_with_its_broker_does_not_say_that_it_was_killed(tmp_path: Path) -> None:
    (began,) = rebalances(told(tmp_path, server=lines(("07:10,000", BEGINS), ("07:32,000", f"{MANAGER} Loaded classic group g with 1 members."))))
    assert began.detail == "the broker was started, and had the group 22.0 s later"


def test_rebalance_that_was_not_over_when_its_broker_was_killed_is_another_event(tmp_path: Path) -> None:
    text = "".join(each for each in server().splitlines(keepends=True) if "Assignment received" not in each)
    left, was_away, _ = rebalances(told(tmp_path, server=text))
    assert [(left.cause, left.begin_ms < was_away.begin_ms), was_away.cause] == [(LEFT, True), AWAY]


def test_client_that_has_its_coordinator_again_tells_how_long_it_had_not(tmp_path: Path) -> None:
    """It does not join again, and much later another rebalance begins."""
    text = lines(*generation("00:00,000", "m1", 4), away("07:00,000"), away("07:05,000"), found("07:34,000"), *generation("30:00,000", "m1", 5))
    was_away, later = [each for each in rebalances(told(tmp_path, m1=text)) if each.begin_ms > 1_772_359_260_000]
    assert (was_away.cause, was_away.took_ms, was_away.detail, was_away.places) == (
        AWAY,
        34_000,
        "m1 could not reach it for 34.0 s",
        ("m1.log:4", "m1.log:6"),
    )
    assert (later.cause, later.took_ms) == (Cause.UNSEEN, 0)


def test_client_that_is_out_after_a_long_outage_was_not_silent(tmp_path: Path) -> None:
    who = HEARTBEATS.format("m1")
    out = (
        "07:35,000",
        f"{who} Attempt to heartbeat with Generation{{generationId=4, memberId='m1-{M}', protocol='range'}} and group instance id Optional.empty failed due to UNKNOWN_MEMBER_ID, resetting generation",
    )
    before = (*generation("00:00,000", "m1", 4), away("07:00,000"))
    (was_away,) = [
        each for each in rebalances(told(tmp_path, m1=lines(*before, found("07:34,000"), out, *generation("07:36,000", "m1", 5)))) if each.number == 5
    ]
    assert (was_away.cause, was_away.took_ms) == (AWAY, 36_000)
    # found again at once: it had been silent before, and was put out because of that
    (silent,) = [
        each
        for each in rebalances(told(tmp_path, m1=lines(*before, found("07:00,100"), ("07:00,200", out[1]), *generation("07:01,000", "m1", 5))))
        if each.number == 5
    ]
    assert silent.cause is EXPIRED


def test_broker_and_its_clients_tell_of_one_outage(tmp_path: Path) -> None:
    m1 = lines(*generation("00:01,000", "m1", 4), away("06:50,000"), found("07:34,000"))
    m3 = lines(away("06:51,000", "m3"), found("07:33,000", "m3"))
    (was_away,) = [each for each in rebalances(told(tmp_path, server=server(), m1=m1, m3=m3)) if each.cause is AWAY and each.took_ms]
    assert was_away.took_ms == 44_000
    assert "it was killed" in was_away.detail
    assert {"m1.log:4", "server.log:3"} <= set(was_away.places)


def test_librdkafka_that_lost_its_coordinator_had_not_been_silent(tmp_path: Path) -> None:
    """It logs its group only if it is told to."""
    lost = "%6|1772359200.539|FAIL|m3#consumer-1| [thrd:GroupCoordinator]: GroupCoordinator: Disconnected: connection closed by peer: receive 0 after POLLIN (after 26040ms in state UP)\n"
    out = "%4|1772359206.057|SESSTMOUT|m3#consumer-1| [thrd:main]: Consumer group session timed out (in join-state steady) after 6018 ms without a successful response from the group coordinator (broker -1, last error was Local: Broker transport failure): revoking assignment and rejoining group\n"
    (was_away,) = rebalances(told(tmp_path, m3=lost + out))
    assert (was_away.cause, was_away.begin_ms, was_away.detail) == (AWAY, 1_772_359_200_539, "m3 could not reach it for at least 5.5 s")
    # it does not say when it is connected again, so what comes an hour later is of another outage
    hours = "".join(lost.replace("1772359200.", f"{1_772_359_200 - 3_600 * hour}.") for hour in (3, 2, 1))
    (was_away,) = rebalances(told(tmp_path, m3=hours + lost + out))
    assert (was_away.cause, was_away.begin_ms) == (AWAY, 1_772_359_200_539)
    silent, back = rebalances(told(tmp_path, m3=hours + out))
    assert (silent.cause, silent.begin_ms) == (EXPIRED, 1_772_359_200_039)
    silent, back = rebalances(told(tmp_path, m3=out))
    assert (silent.cause, silent.begin_ms, silent.detail) == (EXPIRED, 1_772_359_200_039, "it heard nothing from its coordinator for 6.0 s")
    assert (back.cause, back.begin_ms, back.members) == (Cause.BACK, 1_772_359_206_057, ("m3",))


def outage(begin_ms: int, end_ms: int) -> Outage:
    return Outage(begin_ms=begin_ms, end_ms=end_ms, client="m1", number=4, places=("m1.log:1",))


def test_one_client_without_its_coordinator_explains_its_own_loss() -> None:
    lost = Rebalance(number=5, begin_ms=50_000, end_ms=51_000, cause=EXPIRED, members=("m1",), gone=("m1",))
    (found,) = with_outages([lost], [outage(40_000, 70_000)])
    assert (found.cause, found.detail, found.places) == (EXPIRED, "it could not reach its coordinator for 30.0 s", ("m1.log:1",))
    other = Rebalance(number=5, begin_ms=50_000, end_ms=51_000, cause=EXPIRED, members=("m2",), gone=("m2",))
    assert [each.cause for each in with_outages([other], [outage(40_000, 70_000)])] == [AWAY, EXPIRED]


def test_orderly_move_of_a_coordinator_is_no_outage() -> None:
    assert with_outages([], [outage(40_000, 40_900)]) == []


def test_redacted_report_has_no_names_of_those_who_tell_of_an_outage(tmp_path: Path) -> None:
    text = lines(*generation("00:00,000", "secret", 4), away("07:00,000", "secret"), found("07:34,000", "secret"))
    (tmp_path / "a.log").write_text(text)
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(main, ["incident", str(tmp_path / "a.log"), "--redact", *options])
        assert "member-1 could not reach it for 34.0 s" in shown.stdout, shown.output
        assert "secret" not in shown.stdout
