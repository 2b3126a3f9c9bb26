"""Importing real recorded runs: the facts agree with an independent decoder and with the leader's
own log, imports are reproducible, and the machine folds them; damaged copies stop with the offset,
and no dump crashes the import.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest

from equipoise.events.decisions import AssignmentProposed, EventRejected
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import AssignmentObserved, GroupConfigured, LagReported, LogOpened, MemberJoined, TopologyDeclared
from equipoise.events.records import FactRecord
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.log import open_log
from equipoise.replay.importers.kafka_streams import ImportOptions, ImportSummary, StreamsSource, WireError, import_history, options_of
from equipoise.replay.importers.kafka_streams.manifest import MOST_MANIFEST_CHARS
from equipoise.replay.importers.kafka_streams.scan import scan
from equipoise.statemachine.machine import GroupMachine
from tools.decoder_agreement import ReferenceSource
from tools.import_check import MemoryLog, check, main
from tools.thin_recording import thin

SHIPPED = Path(__file__).parents[3] / "replay" / "data"
DATA = Path(__file__).parents[2] / "data" / "kafka_streams"
RUNS = ("scale-out", "rolling")
PLAIN = ImportOptions(solver="")


def imported(folder: Path, options: ImportOptions | None = None) -> tuple[list[FactRecord], ImportSummary]:
    log = MemoryLog()
    summary = import_history(folder, log, options=options)
    return log.records, summary


@functools.cache
def shipped(run: str) -> tuple[list[FactRecord], ImportSummary]:
    """Read only: every test gets the same import."""
    return imported(SHIPPED / run)


def with_references(run: str, folder: Path) -> Path:
    """Returns the shipped run with the files it is compared with."""
    for path in (*(SHIPPED / run).iterdir(), *(DATA / run).iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


# -- agreement
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "generations"), [("scale-out", 70), ("rolling", 37)])
def test_import_agrees_with_another_decoder_and_the_leader(run: str, generations: int, tmp_path: Path) -> None:
    checked = check(with_references(run, tmp_path))
    assert checked.history.complete, checked.history.first_difference
    assert checked.history.compared == generations + 1  # the first record is an empty group's
    assert (checked.generations, checked.assignments, checked.sums) == (generations, generations, generations), checked.first_difference
    assert checked.verdicts >= 0.99 * len(checked.lag_errors)  # caught up or not as the leader saw it; samples are 2 s apart
    assert checked.agrees


def test_check_difference_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_references("rolling", tmp_path)
    history = list(ReferenceSource(folder).history())
    history[7]["members"][2]["assignment"]["active"].append("0_99")
    (folder / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in history))
    checked = check(folder)
    assert not checked.agrees
    assert checked.history.agreed == checked.history.compared - 1
    assert main([str(folder)]) == 1
    assert "DIFFERS" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize("run", RUNS)
def test_round_causes_equal_those_of_the_coordinators_log(run: str) -> None:
    kinds: dict[str, str] = json.loads((DATA / "round_kinds.json").read_text())[run]
    ours = {"join": "join", "session timeout": "expiry", "leave": "leave", "probing": "probing"}
    causes = {each.event.generation: each.event.cause for each in shipped(run)[0] if isinstance(each.event, AssignmentObserved)}
    different = {
        int(generation): (causes[int(generation)], kind)
        for generation, kind in kinds.items()
        if causes[int(generation)] != ours.get(kind, "follow-up")
    }
    # B2: the process was back while the broker still waited for its dead member ids; both are true.
    assert different == ({} if run == "scale-out" else {7: ("join", "session timeout")})


@pytest.mark.parametrize("run", RUNS)
def test_inferred_ends_are_within_a_second_of_the_actions(run: str) -> None:
    actions = StreamsSource(SHIPPED / run).actions()
    records, _ = shipped(run)
    ended = [each for record in records if isinstance(record.event, AssignmentObserved) for each in record.event.ended]
    done = {"kill": "expired", "close_begin": "expired"}
    assert len(ended) == sum(each.action in done for each in actions)
    for end in ended:
        assert end.inferred
        begun = [each for each in actions if each.instance == end.member_id and each.action in done and each.at_ms <= end.ended_ms + 1_000][-1]
        gone = [each.at_ms for each in actions if each.instance == end.member_id and each.action == "close_end" and each.at_ms >= begun.at_ms]
        assert begun.at_ms - 1_000 <= end.ended_ms <= (gone[0] if begun.action == "close_begin" else begun.at_ms) + 1_000
        if begun.details.get("leave_group"):
            assert end.how == "left"


# -- the log
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", ["group.jsonl", "group.db"])
def test_import_twice_writes_equal_logs(run: str, form: str, tmp_path: Path) -> None:
    contents = []
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        path = tmp_path / place / form
        with open_log(path, "w") as log:
            import_history(SHIPPED / run, log)
        with open_log(path) as log:
            contents.append(list(log.read()))
    assert contents[0] == contents[1]
    assert [each.event for each in contents[0] if isinstance(each, FactRecord)] == [each.event for each in imported(SHIPPED / run)[0]]
    if form == "group.jsonl":
        assert (tmp_path / "first" / form).read_bytes() == (tmp_path / "second" / form).read_bytes()


def test_import_is_same_under_another_hash_seed(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from equipoise.log import open_log\n"
    script += "from equipoise.replay.importers.kafka_streams import import_history\n"
    script += "with open_log(sys.argv[2], 'w') as log: import_history(Path(sys.argv[1]), log)"
    contents = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.jsonl"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SHIPPED.parents[1])}
        subprocess.run([sys.executable, "-c", script, str(SHIPPED / "rolling"), str(path)], env=environment, check=True)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize("run", RUNS)
def test_import_folds_without_rejection_and_proposes_every_generation(run: str) -> None:
    machine = GroupMachine()
    decisions = [each.decision for record in shipped(run)[0] for each in machine.step(record)]
    assert not [each for each in decisions if isinstance(each, EventRejected)]
    observed = [each.event.generation for each in shipped(run)[0] if isinstance(each.event, AssignmentObserved)]
    assert [each.generation for each in decisions if isinstance(each, AssignmentProposed) and each.members] == observed


def test_import_facts_rise_in_time_and_begin_with_configuration_and_topology() -> None:
    records, summary = shipped("scale-out")
    times = [record.append_ms for record in records]
    assert times == sorted(times)
    assert [type(record.event) for record in records[:3]] == [LogOpened, GroupConfigured, TopologyDeclared]
    assert [record.group for record in records[:2]] == ["", "orders"]
    assert summary.facts["AssignmentObserved"] == summary.generations == 70
    assert (summary.members, summary.processes) == (5, 6)


def test_import_finds_topology() -> None:
    topology = next(each.event for each in shipped("scale-out")[0] if isinstance(each.event, TopologyDeclared))
    assert [(each.subtopology, each.partitions, each.stateful, each.source_topics, each.changelog_topics) for each in topology.subtopologies] == [
        (0, 12, True, ("orders",), ("orders-orders-store-changelog",)),
        (1, 8, True, ("orders-by-customer-repartition",), ("orders-customer-store-changelog",)),
        (2, 6, False, ("clicks",), ()),
    ]


def test_members_are_processes_with_incarnations() -> None:
    joins = [each.event for each in shipped("rolling")[0] if isinstance(each.event, MemberJoined)]
    assert [(each.member_id, each.incarnation, each.ended_incarnation, bool(each.lags)) for each in joins] == [
        ("i1", 1, None, False),
        ("i2", 1, None, False),
        ("i3", 1, None, False),
        ("i1", 2, 1, True),
        ("i2", 2, 1, True),
        ("i3", 2, None, True),
        ("i2", 3, 2, False),  # its disk was wiped
    ]
    assert {(each.capacity, each.session_timeout_ms, each.lease_margin_ms) for each in joins} == {(2, 10_000, 3_000)}
    assert [each.tags for each in joins[:3]] == [{"zone": "a"}, {"zone": "b"}, {"zone": "c"}]
    nonces = [each.join_nonce for each in joins]
    assert len(set(nonces)) == 7
    assert nonces[0].split("@")[0] == nonces[3].split("@")[0]  # the same state directory
    assert nonces[4].split("@")[0] != nonces[6].split("@")[0]


def test_reports_hold_owned_tasks_and_lags() -> None:
    reports = [each.event for each in shipped("scale-out")[0] if isinstance(each.event, LagReported)]
    i3 = [each for each in reports if each.member_id == "i3"]
    assert [each.number for each in i3] == list(range(1, len(i3) + 1))
    assert i3[0].held == ()
    # generation 5 (the third report): it runs three clicks tasks it took over, and its first
    # warm-up has caught up within 2 records
    assert TaskId(2, 0) in i3[2].held
    assert i3[2].lags == {TaskId(0, 0): 2}
    assert LagSentinel.ACTIVE in {lag for each in i3 for lag in each.lags.values()}


# -- manifest and options
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
def test_import_manifest_has_observed_inferred_supplied(run: str) -> None:
    records, summary = shipped(run)
    opened = records[0].event
    assert isinstance(opened, LogOpened)
    manifest = json.loads(opened.manifest)
    assert manifest == summary.manifest
    assert len(opened.manifest) < MOST_MANIFEST_CHARS
    assert {"observed", "inferred", "supplied", "decoded", "source"} <= set(manifest)
    for section in ("topology", "lags", "ends", "causes"):
        assert manifest["inferred"][section]["how"]
    assert manifest["source"]["files"]["offsets_topic.jsonl.gz"]["bytes"] == (SHIPPED / run / "offsets_topic.jsonl.gz").stat().st_size
    assert len(manifest["source"]["files"]["end_offsets.jsonl.gz"]["sha256"]) == 64
    assert manifest["decoded"]["generations"] == summary.generations + 1
    assert manifest["observed"]["assignments"]["count"] == summary.generations
    assert manifest["supplied"]["settings"]["values"]["acceptable_recovery_lag"] == 1_000
    assert manifest["supplied"]["settings"]["values"]["num_standbys"] == (0 if run == "scale-out" else 1)
    windows = manifest["supplied"]["actions"]["windows"]
    assert [each["label"] for each in windows] == [each["action"] for each in manifest["supplied"]["measured"]["values"]]
    assert [(each["start_ms"], each["end_ms"]) for each in windows] == [
        (each["start_ms"], each["end_ms"]) for each in manifest["supplied"]["measured"]["values"]
    ]
    config = records[1].event
    assert isinstance(config, GroupConfigured)
    assert (config.led_by, config.knobs.acceptable_recovery_lag) == ("external", 1_000)


def test_options_come_from_the_folder_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    for path in (SHIPPED / "rolling").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "settings.json").write_text('{"num_standbys": 3}')
    source = StreamsSource(tmp_path)
    assert options_of(source, {"max_warmups": 5}) == ImportOptions(num_standbys=3, max_warmups=5)
    assert options_of(source, {"num_standbys": 2}).num_standbys == 2
    refused: list[tuple[dict[str, Any], str]] = [
        ({"standbys": 1}, "unknown setting 'standbys'"),
        ({"max_warmups": "2"}, "'max_warmups' is '2'"),
        ({"group": 5}, "'group' is 5"),
    ]
    for wrong, problem in refused:
        with pytest.raises(InputError, match=problem):
            options_of(source, wrong)
    with pytest.raises(InputError, match="num_standbys"):
        imported(tmp_path, attrs.evolve(PLAIN, num_standbys=-1))
    with pytest.raises(InputError, match="no generation of group 'payments' in the dump"):
        imported(tmp_path, attrs.evolve(PLAIN, group="payments"))


def test_import_group_of_newer_protocol_error_names_it(tmp_path: Path) -> None:
    key = (3).to_bytes(2, "big") + len("payments").to_bytes(2, "big") + b"payments"
    row = {"partition": 0, "offset": 0, "timestamp": 1, "key": base64.b64encode(key).decode(), "value": base64.b64encode(b"x").decode()}
    (tmp_path / "offsets_topic.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "end_offsets.jsonl").write_text("")
    with pytest.raises(InputError, match=r"group 'payments' is a consumer group of the protocol KIP-848 .*; equipoise reads groups of Kafka Streams"):
        import_history(StreamsSource(tmp_path), MemoryLog(), options=attrs.evolve(PLAIN, group="payments"))


def test_import_reports_progress() -> None:
    told: list[tuple[int, int | None]] = []
    summary = import_history(SHIPPED / "rolling", MemoryLog(), lambda done, total: told.append((done, total)), options=PLAIN)
    records = summary.manifest["decoded"]["records"]
    assert told[0] == (1_000, None)
    assert told[-1] == (records, records)


def test_thin_of_thinned_run_is_equal(tmp_path: Path) -> None:
    thin(StreamsSource(SHIPPED / "rolling"), tmp_path / "out", {})
    for path in (SHIPPED / "rolling").iterdir():
        made, shipped = ((folder / path.name).read_bytes() for folder in (tmp_path / "out", path.parent))
        if path.suffix == ".gz":  # its tenth byte, which names the operating system, depends on Python's version
            made, shipped = gzip.decompress(made), gzip.decompress(shipped)
        assert made == shipped, path.name


# -- damage
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "position", "problem"),
    [
        ("truncated", 2_120, "assignment needs 282 bytes, 208 are left"),
        ("flipped", 278, "SubscriptionInfo of Kafka Streams protocol version 4194315 is not known here"),
    ],
)
def test_damaged_copies_stop_with_the_offset_and_the_byte(copy: str, position: int, problem: str) -> None:
    log = MemoryLog()
    with pytest.raises(WireError, match=problem) as caught:
        import_history(DATA / "damaged" / copy, log, options=PLAIN)
    assert (caught.value.offset, caught.value.position) == (1_403, position)
    assert not log.records  # a history that cannot be imported to its end appends nothing


Mutation = Callable[[dict[str, Any]], None]


def rewritten(folder: Path, change: Callable[[int, dict[str, Any]], dict[str, Any] | None], most_groups: int = 6) -> Path:
    """Returns the first generations of `rolling`, each record changed by `change(index, record)`
    (None: left out).
    """
    kept: list[dict[str, Any]] = []
    groups = 0
    for raw in StreamsSource(SHIPPED / "rolling").records():
        groups += raw.key[1] == 2
        if groups > most_groups:
            break
        record = {
            "partition": raw.partition,
            "offset": raw.offset,
            "timestamp": raw.timestamp_ms,
            "key": base64.b64encode(raw.key).decode(),
            "value": None if raw.value is None else base64.b64encode(raw.value).decode(),
        }
        changed = change(len(kept), record)
        if changed is not None:
            kept.append(changed)
    folder.mkdir(exist_ok=True)
    (folder / "offsets_topic.jsonl").write_text("".join(json.dumps(each) + "\n" for each in kept))
    (folder / "end_offsets.jsonl").write_text(
        "".join(json.dumps({"ms": each.ms, "end": each.end}) + "\n" for each in StreamsSource(SHIPPED / "rolling").end_offsets())
    )
    return folder


def is_group(record: dict[str, Any]) -> bool:
    return base64.b64decode(record["key"])[1] == 2


@pytest.mark.slow
@hypothesis.given(
    where=st.integers(0, 5),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
    later_ms=st.integers(-100_000, 100_000),
)
@hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow])
def test_mutated_histories_import_or_say_why(tmp_path: Path, where: int, changes: list[tuple[int, int]], later_ms: int) -> None:
    groups = 0

    def change(_: int, record: dict[str, Any]) -> dict[str, Any]:
        nonlocal groups
        if is_group(record):
            if groups == where:
                value = bytearray(base64.b64decode(record["value"]))
                for place, byte in changes:
                    value[place % len(value)] = byte
                record["value"] = base64.b64encode(value).decode()
                record["timestamp"] += later_ms
            groups += 1
        return record

    folder = rewritten(tmp_path / "mutated", change)
    records: list[FactRecord] = []
    problem = ""
    try:
        records, _ = imported(folder, PLAIN)
    except EquipoiseError as error:
        problem = str(error)
    assert bool(records) != bool(problem)
    assert "\n" not in problem
    machine = GroupMachine(any_solver=True)
    for record in records:
        machine.step(record)


def test_import_clock_gone_back_keeps_times_rising(tmp_path: Path) -> None:
    folder = rewritten(tmp_path / "back", lambda index, record: {**record, "timestamp": record["timestamp"] - (40_000 if index % 7 == 3 else 0)})
    records, summary = imported(folder, PLAIN)
    times = [record.append_ms for record in records]
    assert times == sorted(times)
    assert summary.manifest["decoded"]["timestamps_that_went_back"] > 0


# -- lives
# --------------------------------------------------------------------------------------------------


def swapped(record: dict[str, Any], *pairs: tuple[bytes, bytes]) -> dict[str, Any]:
    value = base64.b64decode(record["value"] or "")
    for old, new in pairs:
        assert len(old) == len(new)
        value = value.replace(old, new)
    return {**record, "value": base64.b64encode(value).decode()}


def test_import_processes_of_one_name_get_process_ids(tmp_path: Path) -> None:
    folder = rewritten(tmp_path / "shared", lambda _, record: swapped(record, (b"i2-StreamThread", b"i1-StreamThread")))
    records, summary = imported(folder, PLAIN)
    joined = {record.event.member_id for record in records if isinstance(record.event, MemberJoined)}
    assert "i3" in joined
    assert "i1" not in joined
    assert len([uuid.UUID(each) for each in joined if each != "i3"]) == 2
    assert summary.manifest["inferred"]["names"]["shared_by_several_processes"] == ["i1"]


def test_import_unknown_client_ids_get_process_ids(tmp_path: Path) -> None:
    folder = rewritten(tmp_path / "other", lambda _, record: swapped(record, (b"StreamThread", b"streamthread")))
    joined = [record.event.member_id for record in imported(folder, PLAIN)[0] if isinstance(record.event, MemberJoined)]
    assert len([uuid.UUID(each) for each in joined]) == len(joined) >= 3


def test_import_end_without_commits_is_session_before_removal(tmp_path: Path) -> None:
    folder = rewritten(tmp_path / "mute", lambda _, record: record if is_group(record) else None, most_groups=9)
    ends = [(step.at_ms, end) for step in scan(StreamsSource(folder)).rounds for end in step.ends]
    assert ends
    assert all(end.ended_ms == at_ms - 10_000 and end.how in ("expired", "replaced") for at_ms, end in ends)


def test_import_deleted_group_may_begin_again(tmp_path: Path) -> None:
    """After the group's tombstone later generations count from 1 again and are imported with rising
    numbers.
    """
    groups = 0

    def change(_: int, record: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal groups
        if not is_group(record):
            return None
        groups += 1
        if groups == 4:
            return {**record, "value": None}
        if groups > 4:
            value = base64.b64decode(record["value"])
            return {**record, "value": base64.b64encode(value[:12] + struct.pack(">i", groups - 4) + value[16:]).decode()}
        return record

    records, summary = imported(rewritten(tmp_path / "deleted", change), PLAIN)
    observed = [record.event for record in records if isinstance(record.event, AssignmentObserved)]
    assert [each.generation for each in observed] == [1, 2, 3, 4, 5]
    assert not observed[2].members
    assert sorted(each.member_id for each in observed[2].ended) == ["i1", "i2", "i3"]
    assert [each.incarnation for each in observed[3].members] == [2, 2, 2]
    assert summary.manifest["inferred"]["generations_renumbered_by"] == 3


def test_several_groups_in_one_dump_need_a_name(tmp_path: Path) -> None:
    shift = 10**9

    def both(folder: Path) -> Path:
        rewritten(folder, lambda _, record: record)
        lines = (folder / "offsets_topic.jsonl").read_text().splitlines()
        others = []
        for line in lines:
            record = json.loads(line)
            key = base64.b64decode(record["key"]).replace(b"\0\6orders", b"\0\6others", 1)
            others.append(json.dumps({**record, "offset": record["offset"] + shift, "key": base64.b64encode(key).decode()}))
        (folder / "offsets_topic.jsonl").write_text("\n".join(lines + others) + "\n")
        return folder

    folder = both(tmp_path / "both")
    with pytest.raises(InputError, match="the dump holds groups 'orders' and 'others'; name the one to import"):
        imported(folder, PLAIN)
    _, summary = imported(folder, attrs.evolve(PLAIN, group="orders"))
    assert summary.group == "orders"
    assert summary.manifest["decoded"]["of_other_groups_or_kinds"] > 0

    # The other one's changelogs would be named others-...: nothing fits, so its lags are not known,
    # and the manifest says so.
    records, other = imported(folder, attrs.evolve(PLAIN, group="others"))
    assert other.facts["AssignmentObserved"] == summary.facts["AssignmentObserved"]
    lags = {lag for record in records if isinstance(record.event, LagReported) for lag in record.event.lags.values()}
    assert lags == {LagSentinel.ACTIVE, LagSentinel.UNKNOWN}
    assert [each["changelogs_how"] for each in other.manifest["inferred"]["topology"]["subtopologies"]] == [
        "ambiguous: lags are told as unknown",
        "ambiguous: lags are told as unknown",
        "no state",
    ]


@pytest.mark.parametrize(("run", "standbys"), [("scale-out", 0), ("rolling", 1)])
def test_settings_that_the_history_shows_need_not_be_supplied(run: str, standbys: int, tmp_path: Path) -> None:
    folder = tmp_path / run
    shutil.copytree(SHIPPED / run, folder)
    (folder / "settings.json").unlink()
    records, summary = imported(folder)
    configured = next(record.event for record in records if isinstance(record.event, GroupConfigured))
    assert (configured.knobs.num_standbys, configured.knobs.probing_interval_ms) == (standbys, 60_000)
    assert summary.manifest["inferred"]["settings"]["count"] == 2
    assert "num_standbys" not in summary.manifest["supplied"]["settings"]["values"]
