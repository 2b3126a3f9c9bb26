"""A log in Kafka as a streaming DataFrame, through Spark's own connector."""

from __future__ import annotations

from typing import Any

from equipoise.events.errors import InputError
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.bases_topic import BaseStart
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.kafka.log_topics import Topics

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MOST_RECORDS = 200_000
"""Most records of one trigger; without a limit the first trigger would take the whole log."""


def records(spark: Any, connection: Connection, topics: Topics, *, partitions: int, most_records: int = MOST_RECORDS) -> Any:
    """Returns facts and decisions from the first on, as the connector's columns and `is_fact`. They
    are of a session of their own, whose streams keep state in as many parts as the log has
    partitions (`partitions`): the first trigger fixes that for a checkpoint, and Spark's default is
    200. The caller's settings stay. Raises InputError when the connector is missing.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", str(partitions))
    own.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    reader = (
        own.readStream.format("kafka")
        .option("subscribe", f"{topics.facts},{topics.decisions}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most_records)
        .option("failOnDataLoss", "true")
    )
    for name, value in _options(connection).items():
        reader = reader.option(f"kafka.{name}", value)
    try:
        frame = reader.load()
    except PySparkException as error:
        if "kafka" not in str(error).lower():
            raise
        line = f"--packages {CONNECTOR}:{spark.version}"
        raise InputError(f"Spark has no Kafka connector: start it with `spark-submit {line}`, or name its jars with --conf spark.jars=...") from None
    return frame.select(
        "partition", (f.col("topic") == topics.facts).alias("is_fact"), "offset", "key", "value", f.unix_millis("timestamp").alias("append_ms")
    )


def starts(location: str) -> dict[int, BaseStart | None]:
    """Returns where the partitions begin: at a base, where the first records were deleted; None: at
    their first record. Raises DamagedError when there is no base to begin at.
    """
    with KafkaLog(location) as log:
        return {partition: log.base_start(partition) for partition in log.partitions()}


def _options(connection: Connection) -> dict[str, str]:
    """Returns the connection as options of Kafka's Java client."""
    options = {"bootstrap.servers": connection.bootstrap, "security.protocol": connection.security_protocol}
    if connection.security_protocol.startswith("SASL"):
        module = "plain.PlainLoginModule" if connection.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        username, password = (_quoted(str(each)) for each in (connection.sasl_username, connection.sasl_password))
        options["sasl.mechanism"] = connection.sasl_mechanism
        options["sasl.jaas.config"] = f'org.apache.kafka.common.security.{module} required username="{username}" password="{password}";'
    if "SSL" in connection.security_protocol:
        options |= {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
        options |= {} if connection.ssl_ca_file is None else {"ssl.truststore.location": connection.ssl_ca_file}
        options |= {} if connection.ssl_check_hostname else {"ssl.endpoint.identification.algorithm": ""}
    return options


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
