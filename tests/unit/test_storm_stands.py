"""What a storm takes for a task that stands, and for a line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.kafka.connection import Connection
from tests.live.storm.stands import EVERY_S, MOST_S, Look, Stands

ENDS = int(MOST_S / EVERY_S) + 5


def _found(folder: Path, said: str, *, done: tuple[int, int] = (10, 10), written: tuple[int, int] = (10, 20)) -> list[tuple[int, int]]:
    """Partition of each that stands, and number of lines. `done`, `written`: ends at the first look
    and from the second on; a line is printed in between.
    """
    out = folder / "m1.1.out"
    out.write_text("m1 runs 0_3, token 1\n")
    stands = Stands(Connection(), "orders", folder)
    for number in range(ENDS):
        stands.looks.append(Look(number * EVERY_S, {3: written[number > 0]}, {3: done[number > 0]}, {out: out.stat().st_size}))
        if number == 4 and said:
            out.write_text(f"{out.read_text()}{said}\n")
    return [(each.partition, len(each.said)) for each in stands.found()]


def test_task_whose_records_wait_stands(tmp_path: Path) -> None:
    assert _found(tmp_path, "") == [(3, 0)]


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("task 0_3: waits for its producer", 1),
        ("member m1 runs 0_1..4", 1),
        ("group orders: a broker does not answer: no connection", 1),
        ("member m2 runs 0_4", 0),
    ],
)
def test_line_that_names_the_task_or_what_holds_up_its_process_says_so(said: str, lines: int, tmp_path: Path) -> None:
    assert _found(tmp_path, said) == [(3, lines)]


@pytest.mark.parametrize(("done", "written"), [((10, 10), (10, 10)), ((10, 12), (10, 10))])
def test_task_for_which_nothing_waits_does_not_stand(done: tuple[int, int], written: tuple[int, int], tmp_path: Path) -> None:
    assert _found(tmp_path, "", done=done, written=written) == []
