"""docs/tuning.md holds: every knob has its row with its default, and the example table is what the simulation gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from events.knobs import Knobs
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("tuning") / "recorded.db"
    result = CliRunner().invoke(main, ["import", "kafka-streams", "scale-out", "--to", str(log)])
    assert result.exit_code == 0, result.stderr
    return log


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


def test_the_example_is_what_the_simulation_gives(recorded: Path, tmp_path: Path, rewrite: bool) -> None:
    lines = ["| setting | silent | changes of owner | records restored | uneven | settled |", "|---|--:|--:|--:|--:|--:|"]
    for name, settings in SETTINGS:
        options = [part for setting in settings for part in ("--set", setting)]
        result = CliRunner().invoke(main, ["simulate", str(recorded), "--to", str(tmp_path / "led.db"), "--json", *options])
        assert result.exit_code == 0, result.stderr
        lines.append(row(name, json.loads(result.stdout)["windows"]))
    hold(PAGE, {"settings": "\n".join(lines)}, rewrite)


def test_every_knob_has_its_row_with_its_default() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## The knobs\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", section, re.MULTILINE)
    defaults = attrs.asdict(Knobs())
    assert [name for name, _ in rows] == list(defaults)
    for name, told in rows:
        wanted = defaults[name]
        assert told == (f"{wanted:,}" if isinstance(wanted, int) else f"`{wanted}`" if wanted and isinstance(wanted, str) else "(none)"), name
