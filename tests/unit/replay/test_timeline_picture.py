"""The SVG picture: well-formed, self-contained, reproducible, with every bar where the timeline has
its interval.
"""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.facts import MemberJoined
from equipoise.replay.drawing.colours import CAUSE_COLOURS, member_colour
from equipoise.replay.owners import Condition
from equipoise.replay.timelines import Timeline, build_timeline, render_page, render_picture
from equipoise.replay.timelines.page import page_data
from equipoise.replay.timelines.picture import _LEFT, _RIGHT
from equipoise.statemachine.step_context import CAUSES
from tests.unit.replay.lived import TOPOLOGY, configured, decided, lived

SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def timeline() -> Timeline:
    return build_timeline(lived())


def elements(svg: str, name: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(SVG + name))


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in elements(svg, "text")]


def bars(svg: str) -> dict[str, list[tuple[float, float, float]]]:
    """Fill or class -> (left, top, width) of its bars."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for each in elements(svg, "path"):
        shapes = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v9h-[\d.]+z", each.get("d", ""))
        if shapes:
            found[each.get("fill") or each.get("class") or ""] = [(float(x), float(y), float(width)) for x, y, width in shapes]
    return found


def test_picture_is_self_contained_and_labelled() -> None:
    svg = render_picture(timeline(), title="Us & them")
    assert not re.search(r"href|@import|url\((?!#)|<script|//(?!www\.w3\.org/2000/svg)", svg)
    assert {"m1", "m2", "m3", "m4", "0_0", "1_2", "not running", "owner silent"} <= set(texts(svg))
    moves = timeline().totals().moves
    assert texts(svg)[:2] == ["Us & them", f"{moves} changes of owner"]
    assert texts(render_picture(timeline()))[0] == f"orders, led by equipoise (high_availability {registry.latest('high_availability').version})"


def test_equal_histories_give_equal_pictures() -> None:
    assert render_picture(timeline()) == render_picture(build_timeline(lived()))


def test_picture_bars_have_owners_colour_and_time() -> None:
    built = timeline()
    drawn = bars(render_picture(built))
    conditions = Counter(each.condition for each in built.intervals)
    assert len(drawn["silent"]) == conditions[Condition.SILENT] > 0
    assert sum(len(shapes) for paint, shapes in drawn.items() if paint.startswith("url(")) == conditions[Condition.STARTING] > 0
    tasks = list(built.tasks)
    for member in ("m1", "m2", "m3", "m4"):
        wanted = []
        for each in built.intervals:
            if (each.member_id, each.condition) == (member, Condition.RUNNING):
                left, right = ((ms - built.from_ms) * (_RIGHT - _LEFT) / (built.to_ms - built.from_ms) + _LEFT for ms in (each.from_ms, each.to_ms))
                wanted.append((tasks.index(each.task), left, right))
        rows = sorted({y for shapes in drawn.values() for _, y, _ in shapes})
        assert len(rows) == len(tasks)
        found = [(rows.index(y), x, x + width) for x, y, width in drawn[member_colour(built.numbers[member])]]
        for have, want in zip(sorted(found), sorted(wanted), strict=True):
            assert have == pytest.approx(want, abs=0.8)


def test_pictures_share_a_time_scale() -> None:
    built = timeline()
    twice = built.to_ms + (built.to_ms - built.from_ms)
    first, second = bars(render_picture(built))["silent"], bars(render_picture(built, to_ms=twice))["silent"]
    for (x, _, _), (halved, _, _) in zip(first, second, strict=True):
        assert halved - _LEFT == pytest.approx((x - _LEFT) / 2, abs=0.2)
    assert render_picture(built, to_ms=built.from_ms) == render_picture(built), "nothing is cut off"


@pytest.mark.parametrize("times", [1, 40, 3_000, 2_000_000])
def test_picture_has_few_time_labels(times: int) -> None:
    built = timeline()
    svg = render_picture(built, to_ms=built.from_ms + times * (built.to_ms - built.from_ms))
    assert 3 <= sum(bool(re.fullmatch(r"\d\d:\d\d:\d\d", text)) for text in texts(svg)) <= 11


def test_picture_of_many_tasks_has_bounded_height() -> None:
    built = timeline()
    few, many = [task for task in built.tasks if task.subtopology == 0], range(2_000)
    wide = attrs.evolve(
        built,
        tasks={task._replace(partition=number): True for number, task in zip(many, few * 200, strict=False)},
        intervals=tuple(attrs.evolve(each, task=few[0]._replace(partition=number)) for number in many for each in built.intervals[:1]),
        copies=(),
        moves=(),
        lags={},
    )
    svg = render_picture(wide)
    assert int(ET.fromstring(svg).get("height", "")) < 4_500
    assert len(svg) < 120_000


def test_picture_escapes_names() -> None:
    name = "</text><script>\x01&"
    entries = decided(
        (1_000, configured(initial_delay_ms=0)), (1_001, TOPOLOGY), (1_002, MemberJoined(member_id=name, incarnation=1, join_nonce="a"))
    )
    svg = render_picture(attrs.evolve(build_timeline(entries), group="<b>"))
    assert "</text><script>\ufffd&" in texts(svg)
    assert not elements(svg, "script")
    assert not elements(svg, "b")


def test_page_and_picture_have_one_set_of_colours() -> None:
    built = timeline()
    data = page_data(built)
    assert dict(zip(data["members"], data["colours"], strict=True)) == {name: member_colour(number) for name, number in built.numbers.items()}
    assert len(set(built.numbers.values())) == 4
    assert len({member_colour(number) for number in range(100)}) == 100
    assert set(CAUSE_COLOURS) <= set(CAUSES)
    style = elements(render_picture(built), "style")[0].text or ""
    page = render_page(built)
    rules = (Path(__file__).parents[3] / "replay" / "drawing" / "colours.css").read_text()
    assert rules in style
    assert rules in page
    for used in set(re.findall(r"var\((--[a-z-]+)\)", render_picture(built) + page)):
        assert rules.count(f"{used}:") == 2, f"{used}: light and dark"
