"""Jobs over many groups on a real Spark: their answers equal those of one group at a time without
Spark, to the byte, also when some groups are damaged.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events import codec
from equipoise.events.decisions import MemberAssigned
from equipoise.events.errors import InputError
from equipoise.events.facts import ProbingTick
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.archive_writing import Writer
from equipoise.log.parquet.files import all_parts
from equipoise.log.parquet.store import ArchivePartition, clear
from equipoise.log.rows import DecisionRow, FactRow, Row
from equipoise.replay import spark as spark_functions
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.incident import history_of, incidents
from equipoise.replay.spans import ALWAYS, Span
from equipoise.replay.spark.groups import Unit, Work, dealt, over_groups, units_of
from equipoise.replay.spark.result_tables import write_tables
from equipoise.replay.spark.timeline import GROUPS, TABLES, plain_tables, spark_timeline, timeline_group
from equipoise.replay.spark.timeline import schema as timeline_schema
from equipoise.replay.spark.verify import row_of, spark_verify, verify_group
from equipoise.replay.spark.verify import schema as verify_schema
from equipoise.replay.spark.what_if import plain_rows, spark_what_if
from equipoise.replay.timelines import build_timeline, timeline_document
from equipoise.replay.timelines.history_costs import by_cause, by_group
from equipoise.replay.verification import verify
from equipoise.replay.whatif.configuration_ranking import Ranking
from equipoise.replay.whatif.evaluate import Configuration, what_if
from tests.json_schemas import check
from tests.recorded_groups import record_runs
from tests.spark.executors import Mortal
from tests.unit.replay.lived import lived, write

pytestmark = pytest.mark.xdist_group("spark")


def rows_of(archive: Path, partition: int) -> list[Row]:
    with ArchivePartition(store_at(archive), partition, "r", str(archive)) as log:
        return list(log._rows(0))


def put_rows(archive: Path, partition: int, rows: Sequence[Row]) -> None:
    """Replaces the partition's rows, valid or not, in a well-formed file."""
    clear(store_at(archive), partition)
    writer = Writer(store_at(archive), partition, 0, 0, 0)
    for row in rows:
        writer.add(row)
    writer.publish()


def collected(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: (row["group"], row["location"]))


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["group"], row["location"]))


@contextlib.contextmanager
def tasks_of_first_stage(spark: Any) -> Iterator[list[int]]:
    """Collects the number of tasks of the first stage that runs within the block: the folding of
    the groups.
    """
    group = uuid.uuid4().hex
    found: list[int] = []
    spark.sparkContext.setJobGroup(group, group)
    try:
        yield found
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
    found.append(min(stages, key=lambda stage: stage.stageId).numTasks)


@pytest.fixture
def damaged(fleet: Path, tmp_path: Path) -> Path:
    """The fleet with one changed record, one wrong decision, and one file without its end, each in
    another group.
    """
    archive = tmp_path / "damaged"
    shutil.copytree(fleet, archive)
    rows = rows_of(archive, 0)
    assert isinstance(rows[100], FactRow)
    put_rows(archive, 0, [*rows[:100], attrs.evolve(rows[100], append_ms=1), *rows[101:]])
    put_rows(archive, 1, with_another_decision(rows_of(archive, 1)))
    file = file_of(archive, 2)
    file.write_bytes(file.read_bytes()[:-30])
    return archive


def file_of(archive: Path, partition: int) -> Path:
    """The only file of a partition."""
    (part,) = (part for part in all_parts(store_at(archive)) if part.partition == partition)
    return archive / part.name


def with_another_decision(rows: list[Row]) -> list[Row]:
    """Changes the token of the first MemberAssigned, with a valid checksum."""
    at = next(at for at, row in enumerate(rows) if isinstance(row, DecisionRow) and row.kind == codec.kind_of(MemberAssigned))
    row = rows[at]
    assert isinstance(row, DecisionRow)
    fact = next(each for each in reversed(rows[:at]) if isinstance(each, FactRow))
    decision = codec.decode(row.kind, row.version, row.payload)
    assert isinstance(decision, MemberAssigned)
    kind, version, payload = codec.encode(attrs.evolve(decision, tokens=tuple(token + 1 for token in decision.tokens)))
    assert isinstance(rows[0], FactRow)
    opened = codec.decode(rows[0].kind, rows[0].version, rows[0].payload)
    place = (opened.log_id, row.group, row.number, row.caused_by, row.index, fact.checksum)  # type: ignore[union-attr] # LogOpened
    checksum = codec.decision_checksum(*place, kind, version, payload)
    return [*rows[:at], attrs.evolve(row, payload=payload, checksum=checksum), *rows[at + 1 :]]


