"""The application of `tests/live/test_faust.py`: notes in a table in RocksDB which numbers came
with each key, as bits, so that a repeated record changes nothing and a lost one shows.

The only argument besides Faust's own is JSON. Each assignment is a line on the standard output.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import faust
from faust.assignor.partition_assignor import PartitionAssignor

from equipoise.faust import FaustAssignor
from equipoise.faust.corrections import correct

TABLE = "seen"
PARTITIONS = 6


class Careful(FaustAssignor):
    """Copies must be nearer than by default, because the test has few records."""

    acceptable_lag = 100


class Stock(PartitionAssignor):  # type: ignore[misc]
    """Faust's own. The test is about assignments, and not about records that Faust itself loses."""

    def metadata(self, topics: Any) -> Any:
        correct(self.app, self.app.consumer._thread._ensure_consumer())
        return super().metadata(topics)


def app_of(name: str, bootstrap: str, folder: str, led: bool, standbys: int) -> Any:
    app = faust.App(
        name,
        broker=f"kafka://{bootstrap}",
        store="rocksdb://",
        datadir=folder,
        topic_partitions=PARTITIONS,
        table_standby_replicas=standbys,
        broker_session_timeout=10.0,
        broker_commit_interval=0.5,
        topic_disable_leader=True,
        web_enabled=False,
        PartitionAssignor=f"tests.live.faust_app:{'Careful' if led else 'Stock'}",
    )
    source = app.topic(f"{name}-in", key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", partitions=PARTITIONS)
    table = app.Table(TABLE, key_type=bytes, value_type=bytes, partitions=PARTITIONS)

    @app.agent(source)
    async def note(stream: Any) -> None:
        async for key, number in stream.items():
            table[key] = b"%d" % (int(table.get(key) or 0) | 1 << int(number))

    @app.on_partitions_assigned.connect
    async def assigned(app: Any, assigned: Any, **_: Any) -> None:
        active = sorted(tp.partition for tp in app.assignor.assigned_actives() if tp.topic == f"{name}-in")
        print("assigned", json.dumps({"generation": app.consumer_generation_id, "active": active}), file=sys.__stdout__, flush=True)

    app.on_assigned = assigned  # Faust refers to it weakly
    return app


if __name__ == "__main__":
    app_of(**json.loads(sys.argv.pop(1))).main()
