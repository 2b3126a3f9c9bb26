"""The functions of `equipoise.replay.spark`: the answers for many groups as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.replay.spark.result_tables import SparkTables
from equipoise.replay.whatif.evaluate import Configuration


def spark_verify(*archives: str, spark: Any = None) -> Any:
    """`verify` for every group of some archives, on Spark: a DataFrame with one row for each group.
    It is computed once, when it is first read, and kept on Spark's disks until its `unpersist`.

    `spark`: a session; None: the active one, else one on this machine.
    """
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.results import kept
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.verify import spark_verify

    return kept(spark_verify(spark or session()[0], units_of(archives)))


def spark_timeline(*archives: str, spark: Any = None) -> SparkTables:
    """`timeline` for every group of some archives, on Spark: a DataFrame for each table. Close it,
    or use it in a `with` block.

    The tables are those of `equipoise.replay.spark.timeline.TABLES`, and ``groups``. `spark`: see
    `spark_verify`.
    """
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.timeline import spark_timeline

    return spark_timeline(spark or session()[0], units_of(archives))


def spark_what_if(*archives: str, configurations: Sequence[Configuration], seeds: Sequence[int] = (0,), spark: Any = None) -> Any:
    """`what_if` for every group of some archives, on Spark: a DataFrame with one row for each group
    and configuration, the group's own included.

    `spark`: see `spark_verify`.
    """
    from equipoise.replay.spark.groups import units_of
    from equipoise.replay.spark.session import session
    from equipoise.replay.spark.what_if import spark_what_if

    return spark_what_if(spark or session()[0], units_of(archives), configurations, seeds=seeds)


def spark_incident(*recordings: str, spark: Any = None) -> SparkTables:
    """The incidents of every group of some recordings (`equipoise record`), on Spark: a DataFrame
    for each table. Close it, or use it in a `with` block.

    `recordings`: files, or folders of them. The tables are those of
    `equipoise.replay.spark.incident.TABLES`, and ``groups``. `spark`: see `spark_verify`.
    """
    from equipoise.replay.spark.incident import spark_incident
    from equipoise.replay.spark.recordings import recordings_in
    from equipoise.replay.spark.session import session

    return spark_incident(spark or session()[0], recordings_in(recordings))