# ------------------------------------------------------------------------------------------- verify


@pytest.mark.smoke
def test_spark_verdicts_equal_those_of_the_plain_function(spark: Any, fleet: Path) -> None:
    units = units_of([str(fleet)])
    rows = collected(spark_verify(spark, units))
    assert rows == sorted_rows([verify_group(unit) for unit in units])
    assert [(row["group"], row["verdict"]) for row in rows] == [(f"g{index:03}", "identical") for index in range(4)]
    assert sum(row["records"] for row in rows) == sum(unit.records for unit in units) + len(units)  # each with its partition's opening
    for unit, row in zip(units, rows, strict=True):
        with open_log(f"{fleet}?partition={unit.group[-1]}") as log:
            assert json.loads(row["document"]) == verify(log.read()).document()


def test_spark_damaged_group_is_one_row(spark: Any, damaged: Path) -> None:
    units = units_of([str(damaged)])
    rows = {row["group"]: row for row in collected(spark_verify(spark, units))}
    assert list(rows.values()) == sorted_rows([verify_group(unit) for unit in units])
    assert {group: row["verdict"] for group, row in rows.items()} == {
        "": "cannot verify",
        "g000": "cannot verify",
        "g001": "divergence",
        "g003": "identical",
    }
    assert "differ from the checksum in its name" in rows[""]["problem"]
    changed = next(row.offset for row in rows_of(damaged, 0)[100:] if isinstance(row, FactRow))
    assert rows["g000"]["offset"] == changed
    assert "differ" in rows["g000"]["problem"]
    assert ".tokens" in json.dumps(json.loads(rows["g001"]["document"])["groups"][0]["divergence"]["differences"])
    assert rows["g001"]["problem"]


def test_spark_file_that_says_what_it_holds_and_is_damaged_is_said_of_its_groups(spark: Any, fleet: Path, tmp_path: Path) -> None:
    archive = tmp_path / "flipped"
    shutil.copytree(fleet, archive)
    file = file_of(archive, 1)
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)
    units = units_of([str(archive)])
    rows = collected(spark_verify(spark, units))
    assert rows == sorted_rows([verify_group(unit) for unit in units])
    assert [(row["group"], row["verdict"]) for row in rows if row["verdict"] != "identical"] == [("g001", "cannot verify")]
    assert "differ from the checksum in its name" in next(row["problem"] for row in rows if row["group"] == "g001")


def test_spark_group_in_a_shared_partition_is_read_alone(spark: Any, fleet: Path, tmp_path: Path) -> None:
    """Two groups in one partition, as in Kafka: damage to one does not affect the other."""
    archive = tmp_path / "shared"
    with open_log(f"{archive}/", "w") as log, log.transaction():
        write(log, lived())
        log.append_fact("noise", 5, ProbingTick())
    rows = rows_of(archive, 0)
    last = rows[-1]
    assert isinstance(last, FactRow)
    put_rows(archive, 0, [*rows[:-1], attrs.evolve(last, payload=b"\x91")])
    verdicts = {row["group"]: row["verdict"] for row in collected(spark_verify(spark, units_of([str(archive)])))}
    assert verdicts == {"noise": "cannot verify", "orders": "identical"}


@pytest.mark.slow
def test_spark_verify_has_the_exit_codes_of_verify(spark: Any, fleet: Path, damaged: Path, tmp_path: Path) -> None:
    with tasks_of_first_stage(spark) as tasks:
        good = CliRunner().invoke(main, ["spark", "verify", str(fleet), "--to", str(tmp_path / "rows")])
    assert tasks == [4], "one file, and yet not one task for all groups"
    assert good.exit_code == 0, good.output
    assert good.stdout.startswith("4 groups identical, 0 groups diverging, 0 groups not verified; ")
    assert ds.dataset(tmp_path / "rows").to_table().column("group").to_pylist() == ["g000", "g001", "g002", "g003"]
    bad = CliRunner().invoke(main, ["spark", "verify", str(damaged), "--json"])
    assert bad.exit_code == 1, bad.output
    document = json.loads(bad.stdout)
    assert [row["verdict"] for row in document["groups"]] == ["cannot verify", "cannot verify", "divergence", "identical"]
    check("spark-verify", document)


