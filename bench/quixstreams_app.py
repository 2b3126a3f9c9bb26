"""A member of a consumer group with quixstreams and state, in a store of RocksDB with a changelog:
prints what `tests.live.printing_consumer` prints. Run by an interpreter that has quixstreams.

``python quixstreams_app.py TOPIC NAME=VALUE...``
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from quixstreams import Application, State, message_context


class Printing(Application):  # type: ignore[misc]  # not in the environment that is checked
    """Prints each change of the assignment."""

    def _say(self) -> None:
        partitions = sorted({each.partition for each in self._consumer.assignment() if not each.topic.startswith("changelog__")})
        print("assigned", *partitions, flush=True)

    def _on_assign(self, *arguments: Any) -> None:
        super()._on_assign(*arguments)
        self._say()

    def _on_revoke(self, *arguments: Any) -> None:
        super()._on_revoke(*arguments)
        print("assigned", flush=True)


def count(value: bytes, state: State) -> bytes:
    context = message_context()
    state.set("count", state.get("count", 0) + 1)
    print("read", context.partition, context.offset, flush=True)
    return value


def main(topic: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    application = Printing(
        broker_address=given.pop("bootstrap.servers"),
        consumer_group=given.pop("group.id"),
        auto_offset_reset=given.pop("auto.offset.reset"),
        state_dir=tempfile.mkdtemp(),
        commit_interval=1.0,
        consumer_extra_config=given,
        loglevel="WARNING",
    )
    application.dataframe(application.topic(topic, value_deserializer="bytes")).apply(count, stateful=True)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
