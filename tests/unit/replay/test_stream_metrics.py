"""The metric of what the verification on Spark has found lasts as long as the rows of its folder."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pyarrow as pa

from equipoise.cli.spark.stream import _metrics
from equipoise.replay.spark.stream import write_alerts
from tools.brokers import free_ports


def served(totals: dict[str, int], alerts: Path | None) -> list[str]:
    (port,) = free_ports(1)
    with _metrics(port, totals, alerts), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith("equipoise_stream_")]


def test_findings_of_a_process_before_are_shown_until_they_are_moved_away(tmp_path: Path) -> None:
    rows = pa.table({"partition": [0, 1], "group": ["a", "b"], "offset": [5, 7]})
    write_alerts(rows, tmp_path, "query", 3)
    assert served({"facts": 9, "alerts": 0}, tmp_path) == ["equipoise_stream_alerts 2.0", "equipoise_stream_facts 9.0"]
    for each in tmp_path.iterdir():
        each.unlink()
    assert served({"facts": 9, "alerts": 0}, tmp_path)[0] == "equipoise_stream_alerts 0.0"
    assert served({"facts": 9, "alerts": 0}, None)[0] == "equipoise_stream_alerts 0.0", "an archive finds nothing"
