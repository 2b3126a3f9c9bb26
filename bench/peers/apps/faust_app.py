"""The application on Faust as it comes, with a table in RocksDB (rocksdict). SIGTERM: its worker
stops in order.
"""

from __future__ import annotations

from typing import Any

import faust

from bench.peers.apps.given import Given, answer_to, counted, given

TABLE = "counts"


def app_of(given: Given, **settings: Any) -> Any:
    """The table holds raw keys and values: a codec would cost Faust time that the others do not
    spend.
    """
    app = faust.App(
        given.name,
        broker=f"kafka://{given.bootstrap}",
        store="rocksdb://",
        datadir=str(given.state),
        topic_partitions=given.tasks,
        table_standby_replicas=given.standbys,
        broker_session_timeout=given.session_timeout_ms / 1_000,
        broker_heartbeat_interval=given.heartbeat_interval_ms / 1_000,
        broker_commit_interval=1.0,
        web_enabled=False,
        topic_disable_leader=True,
        **settings,
    )
    output = app.topic(given.output, value_type=bytes, value_serializer="raw")
    table = app.Table(TABLE, key_type=bytes, value_type=bytes, partitions=given.tasks, options={"driver": "rocksdict"})

    @app.agent(app.topic(given.input, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"))  # type: ignore[untyped-decorator]  # Faust has no types
    async def count(stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            value, number = counted(table.get(message.key))
            table[message.key] = value
            await output.send(value=answer_to(message.partition, message.offset, given.instance, number), partition=message.partition)

    return app


if __name__ == "__main__":
    parameters = given()
    parameters.state.mkdir(parents=True, exist_ok=True)
    app_of(parameters).main()
