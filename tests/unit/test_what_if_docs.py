"""docs/what-if.md: its tables and picture equal those of `equipoise what-if`, and its Python runs."""

from __future__ import annotations

import functools
import json
import re
import runpy
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import equipoise
from equipoise import replay
from equipoise.cli import main
from equipoise.replay.importers.kafka_streams import import_history
from equipoise.replay.whatif.evaluate import Deviation, what_if_recorded
from equipoise.replay.whatif.recorded_costs import Recording, read_recording
from equipoise.replay.whatif.sweep import configurations_of
from equipoise.replay.wording import counted
from tests.made import hold
from tests.unit.replay.test_fit import LOGGED
from tests.unit.test_docs import ROOT
from tools.import_check import MemoryLog

PAGE = ROOT / "docs" / "what-if.md"
SEEDS = range(20)
COLUMNS = {
    "rebalances": "rebalances",
    "moves": "moves",
    "unavailable_task_seconds": "task-s unavailable",
    "records_restored": "restored, million",
    "imbalance_task_seconds": "task-s imbalance",
}


@functools.cache
def recording(run: str) -> Recording:
    log = MemoryLog()
    import_history(ROOT / "replay" / "data" / run, log)
    return read_recording(log.records)


def sweep(folder: Path) -> dict[str, Any]:
    """Returns the answer of the page's command."""
    command = re.findall(r"^equipoise what-if .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0]
    recorded = folder / "recorded.db"
    assert CliRunner().invoke(main, ["import", "kafka-streams", "scale-out", "--to", str(recorded)]).exit_code == 0
    words = [{"out/recorded.db": str(recorded)}.get(word, word) for word in command.split()[1:]]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    group: dict[str, Any] = json.loads(result.stdout)["groups"][0]
    return group


def sweep_table(group: dict[str, Any]) -> str:
    lines = ["| | configuration | unavailable | records restored | rebalances | imbalance | moves |", "|---|---|--:|--:|--:|--:|--:|"]
    for each in (group["factual"], *group["outcomes"]):
        metrics = each["metrics"]
        cells = (
            "\\*" if each["name"] in group["front"] else "",
            each["name"],
            f"{metrics['unavailable_task_seconds']:,.1f}",
            f"{metrics['records_restored'] / 1_000_000:.1f} million",
            f"{metrics['rebalances']:.0f}",
            f"{metrics['imbalance_task_seconds']:,.0f}",
            f"{metrics['moves']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"> {group['advice']['line']}"])


def speeds_table() -> str:
    lines = ["| run | seen | records/s a member, fitted | 90 % between |", "|---|---|--:|--:|"]
    for run in ("scale-out", "rolling"):
        fit = recording(run).fit
        ended = sum(each.high is not None for each in fit.observations)
        lines.append(
            f"| {run} | {counted(len(fit.observations) - ended, 'bound')}, {counted(ended, 'interval')} | {fit.records_per_s:,} | "
            f"{fit.low_records_per_s:,} and {fit.high_records_per_s:,} |"
        )
    lines.append(f"| both | eight restores, as their processes logged them | {statistics.median(LOGGED):,.0f} (median) | |")
    return "\n".join(lines)


def fidelity_table() -> str:
    head = ["| run | rate fitted on |", "|---|---|"]
    lines = [head[0] + "".join(f" {name} |" for name in COLUMNS.values()), head[1] + "--:|" * len(COLUMNS)]
    for run, other in (("scale-out", "rolling"), ("rolling", "scale-out")):
        for fitted_on in (run, other):
            speed = recording(fitted_on).fit.records_per_s
            answer = what_if_recorded(recording(run), seeds=SEEDS, restore_records_per_s=speed)
            known = {each.metric: each for each in answer.fidelity}
            cells = [_deviation(known[metric], 1_000_000 if metric == "records_restored" else 1) for metric in COLUMNS]
            lines.append(f"| {run} | {'itself' if fitted_on == run else f'**{fitted_on}**'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _deviation(each: Deviation, scale: int) -> str:
    values = (each.recorded, each.simulated, each.low, each.high)
    recorded, simulated, low, high = (_amount((value or 0.0) / scale) for value in values)
    return f"{recorded} → {simulated} ({each.error:+.0%}; {low} to {high})"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 15 else f"{value:.1f}"


@pytest.mark.docs
def test_what_if_numbers_equal_the_command(tmp_path: Path, rewrite: bool) -> None:
    hold(PAGE, {"sweep": sweep_table(sweep(tmp_path)), "speeds": speeds_table(), "fidelity": fidelity_table()}, rewrite)


def test_what_if_toml_of_the_page_is_valid() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = configurations_of(tomllib.loads(block), "file")
    assert [each.name for each in found] == ["bold", "calm num_standbys=0", "calm num_standbys=1"]
    assert all(each.assignor == "high_availability" and each.announce_closes for each in found)
    assert [each.settings["max_warmups"] for each in found] == [20, 1, 1]


@pytest.mark.docs
def test_what_if_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", str(tmp_path / "group.db")]).exit_code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    runpy.run_path(str(tmp_path / "page.py"))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 7
    assert printed[-1].startswith(("change ", "keep what you have"))


def test_equipoise_replay_takes_a_location_or_a_log(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    assert CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", str(path)]).exit_code == 0
    tried = replay.grid({"max_warmups": [4]})
    with equipoise.open_log(path) as log:
        by_log = replay.what_if(log, tried)
    assert replay.what_if(path, tried, group="orders") == by_log
    assert replay.what_if(replay.read_recording(path), tried) == by_log
    assert replay.pareto_front(by_log)


def test_names_of_equipoise_on_the_page_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"replay\.(\w+)", page)
    assert {"verify", "timeline", "simulate", "what_if"} <= set(named)
    assert set(named) <= set(replay.__all__)
