"""The application on Faust for `bench.faust`: with the stock assignor or with equipoise's, and with
a count of what it restores. The first argument: ``stock`` or ``led``.

``restored.txt`` in the folder of its state gets a line each COUNT_S: time in ms, and records that
were restored since the last line, for tasks that stand still meanwhile and for standbys. A record
younger than YOUNG_S is none of them: standbys read along as long as they live.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.peers.apps.faust_app import TABLE, app_of
from bench.peers.apps.given import given

COUNT_S = 0.25
YOUNG_S = 5.0
FILE = "restored.txt"


def count_into(file: Path, app: Any) -> None:
    """Counts in the thread that restores, and writes in another one."""
    table, counted = app.tables[TABLE], [0, 0]
    stock = table.on_changelog_event

    async def on_changelog_event(event: Any) -> None:
        if time.time() - event.message.timestamp > YOUNG_S:
            counted[event.message.tp not in app.tables.recovery.active_tps] += 1
        await stock(event)

    def write() -> None:
        with file.open("a") as lines:
            before = [0, 0]
            while True:
                time.sleep(COUNT_S)
                now = list(counted)
                if now != before:
                    lines.write(f"{time.time_ns() // 1_000_000} {now[0] - before[0]} {now[1] - before[1]}\n")
                    lines.flush()
                before = now

    table.on_changelog_event = on_changelog_event
    threading.Thread(target=write, daemon=True).start()


if __name__ == "__main__":
    led = sys.argv.pop(1) == "led"
    parameters = given()
    parameters.state.mkdir(parents=True, exist_ok=True)
    application = app_of(parameters, **({"PartitionAssignor": "equipoise.faust:FaustAssignor"} if led else {}))
    count_into(parameters.state / FILE, application)
    application.main()
