"""docs/spark.md, by task: every command of its blocks runs on an archive and writes what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from tests.recorded_groups import record_runs
from tests.unit.test_docs import ROOT

FLEET_LIVED = {"2026-11-01": "2026-09-01", "2026-12-01": "2026-10-01"}
RUNS_LIVED = {"2026-11-01": "2026-01-01", "2026-12-01": "2027-01-01"}
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]


def test_commands_of_each_task_run_on_an_archive(spark: Any, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(fleet, tmp_path / "archive")
    (tmp_path / "recordings").mkdir()
    record_runs(tmp_path / "recordings" / "cluster.db", {"orders": "scale-out"})
    monkeypatch.chdir(tmp_path)
    _, by_task, _ = re.split(r"^## (?:By task|The archive)$", (ROOT / "docs" / "spark.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", by_task, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 4
    printed = []
    for line in lines:
        program, *words = line.split()
        assert program == "equipoise"
        lived = RUNS_LIVED if "incident" in words else FLEET_LIVED
        words = [lived.get(word, word) for word in words]
        result = CliRunner().invoke(main, [*words, *(["--seeds", "1"] if "what-if" in words and "--seeds" not in words else [])])
        assert result.exit_code == 0, f"{line}\n{result.output}"
        printed.append(result.stdout)
        folder = words[words.index("--to") + 1] if "--to" in words else "none/"
        for table in re.findall(rf"`{folder}(\w+)`", by_task):
            assert ds.dataset(tmp_path / folder / table).count_rows() > 0
    for page in ("costs.html", "incidents.html"):
        assert (tmp_path / page).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert any("what began it" in text for text in printed)
    assert any("task-s saved" in text for text in printed)
    assert any("behaviour_version=latest: decides 0 of " in text for text in printed)