def test_spark_verify_goes_on_from_the_states_of_the_last_run(spark: Any, fleet: Path, tmp_path: Path) -> None:
    archive, states = tmp_path / "archive", tmp_path / "states"
    rows = {partition: rows_of(fleet, partition) for partition in range(4)}

    def run(*arguments: str) -> dict[str, Any]:
        """What it says of states."""
        done = CliRunner().invoke(main, ["spark", "verify", str(archive), "--states", str(states), "--json", *arguments])
        assert done.exit_code == 0, done.output
        document: dict[str, Any] = json.loads(done.stdout)
        check("spark-verify", document)
        found: dict[str, int] = document["states"]
        return found

    for partition in range(4):
        with open_log(f"{archive}/?partition={partition}", "a") as log, log.transaction():
            for row in rows[partition][: len(rows[partition]) // 2]:
                log.append_row(row)
    assert run() == {"went_on": 0, "began": 4, "unchanged": 0}
    for partition in range(3):
        with open_log(f"{archive}/?partition={partition}", "a") as log, log.transaction():
            for row in rows[partition][len(rows[partition]) // 2 :]:
                log.append_row(row)
    assert run("--to", str(tmp_path / "rows")) == {"went_on": 3, "began": 0, "unchanged": 1}
    units = units_of([str(archive)])
    assert ds.dataset(tmp_path / "rows").to_table().to_pylist() == sorted_rows([verify_group(unit) for unit in units])
    assert run() == {"went_on": 0, "began": 0, "unchanged": 4}
    assert run("--again", "--to", str(tmp_path / "rows")) == {"went_on": 0, "began": 4, "unchanged": 0}
    assert ds.dataset(tmp_path / "rows").to_table().to_pylist() == sorted_rows([verify_group(unit) for unit in units])
    same = CliRunner().invoke(main, ["spark", "verify", str(archive), "--states", str(states), "--to", str(states)])
    assert same.exit_code == 2
    assert f"--states {states}: is the folder of --to; name another one" in same.stderr


def test_spark_bad_location_is_refused_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["spark", "verify", str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "there is no such log" in result.stderr
    with pytest.raises(InputError, match="is a log in Kafka and no archive; copy it into one, as `equipoise archive kafka://"):
        units_of(["kafka://127.0.0.1:9092"])
    with open_log(f"{tmp_path}/empty/", "w"):
        pass
    with pytest.raises(InputError, match="holds no fact of any group"):
        units_of([f"{tmp_path}/empty/"])


# ----------------------------------------------------------------------------------------- timeline


@pytest.mark.slow
def test_spark_tables_equal_those_of_the_plain_function(spark: Any, fleet: Path, tmp_path: Path) -> None:
    units = units_of([str(fleet)])
    plain = plain_tables(units)
    ends = [row["to_ms"] for row in plain["groups"]]
    assert_same_tables(spark, units, ALWAYS, tmp_path / "history")
    assert_same_tables(spark, units, Span(min(ends) - 60_000, max(ends) - 60_000), tmp_path / "span")


def assert_same_tables(spark: Any, units: Sequence[Unit], span: Span, folder: Path) -> None:
    tables = spark_timeline(spark, units, span)
    with tasks_of_first_stage(spark) as tasks:
        write_tables(tables, folder)
    assert tasks == [4]
    tables.close()
    plain = plain_tables(units, span)
    kinds = {"string": pa.string(), "int64": pa.int64()}
    for name in ("groups", *TABLES):
        written = ds.dataset(folder / name).to_table()
        columns = GROUPS if name == "groups" else (*GROUPS[:2], ("seq", "int64"), *TABLES[name])
        expected = pa.Table.from_pylist(plain[name], schema=pa.schema([(column, kinds[kind]) for column, kind in columns]))
        assert written.column_names == expected.column_names
        assert written.to_pylist() == expected.to_pylist(), name
        assert written.num_rows > 0, name


def test_spark_tables_agree_with_the_timeline(fleet: Path) -> None:
    unit = units_of([str(fleet)])[0]
    plain = plain_tables([unit])
    document = timeline_document(build_timeline(unit.entries(), group=unit.group))
    assert [row["member_id"] for row in plain["members"]] == [each["member_id"] for each in document["members"]]
    stopped_ms = sum(row["to_ms"] - row["from_ms"] for row in plain["unavailability"])
    assert stopped_ms == document["totals"]["stopped_ms"] == plain["groups"][0]["stopped_ms"]
    assert len(plain["intervals"]) == len(document["intervals"])


@pytest.mark.slow
def test_spark_group_without_a_history_is_one_row(spark: Any, damaged: Path, tmp_path: Path) -> None:
    wanted = ("spark", "timeline", str(damaged), "--to", str(tmp_path / "history"), "--html", str(tmp_path / "page.html"), "--json")
    result = CliRunner().invoke(main, wanted)
    assert result.exit_code == 2, result.output
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("<table>") == 2
    document = json.loads(result.stdout)
    check("spark-timeline", document)
    assert [(row["group"], row["problem"] is None) for row in document["groups"]] == [("", False), ("g000", False), ("g001", True), ("g003", True)]
    assert {row["group"] for row in ds.dataset(tmp_path / "history" / "intervals").to_table().to_pylist()} == {"g001", "g003"}
    costs = plain_tables(units_of([str(damaged)]))["costs"]
    assert ds.dataset(tmp_path / "history" / "costs").to_table().to_pylist() == costs
    assert document["causes"] == by_cause(costs)
    of_groups = {group: of for (group, _), of in by_group(costs).items()}
    assert {row["group"]: row["causes"] for row in document["groups"]} == {"": {}, "g000": {}, **of_groups}
    assert sum(each["stopped_ms"] for each in document["causes"]) == sum(row["stopped_ms"] or 0 for row in document["groups"]) > 0


def test_what_spark_keeps_has_an_owner_that_lets_it_go(spark: Any, fleet: Path) -> None:
    cached = spark._jsparkSession.sharedState().cacheManager()
    assert cached.isEmpty()
    with spark_functions.spark_timeline(str(fleet), spark=spark) as tables:
        assert tables["groups"].count() == 4
        assert not cached.isEmpty()
    assert cached.isEmpty()
    rows = spark_functions.spark_verify(str(fleet), spark=spark)
    assert not cached.isEmpty(), "each action would verify again"
    rows.unpersist()
    assert cached.isEmpty()


def test_two_archives_with_groups_of_one_name_are_kept_apart(spark: Any, fleet: Path, tmp_path: Path) -> None:
    """An archive of staging, or that of the log before."""
    shutil.copytree(fleet, tmp_path / "staging")
    wanted = ["spark", "timeline", str(fleet), "--group", "g000", "--json", "--to"]
    one = json.loads(CliRunner().invoke(main, [*wanted, str(tmp_path / "one")]).stdout)
    result = CliRunner().invoke(main, ["spark", "timeline", str(tmp_path / "staging"), *wanted[2:], str(tmp_path / "two")])
    assert result.exit_code == 0, result.output
    two = json.loads(result.stdout)
    check("spark-timeline", two)
    assert [row["causes"] for row in two["groups"]] == [one["groups"][0]["causes"]] * 2
    assert [(each["cause"], each["groups"], each["worst_stopped_ms"]) for each in two["causes"]] == [
        (each["cause"], 2, each["worst_stopped_ms"]) for each in one["causes"]
    ]
    for name in TABLES:
        rows = ds.dataset(tmp_path / "two" / name).to_table().to_pylist()
        assert len({(row["group"], row["location"], row["seq"]) for row in rows}) == len(rows) > 0, name


# ------------------------------------------------------------------------------------------ what-if


def test_spark_what_if_costs_equal_those_of_the_plain_function(spark: Any, damaged: Path, tmp_path: Path) -> None:
    asked = [Configuration(name="one slot", settings={"max_warmups": 1}), Configuration(name="learner", assignor="learner")]
    units = units_of([str(damaged)])
    rows = [row.asDict() for row in spark_what_if(spark, units, asked).collect()]
    plain = plain_rows(units, asked)
    assert sorted(rows, key=_place) == sorted(plain, key=_place)
    assert [(row["group"], row["seq"]) for row in sorted(rows, key=_place)] == [
        ("", None),
        ("g000", None),
        *((group, seq) for group in ("g001", "g003") for seq in range(3)),
    ]
    unit = next(unit for unit in units if unit.group == "g003")
    answer = what_if(unit.entries(), asked, group="g003")
    expected = [each.metrics for each in (answer.factual, *answer.outcomes)]
    assert [row["unavailable_task_seconds"] for row in plain[-3:]] == [metrics and metrics.unavailable_task_seconds for metrics in expected]


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["group"], -1 if row["seq"] is None else row["seq"]


def test_spark_what_if_ranks_as_the_plain_function_does(spark: Any, damaged: Path, tmp_path: Path) -> None:
    wanted = ("spark", "what-if", str(damaged), "--sweep", "behaviour_version=1,latest", "--seeds", "1")
    result = CliRunner().invoke(main, [*wanted, "--to", str(tmp_path / "costs"), "--html", str(tmp_path / "costs.html"), "--json"])
    assert result.exit_code == 2, result.output
    page = (tmp_path / "costs.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 3
    assert "<td>behaviour_version=1</td>" in page
    document = json.loads(result.stdout)
    check("spark-what-if", document)
    asked = [Configuration(name=f"behaviour_version={each}", behaviour_version=each) for each in (1, "latest")]
    plain = sorted(plain_rows(units_of([str(damaged)]), asked), key=_place)
    ranking = Ranking()
    ranking.take(plain)
    assert document["configurations"] == [each.as_json() for each in ranking.ranked()]
    assert ds.dataset(tmp_path / "costs" / "ranking").to_table().to_pylist() == document["configurations"]
    assert ds.dataset(tmp_path / "costs" / "costs").to_table().to_pylist() == plain
    latest = next(each for each in document["configurations"] if each["seq"] == 2)
    assert (latest["saved_unavailable_task_seconds"], latest["better"], latest["worse"], latest["groups"]) == (0.0, 0, 0, 2)
    for each in document["configurations"]:
        of = [row for row in plain if row["seq"] == each["seq"]]
        assert each["rebalances"] == sum(row["rebalances"] for row in of)
        assert each["best_in"] == sum(row["front"] for row in of)


def test_spark_what_if_says_what_it_needs(fleet: Path) -> None:
    refused = CliRunner().invoke(main, ["spark", "what-if", str(fleet)])
    assert refused.exit_code == 2
    assert "name what to try" in refused.stderr


# ----------------------------------------------------------------------------------------- recorded


def test_recorded_group_gives_the_same_answers_from_an_archive(spark: Any, tmp_path: Path) -> None:
    """A recorded Kafka Streams group, imported into an archive and verified there, gives the same
    answers as from a file.
    """
    archive, file = f"{tmp_path}/recorded/", tmp_path / "recorded.db"
    for location in (archive, str(file)):
        imported = CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", location])
        assert imported.exit_code == 0, imported.output
    units = units_of([archive])
    (row,) = collected(spark_verify(spark, units))
    with open_log(file) as log:
        assert json.loads(row["document"]) == verify(log.read()).document()
        history = timeline_document(build_timeline(log.read()))
    assert row["verdict"] == "identical"
    tables = spark_timeline(spark, units)
    moves = [each.asDict() for each in tables["moves"].orderBy("seq").collect()]
    assert len(moves) > 10
    assert [{name: each[name] for name, _ in TABLES["moves"]} for each in moves] == [
        {name: each[name] for name, _ in TABLES["moves"]} for each in history["moves"]
    ]
    tables.close()


# ------------------------------------------------------------------------------------------- groups


def test_spark_units_hold_every_group_and_are_even() -> None:
    units = [Unit(location="x", group=f"g{size}", records=size) for size in (100, 7, 30, 29, 31, 9)]
    parts = dealt(units, 3)
    assert sorted(unit.records for part in parts for unit in part) == [7, 9, 29, 30, 31, 100]
    assert [sum(unit.records for unit in part) for part in parts] == [100, 47, 59]
    assert len(dealt(units, 50)) == 6


@pytest.mark.slow
@pytest.mark.parametrize(("work", "schema"), [(verify_group, verify_schema), (timeline_group, timeline_schema)], ids=["verify", "timeline"])
def test_spark_workers_killed_in_a_group_change_no_result(
    spark: Any, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work, schema: Callable[[], Any]
) -> None:
    """Two groups a task: rows of the first group, returned before the task dies in its second, are
    not repeated.
    """
    monkeypatch.setattr("equipoise.replay.spark.groups.TASKS_A_CORE", 1)
    archive = tmp_path / "archive"
    shutil.copytree(fleet, archive)
    units = units_of([str(archive)])
    assert [len(part) for part in dealt(units, 2)] == [2, 2]
    mortal = [Mortal(location=unit.location, group=unit.group, records=unit.records) for unit in units]
    rows = [row.asDict(recursive=True) for row in over_groups(spark, mortal, work, schema()).collect()]
    assert len(list(archive.glob("_died-*"))) == len(units)
    told = {json.dumps(row, sort_keys=True) for row in rows}
    assert (len(rows), told) == (len(units), {json.dumps(work(unit), sort_keys=True) for unit in units})


def test_spark_defect_in_one_group_is_its_row(fleet: Path) -> None:
    unit = attrs.evolve(units_of([str(fleet)])[0], location=None)  # type: ignore[arg-type] # what no archive is
    row = verify_group(unit)
    assert row["verdict"] == "cannot verify"
    assert "a defect of equipoise" in row["problem"]


def test_spark_row_is_made_of_a_verification(fleet: Path) -> None:
    unit = units_of([str(fleet)])[0]
    entries = list(unit.entries())[:50]
    row = row_of(unit, verify(entries))
    assert (row["records"], row["verdict"], row["problem"]) == (50, "identical", None)


# ----------------------------------------------------------------------------------------- incident


@pytest.mark.slow
def test_spark_incidents_equal_those_of_each_recording(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    record_runs(tmp_path / "recordings" / "eu.db", {"orders": "scale-out", "payments": "rolling"}, "eu")
    record_runs(tmp_path / "recordings" / "us.db", {"orders": "rolling"}, "us")
    (tmp_path / "recordings" / "broken.db").write_bytes((tmp_path / "recordings" / "us.db").read_bytes()[:6_000])
    words = ("spark", "incident", str(tmp_path / "recordings"), "--to", str(tmp_path / "told"), "--html", str(tmp_path / "page.html"), "--json")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    document = json.loads(result.stdout)
    check("spark-incident", document)
    heads = {(row["group"], row["cluster"]): row for row in document["groups"]}
    assert sorted(heads, key=str) == [("", None), ("orders", "eu"), ("orders", "us"), ("payments", "eu")]
    assert "broken.db" in heads["", None]["problem"]
    told = ds.dataset(tmp_path / "told" / "incidents").to_table().to_pylist()
    for (group, cluster), head in heads.items():
        if not group:
            continue
        with open_recording(str(tmp_path / "recordings" / f"{cluster}.db")) as recording:
            alone = incidents(history_of(recording, group))
        mine = [row for row in told if (row["group"], row["location"]) == (group, head["location"])]
        assert [(row["begin_ms"], row["cause"], row["unavailable_ms"], row["moves"]) for row in mine] == [
            (each.begin_ms, each.cause.name.lower(), each.unavailable_ms, each.moves) for each in alone
        ]
        assert head["unavailable_ms"] == sum(row["unavailable_ms"] for row in mine) > 0
    assert sum(cause["unavailable_ms"] for cause in document["causes"]) == sum(head["unavailable_ms"] or 0 for head in heads.values())
    refused = CliRunner().invoke(main, ["spark", "incident", str(tmp_path / "recordings" / "eu.db"), "--group", "invoices"])
    assert (refused.exit_code, "fits no group" in refused.output) == (2, True)
    record_runs(tmp_path / "empty.db", {})
    empty = CliRunner().invoke(main, ["spark", "incident", str(tmp_path / "empty.db"), "--to", str(tmp_path / "told")])
    assert (empty.exit_code, "hold no group, and nothing was written" in empty.output) == (2, True)
    assert ds.dataset(tmp_path / "told" / "incidents").to_table().to_pylist() == told, "what was there stays"
