"""Tables of ``kafka-consumer-groups`` and documents of Kafka Connect and Burrow, as `incident` reads
them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.replay.importers.evidence.files import Evidence, ReadFile, read_file
from equipoise.replay.importers.evidence.tables import partitions_of, read_tables
from equipoise.replay.incident import Cause
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances

A, B = "rdkafka-0000000a-1111-4222-8333-444444444444", "rdkafka-0000000b-1111-4222-8333-444444444444"
OFFSETS = f"""
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                                  HOST            CLIENT-ID
orders          orders          0          120             150             30              {A} /10.0.0.1       rdkafka
orders          orders          1          100             900             800             {A} /10.0.0.1       rdkafka
orders          orders          2          100             900             800             {A} /10.0.0.1       rdkafka
orders          orders          3          -               900             -               {B} /10.0.0.2       rdkafka
orders          stock           0          5               900             895             -                                            -               -
"""
OF_KAFKA_4 = f"""
GROUP           TOPIC           PARTITION  LEADER-EPOCH    CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                                  HOST            CLIENT-ID
orders          orders          0          0               120             150             30              {A} /10.0.0.1       rdkafka
"""
BEFORE_KAFKA_2 = f"""
TOPIC                          PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG        CONSUMER-ID                                       HOST                           CLIENT-ID
orders                         0          120             150             30         {A}  /10.0.0.1  rdkafka
"""
MEMBERS = f"""
GROUP           CONSUMER-ID                                  HOST            CLIENT-ID       #PARTITIONS     ASSIGNMENT
orders          {A} /10.0.0.1       rdkafka         3               orders(0,1), stock(2)
orders          {B} /10.0.0.2       rdkafka         1               orders(2)
"""
MEMBERS_OF_KAFKA_4 = f"""
GROUP           CONSUMER-ID                                  GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT TARGET-EPOCH    TARGET-ASSIGNMENT
orders          {A} app-0             /10.0.0.1       rdkafka         3               4               orders:0,1;stock:2 5               orders:0,1
orders          {B} app-1             /10.0.0.2       rdkafka         1               5               orders:2           5               orders:2;stock:2
"""
STATE = """
GROUP                     COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS
orders                    10.0.0.9:9092  (3)        range                PreparingRebalance   2
"""


def looks_of(text: str) -> list:
    return read_tables(enumerate(text.splitlines(), 1), "described.txt")


def test_partitions_of_a_table() -> None:
    (look,) = looks_of(OFFSETS)
    assert [(row.work, row.committed, row.end, row.lag, row.member) for row in look.partitions[2:]] == [
        ("orders-2", 100, 900, 800, A), ("orders-3", None, 900, None, B), ("stock-0", 5, 900, 895, "")
    ]  # fmt: skip # a table: one row a line
    assert look.partitions[4].line == 7
    for text in (OF_KAFKA_4, BEFORE_KAFKA_2):
        (look,) = looks_of(text)
        assert [(row.work, row.committed, row.lag, row.member, row.client) for row in look.partitions] == [("orders-0", 120, 30, A, "rdkafka")]


@pytest.mark.parametrize("text", [MEMBERS, MEMBERS_OF_KAFKA_4], ids=["kafka 3", "kafka 4"])
def test_members_of_a_table(text: str) -> None:
    (look,) = looks_of(text)
    assert [(row.member, row.count, row.work) for row in look.members] == [(A, 3, ("orders-0", "orders-1", "stock-2")), (B, 1, ("orders-2",))]
    assert [row.target for row in look.members] == ([None, None] if text is MEMBERS else [("orders-0", "orders-1"), ("orders-2", "stock-2")])
    assert [row.instance for row in look.members] == (["", ""] if text is MEMBERS else ["app-0", "app-1"])


def test_state_of_a_table_and_forms_of_assignments() -> None:
    (look,) = looks_of(STATE)
    assert (look.state, look.coordinator, look.assignor) == ("preparingrebalance", "10.0.0.9:9092  (3)", "range")
    assert partitions_of("a.b(0,1), c-1(2)") == partitions_of("a.b:0,1;c-1:2") == ("a.b-0", "a.b-1", "c-1-2")


def shown(tmp_path: Path, text: str, *options: str) -> str:
    path = tmp_path / "described.txt"
    path.write_text(text)
    answer = CliRunner().invoke(main, ["incident", str(path), *options])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_incident_tells_what_a_table_shows_and_what_it_cannot(tmp_path: Path) -> None:
    text = shown(tmp_path, "\nConsumer group 'orders' is rebalancing.\n" + OFFSETS)
    assert "no incident was seen in what has no times; it cannot tell " in text
    assert "the group is rebalancing (described.txt:5)" in text
    assert "1 partition without a member, 895 records behind: stock-0 (described.txt:9)" in text
    assert "uneven: 3 partitions at one member and 1 at another" in text
    assert "these files cannot tell what happened before" in text
    assert "preparingrebalance" in shown(tmp_path, STATE)


def test_two_looks_show_what_stands_still(tmp_path: Path) -> None:
    later = OFFSETS.replace("120             150             30 ", "170             190             20 ").replace(
        "100             900             800", "100             950             850"
    )
    text = shown(tmp_path, OFFSETS + later)
    assert (
        "no progress between two looks at 2 partitions (orders-1, orders-2), of rdkafka-0000000a, while records came (described.txt:4, described.txt:11)"
        in text
    )


# -- members that come and go between looks

C = "billing-0000000c-1111-4222-8333-444444444444"
D = "billing-0000000d-1111-4222-8333-444444444444"


def look(owner: str, *, client: str = "billing") -> str:
    return f"""
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID                                  HOST            CLIENT-ID
orders          orders          0          120             150             30              {A} /10.0.0.1       rdkafka
orders          orders          1          100             900             800             {owner} /10.0.0.2       {client}
"""


WITHOUT_C = look(A, client="rdkafka")


def causes(text: str) -> list[tuple[Cause, tuple[str, ...]]]:
    (history,) = histories_of(evidence_of(text)).values()
    return [(each.cause, each.members) for each in rebalances(history)]


def evidence_of(text: str) -> Evidence:
    found = Evidence(files=[ReadFile(name="described.txt")])
    read_file(found, 0, [text.encode()])
    return found


def test_member_that_is_missing_in_the_next_look_is_gone_for_a_reason_that_tables_do_not_have(tmp_path: Path) -> None:
    assert causes(look(C) + WITHOUT_C + look(D)) == [(Cause.GONE, ("billing",)), (Cause.BACK, ("billing",))]
    text = shown(tmp_path, look(C) + WITHOUT_C)
    assert "tables cannot tell whether a member left, was not heard of for its session timeout, or did not poll" in text
    assert "server.log of the coordinating broker can" in text


def test_member_that_is_new_in_the_next_look_joined() -> None:
    assert causes(WITHOUT_C + look(C)) == [(Cause.JOINED, ("billing",))]


def test_looks_at_other_partitions_or_during_a_rebalance_say_nothing_of_members() -> None:
    one = "\n".join(look(C).splitlines()[:3]) + "\n"
    assert causes(look(C) + one) == []
    assert causes(look(C) + "\nWarning: Consumer group 'orders' is rebalancing.\n" + WITHOUT_C) == []


@pytest.mark.parametrize("date", [
    "Sat Nov 28 21:16:07 UTC 2026", "Sat 28 Nov 2026 09:16:07 PM UTC", "2026-11-28T21:16:07Z", "2026-11-28 21:16:07", "Sat, 28 Nov 2026 21:16:07 +0000",
    "Nov 28 21:16:07 2026",
])  # fmt: skip # a table: one row a line
def test_line_that_is_a_time_is_when_the_table_below_was_printed(date: str) -> None:
    looks = evidence_of(f"{date}\n{look(C).rstrip()}\n{date.replace(':16:', ':17:')}\n{WITHOUT_C}").looks
    assert [(each.group, each.at_ms, len(each.partitions)) for each in looks] == [("orders", 1_795_900_567_000, 2), ("orders", 1_795_900_627_000, 2)]


def test_documents_of_connect_and_burrow(tmp_path: Path) -> None:
    sink = {"name": "sink", "connector": {"state": "RUNNING", "worker_id": "w1:8083"}, "type": "sink", "tasks": [
        {"id": 0, "state": "RUNNING", "worker_id": "w1:8083"}, {"id": 1, "state": "FAILED", "worker_id": "w2:8083", "trace": "org.x.Error: no\n\tat y"},
        {"id": 2, "state": "UNASSIGNED", "worker_id": "w3:8083"},
    ]}  # fmt: skip # a table: one row a line
    text = shown(tmp_path, json.dumps(sink, indent=2))
    assert "1 task FAILED: sink-1 at w2:8083: org.x.Error: no" in text
    assert "1 task UNASSIGNED: sink-2 at w3:8083; it waits for a rebalance" in text
    assert "sink-1 at w2:8083" in shown(tmp_path, json.dumps({"sink": {"status": sink}}))
    burrow = {"error": False, "status": {"cluster": "c", "group": "orders", "status": "ERR", "totallag": 900, "partitions": [
        {"topic": "orders", "partition": 1, "status": "STALL", "owner": "/10.0.0.1", "client_id": "a", "current_lag": 900,
         "start": {"offset": 5, "timestamp": 1772359200000, "lag": 1}, "end": {"offset": 5, "timestamp": 1772359260000, "lag": 900}},
    ]}}  # fmt: skip # a table: one row a line
    text = shown(tmp_path, json.dumps(burrow))
    assert "STALL at orders-1: commits come, and always the same offset for 1 min 00 s; 900 behind at most; of a (described.txt)" in text


ASSIGNED = {"a": "AAEAAAABAAZvcmRlcnMAAAACAAAAAAAAAAH/////", "b": "AAEAAAABAAZvcmRlcnMAAAABAAAAAf////8="}
SUBSCRIBED = "AAEAAAABAAZvcmRlcnP/////AAAAAA=="


def dumped(offset: int, at_ms: int, kind: str, key: dict, value: dict) -> str:
    return (
        f"| offset: {offset} CreateTime: {at_ms} keySize: 20 valueSize: 90 sequence: -1 headerKeys: []"
        f" key: {json.dumps({'type': kind, 'data': key}, separators=(',', ':'))} payload: {json.dumps({'version': '3', 'data': value}, separators=(',', ':'))}\n"
    )


def generation(offset: int, at_ms: int, number: int, *members: str) -> str:
    written = [
        {"memberId": f"{name}-1", "groupInstanceId": None, "clientId": name, "clientHost": "/10.0.0.1", "rebalanceTimeout": 300_000, "sessionTimeout": 45_000,
         "subscription": SUBSCRIBED, "assignment": ASSIGNED[name]}
        for name in members
    ]  # fmt: skip # a table: one row a line
    value = {
        "protocolType": "consumer",
        "generation": number,
        "protocol": "range",
        "leader": "a-1",
        "currentStateTimestamp": at_ms,
        "members": written,
    }
    return dumped(offset, at_ms, "2", {"group": "g"}, value)


def test_dump_of_the_offsets_topic_is_a_history(tmp_path: Path) -> None:
    commit = dumped(2, 1_772_359_210_000, "1", {"group": "g", "topic": "orders", "partition": 0}, {"offset": 5, "metadata": ""})
    text = "Dumping __consumer_offsets-7/00000000000000000000.log\n" + generation(1, 1_772_359_200_000, 3, "a") + commit
    text += generation(3, 1_772_359_300_000, 4, "a", "b") + dumped(4, 1_772_359_301_000, "2", {"group": 1}, {})
    answer = json.loads(shown(tmp_path, text, "--json"))
    (group,) = answer["groups"]
    assert [(each["cause"], each["members"], each["rebalances"][0]["number"]) for each in group["incidents"]] == [
        ("first", ["a"], 3),
        ("joined", ["b"], 4),
    ]
    assert answer["files"][0]["kind"] == "what kafka-dump-log printed"
