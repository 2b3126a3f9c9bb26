"""The offline commands over many groups on Spark. Each job is a plain function of one group, run
for all of them.

Nothing here decides anything: a task is handed the names of groups, opens the archive itself
(`equipoise.events.log.parquet`) and calls what the command line calls. Handing the files to the
tasks, instead of their records, is how Spark is fastest here: a record that goes through Spark is
moved from the JVM to Python in columns, sorted once more, and then read as the archive's own reader
would have read it (docs/spark.md, "Why it is built so").
"""
