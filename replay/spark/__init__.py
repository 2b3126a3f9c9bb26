"""The offline commands over many groups on Spark. Each job calls a plain function of one group for
every group.

A Spark task receives the names of groups, opens the archive itself (`equipoise.log.parquet`)
and calls what the command line calls. This is faster than passing records through Spark, which
would move each record from the JVM to Python in columns and sort it once more (docs/spark.md, "Why
it is built so").
"""
