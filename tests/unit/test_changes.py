"""`equipoise timeline --changes`: each planned change with its verdict, and settings that were
changed without a plan; a log in which a change was undone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.replay.known_changes import known_changes
from equipoise.replay.prediction.change_wish import ChangeWish
from tests.changed_groups import changed_group, entries_of, write_changed
from tests.json_schemas import check


def test_each_change_has_its_verdict() -> None:
    found = known_changes(entries_of(changed_group()))
    verdicts = [("a", "at_rest"), ("less", "at_rest"), ("b", "too_much"), (None, "not planned"), ("c", "under way")]
    assert [(each.change_id, each.verdict) for each in found] == verdicts
    assert found[0].judged_ms is not None
    assert found[0].judged_ms > found[0].append_ms
    assert [each.what() for each in found[2:4]] == ["num_standbys 0 -> 1", "max_warmups 3 -> 5"]
    assert found[2].judged is not None
    assert found[2].judged.undone
    assert known_changes(entries_of(changed_group()), "other") == []


def test_table_and_document_show_them(tmp_path: Path) -> None:
    path = write_changed(tmp_path / "group.db")
    shown = CliRunner().invoke(main, ["timeline", str(path), "--changes"])
    assert shown.exit_code == 0, shown.output
    for text in ("as expected", "over: moves below", "too much: time until rest above; undone", "not planned", "under way", "at most 0.5 task-s"):
        assert text in shown.output, text
    document = json.loads(CliRunner().invoke(main, ["timeline", "--json", str(path), "--changes"]).stdout)
    check("timeline", document)
    assert [each["verdict"] for each in document["changes"]] == ["at_rest", "at_rest", "too_much", "not planned", "under way"]
    assert document["changes"][2]["judged"]["undone"]
    with_page = CliRunner().invoke(main, ["timeline", str(path), "--changes", "--all"])
    assert with_page.exit_code == 2
    assert "--changes: lists changes" in with_page.output
    missing = CliRunner().invoke(main, ["timeline", str(path), "--changes", "--group", "nobody"])
    assert missing.exit_code == 2
    assert "no group 'nobody'" in missing.output


def test_wish_to_undo_says_what_is_too_much() -> None:
    with pytest.raises(InputError, match="--at-most"):
        ChangeWish(or_undo=True).planned("configure", "x", 7, None)
    planned = ChangeWish(or_undo=True, at_most_task_s=1.5, why="a test").planned("configure", "x", 7, None)
    assert (planned.change_id, planned.most_unavailable_task_ms, planned.why) == ("configure-8", 1_500, "a test")
    assert ChangeWish().planned("restart", "x", 7, None).quiet_ms > planned.quiet_ms
    killed = ChangeWish().planned("scale_down", "m2 is killed", 7, None, name="kill")
    assert (killed.change_id, killed.kind) == ("kill-8", "scale_down")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dry-run", "--judge", "--set", "max_warmups=3"], "leave out one of them"),
        (["--why", "x", "--set", "max_warmups=3"], "--why: goes with"),
        (["--judge"], "--judge: say what to change"),
        (["--plan", "join=1", "--set", "max_warmups=3"], "--plan: for a change that you make yourself"),
        (["--deal", "--or-undo"], "--deal: changes no setting"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], said: str) -> None:
    answer = CliRunner().invoke(main, ["configure", "--group", "g", *options])
    assert answer.exit_code == 2
    assert said in answer.output
