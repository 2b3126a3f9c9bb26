"""Wrong changes of simulated, deployed groups: what the leader notices, and how soon the settings
of before are back (`bench/wrong_changes.py` has all of them).
"""

from __future__ import annotations

import pytest

from bench.wrong_changes import TRIED, Seen, answer, tried

BY_NAME = {each.name: each for each in TRIED}


def test_change_that_cannot_be_is_refused() -> None:
    seen = tried(BY_NAME["no warm-ups"])
    assert (seen.is_refused, seen.is_as_it_should_be) == (True, True)
    assert "0 is not a whole number from 1" in seen.said


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "acceptable lag 1,000,000 times too large",
        "cooperative assignor, and one dies",
        "one joins, with a full disk",
        "one is killed in place of leaving",
        "all restart, with broken code",
        "right: more warm-ups, and one dies",
        "right: one joins",
    ],
)
def test_change_is_noticed_if_it_is_wrong_and_settings_are_back(name: str) -> None:
    seen = tried(BY_NAME[name])
    assert seen.is_as_it_should_be, seen
    assert (seen.back_s is not None) == (seen.is_wrong and seen.is_undoable)


def test_answer_says_what_is_not_as_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    def seen(name: str, noticed_s: float | None, back_s: float | None = None, *, is_wrong: bool = True, is_undoable: bool = True) -> Seen:
        return Seen(name=name, said="too much", noticed_s=noticed_s, back_s=back_s, is_wrong=is_wrong, is_undoable=is_undoable)

    good = [seen("a", 3.0, 4.0), seen("b", 5.0, is_undoable=False), seen("c", None, is_wrong=False)]
    assert answer(good)
    assert "2 of 2 wrong changes noticed" in capsys.readouterr().out
    for bad in (seen("late", 3.0, 61.0), seen("stays", 3.0), seen("unnoticed", None), seen("right", 3.0, 4.0, is_wrong=False)):
        assert not answer([*good, bad]), bad.name
        assert f"NOT {bad.name}" in capsys.readouterr().out


def test_twenty_wrong_changes_are_tried() -> None:
    assert sum(each.is_wrong for each in TRIED) >= 20
    assert len(BY_NAME) == len(TRIED)
