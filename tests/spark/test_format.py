"""The format `equipoise`: an archive as a DataFrame, asked in SQL and followed by a stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise.events.facts import LagReported, ProbingTick
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import all_parts
from equipoise.replay.spark.source import register

pytestmark = pytest.mark.xdist_group("spark")


def test_sql_asks_an_archive(spark: Any, fleet: Path) -> None:
    register(spark)
    spark.read.format("equipoise").load(str(fleet)).createOrReplaceTempView("facts")
    spark.read.format("equipoise").option("view", "decisions").load(str(fleet)).createOrReplaceTempView("decisions")
    with open_log(fleet) as log:
        facts = [each for each in log.read(group="g001") if isinstance(each, FactRecord) and each.group]
    reports = spark.sql("select offset, member_id from facts where `group` = 'g001' and kind = 'LagReported' order by offset").collect()
    assert [(row.offset, row.member_id) for row in reports] == [
        (each.offset, each.event.member_id) for each in facts if isinstance(each.event, LagReported)
    ]
    late = spark.sql("select count(*) n from facts where `group` = 'g001' and variant_get(parse_json(event), '$.number', 'int') > 1").first().n
    assert 0 < late < len(facts)
    joined = spark.sql("select count(*) n from decisions d join facts f on d.partition = f.partition and d.caused_by = f.offset").first().n
    assert joined == spark.sql("select count(*) n from decisions").first().n > 0
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("equipoise").option("pushdown", "true").load(str(fleet))
        assert pushed.where("`group` = 'g001' and offset >= 10 and kind <> 'Nothing'").count() == sum(each.offset >= 10 for each in facts)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    narrow = spark.read.format("equipoise").schema("`group` string, append_ms bigint").load(str(fleet))
    assert narrow.where("`group` = 'g001'").agg({"append_ms": "max"}).first()[0] == max(each.append_ms for each in facts)


def test_stream_takes_what_came_since(spark: Any, fleet: Path, tmp_path: Path) -> None:
    register(spark)
    archive, rows = tmp_path / "archive", tmp_path / "rows"
    shutil.copytree(fleet, archive)

    def run() -> int:
        records = spark.readStream.format("equipoise").option("view", "records").load(str(archive))
        writer = records.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start(str(rows)).awaitTermination(120)
        found = spark.read.parquet(str(rows))
        assert found.count() == found.select("partition", "row").distinct().count()
        return int(found.count())

    with open_log(archive) as log:
        assert run() == log.count()
    with open_log(f"{archive}/?partition=0", "a") as log:
        log.append_fact("g000", 2**41, ProbingTick())
    with open_log(archive) as log:
        assert run() == log.count()


def test_damaged_archive_is_no_shorter_answer(spark: Any, fleet: Path, tmp_path: Path) -> None:
    register(spark)
    archive = tmp_path / "archive"
    shutil.copytree(fleet, archive)
    (archive / all_parts(store_at(archive))[-1].name).unlink()
    with pytest.raises(Exception, match="which manifest 1 names, is not there"):
        spark.read.format("equipoise").load(str(archive)).count()


def test_blocks_of_the_page_run(spark: Any, fleet: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    code = page[page.index("```python\nfrom equipoise.replay.spark.source") :].split("```")[1].removeprefix("python\n")
    exec(compile(code.replace("archive/", str(fleet)), "page", "exec"), {"spark": spark})  # noqa: S102 - a block of our own page
    queries = page[page.index("```sql\n-- which") :].split("```")[1].removeprefix("sql\n")
    for query in queries.split(";")[:2]:
        spark.sql(query).collect()
