"""docs/change.md: its commands run, and answer what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.log import open_log
from tests.unit.replay.lived import write
from tests.unit.replay.test_size import Known
from tests.unit.test_docs import ROOT

PAGE = ROOT / "docs" / "change.md"


@pytest.mark.docs
def test_changes_of_the_page_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.findall(r"```sh\n([^`]*--change[^`]*)```", PAGE.read_text(encoding="utf-8"))[0]
    commands = [shlex.split(line) for line in block.splitlines()]
    assert commands[0] == ["mkdir", "-p", "out"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for words in commands[1:-1]:
        assert CliRunner().invoke(main, words[1:]).exit_code == 0
    done = CliRunner().invoke(main, [*commands[-1][1:-1], "6", "--json"])
    assert done.exit_code == 0, done.output
    found = {each["name"]: each["predicted"]["intervals"] for each in json.loads(done.stdout)["predictions"]}
    assert found["join=1"]["unavailable_task_seconds"]["high_95"] == 0 < found["kill=i5"]["unavailable_task_seconds"]["low_95"]
    assert found["join=1"]["moves"]["median"] >= 1
    told = CliRunner().invoke(main, [*commands[-1][1:-1], "2"])
    assert "median of 2 runs, and between which 95 % of them lie" in told.output
    twice = CliRunner().invoke(main, ["what-if", "out/led.db", "--change", "join=1", "--sweep", "max_warmups=1"])
    assert (twice.exit_code, "leave out --config" in twice.output) == (2, True)


@pytest.mark.docs
def test_size_of_the_page_recommends_what_an_experiment_finds(tmp_path: Path) -> None:
    (command,) = re.findall(r"^equipoise size .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    known = Known(per_s=1_000, mean=330)
    with open_log(tmp_path / "group.db", "w") as log:
        write(log, known.log())
    words = [str(tmp_path / "group.db") if each.startswith("kafka://") else each for each in shlex.split(command)[1:]]
    done = CliRunner().invoke(main, [*words, "--runs", "0"])
    assert done.exit_code == 0, done.output
    needs = known.needs(30.0)
    assert needs is not None
    assert re.search(rf"change from 3 to ({needs - 1}|{needs}|{needs + 1}) members for a lag within 30 s", done.output), (needs, done.output)
    assert "of members that were busy" in done.output
