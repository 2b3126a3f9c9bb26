"""docs/tuning.md: every setting has a row with its default, and the example table equals the
simulation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.settings import GroupSettings
from tests.made import hold

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"

SETTINGS = (
    ("as recorded: 2 warm-ups, lag 1,000", ()),
    ("`max_warmups=1`", ("max_warmups=1",)),
    ("`max_warmups=20` `max_warmups_per_member=20`", ("max_warmups=20", "max_warmups_per_member=20")),
    ("`acceptable_recovery_lag=0`", ("acceptable_recovery_lag=0",)),
    ("`acceptable_recovery_lag=100000`", ("acceptable_recovery_lag=100000",)),
    ("`num_standbys=1`", ("num_standbys=1",)),
    ("`balance_factor=2`", ("balance_factor=2",)),
)


RECOVERY_MS = (0, 500, 1_000)


def imported(run: str, folder: Path) -> Path:
    log = folder / "recorded.db"
    result = CliRunner().invoke(main, ["import", "kafka-streams", run, "--to", str(log)])
    assert result.exit_code == 0, result.stderr
    return log


def simulated(log: Path, to: Path, *settings: str) -> list[dict[str, Any]]:
    """The windows of `equipoise what-if --to`."""
    options = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(main, ["what-if", str(log), "--to", str(to), "--json", *options])
    assert result.exit_code == 0, result.stderr
    return list(json.loads(result.stdout)["windows"])


def row(name: str, windows: list[dict[str, Any]]) -> str:
    totals = [window["totals"] for window in windows]

    def summed(key: str) -> float:
        return float(sum(each[key] for each in totals))

    cells = (
        name,
        f"{summed('unavailable_task_seconds'):,.1f}",
        f"{summed('active_moves'):.0f}",
        f"{summed('records_restored') / 1_000_000:.1f} million",
        f"{summed('imbalance_task_seconds'):,.0f}",
        f"{max(each['seconds_to_last_generation'] for each in totals):.1f} s",
    )
    return f"| {' | '.join(cells)} |"


def settings_table(folder: Path) -> str:
    log = imported("scale-out", folder)
    lines = ["| setting | unavailable | moves | records restored | imbalance | at rest after |", "|---|--:|--:|--:|--:|--:|"]
    return "\n".join([*lines, *(row(name, simulated(log, folder / "led.db", *settings)) for name, settings in SETTINGS)])


def recovery_table(folder: Path) -> str:
    log = imported("rolling", folder)
    lines = ["| setting | rounds | copies begun | imbalance | longest gap |", "|---|--:|--:|--:|--:|"]
    for acceptable_ms in RECOVERY_MS:
        setting = f"acceptable_recovery_ms={acceptable_ms}"
        totals = next(window["totals"] for window in simulated(log, folder / "led.db", setting) if window["label"].startswith("B3_"))
        uneven, longest_ms = f"{totals['imbalance_task_seconds']:.1f}", totals["longest_silence_ms"]
        lines.append(f"| `{setting}` | {totals['generations']} | {totals['standby_copies_begun']} | {uneven} | {longest_ms} ms |")
    return "\n".join(lines)


@pytest.mark.docs
def test_tuning_examples_equal_the_simulation(tmp_path: Path, rewrite: bool) -> None:
    hold(PAGE, {"settings": settings_table(tmp_path), "recovery": recovery_table(tmp_path)}, rewrite)


def test_settings_table_has_every_default() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## The settings\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", section, re.MULTILINE)
    defaults = attrs.asdict(GroupSettings())
    assert [name for name, _ in rows] == list(defaults)
    for name, told in rows:
        wanted = defaults[name]
        assert told == (f"{wanted:,}" if isinstance(wanted, int) else f"`{wanted}`" if wanted and isinstance(wanted, str) else "(none)"), name
