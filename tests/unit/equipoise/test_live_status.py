"""The view of `status`: it fits its terminal, shows hostile names as text, and what
stands still comes first. The list of groups is sorted by trouble.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise.cli.live_status import Seen, draw, seen
from equipoise.cli.screen import plain
from equipoise.cli.status import _ranked, groups_table
from equipoise.cli.visible import MOST_WORD_CHARS
from equipoise.events.errors import GroupHalted
from equipoise.events.fields import is_hidden
from equipoise.replay.all_clear import AskedNow, Grounds, Undecided, grounds_of
from equipoise.replay.group_view import view_of
from equipoise.statemachine.group_lead import GroupLead
from tests.groups import Group, topology
from tests.unit.equipoise.test_visible import GROUP, LONG, evil
from tests.unit.replay.test_trouble import restoring, settled

SIZES = ((40, 12), (80, 24), (200, 60))


def grounds(group: Group, workers: int | None = 1, unknown: str = "", undecided: Undecided | None = None, *, age_ms: int | None = 0) -> Grounds:
    """`age_ms`: how old the last fact of the group is; None: nobody was asked."""
    state = group.machine.state
    asked = None if age_ms is None else AskedNow(workers=workers, unknown=unknown, now_ms=(state.last_append_ms or 0) + age_ms)
    return grounds_of(state, asked=asked, undecided=undecided)


def screen(group: Seen, width: int, height: int, *, remark: str = "", age_s: float = 0.0) -> list[str]:
    """Lines of the view on a terminal of this size."""
    console = Console(width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(draw(group, remark, width=width, height=height, now_s=group.at_s + age_s))
    return captured.get().removesuffix("\n").split("\n")


def of(group: Group, known: Grounds | None = None) -> Seen:
    return seen(GroupLead("orders", group.machine), view_of(group.machine), grounds(group) if known is None else known)


@functools.cache
def hostile() -> Seen:
    from equipoise.replay.replayer import Replayer

    replayer = Replayer(GROUP)
    for _ in replayer.follow(evil()):
        pass
    return seen(GroupLead(GROUP, replayer.machine), view_of(replayer.machine), grounds_of(replayer.machine.state))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("made", [hostile, lambda: of(restoring()), lambda: of(settled("m1", stateful=300))], ids=["hostile", "restoring", "large"])
def test_view_fits_the_terminal_and_has_nothing_hidden(made: Callable[[], Seen], width: int, height: int) -> None:
    lines = screen(made(), width, height, remark="group g: a broker does not answer: \x1b[2J\u202e" + 10_000 * "x")
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert {char for line in lines for char in line if is_hidden(char)} == set()


def test_hostile_names_are_text() -> None:
    text = "\n".join(screen(hostile(), 200, 60))
    assert "orders\\x1b[2J" in text
    assert "[red]" in text
    assert LONG not in text


def test_what_stands_still_comes_first() -> None:
    lines = screen(of(restoring()), 120, 60)
    tasks = lines[next(number for number, line in enumerate(lines) if line == "8 tasks") + 2 :]
    states = ["restores" if "restores" in line else "warming" if "warming" in line else "runs" for line in tasks if line.strip()]
    assert states == sorted(states, key=["restores", "warming", "runs"].index)
    assert states[0] == "restores"
    assert "restore before they run" in lines[1]


def test_expected_time_counts_down_between_reports() -> None:
    group = of(restoring())
    row = attrs.evolve(group.restores[0], expected_ms=41_500)
    group = attrs.evolve(group, restores=[row])
    expected = [next(line for line in screen(group, 140, 60, age_s=age_s) if line.startswith(str(row.task))) for age_s in (0.0, 3.0, 60.0)]
    assert ["in 41 s" in expected[0], "in 38 s" in expected[1], "any moment" in expected[2]] == [True] * 3


def test_groups_with_hostile_names_are_text() -> None:
    lead = GroupLead(GROUP, restoring().machine)
    lead.halted = GroupHalted(GROUP, 7, "defect", 10_000 * "x" + "\x1b[2J[red]\u202e")
    text = plain(groups_table([_ranked(0, lead, grounds_of(lead.machine.state))[1]]))
    assert "[red]" in text
    assert {char for char in text if is_hidden(char)} == {"\n"}
    assert max(len(word) for word in text.split()) <= MOST_WORD_CHARS


CALM = "every task runs, and nothing moves"
WHEN = "as of 00:16:43 UTC, with 1 worker and 1 member in their sessions"


@pytest.mark.parametrize(
    ("known", "first"),
    [
        ({}, f"{CALM}; {WHEN}"),
        ({"age_ms": None}, f"{CALM}, as of 1970-01-01 00:16:43 UTC, offset 7"),
        (
            {"workers": None, "unknown": "no right"},
            f"{CALM}, as of 1970-01-01 00:16:43 UTC, offset 7; whether a worker leads is not known: no right",
        ),
        ({"workers": 0}, "no worker runs: nobody decides what becomes of the tasks of a member that leaves or ends"),
        (
            {"workers": 0, "undecided": Undecided(7, 0, 2)},
            "nobody has decided since 00:00:00.000: 2 decisions are not written; no worker runs; what follows is the state before",
        ),
        (
            {"undecided": Undecided(7, 0, 1)},
            "nobody has decided since 00:00:00.000: 1 decision is not written; 1 worker should: see what it logs; what follows is the state before",
        ),
        ({"age_ms": 3_600_000}, "no member was heard for 1 h 00 min or longer, by this machine's clock: whether their tasks run is not known"),
    ],
)
def test_calm_is_said_with_its_grounds_or_what_is_missing(known: dict[str, Any], first: str) -> None:
    group = settled("m1")
    assert screen(of(group, grounds(group, **known)), 200, 24)[1] == first


def test_member_that_does_not_run_what_the_log_gave_it_comes_first() -> None:
    group = settled("m1")
    state = group.machine.state
    member = state.members["m1"]
    member.held = member.held[1:]
    assert screen(of(group), 200, 24)[1] == "m1 says that it does not run 0_0, which the log gave it"


def test_groups_are_sorted_by_trouble() -> None:
    lost = settled("m1")
    lost.fact(topology(epoch=2, stateful=6))
    warming = settled("m1")
    warming.join("m2", restores=5_000)
    warming.cycle()
    warming.cycle()
    leads = [
        GroupLead("a", settled("m1").machine),
        GroupLead("b", warming.machine),
        GroupLead("c", lost.machine),
        GroupLead("d", settled("m1").machine),
        GroupLead("e", restoring().machine),
    ]
    leads[3].halted = GroupHalted("d", 7, "defect", "a defect")
    ranked = sorted((_ranked(0, lead, grounds_of(lead.machine.state)) for lead in leads), key=lambda pair: pair[0])
    assert [row["group"] for _, row in ranked] == ["d", "e", "c", "b", "a"]
    troubles = {str(row["group"]): row["trouble"] for _, row in ranked}
    assert troubles["a"] is None
    assert str(troubles["b"]).startswith("2 tasks warm up")
    assert str(troubles["c"]).startswith("2 tasks without an owner (0_4..5)")
    assert "halted at offset 7" in str(troubles["d"])


def test_operations_page_shows_a_view_as_it_is_drawn() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    block = re.split(r"--watch` fills the screen:\n\n```\n", page)[1].partition("```")[0].splitlines()
    drawn = screen(of(restoring()), 100, 30)

    def columns(lines: list[str]) -> list[str]:
        return next(line for line in lines if line.startswith("task")).split()

    assert columns(block) == columns(drawn)
    assert [re.sub(r"[0-9]+", "N", line) for line in block if line.endswith("restores")] == ["N restores"]
    assert all(re.search(r"(runs again|runs|taken from [a-z0-9]+)$", line) for line in block if "━" in line)
