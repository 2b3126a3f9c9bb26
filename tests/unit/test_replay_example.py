"""The example of replay as a library prints the output in docs/spark.md and draws its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import replay
from equipoise.log import open_log
from equipoise.replay.verification import Verdict
from examples.fleet.many_groups import Fleet, make_fleet
from examples.replay.__main__ import GROUP, main
from tests.made import hold

ROOT = Path(__file__).parents[2]
PICTURE = "replay_history.svg"


@pytest.mark.docs
def test_replay_example_output_equals_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str], rewrite: bool) -> None:
    main(tmp_path)
    said = capsys.readouterr().out
    kept = ROOT / "docs" / "pictures" / PICTURE
    if rewrite:
        kept.write_bytes((tmp_path / "history.svg").read_bytes())
    hold(ROOT / "docs" / "spark.md", {"replay": f"```\n{said.strip()}\n```"}, rewrite)
    assert (tmp_path / "history.svg").read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), "run `make pictures`"


def test_library_takes_a_location_or_an_open_log(tmp_path: Path) -> None:
    location = tmp_path / "fleet"
    make_fleet(Fleet(groups=2, records=800, seed=1), location)
    assert replay.verify(str(location)).verdict is Verdict.IDENTICAL
    with open_log(location) as log:
        assert [group.group for group in replay.verify(log, group="g001").groups] == ["g001"]
        by_log = replay.timeline(log, group=GROUP)
        assert log.count() > 800, "it is still open"
    assert by_log == replay.timeline(location, group=GROUP)
    assert replay.timeline(location, group=GROUP, until_offset=50).facts < by_log.facts
