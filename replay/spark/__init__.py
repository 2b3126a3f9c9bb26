"""The offline commands over many groups on Spark. Each job calls a plain function of one group for
every group.

A job reads each file of an archive once, in columns. Spark's shuffle brings the rows to the tasks
that fold one group after the other (`groups.over_groups`). The driver writes the results: executors
may have other folders.

::

    from equipoise.replay import spark

    spark.spark_verify("archive/").where("verdict <> 'identical'").show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names

if TYPE_CHECKING:
    from equipoise.replay.spark.dataframes import spark_incident as spark_incident
    from equipoise.replay.spark.dataframes import spark_timeline as spark_timeline
    from equipoise.replay.spark.dataframes import spark_verify as spark_verify
    from equipoise.replay.spark.dataframes import spark_what_if as spark_what_if

PUBLIC_NAMES = dict.fromkeys(("spark_incident", "spark_timeline", "spark_verify", "spark_what_if"), "equipoise.replay.spark.dataframes")
"""Public name -> the module that defines it."""

__all__ = list(PUBLIC_NAMES)

__getattr__ = lazy_names(__name__, PUBLIC_NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
